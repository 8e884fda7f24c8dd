//! Progress of a run, on standard error.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use indicatif::{ProgressBar, ProgressStyle};
use wave_process::say;

/// Progress of a run: a bar on a terminal, a line per step elsewhere, nothing if the run is quiet.
pub struct Progress {
    steps: u64,
    ended: Arc<AtomicU64>,
    shown: Shown,
}

enum Shown {
    Bar(ProgressBar),
    Lines(Mutex<Lines>),
    Nothing,
}

/// Receives progress lines.
type Lines = Box<dyn FnMut(&str) + Send>;

impl Progress {
    /// Progress over `steps` steps, on standard error; nothing with `quiet`, as for `--json` and `--quiet`.
    pub fn new(steps: u64, quiet: bool) -> Self {
        if quiet {
            return Self::showing(steps, Shown::Nothing);
        }
        if !std::io::stderr().is_terminal() {
            // A measuring or serving run must not wait for a reader.
            return Self::lines(steps, Box::new(|line| say!("{line}")));
        }
        let bar = ProgressBar::new(steps);
        let style = ProgressStyle::with_template("{bar:24} {pos}/{len}  {elapsed}  {wide_msg}");
        bar.set_style(style.expect("the template is a constant"));
        Self::showing(steps, Shown::Bar(bar))
    }

    /// Progress of a run with an unknown number of steps.
    pub fn open_ended(quiet: bool) -> Self {
        if quiet || !std::io::stderr().is_terminal() {
            return Self::new(0, quiet);
        }
        let bar = ProgressBar::new_spinner();
        let style = ProgressStyle::with_template("{elapsed}  {wide_msg}");
        bar.set_style(style.expect("the template is a constant"));
        Self::showing(0, Shown::Bar(bar))
    }

    /// Progress as a plain line per step, passed to `to`. A line counts the steps that have ended when its step begins.
    pub fn lines(steps: u64, to: Lines) -> Self {
        Self::showing(steps, Shown::Lines(Mutex::new(to)))
    }

    fn showing(steps: u64, shown: Shown) -> Self {
        Self { steps, ended: Arc::default(), shown }
    }

    /// Number of steps; 0 if it is not known.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Number of steps that have ended.
    pub fn ended(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.ended)
    }

    /// Begins a step, which `what` names.
    pub fn begin(&self, what: &str) {
        match &self.shown {
            Shown::Bar(bar) => bar.set_message(what.to_owned()),
            Shown::Lines(lines) => {
                let mut lines = lines.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                let ended = self.ended.load(Ordering::Relaxed);
                match self.steps {
                    0 => lines(what),
                    steps => lines(&format!("[{ended}/{steps}] {what}")),
                }
            }
            Shown::Nothing => {}
        }
    }

    /// Counts one step as done. Advances the bar; without a bar, the last step prints a line.
    pub fn end(&self) {
        let ended = 1 + self.ended.fetch_add(1, Ordering::Relaxed);
        match &self.shown {
            Shown::Bar(bar) => bar.inc(1),
            Shown::Lines(_) if ended == self.steps => self.say(&format!("[{ended}/{ended}] done")),
            _ => {}
        }
    }

    /// Prints `line` without disturbing the bar.
    pub fn say(&self, line: &str) {
        match &self.shown {
            Shown::Bar(bar) => bar.println(line),
            Shown::Lines(lines) => {
                let mut lines = lines.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                lines(line);
            }
            Shown::Nothing => {}
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Shown::Bar(bar) = &self.shown {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_without_a_terminal_counts_steps_that_have_ended() {
        let (say, said) = std::sync::mpsc::channel();
        let progress = Progress::lines(2, Box::new(move |line| say.send(line.to_owned()).unwrap()));
        for step in ["a at 10 k/s", "b at 10 k/s"] {
            progress.begin(step);
            progress.end();
        }
        drop(progress);
        let expected = ["[0/2] a at 10 k/s", "[1/2] b at 10 k/s", "[2/2] done"];
        assert_eq!(said.iter().collect::<Vec<_>>(), expected);
    }
}

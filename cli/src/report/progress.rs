//! How far a run is, on standard error.

use std::io::{IsTerminal, Write};
use std::sync::Mutex;

use indicatif::{ProgressBar, ProgressStyle};

/// How far a run is: a bar on a terminal, a line per step elsewhere, nothing when asked to be quiet.
pub struct Progress {
    steps: u64,
    shown: Shown,
}

enum Shown {
    Bar(ProgressBar),
    Lines(Mutex<Lines>),
    Nothing,
}

struct Lines {
    begun: u64,
    to: Box<dyn Write + Send>,
}

impl Progress {
    /// Progress over `steps` steps, on standard error; nothing with `quiet`, as for `--json` and `--quiet`.
    pub fn new(steps: u64, quiet: bool) -> Self {
        if quiet {
            return Self { steps, shown: Shown::Nothing };
        }
        if !std::io::stderr().is_terminal() {
            return Self::lines(steps, Box::new(std::io::stderr()));
        }
        let bar = ProgressBar::new(steps);
        let style = ProgressStyle::with_template("{bar:24} {pos}/{len}  {elapsed}  {wide_msg}");
        bar.set_style(style.expect("the template is a constant"));
        Self { steps, shown: Shown::Bar(bar) }
    }

    /// Progress of something whose end is not known.
    pub fn open_ended(quiet: bool) -> Self {
        if quiet || !std::io::stderr().is_terminal() {
            return Self::new(0, quiet);
        }
        let bar = ProgressBar::new_spinner();
        let style = ProgressStyle::with_template("{elapsed}  {wide_msg}");
        bar.set_style(style.expect("the template is a constant"));
        Self { steps: 0, shown: Shown::Bar(bar) }
    }

    /// A plain line per step, to `to`.
    pub fn lines(steps: u64, to: Box<dyn Write + Send>) -> Self {
        Self { steps, shown: Shown::Lines(Mutex::new(Lines { begun: 0, to })) }
    }

    /// A step begins; `what` says which. A line that cannot be written is not worth failing for.
    pub fn begin(&self, what: &str) {
        match &self.shown {
            Shown::Bar(bar) => bar.set_message(what.to_owned()),
            Shown::Lines(lines) => {
                let mut lines = lines.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                lines.begun += 1;
                let begun = lines.begun;
                let _ = match self.steps {
                    0 => writeln!(lines.to, "{what}"),
                    steps => writeln!(lines.to, "[{begun}/{steps}] {what}"),
                };
            }
            Shown::Nothing => {}
        }
    }

    /// The step that began last is done.
    pub fn end(&self) {
        if let Shown::Bar(bar) = &self.shown {
            bar.inc(1);
        }
    }

    /// Prints `line` without disturbing the bar.
    pub fn say(&self, line: &str) {
        match &self.shown {
            Shown::Bar(bar) => bar.println(line),
            Shown::Lines(lines) => {
                let mut lines = lines.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                let _ = writeln!(lines.to, "{line}");
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

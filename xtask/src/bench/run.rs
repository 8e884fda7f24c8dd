//! One run of one bench.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use perf_event::Counter;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::counter;
use super::figures::{Bench, COUNTED};

/// Far longer than any run takes, also beside other processes.
const TIME_MAX: Duration = Duration::from_secs(180);
/// Interval at which a run is checked for its end.
const POLL_EVERY: Duration = Duration::from_millis(20);
/// The interval while the thread to be counted does not exist yet.
const LOOK_FOR_THREAD_EVERY: Duration = Duration::from_millis(1);
/// The host core's thread in the bench `switch`.
const COUNTED_THREAD: &str = "wave-core-0";
/// Clap's exit code for an unknown argument.
const EXIT_UNKNOWN: i32 = 2;

/// Why a run has no figures.
#[derive(Debug, PartialEq)]
pub enum Failure {
    /// This binary has no such bench, or not these options.
    Unknown(String),
    /// The run failed, or took too long.
    Failed(String),
    /// A signal interrupted the comparison.
    Interrupted,
}

/// The signal that interrupts the comparison, if it has come.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicUsize>);

impl Stop {
    /// Makes SIGINT (Ctrl-C) and SIGTERM end the comparison in order.
    pub fn on_signals() -> Result<Self, String> {
        let stop = Self::default();
        for signal in [SIGINT, SIGTERM] {
            let flag = Arc::clone(&stop.0);
            signal_hook::flag::register_usize(signal, flag, signal as usize)
                .map_err(|error| format!("signal {signal}: {error}"))?;
        }
        Ok(stop)
    }

    pub fn signal(&self) -> Option<u8> {
        u8::try_from(self.0.load(Ordering::Relaxed)).ok().filter(|signal| *signal > 0)
    }

    #[cfg(test)]
    pub fn come(&self, signal: u8) {
        self.0.store(signal.into(), Ordering::Relaxed);
    }
}

/// Runs the bench. Returns the object that it prints; if `counts`, instructions per switch are added.
pub fn run(program: &Path, bench: &Bench, counts: bool, stop: &Stop) -> Result<Value, Failure> {
    let mut command = Command::new(program);
    command.args(["bench", &bench.name, "--json"]).args(&bench.short);
    let (mut printed, instructions) = printed_by(command, counts, stop)?;
    if let Some(number) = per_switch(instructions, &printed) {
        printed[COUNTED] = number.into();
    }
    Ok(printed)
}

/// A switch needs at least one instruction: a count of 0 means that the counter never ran.
fn per_switch(instructions: Option<u64>, printed: &Value) -> Option<f64> {
    let instructions = instructions.filter(|instructions| *instructions > 0)?;
    Some(instructions as f64 / switches(printed)? as f64)
}

/// Switches of a whole run: decisions that completed.
fn switches(printed: &Value) -> Option<u64> {
    printed.get("outcomes")?.get("COMPLETE")?.as_u64().filter(|switches| *switches > 0)
}

fn printed_by(
    mut command: Command,
    counts: bool,
    stop: &Stop,
) -> Result<(Value, Option<u64>), Failure> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Benches start processes of their own, which are killed with the group.
    let mut running = Running(command.process_group(0).spawn().map_err(failed)?);
    let (out, err) = (read(running.0.stdout.take()), read(running.0.stderr.take()));
    let mut counter = None;
    let ended = ended(&mut running.0, counts.then_some(&mut counter), stop);
    drop(running);
    let [out, err] = [out, err].map(|reader| reader.join().unwrap_or_default());
    let status = ended?;
    if !status.success() {
        let line = err
            .lines()
            .find(|line| !line.trim().is_empty())
            .unwrap_or("no message on standard error");
        let said = format!("{} ({status})", line.trim());
        let unknown = status.code() == Some(EXIT_UNKNOWN);
        return Err(if unknown { Failure::Unknown(said) } else { Failure::Failed(said) });
    }
    let printed =
        serde_json::from_str(&out).map_err(|error| failed(format!("no JSON: {error}")))?;
    Ok((printed, counter.and_then(|mut counter| counter.read().ok())))
}

/// Waits for the run's end, at most `TIME_MAX`. Opens the counter as soon as the thread to be counted exists.
fn ended(
    child: &mut Child,
    mut counter: Option<&mut Option<Counter>>,
    stop: &Stop,
) -> Result<ExitStatus, Failure> {
    let begun = Instant::now();
    loop {
        let status = child.try_wait().map_err(failed)?;
        // The run may have ended by another signal of the same key press.
        if stop.signal().is_some() {
            return Err(Failure::Interrupted);
        }
        if let Some(status) = status {
            return Ok(status);
        }
        if begun.elapsed() > TIME_MAX {
            return Err(failed(format!("it took longer than {} s", TIME_MAX.as_secs())));
        }
        let mut wait = POLL_EVERY;
        if let Some(counter) = counter.as_mut().filter(|counter| counter.is_none()) {
            **counter = counter::instructions(child.id(), COUNTED_THREAD).map_err(failed)?;
            wait = LOOK_FOR_THREAD_EVERY;
        }
        std::thread::sleep(wait);
    }
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::Failed(error.to_string())
}

/// Reads the whole pipe on a thread, so that it never fills.
fn read(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // On an error, keep the bytes that came before it.
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// A bench's process and those that it has started; all are killed when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // If the group is empty, no process is hit.
        let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    fn printed(script: &str, stop: &Stop) -> Result<Value, Failure> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        printed_by(command, false, stop).map(|(printed, _)| printed)
    }

    #[test]
    fn a_run_returns_its_object_or_the_reason_of_its_failure() {
        let stop = Stop::default();
        assert_eq!(printed("echo '{\"a\": 1}'", &stop), Ok(serde_json::json!({ "a": 1 })));
        let unknown = printed("echo; echo no such bench >&2; exit 2", &stop);
        assert_eq!(unknown, Err(Failure::Unknown("no such bench (exit status: 2)".into())));
        let failed = printed("echo two CPUs >&2; exit 3", &stop);
        assert_eq!(failed, Err(Failure::Failed("two CPUs (exit status: 3)".into())));
        assert!(matches!(printed("echo text", &stop), Err(Failure::Failed(_))));
    }

    #[test]
    fn a_signal_ends_a_run_with_all_its_processes() {
        let stop = Stop::default();
        stop.come(2);
        // This returns only when the last process has closed the pipe.
        assert_eq!(printed("sleep 1000 & sleep 1000", &stop), Err(Failure::Interrupted));
        assert_eq!(stop.signal(), Some(2));
    }

    #[test]
    fn switches_are_the_decisions_that_were_completed() {
        let printed = serde_json::json!({ "outcomes": { "COMPLETE": 10, "TARGET_STALE": 3 } });
        assert_eq!(switches(&printed), Some(10));
        assert_eq!(switches(&serde_json::json!({ "outcomes": {} })), None);
    }

    #[test]
    fn a_counter_that_never_ran_gives_no_figure() {
        let printed = serde_json::json!({ "outcomes": { "COMPLETE": 10 } });
        assert_eq!(per_switch(Some(25), &printed), Some(2.5));
        assert_eq!(per_switch(Some(0), &printed), None);
        assert_eq!(per_switch(None, &printed), None);
    }
}

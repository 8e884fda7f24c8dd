//! Records programs with known behaviour. The tests assert counts but never times, as the machine may be
//! busy with other work.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use wave_linux::record::{History, Lost, RecordError, Recorder, Scope};
use wave_sched::workload::{End, Thread};

/// Starts a recorder. Reports why if that is not possible.
fn start(scope: Scope) -> Option<Recorder> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|n| n.parse().ok());
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    match Recorder::start(scope) {
        Ok(recorder) => Some(recorder),
        Err(error @ (RecordError::NotPermitted | RecordError::NoTypes)) => {
            wave_skip::skip(error);
            None
        }
        Err(error @ RecordError::Refused(_)) if version < (5, 18) => {
            wave_skip::skip(error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Takes events until `done`, then ends the recording.
fn record(mut recorder: Recorder, mut done: impl FnMut() -> bool) -> (Vec<Thread>, u64, Lost) {
    let mut history = History::new(recorder.begins_ns());
    while !done() {
        recorder.take(&mut |event| history.feed(event)).unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
    let (ends_ns, lost) = recorder.stop(&mut |event| history.feed(event)).unwrap();
    let (threads, repaired) = history.finish(ends_ns);
    (threads, repaired, lost)
}

/// Records the child that `command` starts, with its children, until it ends. Returns its id and the threads. If a
/// kernel does not run a BPF program at an event, it counts no loss (Linux 6.18 as a guest does this in a few
/// recordings of a hundred, and its own trace lacks such events as well), so that only the guess in the event's place
/// shows it. Such a recording is repeated.
fn record_without_guesses(command: &mut Command) -> Option<(u32, Vec<Thread>)> {
    const ATTEMPTS: usize = 8;
    for _ in 0..ATTEMPTS {
        let recorder = start(Scope::Children)?;
        let mut child = command.spawn().unwrap();
        let pid = child.id();
        let (threads, repaired, lost) = record(recorder, || child.try_wait().unwrap().is_some());
        assert_eq!(lost, Lost::default());
        if repaired == 0 {
            return Some((pid, threads));
        }
    }
    panic!("{ATTEMPTS} recordings in a row needed guesses")
}

#[test]
fn shell_and_its_seven_sleeps_are_recorded_and_nothing_else() {
    let script = "for i in 1 2 3 4 5 6 7; do sleep 0.05; done";
    let recorded = record_without_guesses(Command::new("sh").args(["-c", script]));
    let Some((pid, threads)) = recorded else { return };
    let at = threads.iter().position(|thread| thread.pid == pid).expect("the shell ran");
    assert_eq!(threads[at].name, "sh");
    let sleeps: Vec<&Thread> = threads.iter().filter(|thread| thread.name == "sleep").collect();
    assert_eq!(sleeps.len(), 7);
    for sleep in &sleeps {
        assert_eq!((sleep.end, sleep.process), (End::Exited, sleep.pid));
        assert!(sleep.runs.len() >= 2, "sleep must run once before it sleeps, and once after");
        let maker = sleep.runs[0].waker.expect("the shell made it");
        assert_eq!(maker.thread as usize, at);
        assert!(maker.cpu_ns > 0 && maker.cpu_ns <= threads[at].cpu_ns());
        assert!(sleep.cpu_ns() > 0);
        let by_time = sleep.runs.iter().skip(1).filter(|run| run.waker.is_none());
        assert!(by_time.count() >= 1, "no wake-up by the timer was recorded");
    }
    let known: BTreeSet<&str> = threads.iter().map(|thread| thread.name.as_str()).collect();
    assert_eq!(
        known,
        BTreeSet::from(["sh", "sleep"]),
        "only the shell and its children are recorded"
    );
}

#[test]
fn existing_process_is_found_with_its_children() {
    // The shell waits for a line; its child sleeps for longer than the test takes.
    let script = "sleep 1000 & read line; kill $!; wait";
    let mut shell = Command::new("sh")
        .args(["-c", script])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let pid = shell.id();
    let recorder = start(Scope::Process(pid));
    // The end of input serves as the line.
    drop(shell.stdin.take());
    let Some(recorder) = recorder else {
        shell.wait().unwrap();
        return;
    };
    let (threads, _, lost) = record(recorder, || shell.try_wait().unwrap().is_some());
    assert_eq!(lost, Lost::default());
    let shell = threads.iter().find(|thread| thread.pid == pid).expect("the shell continued");
    assert_eq!(shell.end, End::Exited);
    // Its child was killed, and needs a run to end.
    assert!(threads.iter().any(|thread| thread.pid != pid && thread.end == End::Exited));
}

#[test]
fn sharing_a_cpu_with_an_unrecorded_thread_is_interference() {
    let Some(recorder) = start(Scope::Children) else { return };
    drop(recorder);
    // Both programs run on the first CPU that this thread may use. The other program's loop ends with its input.
    let allowed = sched_getaffinity(None).unwrap();
    let cpu = (0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).unwrap();
    let mut one = CpuSet::new();
    one.set(cpu);
    sched_setaffinity(None, &one).unwrap();
    let script = "(while :; do :; done) & read line; kill $!; wait";
    let mut other = Command::new("sh")
        .args(["-c", script])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut recorder = Recorder::start(Scope::Children).unwrap();
    let script = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
    let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
    let begins_ns = recorder.begins_ns();
    let mut history = History::new(begins_ns);
    while child.try_wait().unwrap().is_none() {
        recorder.take(&mut |event| history.feed(event)).unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
    let (ends_ns, _) = recorder.stop(&mut |event| history.feed(event)).unwrap();
    drop(other.stdin.take());
    other.wait().unwrap();
    let taken_ns = history.interference_ns(ends_ns);
    let (threads, _) = history.finish(ends_ns);
    let recorded = threads.iter().find(|thread| thread.pid == child.id()).expect("the child ran");
    let lost = recorded.runs.iter().map(|run| run.preemptions).sum::<u64>();
    assert!(lost > 0 && taken_ns > 0, "the thread lost its CPU {lost} times, for {taken_ns} ns");
    assert!(taken_ns <= ends_ns - begins_ns, "more than one CPU was taken");
}

#[test]
fn recording_the_whole_machine_finds_threads() {
    let Some(recorder) = start(Scope::All) else { return };
    let own = std::process::id();
    let mut child = Command::new("sleep").arg("0.05").spawn().unwrap();
    let (threads, _, _) = record(recorder, || child.try_wait().unwrap().is_some());
    assert!(threads.iter().any(|thread| thread.name == "sleep" && thread.pid == child.id()));
    assert!(threads.iter().all(|thread| thread.process != own), "the recorder itself was recorded");
}

#[test]
fn missing_process_is_named_in_the_error() {
    // Ids end at 2^22.
    let error = Recorder::start(Scope::Process(u32::MAX / 2)).expect_err("no process has this id");
    assert!(error.to_string().contains("2147483647") || matches!(error, RecordError::NoTypes));
}

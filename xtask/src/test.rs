//! `cargo xtask test`: every test. Native tests wait for timers and for other processes, and leave CPUs idle. What later
//! steps need is built in that time.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};

use crate::cargo::{cargo, workspace};
use crate::{suite, vm};

pub const USAGE: &str = "usage: cargo xtask test                  run every test: the workspace's, the guide's \
                         crate's and the virtual machine's";

const GUIDE: &[&str] = &[
    "test",
    "--manifest-path",
    "docs/guide/my-policy/Cargo.toml",
    "--locked",
    "--target-dir",
    "target/guide",
];
const NO_RUN: &[&str] = &["--no-run"];
/// The program of the bake-off in the virtual machine, and of `make fuzz`.
const RELEASE: &[&str] = &["build", "--release", "--locked", "--package", "wave"];
const VIRTUAL_MACHINE: &[&str] = &["run", "--quiet", "--package", "xtask", "--", "vm", "test"];

/// Runs every test. The first step that fails is the last.
pub fn run() -> ExitCode {
    match tested() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("test: {why}");
            ExitCode::FAILURE
        }
    }
}

fn tested() -> Result<(), String> {
    // The set of installed programs must not change while tests run.
    let prepared = std::thread::spawn(vm::prepare);
    println!("test: building the workspace's tests");
    let began = Instant::now();
    let programs = suite::programs();
    println!("test: the build took {:.0} s", began.elapsed().as_secs_f64());
    let has_machine = prepared.join().is_ok_and(|prepared| prepared.is_ok());
    let programs = programs?;

    println!("test: what the next steps need is built meanwhile, when CPUs are idle");
    let mut guide = Spare::start(&[GUIDE, NO_RUN].concat());
    let mut release = has_machine.then(|| Spare::start(RELEASE));
    suite::run(programs)?;
    guide.hurry();
    passes("the guide's tests", GUIDE)?;
    release.iter_mut().for_each(Spare::hurry);
    passes("the virtual machine's tests", VIRTUAL_MACHINE)
}

/// Runs cargo to its end, with our own output, and prints how long these tests took.
fn passes(tests: &str, arguments: &[&str]) -> Result<(), String> {
    println!("test: cargo {}", arguments.join(" "));
    let began = Instant::now();
    let mut command = cargo();
    let command = command.args(arguments).current_dir(workspace()).stdin(Stdio::null());
    let status = command.status().map_err(|error| format!("cargo: {error}"))?;
    println!("test: {tests} took {:.0} s", began.elapsed().as_secs_f64());
    if status.success() { Ok(()) } else { Err(format!("failed: cargo {}", arguments.join(" "))) }
}

/// A build in the background, whose compilers are of the class SCHED_IDLE: unlike a nice process, one of this class is
/// preempted as soon as another wakes. The step that needs its output runs the same cargo command, which waits for the lock
/// of the build, builds the rest, and reports errors. The build and its compilers are killed when the value is dropped.
struct Spare {
    build: Option<Child>,
    is_awaited: Arc<Mutex<bool>>,
}

impl Spare {
    fn start(arguments: &[&str]) -> Self {
        let mut cargo = cargo();
        cargo.args(arguments).current_dir(workspace());
        Self::run(cargo)
    }

    /// Before it compiles, cargo holds a lock that every cargo of this user needs. Only then is its class SCHED_IDLE.
    fn run(mut cargo: Command) -> Self {
        cargo.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut build = cargo.spawn().ok();
        let is_awaited = Arc::new(Mutex::new(false));
        if let Some((id, stderr)) = build.as_mut().and_then(|it| Some((it.id(), it.stderr.take()?)))
        {
            let is_awaited = Arc::clone(&is_awaited);
            std::thread::spawn(move || {
                once_it_compiles(BufReader::new(stderr), &is_awaited, || {
                    set_class(id, "--idle");
                });
            });
        }
        Self { build, is_awaited }
    }

    /// Gives the build the default class, because a step now waits for it. Kills it where only root may change the class.
    fn hurry(&mut self) {
        let Some(child) = &self.build else { return };
        let mut is_awaited = self.is_awaited.lock().unwrap_or_else(PoisonError::into_inner);
        *is_awaited = true;
        let is_normal = set_class(child.id(), "--other");
        drop(is_awaited);
        if !is_normal {
            self.kill();
        }
    }

    /// Kills the build and waits for its end. Its compilers go first: they would write what the next build writes.
    fn kill(&mut self) {
        let Some(mut child) = self.build.take() else { return };
        // So that it starts no others meanwhile.
        signal(child.id(), Signal::STOP);
        for process in with_descendants(child.id()) {
            signal(process, Signal::KILL);
        }
        let _ = child.wait();
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Reads cargo's messages to their end. Calls `then` at the first crate that is compiled, unless the build is awaited by then.
fn once_it_compiles(messages: impl BufRead, is_awaited: &Mutex<bool>, then: impl FnOnce()) {
    let mut lines = messages.lines().map_while(Result::ok);
    if lines.any(|line| line.trim_start().starts_with("Compiling ")) {
        let is_awaited = is_awaited.lock().unwrap_or_else(PoisonError::into_inner);
        if !*is_awaited {
            then();
        }
    }
    lines.for_each(drop);
}

/// Sends a signal to a process, which may have ended.
fn signal(process: u32, signal: Signal) {
    if let Some(process) = Pid::from_raw(process as i32) {
        let _ = kill_process(process, signal);
    }
}

/// Gives a process and its descendants a class. Returns whether the process has it, or has ended.
fn set_class(process: u32, class: &str) -> bool {
    // A thread that ends meanwhile is a failure, too.
    let is_set = (0..3).any(|_| has_class(process, class));
    // The second time finds what a process started before its own class was changed. One that has just ended is no
    // failure.
    for descendant in [process, process].into_iter().flat_map(with_descendants) {
        has_class(descendant, class);
    }
    is_set
}

/// Gives a process a class. Returns whether it has it, or has ended.
fn has_class(process: u32, class: &str) -> bool {
    let mut chrt = Command::new("chrt");
    chrt.args(["--all-tasks", class, "--pid", "0", &process.to_string()]);
    let status = chrt.stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success()) || !Path::new(&format!("/proc/{process}")).exists()
}

/// A process, and then those that it and its descendants started.
fn with_descendants(process: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let children: Vec<u32> = lists
        .flat_map(|list| {
            list.split_whitespace().filter_map(|it| it.parse().ok()).collect::<Vec<_>>()
        })
        .collect();
    let descendants = children.into_iter().flat_map(with_descendants);
    std::iter::once(process).chain(descendants).collect()
}

#[cfg(test)]
mod unit_tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// A build that compiles once the file `goes_on` exists, and does not end.
    fn build(goes_on: &Path) -> (Spare, u32) {
        let mut command = Command::new("sh");
        let script = "while [ ! -e \"$0\" ]; do sleep 0.01; done; echo '   Compiling wave' >&2; sleep 1000; true";
        command.args(["-c", script]).arg(goes_on);
        let spare = Spare::run(command);
        let shell = spare.build.as_ref().unwrap().id();
        (spare, shell)
    }

    fn class_of(process: u32) -> String {
        let output = Command::new("chrt").args(["-p", &process.to_string()]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// A process of the class SCHED_IDLE may wait long for a CPU.
    fn awaits(what: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(300);
        while !what() {
            assert!(Instant::now() < deadline, "it has not happened");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn only_a_build_that_compiles_is_in_spare_time() {
        let folder = tempfile::tempdir().unwrap();
        let goes_on = folder.path().join("goes on");
        let (_spare, shell) = build(&goes_on);
        sleep_of(shell);
        assert!(class_of(shell).contains("SCHED_OTHER"));
        std::fs::write(goes_on, "").unwrap();
        awaits(|| class_of(shell).contains("SCHED_IDLE"));
    }

    #[test]
    fn a_build_in_spare_time_ends_with_its_value() {
        let folder = tempfile::tempdir().unwrap();
        let (spare, shell) = build(folder.path());
        awaits(|| class_of(shell).contains("SCHED_IDLE"));
        let sleep = sleep_of(shell);
        drop(spare);
        assert!(!Path::new(&format!("/proc/{shell}")).exists());
        // The signal is sent, but its parent, now init, may be slow to take note of the end.
        let stat = || std::fs::read_to_string(format!("/proc/{sleep}/stat")).unwrap_or_default();
        awaits(|| {
            let stat = stat();
            stat.is_empty() || stat.contains(") Z") || stat.contains(") X")
        });
    }

    #[test]
    fn a_build_that_is_waited_for_has_the_default_class_or_ends() {
        let folder = tempfile::tempdir().unwrap();
        let (mut spare, shell) = build(folder.path());
        awaits(|| class_of(shell).contains("SCHED_IDLE"));
        let sleep = sleep_of(shell);
        spare.hurry();
        let class = class_of(sleep);
        assert!(class.contains("SCHED_OTHER") || spare.build.is_none(), "{class}");
    }

    #[test]
    fn a_build_that_is_waited_for_keeps_the_default_class() {
        let compiles =
            "    Blocking waiting for file lock\n   Compiling wave\n   Compiling xtask\n";
        let times = |messages: &str, is_awaited: bool| {
            let mut times = 0;
            once_it_compiles(messages.as_bytes(), &Mutex::new(is_awaited), || times += 1);
            times
        };
        assert_eq!(times(compiles, false), 1);
        assert_eq!(times(compiles, true), 0);
        assert_eq!(times("    Finished `dev` profile\n", false), 0);
    }

    /// The `sleep` that this shell has started.
    fn sleep_of(shell: u32) -> u32 {
        let is_sleep = |process: &u32| {
            let name = std::fs::read_to_string(format!("/proc/{process}/comm"));
            name.is_ok_and(|name| name == "sleep\n")
        };
        loop {
            if let Some(sleep) = with_descendants(shell).into_iter().find(is_sleep) {
                return sleep;
            }
            std::thread::yield_now();
        }
    }
}

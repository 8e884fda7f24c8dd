//! `cargo xtask test`: every test. Native tests wait for timers and for other processes, and leave CPUs idle. What later
//! steps need is built in that time.

use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
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
const NO_RUN: &[&str] = &["--no-run", "--quiet"];
/// The program of the bake-off in the virtual machine, and of `make fuzz`.
const RELEASE: &[&str] = &["build", "--release", "--locked", "--package", "wave", "--quiet"];
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

/// A build in the background, in the class SCHED_IDLE. The step that needs its output runs the same cargo command, which
/// waits for the lock of the build, builds the rest, and reports errors. The build and its compilers are killed when the
/// value is dropped.
struct Spare(Option<Child>);

impl Spare {
    fn start(arguments: &[&str]) -> Self {
        let mut cargo = cargo();
        cargo.args(arguments).current_dir(workspace());
        let mut command = in_spare_time(&cargo);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().ok())
    }

    /// Gives the build the default class, because a step now waits for it. Kills it where only root may change the class.
    fn hurry(&mut self) {
        let Some(child) = &mut self.0 else { return };
        // A thread that ends meanwhile is a failure, too.
        if !(0..3).any(|_| is_normal(child.id())) {
            return self.kill();
        }
        // The second time finds what a process started before its own class was changed. One that has just ended is no
        // failure.
        for process in [child.id(), child.id()].into_iter().flat_map(with_descendants) {
            is_normal(process);
        }
    }

    /// Kills the build and waits for its end. Its compilers go first: they would write what the next build writes.
    fn kill(&mut self) {
        let Some(mut child) = self.0.take() else { return };
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

/// Sends a signal to a process, which may have ended.
fn signal(process: u32, signal: Signal) {
    if let Some(process) = Pid::from_raw(process as i32) {
        let _ = kill_process(process, signal);
    }
}

/// The same command in the class SCHED_IDLE. Unlike a nice process, one of this class is preempted as soon as another
/// wakes.
fn in_spare_time(command: &Command) -> Command {
    let mut idle = Command::new("chrt");
    idle.args(["--idle", "0"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => idle.env(name, value),
            None => idle.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        idle.current_dir(folder);
    }
    idle
}

/// Gives a process the default class. Returns whether it has it, or has ended.
fn is_normal(process: u32) -> bool {
    let mut chrt = Command::new("chrt");
    chrt.args(["--all-tasks", "--other", "--pid", "0", &process.to_string()]);
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

    #[test]
    fn a_command_in_spare_time_is_the_same_but_for_its_class() {
        let mut command = Command::new("sh");
        command.args(["-c", "chrt -p $$; pwd; echo $A ${HOME-homeless}"]);
        command.current_dir("/").env("A", "a").env_remove("HOME");
        let output = in_spare_time(&command).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("SCHED_IDLE"), "{text}");
        assert!(text.ends_with("\n/\na homeless\n"), "{text}");
    }

    #[test]
    fn a_command_in_spare_time_ends_with_its_value() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000; true"]);
        let spare = Spare(Some(in_spare_time(&command).spawn().unwrap()));
        let shell = spare.0.as_ref().unwrap().id();
        let sleep = sleep_of(shell);
        drop(spare);
        assert!(!Path::new(&format!("/proc/{shell}")).exists());
        // The signal is sent, but a process of this class may wait long for the CPU on which it ends, and its parent, now
        // init, may be slow to take note of that.
        let stat = || std::fs::read_to_string(format!("/proc/{sleep}/stat")).unwrap_or_default();
        let has_ended =
            |stat: &str| stat.is_empty() || stat.contains(") Z") || stat.contains(") X");
        let deadline = Instant::now() + Duration::from_secs(300);
        while !has_ended(&stat()) {
            assert!(Instant::now() < deadline, "{}", stat());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_command_that_is_waited_for_has_the_default_class_or_ends() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000; true"]);
        let mut spare = Spare(Some(in_spare_time(&command).spawn().unwrap()));
        let shell = spare.0.as_ref().unwrap().id();
        let sleep = sleep_of(shell);
        spare.hurry();
        let policy = Command::new("chrt").args(["-p", &sleep.to_string()]).output().unwrap();
        let policy = String::from_utf8(policy.stdout).unwrap();
        assert!(policy.contains("SCHED_OTHER") || spare.0.is_none(), "{policy}");
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

//! An agent in a process of its own: the same binary, as `wave agent`, or a user's program.

use std::ffi::OsString;
use std::fmt::Display;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use wave_agent::TURNED_OUT;
use wave_user::Enclave;

use super::Failure;
use super::recording::Log;
use crate::launch::{self, Process};

/// Time allowed for an agent to attach.
const ATTACH_PATIENCE: Duration = Duration::from_secs(10);
/// Time allowed for a user's program to list its policies, and the most bytes that it may write.
const LIST_PATIENCE: Duration = Duration::from_secs(10);
const LIST_BYTES_MAX: u64 = 1 << 20;

/// A running agent. Killed on drop, and by the kernel when the thread that started it ends.
#[derive(Debug)]
pub struct AgentProcess {
    command: Command,
    process: Process,
}

impl AgentProcess {
    /// Starts an agent on `cpu` that attaches to `socket`, runs `policy` and writes `log`: `program`, or else this binary. Must
    /// be called on a thread that outlives the agent.
    pub fn start(
        program: Option<&Path>,
        socket: &Path,
        policy: &str,
        cpu: usize,
        shares_cpu: bool,
        log: Option<Log>,
    ) -> Result<AgentProcess, Failure> {
        let mut words: Vec<OsString> = vec!["--policy".into(), policy.into()];
        words.extend(["--attach".into(), socket.into()]);
        if let Some(Log { path, about }) = log {
            words.extend(["--record".into(), path.into(), "--record-about".into(), about.into()]);
        }
        match program {
            None => AgentProcess::start_with(&words, Some(cpu), shares_cpu),
            Some(program) => {
                AgentProcess::spawn(Command::new(program), &words, Some(cpu), shares_cpu)
            }
        }
    }

    /// Starts an agent with these arguments of `wave agent`, on `cpu` if given. Must be called on a thread that outlives the
    /// agent.
    pub fn start_with(
        words: &[OsString],
        cpu: Option<usize>,
        shares_cpu: bool,
    ) -> Result<AgentProcess, Failure> {
        let command = launch::wave(["agent"]).map_err(starting)?;
        AgentProcess::spawn(command, words, cpu, shares_cpu)
    }

    fn spawn(
        mut command: Command,
        words: &[OsString],
        cpu: Option<usize>,
        shares_cpu: bool,
    ) -> Result<AgentProcess, Failure> {
        command.args(["--quiet", "--leave-with-parent"]).args(words);
        if let Some(cpu) = cpu {
            command.args(["--cpu", &cpu.to_string()]);
        }
        if shares_cpu {
            command.arg("--share-cpu");
        }
        // A terminal's interrupt must not reach the agent: it leaves when its host does.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null());
        let process = Process::start(&mut command).map_err(starting)?;
        Ok(AgentProcess { command, process })
    }

    /// Restarts the agent if the host has turned it out, on a thread as above. Returns whether it did. An error if the agent
    /// left otherwise.
    pub fn come_back(&mut self) -> Result<bool, Failure> {
        match self.wait_for_end(Duration::ZERO) {
            None => Ok(false),
            Some(status) if status.code() == Some(TURNED_OUT.into()) => {
                self.process = Process::start(&mut self.command).map_err(starting)?;
                Ok(true)
            }
            Some(status) => Err(Failure::Cannot(format!("an agent ended unexpectedly ({status})"))),
        }
    }

    /// Waits until `enclave` has had more than `before` agents, including this one. By then it may have been turned out again,
    /// if others keep it from its CPU.
    pub fn wait_until_attached(&mut self, enclave: &Enclave, before: u64) -> Result<(), Failure> {
        let start = Instant::now();
        while enclave.stats().agents <= before {
            if let Some(status) = self.wait_for_end(Duration::ZERO) {
                let text = format!("the agent left before it was attached ({status})");
                return Err(Failure::Cannot(text));
            }
            if start.elapsed() > ATTACH_PATIENCE {
                let text = format!("no agent attached within {} s", ATTACH_PATIENCE.as_secs());
                return Err(Failure::Cannot(text));
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }

    pub fn pid(&self) -> Pid {
        self.process.pid()
    }

    /// Sends it a signal. Not to be called once its end was seen: the kernel may have reused its id.
    pub fn signal(&self, signal: Signal) -> std::io::Result<()> {
        Ok(kill_process(self.pid(), signal)?)
    }

    pub fn has_left(&mut self) -> bool {
        self.process.has_ended()
    }

    /// Waits for the process to end, for at most `patience`.
    pub fn wait_for_end(&mut self, patience: Duration) -> Option<ExitStatus> {
        self.process.wait_for_end(patience)
    }

    /// CPU time that it has used, in the kernel's ticks (10 ms). None once the process is gone.
    pub fn cpu_time(&self) -> Option<Duration> {
        self.process.cpu_time()
    }
}

/// Names of the policies for threads in a user's agent.
pub fn policies_of(program: &Path) -> Result<Vec<String>, Failure> {
    let Listed { text, .. } = listed(program, &[])?;
    // Lines `NAME (SUBSYSTEM): ABOUT`; indented lines belong to the one above.
    let name = |line: &str| {
        let (name, rest) = line.split_once(" (")?;
        let is_for_threads = ["any)", "sched)"].iter().any(|which| rest.starts_with(which));
        (is_for_threads && !name.is_empty()).then(|| name.to_owned())
    };
    let names: Vec<_> = text.lines().filter_map(name).collect();
    if names.is_empty() {
        return Err(refused(
            program,
            format_args!(
                "it lists no policies within {} s when asked with --policies; an agent's `main` must call wave_agent::main_with",
                LIST_PATIENCE.as_secs()
            ),
        ));
    }
    Ok(names)
}

/// Asks a user's agent whether it accepts a policy, given by its name and settings. Exit code 2 is a refusal.
///
/// # Errors
/// The agent refuses the policy; the error has its message. Or it cannot be started.
pub fn check_policy(program: &Path, policy: &str) -> Result<(), String> {
    let asked = listed(program, &["--policy", policy]).map_err(|error| error.to_string())?;
    let Listed { errors, status, .. } = asked;
    match status.and_then(|status| status.code()) {
        Some(2) => {
            let why = errors.trim_start_matches("wave agent: ").trim_end();
            Err(format!("{} refuses policy `{policy}`: {why}", program.display()))
        }
        _ => Ok(()),
    }
}

/// What a user's agent writes when it is asked for its policies. It has no status if it did not end in time.
struct Listed {
    text: String,
    errors: String,
    status: Option<ExitStatus>,
}

/// Starts a user's agent with `--policies` and `more`.
fn listed(program: &Path, more: &[&str]) -> Result<Listed, Failure> {
    let mut command = Command::new(program);
    command.arg("--policies").args(more).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| refused(program, error))?;
    let (text, errors) = (reader(child.stdout.take()), reader(child.stderr.take()));
    let deadline = Instant::now() + LIST_PATIENCE;
    let next = |text: Receiver<String>| {
        text.recv_timeout(deadline.saturating_duration_since(Instant::now())).unwrap_or_default()
    };
    let (text, errors) = (next(text), next(errors));
    // A program that closed both pipes is about to end; another is killed at the deadline.
    let mut status = None;
    while status.is_none() && Instant::now() < deadline {
        status = child.try_wait().ok().flatten();
        std::thread::sleep(Duration::from_millis(1));
    }
    let _ = child.kill();
    let _ = child.wait();
    Ok(Listed { text, errors, status })
}

/// Reads at most [`LIST_BYTES_MAX`] bytes of a pipe, in a thread.
fn reader(pipe: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut text = String::new();
        let read = pipe.map(|pipe| pipe.take(LIST_BYTES_MAX).read_to_string(&mut text));
        if read.is_some_and(|read| read.is_ok()) {
            let _ = sender.send(text);
        }
    });
    receiver
}

fn refused(program: &Path, why: impl Display) -> Failure {
    Failure::Scenario(format!("--agent {}: {why}", program.display()))
}

fn starting(error: std::io::Error) -> Failure {
    Failure::Cannot(format!("the agent's process cannot be started: {error}"))
}

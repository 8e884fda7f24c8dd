//! An agent in a process of its own: the same binary, as `wave agent`, or a program of the user's.

use std::ffi::OsString;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use wave_agent::TURNED_OUT;
use wave_user::Enclave;

use super::Failure;
use super::recording::Log;
use crate::launch::{self, Process};

/// How long an agent may take to attach.
const ATTACH_PATIENCE: Duration = Duration::from_secs(10);
/// How long a user's program may take to list its policies, and how much it may write.
const LIST_PATIENCE: Duration = Duration::from_secs(10);
const LIST_BYTES_MAX: u64 = 1 << 20;

/// A running agent. Killed when it is dropped, and by the kernel when the thread that started it
/// ends.
#[derive(Debug)]
pub struct AgentProcess {
    command: Command,
    process: Process,
}

impl AgentProcess {
    /// Starts an agent that attaches to `socket` and runs `policy` on `cpu`, and writes `log`: `program`, or this binary.
    /// Must be called on a thread that outlives the agent.
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

    /// Starts an agent with these arguments of `wave agent`, on `cpu` if there is one. Must be called on a thread that
    /// outlives the agent.
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
        // An interrupt from the terminal is not the agent's: it leaves when its host does.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null());
        let process = Process::start(&mut command).map_err(starting)?;
        Ok(AgentProcess { command, process })
    }

    /// If it has left because its host turned it out, starts it anew, on a thread as before. Returns whether it did, or how
    /// else it has left.
    pub fn come_back(&mut self) -> Result<bool, Failure> {
        match self.wait_for_end(Duration::ZERO) {
            None => Ok(false),
            Some(status) if status.code() == Some(TURNED_OUT.into()) => {
                self.process = Process::start(&mut self.command).map_err(starting)?;
                Ok(true)
            }
            Some(status) => Err(Failure::Cannot(format!("an agent left ({status})"))),
        }
    }

    /// Waits until `enclave` has had more than `before` agents: this one among them. It may have been turned out again
    /// by then, where others keep it from its CPU.
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

    /// Sends it a signal. Not to be called once its end was seen: its number may be another process's then.
    pub fn signal(&self, signal: Signal) -> std::io::Result<()> {
        Ok(kill_process(self.pid(), signal)?)
    }

    pub fn has_left(&mut self) -> bool {
        self.process.has_ended()
    }

    /// Waits for its end, for at most `patience`.
    pub fn wait_for_end(&mut self, patience: Duration) -> Option<ExitStatus> {
        self.process.wait_for_end(patience)
    }

    /// CPU time that it has used, in the kernel's ticks (10 ms). None once it is gone.
    pub fn cpu_time(&self) -> Option<Duration> {
        self.process.cpu_time()
    }
}

/// The names of the policies for threads of a user's agent.
pub fn policies_of(program: &Path) -> Result<Vec<String>, Failure> {
    let refuse = |why: String| Failure::Scenario(format!("--agent {}: {why}", program.display()));
    let mut command = Command::new(program);
    command.arg("--policies").stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|error| refuse(error.to_string()))?;
    let (sender, receiver) = channel();
    let out = child.stdout.take();
    std::thread::spawn(move || {
        let mut text = String::new();
        let read = out.map(|out| out.take(LIST_BYTES_MAX).read_to_string(&mut text));
        let _ = sender.send(read.is_some_and(|read| read.is_ok()).then_some(text));
    });
    let text = receiver.recv_timeout(LIST_PATIENCE).ok().flatten().unwrap_or_default();
    // It may go on for ever.
    let _ = child.kill();
    let _ = child.wait();
    // `NAME (SUBSYSTEM): ABOUT`, and below it what is indented.
    let name = |line: &str| {
        let (name, rest) = line.split_once(" (")?;
        let is_for_threads = ["any)", "sched)"].iter().any(|which| rest.starts_with(which));
        (is_for_threads && !name.is_empty()).then(|| name.to_owned())
    };
    let names: Vec<_> = text.lines().filter_map(name).collect();
    if names.is_empty() {
        return Err(refuse(format!(
            "it lists no policies within {} s when asked with --policies; an agent's `main` is wave_agent::main_with",
            LIST_PATIENCE.as_secs()
        )));
    }
    Ok(names)
}

fn starting(error: std::io::Error) -> Failure {
    Failure::Cannot(format!("the agent's process cannot be started: {error}"))
}

//! A policy of a user's agent program in a simulated run: a process of that program decides (ADR 93).

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use wave_agent::piped::Piped;
use wave_core::clock::Nanos;
use wave_core::layout::Config;
use wave_core::log::Header;
use wave_core::message::{Decision, Message};
use wave_core::outcome::Outcome;
use wave_core::policy::{Desk, Policy, Progress};
use wave_core::snapshot::Snapshot;
use wave_sim::agent::{Decider, Elsewhere, PolicyText};

use wave_apps::launch::Process;

/// The policy of this name and settings, of a user's agent program.
pub fn policy_of(program: PathBuf, text: &str) -> PolicyText {
    PolicyText::elsewhere(Arc::new(Program(program)), text)
}

#[derive(Debug)]
struct Program(PathBuf);

impl Elsewhere for Program {
    fn start(&self, text: &str, config: &Config) -> Result<Decider, String> {
        let program = self.0.display();
        let cannot = |error: std::io::Error| format!("{program} cannot be started: {error}");
        let (ours, theirs) = UnixStream::pair().map_err(cannot)?;
        let mut command = Command::new(&self.0);
        // A terminal's interrupt must not reach it: it ends with the simulated host.
        command.arg("--simulated").process_group(0);
        command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null());
        let process = Process::start(&mut command).map_err(cannot)?;
        // The command has a copy of the process's socket, which would hide that the process has ended.
        drop(command);
        let header = Header { config: *config, policy: text.to_owned(), about: String::new() };
        let who = format!("policy `{text}` of {program}");
        let (asked, ear) = Piped::start(&header, who, ours)?;
        Ok(Decider { policy: Box::new(Running { asked, _process: process }), ear: Some(ear) })
    }
}

/// A policy and its process, which ends with it.
struct Running {
    asked: Piped<UnixStream>,
    _process: Process,
}

impl Policy for Running {
    fn name(&self) -> &'static str {
        self.asked.name()
    }
    fn on_message(&mut self, now: Nanos, message: &Message) {
        self.asked.on_message(now, message);
    }
    fn on_outcome(&mut self, now: Nanos, core: u16, decision: &Decision, outcome: Outcome) {
        self.asked.on_outcome(now, core, decision, outcome);
    }
    fn decide(&mut self, now: Nanos, desk: &mut Desk<'_>) -> Progress {
        self.asked.decide(now, desk)
    }
    fn next_deadline(&self) -> Option<Nanos> {
        self.asked.next_deadline()
    }
    fn resync(&mut self, now: Nanos, snapshot: &Snapshot) {
        self.asked.resync(now, snapshot);
    }
}

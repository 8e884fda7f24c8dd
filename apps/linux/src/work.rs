//! The threads that an enclave schedules, and the end of their run.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use wave_linux::sched::{self, Enclave, Group, JoinError, TargetError};
use wave_process::say;

use wave_terminal::{Failure, counted};

/// Interval at which a cgroup is searched for new processes.
const CGROUP_LOOK: Duration = Duration::from_millis(100);

/// The threads that a run schedules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// A command, started for the run, and its children.
    Command(Vec<String>),
    /// Threads that already run.
    Group(Group),
    /// Every thread of the machine.
    Everything,
}

pub enum Started {
    Command(Child),
    /// A process that was already running.
    Process(OwnedFd),
    /// A cgroup, and the time when it was last searched.
    Cgroup(Group, Instant),
    /// Every thread of the machine.
    Everything,
}

pub enum Ended {
    /// The command ended with this status.
    Command(ExitStatus),
    /// The work ended for this reason.
    Because(&'static str),
}

impl Work {
    /// Checks that the work exists, without changing anything.
    pub fn check(&self) -> Result<(), Failure> {
        match self {
            Work::Command(_) | Work::Everything => Ok(()),
            Work::Group(group) => sched::check(group).map_err(not_meant),
        }
    }

    pub fn in_words(&self) -> String {
        match self {
            Work::Command(words) => words.join(" "),
            Work::Everything => "every thread of the machine".to_owned(),
            Work::Group(Group::Process(pid)) => format!("process {pid} and its children"),
            Work::Group(Group::Cgroup(path)) => format!("cgroup {}", path.display()),
        }
    }

    /// Moves its threads into the enclave, or starts its command there.
    pub fn start(&self, enclave: &Enclave, agents: &[i32], json: bool) -> Result<Started, Failure> {
        match self {
            Work::Command(words) => start(words, enclave, json).map(Started::Command),
            Work::Everything => {
                say!("wave run: scheduling {}; press Ctrl-C to detach", self.in_words());
                Ok(Started::Everything)
            }
            Work::Group(group) => {
                let started = match group {
                    Group::Process(pid) => Started::Process(hold(*pid)?),
                    Group::Cgroup(_) => Started::Cgroup(group.clone(), Instant::now()),
                };
                let came = enclave.adopt(group, agents).map_err(not_meant)?;
                say!(
                    "wave run: scheduling {} of {}; press Ctrl-C to detach",
                    counted(came, "thread"),
                    self.in_words()
                );
                Ok(started)
            }
        }
    }
}

fn not_meant(error: JoinError) -> Failure {
    match error {
        JoinError::Refused { .. } => Failure::cannot(error),
        error => Failure::Scenario(error.to_string()),
    }
}

/// A pidfd: a process id may be reused.
fn hold(pid: i32) -> Result<OwnedFd, Failure> {
    let gone = || not_meant(TargetError::NoProcess(pid).into());
    let id = Pid::from_raw(pid).ok_or_else(gone)?;
    pidfd_open(id, PidfdFlags::empty()).map_err(|_| gone())
}

fn start(words: &[String], enclave: &Enclave, json: bool) -> Result<Child, Failure> {
    let [program, arguments @ ..] = words else {
        return Err(Failure::Scenario("no command given: wave run --host linux -- CMD".into()));
    };
    let mut command = Command::new(program);
    command.args(arguments);
    if json {
        command.stdout(Stdio::from(io::stderr()));
    }
    enclave.spawn(command).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Failure::Scenario(format!("`{program}`: no such command")),
        _ => Failure::Cannot(format!("`{program}` cannot be started: {error}")),
    })
}

impl Drop for Started {
    /// The run ends early (another enclave could not be started, for example): ends the command.
    fn drop(&mut self) {
        self.signal(Signal::TERM);
    }
}

impl Started {
    /// Forwards a signal to the command, if the work is one.
    pub fn signal(&mut self, signal: Signal) {
        if let Started::Command(child) = self
            && let Ok(None) = child.try_wait()
        {
            // Not waited for yet, so the id is still its own. If it ends just now, it needs no signal.
            let _ = kill_process(Pid::from_child(child), signal);
        }
    }

    /// Whether the work has ended, or is to. A command ends only by itself.
    pub fn ended(
        &mut self,
        enclave: &Enclave,
        agents: &[i32],
        asked: bool,
    ) -> Result<Option<Ended>, Failure> {
        if asked && !matches!(self, Started::Command(_)) {
            return Ok(Some(Ended::Because("interrupted")));
        }
        match self {
            Started::Command(child) => {
                Ok(child.try_wait().map_err(Failure::cannot)?.map(Ended::Command))
            }
            Started::Everything => Ok(None),
            Started::Process(process) => {
                let mut fds = [PollFd::new(process, PollFlags::IN)];
                let now = Timespec { tv_sec: 0, tv_nsec: 0 };
                let gone = poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0);
                Ok(gone.then_some(Ended::Because("it ended")))
            }
            Started::Cgroup(group, looked) => {
                if looked.elapsed() < CGROUP_LOOK {
                    return Ok(None);
                }
                *looked = Instant::now();
                match enclave.adopt(group, agents) {
                    Ok(_) => Ok(None),
                    Err(JoinError::Target(TargetError::NoCgroup { .. })) => {
                        Ok(Some(Ended::Because("it was removed")))
                    }
                    // One thread of many failed to join; the next poll tries again.
                    Err(_) => Ok(None),
                }
            }
        }
    }
}

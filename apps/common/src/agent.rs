//! An agent in a process of its own: the same binary, as `wave agent`, or a user's program.

use std::ffi::OsString;
use std::fmt::Display;
use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use wave_agent::TURNED_OUT;
use wave_process::say;
use wave_user::Enclave;

use crate::launch::{self, Process, START_PATIENCE};
use crate::recording::{self, Log};
use wave_terminal::Failure;

/// Time after which a wait for an agent is reported.
const SILENCE: Duration = Duration::from_secs(10);
/// Time that an agent has to leave once the host has turned it out. It may be kept from its CPU.
const LEAVES_WITHIN: Duration = Duration::from_secs(10);
/// Longest time between the closing of a killed agent's files and its own end.
const ENDS_WITHIN: Duration = Duration::from_secs(1);
/// The most bytes that a user's program may write when it lists its policies.
const LIST_BYTES_MAX: u64 = 1 << 20;

/// A running agent. Killed on drop, and by the kernel when the thread that started it ends.
#[derive(Debug)]
pub struct AgentProcess {
    command: Command,
    process: Process,
    /// File of its log.
    log: Option<PathBuf>,
    /// When it was first seen that the host has turned it out.
    out_since: Option<Instant>,
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
        let log = words.iter().skip_while(|word| *word != "--record").nth(1).map(PathBuf::from);
        Ok(AgentProcess { command, process, log, out_since: None })
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

    /// Kills the agent if the host has turned it out and it has not left in time: it hangs, say, in an endless loop of its policy.
    /// `attached` is the process id of the host's last agent, `decides` whether that one still decides.
    pub fn kill_if_it_hangs(&mut self, attached: i32, decides: bool) {
        if self.has_left() || decides || attached != self.pid().as_raw_pid() {
            self.out_since = None;
            return;
        }
        let since = *self.out_since.get_or_insert_with(Instant::now);
        if since.elapsed() > LEAVES_WITHIN {
            // It may have ended just now.
            let _ = self.signal(Signal::KILL);
        }
    }

    /// Waits until `is_attached` returns true.
    ///
    /// # Errors
    /// That of `is_attached`; the agent ended before; it did not attach within [`START_PATIENCE`].
    pub fn wait_until(
        &mut self,
        mut is_attached: impl FnMut() -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        let (start, mut is_reported) = (Instant::now(), false);
        while !is_attached()? {
            if let Some(status) = self.wait_for_end(Duration::ZERO) {
                let text = format!("the agent left before it was attached ({status})");
                return Err(match status.code() {
                    Some(2) => Failure::Scenario(text),
                    _ => Failure::Cannot(text),
                });
            }
            let (waited, most) = (start.elapsed(), START_PATIENCE.as_secs());
            if waited > START_PATIENCE {
                return Err(Failure::Cannot(format!("the agent did not attach within {most} s")));
            }
            if waited > SILENCE && !std::mem::replace(&mut is_reported, true) {
                say!("wave: the agent has not attached yet; waiting up to {most} s");
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }

    /// As [`wait_until`](Self::wait_until), until `enclave` has had more than `before` agents, including this one. By then it
    /// may have been turned out again, if others keep it from its CPU.
    pub fn wait_until_attached(&mut self, enclave: &Enclave, before: u64) -> Result<(), Failure> {
        self.wait_until(|| Ok(enclave.stats().agents > before))
    }

    pub fn pid(&self) -> Pid {
        self.process.pid()
    }

    /// Notes a log that could not be written: the agent has left with that exit code, or has closed the file, which it holds locked
    /// while it writes.
    fn note_log(&mut self) {
        const UNWRITTEN: i32 = 3;
        let Some(log) = self.log.clone() else { return };
        let is_cut_off = match self.wait_for_end(Duration::ZERO) {
            Some(status) => status.code() == Some(UNWRITTEN),
            // The file of an agent that is being killed is closed shortly before its end is seen.
            None => is_closed(&log) && self.wait_for_end(ENDS_WITHIN).is_none(),
        };
        if is_cut_off {
            recording::note_cut_off(&log);
        }
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

/// Whether no agent writes this log. Pipes and devices have no lock.
fn is_closed(log: &Path) -> bool {
    let is_free = |file: File| flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
    log.is_file() && File::open(log).is_ok_and(is_free)
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        self.note_log();
    }
}

/// Names of the policies for threads in a user's agent.
pub fn policies_of(program: &Path) -> Result<Vec<String>, Failure> {
    let Listed { text, errors, status } = listed(program, &[])?;
    // Lines `NAME (SUBSYSTEM): ABOUT`; indented lines belong to the one above.
    let name = |line: &str| {
        let (name, rest) = line.split_once(" (")?;
        let is_for_threads = ["any)", "sched)"].iter().any(|which| rest.starts_with(which));
        (is_for_threads && !name.is_empty()).then(|| name.to_owned())
    };
    let names: Vec<_> = text.lines().filter_map(name).collect();
    if names.is_empty() {
        let ended = status.map_or_else(
            || format!("did not end within {} s", START_PATIENCE.as_secs()),
            |status| format!("ended ({status})"),
        );
        let why = format!(
            "it listed no policies when asked with --policies, and {ended}; an agent's `main` must call wave_agent::main_with\n{errors}"
        );
        return Err(refused(program, why.trim_end()));
    }
    Ok(names)
}

/// Asks a user's agent whether it accepts a policy, given by its name and settings.
///
/// # Errors
/// The agent refuses the policy, cannot be started, or fails; the error has its message.
pub fn check_policy(program: &Path, policy: &str) -> Result<(), String> {
    let asked = listed(program, &["--policy", policy]).map_err(|error| error.to_string())?;
    let (errors, program) = (asked.errors.trim_end(), program.display());
    match asked.status.map(|status| (status, status.code())) {
        Some((_, Some(2))) => match errors.strip_prefix("wave agent: ") {
            Some(why) => Err(format!("{program} refuses policy `{policy}`: {why}")),
            // An agent of an earlier version, which has no such question.
            None => Ok(()),
        },
        Some((status, _)) if status.success() => Ok(()),
        ended => {
            let ended = ended.map_or_else(
                || format!("did not answer within {} s", START_PATIENCE.as_secs()),
                |(status, _)| format!("failed ({status})"),
            );
            let why = format!(
                "{program} {ended} when asked with --policies --policy '{policy}'\n{errors}"
            );
            Err(why.trim_end().to_owned())
        }
    }
}

/// What a user's agent writes when it is asked for its policies, and how it ended.
struct Listed {
    text: String,
    errors: String,
    /// `None` if it did not end in time.
    status: Option<ExitStatus>,
}

/// Starts a user's agent with `--policies` and `more`, and kills it if it does not end.
fn listed(program: &Path, more: &[&str]) -> Result<Listed, Failure> {
    let mut command = Command::new(program);
    command.arg("--policies").args(more).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| refused(program, error))?;
    let (text, errors) = (Reader::of(child.stdout.take()), Reader::of(child.stderr.take()));
    let deadline = Instant::now() + START_PATIENCE;
    let wait = |is_over: &mut dyn FnMut() -> bool| {
        while !is_over() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    wait(&mut || !matches!(child.try_wait(), Ok(None)));
    let status = child.try_wait().ok().flatten();
    let _ = child.kill();
    let _ = child.wait();
    // A process that the program has left behind may hold its pipes open.
    wait(&mut || text.is_at_end() && errors.is_at_end());
    Ok(Listed { text: text.text(), errors: errors.text(), status })
}

/// Reads at most [`LIST_BYTES_MAX`] bytes of a pipe, in a thread.
struct Reader {
    read: Arc<Mutex<Vec<u8>>>,
    thread: JoinHandle<()>,
}

impl Reader {
    fn of(pipe: Option<impl Read + Send + 'static>) -> Reader {
        let read = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&read);
        let thread = std::thread::spawn(move || {
            let Some(mut pipe) = pipe.map(|pipe| pipe.take(LIST_BYTES_MAX)) else { return };
            let mut some = [0; 4096];
            while let Ok(count @ 1..) = pipe.read(&mut some) {
                all.lock().unwrap_or_else(PoisonError::into_inner).extend(&some[..count]);
            }
        });
        Reader { read, thread }
    }

    fn is_at_end(&self) -> bool {
        self.thread.is_finished()
    }

    /// What was read so far.
    fn text(&self) -> String {
        let read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&read).into_owned()
    }
}

fn refused(program: &Path, why: impl Display) -> Failure {
    Failure::Scenario(format!("--agent {}: {why}", program.display()))
}

fn starting(error: std::io::Error) -> Failure {
    Failure::Cannot(format!("the agent's process cannot be started: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(script: &str) -> AgentProcess {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        AgentProcess::spawn(command, &[], None, false).unwrap()
    }

    #[test]
    fn wait_for_an_agent_ends_when_it_has_attached_when_it_has_left_and_when_told() {
        let mut asked = 0;
        let mut is_third = || {
            asked += 1;
            Ok(asked == 3)
        };
        agent("exec sleep 1000").wait_until(&mut is_third).unwrap();
        let codes = [("exit 2", 2), ("exit 7", 3)];
        for (script, code) in codes {
            let error = agent(script).wait_until(|| Ok(false)).unwrap_err();
            assert_eq!(error.exit_code(), code);
            assert!(error.to_string().contains("left before it was attached"), "{error}");
        }
        let told = agent("exec sleep 1000").wait_until(|| Err(Failure::Check("enough".to_owned())));
        assert_eq!(told.unwrap_err().to_string(), "enough");
    }
}

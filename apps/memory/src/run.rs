//! Manages the memory of programs until they end, or the run is interrupted.

use std::cell::Cell;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use wave_confine::{Profile, Role, User};
use wave_core::clock::Nanos;
use wave_links::LinkSpec;
use wave_linux::memory::{
    Backend, DeviceOptions, Enclave, Group, Limits, Options, StartError, Stats, Swap, SwapError,
    SwapUse, TargetError, Zram,
};
use wave_process::say;

use super::agent;
use super::overhead::Before;
use super::report::Report;
use super::sample::{Sample, held_by_guard};
use wave_apps::agent::AgentProcess;
use wave_terminal::Failure;

/// Polling interval.
const LOOK: Duration = Duration::from_millis(100);
/// Interval between samples, which are kept and shown.
const SAMPLE: Duration = Duration::from_secs(1);
/// Interval between lines where standard error is not a terminal.
const LINE: Duration = Duration::from_secs(10);
/// Maximum number of processes listed one by one.
const LINES_MAX: usize = 3;
/// Time in which a process without memory becomes one that can be waited for.
const END_PATIENCE: Duration = Duration::from_secs(1);
/// Time allowed for an agent to leave at the end.
const LEAVE_PATIENCE: Duration = Duration::from_secs(2);
/// Delay until a new agent replaces a lost one.
const REST: Duration = Duration::from_millis(500);
/// The same after an agent could not even be started.
const RETRY: Duration = Duration::from_secs(1);
/// Time allowed for the command to end after SIGTERM.
const TERM_PATIENCE: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub struct Wanted {
    pub groups: Vec<Group>,
    /// A command to start; its memory is managed.
    pub command: Vec<String>,
    pub policy: String,
    /// Time between two of the policy's judgements of a batch.
    pub epoch: Nanos,
    pub link: LinkSpec,
    /// The device behind which agents attach; then none is started here.
    pub device: Option<DeviceOptions>,
    /// The user that agents switch to.
    pub user: Option<User>,
    /// Limits above which nothing is paged out.
    pub limits: Limits,
    pub dry_run: bool,
    /// Method of reading access bits; the best that the kernel has by default.
    pub backend: Option<Backend>,
    /// Compressed swap to add for the run, in bytes.
    pub zram: Option<u64>,
    /// Time after which the run ends.
    pub time: Option<Duration>,
    /// Maximum number of strips of 16 MiB.
    pub strips: u32,
    /// File for the agent's log.
    pub record: Option<PathBuf>,
    /// Whether to plot warmth from that log.
    pub heat: bool,
    pub quiet: bool,
    /// Whether the report is JSON; then the command's output goes to our standard error.
    pub json: bool,
}

/// Says that a run of this length ends within its policy's first epoch, if so.
pub fn too_short(length: Option<Duration>, epoch: Nanos) -> Option<String> {
    let (length, epoch) = (length?.as_secs_f64(), epoch.0 as f64 / 1e9);
    (length <= epoch).then(|| {
        format!(
            "{length} s is no longer than the policy's epoch ({epoch} s), in which it judges each batch once: little or \
             nothing may be paged out. Several epochs show more"
        )
    })
}

/// Result of a run, and the swap set up for it. To be taken down by [`Ran::take_down`] once the report is written, since
/// bringing back GiBs may take minutes.
pub struct Ran {
    pub report: Report,
    swap: Option<Swap>,
}

impl Ran {
    /// Takes down the run's swap. Says so if that fails.
    pub fn take_down(self) {
        if let Some(Err(error)) = self.swap.map(Swap::take_down) {
            say!("wave memory: {error}");
        }
    }
}

pub fn run(wanted: &Wanted) -> Result<Ran, Failure> {
    let end = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        wave_terminal::interrupt::register_unless_ignored(signal, &end)?;
    }
    // Dropped last. Swap set up by others is held while this run may have pages in it.
    let (swap, _use) = match wanted.zram {
        Some(bytes) => (Some(Swap::share(bytes).map_err(Failure::cannot)?), None),
        None => (None, hold_swap(wanted)),
    };
    let mut command = match wanted.command.as_slice() {
        [] => None,
        words => Some(Started { child: start(words, wanted.json)?, end: Arc::clone(&end) }),
    };
    let mut groups = wanted.groups.clone();
    if let Some(Started { child, .. }) = &command {
        groups.push(Group::Process(child.id() as i32));
    }
    let socket = wave_process::places::socket("memory").map_err(Failure::cannot)?;
    let mut options = Options::new(socket, groups, wanted.strips);
    options.link = wanted.link.clone();
    agent::set_patience(&wanted.policy, &mut options.config)?;
    options.device.clone_from(&wanted.device);
    options.limits = wanted.limits;
    options.dry_run = wanted.dry_run;
    options.backend = wanted.backend;
    // With a device, the host loads BPF programs for each agent: the agent's window is one of their maps.
    let limited = match &wanted.device {
        None => Some(Profile::of(Role::MemoryHost).starting_as(wanted.user).limit()),
        Some(_) => None,
    };
    let limited = limited.transpose().map_err(Failure::cannot)?;
    let before = Before::now();
    let enclave = match Enclave::start(options) {
        Ok(enclave) => enclave,
        Err(error @ (StartError::Target(_) | StartError::Nothing { .. })) => {
            // A command that ended at once has still ended well.
            if let Some(command) = &mut command
                && command.ends_soon()
            {
                let mut report = Report::new(wanted, None, swap.as_ref());
                report.exit = Some(exit_code(command.finish()?));
                return Ok(Ran { report, swap });
            }
            return Err(match error {
                StartError::Target(TargetError::NotPermitted { .. }) => Failure::cannot(error),
                error => Failure::Scenario(error.to_string()),
            });
        }
        Err(error) => return Err(Failure::cannot(error)),
    };
    // All BPF programs are loaded, and the command has started. What remains is starting agents and paging out.
    if let Some(limited) = limited {
        limited.seal().map_err(Failure::cannot)?;
    }
    let mut agent = match &wanted.device {
        None => Some(start_agent(wanted, &enclave, 0)?),
        Some(_) => None,
    };
    agent::wait_until_attached(agent.as_mut(), &enclave, || end.load(Ordering::SeqCst))?;
    let own_zram =
        swap.as_ref().filter(|swap| !swap.is_joined()).and_then(|swap| Zram::of(swap.path()));
    let table_bytes = own_zram.map_or(0, |zram| zram.table_bytes);
    let view = View::new(wanted.quiet);
    let began = Instant::now();
    let mut report = Report::new(wanted, Some(&enclave), swap.as_ref());
    let tool_bytes = |agent: Option<&AgentProcess>| {
        let agents: Vec<i32> = agent.iter().map(|agent| agent.pid().as_raw_pid()).collect();
        before.grown(&agents) + table_bytes
    };
    let sample = |stats: &Stats, agents_spent, tool_bytes| {
        let sample = Sample::of(stats, began.elapsed(), agents_spent, tool_bytes);
        // A dry run needs no swap.
        let held = |stats: &Stats| stats.held.map(|held| held_by_guard(held).to_owned());
        if wanted.dry_run { Sample { held: held(stats), ..sample } } else { sample }
    };
    // CPU time of lost agents, and of the current one.
    let (mut agents_spent, mut agent_spent) = (Duration::ZERO, Duration::ZERO);
    let mut agents = 1;
    let mut next = began;
    let mut lost: Option<Instant> = None;
    // Why the last attempt to start another agent failed.
    let mut refused: Option<String> = None;
    let by_itself = loop {
        let over = match &command {
            Some(command) => command.has_ended(),
            None => enclave.is_over() && !may_come(&wanted.groups),
        };
        let late = wanted.time.is_some_and(|time| began.elapsed() >= time);
        let told = end.load(Ordering::SeqCst);
        // Read before checking for its end: afterwards there is nothing to read.
        agent_spent = agent.as_ref().and_then(AgentProcess::cpu_time).unwrap_or(agent_spent);
        // Programs that have ended have no memory to sample.
        if report.samples.is_empty() || (!over && Instant::now() >= next) {
            let stats = enclave.stats();
            let sample = sample(&stats, agents_spent + agent_spent, tool_bytes(agent.as_ref()));
            report.note_ends(&wanted.groups, &stats, sample.seconds);
            view.show(&report, &sample);
            report.samples.push(sample);
            next += SAMPLE;
        }
        if over || late || told {
            break over && !told;
        }
        if let Some(agent) = &mut agent {
            let (attached, decides) = enclave.deciding();
            agent.kill_if_it_hangs(attached, decides);
        }
        if agent.as_mut().is_some_and(AgentProcess::has_left) {
            let since = *lost.get_or_insert_with(Instant::now);
            let rest = if refused.is_some() { RETRY } else { REST };
            if since.elapsed() >= rest {
                if refused.is_none() {
                    view.say("wave memory: the agent is gone; starting another");
                }
                agents_spent += std::mem::take(&mut agent_spent);
                match start_agent(wanted, &enclave, agents) {
                    Ok(started) => {
                        agent = Some(started);
                        (agents, lost, refused) = (agents + 1, None, None);
                    }
                    // The host decides meanwhile: no reason to end the command.
                    Err(error) => {
                        let why = Some(error.to_string());
                        if refused != why {
                            view.warn(&format!("wave memory: no agent, trying again: {error}"));
                        }
                        (lost, refused) = (Some(Instant::now()), why);
                    }
                }
            }
        }
        std::thread::sleep(LOOK);
    };
    view.end();
    let tool_bytes = tool_bytes(agent.as_ref());
    // Not waited for yet: the kernel keeps its counts until then.
    let (time, stats) = (began.elapsed(), enclave.finish());
    // The host's figures are up to half a second old, but for the last ones.
    if !by_itself && stats.resident_bytes > 0 {
        report.samples.push(sample(&stats, agents_spent + agent_spent, tool_bytes));
    }
    report.note_ends(&wanted.groups, &stats, time.as_secs_f64());
    report.finish(&stats, by_itself.then_some(time));
    // The agent leaves on its own, and completes its log.
    let _ = agent.as_mut().and_then(|agent| agent.wait_for_end(LEAVE_PATIENCE));
    drop(agent);
    report.draw_heat(wanted);
    let status = command.as_mut().map(Started::finish).transpose()?;
    // The status of a command that this run has ended says nothing about the command.
    report.exit = status.filter(|_| by_itself).map(exit_code);
    Ok(Ran { report, swap })
}

/// Keeps swap of other runs in place. Says why that is not possible, unless another process holds the lock: that swap is its own.
fn hold_swap(wanted: &Wanted) -> Option<SwapUse> {
    let failed = |error: &SwapError| {
        if !wanted.dry_run && !matches!(error, SwapError::Taken) {
            say!("wave memory: swap that other runs add may be removed during this one: {error}");
        }
    };
    SwapUse::hold().inspect_err(failed).ok()
}

/// Whether processes may still join: the cgroup still exists.
fn may_come(groups: &[Group]) -> bool {
    groups.iter().any(|group| matches!(group, Group::Cgroup(folder) if folder.exists()))
}

/// Each agent after the first writes a log file of its own; a pipe gets only the first agent's log.
fn start_agent(wanted: &Wanted, enclave: &Enclave, number: u32) -> Result<AgentProcess, Failure> {
    let log = wanted.record.as_ref().and_then(|file| match number {
        0 => Some(file.clone()),
        number => file.is_file().then(|| file.with_extension(format!("{number}.wavelog"))),
    });
    agent::start(&wanted.policy, enclave.socket(), log.as_deref(), wanted.user)
}

/// A command that this run has started.
struct Started {
    child: Child,
    /// Set by a signal to end.
    end: Arc<AtomicBool>,
}

impl Started {
    /// Whether the process has ended. Its figures can still be read, until it is waited for.
    fn has_ended(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let pid = WaitId::Pid(Pid::from_child(&self.child));
        // An error: it was waited for.
        !matches!(waitid(pid, options), Ok(None))
    }

    /// Whether the command ends within a moment: it loses its memory shortly before it can be waited for.
    fn ends_soon(&self) -> bool {
        let start = Instant::now();
        while !self.has_ended() {
            if start.elapsed() >= END_PATIENCE {
                return false;
            }
            std::thread::sleep(LOOK);
        }
        true
    }

    /// Terminates the command if it still runs, and kills it if it has not ended in time or another signal to end arrives.
    fn finish(&mut self) -> Result<ExitStatus, Failure> {
        if !self.has_ended() {
            self.end.store(false, Ordering::SeqCst);
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
            let start = Instant::now();
            while !self.has_ended() {
                if start.elapsed() >= TERM_PATIENCE || self.end.load(Ordering::SeqCst) {
                    say!("wave memory: the command has not ended after SIGTERM; killing it");
                    let _ = self.child.kill();
                    break;
                }
                std::thread::sleep(LOOK);
            }
        }
        self.child.wait().map_err(Failure::cannot)
    }
}

/// As shells have it: 128 plus the signal if one ended the command.
fn exit_code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.finish();
    }
}

fn start(words: &[String], json: bool) -> Result<Child, Failure> {
    let (program, arguments) = words.split_first().expect("the command is not empty");
    let mut command = Command::new(program);
    command.args(arguments);
    if json {
        command.stdout(Stdio::from(std::io::stderr()));
    }
    command.spawn().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Failure::Scenario(format!("`{program}`: no such command")),
        _ => Failure::Cannot(format!("`{program}` cannot be started: {error}")),
    })
}

/// Progress on standard error: a table redrawn in place on a terminal, lines elsewhere.
enum View {
    Table(ProgressBar),
    /// The run's second from which on the next line is due.
    Lines(Cell<u64>),
    Nothing,
}

impl View {
    fn new(quiet: bool) -> View {
        use std::io::IsTerminal;
        if quiet {
            return View::Nothing;
        }
        if !std::io::stderr().is_terminal() {
            return View::Lines(Cell::new(0));
        }
        let bar = ProgressBar::new_spinner();
        bar.set_style(ProgressStyle::with_template("{msg}").expect("a valid template"));
        View::Table(bar)
    }

    fn show(&self, report: &Report, sample: &Sample) {
        match self {
            View::Table(bar) => bar.set_message(report.live(sample)),
            View::Lines(next) => {
                let seconds = sample.seconds.round() as u64;
                if seconds >= next.get() {
                    next.set((seconds / LINE.as_secs() + 1) * LINE.as_secs());
                    say!("{}", sample.line());
                }
            }
            View::Nothing => {}
        }
    }

    fn say(&self, line: &str) {
        match self {
            View::Table(bar) => bar.println(line),
            View::Lines(_) => say!("{line}"),
            View::Nothing => {}
        }
    }

    /// Shows a failure, with `--quiet` as well.
    fn warn(&self, line: &str) {
        match self {
            View::Table(bar) => bar.println(line),
            View::Lines(_) | View::Nothing => say!("{line}"),
        }
    }

    fn end(&self) {
        if let View::Table(bar) = self {
            bar.finish_and_clear();
        }
    }
}

/// What the enclave leaves alone in the programs, one line per process.
pub fn about(stats: &Stats) -> Vec<String> {
    let mut lines = Vec::new();
    for program in &stats.programs {
        let kinds =
            [("shared", program.shared), ("of files", program.file), ("locked", program.locked)];
        let left: Vec<String> = kinds
            .iter()
            .filter(|(_, bytes)| *bytes >= 1 << 20)
            .map(|(kind, bytes)| format!("{} {kind}", wave_scenario::size::show(*bytes)))
            .collect();
        if !left.is_empty() {
            let left = left.join(", ");
            lines.push(format!("process {}: not managed, in mapped bytes: {left}", program.pid));
        }
    }
    let more = lines.len().saturating_sub(LINES_MAX);
    if more > 0 {
        lines.truncate(LINES_MAX);
        lines.push(format!("and memory of {more} more processes"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_ends_within_the_first_epoch_is_reported() {
        let epoch = Nanos::from_millis(38_400);
        assert_eq!(too_short(None, epoch), None);
        assert_eq!(too_short(Some(Duration::from_secs(39)), epoch), None);
        let why = too_short(Some(Duration::from_secs(5)), epoch).unwrap();
        assert!(why.contains("5 s") && why.contains("38.4 s"), "{why}");
    }
}

//! `wave run --host linux`: unmodified programs' threads under agents, on the real kernel.
#![forbid(unsafe_code)]
// Only the project's own programs use this crate, and its documentation is built with private items.
#![allow(rustdoc::private_intra_doc_links)]
#![allow(missing_docs, reason = "a part of the programs, not a library for users")]

pub mod file;
mod report;
mod seats;
pub mod status;
mod work;

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use wave_core::clock::Nanos;
use wave_core::snapshot::State;
use wave_linux::sched::{self, DeviceOptions, Enclave, Options};
use wave_process::{places, say};

pub use file::load;
pub use report::Report;
use seats::Seat;
use wave_apps::agent::AgentProcess;
use wave_apps::recording::Log;
use wave_terminal::Failure;
pub use work::Work;
use work::{Ended, Started};

/// Polling interval for commands and agents.
const LOOK: Duration = Duration::from_millis(5);
/// Delay until a new agent replaces a lost one, so that an agent that fails at once does not cause a storm of restarts.
const REST: Duration = Duration::from_millis(100);
/// The same after an agent could not even be started.
const RETRY: Duration = Duration::from_secs(1);
/// Time for which threads wait for an agent behind a device.
const DEVICE_PATIENCE: Duration = Duration::from_secs(30);

/// One enclave: its threads, its CPUs, and its agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Name of the enclave; None if it is the only one.
    pub name: Option<String>,
    pub work: Work,
    /// The agent's program; None for this one.
    pub program: Option<PathBuf>,
    /// Policy of the agent, if it is started here.
    pub policy: String,
    /// The device behind which an agent attaches; then none is started here.
    pub device: Option<DeviceOptions>,
    /// The CPUs that become the enclave's cores; None for all but the last.
    pub cpus: Option<Vec<usize>>,
    /// Time for which a thread may wait for a decision before the host turns the agent out.
    pub patience: Option<Nanos>,
}

pub struct Wanted<'a> {
    pub parts: Vec<Part>,
    /// Folder for the agents' logs.
    pub record: Option<&'a Path>,
    /// Whether the command's output goes to our standard error: ours is for the result.
    pub json: bool,
}

pub struct Ran {
    parts: Vec<Done>,
}

struct Done {
    report: Report,
    /// None if the work was not a command, or was told to end.
    status: Option<ExitStatus>,
}

/// Runs the work to its end, and starts another agent whenever one is lost.
pub fn run(wanted: Wanted<'_>) -> Result<Ran, Failure> {
    let parts = wanted.parts;
    for part in &parts {
        part.work.check()?;
    }
    sched::check_kernel().map_err(Failure::cannot)?;
    let signals = Signals::listen()?;
    let seats = seats::of(&parts)?;
    if parts.iter().any(|part| part.work == Work::Everything) {
        stay_outside(&seats)?;
    }
    let options = parts.iter().zip(&seats).map(|(part, seat)| options(part, seat));
    let enclaves =
        Enclave::start_all(options.collect::<Result<_, _>>()?).map_err(Failure::cannot)?;
    let began = parts.iter().map(|_| Mutex::new(None)).collect();
    let agents = parts.iter().map(|_| AtomicI32::new(0)).collect();
    let shown = Arc::new(Shown { parts, seats, enclaves, began, agents });
    let served = Arc::clone(&shown);
    let _server = status::Server::start(move || served.status())
        .inspect_err(|error| {
            say!("wave run: `wave linux status` will not show it: {}: {error}", status::FOLDER);
        })
        .ok();
    let mut running = Vec::new();
    for at in 0..shown.parts.len() {
        running.push(Running::start(&shown, &signals, at, wanted.record)?);
    }
    for part in &mut running {
        part.begin(wanted.json)?;
    }
    let mut done = Vec::new();
    while !running.is_empty() {
        let asked = signals.take();
        let mut at = 0;
        while at < running.len() {
            match running[at].check_agent(asked)? {
                Some(ended) => {
                    let part = running.remove(at);
                    done.push((part.at, part.done(ended)));
                }
                None => at += 1,
            }
        }
        std::thread::sleep(LOOK);
    }
    done.sort_by_key(|(at, _)| *at);
    Ok(Ran { parts: done.into_iter().map(|(_, done)| done).collect() })
}

/// With --all, keeps this process off the enclave's cores: it must not wait for the threads that it looks after.
fn stay_outside(seats: &[Seat]) -> Result<(), Failure> {
    match seats {
        [seat] if !seat.inside => wave_process::cpus::pin(&[seat.agent]).map_err(Failure::cannot),
        _ => Err(Failure::Cannot(
            "--all needs a CPU for the agent outside the enclave: leave one out of --cpus"
                .to_owned(),
        )),
    }
}

fn options(part: &Part, seat: &Seat) -> Result<Options, Failure> {
    let name = part.name.as_deref().unwrap_or("enclave");
    let socket = places::socket(name).map_err(Failure::cannot)?;
    let mut options = Options::new(socket, seat.cores.clone());
    if seat.inside {
        say!(
            "wave run: no CPU is left outside the enclave: the agent shares CPU {}, where it comes before the \
             threads that it decides on",
            seat.agent
        );
        // Without this they would never run beside a spinning agent: the kernel prefers other scheduling classes.
        options.config.spin = Nanos(0);
    }
    if let Some(patience) = part.patience {
        options.config.patience = patience;
    }
    options.device.clone_from(&part.device);
    options.everything = part.work == Work::Everything;
    Ok(options)
}

/// Signals to this process while it runs.
struct Signals {
    /// Set by SIGINT: from a terminal, which sends it to commands as well, or to this process alone.
    interrupt: Arc<AtomicBool>,
    /// Set by SIGTERM to this process alone.
    terminate: Arc<AtomicBool>,
}

impl Signals {
    fn listen() -> Result<Signals, Failure> {
        let (interrupt, terminate) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
        let flags = [(SIGINT, &interrupt), (SIGTERM, &terminate), (SIGHUP, &terminate)];
        for (signal, flag) in flags {
            wave_terminal::interrupt::register_unless_ignored(signal, flag)?;
        }
        Ok(Signals { interrupt, terminate })
    }

    /// Takes the signals that arrived since the last call.
    fn take(&self) -> Asked {
        let terminate = self.terminate.swap(false, Ordering::SeqCst);
        Asked { end: terminate | self.interrupt.swap(false, Ordering::SeqCst), terminate }
    }
}

#[derive(Clone, Copy)]
struct Asked {
    end: bool,
    /// Commands have not received it yet.
    terminate: bool,
}

/// State of a run that `wave linux status` shows.
struct Shown {
    parts: Vec<Part>,
    seats: Vec<Seat>,
    enclaves: Vec<Enclave>,
    began: Vec<Mutex<Option<Instant>>>,
    /// Process id of each enclave's last agent started here.
    agents: Vec<AtomicI32>,
}

impl Shown {
    fn agents(&self) -> Vec<i32> {
        self.agents.iter().map(|agent| agent.load(Ordering::SeqCst)).collect()
    }

    fn report(&self, at: usize) -> Report {
        let (part, seat) = (&self.parts[at], &self.seats[at]);
        let stats = self.enclaves[at].stats();
        let ours = self.agents[at].load(Ordering::SeqCst) == stats.agent_pid;
        let began = *self.began[at].lock().unwrap_or_else(PoisonError::into_inner);
        let mut report = Report {
            name: part.name.clone(),
            what: part.work.in_words(),
            policy: (part.device.is_none() && (ours || !stats.agent_decides))
                .then(|| part.policy.clone()),
            device: part.device.as_ref().map(|device| device.address.clone()),
            seconds: began.map_or(0.0, |began| began.elapsed().as_secs_f64()),
            agent_cpu: part.device.is_none().then_some(seat.agent),
            ..Report::default()
        };
        report.count(&stats, &seat.cores);
        report
    }

    fn status(&self) -> status::Run {
        let enclave = |at: usize| {
            let cores = &self.seats[at].cores;
            let threads = self.enclaves[at].threads().into_iter().map(|thread| status::Thread {
                pid: None,
                tid: thread.tid,
                name: None,
                state: state_name(thread.state).to_owned(),
                cpu: thread.core.and_then(|core| cores.get(usize::from(core)).copied()),
            });
            status::Enclave { report: self.report(at), threads: threads.collect() }
        };
        let enclaves = (0..self.parts.len()).map(enclave).collect();
        status::Run { pid: std::process::id(), enclaves }
    }
}

fn state_name(state: State) -> &'static str {
    match state {
        State::Free => "new",
        State::Runnable => "waits",
        State::Running => "runs",
        State::Blocked => "blocked",
    }
}

/// One enclave, its agent and its work.
struct Running<'a> {
    shown: &'a Shown,
    at: usize,
    record: Option<&'a Path>,
    agent: Option<AgentProcess>,
    agents: usize,
    lost_at: Option<Instant>,
    /// Why the last attempt to start another agent failed.
    refused: Option<String>,
    started: Option<Started>,
}

impl<'a> Running<'a> {
    /// Starts the enclave with an agent that decides; behind a device there may be none yet. A signal to end, which `signals`
    /// tells of, ends the wait for the agent.
    fn start(
        shown: &'a Shown,
        signals: &Signals,
        at: usize,
        record: Option<&'a Path>,
    ) -> Result<Running<'a>, Failure> {
        let mut running = Running {
            shown,
            at,
            record,
            agent: None,
            agents: 0,
            lost_at: None,
            refused: None,
            started: None,
        };
        let began = Instant::now();
        let go_on = || match signals.take().end {
            true => Err(Failure::Cannot("told to end before the agent attached".to_owned())),
            false => Ok(()),
        };
        if let Some(device) = &running.part().device {
            say!(
                "wave run: waiting up to {} s for an agent behind {}",
                DEVICE_PATIENCE.as_secs(),
                device.address
            );
            while !running.enclave().stats().agent_decides {
                if began.elapsed() > DEVICE_PATIENCE {
                    say!("wave run: no agent yet; the host decides until one attaches");
                    break;
                }
                go_on()?;
                std::thread::sleep(Duration::from_millis(1));
            }
            return Ok(running);
        }
        let mut agent = running.start_agent()?;
        agent.wait_until(|| {
            go_on()?;
            Ok(running.enclave().stats().agent_decides)
        })?;
        running.agent = Some(agent);
        Ok(running)
    }

    fn part(&self) -> &'a Part {
        &self.shown.parts[self.at]
    }

    fn enclave(&self) -> &'a Enclave {
        &self.shown.enclaves[self.at]
    }

    fn start_agent(&mut self) -> Result<AgentProcess, Failure> {
        let (part, seat) = (self.part(), &self.shown.seats[self.at]);
        let log = self.record.map(|folder| log(folder, self.agents, part)).transpose()?;
        let socket = self.enclave().socket();
        let agent = AgentProcess::start(
            part.program.as_deref(),
            socket,
            &part.policy,
            seat.agent,
            seat.shares,
            log,
        )?;
        self.agents += 1;
        self.shown.agents[self.at].store(agent.pid().as_raw_pid(), Ordering::SeqCst);
        Ok(agent)
    }

    /// Moves the threads into the enclave.
    fn begin(&mut self, json: bool) -> Result<(), Failure> {
        let began = &self.shown.began[self.at];
        *began.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        self.started = Some(self.part().work.start(self.enclave(), &self.shown.agents(), json)?);
        Ok(())
    }

    /// Checks on the agent. Returns how the work ended, if it has.
    fn check_agent(&mut self, asked: Asked) -> Result<Option<Ended>, Failure> {
        let enclave = self.enclave();
        let Some(started) = &mut self.started else { return Ok(None) };
        if asked.terminate {
            started.signal(Signal::TERM);
        }
        if let Some(ended) = started.ended(enclave, &self.shown.agents(), asked.end)? {
            return Ok(Some(ended));
        }
        if let Some(agent) = &mut self.agent {
            let (attached, decides) = enclave.deciding();
            agent.kill_if_it_hangs(attached, decides);
        }
        let agent = self.agent.as_mut();
        if agent.is_some_and(|agent| agent.wait_for_end(Duration::ZERO).is_some()) {
            self.agent = None;
            self.lost_at = Some(Instant::now());
            let of =
                self.part().name.as_ref().map(|name| format!(" of {name}")).unwrap_or_default();
            say!("wave run: the agent{of} is gone; the host decides until another attaches");
        }
        let here = self.part().device.is_none();
        let rest = if self.refused.is_some() { RETRY } else { REST };
        if here && self.agent.is_none() && self.lost_at.is_none_or(|at| at.elapsed() >= rest) {
            match self.start_agent() {
                Ok(agent) => (self.agent, self.refused) = (Some(agent), None),
                // The host decides meanwhile: no reason to end the work.
                Err(error) => {
                    let refused = Some(error.to_string());
                    if self.refused != refused {
                        say!("wave run: no other agent yet, trying again: {error}");
                    }
                    (self.lost_at, self.refused) = (Some(Instant::now()), refused);
                }
            }
        }
        Ok(None)
    }

    fn done(self, ended: Ended) -> Done {
        let mut report = self.shown.report(self.at);
        if self.part().device.is_none() {
            report.policy = Some(self.part().policy.clone());
        }
        if let Ended::Because(why) = &ended {
            report.what += &format!(" ({why})");
        }
        let status = if let Ended::Command(status) = ended { Some(status) } else { None };
        Done { report, status }
    }
}

fn log(folder: &Path, number: usize, part: &Part) -> Result<Log, Failure> {
    std::fs::create_dir_all(folder).map_err(|error| {
        Failure::Cannot(format!("cannot make {} for logs: {error}", folder.display()))
    })?;
    let policy = part.policy.split(':').next().unwrap_or(&part.policy);
    let name = part.name.as_deref().unwrap_or(policy);
    let path = folder.join(format!("{name}-{number}.wavelog"));
    Ok(Log { path, about: format!("wave run --host linux, agent {number}") })
}

impl Done {
    fn exit_code(&self) -> Option<u8> {
        self.status.map(wave_apps::launch::exit_code)
    }

    fn to_json(&self) -> Value {
        let mut json = serde_json::to_value(&self.report).expect("reports have string keys only");
        json["exit_code"] = self.exit_code().into();
        json
    }
}

impl Ran {
    /// The exit code of the first command that failed; 128 plus the signal, as in shells.
    pub fn exit_code(&self) -> u8 {
        self.parts.iter().filter_map(Done::exit_code).find(|code| *code != 0).unwrap_or(0)
    }

    /// Reasons why the run failed.
    pub fn failed(&self) -> Vec<String> {
        let why = self.parts.iter().filter_map(|done| done.report.turned_out.as_ref());
        why.take(1).map(|why| format!("the kernel turned the scheduler out: {why}")).collect()
    }

    pub fn to_text(&self) -> String {
        let parts: Vec<String> = self.parts.iter().map(|done| done.report.to_text()).collect();
        parts.join("\n\n")
    }

    pub fn to_json(&self) -> Value {
        match &self.parts[..] {
            [one] if one.report.name.is_none() => {
                let mut json = one.to_json();
                json["host"] = "linux".into();
                json
            }
            parts => json!({
                "host": "linux",
                "exit_code": self.exit_code(),
                "enclaves": parts.iter().map(Done::to_json).collect::<Vec<_>>(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_refused_without_a_cpu_for_the_agent() {
        let seat = |inside| Seat { cores: vec![0], agent: 0, shares: false, inside };
        let refusal = stay_outside(&[seat(true)]).unwrap_err();
        assert_eq!(refusal.exit_code(), 3);
        assert!(refusal.to_string().contains("--cpus"));
    }
}

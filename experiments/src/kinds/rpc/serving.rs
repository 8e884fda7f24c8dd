//! A running variant: its host in this process, its agents, and the generator connected to it.

use std::ffi::OsString;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use wave_core::layout::Config;
use wave_user::Enclave;
use wave_user::rpc::{Options, Server};
use wave_workloads::cpu;
use wave_workloads::grpc::load::{ByKind, CallSettings, Generator, Kind, Open, Target};
use wave_workloads::grpc::onhost::{self, OnHost};
use wave_workloads::grpc::store::{ServiceTimes, Store, Worked};
use wave_workloads::rocksdb::Database;

use super::Trial;
use super::seats::Seats;
use crate::ground::fields::{Link, Trials};
use crate::ground::point::pooled;
use crate::ground::seating::Seating;
use crate::ground::{Failure, pin_housekeeping, system, take_generators_seat};
use crate::kinds::requests::scenario::Queue;
use crate::kinds::rpc::scenario::Workload;
use crate::kinds::rpc::{Rpc, RpcPlacement, Stack};
use crate::{cpu_time, store};
use wave_apps::agent::AgentProcess;
use wave_apps::launch::START_PATIENCE;
use wave_apps::recording::{Log, Logs};

/// Entries of 56 bytes in each queue of a worker that holds one call at a time.
const ENTRIES: u32 = 64;
/// Time allowed for answers after a point's last call.
const DRAIN: Duration = Duration::from_secs(10);
/// Threads of an enclave besides the workers'.
const SPARE_THREADS: u32 = 16;
/// Maximum number of open calls on a connection; further calls wait in the generator.
const STREAMS: usize = 100;
/// Time after the last answer for cores to park and publish their counters.
const SETTLE: Duration = Duration::from_millis(3);

/// The variant to serve.
pub struct Setup<'a> {
    pub scenario: &'a Rpc,
    pub stack: &'a Stack,
    pub seats: &'a Seats,
    pub cpus: &'a [usize],
    pub database: &'a Arc<Database>,
    /// Log destinations of its scheduler.
    pub logs: Option<Logs>,
}

/// Measurements under one load.
#[derive(Clone, Deserialize, Serialize)]
pub struct Measured {
    /// Latencies and answers, as the generator saw them.
    pub open: Open,
    /// CPU time used meanwhile.
    pub used: Used,
    /// Why the system must be restarted before the next load, if so.
    pub broken: Option<String>,
}

impl Measured {
    /// All trials of one load as one point. `None` without trials.
    pub(super) fn pooled(trials: &[Trial]) -> Option<Measured> {
        let points: Vec<_> = trials.iter().map(|trial| &trial.measured.open.point).collect();
        let mut all = trials.first()?.measured.clone();
        all.open.point = pooled(&points)?;
        all.used = trials[1..].iter().fold(all.used, |sum, trial| sum.and(trial.measured.used));
        Some(all)
    }
}

/// Elapsed time, and how it was used.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct Used {
    pub wall_ns: u64,
    /// GETs and RANGEs served, and their service time.
    pub worked: Worked,
    /// CPU time of all threads of host and agents, without the generator's. None if not modelled.
    pub total_ns: Option<u64>,
    /// CPU time of the host's workers, without polling and sleeping.
    pub host_ns: u64,
    /// Time that the host's workers were ready while others ran on their CPUs. None if not modelled.
    pub stalled_ns: Option<u64>,
    /// CPU time of all agents, polling included.
    pub agents_ns: u64,
    /// CPU time of the generator, polling for replies included. None if not modelled.
    pub generator_ns: Option<u64>,
}

/// Fields are dropped in order: clients first, and agents before their host.
pub struct Serving {
    generator: Generator,
    agents: Vec<AgentProcess>,
    host: Host,
    store: Store,
    seating: Seating,
    /// Schedulers lost before the variant began to serve.
    lost_before: u64,
}

enum Host {
    /// Threads, and the cores that an agent schedules them on.
    Threads {
        _server: Server,
        enclave: Enclave,
    },
    /// A server with a pthread for each core.
    Cores(Server),
    Tonic(OnHost),
}

impl Serving {
    /// Starts the variant, and waits until calls are answered. From then on the calling thread is the generator's.
    pub fn start(wanted: &Setup<'_>) -> Result<Serving, Failure> {
        let Setup { scenario, stack, seats, cpus, database, logs } = wanted;
        let workload = &scenario.workload;
        let times = ServiceTimes { get: micros(workload.get_us), range: micros(workload.range_us) };
        let store = Store::taking(Arc::clone(database), times);
        let seating = &seats.seating;
        pin_housekeeping(seating, cpus)?;
        let (mut agents, mut address) = (Vec::new(), free_address()?);
        let host = match stack.placement {
            RpcPlacement::Tonic => {
                let any = address.parse().map_err(Failure::cannot)?;
                let server =
                    OnHost::start(any, &seating.workers, &store).map_err(Failure::cannot)?;
                address = server.address().to_string();
                Host::Tonic(server)
            }
            RpcPlacement::Sidecar => {
                let options = Options {
                    cpus: seating.workers.clone(),
                    yields_cpu: seating.workers_yield,
                    ..host_options(&stack.link, seating.workers.len() as u16)?
                };
                let server = Server::start(options, store::methods(store.clone()));
                let server = server.map_err(Failure::cannot)?;
                let words = front(server.socket(), &address, &stack.steer);
                let cpu = seating.agents[0];
                agents.push(AgentProcess::start_with(&words, Some(cpu), seating.agents_yield)?);
                Host::Cores(server)
            }
            placement => {
                let is_split = placement == RpcPlacement::OnhostScheduler;
                // A scheduler on the host reaches its threads through shared memory; the notes cross the link instead.
                let scheduler_link = if is_split { &Link::Shm } else { &stack.link };
                let options = enclave_options(scenario.host.threads, scheduler_link, seating)?;
                let enclave = Enclave::start(options).map_err(Failure::cannot)?;
                let options = host_options(&stack.link, scenario.host.threads as u16)?;
                let methods = store::methods(store.clone());
                let server = Server::start_threads(options, methods, &enclave);
                let server = server.map_err(Failure::cannot)?;
                let mut words = front(server.socket(), &address, &stack.steer);
                let mut schedule: Vec<OsString> = vec![
                    "--attach".into(),
                    enclave.socket().into(),
                    "--policy".into(),
                    stack.policy.clone().into(),
                ];
                if let Some(Log { path, about }) = logs.as_ref().map(Logs::next) {
                    schedule.extend(["--record".into(), path.into()]);
                    schedule.extend(["--record-about".into(), about.into()]);
                }
                let shares = seating.agents_yield;
                if is_split {
                    let notes = system::socket()?;
                    words.extend(["--notes".into(), notes.clone().into()]);
                    words.extend(["--notes-link".into(), notes_link(&stack.link)]);
                    agents.push(AgentProcess::start_with(&words, Some(seating.agents[0]), shares)?);
                    words = schedule;
                    words.extend(["--notes-from".into(), notes.into()]);
                    agents.push(AgentProcess::start_with(&words, Some(seating.agents[1]), shares)?);
                } else {
                    words.extend(schedule);
                    agents.push(AgentProcess::start_with(&words, Some(seating.agents[0]), shares)?);
                }
                Host::Threads { _server: server, enclave }
            }
        };
        take_generators_seat(seating)?;
        wait_until_served(&address, &mut agents)?;
        let target =
            Target { address, connections: workload.connections as usize, streams: STREAMS };
        let generator = connect(&target, &calls(workload), scenario.run.seed, &mut agents)?;
        let seating = seating.clone();
        let mut serving = Serving { generator, agents, host, store, seating, lost_before: 0 };
        serving.lost_before = serving.lost_agents();
        Ok(serving)
    }

    /// Runs a load once, with arrivals by `seed`.
    pub fn load(
        &mut self,
        per_second: f64,
        seed: u64,
        trials: Trials,
    ) -> Result<Measured, Failure> {
        let before = self.used()?;
        let [warm_up, counted] =
            [trials.warmup_seconds, trials.measured_seconds].map(Duration::from_secs_f64);
        self.generator.set_seed(seed);
        let open = self.generator.open(per_second, warm_up, counted, DRAIN);
        let open = open.map_err(Failure::cannot)?;
        let generator_ns = Some(cpu::thread_cpu_time_ns());
        std::thread::sleep(SETTLE);
        let after = Used { generator_ns, ..self.used()? };
        if open.answers.wrong > 0 {
            let text = format!("{} replies were wrong", open.answers.wrong);
            return Err(Failure::Check(text));
        }
        Ok(Measured { broken: self.broken(&open), used: after.since(before), open })
    }

    fn broken(&mut self, open: &Open) -> Option<String> {
        if open.answers.unanswered > 0 {
            return Some(format!("{} calls were not answered", open.answers.unanswered));
        }
        if self.lost_agents() > self.lost_before {
            return Some(
                "the watchdog turned the agent out: it had no CPU for 20 ms, hung, or its policy left a thread waiting".into(),
            );
        }
        let mut left =
            self.agents.iter_mut().filter_map(|agent| agent.wait_for_end(Duration::ZERO));
        left.next().map(|status| format!("an agent ended unexpectedly ({status})"))
    }

    fn lost_agents(&self) -> u64 {
        match &self.host {
            Host::Threads { enclave, .. } => enclave.stats().lost_agents,
            Host::Cores(_) | Host::Tonic(_) => 0,
        }
    }

    /// CPU time used since the start.
    fn used(&self) -> Result<Used, Failure> {
        let wall_ns = cpu::monotonic_ns();
        let me = std::process::id();
        let host_ns = match &self.host {
            Host::Threads { enclave, .. } => {
                let cores = enclave.stats().cores;
                let idle: u64 = cores.iter().map(|core| core.parked.0 + core.polling.0).sum();
                (wall_ns * self.seating.workers.len() as u64).saturating_sub(idle)
            }
            Host::Cores(server) => server.work().iter().map(|work| work.busy.0).sum(),
            Host::Tonic(_) => cpu_time::cpu_ns(me, onhost::THREADS).map_err(Failure::Cannot)?,
        };
        let threads = match &self.host {
            Host::Threads { .. } => "wave-core-",
            Host::Cores(_) => "wave-worker-",
            Host::Tonic(_) => onhost::THREADS,
        };
        // Threads of other variants are asleep meanwhile.
        let stalled_ns = Some(cpu_time::waited_ns(me, threads).map_err(Failure::Cannot)?);
        let mut agents_ns = 0;
        for agent in &self.agents {
            agents_ns += cpu_time::cpu_ns(agent.pid().as_raw_pid().unsigned_abs(), "").unwrap_or(0);
        }
        let process_ns = cpu_time::cpu_ns(me, "").map_err(Failure::Cannot)?;
        let generator_ns = cpu::thread_cpu_time_ns();
        let total_ns = Some(process_ns.saturating_sub(generator_ns) + agents_ns);
        let worked = self.store.worked();
        let generator_ns = Some(generator_ns);
        Ok(Used { wall_ns, worked, total_ns, host_ns, stalled_ns, agents_ns, generator_ns })
    }

    /// Stops the variant. An error says what went wrong.
    pub fn stop(self) -> Result<(), Failure> {
        match self.host {
            Host::Tonic(server) => {
                drop(self.generator);
                server.stop().map_err(Failure::cannot)
            }
            _ => Ok(()),
        }
    }
}

impl Used {
    /// Both times together.
    fn and(self, other: Used) -> Used {
        let sum = |one: Option<u64>, other: Option<u64>| Some(one? + other?);
        Used {
            wall_ns: self.wall_ns + other.wall_ns,
            worked: Worked {
                calls: self.worked.calls + other.worked.calls,
                ns: self.worked.ns + other.worked.ns,
            },
            total_ns: sum(self.total_ns, other.total_ns),
            host_ns: self.host_ns + other.host_ns,
            stalled_ns: sum(self.stalled_ns, other.stalled_ns),
            agents_ns: self.agents_ns + other.agents_ns,
            generator_ns: sum(self.generator_ns, other.generator_ns),
        }
    }

    fn since(self, before: Used) -> Used {
        let since = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before?));
        Used {
            wall_ns: self.wall_ns - before.wall_ns,
            worked: self.worked.since(before.worked),
            total_ns: since(self.total_ns, before.total_ns),
            host_ns: self.host_ns.saturating_sub(before.host_ns),
            stalled_ns: since(self.stalled_ns, before.stalled_ns),
            agents_ns: self.agents_ns.saturating_sub(before.agents_ns),
            generator_ns: since(self.generator_ns, before.generator_ns),
        }
    }
}

fn micros(us: f64) -> Duration {
    Duration::from_secs_f64(us / 1e6)
}

fn free_address() -> Result<String, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(Failure::cannot)?;
    Ok(listener.local_addr().map_err(Failure::cannot)?.to_string())
}

/// The arguments of an agent with a front.
fn front(host: &Path, address: &str, steer: &str) -> Vec<OsString> {
    let words = ["--listen", address, "--steer", steer, "--rpc"];
    words.into_iter().map(OsString::from).chain([host.into()]).collect()
}

/// Options of a host with this number of workers over `link`.
pub fn host_options(link: &Link, workers: u16) -> Result<Options, Failure> {
    let options = Options::new(system::socket()?).workers(workers);
    let mut options = options.over(system::link(link)?);
    let config = &mut options.config;
    (config.messages.entries, config.decisions.entries) = (ENTRIES, ENTRIES);
    config.messages = system::queue(&Queue::messages(link), config.messages);
    config.decisions = system::queue(&Queue::decisions(link), config.decisions);
    Ok(options)
}

/// The link as `wave agent` names it.
fn notes_link(link: &Link) -> OsString {
    match link {
        Link::File(path) => path.into(),
        other => other.to_string().into(),
    }
}

/// Options of an enclave over `link`, with room for this number of serving threads.
pub fn enclave_options(
    threads: u32,
    link: &Link,
    seating: &Seating,
) -> Result<wave_user::Options, Failure> {
    let mut options = wave_user::Options::new(system::socket()?);
    options.cpus.clone_from(&seating.workers);
    options.yields_cpu = seating.workers_yield;
    options.link = system::link(link)?;
    let mut config = Config::coherent(seating.workers.len() as u16);
    config.subjects = threads + SPARE_THREADS;
    config.messages = system::queue(&Queue::messages(link), config.messages);
    config.decisions = system::queue(&Queue::decisions(link), config.decisions);
    options.config = config;
    Ok(options)
}

fn calls(workload: &Workload) -> CallSettings {
    let by_kind = |get, range| ByKind(vec![(Kind::Get, get), (Kind::Range, range)]);
    let ranges = workload.range_percent;
    let mut calls = CallSettings::new(by_kind(100.0 - ranges, ranges), workload.keys);
    calls.slo_us = by_kind(workload.get_slo_us.into(), workload.range_slo_us.into());
    calls.range_limit = workload.range_pairs;
    calls.value_bytes = workload.value_bytes as usize;
    calls
}

/// Connects, retrying until something listens. An agent that the watchdog has turned out is restarted: on a busy machine it may
/// have had no CPU for 20 ms before it served anything.
fn connect(
    target: &Target,
    calls: &CallSettings,
    seed: u64,
    agents: &mut [AgentProcess],
) -> Result<Generator, Failure> {
    loop {
        let error = match Generator::connect(target, calls, seed) {
            Ok(generator) => return Ok(generator),
            Err(error) => error,
        };
        if !come_back(agents)? {
            return Err(Failure::cannot(error));
        }
    }
}

fn come_back(agents: &mut [AgentProcess]) -> Result<bool, Failure> {
    agents.iter_mut().try_fold(false, |came, agent| Ok(agent.come_back()? || came))
}

/// A front listens before its host and its scheduler are attached: waits until calls succeed.
fn wait_until_served(address: &str, agents: &mut [AgentProcess]) -> Result<(), Failure> {
    let start = Instant::now();
    let target = Target { address: address.to_owned(), connections: 1, streams: 1 };
    let calls = CallSettings::new(ByKind::only(Kind::Get), 1);
    let mut generator = connect(&target, &calls, 0, agents)?;
    while start.elapsed() < START_PATIENCE {
        let closed = generator.closed(Duration::from_millis(5), DRAIN).map_err(Failure::cannot)?;
        if closed.done > 0 {
            return Ok(());
        }
        come_back(agents)?;
    }
    let text = format!("no answer at {address} within {} s", START_PATIENCE.as_secs());
    Err(Failure::Cannot(text))
}

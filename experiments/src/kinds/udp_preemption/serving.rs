//! A running system: a host whose threads serve requests, its agent with front and scheduler, and the load connected to it.

use std::ffi::OsString;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use wave_core::clock::Nanos;
use wave_user::Enclave;
use wave_user::rpc::Server;
use wave_workloads::udp::{Generator, Outcome, Settings};

use super::KEYS;
use crate::ground::seating::Seating;
use crate::ground::{Failure, pin_housekeeping, take_generators_seat};
use crate::kinds::rpc::{enclave_options, host_options};
use crate::kinds::udp_preemption::UdpPreemption;
use crate::store;
use wave_apps::agent::AgentProcess;
use wave_apps::launch::START_PATIENCE;

/// A thread holds one request at a time: the scheduler decides which one runs.
const STEER: &str = "jbsq:k=1";
/// Time for which cores poll for work before they sleep: longer than any pause of a load, because the paper's workers poll
/// (3.4.3).
const SPIN: Nanos = Nanos::from_millis(1);
/// Time allowed for the last answers of a load.
const DRAIN: Duration = Duration::from_secs(10);
/// Time from the last answer until cores have parked and published their counters.
const SETTLE: Duration = Duration::from_millis(3);
/// Interval between tries of a request without an answer.
const RETRY: Duration = Duration::from_millis(100);
/// Rate and length of a new system's first loads, and the time allowed for their answers: an agent may have been turned out.
const FIRST_RATE: f64 = 1_000.0;
const FIRST_LOAD: Duration = Duration::from_millis(20);
const FIRST_DRAIN: Duration = Duration::from_millis(250);

/// A variant to start.
pub struct Setup<'a> {
    pub scenario: &'a UdpPreemption,
    /// Policy of the agent's scheduler.
    pub policy: String,
    pub seating: &'a Seating,
    pub cpus: &'a [usize],
}

/// Measurements under one load.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Measured {
    /// Times at the client and at the front, and how requests ended.
    pub outcome: Outcome,
    /// Slices ended by the cores' own timers.
    pub slices_ended: u64,
    /// Why the system must be restarted before the next load, if so.
    pub broken: Option<String>,
}

/// Fields are dropped in order: the client first, and the agent before its host.
pub struct Serving {
    generator: Generator,
    agent: AgentProcess,
    _server: Server,
    enclave: Enclave,
    times: [Duration; 2],
    /// Schedulers lost before the system began to serve.
    lost_before: u64,
}

impl Serving {
    /// Starts the system, and waits until requests are answered. From then on the calling thread is the generator's.
    pub fn start(wanted: &Setup<'_>) -> Result<Serving, Failure> {
        let Setup { scenario, policy, seating, cpus } = wanted;
        pin_housekeeping(seating, cpus)?;
        let mut options = enclave_options(scenario.host.threads, &scenario.host.link, seating)?;
        // One of the requests that a worker holds runs; the others are prestaged.
        options.config.prestage = (scenario.host.outstanding - 1) as u16;
        options.config.spin = SPIN;
        let enclave = Enclave::start(options).map_err(Failure::cannot)?;
        let options = host_options(&scenario.host.link, scenario.host.threads as u16)?;
        let server = Server::start_threads(options, store::echo_methods(), &enclave)
            .map_err(Failure::cannot)?;
        let address = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
        let address = address.map_err(Failure::cannot)?.to_string();
        let words: [OsString; 10] = [
            "--udp".into(),
            address.clone().into(),
            "--steer".into(),
            STEER.into(),
            "--rpc".into(),
            server.socket().into(),
            "--attach".into(),
            enclave.socket().into(),
            "--policy".into(),
            policy.into(),
        ];
        let mut agent =
            AgentProcess::start_with(&words, Some(seating.agents[0]), seating.agents_yield)?;
        take_generators_seat(seating)?;
        let settings = Settings {
            target: address,
            sockets: scenario.workload.sockets as usize,
            mix: scenario.mix(),
            keys: KEYS,
            value_bytes: 0,
            retry: Some(RETRY),
            seed: scenario.run.seed,
            run: 0,
            timed: 1,
            queue_target: None,
            stop: None,
        };
        let generator = connect(&settings, &mut agent)?;
        let lost_before = enclave.stats().lost_agents;
        let times = scenario.times();
        Ok(Serving { generator, agent, _server: server, enclave, times, lost_before })
    }

    /// Runs a load once, with arrivals by `seed`.
    pub fn load(&mut self, per_second: f64, seed: u64) -> Result<Measured, Failure> {
        self.generator.set_seed(seed);
        let sliced = self.sliced();
        let [warm_up, counted] = self.times;
        let outcome = self.generator.open(per_second, warm_up, counted, DRAIN);
        let outcome = outcome.map_err(Failure::cannot)?;
        std::thread::sleep(SETTLE);
        if outcome.ends.wrong > 0 {
            let text = format!("{} replies were wrong", outcome.ends.wrong);
            return Err(Failure::Check(text));
        }
        let (broken, slices_ended) = (self.broken(&outcome), self.sliced() - sliced);
        Ok(Measured { outcome, slices_ended, broken })
    }

    fn broken(&mut self, outcome: &Outcome) -> Option<String> {
        if outcome.ends.lost > 0 {
            return Some(format!("{} requests were not answered", outcome.ends.lost));
        }
        if self.enclave.stats().lost_agents > self.lost_before {
            return Some(
                "the watchdog turned the agent out: it had no CPU for 20 ms, hung, or its policy left a thread waiting".into(),
            );
        }
        let left = self.agent.wait_for_end(Duration::ZERO);
        left.map(|status| format!("the agent ended unexpectedly ({status})"))
    }

    fn sliced(&self) -> u64 {
        self.enclave.stats().cores.iter().map(|core| core.sliced).sum()
    }
}

/// Connects a load once requests are executed: a front listens before its host and its scheduler are attached. An agent that
/// the watchdog has turned out is restarted: on a busy machine it may have had no CPU for 20 ms before it served anything.
fn connect(settings: &Settings, agent: &mut AgentProcess) -> Result<Generator, Failure> {
    let start = Instant::now();
    let mut generator = loop {
        match Generator::connect(settings) {
            Ok(generator) => break generator,
            Err(error) if start.elapsed() >= START_PATIENCE => return Err(Failure::cannot(error)),
            Err(_) => agent.come_back()?,
        };
    };
    loop {
        let outcome = generator.open(FIRST_RATE, Duration::ZERO, FIRST_LOAD, FIRST_DRAIN);
        if outcome.map_err(Failure::cannot)?.point.done > 0 {
            return Ok(generator);
        }
        if start.elapsed() >= START_PATIENCE {
            let seconds = START_PATIENCE.as_secs();
            let text = format!("no answer at {} within {seconds} s", settings.target);
            return Err(Failure::Cannot(text));
        }
        agent.come_back()?;
    }
}

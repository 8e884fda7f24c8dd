//! A system that runs: a host whose threads serve requests, its agent with front and scheduler, and the load that is connected to it.

use std::ffi::OsString;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use wave_core::clock::Nanos;
use wave_user::Enclave;
use wave_user::rpc::Server;
use wave_workloads::point::Point;
use wave_workloads::udp::{Generator, Outcome, Settings, Stalls};

use super::KEYS;
use crate::run::agent::AgentProcess;
use crate::run::rpc::{enclave_options, host_options};
use crate::run::seating::Seating;
use crate::run::verdict::{Try, Watch};
use crate::run::{Failure, keep_house, take_generators_seat};
use crate::scenario::UdpPreemption;
use crate::{cpu_time, store};

/// A thread has one request at a time: which one runs is the scheduler's to say.
const STEER: &str = "jbsq:k=1";
/// Time for which cores look for work before they sleep: longer than any pause of a load, as the workers of the paper poll (3.4.3).
const SPIN: Nanos = Nanos::from_millis(1);
/// Time until a new system answers.
const START_PATIENCE: Duration = Duration::from_secs(30);
/// Time for the last answers of a load.
const DRAIN: Duration = Duration::from_secs(10);
/// Time from the last answer until cores have parked and published their counters.
const SETTLE: Duration = Duration::from_millis(3);
/// Interval between tries of a request without an answer.
const RETRY: Duration = Duration::from_millis(100);
/// Rate and length of the first loads of a new system, and the time for their answers: an agent may have been turned out.
const FIRST_RATE: f64 = 1_000.0;
const FIRST_LOAD: Duration = Duration::from_millis(20);
const FIRST_DRAIN: Duration = Duration::from_millis(250);

/// A variant to start.
pub struct Wanted<'a> {
    pub scenario: &'a UdpPreemption,
    /// Policy of the agent's scheduler.
    pub policy: String,
    pub seating: &'a Seating,
    pub cpus: &'a [usize],
}

/// What happened under one load.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Measured {
    /// Times at the client and at the front, and ends.
    pub outcome: Outcome,
    /// Slices that cores ended by their own timers.
    pub slices_ended: u64,
    /// Why the point is not a measurement, if other processes disturbed it.
    pub disturbed: Option<String>,
    /// Why each other try of its load was set aside.
    pub other_tries: Vec<String>,
    /// Why the system has to be started again before the next load, if so.
    pub broken: Option<String>,
}

impl Try for Measured {
    fn point(&self) -> &Point {
        &self.outcome.point
    }

    fn disturbance(&self) -> Option<&str> {
        self.disturbed.as_deref()
    }

    fn set_aside(&mut self, others: Vec<String>) {
        self.other_tries = others;
    }

    fn invalidate(&mut self, why: &str) {
        let lag = &mut self.outcome.point.generator;
        (lag.valid, lag.why_invalid) = (false, Some(why.to_owned()));
    }
}

/// Fields are dropped in order: the client first, and the agent before its host.
pub struct Serving {
    generator: Generator,
    agent: AgentProcess,
    _server: Server,
    enclave: Enclave,
    seating: Seating,
    times: [Duration; 2],
    /// Schedulers that were lost before it served.
    lost_before: u64,
}

impl Serving {
    /// Starts it, and waits until requests are answered. The calling thread is the generator's from then on.
    pub fn start(wanted: &Wanted<'_>) -> Result<Serving, Failure> {
        let Wanted { scenario, policy, seating, cpus } = wanted;
        keep_house(seating, cpus)?;
        let mut options = enclave_options(scenario.threads, &scenario.link, seating)?;
        // Of those at hand, one runs.
        options.config.prestage = (scenario.outstanding - 1) as u16;
        options.config.spin = SPIN;
        let stalls = Stalls::default();
        options.stalled_looks = Some(stalls.counter());
        let enclave = Enclave::start(options).map_err(Failure::cannot)?;
        let options = host_options(&scenario.link, scenario.threads as u16)?;
        let methods = store::echo_methods_counting(stalls.clone());
        let server = Server::start_threads(options, methods, &enclave).map_err(Failure::cannot)?;
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
            sockets: scenario.sockets as usize,
            mix: scenario.mix(),
            keys: KEYS,
            value_bytes: 0,
            retry: Some(RETRY),
            seed: scenario.seed,
            run: 0,
            timed: 1,
            queue_target: None,
            stop: None,
            stalls: Some(stalls),
        };
        let generator = connect(&settings, &mut agent)?;
        let lost_before = enclave.stats().lost_agents;
        let (seating, times) = ((*seating).clone(), scenario.times());
        Ok(Serving { generator, agent, _server: server, enclave, seating, times, lost_before })
    }

    pub fn load(&mut self, per_second: f64) -> Result<Measured, Failure> {
        let (watch, agent_ns) = (Watch::start(&self.seating), self.agent_ns());
        let sliced = self.sliced();
        let [warm_up, counted] = self.times;
        let outcome = self.generator.open(per_second, warm_up, counted, DRAIN);
        let outcome = outcome.map_err(Failure::cannot)?;
        std::thread::sleep(SETTLE);
        if outcome.ends.wrong > 0 {
            let text = format!("{} replies were not the right ones", outcome.ends.wrong);
            return Err(Failure::Check(text));
        }
        let used = self.agent_ns().saturating_sub(agent_ns);
        let (broken, slices_ended) = (self.broken(&outcome), self.sliced() - sliced);
        let disturbed = watch.end(used as f64).disturbance();
        Ok(Measured { outcome, slices_ended, disturbed, other_tries: Vec::new(), broken })
    }

    fn broken(&mut self, outcome: &Outcome) -> Option<String> {
        if outcome.ends.lost > 0 {
            return Some(format!("{} requests were not answered", outcome.ends.lost));
        }
        if self.enclave.stats().lost_agents > self.lost_before {
            return Some(
                "the watchdog turned the agent out: it had no CPU for 20 ms, or hung".into(),
            );
        }
        let left = self.agent.wait_for_end(Duration::ZERO);
        left.map(|status| format!("the agent left ({status})"))
    }

    /// CPU time of the agent, looking for work included. 0 once it has left.
    fn agent_ns(&self) -> u64 {
        cpu_time::cpu_ns(self.agent.pid().as_raw_pid().unsigned_abs(), "").unwrap_or(0)
    }

    fn sliced(&self) -> u64 {
        self.enclave.stats().cores.iter().map(|core| core.sliced).sum()
    }
}

/// Connects a load, once its requests are executed: a front is there before its host and its scheduler are. An agent that the watchdog
/// has turned out comes back: on a busy machine it may have had no CPU for 20 ms before it served anything.
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

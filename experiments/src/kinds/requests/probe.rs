//! Native systems for comparison with other models or measurements: the systems, seats and points of `wave run`, one at a time.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use wave_core::link::{Doorbell, Waiter};
use wave_links::EventFd;
use wave_process::cpus;
use wave_sched::policies;
use wave_user::ThreadKind;
use wave_workloads::arrivals::{Load, Mix};
use wave_workloads::cpu::{monotonic_ns, yield_now};
use wave_workloads::generator::{Request, Seat, Server, Settings};
use wave_workloads::recorder::Window;

use crate::ground::journal::Journal;
use crate::ground::neighbours::Neighbours;
use crate::ground::point::{DRAIN_PATIENCE, Outcome};
use crate::ground::seating::{self, Seating};
use crate::ground::service::Service;
use crate::ground::session::Session;
use crate::ground::{Failure, Ground};
use crate::kinds::requests::scenario::{Class, Operation, Scenario, Variant};
use crate::live::Feed;
use crate::measure::Preempted;
use wave_terminal::Progress;

/// The class of RANGE queries.
const RANGE: &str = "RANGE";
/// The compared variants: shared memory, and the ladder over a modelled link.
const LADDER: &str = include_str!("../../../../scenarios/ladder.toml");

/// Environment of native runs, set up once.
pub struct Native {
    cpus: Vec<usize>,
    service: Arc<Service>,
    base: Scenario,
}

impl Native {
    /// Fills a database whose GETs can be extended to each of `services_us`, beside RANGEs of `range_us`.
    pub fn open(
        services_us: &[f64],
        range_us: f64,
        progress: &Progress,
    ) -> Result<Native, Failure> {
        let parsed = crate::kinds::requests::scenario::read(
            &wave_scenario::Source::new(Path::new("ladder.toml"), LADDER),
            policies::NAMES,
        );
        let mut base = parsed.map_err(|error| Failure::Scenario(error.to_string()))?;
        let class = |&service_us: &f64| Class {
            name: service_us.to_string(),
            weight: 0.0,
            service_us: Some(service_us),
            operation: Operation::Get,
        };
        // The length of a run is that of one trial.
        base.run.rounds = 1;
        base.workload.classes = services_us.iter().map(class).collect();
        base.workload.classes.push(Class {
            name: RANGE.to_owned(),
            weight: 0.0,
            service_us: Some(range_us),
            operation: Operation::Range,
        });
        let cpus = cpus::allowed().map_err(Failure::cannot)?;
        let seating = seating::seat(&cpus, 1, 1);
        let service = Service::open(&base.workload, seating.workers[0], progress)?;
        Ok(Native { cpus, service: Arc::new(service), base })
    }

    pub fn seating(&self) -> Seating {
        seating::seat(&self.cpus, 1, 1)
    }

    /// Facts about the database.
    pub fn facts(&self) -> Vec<(String, String)> {
        self.service.facts()
    }

    /// The ladder with GETs of `service_us`, which must be one of the times that the database was opened for, and with points
    /// of `seconds` after `warmup_seconds`.
    pub fn scenario(
        &self,
        service_us: f64,
        seconds: f64,
        warmup_seconds: f64,
        seed: u64,
    ) -> Scenario {
        let mut scenario = self.base.clone();
        for class in &mut scenario.workload.classes {
            if class.service_us == Some(service_us) && class.operation == Operation::Get {
                (class.name, class.weight) = ("GET".to_owned(), 1.0);
            }
        }
        scenario.run.seconds = seconds + warmup_seconds;
        scenario.run.warmup_seconds = warmup_seconds;
        scenario.run.seed = seed;
        scenario
    }

    /// Turns a share of the requests of `scenario` into RANGEs.
    pub fn with_ranges(&self, scenario: Scenario, share: f64) -> Scenario {
        with_others(scenario, RANGE, share)
    }

    /// Turns a share of the requests of `scenario` into GETs of `service_us`, another of the times that the database was opened
    /// for.
    pub fn with_long_gets(&self, scenario: Scenario, service_us: f64, share: f64) -> Scenario {
        with_others(scenario, &service_us.to_string(), share)
    }

    /// Durations in nanoseconds of `rounds` preemptions at a safe point, by an agent on the generator's CPU.
    pub fn preemptions(&self, rounds: usize) -> Result<Vec<f64>, Failure> {
        let Seating { workers, generator, .. } = self.seating();
        // The thread that waits here must not disturb.
        let measure = || {
            let preempted = Preempted::start(workers[0], generator)?;
            // The first ones are warm-up.
            preempted.preemptions(ThreadKind::User, rounds)?;
            let took = preempted.preemptions(ThreadKind::User, rounds)?;
            preempted.end().map(|()| took)
        };
        self.unpinned(measure)?.map_err(Failure::Cannot)
    }

    /// Runs work that pins its thread itself, without the pinning that a system's load left on the calling thread.
    pub fn unpinned<R>(&self, work: impl FnOnce() -> R) -> Result<R, Failure> {
        cpus::pin(&self.cpus).map_err(Failure::cannot)?;
        Ok(work())
    }

    /// The CPUs that this process may use.
    pub fn cpus(&self) -> &[usize] {
        &self.cpus
    }

    /// Starts to watch them for other processes: for [`Machine::since`](crate::ground::rounds::Machine::since).
    pub fn watch(&self) -> Option<Neighbours> {
        Neighbours::on(&self.cpus)
    }

    /// Runs work while the calling thread, and what it starts, may use only the first `count` CPUs.
    pub fn on_cpus<R>(
        &self,
        count: u16,
        work: impl FnOnce() -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        let cpus = &self.cpus[..self.cpus.len().min(count.into())];
        cpus::pin(cpus).map_err(Failure::cannot)?;
        work()
    }

    /// Rings a doorbell for a thread that sleeps on a host core's CPU, `rounds` times with `rest` in between. Returns
    /// nanoseconds: how long each ring occupied the ringer, and the time until the sleeper ran.
    pub fn kicks(&self, rounds: usize, rest: Duration) -> Result<[Vec<f64>; 2], Failure> {
        let seating = self.seating();
        let bell = EventFd::new().map_err(Failure::cannot)?;
        cpus::pin(&[seating.generator]).map_err(Failure::cannot)?;
        let woken_ns = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                let pinned = cpus::pin(&[seating.workers[0]]);
                for _ in 0..rounds {
                    bell.wait(None);
                    woken_ns.store(monotonic_ns(), Ordering::Release);
                }
                pinned
            });
            let mut kicks = [Vec::new(), Vec::new()];
            for _ in 0..rounds {
                let start_ns = monotonic_ns();
                while monotonic_ns() - start_ns < rest.as_nanos() as u64 {
                    std::hint::spin_loop();
                }
                let ring_ns = monotonic_ns();
                bell.ring();
                kicks[0].push((monotonic_ns() - ring_ns) as f64);
                let woken = loop {
                    match woken_ns.swap(0, Ordering::Acquire) {
                        0 => std::thread::yield_now(),
                        woken => break woken,
                    }
                };
                kicks[1].push(woken.saturating_sub(ring_ns) as f64);
            }
            match sleeper.join() {
                Ok(pinned) => pinned.map(|()| kicks).map_err(Failure::cannot),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Starts `variant` of `scenario` and lets `work` load it, on the calling thread.
    pub fn with<R>(
        &self,
        scenario: &Scenario,
        variant: &Variant,
        work: impl FnOnce(&mut Bench<'_>) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        let ground = Ground {
            scenario,
            cpus: self.cpus.clone(),
            service: Arc::clone(&self.service),
            progress: Progress::new(0, true),
            feed: Feed::default(),
            recording: None,
            journal: &Journal::none(),
        };
        let seat = if self.seating().generator_yields { Seat::Shared } else { Seat::Own };
        work(&mut Bench { session: Session::start(&ground, variant)?, seat })
    }
}

/// Turns a share of the requests of `scenario` into the class of this name.
fn with_others(mut scenario: Scenario, name: &str, share: f64) -> Scenario {
    for class in &mut scenario.workload.classes {
        if class.name == name {
            class.weight = share;
        } else if class.weight > 0.0 {
            class.weight = 1.0 - share;
        }
    }
    scenario
}

/// A running system, and the means to load it.
pub struct Bench<'a> {
    session: Session<'a>,
    seat: Seat,
}

impl Bench<'_> {
    /// The session's load at that rate.
    pub fn poisson(&self, per_second: f64) -> Load {
        self.session.terms().load(per_second)
    }

    /// Runs `load` for `measured` after `warm_up`.
    pub fn run(
        &mut self,
        load: Load,
        warm_up: Duration,
        measured: Duration,
    ) -> Result<Outcome, Failure> {
        let mut settings = Settings::new(measured, warm_up, self.seat);
        // A burst is late by design.
        settings.give_up_lag_ns = u64::MAX;
        Ok(self.session.load(load, &settings)?.0)
    }

    /// Nanoseconds per yield of the CPU, to an agent that finds nothing to do, or to nothing; for each of `rounds` groups of
    /// 100 yields.
    pub fn yields(&self, rounds: usize) -> Vec<f64> {
        const YIELDS: u32 = 100;
        (0..rounds)
            .map(|_| {
                let start_ns = monotonic_ns();
                (0..YIELDS).for_each(|_| yield_now());
                (monotonic_ns() - start_ns) as f64 / f64::from(YIELDS)
            })
            .collect()
    }

    /// Nanoseconds per request for each of `rounds` bursts of `burst` requests submitted back to back.
    pub fn submits(&mut self, rounds: usize, burst: u64) -> Result<Vec<f64>, Failure> {
        let keys = self.session.terms().keys;
        let class = Load::new(1.0, self.mix(), keys, 1).map_err(Failure::cannot)?.next();
        let class = class.map(|arrival| arrival.class).unwrap_or_default();
        let mut all = Vec::new();
        for round in 0..rounds as u64 {
            let (system, work) = self.session.parts();
            let start_ns = monotonic_ns();
            let window = Window { start_ns, from_ns: start_ns, to_ns: start_ns + 1_000_000_000 };
            work.recorder.open(window);
            let first_ns = monotonic_ns();
            for id in 0..burst {
                let key = (round * burst + id) % keys;
                let request = Request { id, class, intended_ns: first_ns, key };
                let refused = system.submit(request).is_err();
                work.recorder.submitted(&request, refused);
            }
            all.push((monotonic_ns() - first_ns) as f64 / burst as f64);
            if work.recorder.drain(DRAIN_PATIENCE) > 0 {
                return Err(Failure::Check("requests of a burst were lost".into()));
            }
        }
        Ok(all)
    }

    fn mix(&self) -> Mix {
        self.session.terms().mix.clone()
    }
}

/// Durations in nanoseconds for which the calling thread lost its CPU, found by polling the clock for `span`.
pub fn gaps(span: Duration) -> Vec<f64> {
    /// Anything shorter is the polling itself.
    const GAP_NS: u64 = 1_000;
    let mut all = Vec::new();
    let start_ns = monotonic_ns();
    let mut last_ns = start_ns;
    while last_ns - start_ns < span.as_nanos() as u64 {
        let now_ns = monotonic_ns();
        if now_ns - last_ns > GAP_NS {
            all.push((now_ns - last_ns) as f64);
        }
        last_ns = now_ns;
    }
    all
}

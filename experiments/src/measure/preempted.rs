//! Preemptions of one host core's threads, by an agent on another CPU.
//!
//! The core runs a user-level thread that passes safe points in a loop, or a kernel-level one that passes none. Now and then
//! the agent asks for the end of its run. Measured is the time from just before the agent's step that writes the word until the
//! core has the thread back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use wave_agent::{Seat, attach, run};
use wave_core::clock::{Clock, Nanos};
use wave_core::message::{Decision, Message};
use wave_core::outcome::{Code, Outcome};
use wave_core::policy::{Desk, Policy, Preemption, Progress};
use wave_core::snapshot::Snapshot;
use wave_process::places;
use wave_sched::policies::fifo::Fifo;
use wave_user::{Attributes, Enclave, Mode, MonotonicClock, Options, ThreadKind, preempt_point};

use super::pin;

/// Rest between two preemptions, and between two of the signals that they are compared with.
pub const REST: Nanos = Nanos::from_micros(20);

/// Shared state of the policy and the measured thread.
#[derive(Default)]
struct Exchange {
    /// Whether the policy ends runs.
    preempts: AtomicBool,
    /// Length of a run until it is ended. 0: each preemption waits until the thread has noted the one before.
    slice_ns: AtomicU64,
    /// When the last preemption was requested; 0 while none is, or once the thread has noted it.
    asked_ns: AtomicU64,
}

/// FIFO that also ends every run.
struct Ender {
    fifo: Fifo,
    exchange: Arc<Exchange>,
    /// When the current run, known to have started, is to be ended; None if no run is known.
    end: Option<Nanos>,
}

impl Ender {
    fn slice(&self) -> Option<Nanos> {
        let slice = self.exchange.slice_ns.load(Ordering::Relaxed);
        (slice != 0).then_some(Nanos(slice))
    }
}

impl Policy for Ender {
    fn name(&self) -> &'static str {
        "ender"
    }

    fn on_message(&mut self, now: Nanos, message: &Message) {
        self.end = None;
        self.fifo.on_message(now, message);
    }

    fn on_outcome(&mut self, now: Nanos, core: u16, of: &Decision, outcome: Outcome) {
        self.fifo.on_outcome(now, core, of, outcome);
        self.end = (outcome.code == Code::Complete).then(|| now + self.slice().unwrap_or(REST));
    }

    fn decide(&mut self, now: Nanos, desk: &mut Desk<'_>) -> Progress {
        let progress = self.fifo.decide(now, desk);
        let Exchange { preempts, asked_ns, .. } = &*self.exchange;
        if preempts.load(Ordering::Acquire)
            && self.end.is_some_and(|end| end <= now)
            && (self.slice().is_some() || asked_ns.load(Ordering::Acquire) == 0)
        {
            self.end = None;
            asked_ns.store(MonotonicClock.now().0, Ordering::Release);
            desk.preempt(Preemption { core: 0, run: desk.run(0) });
        }
        progress
    }

    fn next_deadline(&self) -> Option<Nanos> {
        self.end.filter(|_| self.exchange.preempts.load(Ordering::Acquire))
    }

    fn resync(&mut self, now: Nanos, snapshot: &Snapshot) {
        self.fifo.resync(now, snapshot);
    }
}

/// One host core, and an agent on another CPU that ends its runs.
pub struct Preempted {
    enclave: Arc<Enclave>,
    exchange: Arc<Exchange>,
    agent: JoinHandle<Result<(), String>>,
}

impl Preempted {
    /// Starts both: the host core on CPU `host`, the agent on CPU `agents`.
    pub fn start(host: usize, agents: usize) -> Result<Preempted, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let socket = places::socket("preempt").map_err(|error| text(&error))?;
        let mut options = Options::new(socket);
        options.cpus = vec![host];
        options.config.subjects = 16;
        options.config.spin = Nanos::from_micros(50);
        options.kernel_threads = 2;
        // While signals occupy the host core's CPU, no decision is made; neither host nor agent is at fault.
        options.config.patience = Nanos::from_millis(60_000);
        let enclave = Arc::new(Enclave::start(options).map_err(|error| text(&error))?);
        let attached = attach(enclave.socket()).map_err(|error| text(&error))?;
        let exchange = Arc::new(Exchange::default());
        let policy = Ender {
            fifo: Fifo::new(&attached.layout.config),
            exchange: Arc::clone(&exchange),
            end: None,
        };
        let agent = std::thread::spawn(move || {
            let _ = pin(agents);
            run(attached, policy, (), Seat::Own).map(drop).map_err(|error| error.to_string())
        });
        while enclave.stats().mode != Mode::Agent {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(Preempted { enclave, exchange, agent })
    }

    /// Durations in nanoseconds of `rounds` preemptions of a thread that only passes safe points; these have no effect on a
    /// kernel-level thread.
    pub fn preemptions(&self, kind: ThreadKind, rounds: usize) -> Result<Vec<f64>, String> {
        let (host, told) = (Arc::clone(&self.enclave), Arc::clone(&self.exchange));
        let body = move || {
            let mut took = Vec::with_capacity(rounds);
            told.preempts.store(true, Ordering::Release);
            while took.len() < rounds {
                let is_asked = told.asked_ns.load(Ordering::Acquire) != 0;
                // A kernel-level thread is preempted anywhere, and must find out by itself.
                if preempt_point() || (kind == ThreadKind::Kernel && is_asked) {
                    let asked_ns = told.asked_ns.load(Ordering::Acquire);
                    let back = host.stats().cores[0].preempted_at;
                    if back > Nanos(asked_ns) {
                        took.push(back.since(Nanos(asked_ns)).0 as f64);
                        told.asked_ns.store(0, Ordering::Release);
                    }
                }
            }
            told.preempts.store(false, Ordering::Release);
            took
        };
        let attributes = Attributes { class: 0, kind };
        let thread = self.enclave.spawn(attributes, body).map_err(|error| error.to_string())?;
        let took = thread.join().map_err(|error| error.to_string())?;
        self.exchange.asked_ns.store(0, Ordering::Release);
        Ok(took)
    }

    /// The enclave of the host core.
    pub fn enclave(&self) -> &Arc<Enclave> {
        &self.enclave
    }

    /// Ends runs after each `slice`, or stops ending them.
    pub fn slices(&self, slice: Option<Nanos>) {
        self.exchange.preempts.store(false, Ordering::Release);
        self.exchange.slice_ns.store(slice.map_or(0, |slice| slice.0), Ordering::Release);
        self.exchange.preempts.store(slice.is_some(), Ordering::Release);
    }

    /// Ends both. An error if the fallback made any decision.
    pub fn end(self) -> Result<(), String> {
        let stats = self.enclave.stats();
        let by_fallback: u64 = stats.cores.iter().map(|core| core.fallback_switches).sum();
        if stats.lost_agents != 0 || by_fallback != 0 {
            return Err(format!(
                "the agent was lost, or the fallback decided: {by_fallback} switches"
            ));
        }
        drop(self.enclave);
        self.agent.join().map_err(|_| "the agent panicked".to_owned())?
    }
}

//! `wave bench agent`: one agent for fifteen emulated host cores, against a slot loop.
//!
//! The host's cores run no application: a core that commits a decision yields at once. One thread
//! emulates all fifteen, each with its own queues and protocol; the agent, with the FIFO policy, has
//! the other CPU. A decision counts when the host has checked it against its table and the agent has
//! read its outcome.
//!
//! The peer is a dispatcher like Shinjuku's, written for this bench: a request line and a response
//! line per worker, each with a flag that its reader clears. The dispatcher visits the workers in
//! turn, puts the returned thread into a FIFO and hands out the next. It has no sequences, no
//! outcomes other than "returned", and nothing that could be stale.
//!
//! *Event to next decision* is measured on one emulated core that works for a microsecond between
//! events: from the event to the commit, with four decisions prestaged and with none.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use wave_compare::{PerRound, in_turns};
use wave_core::agent::Agent;
use wave_core::clock::Nanos;
use wave_core::control::HostControl;
use wave_core::host::{HostCore, Mechanism, Next};
use wave_core::layout::{Config, Layout, write_header};
use wave_core::link::{Doorbell, Home, Port};
use wave_core::message::{Decision, Message, Sequence, Subject};
use wave_core::outcome::{Code, Outcome};
use wave_core::policy::{Desk, Policy, Progress};
use wave_core::snapshot::{CoreRecord, Record, Snapshot, State};
use wave_links::Memory;
use wave_links::shm::ShmPort;
use wave_process::cpus;
use wave_sched::policies::fifo::Fifo;
use wave_sched::wire::{Event, Kind};

use wave_experiments::measure::{ns_per, pin};

use crate::SEED;
use crate::bench::Better::{Higher, Lower};
use crate::bench::{Bench, Figure, without_arguments};

pub static BENCH: Bench = Bench {
    name: "agent",
    about: "Decisions of an agent for 15 cores, against a dispatcher's loop over slots, as in Shinjuku",
    help: "",
    figures: &[
        Figure::of("decisions_ratio_vs_slot_loop")
            .measured("decisions per second for 15 emulated cores / a slot loop's"),
        Figure::of("decisions_per_second.p50").compared(Higher).measured("decisions per second"),
        Figure::of("prestage_latency_ratio")
            .measured("event to next decision, without / with prestaging"),
        Figure::of("event_to_decision_prestaged_ns.p50").compared(Lower),
        Figure::of("event_to_decision_unstaged_ns.p50").compared(Lower),
        Figure::peer("slot_loop_per_second.p50").compared(Higher),
    ],
    short: &[],
    has_two_cpus: true,
    arguments: without_arguments,
    run: |_, _| agent(),
};

const CORES: u16 = 15;
const THREADS: u32 = 256;
const DECISIONS: u64 = 150_000;
const EVENTS: usize = 5_000;
const WORK_NS: u128 = 1_000;
const CHUNKS: usize = 25;
const WARM_UP: usize = 3;
const PRESTAGE: u16 = 4;

/// A doorbell for sides that never sleep.
pub struct Mute;

impl Doorbell for Mute {
    fn ring(&self) {}
}

/// The FIFO policy, with a count of the outcomes that it has read.
struct Counting {
    policy: Fifo,
    read: Arc<AtomicU64>,
}

impl Policy for Counting {
    fn name(&self) -> &'static str {
        "fifo"
    }
    fn on_message(&mut self, now: Nanos, message: &Message) {
        self.policy.on_message(now, message);
    }
    fn on_outcome(&mut self, now: Nanos, core: u16, decision: &Decision, outcome: Outcome) {
        if outcome.code == Code::Complete {
            self.read.store(self.read.load(Ordering::Relaxed) + 1, Ordering::Release);
        }
        self.policy.on_outcome(now, core, decision, outcome);
    }
    fn decide(&mut self, now: Nanos, desk: &mut Desk<'_>) -> Progress {
        self.policy.decide(now, desk)
    }
    fn resync(&mut self, now: Nanos, snapshot: &Snapshot) {
        self.policy.resync(now, snapshot);
    }
}

/// The host's thread table: a sequence and a state per thread.
struct Threads(Vec<(Sequence, State)>);

impl Mechanism for Threads {
    type Work = u32;

    fn apply(&mut self, decision: &Decision) -> Result<u32, Code> {
        let id = decision.subject.id;
        let thread = self.0.get_mut(id as usize).ok_or(Code::TargetNotFound)?;
        match thread {
            (sequence, _) if *sequence != decision.sequence => Err(Code::TargetStale),
            (_, State::Runnable) => {
                thread.1 = State::Running;
                Ok(id)
            }
            _ => Err(Code::TargetOnCpu),
        }
    }
}

impl Threads {
    fn records(&self) -> impl Iterator<Item = Record> + '_ {
        self.0.iter().enumerate().map(|(id, &(sequence, state))| {
            let subject = Subject { id: id as u32, generation: 1 };
            Record { subject, sequence, state, core: 0, class: 0 }
        })
    }

    fn yields(&mut self, core: u16, id: u32) -> Message {
        let (sequence, state) = &mut self.0[id as usize];
        (*sequence, *state) = (sequence.next(), State::Runnable);
        let thread = Subject { id, generation: 1 };
        let kind = Kind::Yield;
        Event { kind, thread, sequence: *sequence, core, class: 0, ran: Nanos(0) }.to_message()
    }
}

/// A thread on the agent's CPU that serves on command.
struct Served {
    told: mpsc::Sender<bool>,
    ready: mpsc::Receiver<()>,
    stop: Arc<AtomicBool>,
}

impl Served {
    /// Starts the thread. `make` runs on the thread itself; its result is called repeatedly to serve.
    fn start<F: FnMut()>(
        cpu: usize,
        make: impl FnOnce() -> F + Send + 'static,
    ) -> Result<Served, String> {
        let (told, hears) = mpsc::channel();
        let (says, ready) = mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stops = Arc::clone(&stop);
        std::thread::spawn(move || {
            let _ = pin(cpu);
            let mut serve = make();
            for go in hears {
                let _ = says.send(());
                while go && !stops.load(Ordering::Relaxed) {
                    serve();
                }
                let _ = says.send(());
            }
        });
        Ok(Served { told, ready, stop })
    }

    fn during<R>(&self, body: impl FnOnce() -> R) -> Result<R, String> {
        let gone = |_| "the bench's agent thread has ended".to_owned();
        self.stop.store(false, Ordering::Relaxed);
        self.told.send(true).map_err(|_| gone(mpsc::RecvError))?;
        self.ready.recv().map_err(gone)?;
        let result = body();
        self.stop.store(true, Ordering::Relaxed);
        self.ready.recv().map_err(gone)?;
        Ok(result)
    }
}

struct EmulatedCores {
    port: ShmPort,
    cores: Vec<HostCore>,
    running: Vec<Option<u32>>,
    threads: Threads,
}

/// Emulated cores, and their agent on its own CPU.
struct Emulated {
    host: EmulatedCores,
    agent: Served,
    read: Arc<AtomicU64>,
}

impl Emulated {
    fn new(cores: u16, prestage: u16, cpu: usize) -> Result<Emulated, String> {
        let mut config = Config::coherent(cores);
        (config.contexts, config.subjects, config.prestage) = (1, THREADS, prestage);
        let layout = Layout::new(config).map_err(|error| error.to_string())?;
        let memory = Memory::create("wave-bench", layout.nic_lines, layout.host_lines, 0);
        let (memory, _fd) = memory.map_err(|error| error.to_string())?;
        let memory = Arc::new(memory);
        let port = ShmPort::new(&memory);
        write_header(&layout, port.window(Home::Nic));
        let read = Arc::new(AtomicU64::new(0));
        let policy = Counting { policy: Fifo::new(&config), read: Arc::clone(&read) };
        let agents_layout = layout.clone();
        let agent = Served::start(cpu, move || {
            let bells = agents_layout.doorbells();
            let bells = (0..bells).map(|_| Mute).collect();
            let mut agent = Agent::new(agents_layout, ShmPort::new(&memory), bells, policy, ());
            agent.announce();
            let start = Instant::now();
            move || {
                let now = Nanos(start.elapsed().as_nanos() as u64);
                let _ = agent.step(now);
            }
        })?;
        let threads = Threads(vec![(Sequence(1), State::Runnable); THREADS as usize]);
        let records = vec![CoreRecord { asks: true, ..CoreRecord::default() }; cores.into()];
        HostControl::new(&layout).send_snapshot(&port, &records, threads.records());
        let running = vec![None; cores.into()];
        let cores = (0..cores).map(|core| HostCore::new(&layout, core, 0, true)).collect();
        Ok(Emulated { host: EmulatedCores { port, cores, running, threads }, agent, read })
    }

    /// Nanoseconds per decision.
    fn decisions(&mut self) -> Result<f64, String> {
        let Emulated { host, agent, read } = self;
        agent.during(|| {
            let goal = read.load(Ordering::Acquire) + DECISIONS;
            ns_per(DECISIONS as usize, || {
                while read.load(Ordering::Acquire) < goal {
                    for at in 0..host.cores.len() {
                        host.turn(at);
                    }
                }
            })
        })
    }

    /// Nanoseconds from an event of core 0 to its next commit.
    fn event_to_decision(&mut self) -> Result<f64, String> {
        let Emulated { host, agent, .. } = self;
        agent.during(|| {
            let mut waited = 0;
            for _ in 0..EVENTS {
                let work = Instant::now();
                while work.elapsed().as_nanos() < WORK_NS {}
                let event = Instant::now();
                while !host.turn(0) {}
                waited += event.elapsed().as_nanos();
            }
            waited as f64 / EVENTS as f64
        })
    }
}

impl EmulatedCores {
    /// Polls one core once. Returns whether the core committed a decision.
    #[inline]
    fn turn(&mut self, at: usize) -> bool {
        let core = &mut self.cores[at];
        if let Some(id) = self.running[at].take() {
            core.prefetch(&self.port);
            core.hold(self.threads.yields(at as u16, id));
        }
        // Time stands still for the core, so that it never parks.
        match core.poll(&self.port, Nanos(0), &mut self.threads) {
            Next::Run(id) => {
                self.running[at] = Some(id);
                true
            }
            Next::Spin | Next::Park => false,
        }
    }
}

/// A line of the slot loop: payload words, and a flag that the reader clears.
#[repr(align(64))]
#[derive(Default)]
struct Slot {
    words: [AtomicU64; 3],
    flag: AtomicU64,
}

impl Slot {
    fn put(&self, thread: u64) {
        for word in &self.words {
            word.store(thread, Ordering::Relaxed);
        }
        self.flag.store(1, Ordering::Release);
    }

    fn take(&self) -> Option<u64> {
        if self.flag.load(Ordering::Acquire) == 0 {
            return None;
        }
        let words = self.words.each_ref().map(|word| word.load(Ordering::Relaxed));
        std::hint::black_box(words);
        self.flag.store(0, Ordering::Release);
        Some(words[0])
    }
}

#[derive(Default)]
struct Worker {
    request: Slot,
    response: Slot,
}

/// The peer: a dispatcher's loop over slots, as in Shinjuku.
struct SlotLoop {
    workers: Arc<Vec<Worker>>,
    dispatcher: Served,
    read: Arc<AtomicU64>,
    states: Vec<State>,
}

impl SlotLoop {
    fn new(cpu: usize) -> Result<SlotLoop, String> {
        let workers: Arc<Vec<Worker>> = Arc::new((0..CORES).map(|_| Worker::default()).collect());
        let read = Arc::new(AtomicU64::new(0));
        let (theirs, counts) = (Arc::clone(&workers), Arc::clone(&read));
        let dispatcher = Served::start(cpu, move || {
            let mut queue: VecDeque<u64> = (0..THREADS.into()).collect();
            for worker in theirs.iter() {
                if let Some(thread) = queue.pop_front() {
                    worker.request.put(thread);
                }
            }
            move || {
                for worker in theirs.iter() {
                    if let Some(thread) = worker.response.take() {
                        counts.store(counts.load(Ordering::Relaxed) + 1, Ordering::Release);
                        queue.push_back(thread);
                        if let Some(next) = queue.pop_front() {
                            worker.request.put(next);
                        }
                    }
                }
            }
        })?;
        let states = vec![State::Runnable; THREADS as usize];
        Ok(SlotLoop { workers, dispatcher, read, states })
    }

    fn decisions(&mut self) -> Result<f64, String> {
        let (workers, states, read) = (&self.workers, &mut self.states, &self.read);
        self.dispatcher.during(|| {
            let goal = read.load(Ordering::Acquire) + DECISIONS;
            ns_per(DECISIONS as usize, || {
                while read.load(Ordering::Acquire) < goal {
                    for worker in workers.iter() {
                        let Some(thread) = worker.request.take() else { continue };
                        let state = &mut states[thread as usize];
                        if *state == State::Runnable {
                            *state = State::Running;
                        }
                        std::hint::black_box(&mut *state);
                        *state = State::Runnable;
                        worker.response.put(thread);
                    }
                }
            })
        })
    }
}

pub fn agent() -> Result<serde_json::Value, String> {
    let [host, other] = cpus::two()?;
    pin(host)?;
    let mut ours = Emulated::new(CORES, PRESTAGE, other)?;
    let mut peer = SlotLoop::new(other)?;
    let mut staged = Emulated::new(1, PRESTAGE, other)?;
    let mut unstaged = Emulated::new(1, 0, other)?;
    let measured: [Vec<f64>; 4] = in_turns(SEED, WARM_UP, CHUNKS, |row| match row {
        0 => ours.decisions(),
        1 => peer.decisions(),
        2 => staged.event_to_decision(),
        _ => unstaged.event_to_decision(),
    })?;
    let [ours, peer, staged, unstaged] = measured.map(PerRound::from_iter);
    let [ours, peer] = [ours, peer].map(|ns| ns.map(|ns| 1e9 / ns));
    Ok(serde_json::json!({
        "bench": "agent",
        "peer": "a slot loop in the manner of Shinjuku's dispatcher",
        "cores": CORES,
        "prestage": PRESTAGE,
        "chunks": CHUNKS,
        "decisions_ratio_vs_slot_loop": ours.over(&peer).estimate(),
        "decisions_per_second_15_cores": ours.median(),
        "decisions_per_second": ours.spread(),
        "slot_loop_per_second": peer.spread(),
        "prestage_latency_ratio": unstaged.over(&staged).estimate(),
        "event_to_decision_prestaged_ns": staged.spread(),
        "event_to_decision_unstaged_ns": unstaged.spread(),
    }))
}

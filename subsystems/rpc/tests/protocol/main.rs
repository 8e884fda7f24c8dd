//! The whole protocol in one thread: the real dispatcher, stubs and steering policies over an adversarial modelled link, with
//! modelled clients and handlers, stepped in seeded random order while agents come and go.
//!
//! `WAVE_SEED=n` replays one seed, `WAVE_SEEDS=n` runs the first n.

mod book;
mod front;
mod host;

use std::collections::BTreeMap;
use std::rc::Rc;

use book::{Book, Over, Shared};
use front::{Clients, Life, Loop};
use host::{Host, Incarnation};
use rand::Rng;
use rand_pcg::Pcg32;
use wave_core::clock::Nanos;
use wave_core::layout::{Config, Layout};
use wave_core::link::{Home, Mapping, Transport};
use wave_core_testing::{Replay, SHAPES, seeds, shape};
use wave_rpc::extents::PayloadConfig;

struct World {
    rng: Pcg32,
    now: Nanos,
    shape: &'static str,
    steering: &'static str,
    layout: Layout,
    host: Host,
    lives: Vec<Life>,
    book: Shared,
    clients: Clients,
}

/// Every policy, with few and with many calls per worker.
const STEERINGS: [&str; 8] = [
    "rss:ahead=1",
    "rss",
    "round-robin:ahead=2",
    "jbsq",
    "jbsq:k=8",
    "multi-queue:k=3,slo_us=20/2000",
    "darc",
    "darc:reserve=0",
];
/// Shape with the queues of replies in host memory, which the agent reads across the link.
const READ_ACROSS: &str = "read-across";
/// Steps of a run's busy part. A change gives every seed another history.
const STEPS: u32 = 2000;

impl World {
    fn new(seed: u64, payloads: PayloadConfig) -> World {
        let mut rng = wave_core_testing::rng(seed);
        let at = rng.random_range(0..=SHAPES.len());
        let shape_name = SHAPES.get(at).copied().unwrap_or(READ_ACROSS);
        // In some runs, large messages fit into the queues as a whole.
        let bulky = rng.random_range(0..4) == 0;
        let most = if bulky || rng.random_range(0..12) == 0 { 13 } else { 6 };
        let (up, down) = (2 << rng.random_range(0..most), 2 << rng.random_range(0..most));
        let (mut messages, decisions) =
            shape(if shape_name == READ_ACROSS { "pcie" } else { shape_name }, up, down);
        if shape_name == READ_ACROSS {
            (messages.home, messages.host) = (Home::Host, Mapping::WriteBack);
        }
        let clients = Clients {
            appetite: [1, 3, 10, 50][rng.random_range(0..4)],
            large: match rng.random_range(0..8) {
                0 if most == 13 => 500_000,
                0..=2 => 100_000,
                3..=5 => 6_000,
                _ => 400,
            },
            bulky,
            hasty: rng.random_range(0..3) == 0,
            restless: rng.random_range(0..6) == 0,
        };
        let workers = rng.random_range(1..=3);
        let config = Config {
            contexts: 1,
            subjects: if rng.random() { rng.random_range(1..=4) } else { 40 },
            prestage: 0,
            spin: Nanos(if rng.random() { 0 } else { 5_000 }),
            messages,
            decisions,
            pools: payloads.pools(),
            ..Config::coherent(workers)
        };
        let layout = Layout::new(config).unwrap();
        let steering = STEERINGS[rng.random_range(0..STEERINGS.len())];
        let host = Host::new(workers, seed, &mut rng);
        World {
            rng,
            now: Nanos(1_000_000),
            shape: shape_name,
            steering,
            layout,
            host,
            lives: Vec::new(),
            book: Shared::default(),
            clients,
        }
    }

    fn new_agent(&mut self) {
        let coherent = self.shape == "coherent";
        let (seed, number) = (self.rng.random(), self.lives.len());
        let incarnation = Rc::new(Incarnation::new(number, self.layout.clone(), coherent, seed));
        self.host.offer(&incarnation);
        self.lives.push(Life::new(&incarnation, self.steering, &self.book, self.clients));
    }

    /// Number of actors: workers, the control context, and two per life: its agent and its clients.
    fn actors(&self) -> usize {
        self.host.workers.len() + 1 + 2 * self.lives.len()
    }

    /// One step of one actor. `busy` is `None` while clients only finish; else it says whether the times are calm, without new
    /// calls.
    fn step(&mut self, actor: usize, busy: Option<bool>) -> bool {
        let workers = self.host.workers.len();
        let (now, rng) = (self.now, &mut self.rng);
        if let Some(worker) = self.host.workers.get_mut(actor) {
            return worker.step(now, &self.host.side, rng, &self.book);
        }
        let Some(of_life) = actor.checked_sub(workers + 1) else { return self.host.step_control() };
        let life = &mut self.lives[of_life / 2];
        match (of_life % 2, busy) {
            (0, _) => life.step(now),
            (_, Some(calm)) => life.client_acts(now, rng, !calm),
            (_, None) => life.clients_finish(rng),
        }
    }

    fn let_time_pass(&mut self, at_most: u64, ticks: u32) {
        self.now = self.now + Nanos(self.rng.random_range(0..=at_most));
        for life in self.lives.iter().filter(|life| life.at != Loop::Left) {
            for _ in 0..ticks {
                life.incarnation.link.tick();
            }
        }
    }

    fn busy_part(&mut self, steps: u32) {
        let churn = [0, 1, 4][self.rng.random_range(0..3)];
        // Actors and links have different, changing speeds: some stand still for long. In calm
        // times no call begins, so that all actors go to sleep.
        let (mut weights, mut ticks, mut calm) = (vec![], 1, false);
        for step in 0..steps {
            if step % 64 == 0 {
                weights = (0..16).map(|_| 1 << self.rng.random_range(0..9)).collect::<Vec<u32>>();
                ticks = self.rng.random_range(0..6);
                calm = self.rng.random_range(0..3) == 0;
            }
            match self.rng.random_range(0..2000) {
                more if more < churn => self.new_agent(),
                1999 if churn > 0 => self.host.kill_agent(),
                _ => {}
            }
            let actors = self.actors();
            let total: u32 = (0..actors).map(|actor| weights[actor % 16]).sum();
            let mut ticket = self.rng.random_range(0..total);
            let chosen = (0..actors).find(|actor| {
                let weight = weights[actor % 16];
                let here = ticket < weight;
                ticket = ticket.saturating_sub(weight);
                here
            });
            self.step(chosen.unwrap_or(0), Some(calm));
            self.let_time_pass(400, ticks);
        }
    }

    /// Steps all actors, without new calls, until all calls have ended and all actors sleep.
    fn finish(&mut self) {
        if !self.host.has_agent() {
            self.new_agent();
        }
        let mut idle_rounds = 0;
        for _ in 0..1_000_000 {
            let mut happened = false;
            for actor in 0..self.actors() {
                happened |= self.step(actor, None);
                self.let_time_pass(2_000, 2);
            }
            idle_rounds = if happened { 0 } else { idle_rounds + 1 };
            // Long enough for every copy and posted store.
            if idle_rounds > 1000 {
                return self.check();
            }
        }
        self.lost("livelock: the actors stay busy and calls do not end");
    }

    /// Checks that no work is left once no side has anything to do.
    fn check(&self) {
        let book = book::open(&self.book);
        if book.calls.iter().any(|call| call.over.is_none()) {
            drop(book);
            self.lost("lost wake-up: all actors sleep, and calls have not ended");
        }
        for life in &self.lives {
            let counts = life.dispatch.counts();
            let over = counts.answered + counts.cancelled + counts.expired + counts.stopped;
            assert_eq!(counts.begun, over + life.died, "{counts:?}");
            let window = life.incarnation.number;
            let own = |over: Over| {
                let is_so = |call: &&book::Entry| call.window == window && call.over == Some(over);
                book.calls.iter().filter(is_so).count() as u64
            };
            assert_eq!(counts.answered, own(Over::Answered));
            assert_eq!(counts.cancelled, own(Over::Cancelled));
            assert_eq!(counts.expired, own(Over::Expired));
            assert_eq!(counts.stopped, own(Over::Stopped));
            if life.at != Loop::Left {
                let awake = if self.clients.restless { Loop::Stepping } else { Loop::Asleep(None) };
                assert_eq!(life.at, awake);
                assert_eq!(life.dispatch.open(), 0, "ended calls keep their slots");
                assert_eq!(counts.handed, counts.answered + counts.wound_up, "{counts:?}");
            }
        }
        let current = self.lives.iter().find(|life| life.at != Loop::Left);
        for call in book.calls.iter() {
            let is_current = current.is_some_and(|life| life.incarnation.number == call.window);
            assert!(
                !is_current || call.place != book::Place::Waiting,
                "a call stayed in the policy's queue"
            );
        }
        for worker in &self.host.workers {
            assert!(worker.is_idle(), "a worker never goes to sleep");
            assert_eq!(worker.open(), 0);
        }
    }

    fn lost(&self, what: &str) -> ! {
        let book: &Book = &book::open(&self.book);
        let live = book.calls.iter().enumerate().filter(|(_, call)| call.over.is_none());
        let live: Vec<_> = live.map(|(serial, call)| (serial, call.place, call.begun)).collect();
        let agents: Vec<_> =
            self.lives.iter().map(|life| (life.at, life.dispatch.open())).collect();
        let workers = self.host.workers.iter();
        let workers: Vec<_> = workers.map(|worker| (worker.parked, worker.open())).collect();
        panic!(
            "{what} ({} {} {:?}): {live:?}\nagents {agents:?}, workers {workers:?}",
            self.shape, self.steering, self.layout.config
        );
    }
}

/// Pools for a seed. They are drawn from a random stream of their own, so a seed without pools has the same history.
fn payloads(seed: u64) -> PayloadConfig {
    let mut rng = wave_core_testing::rng(!seed);
    let extents = [0, 1, 2, 4, 16][rng.random_range(0..5)];
    let lines = [1, 2, 5, 64][rng.random_range(0..4)];
    let inline_max = [0, 40, 200, 2_000][rng.random_range(0..4)];
    PayloadConfig { extents, lines, inline_max }
}

fn run(seed: u64, payloads: PayloadConfig) -> BTreeMap<&'static str, u64> {
    let _replay = Replay(seed, "-p wave-rpc --test protocol");
    let mut world = World::new(seed, payloads);
    println!("{seed}: {} {} {:?}", world.shape, world.steering, world.layout.config);
    world.new_agent();
    world.busy_part(STEPS);
    world.finish();
    let mut counts = std::mem::take(&mut book::open(&world.book).counts);
    counts.insert("worker parks", world.host.workers.iter().map(|worker| worker.parks).sum());
    counts.insert("agent parks", world.lives.iter().map(|life| life.parks).sum());
    counts.insert("agents", world.lives.len() as u64);
    // If no queue needs copies, every copy is an extent.
    let config = &world.layout.config;
    if [config.messages.transport, config.decisions.transport] == [Transport::Mmio; 2] {
        let copies = world.lives.iter().map(|life| life.incarnation.link.copies());
        counts.insert("extents", copies.sum());
    }
    let wound_up = world.lives.iter().map(|life| life.dispatch.counts().wound_up);
    counts.insert("wound up", wound_up.sum());
    counts
}

/// Seeds that once found a defect, with the pools for it.
const REGRESSIONS: [(u64, PayloadConfig, &str); 3] = [
    (
        4,
        PayloadConfig::NONE,
        "an agent went to sleep while frames waited for room, for which no doorbell rings",
    ),
    (101, PayloadConfig::NONE, "an agent that never sleeps did not publish its credit to the host"),
    (
        250,
        PayloadConfig::NONE,
        "a worker took the grant that its handler waited for, and went to sleep",
    ),
];

#[test]
fn regressions_stay_fixed() {
    for (seed, payloads, what) in REGRESSIONS {
        println!("{what}");
        run(seed, payloads);
    }
}

#[test]
fn every_call_ends_exactly_once() {
    let mut total: BTreeMap<&str, u64> = BTreeMap::new();
    let seeds = seeds(1500);
    let many = seeds.end - seeds.start >= 1500;
    for seed in seeds {
        for (name, count) in run(seed, payloads(seed)) {
            *total.entry(name).or_default() += count;
        }
    }
    println!("{total:?}");
    // Each kind of event must occur, or the simulation would find nothing.
    assert!(!many || total.len() == 23 && total.values().all(|count| *count > 10), "{total:?}");
}

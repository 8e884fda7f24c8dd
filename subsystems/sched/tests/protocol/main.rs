//! The whole protocol in one thread: the real queues, host protocol, agent loop and policy over the worst link, with a modelled
//! host, stepped in seeded random order while agents come and go.
//!
//! `WAVE_SEED=n` replays one seed, `WAVE_SEEDS=n` runs the first n.

mod host;

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use host::{Doing, Host, Incarnation};
use rand::Rng;
use rand_pcg::Pcg32;
use wave_core::agent::{Agent, Front, Step};
use wave_core::brain::Input;
use wave_core::clock::Nanos;
use wave_core::layout::{Config, Layout, read_header};
use wave_core::link::{Doorbell, Home, Port, Side};
use wave_core::policy::{Note, Policy, Progress};
use wave_core::snapshot::State;
use wave_core_testing::nasty::{Bell, NastyPort};
use wave_core_testing::{Replay, SHAPES, seeds, shape};
use wave_sched::policies;

/// State of an agent's loop. It parks in three steps; anything may happen between two of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loop {
    Stepping,
    SaidItSleeps,
    Asleep,
    Left,
}

type Shipped = Box<dyn Policy + Send>;

/// A front whose requests come from the test.
struct Requests(Arc<Mutex<VecDeque<Note>>>);

impl Front for Requests {
    fn poll(&mut self, _now: Nanos, notes: &mut Vec<Note>) -> Progress {
        notes.extend(self.0.lock().unwrap().pop_front());
        Progress::Done
    }

    fn on_note(&mut self, _now: Nanos, note: &Note) {
        panic!("no policy of ours sends {note:?}");
    }
}

struct Life {
    agent: Agent<Shipped, Vec<(Nanos, Input)>, NastyPort, Bell, Requests>,
    incarnation: Rc<Incarnation>,
    at: Loop,
    announced: bool,
    parks: u64,
    notes: Arc<Mutex<VecDeque<Note>>>,
}

impl Life {
    fn new(incarnation: &Rc<Incarnation>, policy: &str) -> Life {
        let port = incarnation.link.port_with(Side::Agent, &[]);
        let (nic, host) = (incarnation.link.lines(Home::Nic), incarnation.link.lines(Home::Host));
        let layout = read_header(port.window(Home::Nic), nic, host).unwrap();
        assert_eq!(layout.config, incarnation.layout.config);
        let port = incarnation.link.port(Side::Agent, &layout);
        let policy = policies::by_name(policy, &layout.config).unwrap();
        let (bells, notes) = (incarnation.bells.clone(), Arc::default());
        let front = Requests(Arc::clone(&notes));
        let agent = Agent::with_front(layout, port, bells, policy, Vec::new(), front);
        Life {
            agent,
            incarnation: Rc::clone(incarnation),
            at: Loop::Stepping,
            announced: false,
            parks: 0,
            notes,
        }
    }

    /// Returns whether anything happened.
    fn step(&mut self, now: Nanos) -> bool {
        if !self.announced {
            self.announced = true;
            self.agent.announce();
            return true;
        }
        match self.at {
            Loop::Left => return false,
            Loop::Asleep => {
                if !self.incarnation.bells[self.incarnation.layout.agent_vector()].take() {
                    return false;
                }
                self.agent.unpark();
                self.at = Loop::Stepping;
            }
            Loop::Stepping => match self.agent.step(now).unwrap() {
                Step::Revoked => self.at = Loop::Left,
                Step::Progress => {}
                Step::Idle(_) => {
                    if !self.agent.prepare_park() {
                        return false;
                    }
                    self.at = Loop::SaidItSleeps;
                }
            },
            Loop::SaidItSleeps => match self.agent.step(now).unwrap() {
                Step::Revoked => self.at = Loop::Left,
                Step::Progress => {
                    self.agent.unpark();
                    self.at = Loop::Stepping;
                }
                Step::Idle(_) => {
                    self.parks += 1;
                    self.at = Loop::Asleep;
                }
            },
        }
        true
    }
}

struct World {
    rng: Pcg32,
    now: Nanos,
    shape: &'static str,
    policy: &'static str,
    layout: Layout,
    host: Host,
    requests: u64,
    lives: Vec<Life>,
}

/// Policies, and the slice that each gives a run.
const POLICIES: [(&str, Nanos); 2] =
    [("shinjuku:timer=core,slice_us=7", Nanos::from_micros(7)), ("fifo", Nanos(0))];
/// The policies of runs with requests.
const POLICIES_WITH_REQUESTS: [(&str, Nanos); 2] =
    [("multi-queue:timer=core,slice_us=7", Nanos::from_micros(7)), ("fifo", Nanos(0))];
const OUTSIDE: usize = 2;
/// Steps in the busy part of a run; a seed has a meaning only together with this number.
const STEPS: u32 = 2000;

impl World {
    fn new(seed: u64, with_requests: bool) -> World {
        let mut rng = wave_core_testing::rng(seed);
        let shape_name = SHAPES[rng.random_range(0..SHAPES.len())];
        let messages = 4 << rng.random_range(0..3);
        let decisions = 4 << rng.random_range(0..3);
        let (messages, decisions) = shape(shape_name, messages, decisions);
        let cores = rng.random_range(1..=3);
        let config = Config {
            contexts: OUTSIDE as u16 + 1,
            subjects: rng.random_range(1..=12),
            prestage: rng.random_range(0..=2),
            spin: Nanos(if rng.random() { 0 } else { 5_000 }),
            messages,
            decisions,
            ..Config::coherent(cores)
        };
        let layout = Layout::new(config).unwrap();
        // Policies whose runs end by themselves, or by the core's own timer.
        let policies = if with_requests { POLICIES_WITH_REQUESTS } else { POLICIES };
        let (policy, slice) = policies[(seed % 2) as usize];
        let host = Host::new(cores, config.subjects, OUTSIDE, slice);
        host.table.borrow_mut().with_requests = with_requests;
        let (now, lives) = (Nanos(0), Vec::new());
        World { rng, now, shape: shape_name, policy, layout, host, requests: 0, lives }
    }

    fn new_agent(&mut self) {
        let coherent = self.shape == "coherent";
        let seed = self.rng.random();
        let incarnation = Rc::new(Incarnation::new(self.layout.clone(), coherent, seed));
        self.host.offer(&incarnation);
        self.lives.push(Life::new(&incarnation, self.policy));
    }

    fn actors(&self) -> usize {
        self.host.cores.len() + OUTSIDE + 1 + self.lives.len()
    }

    /// One step of one actor. `busy`: new work may come.
    fn step(&mut self, actor: usize, busy: bool) -> bool {
        let cores = self.host.cores.len();
        let (now, rng) = (self.now, &mut self.rng);
        match actor {
            core if core < cores => self.host.step_core(core, now, rng, busy),
            outside if outside < cores + OUTSIDE => {
                self.host.step_outside(outside - cores, rng, busy, true)
            }
            control if control == cores + OUTSIDE => self.host.step_control(),
            agent => self.lives[agent - cores - OUTSIDE - 1].step(now),
        }
    }

    /// A request comes, one time in `seldom`, and wakes the agent if it sleeps. Returns whether one did.
    fn request(&mut self, seldom: u32) -> bool {
        let with_requests = self.host.table.borrow().with_requests;
        if !with_requests || self.rng.random_range(0..seldom) > 0 {
            return false;
        }
        let Some((to, request)) = self.host.step_front(&mut self.rng) else { return false };
        self.requests += 1;
        let life = self.lives.iter().find(|life| Rc::ptr_eq(&life.incarnation, &to));
        life.expect("it lives").notes.lock().unwrap().push_back(request.to_note());
        to.bells[to.layout.agent_vector()].ring();
        true
    }

    fn let_time_pass(&mut self, at_most: u64, ticks: u32) {
        self.now = self.now + Nanos(self.rng.random_range(0..=at_most));
        for life in &self.lives {
            for _ in 0..ticks {
                life.incarnation.link.tick();
            }
        }
    }

    fn busy_part(&mut self, steps: u32) {
        let churn = [0, 1, 4][self.rng.random_range(0..3)];
        // Actors and links differ in speed, and change it: some stand still for long. In calm periods no new work comes, so
        // that all sides go to sleep.
        let (mut weights, mut ticks, mut calm) = (vec![], 1, false);
        for step in 0..steps {
            if step % 64 == 0 {
                weights = (0..16).map(|_| 1 << self.rng.random_range(0..9)).collect::<Vec<u32>>();
                ticks = self.rng.random_range(0..4);
                calm = self.rng.random_range(0..3) == 0;
            }
            self.request(8);
            match self.rng.random_range(0..1000) {
                0 => self.new_agent(),
                more if more < churn => self.new_agent(),
                999 if churn > 0 => self.host.kill_agent(),
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
            self.step(chosen.unwrap_or(0), !calm);
            self.let_time_pass(400, ticks);
        }
    }

    /// All actors take turns until all threads have ended; no new work comes.
    fn finish(&mut self) {
        if !self.host.has_agent() {
            self.new_agent();
        }
        let mut idle_rounds = 0;
        for _ in 0..200_000 {
            let mut happened = self.request(1);
            for actor in 0..self.actors() {
                happened |= self.step(actor, false);
                self.let_time_pass(20_000, 1);
            }
            let table = self.host.table.borrow();
            let idle = |core: &host::Core| !matches!(core.doing, Doing::Running(_));
            if table.free.len() == table.slots.len() && self.host.cores.iter().all(idle) {
                return;
            }
            drop(table);
            idle_rounds = if happened { 0 } else { idle_rounds + 1 };
            // Long enough for every copy, posted store and timeout.
            if idle_rounds > 1000 {
                self.lost_wakeup("lost wake-up: threads are left, but no side does anything");
            }
        }
        self.lost_wakeup("livelock: all sides are busy without progress");
    }

    fn lost_wakeup(&self, what: &str) {
        let table = self.host.table.borrow();
        let live: Vec<_> = table.slots.iter().filter(|slot| slot.state != State::Free).collect();
        let doing: Vec<_> = self.host.cores.iter().map(|core| core.doing).collect();
        for life in self.lives.iter().filter(|life| life.at != Loop::Left) {
            let brain = life.agent.brain();
            let inputs = brain.recorder().iter();
            let inputs = inputs.filter(|(_, input)| !matches!(input, Input::Decide { .. }));
            let inputs: Vec<_> = inputs.collect();
            for (now, input) in &inputs[inputs.len().saturating_sub(25)..] {
                eprintln!("{now:?} {input:?}");
            }
            eprintln!("agent {:?} {:?} {:#?}", life.at, self.policy, brain.cores());
        }
        panic!(
            "{what} ({} {:?}): {live:?}\nhost's cores {doing:?}",
            self.shape, self.layout.config
        );
    }
}

fn run(seed: u64, with_requests: bool) -> BTreeMap<&'static str, u64> {
    let _replay = Replay(seed, "-p wave-sched --test protocol");
    let mut world = World::new(seed, with_requests);
    println!("{seed}: {} {:?}", world.shape, world.layout.config);
    world.new_agent();
    world.busy_part(STEPS);
    world.finish();
    let host = &world.host;
    let counts = [
        ("commits", host.table.borrow().commits),
        ("slices", host.table.borrow().slices),
        ("snapshots", host.snapshots),
        ("losses", host.losses),
        ("core parks", host.parks),
        ("agent parks", world.lives.iter().map(|life| life.parks).sum()),
        ("agents", world.lives.len() as u64),
        ("requests", world.requests),
        ("found", host.table.borrow().found),
    ];
    counts.into()
}

/// Seeds that once found a defect.
const REGRESSIONS: [(u64, &str); 2] = [
    (201, "a copy that arrived after the status was read left its core asleep"),
    (237, "an outcome that overtook the credit made the agent think the ring was full, and leave"),
];

#[test]
fn regressions_stay_fixed() {
    for (seed, what) in REGRESSIONS {
        println!("{what}");
        run(seed, false);
    }
}

fn run_all(seeds: std::ops::Range<u64>, with_requests: bool) {
    let mut total: BTreeMap<&str, u64> = BTreeMap::new();
    let many = seeds.end - seeds.start >= 2000;
    for seed in seeds {
        for (name, count) in run(seed, with_requests) {
            *total.entry(name).or_default() += count;
        }
    }
    println!("{total:?}");
    // A simulation without activity would find nothing.
    let enough = |(name, count): (&&str, &u64)| {
        *count > 200 || (!with_requests && ["requests", "found"].contains(name))
    };
    assert!(!many || total.iter().all(enough), "{total:?}");
}

#[test]
fn every_thread_runs_while_agents_come_and_go() {
    run_all(seeds(5000), false);
}

/// Threads that await requests run when a request has come; only a front's note announces it.
#[test]
fn every_request_is_found_while_agents_come_and_go() {
    run_all(seeds(2000), true);
}

//! The end of a slice: by the agent, with a word and a kick across the link, or by the core's own timer.

use std::cell::RefCell;
use std::rc::Rc;

use wave_core::clock::Nanos;
use wave_core::message::{Decision, Message};
use wave_core::outcome::{Code, Outcome as Answer};
use wave_core::policy::{Desk, Policy, Preemption, Progress};
use wave_core::snapshot::Snapshot;
use wave_sched::policies;
use wave_sched::wire::Kind;
use wave_sim::agent::Skew;
use wave_sim::app::Pace;
use wave_sim::enclave::{Enclave, HostEvent};
use wave_sim::experiment::{self, Outcome};
use wave_sim::paper::{self, Rung};
use wave_sim::vcpus::Vcpus;
use wave_sim::world::World;

/// Requests of 60 us on average to four cores: three quarters of their capacity.
const CORES: u16 = 4;
const PER_SECOND: f64 = 50_000.0;

fn serve(policy: &str) -> Outcome {
    let setup = paper::wave(CORES, Rung::Prestaged, policy);
    let load = paper::gets_and_ranges(PER_SECOND, paper::overhead(&setup));
    let outcome = experiment::serve(&setup, &load).unwrap();
    assert_eq!(outcome.counters.agent_errors, Vec::<String>::new());
    assert_eq!(outcome.counters.lost_agents, 0);
    outcome
}

fn get_p99_us(outcome: &Outcome) -> f64 {
    outcome.served.latencies[0].value_at_quantile(0.99) as f64 / 1e3
}

#[test]
fn the_cores_own_timer_bounds_the_tail_like_the_agent_with_fewer_kicks() {
    let fifo = get_p99_us(&serve("fifo"));
    for (agent, core) in [
        ("shinjuku", "shinjuku:timer=core"),
        ("multi-queue", "multi-queue:timer=core"),
        ("round-robin:quantum_us=50", "round-robin:quantum_us=50,timer=core"),
    ] {
        let (by_agent, by_core) = (serve(agent), serve(core));
        let [agent_us, core_us] = [&by_agent, &by_core].map(get_p99_us);
        println!("{agent}: GET p99 {agent_us} us, {core_us} us by the core; fifo {fifo} us");
        assert!((0.8..1.25).contains(&(core_us / agent_us)), "{agent}: {agent_us}, {core_us} us");
        assert!(fifo > 20.0 * core_us, "{core}: {core_us} us, fifo {fifo} us");
        let (agents, cores) = (&by_agent.counters, &by_core.counters);
        assert!(agents.preempted > 5_000 && agents.slices == 0, "{agent}: {}", agents.preempted);
        assert!(cores.slices > 5_000 && cores.preempted == 0, "{core}: {}", cores.slices);
        assert!(cores.kicked < agents.kicked, "{core}: {}, {}", cores.kicked, agents.kicked);
    }
}

const SLICE: Nanos = Nanos::from_micros(30);

/// A policy whose slices the core's own timer ends, while the agent also asks for the end of each run after `after`.
struct Both {
    policy: Box<dyn Policy + Send>,
    after: Nanos,
    end: Option<Nanos>,
}

impl Policy for Both {
    fn name(&self) -> &'static str {
        "both"
    }
    fn on_message(&mut self, now: Nanos, message: &Message) {
        self.policy.on_message(now, message);
    }
    fn on_outcome(&mut self, now: Nanos, core: u16, of: &Decision, outcome: Answer) {
        if outcome.code == Code::Complete {
            self.end = Some(now + self.after);
        }
        self.policy.on_outcome(now, core, of, outcome);
    }
    fn decide(&mut self, now: Nanos, desk: &mut Desk<'_>) -> Progress {
        if self.end.take_if(|end| *end <= now).is_some() {
            desk.preempt(Preemption { core: 0, run: desk.run(0) });
        }
        self.policy.decide(now, desk)
    }
    fn next_deadline(&self) -> Option<Nanos> {
        [self.end, self.policy.next_deadline()].into_iter().flatten().min()
    }
    fn resync(&mut self, now: Nanos, snapshot: &Snapshot) {
        self.policy.resync(now, snapshot);
    }
}

/// The lengths of the runs that ended by PREEMPT on one core whose threads never stop, and the number
/// of kicks.
fn runs(threads: u32, after: Nanos) -> (Vec<Nanos>, u64) {
    let setup = paper::wave(1, Rung::Prestaged, "shinjuku:slice_us=30,timer=core");
    let policy = policies::by_name(setup.agent.policy.text(), &setup.config).unwrap();
    let world = World::new();
    let app = Vcpus::new(threads, Pace::NOMINAL, Nanos(0));
    let enclave = Enclave::new(&world, setup, app).unwrap();
    let runs = Rc::new(RefCell::new(Vec::new()));
    let seen = Rc::clone(&runs);
    enclave.watch(Box::new(move |_, event| {
        if let HostEvent::Changed(event) = event
            && event.kind == Kind::Preempt
        {
            seen.borrow_mut().push(event.ran);
        }
    }));
    enclave.start_agent_with(Box::new(Both { policy, after, end: None }), Skew::default());
    world.run_until(Nanos::from_millis(5));
    world.end();
    (runs.take(), enclave.counters().kicks)
}

/// The machine's costs of a timer: never late, and an interrupt of this time.
const INTERRUPT: Nanos = Nanos(363);

#[test]
fn a_run_ends_with_its_slice_even_if_no_thread_waits() {
    for threads in [1, 3] {
        let (runs, _) = runs(threads, Nanos::MAX);
        assert!(runs.len() > 100, "{}", runs.len());
        assert!(runs.iter().all(|ran| *ran == SLICE + INTERRUPT), "{runs:?}");
    }
}

#[test]
fn agent_and_core_timer_end_a_run_once() {
    let runs_by = |after_us| runs(2, Nanos::from_micros(after_us));
    let (by_agent, _) = runs_by(10);
    assert!(by_agent.len() > 200, "{}", by_agent.len());
    assert!(by_agent.iter().all(|ran| *ran < SLICE), "{by_agent:?}");
    // A preemption word for a run whose slice is over finds the next run, which keeps its whole slice.
    let (by_core, kicks) = runs_by(30);
    assert!(by_core.len() > 100 && kicks > 100, "{}, {kicks}", by_core.len());
    assert!(by_core.iter().all(|ran| *ran >= SLICE), "{by_core:?}");
}

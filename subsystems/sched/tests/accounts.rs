//! The contract of `wave_sched::scheduler::Scheduler`: a scheduler that keeps accounts of its calls, under random events, around
//! the small host of `model/`. The oracle is the host: the threads that the accounts have as running are those that run there.
//!
//! `WAVE_SEED=n` replays one seed, `WAVE_SEEDS=n` runs the first n.

mod model;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};

use model::{Shape, World};
use rand::Rng;
use wave_core::clock::Nanos;
use wave_core_testing::{Replay, seeds};
use wave_sched::scheduler::{Reason, Run, Scheduled, Scheduler, Thread};

/// What a scheduler knows from its calls, and how often each was made.
#[derive(Debug, Default)]
struct Accounts {
    line: VecDeque<Thread>,
    /// Picks and `runs` that are not over, by thread.
    open: BTreeMap<u32, Vec<Thread>>,
    told: BTreeSet<u32>,
    calls: BTreeMap<&'static str, u64>,
}

impl Accounts {
    fn count(&mut self, call: &'static str) {
        *self.calls.entry(call).or_default() += 1;
    }

    /// Removes the pick or `runs` that is over.
    fn close(&mut self, call: &'static str, thread: Thread) -> Thread {
        self.count(call);
        let open = self.open.entry(thread.id()).or_default();
        // A pick that is skipped is over at once, so it is the last one.
        let at = open.iter().rposition(|other| other.class() == thread.class());
        let at = at.unwrap_or_else(|| panic!("{call} of {thread:?}, which was not picked"));
        open.remove(at)
    }

    fn running(&self) -> BTreeSet<u32> {
        let open = self.open.iter().filter(|(_, open)| !open.is_empty());
        open.map(|(id, _)| *id).collect()
    }
}

/// First in, first out, with accounts that the test can read.
struct Accountant {
    accounts: Arc<Mutex<Accounts>>,
    /// Removes threads that have ended from its line.
    removes: bool,
}

impl Scheduler for Accountant {
    fn ready(&mut self, thread: Thread) {
        let accounts = &mut *self.accounts.lock().unwrap();
        accounts.count(match thread.reason() {
            Reason::Found => "found",
            Reason::Created => "created",
            Reason::Woken => "woken",
            Reason::Preempted => "preempted",
            Reason::Yielded => "yielded",
            Reason::DidNotRun => "refused",
        });
        let entry = (thread.id(), thread.class());
        let is_held = accounts.line.iter().any(|other| (other.id(), other.class()) == entry);
        assert!(!is_held, "{thread:?} is handed over twice");
        assert!(!accounts.running().contains(&thread.id()), "{thread:?} was picked");
        accounts.told.insert(thread.id());
        accounts.line.push_back(thread);
    }

    fn pick(&mut self, _core: u16) -> Option<Run> {
        let accounts = &mut *self.accounts.lock().unwrap();
        let thread = accounts.line.pop_front()?;
        accounts.open.entry(thread.id()).or_default().push(thread);
        // Some have slices, so that some are preempted.
        let is_sliced = thread.id() % 2 == 0;
        Some(if is_sliced { Run::for_slice(thread, Nanos(9)) } else { Run::to_completion(thread) })
    }

    fn ran(&mut self, thread: Thread, _time: Nanos) {
        self.accounts.lock().unwrap().close("ran", thread);
    }

    fn did_not_run(&mut self, thread: Thread) {
        let picked = self.accounts.lock().unwrap().close("did_not_run", thread);
        assert_eq!(picked, thread, "the thread is as it was picked");
    }

    fn runs(&mut self, thread: Thread, core: u16) {
        let accounts = &mut *self.accounts.lock().unwrap();
        accounts.count("runs");
        assert_eq!(thread.last_core(), core);
        assert!(!accounts.running().contains(&thread.id()), "{thread:?} runs already");
        accounts.told.insert(thread.id());
        accounts.open.entry(thread.id()).or_default().push(thread);
    }

    fn ended(&mut self, thread: Thread) -> bool {
        let accounts = &mut *self.accounts.lock().unwrap();
        accounts.count("ended");
        assert!(!accounts.running().contains(&thread.id()), "{thread:?} still runs");
        // Without removal a thread may have had the place of an earlier one with its number, without a `ready`.
        let is_told = accounts.told.remove(&thread.id());
        assert!(is_told || !self.removes, "{thread:?} has ended twice");
        if self.removes {
            accounts.line.retain(|other| other.id() != thread.id());
        }
        self.removes
    }
}

/// A world whose agents keep accounts, those of the newest one, and a random shape with all that can go wrong.
fn world(seed: u64) -> (World, Arc<Mutex<Accounts>>) {
    let mut rng = wave_core_testing::rng(seed);
    let shape = Shape {
        requests: rng.random_range(0..4) == 0,
        takeovers: rng.random(),
        ends: true,
        ..Shape::random(&mut rng)
    };
    println!("{seed}: {shape:?}");
    let removes = rng.random();
    let accounts = Arc::new(Mutex::new(Accounts::default()));
    let own = Arc::clone(&accounts);
    let make =
        move |config: &wave_core::layout::Config| -> Box<dyn wave_core::policy::Policy + Send> {
            let calls = std::mem::take(&mut own.lock().unwrap().calls);
            *own.lock().unwrap() = Accounts { calls, ..Accounts::default() };
            let accounts = Arc::clone(&own);
            Box::new(Scheduled::of(config, Accountant { accounts, removes }))
        };
    (World::with(Box::new(make), seed, shape), accounts)
}

#[test]
fn a_policy_knows_what_runs() {
    let all = seeds(300);
    let many = all.end - all.start >= 300;
    let mut calls = BTreeMap::new();
    for seed in all {
        let _replay = Replay(seed, "-p wave-sched --test accounts");
        let (mut world, accounts) = world(seed);
        for _ in 0..600 {
            world.busy(1);
            let accounts = accounts.lock().unwrap();
            let most = accounts.open.values().map(Vec::len).max();
            assert!(most.is_none_or(|most| most <= 1), "two picks of a thread: {accounts:?}");
            // What runs was picked; until messages arrive, threads that have stopped are still among the running.
            let (running, known) = (world.running(), accounts.running());
            let is_known = running.is_subset(&known);
            assert!(is_known || !world.is_here(), "{running:?} run, known: {known:?}");
        }
        world.settle();
        let accounts = accounts.lock().unwrap();
        assert_eq!(accounts.running(), world.running(), "{accounts:?}");
        assert!(accounts.told.is_subset(&world.alive()), "{accounts:?}");
        let held: BTreeSet<u32> = accounts.line.iter().map(|thread| thread.id()).collect();
        let waiting: BTreeSet<u32> = &world.runnable() - &world.running();
        let unheld: BTreeSet<u32> = &(&waiting - &held) - &world.awaiting();
        assert!(unheld.is_empty(), "{unheld:?} wait, and the policy does not have them");
        for (call, count) in &accounts.calls {
            *calls.entry(*call).or_insert(0) += count;
        }
        drop(accounts);
        world.check_replay();
    }
    println!("{calls:?}");
    // A model in which a call is never made would find nothing.
    assert!(!many || calls.len() == 10 && calls.values().all(|count| *count > 100), "{calls:?}");
}

//! Races of the thread table and of the fallback, in every interleaving with a bounded number of preemptions. The files are
//! those that hosts run, compiled over loom's atomics. The simulator also runs them, but in one thread.
//!
//! # What these models find
//!
//! - A wrong order of steps.
//! - Each load, store and exchange that is weaker than it has to be. Loom treats `SeqCst` accesses as acquire and release, and
//!   orders only fences. So every model of the table runs twice: with a fence after each `SeqCst` store, then with one before
//!   each `SeqCst` load ([`Fences`]). A weakened access loses its fence in one of the two runs. If both sides had fences at
//!   once, the other side's fence could stand in for the lost one.
//! - A switch to the fallback that lacks its barrier, on either side. `compiler_fence` is a full fence here, because the host's
//!   barrier makes it one.
//!
//! # What they do not find
//!
//! - An order that the compiler or a processor breaks against the language's rules.
//! - Races that take more preemptions than a model's bound, or more threads.
//! - That the host's barrier reaches every thread: membarrier(2) is a fence here.

/// Loom's types, under the names of `src/mechanism/sync.rs`.
mod sync {
    use std::cell::Cell;

    pub(super) use loom::sync::atomic::{AtomicBool, Ordering, fence as compiler_fence};
    pub(super) use loom::sync::{Mutex, MutexGuard};

    /// The place of fences at sequentially consistent accesses. A read-modify-write is both a load and a store.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(super) enum Fences {
        AfterStores,
        BeforeLoads,
    }

    impl Fences {
        pub(super) const BOTH: [Fences; 2] = [Fences::AfterStores, Fences::BeforeLoads];

        /// Sets the place for the models that this test's thread runs from now on. Loom runs a model's threads on the same
        /// thread.
        pub(super) fn choose(self) {
            FENCES.set(self);
        }
    }

    thread_local! {
        static FENCES: Cell<Fences> = const { Cell::new(Fences::AfterStores) };
    }

    fn fence(order: Ordering, place: Fences) {
        if order == Ordering::SeqCst && FENCES.get() == place {
            loom::sync::atomic::fence(order);
        }
    }

    fn both<T>(order: Ordering, step: impl FnOnce() -> T) -> T {
        fence(order, Fences::BeforeLoads);
        let result = step();
        fence(order, Fences::AfterStores);
        result
    }

    macro_rules! fenced {
        ($name:ident, $number:ty, $store:ident) => {
            pub(super) struct $name {
                own: loom::sync::atomic::$name,
                turns: loom::sync::atomic::AtomicU8,
            }

            #[allow(dead_code, reason = "the table uses a part of it")]
            impl $name {
                pub(super) fn new(value: $number) -> $name {
                    let own = loom::sync::atomic::$name::new(value);
                    $name { own, turns: loom::sync::atomic::AtomicU8::new(0) }
                }

                /// Loom explores a load both before and after another thread's store only if the load was the last access
                /// before the store. It always explores two exchanges in both orders.
                fn turn(&self) {
                    self.turns.fetch_or(0, Ordering::Relaxed);
                }

                pub(super) fn load(&self, order: Ordering) -> $number {
                    fence(order, Fences::BeforeLoads);
                    self.turn();
                    self.own.load(order)
                }

                pub(super) fn store(&self, value: $number, order: Ordering) {
                    self.turn();
                    self.own.$store(value, order);
                    fence(order, Fences::AfterStores);
                }

                pub(super) fn fetch_or(&self, value: $number, order: Ordering) -> $number {
                    both(order, || self.own.fetch_or(value, order))
                }

                pub(super) fn fetch_and(&self, value: $number, order: Ordering) -> $number {
                    both(order, || self.own.fetch_and(value, order))
                }

                pub(super) fn compare_exchange(
                    &self,
                    old: $number,
                    new: $number,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$number, $number> {
                    both(success, || self.own.compare_exchange(old, new, success, failure))
                }

                /// Never fails spuriously: the caller's retry loop would make loom's search endless.
                pub(super) fn compare_exchange_weak(
                    &self,
                    old: $number,
                    new: $number,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$number, $number> {
                    self.compare_exchange(old, new, success, failure)
                }
            }
        };
    }
    // Here a plain store may come between the load and the store of another thread's exchange, which real hardware never
    // allows. The table's tokens are the only place where it could, so their store is a swap.
    fenced!(AtomicU8, u8, swap);
    fenced!(AtomicU16, u16, store);
    fenced!(AtomicU64, u64, store);
}
#[allow(dead_code, reason = "the models use a part of it")]
#[path = "../src/mechanism/fallback.rs"]
mod fallback;
#[allow(dead_code, reason = "the models use a part of it")]
#[path = "../src/mechanism/table.rs"]
mod table;
use wave_sched::wire;

use fallback::{Fallback, Mode};
use loom::cell::Cell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering, fence};
use loom::thread;
use sync::Fences;
use table::{Leave, Left, Table};
use wave_core::clock::Nanos;
use wave_core::message::{Sequence, Subject};
use wave_core::outcome::Code;
use wave_core::snapshot::State;
use wire::{Event, Kind, NO_CORE};

fn check(preemptions: usize, body: impl Fn() + Sync + Send + Copy + 'static) {
    for fences in Fences::BOTH {
        fences.choose();
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.check(body);
    }
}

/// Starts a runnable thread of class 3 with id 0.
fn create<T>(table: &Table<T>) -> Event {
    table.create(0, 3, NO_CORE, |_| ())
}

/// Starts a thread of class 3 with id 0, and has core 0 run it.
fn run<T>(table: &Table<T>) -> Subject {
    let new = create(table);
    assert_eq!(table.commit(0, new.thread, new.sequence), Ok(0));
    new.thread
}

/// A table with one thread, which runs on core 0.
fn running() -> (Arc<Table<()>>, Subject) {
    let table = Arc::new(Table::new(1, || ()));
    let subject = run(&table);
    (table, subject)
}

fn leave<T>(table: &Table<T>, why: Leave) -> Left {
    table.leave(0, why, 0, Nanos(0))
}

/// Blocks the thread while `wakers` other threads wake it. In every interleaving it becomes runnable exactly once, and never
/// stays blocked.
fn blocks_and_is_woken(why: Leave, wakers: usize, wake: fn(&Table<()>, Subject) -> Option<Event>) {
    let (table, subject) = running();
    let others: Vec<_> = (0..wakers)
        .map(|_| {
            let table = Arc::clone(&table);
            thread::spawn(move || wake(&table, subject))
        })
        .collect();
    let Left { event, woken } = table.leave(0, why, 0, Nanos(7));
    assert_eq!((event.thread, event.core, event.class, event.ran), (subject, 0, 3, Nanos(7)));
    let woken: Vec<_> =
        woken.into_iter().chain(others.into_iter().filter_map(|one| one.join().unwrap())).collect();
    assert_eq!(woken.len(), 1, "{woken:?}");
    assert_eq!((woken[0].kind, woken[0].sequence), (Kind::Wakeup, event.sequence.next()));
    assert_eq!(table.state(0), State::Runnable);
    assert!(table.waits(subject, woken[0].sequence));
}

#[test]
fn a_thread_that_parks_is_woken_by_a_racing_unpark() {
    check(3, || blocks_and_is_woken(Leave::Park, 1, Table::unpark));
}

#[test]
fn a_thread_that_parks_is_woken_once_by_two_racing_unparks() {
    check(3, || blocks_and_is_woken(Leave::Park, 2, Table::unpark));
}

#[test]
fn a_thread_that_awaits_is_woken_by_a_racing_unpark() {
    check(3, || blocks_and_is_woken(Leave::Await, 1, Table::unpark));
}

#[test]
fn a_thread_that_waits_is_woken_by_a_racing_wake() {
    check(3, || blocks_and_is_woken(Leave::Wait, 1, Table::wake));
}

/// A wake's token stays for the next wait.
#[test]
fn a_wake_ends_no_park() {
    check(3, || {
        let (table, subject) = running();
        let other = Arc::clone(&table);
        let waker = thread::spawn(move || other.wake(subject));
        let left = leave(&table, Leave::Park);
        assert_eq!((left.woken, waker.join().unwrap()), (None, None));
        assert_eq!(table.state(0), State::Blocked);
        let unparked = table.unpark(subject).expect("it is parked");
        assert_eq!(table.commit(0, subject, unparked.sequence), Ok(0));
        assert!(leave(&table, Leave::Wait).woken.is_some());
    });
}

/// The core that a thread has left may still look for a token when the thread runs elsewhere. An unpark during that run is kept
/// for the thread's next park.
fn an_unpark_of_the_next_run_is_kept(why: Leave) {
    let (table, subject) = running();
    let other = Arc::clone(&table);
    let second = thread::spawn(move || {
        let woken = other.unpark(subject)?;
        other.commit(1, subject, woken.sequence).expect("nobody else commits it");
        assert_eq!(other.unpark(subject), None, "it runs");
        other.leave(0, Leave::Park, 1, Nanos(0)).woken
    });
    leave(&table, why);
    second.join().unwrap();
    assert_eq!(table.state(0), State::Runnable);
}

#[test]
fn an_unpark_of_the_run_after_a_park_is_kept() {
    check(3, || an_unpark_of_the_next_run_is_kept(Leave::Park));
}

#[test]
fn an_unpark_of_the_run_after_an_await_is_kept() {
    check(3, || an_unpark_of_the_next_run_is_kept(Leave::Await));
}

#[test]
fn only_one_of_two_cores_commits_the_thread() {
    check(3, || {
        let (table, subject) = running();
        let event = leave(&table, Leave::Yield).event;
        let other = Arc::clone(&table);
        let second = thread::spawn(move || other.commit(1, subject, event.sequence));
        let first = table.commit(0, subject, event.sequence);
        let both = [first, second.join().unwrap()];
        assert_eq!(both.iter().filter(|one| one.is_ok()).count(), 1, "{both:?}");
        assert!(both.contains(&Err(Code::TargetOnCpu)), "{both:?}");
        let core = both.iter().position(Result::is_ok).unwrap();
        assert_eq!(usize::from(table.records().next().unwrap().core), core);
    });
}

/// A table with host data: loom fails if two threads access the data without an ordering between them.
fn owned() -> Arc<Table<Cell<u32>>> {
    Arc::new(Table::new(1, || Cell::new(0)))
}

#[test]
fn the_first_owner_sees_what_the_spawner_wrote() {
    check(3, || {
        let table = owned();
        let other = Arc::clone(&table);
        let spawner = thread::spawn(move || {
            other.create(0, 3, NO_CORE, |own| own.set(42));
        });
        let first = Subject { id: 0, generation: 1 };
        // A decision may come too early, and is refused.
        let is_committed = table.commit(0, first, Sequence(1)).is_ok();
        assert!(!is_committed || table.own(0).get() == 42);
        spawner.join().unwrap();
    });
}

#[test]
fn the_next_owner_sees_what_the_last_one_wrote() {
    check(3, || {
        let table = owned();
        let subject = run(&table);
        let other = Arc::clone(&table);
        let second = thread::spawn(move || {
            let is_committed = other.commit(1, subject, Sequence(2)).is_ok();
            assert!(!is_committed || other.own(0).get() == 42);
        });
        table.own(0).set(42);
        assert_eq!(leave(&table, Leave::Yield).event.sequence, Sequence(2));
        second.join().unwrap();
    });
}

#[test]
fn the_next_generations_spawner_sees_what_the_last_owner_wrote() {
    check(3, || {
        let table = owned();
        run(&table);
        let other = Arc::clone(&table);
        let spawner = thread::spawn(move || {
            if other.state(0) == State::Free {
                other.create(0, 3, NO_CORE, |own| assert_eq!(own.get(), 42));
            }
        });
        table.own(0).set(42);
        leave(&table, Leave::Exit);
        spawner.join().unwrap();
    });
}

/// The last owner of the blocked thread, its waker and its next owner are three threads; the waker orders the other two.
#[test]
fn the_next_owner_sees_what_the_waker_and_the_last_owner_wrote() {
    for why in [Leave::Park, Leave::Await] {
        check(2, move || {
            let table = Arc::new(Table::new(1, || (Cell::new(0), Cell::new(0))));
            let subject = run(&table);
            let (last, waker) = (Arc::clone(&table), Arc::clone(&table));
            let last = thread::spawn(move || {
                last.own(0).0.set(42);
                leave(&last, why);
            });
            let waker = thread::spawn(move || {
                waker.own(0).1.set(43);
                waker.unpark(subject);
            });
            let is_committed = table.commit(1, subject, Sequence(3)).is_ok();
            assert!(!is_committed || (table.own(0).0.get(), table.own(0).1.get()) == (42, 43));
            last.join().unwrap();
            waker.join().unwrap();
        });
    }
}

/// Two unparks may become one wake-up, after which the thread sees what both wakers wrote. One is the thread's own.
#[test]
fn a_thread_that_parks_until_a_flag_is_set_sees_it() {
    check(3, || {
        let (table, subject) = running();
        let other = Arc::clone(&table);
        let flag = Arc::new(AtomicBool::new(false));
        let set = Arc::clone(&flag);
        let waker = thread::spawn(move || {
            set.store(true, Ordering::Relaxed);
            other.unpark(subject);
        });
        table.unpark(subject);
        while !flag.load(Ordering::Relaxed) {
            leave(&table, Leave::Park);
            // If the thread stays blocked, the loop is endless, which loom reports.
            while table.runnable().all(|(thread, at)| table.commit(0, thread, at).is_err()) {
                thread::yield_now();
            }
        }
        waker.join().unwrap();
    });
}

#[test]
fn the_first_owner_sees_what_the_spawner_of_a_parked_thread_wrote() {
    check(3, || {
        let table = owned();
        let other = Arc::clone(&table);
        let spawner = thread::spawn(move || {
            other.own(0).set(42);
            other.create_parked(0, 3);
        });
        if let Some(woken) = table.unpark(Subject { id: 0, generation: 1 }) {
            assert_eq!((woken.sequence, woken.class), (Sequence(1), 3));
            assert_eq!(table.commit(0, woken.thread, woken.sequence), Ok(0));
            assert_eq!(table.own(0).get(), 42);
        }
        spawner.join().unwrap();
    });
}

#[test]
fn a_record_has_the_class_of_its_generation() {
    check(3, || {
        let table = Arc::new(Table::new(1, || ()));
        let other = Arc::clone(&table);
        let spawner = thread::spawn(move || create(&other));
        assert!(table.records().all(|record| record.class == 3));
        spawner.join().unwrap();
    });
}

#[test]
fn stale_decisions_and_unparks_leave_the_next_generation_alone() {
    check(3, || {
        let (table, subject) = running();
        let other = Arc::clone(&table);
        let late = thread::spawn(move || {
            let woken = other.unpark(subject);
            (woken, other.commit(1, subject, Sequence(3)).is_ok())
        });
        leave(&table, Leave::Exit);
        let next = create(&table);
        assert_eq!(next.sequence, Sequence(3));
        assert_eq!(late.join().unwrap(), (None, false));
        assert!(table.waits(next.thread, next.sequence));
    });
}

/// Another core may run the thread to its end, and give its id to a thread of another class, before the first core reports that
/// the thread left it.
#[test]
fn an_event_has_the_class_of_its_generation() {
    for why in [Leave::Yield, Leave::Preempt] {
        check(3, move || {
            let (table, subject) = running();
            let other = Arc::clone(&table);
            let second = thread::spawn(move || {
                if other.commit(1, subject, Sequence(2)).is_ok() {
                    other.leave(0, Leave::Exit, 1, Nanos(0));
                    other.create(0, 5, NO_CORE, |()| ());
                }
            });
            assert_eq!(leave(&table, why).event.class, 3);
            second.join().unwrap();
        });
    }
}

/// A late waker takes a token that belongs to the next generation. It wakes that generation's thread, or leaves the token
/// there.
#[test]
fn a_late_waker_that_takes_the_next_generations_token_wakes_that() {
    check(3, || {
        let (table, subject) = running();
        let other = Arc::clone(&table);
        let late = thread::spawn(move || other.unpark(subject));
        leave(&table, Leave::Exit);
        let next = run(&table);
        assert_eq!(table.unpark(next), None, "it runs");
        leave(&table, Leave::Park);
        late.join().unwrap();
        assert_eq!(table.state(0), State::Runnable);
    });
}

/// As above, and the waker has seen its own thread blocked before it takes the token.
#[test]
fn a_late_waker_that_saw_its_own_thread_blocked_wakes_the_next_generation() {
    check(4, || {
        let (table, subject) = running();
        let other = Arc::clone(&table);
        let core = thread::spawn(move || {
            leave(&other, Leave::Park);
            let Some(woken) = other.unpark(subject) else { return };
            assert_eq!(other.commit(0, subject, woken.sequence), Ok(0));
            leave(&other, Leave::Exit);
            let next = run(&other);
            assert_eq!(other.unpark(next), None, "it runs");
            leave(&other, Leave::Park);
        });
        table.unpark(subject);
        core.join().unwrap();
        assert_eq!(table.state(0), State::Runnable);
    });
}

/// An agent decides, and is lost while `change` makes the thread runnable. In either order one core gets the thread from the
/// fallback.
fn becomes_runnable_while_the_agent_is_lost(
    prepare: fn(&Table<()>) -> Subject,
    change: fn(&Table<()>, Subject) -> Event,
) {
    let shared = Arc::new((Table::new(1, || ()), Fallback::new(1)));
    let (table, fallback) = &*shared;
    fallback.leave();
    let subject = prepare(table);
    let other = Arc::clone(&shared);
    let core = thread::spawn(move || {
        let (table, fallback) = &*other;
        let event = change(table, subject);
        fallback.became_runnable(&event);
        fallback.pop(table, 1)
    });
    fallback.enter(table, || fence(Ordering::SeqCst));
    assert_eq!(fallback.mode(), Mode::Fallback);
    let popped = [fallback.pop(table, 0), core.join().unwrap(), fallback.pop(table, 0)];
    assert_eq!(popped.iter().flatten().count(), 1, "{popped:?}");
    assert_eq!(table.state(0), State::Running);
}

#[test]
fn a_thread_that_yields_while_the_agent_is_lost_runs_once() {
    check(3, || {
        becomes_runnable_while_the_agent_is_lost(run, |table, _| leave(table, Leave::Yield).event);
    });
}

#[test]
fn a_thread_that_starts_while_the_agent_is_lost_runs_once() {
    check(3, || {
        let none = |_: &Table<()>| Subject::default();
        becomes_runnable_while_the_agent_is_lost(none, |table, _| create(table));
    });
}

#[test]
fn a_thread_that_is_woken_while_the_agent_is_lost_runs_once() {
    check(3, || {
        let park = |table: &Table<()>| {
            let subject = run(table);
            leave(table, Leave::Park);
            subject
        };
        let wake = |table: &Table<()>, subject| table.unpark(subject).expect("it is parked");
        becomes_runnable_while_the_agent_is_lost(park, wake);
    });
}

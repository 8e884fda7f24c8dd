//! The thread table's races, in every interleaving that a few preemptions allow: the file that hosts run, over loom's atomics. The
//! simulator, which runs it too, has one thread.

/// Loom takes sequentially consistent accesses for acquire and release, and orders fences only. So each has a fence here on the side
/// where the order matters: a store before whatever the thread reads next, a load after whatever it wrote before.
mod atomic {
    pub(super) use loom::sync::atomic::{AtomicU16, Ordering};

    macro_rules! fenced {
        ($name:ident, $number:ty) => {
            pub(super) struct $name(loom::sync::atomic::$name);

            impl $name {
                pub(super) fn new(value: $number) -> $name {
                    $name(loom::sync::atomic::$name::new(value))
                }

                pub(super) fn load(&self, order: Ordering) -> $number {
                    fence(order);
                    self.0.load(order)
                }

                pub(super) fn store(&self, value: $number, order: Ordering) {
                    self.0.store(value, order);
                    fence(order);
                }
            }

            // What reads and writes in one step reads the newest value in any order.
            impl std::ops::Deref for $name {
                type Target = loom::sync::atomic::$name;
                fn deref(&self) -> &Self::Target {
                    &self.0
                }
            }
        };
    }
    fenced!(AtomicU8, u8);
    fenced!(AtomicU64, u64);

    fn fence(order: Ordering) {
        if order == Ordering::SeqCst {
            loom::sync::atomic::fence(order);
        }
    }
}
#[allow(dead_code, reason = "a model needs a part of it")]
#[path = "../src/mechanism/table.rs"]
mod table;
use wave_sched::wire;

use loom::sync::Arc;
use loom::thread;
use table::{Leave, Left, Table};
use wave_core::clock::Nanos;
use wave_core::message::Subject;
use wave_core::outcome::Code;
use wave_core::snapshot::State;
use wire::{Kind, NO_CORE};

fn check(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(body);
}

/// A table with one thread, which runs on core 0.
fn running() -> (Arc<Table<()>>, Subject) {
    let table = Arc::new(Table::new(1, || ()));
    let new = table.create(0, 3, NO_CORE, |_| ());
    assert_eq!(table.commit(0, new.thread, new.sequence), Ok(0));
    (table, new.thread)
}

/// Blocks the thread while `wakers` others wake it. However they meet, it becomes runnable once for the block, and never stays
/// blocked.
fn meets(why: Leave, wakers: usize, wake: fn(&Table<()>, Subject) -> Option<wire::Event>) {
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
fn an_unpark_meets_a_park() {
    check(|| meets(Leave::Park, 1, Table::unpark));
}

#[test]
fn two_unparks_meet_a_park() {
    check(|| meets(Leave::Park, 2, Table::unpark));
}

#[test]
fn an_unpark_meets_an_await() {
    check(|| meets(Leave::Await, 1, Table::unpark));
}

#[test]
fn a_wake_meets_a_wait() {
    check(|| meets(Leave::Wait, 1, Table::wake));
}

/// A wake does not end a park; its token stays for the next wait.
#[test]
fn a_wake_ends_no_park() {
    check(|| {
        let (table, subject) = running();
        let other = Arc::clone(&table);
        let waker = thread::spawn(move || other.wake(subject));
        let left = table.leave(0, Leave::Park, 0, Nanos(0));
        assert_eq!((left.woken, waker.join().unwrap()), (None, None));
        assert_eq!(table.state(0), State::Blocked);
        let unparked = table.unpark(subject).expect("it is parked");
        assert_eq!(table.commit(0, subject, unparked.sequence), Ok(0));
        // The wake is still there for the wait.
        assert!(table.leave(0, Leave::Wait, 0, Nanos(0)).woken.is_some());
    });
}

#[test]
fn of_two_cores_one_gets_the_thread() {
    check(|| {
        let (table, subject) = running();
        let event = table.leave(0, Leave::Yield, 0, Nanos(0)).event;
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

/// What one owner leaves beside a thread is there for the next one.
#[test]
fn a_commit_hands_over_what_its_owner_left() {
    check(|| {
        let table = Arc::new(Table::new(1, || loom::cell::Cell::new(0)));
        let new = table.create(0, 0, NO_CORE, |_| ());
        assert_eq!(table.commit(0, new.thread, new.sequence), Ok(0));
        let yielded = wave_core::message::Sequence(new.sequence.0 + 1);
        let other = Arc::clone(&table);
        let second = thread::spawn(move || {
            // Whoever decides may be early, and is refused.
            other.commit(1, new.thread, yielded).ok().map(|id| other.own(id).get())
        });
        table.own(0).set(42);
        assert_eq!(table.leave(0, Leave::Yield, 0, Nanos(0)).event.sequence, yielded);
        assert!(second.join().unwrap().is_none_or(|seen| seen == 42));
    });
}

/// A decision, or a wake-up, for a thread that ends meanwhile does nothing to the next one with its id.
#[test]
fn an_old_decision_and_an_old_unpark_do_nothing_to_the_next_life() {
    check(|| {
        let (table, subject) = running();
        let other = Arc::clone(&table);
        let late = thread::spawn(move || {
            let woken = other.unpark(subject);
            (woken, other.commit(1, subject, wave_core::message::Sequence(3)).is_ok())
        });
        table.leave(0, Leave::Exit, 0, Nanos(0));
        let next = table.create(0, 0, NO_CORE, |_| ());
        assert_eq!(next.sequence, wave_core::message::Sequence(3));
        assert_eq!(late.join().unwrap(), (None, false));
        assert!(table.waits(next.thread, next.sequence));
    });
}

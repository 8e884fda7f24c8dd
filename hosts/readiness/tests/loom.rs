//! Races of sources and ready lists, in every interleaving with a few preemptions. The models compile the library's own files over
//! loom's locks and atomics. A thread that is not woken blocks for ever, which loom reports as a deadlock.
//!
//! Not covered: races that take more preemptions or threads, and the kernel's eventfd, which is modelled as a flag and a condition
//! variable.

/// Loom's types under the names of `src/sync.rs`.
mod sync {
    pub use loom::sync::atomic::{AtomicU32, Ordering};
    pub use loom::sync::{Arc, Mutex, MutexGuard};
}

/// A model of the waker under the names of `src/waker.rs`.
mod waker {
    use loom::sync::{Condvar, Mutex};

    #[derive(Debug)]
    pub struct Waker {
        is_rung: Mutex<bool>,
        rings: Condvar,
    }

    impl Waker {
        pub fn new() -> Waker {
            Waker { is_rung: Mutex::new(false), rings: Condvar::new() }
        }

        pub fn ring(&self) {
            *self.is_rung.lock().unwrap() = true;
            self.rings.notify_all();
        }

        pub fn drain(&self) {
            *self.is_rung.lock().unwrap() = false;
        }

        pub fn is_of_this_process(&self) -> bool {
            true
        }

        /// Like poll(2): sleeps until the waker is readable.
        pub fn poll(&self) {
            let mut is_rung = self.is_rung.lock().unwrap();
            while !*is_rung {
                is_rung = self.rings.wait(is_rung).unwrap();
            }
        }

        pub fn is_readable(&self) -> bool {
            *self.is_rung.lock().unwrap()
        }
    }
}

#[allow(dead_code, reason = "the models use a part of it")]
#[path = "../src/list.rs"]
mod list;
#[allow(dead_code, reason = "the models use a part of it")]
#[path = "../src/source.rs"]
mod source;

use list::List;
use loom::thread;
use rustix::event::epoll::{Event, EventData, EventFlags};
use source::Source;
use sync::Arc;
use waker::Waker;

const IN: EventFlags = EventFlags::IN;
const NONE: EventFlags = EventFlags::empty();

fn check(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.max_branches = 100_000;
    builder.check(body);
}

/// The wait of `src/waiter.rs` without an agent: collects and sleeps until there is an event.
fn wait(list: &List) -> u64 {
    let waker = Arc::new(Waker::new());
    loop {
        if let Some(data) = collect(list) {
            return data;
        }
        if list.sleep(&waker) {
            waker.poll();
            list.awake(&waker);
        }
        waker.drain();
    }
}

fn collect(list: &List) -> Option<u64> {
    let mut events = [Event { flags: NONE, data: EventData::new_u64(0) }];
    (list.collect(&mut events) == 1).then(|| { events[0].data }.u64())
}

fn listed(sources: &[(&Source, EventFlags)]) -> Arc<List> {
    let list = Arc::new(List::new());
    for (fd, (source, interest)) in (0..).zip(sources) {
        List::add(&list, fd, source.file(), *interest, fd as u64).unwrap();
    }
    list
}

#[test]
fn change_wakes_a_thread_that_is_about_to_sleep() {
    for trigger in [NONE, EventFlags::ET, EventFlags::ONESHOT] {
        check(move || {
            let source = Source::new(NONE);
            let list = listed(&[(&source, IN | trigger)]);
            let changer = thread::spawn(move || {
                source.changed(IN, IN);
                source
            });
            assert_eq!(wait(&list), 0);
            changer.join().unwrap();
        });
    }
}

#[test]
fn edge_during_a_wait_is_reported_by_this_wait_or_the_next() {
    check(|| {
        let source = Source::new(IN);
        let list = listed(&[(&source, IN | EventFlags::ET)]);
        assert_eq!(wait(&list), 0);
        let changer = thread::spawn(move || {
            source.changed(IN, IN);
            source.changed(NONE, NONE);
            source.changed(IN, IN);
            source
        });
        assert_eq!(wait(&list), 0);
        let source = changer.join().unwrap();
        // The last edge is not lost: it was reported, or is still pending.
        source.changed(IN, NONE);
        let _ = collect(&list);
        source.changed(IN, IN);
        assert_eq!(wait(&list), 0);
    });
}

#[test]
fn source_that_becomes_ready_during_add_is_reported() {
    check(|| {
        let source = std::sync::Arc::new(Source::new(NONE));
        let list = Arc::new(List::new());
        let changed = std::sync::Arc::clone(&source);
        let changer = thread::spawn(move || changed.changed(IN, IN));
        List::add(&list, 5, source.file(), IN | EventFlags::ET, 7).unwrap();
        assert_eq!(wait(&list), 7);
        changer.join().unwrap();
    });
}

#[test]
fn source_that_becomes_ready_during_rearm_is_reported() {
    check(|| {
        let source = std::sync::Arc::new(Source::new(IN));
        let list = listed(&[(&source, IN | EventFlags::ONESHOT)]);
        assert_eq!(wait(&list), 0);
        source.changed(NONE, NONE);
        let changed = std::sync::Arc::clone(&source);
        let changer = thread::spawn(move || changed.changed(IN, IN));
        list.modify(0, source.file(), IN | EventFlags::ONESHOT, 1).unwrap();
        assert_eq!(wait(&list), 1);
        changer.join().unwrap();
    });
}

#[test]
fn add_wakes_a_thread_that_is_about_to_sleep() {
    check(|| {
        let list = Arc::new(List::new());
        let other = Arc::clone(&list);
        let adder = thread::spawn(move || {
            let source = Source::new(IN);
            List::add(&other, 5, source.file(), IN, 7).unwrap();
            source
        });
        assert_eq!(wait(&list), 7);
        adder.join().unwrap();
    });
}

/// Two oneshot sources, two threads: each source wakes one thread, and no thread stays asleep.
#[test]
fn two_changes_wake_two_threads() {
    check(|| {
        let [one, other] = [Source::new(NONE), Source::new(NONE)];
        let interest = IN | EventFlags::ONESHOT;
        let list = listed(&[(&one, interest), (&other, interest)]);
        let shared = Arc::clone(&list);
        let sleeper = thread::spawn(move || wait(&shared));
        one.changed(IN, IN);
        other.changed(IN, IN);
        let mut seen = [wait(&list), sleeper.join().unwrap()];
        seen.sort_unstable();
        assert_eq!(seen, [0, 1]);
    });
}

/// As in the kernel: a source that stays ready wakes the next thread, since the first may not handle it.
#[test]
fn level_triggered_source_wakes_every_thread() {
    check(|| {
        let source = Source::new(NONE);
        let list = listed(&[(&source, IN)]);
        let shared = Arc::clone(&list);
        let sleeper = thread::spawn(move || wait(&shared));
        let changer = thread::spawn(move || {
            source.changed(IN, IN);
            source
        });
        assert_eq!(wait(&list), 0);
        let _source = changer.join().unwrap();
        assert_eq!(sleeper.join().unwrap(), 0);
    });
}

#[test]
fn thread_that_gives_up_its_sleep_steals_no_wake_up() {
    check(|| {
        let source = Source::new(NONE);
        let list = listed(&[(&source, IN | EventFlags::ONESHOT)]);
        let shared = Arc::clone(&list);
        let sleeper = thread::spawn(move || wait(&shared));
        let waker = Arc::new(Waker::new());
        let gave_up = list.sleep(&waker);
        let changer = thread::spawn(move || {
            source.changed(IN, IN);
            source
        });
        list.awake(&waker);
        // The call's last look, which may find the event for which it was woken.
        let found = if gave_up { collect(&list) } else { None };
        if found.is_some() {
            let source = changer.join().unwrap();
            list.modify(0, source.file(), IN, 0).unwrap();
            assert_eq!(sleeper.join().unwrap(), 0);
        } else {
            assert_eq!(sleeper.join().unwrap(), 0);
            changer.join().unwrap();
        }
    });
}

/// One edge-triggered, exclusive source in two sets: one edge wakes at least one thread. The other set gets the edge as well, unless a
/// thread was asleep in the first.
#[test]
fn exclusive_edge_wakes_a_sleeper_and_stays_pending_in_sets_without_one() {
    check(|| {
        let source = Source::new(NONE);
        let interest = IN | EventFlags::ET | EventFlags::EXCLUSIVE;
        let (first, second) = (listed(&[(&source, interest)]), listed(&[(&source, interest)]));
        let shared = Arc::clone(&second);
        let sleeper = thread::spawn(move || wait(&shared));
        source.changed(IN, IN);
        assert_eq!(wait(&first), 0);
        assert_eq!(sleeper.join().unwrap(), 0);
    });
}

/// Not a race: the threads that one edge wakes.
#[test]
fn exclusive_edge_wakes_the_first_sleeper_and_hang_up_wakes_all() {
    check(|| {
        let source = Source::new(NONE);
        let exclusive = IN | EventFlags::EXCLUSIVE;
        let lists = [exclusive, exclusive, EventFlags::OUT | EventFlags::EXCLUSIVE, IN]
            .map(|interest| listed(&[(&source, interest | EventFlags::HUP)]));
        let woken = |bits, edge| {
            let wakers = lists.each_ref().map(|list| {
                while collect(list).is_some() {
                    source.changed(NONE, NONE);
                }
                let waker = Arc::new(Waker::new());
                assert!(list.sleep(&waker));
                waker
            });
            source.changed(bits, edge);
            for (list, waker) in lists.iter().zip(&wakers) {
                list.awake(waker);
            }
            wakers.map(|waker| waker.is_readable())
        };
        assert_eq!(woken(IN, IN), [true, false, false, true]);
        assert_eq!(woken(EventFlags::OUT, EventFlags::OUT), [false, false, true, false]);
        assert_eq!(woken(IN, Source::ANY), [true; 4]);
    });
}

#[test]
fn last_close_races_with_a_change_of_another_source_and_a_wait() {
    check(|| {
        let [one, other] = [Source::new(IN), Source::new(NONE)];
        let list = listed(&[(&one, IN), (&other, IN | EventFlags::ET)]);
        let closer = thread::spawn(move || drop(one));
        other.changed(IN, IN);
        let seen = wait(&list);
        closer.join().unwrap();
        match seen {
            0 => assert_eq!(collect(&list), Some(1)),
            seen => assert_eq!((seen, collect(&list)), (1, None)),
        }
        assert_eq!(collect(&list), None);
    });
}

#[test]
fn drop_of_a_set_races_with_a_change() {
    check(|| {
        let source = std::sync::Arc::new(Source::new(NONE));
        let list = listed(&[(&source, IN)]);
        let changed = std::sync::Arc::clone(&source);
        let changer = thread::spawn(move || changed.changed(IN, IN));
        list.clear();
        changer.join().unwrap();
        assert_eq!(collect(&list), None);
        assert_eq!(Arc::strong_count(&list), 1, "the source still refers to the list");
    });
}

/// Once all threads are done, a bell is readable exactly if a source is ready.
#[test]
fn bell_agrees_with_the_list_after_a_race_of_changes_and_a_wait() {
    for trigger in [NONE, EventFlags::ET] {
        check(move || {
            let source = Source::new(NONE);
            let list = listed(&[(&source, IN | trigger)]);
            let bell = Arc::new(Waker::new());
            list.watch(&bell);
            let changer = thread::spawn(move || {
                source.changed(IN, IN);
                source.changed(NONE, NONE);
                source.changed(IN, IN);
                source
            });
            let _ = collect(&list);
            let _source = changer.join().unwrap();
            assert_eq!(bell.is_readable(), collect(&list).is_some());
            assert_eq!(bell.is_readable(), trigger == NONE && collect(&list).is_some());
        });
    }
}

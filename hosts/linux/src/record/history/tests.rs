use super::*;

const A: Who = Who { pid: 1, born: 10 };
const B: Who = Who { pid: 2, born: 20 };

fn named(name: &str) -> Named {
    Named { process: 1, name: name.into() }
}

fn feed(history: &mut History, time_ns: u64, cpu: u16, kind: Kind) {
    history.feed(&Event { time_ns, cpu, kind });
}

fn to(history: &mut History, time_ns: u64, cpu: u16, who: Who) {
    feed(history, time_ns, cpu, Kind::Switch(None, Next::Recorded(who)));
}

fn from(history: &mut History, time_ns: u64, cpu: u16, who: Who, doing: Doing) {
    feed(history, time_ns, cpu, Kind::Switch(Some((who, doing)), Next::Idle));
}

/// A history from time 100 on, before which A blocked.
fn with_a() -> History {
    let mut history = History::new(100);
    feed(&mut history, 100, 0, Kind::Seen(A, Doing::Blocked, named("a")));
    history
}

fn run(at_ns: u64, waited_ns: Option<u64>, cpu_ns: u64, preemptions: u64) -> Run {
    Run { at_ns, waited_ns, cpu_ns, preemptions, ..Run::default() }
}

/// `run`, after the thread was blocked for `blocked_ns` and an unrecorded waker woke it.
fn after(blocked_ns: u64, run: Run) -> Run {
    Run { blocked_ns: Some(blocked_ns), ..run }
}

#[test]
fn a_thread_that_is_woken_runs_is_preempted_and_blocks() {
    let mut history = with_a();
    feed(&mut history, 200, 1, Kind::Wakeup(A));
    to(&mut history, 230, 0, A);
    from(&mut history, 300, 0, A, Doing::Runnable);
    to(&mut history, 350, 1, A);
    from(&mut history, 360, 1, A, Doing::Blocked);
    let (threads, repaired) = history.finish(1_000);
    assert_eq!(repaired, 0);
    let [thread] = &threads[..] else { panic!("{threads:?}") };
    assert_eq!(thread.runs, [run(100, Some(30), 80, 1)]);
    assert_eq!((thread.name.as_str(), thread.end, thread.ended_ns), ("a", End::Blocked, 260));
}

#[test]
fn waker_is_recorded_with_its_cpu_time_so_far() {
    let mut history = with_a();
    feed(&mut history, 110, 0, Kind::Wakeup(A));
    to(&mut history, 110, 0, A);
    feed(&mut history, 150, 0, Kind::Made(B, Some(A), named("child")));
    feed(&mut history, 151, 0, Kind::Wakeup(B));
    to(&mut history, 160, 1, B);
    from(&mut history, 170, 1, B, Doing::Blocked);
    // B is woken while it is about to block, by A, which has used 90.
    feed(&mut history, 200, 0, Kind::Waking(B, A));
    feed(&mut history, 205, 1, Kind::Wakeup(B));
    to(&mut history, 210, 1, B);
    feed(&mut history, 219, 1, Kind::Exit(B, named("renamed")));
    from(&mut history, 220, 1, B, Doing::Dead);
    let (threads, repaired) = history.finish(230);
    assert_eq!((threads.len(), repaired), (2, 0));
    let waker = |cpu_ns| Some(Waker { thread: 0, cpu_ns });
    let made = Run { waker: waker(40), ..run(51, Some(9), 10, 0) };
    let woken = Run { waker: waker(90), ..run(105, Some(5), 10, 0) };
    assert_eq!(threads[1].runs, [made, woken]);
    assert_eq!((threads[1].name.as_str(), threads[1].end), ("renamed", End::Exited));
    assert_eq!((threads[0].cpu_ns(), threads[0].end), (120, End::Cut));
}

/// Otherwise its next run would wait for itself, and `wave run --workload` would refuse the recording.
#[test]
fn a_thread_that_wakes_itself_is_not_recorded_as_its_waker() {
    let mut history = with_a();
    feed(&mut history, 110, 0, Kind::Wakeup(A));
    to(&mut history, 110, 0, A);
    // The wake-up that follows is lost.
    feed(&mut history, 120, 0, Kind::Waking(A, A));
    from(&mut history, 130, 0, A, Doing::Blocked);
    feed(&mut history, 150, 1, Kind::Wakeup(A));
    to(&mut history, 150, 0, A);
    let (threads, _) = history.finish(160);
    assert_eq!(threads[0].runs.iter().map(|run| run.waker).collect::<Vec<_>>(), [None, None]);
}

#[test]
fn waking_a_running_thread_changes_nothing() {
    let mut history = with_a();
    feed(&mut history, 110, 0, Kind::Wakeup(A));
    to(&mut history, 120, 0, A);
    feed(&mut history, 130, 1, Kind::Wakeup(A));
    from(&mut history, 140, 0, A, Doing::Blocked);
    feed(&mut history, 150, 1, Kind::Wakeup(A));
    to(&mut history, 150, 0, A);
    from(&mut history, 155, 0, A, Doing::Blocked);
    let (threads, repaired) = history.finish(200);
    assert_eq!(repaired, 0);
    assert_eq!(threads[0].runs, [run(10, Some(10), 20, 0), after(10, run(50, Some(0), 5, 0))]);
}

#[test]
fn threads_active_at_the_beginning_have_no_wakeup_latency() {
    let mut history = History::new(100);
    feed(&mut history, 120, 0, Kind::Seen(A, Doing::Running, named("a")));
    feed(&mut history, 130, 0, Kind::Seen(B, Doing::Runnable, named("b")));
    from(&mut history, 150, 3, A, Doing::Blocked);
    to(&mut history, 160, 3, B);
    // Not seen before: it has run since the beginning.
    let unseen = Who { pid: 9, born: 1 };
    from(&mut history, 170, 1, unseen, Doing::Blocked);
    let (threads, repaired) = history.finish(180);
    assert_eq!(repaired, 0);
    let runs: Vec<_> = threads.iter().map(|thread| thread.runs.clone()).collect();
    assert_eq!(runs, [[run(20, None, 30, 0)], [run(30, None, 20, 0)], [run(0, None, 70, 0)]]);
}

#[test]
fn known_thread_that_is_seen_again_is_only_renamed() {
    let mut history = with_a();
    feed(&mut history, 110, 0, Kind::Wakeup(A));
    to(&mut history, 120, 0, A);
    feed(&mut history, 130, 1, Kind::Seen(A, Doing::Blocked, named("other")));
    let (threads, repaired) = history.finish(150);
    assert_eq!((threads[0].name.as_str(), threads[0].cpu_ns(), repaired), ("other", 30, 0));
}

#[test]
fn reused_id_is_another_thread() {
    let mut history = with_a();
    feed(&mut history, 110, 0, Kind::Wakeup(A));
    to(&mut history, 110, 0, A);
    // The id is free before the last switch away from its thread.
    let again = Who { born: 11, ..A };
    feed(&mut history, 120, 1, Kind::Made(again, None, named("again")));
    feed(&mut history, 121, 1, Kind::Wakeup(again));
    from(&mut history, 130, 0, A, Doing::Dead);
    to(&mut history, 140, 0, again);
    let (threads, repaired) = history.finish(150);
    assert_eq!((threads.len(), repaired), (2, 0));
    assert_eq!((threads[0].cpu_ns(), threads[0].end), (20, End::Exited));
    assert_eq!((threads[1].cpu_ns(), threads[1].end), (10, End::Cut));
    assert_eq!(threads[0].pid, threads[1].pid);
}

#[test]
fn missed_wakeup_or_switch_is_counted_and_adds_no_time() {
    let mut history = with_a();
    // The wake-up is missing.
    to(&mut history, 110, 0, A);
    from(&mut history, 120, 0, A, Doing::Blocked);
    assert_eq!(history.repaired(), 1);
    // The switch to it is missing.
    feed(&mut history, 130, 0, Kind::Wakeup(A));
    from(&mut history, 140, 0, A, Doing::Blocked);
    assert_eq!(history.repaired(), 2);
    // The switch from it is missing: another thread has the CPU, so it must have left earlier.
    feed(&mut history, 150, 0, Kind::Wakeup(A));
    to(&mut history, 150, 0, A);
    feed(&mut history, 160, 0, Kind::Waking(B, A));
    to(&mut history, 900, 0, B);
    assert_eq!(history.repaired(), 4, "A's departure and B's wake-up are guessed");
    from(&mut history, 950, 0, B, Doing::Dead);
    let (threads, _) = history.finish(1_000);
    assert_eq!(threads[0].runs, [run(10, None, 10, 0), after(30, run(50, Some(0), 10, 0))]);
    assert_eq!(threads[1].cpu_ns(), 50);
    let waker = Some(Waker { thread: 0, cpu_ns: 20 });
    assert_eq!(threads[1].runs[0].waker, waker, "A had announced that it would wake B");
}

#[test]
fn waker_is_known_although_its_switch_was_missed() {
    // A got its CPU after 130 without an event, as happens occasionally under Linux 6.18 as a guest.
    let mut history = with_a();
    feed(&mut history, 101, 0, Kind::Seen(B, Doing::Blocked, named("b")));
    feed(&mut history, 110, 0, Kind::Wakeup(A));
    feed(&mut history, 140, 1, Kind::Waking(B, A));
    feed(&mut history, 141, 1, Kind::Wakeup(B));
    assert_eq!(history.repaired(), 1);
    to(&mut history, 150, 0, B);
    from(&mut history, 170, 1, A, Doing::Blocked);
    from(&mut history, 180, 0, B, Doing::Blocked);
    // A's wake-up and switch are both missing.
    feed(&mut history, 200, 1, Kind::Waking(B, A));
    feed(&mut history, 201, 1, Kind::Wakeup(B));
    to(&mut history, 210, 0, B);
    from(&mut history, 220, 0, B, Doing::Blocked);
    from(&mut history, 230, 1, A, Doing::Blocked);
    let (threads, repaired) = history.finish(300);
    assert_eq!(repaired, 2);
    assert_eq!(threads[0].runs, [run(10, None, 30, 0), after(30, run(100, None, 30, 0))]);
    let by_a = |cpu_ns| Some(Waker { thread: 0, cpu_ns });
    let wakers: Vec<_> = threads[1].runs.iter().map(|run| run.waker).collect();
    assert_eq!(wakers, [by_a(0), by_a(30)]);
}

#[test]
fn unrecorded_thread_on_a_cpu_is_interference_while_a_thread_waits() {
    let mut history = with_a();
    let others = Kind::Switch(None, Next::Other);
    feed(&mut history, 110, 0, Kind::Wakeup(A));
    to(&mut history, 120, 0, A);
    feed(&mut history, 130, 0, Kind::Switch(Some((A, Doing::Runnable)), Next::Other));
    to(&mut history, 170, 0, A);
    feed(&mut history, 180, 0, Kind::Switch(Some((A, Doing::Blocked)), Next::Other));
    feed(&mut history, 200, 0, Kind::Wakeup(A));
    assert_eq!(history.interference_ns(205), 45);
    to(&mut history, 210, 0, A);
    feed(&mut history, 220, 0, Kind::Switch(Some((A, Doing::Runnable)), Next::Idle));
    assert_eq!(history.interference_ns(250), 50, "the CPU is idle");
    feed(&mut history, 250, 0, others);
    assert_eq!(history.interference_ns(300), 100, "the thread waits until the end");
}

mod random {
    use proptest::prelude::*;

    use super::*;

    /// A miniature kernel, which drives threads and records what they really did.
    struct Truth {
        states: Vec<Doing>,
        cpus: Vec<Option<usize>>,
        since: Vec<u64>,
        used: Vec<u64>,
        blocks: Vec<u64>,
        now: u64,
        events: Vec<Event>,
    }

    const THREADS: usize = 4;
    const BEGINS: u64 = 1_000;

    fn who(thread: usize) -> Who {
        Who { pid: 1 + thread as u32, born: 7 }
    }

    impl Truth {
        fn new() -> Truth {
            let mut truth = Truth {
                states: vec![Doing::Blocked; THREADS],
                cpus: vec![None; 2],
                since: vec![0; THREADS],
                used: vec![0; THREADS],
                blocks: vec![0; THREADS],
                now: BEGINS,
                events: Vec::new(),
            };
            for thread in 0..THREADS {
                truth.tell(0, Kind::Seen(who(thread), Doing::Blocked, named("t")));
            }
            truth
        }

        fn tell(&mut self, cpu: usize, kind: Kind) {
            self.events.push(Event { time_ns: self.now, cpu: cpu as u16, kind });
        }

        /// Takes the step that these numbers ask for, if it is possible.
        fn step(&mut self, (span, cpu, thread, blocks): (u64, usize, usize, bool)) {
            self.now += span;
            if self.states[thread] == Doing::Blocked {
                if let Some(waker) = self.cpus[cpu] {
                    self.tell(cpu, Kind::Waking(who(thread), who(waker)));
                }
                self.tell(cpu, Kind::Wakeup(who(thread)));
                self.states[thread] = Doing::Runnable;
                return;
            }
            let to = (self.states[thread] == Doing::Runnable).then_some(thread);
            let from = self.cpus[cpu].map(|old| {
                let doing = if blocks { Doing::Blocked } else { Doing::Runnable };
                self.states[old] = doing;
                self.used[old] += self.now - self.since[old];
                self.blocks[old] += u64::from(blocks);
                (who(old), doing)
            });
            if let Some(new) = to {
                self.states[new] = Doing::Running;
                self.since[new] = self.now;
            }
            self.cpus[cpu] = to;
            if from.is_some() || to.is_some() {
                let next = to.map_or(Next::Idle, |to| Next::Recorded(who(to)));
                self.tell(cpu, Kind::Switch(from, next));
            }
        }

        fn end(&mut self) {
            for thread in self.cpus.iter().flatten() {
                self.used[*thread] += self.now - self.since[*thread];
            }
        }
    }

    fn truth(steps: Vec<(u64, usize, usize, bool)>) -> Truth {
        let mut truth = Truth::new();
        steps.into_iter().for_each(|step| truth.step(step));
        truth.end();
        truth
    }

    fn steps() -> impl Strategy<Value = Vec<(u64, usize, usize, bool)>> {
        prop::collection::vec((0..1_000_u64, 0..2_usize, 0..THREADS, any::<bool>()), 0..200)
    }

    /// Checks properties of every history, whichever events are missing.
    fn check(threads: &[Thread], duration: u64) {
        for thread in threads {
            assert!(!thread.runs.is_empty());
            let mut free_at = 0;
            for run in &thread.runs {
                assert!(run.at_ns >= free_at, "runs of a thread overlap");
                let blocked_ns = run.blocked_ns.unwrap_or(0);
                assert!(
                    run.at_ns - blocked_ns >= free_at,
                    "the thread was blocked during its last run"
                );
                assert!(run.waker.is_none() || run.blocked_ns.is_none());
                free_at = run.at_ns + run.waited_ns.unwrap_or(0) + run.cpu_ns;
                if let Some(waker) = run.waker {
                    assert!(waker.cpu_ns <= threads[waker.thread as usize].cpu_ns());
                }
            }
            assert!(free_at <= duration && thread.ended_ns <= duration);
        }
        // There are two CPUs.
        assert!(threads.iter().map(Thread::cpu_ns).sum::<u64>() <= 2 * duration);
    }

    proptest! {
        #[test]
        fn complete_history_matches_the_model(steps in steps()) {
            let truth = truth(steps);
            let mut history = History::new(BEGINS);
            truth.events.iter().for_each(|event| history.feed(event));
            let (threads, repaired) = history.finish(truth.now);
            prop_assert_eq!(repaired, 0);
            check(&threads, truth.now - BEGINS);
            for thread in 0..THREADS {
                let found = threads.iter().find(|found| found.pid == who(thread).pid);
                let used = found.map_or(0, Thread::cpu_ns);
                prop_assert_eq!(used, truth.used[thread]);
                let ended = found.map_or(0, |found| {
                    found.runs.len() as u64 - u64::from(found.end == End::Cut)
                });
                prop_assert_eq!(ended, truth.blocks[thread]);
            }
        }

        #[test]
        fn lost_events_add_no_runs(
            steps in steps(),
            missing in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
        ) {
            let truth = truth(steps);
            let mut events = truth.events.clone();
            for index in missing {
                if !events.is_empty() {
                    events.remove(index.index(events.len()));
                }
            }
            let mut history = History::new(BEGINS);
            events.iter().for_each(|event| history.feed(event));
            let (threads, _) = history.finish(truth.now);
            check(&threads, truth.now - BEGINS);
        }

        #[test]
        fn slightly_different_clocks_are_tolerated(
            steps in steps(),
            swapped in prop::collection::vec(any::<prop::sample::Index>(), 0..9),
        ) {
            let truth = truth(steps);
            let mut events = truth.events.clone();
            // Only the order of events counts.
            for index in swapped {
                let at = index.index(events.len() - 1);
                let later = events[at + 1].time_ns;
                events[at + 1].time_ns = events[at].time_ns;
                events[at].time_ns = later;
            }
            let mut history = History::new(BEGINS);
            events.iter().for_each(|event| history.feed(event));
            let (threads, repaired) = history.finish(truth.now);
            prop_assert_eq!(repaired, 0);
            for thread in &threads {
                prop_assert!(thread.runs.is_sorted_by_key(|run| run.at_ns));
                for waker in thread.runs.iter().filter_map(|run| run.waker) {
                    prop_assert!(waker.cpu_ns <= threads[waker.thread as usize].cpu_ns());
                }
            }
        }
    }
}

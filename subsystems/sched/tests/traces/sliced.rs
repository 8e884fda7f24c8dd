//! Histories of the policies with slices: Shinjuku, round robin, multi-queue Shinjuku.

use wave_core::message::TxnId;
use wave_core::outcome::Code;
use wave_core::snapshot::{CoreRecord, State};
use wave_sched::wire::Kind;

use super::trace::{ASKS, RUNS, Trace};

fn slices(policy: &'static str, prestage: u16) -> Trace {
    let title = "a run whose slice is over ends while others wait, and its thread joins the end";
    let mut trace = Trace::begun(policy, title, 2, prestage);
    trace.later_us(10);
    trace.outside(Kind::New, 2);
    trace.later_us(20);
    trace
}

fn decisions_are_left_first() -> Trace {
    let mut trace = slices("shinjuku", 1);
    // One core obeys the preemption, then the other.
    trace.later_us(1);
    trace.switches(0, Kind::Preempt, 0, 2, Code::Complete, 2);
    trace.switches(1, Kind::Preempt, 1, 2, Code::Complete, 2);
    trace.later_us(10);
    trace.later_us(19);
    trace.later_us(2);
    trace
}

fn without_prestaging() -> Trace {
    let mut trace = slices("shinjuku", 0);
    trace.outside(Kind::New, 3);
    trace.asks(0, Kind::Preempt, 0);
    trace.asks(1, Kind::Preempt, 1);
    trace.answers(0, 2, Code::Complete, 2);
    trace.answers(1, 2, Code::Complete, 2);
    trace.later_us(30);
    trace
}

fn already_staged() -> Trace {
    let title = "a prestaged thread also waits for the slice, even if no other thread waits";
    let mut trace = Trace::begun("shinjuku", title, 2, 1);
    trace.outside(Kind::New, 2);
    trace.outside(Kind::New, 3);
    trace.later_us(5);
    trace.asks(1, Kind::Blocked, 1);
    trace.answers(1, 2, Code::Complete, 2);
    trace.later_us(25);
    trace.switches(0, Kind::Preempt, 0, 2, Code::Complete, 2);
    trace
}

fn nobody_waits() -> Trace {
    let title = "without a waiting thread no run is preempted; a late arrival preempts at once";
    let mut trace = Trace::begun("shinjuku", title, 1, 1);
    trace.later_us(1000);
    trace.outside(Kind::New, 1);
    trace
}

fn too_late() -> Trace {
    let title = "a preemption that comes too late: the prestaged decision is taken all the same";
    let mut trace = slices_of_one("shinjuku", title);
    trace.switches(0, Kind::Blocked, 0, 2, Code::Complete, 2);
    trace.later_us(100);
    trace.outside(Kind::Wakeup, 0);
    trace
}

fn slices_of_one(policy: &'static str, title: &str) -> Trace {
    let mut trace = Trace::begun(policy, title, 1, 1);
    trace.outside(Kind::New, 1);
    trace.later_us(30);
    trace
}

fn refused() -> Trace {
    let title = "the decision staged with a preemption is refused: the core gets another";
    let mut trace = slices_of_one("shinjuku", title);
    trace.outside(Kind::New, 2);
    trace.switches(0, Kind::Preempt, 0, 2, Code::Affinity, 1);
    trace.answers(0, 3, Code::Complete, 2);
    trace
}

fn resync() -> Trace {
    let title = "a run known from a snapshot: its slice starts then, with the core's run number";
    let mut trace = Trace::new("shinjuku", title, 2, 1);
    let runs = |run| CoreRecord { run, txn: TxnId::new(0), asks: false };
    let states = [State::Running, State::Running, State::Runnable, State::Blocked, State::Free];
    trace.later_us(7);
    trace.snapshot(&[runs(40), runs(50)], &states);
    trace.later_us(30);
    // Another snapshot, older than the first preemption's effect: the preemption is sent again.
    trace.snapshot(&[runs(40), runs(50)], &states);
    trace.later_us(30);
    trace.switches(0, Kind::Preempt, 0, 1, Code::Complete, 41);
    trace
}

fn overtaken() -> Trace {
    let title = "a run that began after the snapshot was taken has its slice, and is decided once";
    let mut trace = Trace::new("shinjuku", title, 2, 1);
    trace.snapshot(&[ASKS, RUNS], &[]);
    trace.outside(Kind::New, 0);
    trace.later_us(5);
    // Older than the commit: in it thread 0 still waits, and core 0 asks.
    trace.snapshot(&[ASKS, RUNS], &[State::Runnable]);
    trace.answers(0, 1, Code::Complete, 1);
    trace.asks(1, Kind::Blocked, 7);
    trace.outside(Kind::New, 1);
    trace.answers(1, 1, Code::Complete, 2);
    trace.outside(Kind::New, 2);
    trace
}

fn torn() -> Trace {
    let title =
        "a snapshot's core is one run behind its thread: preempted again by the right number";
    let mut trace = Trace::new("shinjuku", title, 1, 1);
    trace.snapshot(&[ASKS], &[]);
    trace.outside(Kind::New, 0);
    trace.outside(Kind::New, 1);
    let behind = CoreRecord { run: 0, txn: TxnId::new(1), asks: false };
    trace.snapshot(&[behind], &[State::Running, State::Runnable]);
    trace.later_us(30);
    trace.answers(0, 1, Code::Complete, 1);
    trace
}

fn by_the_core() -> Trace {
    let title = "the core's own timer: decisions carry the slice, and the agent ends no run";
    let mut trace = Trace::begun("shinjuku:slice_us=30,timer=core", title, 2, 1);
    trace.outside(Kind::New, 2);
    trace.later_us(1000);
    // The run ends although the agent may have no other thread for the core.
    trace.asks(0, Kind::Preempt, 0);
    trace.answers(0, 2, Code::Complete, 2);
    trace.asks(1, Kind::Preempt, 1);
    trace.answers(1, 2, Code::Complete, 2);
    // A waiting thread is prestaged on a core whose slice will end.
    trace.outside(Kind::New, 3);
    trace.outside(Kind::New, 4);
    trace.switches(1, Kind::Preempt, 0, 3, Code::Complete, 3);
    trace.later_us(1000);
    assert_eq!(trace.preempted, []);
    trace
}

fn found_running() -> Trace {
    let title = "the core's own timer, and a run from a snapshot: the agent ends that run";
    let mut trace = Trace::new("shinjuku:timer=core", title, 2, 0);
    let states = [State::Running, State::Running, State::Runnable];
    trace.snapshot(&[RUNS, RUNS], &states);
    trace.later_us(30);
    trace.asks(0, Kind::Preempt, 0);
    trace.answers(0, 1, Code::Complete, 2);
    trace.later_us(1000);
    assert_eq!(trace.preempted, [(0, 1), (1, 1)]);
    trace
}

pub fn shinjuku() -> Vec<Trace> {
    vec![
        decisions_are_left_first(),
        without_prestaging(),
        already_staged(),
        nobody_waits(),
        too_late(),
        refused(),
        resync(),
        overtaken(),
        torn(),
        by_the_core(),
        found_running(),
    ]
}

pub fn round_robin() -> Vec<Trace> {
    let mut trace = Trace::begun("round-robin:quantum_us=2000", "each thread in turn", 1, 0);
    trace.outside(Kind::New, 1);
    trace.outside(Kind::New, 2);
    let mut on_core = 0;
    for run in 2..6 {
        trace.later_us(2000);
        trace.asks(0, Kind::Preempt, on_core);
        on_core = trace.decided.last().unwrap().1;
        trace.answers(0, run, Code::Complete, run);
    }
    vec![trace, round_robin_by_the_core()]
}

fn round_robin_by_the_core() -> Trace {
    let title = "the core's own timer: a thread that is alone gets the core again";
    let mut trace = Trace::begun("round-robin:quantum_us=2000,timer=core", title, 1, 0);
    for run in 2..4 {
        trace.later_us(2000);
        trace.asks(0, Kind::Preempt, 0);
        trace.answers(0, run, Code::Complete, run);
    }
    assert_eq!(trace.preempted, []);
    trace
}

fn by_objective() -> Trace {
    let title = "longest wait in proportion to the class's SLO: 50 us in class 0, 10 ms in class 1";
    let mut trace = Trace::new("multi-queue", title, 1, 0);
    trace.classes = vec![1, 1, 1, 0, 0, 7, 0, 0];
    trace.snapshot(&[ASKS], &[]);
    trace.outside(Kind::New, 0);
    trace.answers(0, 1, Code::Complete, 1);
    trace.outside(Kind::New, 1);
    trace.later_us(9);
    // 9 us of 10 ms is more than nothing of 50 us.
    trace.outside(Kind::New, 3);
    trace.asks(0, Kind::Blocked, 0);
    trace.answers(0, 2, Code::Complete, 2);
    trace.later_us(11);
    trace.outside(Kind::New, 4);
    trace.outside(Kind::New, 5);
    trace.outside(Kind::New, 2);
    trace.later_us(1);
    // 12 us of 50 us; then 1 us of 50 us, which is more than 31 us of 10 ms.
    trace.asks(0, Kind::Blocked, trace.decided.last().unwrap().1);
    trace.answers(0, 3, Code::Complete, 3);
    trace.later_us(30);
    trace.asks(0, Kind::Preempt, trace.decided.last().unwrap().1);
    trace
}

fn nobody_starves() -> Trace {
    let title = "the long class's turn comes when it has waited 200 times as long as the short one";
    let mut trace = Trace::begun("multi-queue:slo_us=10/2000", title, 1, 0);
    trace.classes[1] = 1;
    trace.outside(Kind::New, 1);
    let mut on_core = 0;
    for txn in 2..8 {
        trace.outside(Kind::New, txn);
        trace.later_us(5);
        trace.asks(0, Kind::Dead, on_core);
        on_core = trace.decided.last().unwrap().1;
        trace.answers(0, txn, Code::Complete, txn);
        trace.later_us(295);
        if on_core == 1 {
            break;
        }
    }
    trace
}

fn by_objective_and_core() -> Trace {
    let title = "the core's own timer: a preempted thread's wait counts for its objective";
    let mut trace = Trace::new("multi-queue:timer=core", title, 1, 0);
    trace.classes = vec![1, 0, 1, 0, 0, 0, 0, 0];
    trace.snapshot(&[ASKS], &[]);
    trace.outside(Kind::New, 0);
    trace.answers(0, 1, Code::Complete, 1);
    trace.outside(Kind::New, 1);
    trace.outside(Kind::New, 2);
    trace.later_us(30);
    trace.asks(0, Kind::Preempt, 0);
    trace.answers(0, 2, Code::Complete, 2);
    trace.later_us(10);
    trace.asks(0, Kind::Dead, 1);
    trace.answers(0, 3, Code::Complete, 3);
    assert_eq!(trace.preempted, []);
    trace
}

/// Histories of multi-queue Shinjuku.
pub fn multi_queue() -> Vec<Trace> {
    vec![by_objective(), nobody_starves(), by_objective_and_core()]
}

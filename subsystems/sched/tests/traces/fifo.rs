//! Histories of FIFO.

use wave_core::message::TxnId;
use wave_core::outcome::Code;
use wave_core::snapshot::{CoreRecord, State};
use wave_sched::wire::Kind;

use super::trace::{ASKS, RUNS, Trace};

fn first_come_first_served() -> Trace {
    let mut trace =
        Trace::new("fifo", "first come, first served; nothing is prestaged while few wait", 2, 2);
    trace.snapshot(&[ASKS, ASKS], &[]);
    for thread in 0..3 {
        trace.outside(Kind::New, thread);
    }
    trace.answers(0, 1, Code::Complete, 1);
    trace.answers(1, 1, Code::Complete, 1);
    trace.asks(0, Kind::Blocked, 0);
    trace.outside(Kind::Wakeup, 0);
    trace.answers(0, 2, Code::Complete, 2);
    trace.asks(1, Kind::Yield, 1);
    trace.answers(1, 2, Code::Complete, 2);
    trace.asks(0, Kind::Dead, 2);
    trace
}

fn prestaging() -> Trace {
    let mut trace =
        Trace::new("fifo", "prestaged only while as many wait as there are cores", 2, 2);
    trace.snapshot(&[RUNS, RUNS], &[]);
    // One waits: it is prestaged on no core. Two wait: one is prestaged, and the remaining queue is
    // too short.
    for thread in 0..5 {
        trace.outside(Kind::New, thread);
    }
    trace
}

fn prestaging_on_one_core() -> Trace {
    let mut trace = Trace::new(
        "fifo",
        "with one core there is no other to serve: up to two threads are prestaged",
        1,
        2,
    );
    trace.snapshot(&[RUNS], &[]);
    for thread in 0..4 {
        trace.outside(Kind::New, thread);
    }
    trace.answers(0, 1, Code::Complete, 2);
    trace
}

fn no_prestaging() -> Trace {
    let mut trace = Trace::new("fifo", "without prestaging a core gets what it asks for", 1, 0);
    trace.snapshot(&[RUNS], &[]);
    trace.outside(Kind::New, 0);
    trace.outside(Kind::New, 1);
    trace.asks(0, Kind::Blocked, 2);
    trace.answers(0, 1, Code::Complete, 2);
    trace
}

fn refusals() -> Trace {
    let mut trace = Trace::new(
        "fifo",
        "a thread refused by the core waits again; else a message will come",
        2,
        0,
    );
    trace.snapshot(&[ASKS, ASKS], &[]);
    trace.outside(Kind::New, 0);
    trace.answers(0, 1, Code::Affinity, 0);
    trace.answers(1, 1, Code::TargetStale, 0);
    // The stale thread is not decided again until its message comes.
    trace.outside(Kind::Preempt, 0);
    trace.answers(0, 2, Code::TargetOnCpu, 0);
    trace.outside(Kind::New, 1);
    trace.answers(1, 2, Code::CpuUnavailable, 0);
    trace.answers(0, 3, Code::Complete, 1);
    trace
}

fn resync() -> Trace {
    let mut trace = Trace::new("fifo", "after a snapshot all threads are placed anew", 2, 0);
    trace.snapshot(&[ASKS, RUNS], &[]);
    trace.outside(Kind::New, 0);
    trace.outside(Kind::New, 1);
    trace.outside(Kind::New, 2);
    // The host has answered the decision for core 0, and says that thread 2 runs there.
    let answered = CoreRecord { run: 1, txn: TxnId::new(1), asks: false };
    trace.snapshot(&[answered, RUNS], &[State::Blocked, State::Runnable, State::Running]);
    trace.asks(1, Kind::Blocked, 3);
    trace.outside(Kind::Wakeup, 0);
    trace.asks(0, Kind::Yield, 2);
    trace
}

pub fn all() -> Vec<Trace> {
    let refused_then_moved = {
        let mut trace = Trace::new(
            "fifo",
            "an outcome that comes after the thread has moved on changes nothing",
            1,
            2,
        );
        trace.snapshot(&[RUNS], &[]);
        trace.outside(Kind::New, 0);
        trace.switches(0, Kind::Blocked, 1, 1, Code::Complete, 2);
        trace.switches(0, Kind::Yield, 0, 2, Code::Complete, 3);
        trace
    };
    vec![
        first_come_first_served(),
        prestaging(),
        prestaging_on_one_core(),
        no_prestaging(),
        refusals(),
        resync(),
        refused_then_moved,
    ]
}

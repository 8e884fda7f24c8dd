//! Histories of the policies that end runs by other rules than slices.

use wave_core::outcome::Code;
use wave_core::snapshot::State;
use wave_sched::wire::Kind;

use super::trace::{ASKS, RUNS, Trace};

fn deadlines() -> Trace {
    let title = "the latest deadline gives way to an earlier one, and its thread keeps it";
    let mut trace = Trace::new("edf:deadline_us=100/1000/5000", title, 2, 1);
    trace.classes = vec![1, 2, 1, 0, 0, 0, 2, 0];
    trace.snapshot(&[ASKS, ASKS], &[]);
    for core in 0..2 {
        trace.outside(Kind::New, core);
        trace.answers(core as u16, 1, Code::Complete, 1);
    }
    trace.later_us(10);
    // Due at 1010 us: earlier than thread 1, later than thread 0.
    trace.outside(Kind::New, 2);
    trace.outside(Kind::New, 6);
    trace.switches(1, Kind::Preempt, 1, 2, Code::Complete, 2);
    trace.later_us(500);
    trace.outside(Kind::New, 3);
    trace.switches(1, Kind::Preempt, 2, 3, Code::Complete, 3);
    // 2 is due before 1 and 6.
    trace.asks(0, Kind::Blocked, 0);
    trace.answers(0, 2, Code::Complete, 2);
    trace.asks(0, Kind::Blocked, 2);
    trace
}

fn one_at_a_time() -> Trace {
    let title = "without prestaging, one run at a time is asked to end";
    let mut trace = Trace::new("edf:deadline_us=100/1000", title, 2, 0);
    trace.classes = vec![1, 1, 0, 0, 0, 0, 0, 0];
    trace.snapshot(&[ASKS, ASKS], &[]);
    for core in 0..2 {
        trace.outside(Kind::New, core);
        trace.answers(core as u16, 1, Code::Complete, 1);
    }
    trace.outside(Kind::New, 2);
    trace.outside(Kind::New, 3);
    trace.asks(0, Kind::Preempt, 0);
    trace.answers(0, 2, Code::Complete, 2);
    trace.asks(1, Kind::Preempt, 1);
    trace
}

fn who_yields() -> Trace {
    let title = "a thread that yields gets a new deadline, and lets others go first";
    let mut trace = Trace::begun("edf:deadline_us=100", title, 1, 1);
    trace.later_us(50);
    trace.outside(Kind::New, 1);
    trace.later_us(1);
    trace.asks(0, Kind::Yield, 0);
    trace
}

/// Histories of earliest deadline first.
pub fn edf() -> Vec<Trace> {
    vec![deadlines(), one_at_a_time(), who_yields()]
}

fn quanta() -> Trace {
    let title = "10 ms while one thread waits, 5 ms while more do; checked once a millisecond";
    let mut trace = Trace::begun("vm", title, 1, 0);
    trace.later_us(300);
    trace.outside(Kind::New, 1);
    trace.later_us(9000);
    trace.later_us(700);
    trace.asks(0, Kind::Preempt, 0);
    trace.answers(0, 2, Code::Complete, 2);
    trace.outside(Kind::New, 2);
    trace.later_us(4000);
    trace.later_us(1000);
    trace
}

fn bound() -> Trace {
    let title = "a thread that has waited for the bound is next, within a millisecond";
    let mut trace = Trace::begun("vm:quantum_ms=10,latency_ms=12,weight=1/1000", title, 1, 0);
    trace.classes[1] = 1;
    trace.outside(Kind::New, 1);
    trace.later_us(10_000);
    trace.asks(0, Kind::Preempt, 0);
    trace.answers(0, 2, Code::Complete, 2);
    trace.later_us(10_000);
    trace.later_us(1500);
    trace.later_us(500);
    trace.asks(0, Kind::Preempt, 1);
    trace
}

fn sticky() -> Trace {
    let title = "a thread returns to its last core, if that core asks";
    let mut trace = Trace::begun("vm", title, 3, 0);
    for core in 0..3 {
        trace.asks(core, Kind::Blocked, core.into());
    }
    for thread in [2, 0, 1] {
        trace.outside(Kind::Wakeup, thread);
    }
    trace
}

fn resync() -> Trace {
    let title = "a snapshot makes all threads equal";
    let mut trace = Trace::begun("vm", title, 1, 0);
    trace.outside(Kind::New, 1);
    trace.later_us(7000);
    trace.snapshot(&[RUNS], &[State::Running, State::Runnable]);
    trace.later_us(9000);
    trace.later_us(1000);
    trace
}

pub fn vm() -> Vec<Trace> {
    vec![quanta(), bound(), sticky(), resync()]
}

//! Tests of the policies alone: entries in, decisions out. No host, no link, no thread, no clock.

use std::collections::VecDeque;

use super::*;
use two_class::URGENT;
use wave_core::brain::Brain;
use wave_core::clock::Nanos;
use wave_core::layout::Config;
use wave_core::message::Upstream;
use wave_core::message::{Decision, Message, Sequence, Subject};
use wave_core::outcome::{Code, Outcome};
use wave_core::policy::Decisions;
use wave_core::snapshot::{CoreRecord, Record};
use wave_core::snapshot::{Snapshot, State};
use wave_sched::wire::Event;
use wave_sched::wire::Kind;

const ORDINARY: u16 = 1;

/// One core, as a host would report it.
struct Host {
    brain: Brain<Box<dyn Policy + Send>>,
    sequences: Vec<Sequence>,
    run: u32,
}

impl Host {
    /// A host that has sent its first snapshot: one idle core, no threads.
    fn new(policy: &str) -> Host {
        let config = Config { subjects: 16, prestage: 2, ..Config::coherent(1) };
        let mut brain = Brain::new(&config, POLICIES.make(policy, &config).unwrap(), ());
        let cores = vec![CoreRecord { asks: true, ..CoreRecord::default() }];
        brain.on_snapshot(Nanos(0), &Snapshot { records: Vec::new(), cores });
        Host { brain, sequences: vec![Sequence(0); 16], run: 0 }
    }

    fn event(&mut self, kind: Kind, id: u32, class: u16) -> Message {
        let sequence = &mut self.sequences[id as usize];
        *sequence = sequence.next();
        let thread = Subject { id, generation: 1 };
        Event { kind, thread, sequence: *sequence, core: 0, class, ran: Nanos(0) }.to_message()
    }

    /// A thread is created; the core goes on.
    fn spawns(&mut self, id: u32, class: u16) {
        let message = Some(self.event(Kind::New, id, class));
        self.brain.on_entry(Nanos(0), 0, &Upstream { message, outcome: None, asks: false });
    }

    /// The core commits or refuses a decision.
    fn answers(&mut self, decision: &Decision, code: Code) {
        let complete = code == Code::Complete;
        self.run += u32::from(complete);
        let outcome = Some(Outcome { txn: decision.txn, code, run: self.run });
        let entry = Upstream { message: None, outcome, asks: !complete };
        self.brain.on_entry(Nanos(0), 0, &entry);
    }

    /// The running thread ends, and the core finds no decision.
    fn ends(&mut self, id: u32, class: u16) {
        let message = Some(self.event(Kind::Dead, id, class));
        self.brain.on_entry(Nanos(0), 0, &Upstream { message, outcome: None, asks: true });
    }

    fn decisions(&mut self) -> Vec<Decision> {
        let mut out = Decisions::default();
        self.brain.decide(Nanos(0), 64, &mut out);
        out.staged.into_iter().map(|(_core, decision)| decision).collect()
    }
}

fn ids(decisions: &[Decision]) -> Vec<u32> {
    decisions.iter().map(|decision| decision.subject.id).collect()
}

#[test]
fn urgent_threads_go_first_and_each_class_in_order() {
    let mut host = Host::new("two-class");
    host.spawns(1, ORDINARY);
    host.spawns(2, ORDINARY);
    host.spawns(3, URGENT);
    host.spawns(4, URGENT);
    // The core asks, and has room for two.
    let staged = host.decisions();
    assert_eq!(ids(&staged), [3, 4]);
    for (decision, id) in staged.iter().zip([3, 4]) {
        host.answers(decision, Code::Complete);
        assert!(ids(&host.decisions()).is_empty(), "a running core gets no ordinary thread");
        host.ends(id, URGENT);
    }
    let staged = host.decisions();
    assert_eq!(ids(&staged), [1]);
    host.answers(&staged[0], Code::Complete);
    // An urgent thread that comes later still overtakes the waiting ordinary one.
    host.spawns(5, URGENT);
    assert_eq!(ids(&host.decisions()), [5]);
}

#[test]
fn a_thread_refused_by_a_core_waits_again() {
    let mut host = Host::new("two-class");
    host.spawns(1, URGENT);
    let staged = host.decisions();
    host.answers(&staged[0], Code::Affinity);
    assert_eq!(ids(&host.decisions()), [1]);
}

#[test]
fn a_stale_decision_is_not_repeated_before_the_next_message() {
    let mut host = Host::new("two-class");
    host.spawns(1, URGENT);
    let staged = host.decisions();
    host.answers(&staged[0], Code::TargetStale);
    assert!(host.decisions().is_empty());
    // The message that explains the stale decision arrives.
    let message = Some(host.event(Kind::Yield, 1, URGENT));
    let entry = Upstream { message, outcome: None, asks: false };
    host.brain.on_entry(Nanos(0), 0, &entry);
    let again = host.decisions();
    assert_eq!((ids(&again), again[0].sequence), (vec![1], Sequence(2)));
}

#[test]
fn a_snapshot_is_the_truth() {
    let mut host = Host::new("two-class");
    host.spawns(1, URGENT);
    host.spawns(2, URGENT);
    host.spawns(3, ORDINARY);
    let record = |id, sequence, state, class| Record {
        subject: Subject { id, generation: 1 },
        sequence: Sequence(sequence),
        state,
        core: 0,
        class,
    };
    // Thread 1 has blocked, but its message was lost. Thread 9, an urgent one, is new to the agent.
    let records = vec![
        record(1, 2, State::Blocked, URGENT),
        record(2, 1, State::Runnable, URGENT),
        record(3, 1, State::Runnable, ORDINARY),
        record(9, 4, State::Runnable, URGENT),
    ];
    let cores = vec![CoreRecord { asks: true, ..CoreRecord::default() }];
    host.brain.on_snapshot(Nanos(0), &Snapshot { records, cores });
    let mut ran = Vec::new();
    loop {
        let decisions = host.decisions();
        if decisions.is_empty() {
            break;
        }
        for decision in decisions {
            ran.push(decision.subject.id);
            host.answers(&decision, Code::Complete);
            host.sequences[decision.subject.id as usize] = decision.sequence;
            let class = if decision.subject.id != 3 { URGENT } else { ORDINARY };
            host.ends(decision.subject.id, class);
        }
    }
    assert_eq!(ran, [2, 9, 3]);
}

#[test]
fn classes_run_in_proportion_to_their_tickets() {
    let mut host = Host::new("lottery:tickets=3/1");
    for id in 0..8 {
        host.spawns(id, (id % 2) as u16);
    }
    let (mut runs, mut staged) = ([0; 2], VecDeque::new());
    for _ in 0..4_000 {
        staged.extend(host.decisions());
        let decision = staged.pop_front().unwrap();
        let class = (decision.subject.id % 2) as u16;
        runs[usize::from(class)] += 1;
        assert_eq!(decision.argument, 1_000_000, "the slice in nanoseconds");
        host.answers(&decision, Code::Complete);
        // The thread's slice is over, and it waits again.
        let message = Some(host.event(Kind::Preempt, decision.subject.id, class));
        let asks = staged.is_empty();
        host.brain.on_entry(Nanos(0), 0, &Upstream { message, outcome: None, asks });
    }
    assert!((2_800..3_200).contains(&runs[0]), "{runs:?}");
}

//! A FIFO policy that leaves it to the host to end runs: each decision names a slice.

use std::collections::VecDeque;

use wave_core::clock::Nanos;
use wave_core::message::{Decision, Message, Sequence, Subject};
use wave_core::outcome::{Code, Outcome};
use wave_core::policy::{Desk, Policy, Progress};
use wave_core::snapshot::{Snapshot, State};
use wave_sched::wire::{self, Event};

const SLICE: Nanos = Nanos::from_millis(5);

#[derive(Default)]
pub struct Sliced {
    waiting: VecDeque<(Subject, Sequence)>,
}

impl Policy for Sliced {
    fn name(&self) -> &'static str {
        "sliced"
    }

    fn on_message(&mut self, _now: Nanos, message: &Message) {
        let Some(event) = Event::from_message(message) else { return };
        self.waiting.retain(|(thread, _)| thread.id != event.thread.id);
        if event.kind.leaves_runnable() {
            self.waiting.push_back((event.thread, event.sequence));
        }
    }

    fn on_outcome(&mut self, _now: Nanos, _core: u16, decision: &Decision, outcome: Outcome) {
        if matches!(outcome.code, Code::Affinity | Code::CpuOffline) {
            self.waiting.push_back((decision.subject, decision.sequence));
        }
    }

    fn decide(&mut self, _now: Nanos, desk: &mut Desk<'_>) -> Progress {
        while let Some(core) = desk.asking() {
            let Some((thread, sequence)) = self.waiting.pop_front() else { break };
            desk.stage(core, wire::run(thread, sequence, SLICE));
        }
        if desk.is_full() { Progress::More } else { Progress::Done }
    }

    fn next_deadline(&self) -> Option<Nanos> {
        None
    }

    fn resync(&mut self, _now: Nanos, snapshot: &Snapshot) {
        let runnable = snapshot.records.iter().filter(|record| record.state == State::Runnable);
        self.waiting = runnable.map(|record| (record.subject, record.sequence)).collect();
    }
}

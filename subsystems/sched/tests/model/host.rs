//! The modelled host's true state: threads and cores.

use std::collections::VecDeque;

use wave_core::clock::Nanos;
use wave_core::message::{Decision, Sequence, Subject, TxnId, Upstream};
use wave_core::outcome::{Code, Outcome};
use wave_core::snapshot::{CoreRecord, Record, Snapshot, State};
use wave_sched::wire::{DECISION_RUN, Event, Kind};

#[derive(Clone, Copy, Debug)]
pub struct Thread {
    pub subject: Subject,
    pub sequence: Sequence,
    pub state: State,
    pub core: u16,
    pub class: u16,
    /// Whether it found no request when it last looked, and awaits one.
    pub awaits: bool,
    /// Whether there are requests for it that it has not seen.
    pub requested: bool,
}

#[derive(Debug)]
pub struct Core {
    pub running: Option<u32>,
    pub asks: bool,
    pub run: u32,
    txn: TxnId,
    /// The last run that the core was asked to end.
    pub word: Option<u32>,
    /// Whether the core's own timer will end the run.
    pub has_slice: bool,
    /// Whether an entry of the core was lost, and the agent has not had its state since.
    pub unsure: bool,
    /// Whether the core does not use the agent's window yet: it decides by itself, and its messages are lost.
    pub is_away: bool,
    /// Decisions that the core has not read.
    pub down: VecDeque<Decision>,
    /// Decisions whose outcomes have not reached the agent.
    pub sent: VecDeque<Decision>,
}

impl Core {
    pub fn is_preempted(&self) -> bool {
        self.has_slice || self.word == Some(self.run)
    }
}

#[derive(Debug)]
pub struct Host {
    pub threads: Vec<Thread>,
    pub cores: Vec<Core>,
    /// Entries that have not reached the agent: from each core, then from outside.
    pub up: Vec<VecDeque<Upstream>>,
}

impl Host {
    pub fn new(cores: u16, subjects: u32) -> Host {
        let core = |_| Core {
            running: None,
            asks: true,
            run: 0,
            txn: TxnId::new(0),
            word: None,
            has_slice: false,
            unsure: false,
            is_away: false,
            down: VecDeque::new(),
            sent: VecDeque::new(),
        };
        let thread = |id| Thread {
            subject: Subject { id, generation: 0 },
            sequence: Sequence(0),
            state: State::Free,
            core: 0,
            class: 0,
            awaits: false,
            requested: false,
        };
        Host {
            threads: (0..subjects).map(thread).collect(),
            cores: (0..cores).map(core).collect(),
            up: vec![VecDeque::new(); usize::from(cores) + 1],
        }
    }

    pub fn in_state(&self, state: State) -> Vec<u32> {
        let some = self.threads.iter().filter(|thread| thread.state == state);
        some.map(|thread| thread.subject.id).collect()
    }

    /// A change of state. Returns the event that reports it.
    pub fn change(&mut self, id: u32, kind: Kind, core: u16) -> Event {
        let thread = &mut self.threads[id as usize];
        thread.sequence = thread.sequence.next();
        thread.state = match kind {
            Kind::Blocked => State::Blocked,
            Kind::Dead | Kind::Departed => State::Free,
            _ => State::Runnable,
        };
        if kind == Kind::New {
            thread.subject.generation += 1;
            thread.requested = false;
        }
        thread.awaits = kind == Kind::Awaits;
        let Thread { subject, sequence, class, .. } = *thread;
        Event { kind, thread: subject, sequence, core, class, ran: Nanos(0) }
    }

    /// Core `at` reads a decision, and refuses it if `refused`, or if it may not be committed.
    pub fn answer(&mut self, at: usize, decision: &Decision, refused: bool) -> Outcome {
        assert_eq!(decision.kind, DECISION_RUN);
        let code = self.commit(at, decision, refused);
        let core = &mut self.cores[at];
        core.txn = decision.txn;
        core.asks = code != Code::Complete;
        if code == Code::Complete {
            core.running = Some(decision.subject.id);
            core.run += 1;
            core.has_slice = decision.argument != 0;
        }
        Outcome { txn: decision.txn, code, run: core.run }
    }

    /// Another agent attaches: each core decides by itself until its next switch.
    pub fn take_over(&mut self) {
        for core in &mut self.cores {
            (core.is_away, core.unsure, core.txn, core.word) = (true, false, TxnId::new(0), None);
            core.down.clear();
            core.sent.clear();
        }
        self.up.iter_mut().for_each(VecDeque::clear);
    }

    /// A core without an agent: its thread yields, and the first that waits runs. Returns whether one does.
    pub fn decide_alone(&mut self, at: usize) -> bool {
        let runs = self.cores[at].running.take();
        let next = self.threads.iter().find(|thread| thread.state == State::Runnable);
        let next = next.map(|thread| thread.subject.id);
        if let Some(id) = runs {
            self.change(id, Kind::Yield, at as u16);
        }
        let core = &mut self.cores[at];
        (core.running, core.asks, core.has_slice) = (next, next.is_none(), false);
        if let Some(id) = next {
            core.run += 1;
            let thread = &mut self.threads[id as usize];
            (thread.state, thread.core) = (State::Running, at as u16);
        }
        next.is_some()
    }

    /// Whether a core would commit this decision now.
    pub fn may_run(&self, decision: &Decision) -> bool {
        self.threads.get(decision.subject.id as usize).is_some_and(|thread| {
            thread.subject == decision.subject
                && thread.sequence == decision.sequence
                && thread.state == State::Runnable
        })
    }

    fn commit(&mut self, at: usize, decision: &Decision, refused: bool) -> Code {
        let Some(thread) = self.threads.get_mut(decision.subject.id as usize) else {
            return Code::TargetNotFound;
        };
        if thread.subject != decision.subject || thread.state == State::Free {
            return Code::TargetNotFound;
        }
        if thread.sequence != decision.sequence {
            return Code::TargetStale;
        }
        match thread.state {
            State::Runnable if refused => Code::Affinity,
            State::Runnable => {
                (thread.state, thread.core) = (State::Running, at as u16);
                Code::Complete
            }
            State::Running => Code::TargetOnCpu,
            _ => Code::TargetNotRunnable,
        }
    }

    pub fn snapshot(&self) -> Snapshot {
        let used = self.threads.iter().filter(|thread| thread.sequence.0 != 0);
        let record = |thread: &Thread| Record {
            subject: thread.subject,
            sequence: thread.sequence,
            state: thread.state,
            core: thread.core,
            class: thread.class,
        };
        let core = |core: &Core| CoreRecord { run: core.run, txn: core.txn, asks: core.asks };
        Snapshot {
            records: used.map(record).collect(),
            cores: self.cores.iter().map(core).collect(),
        }
    }
}

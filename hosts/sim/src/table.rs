//! The modelled host's threads: the truth that decisions are checked against.

use std::collections::BTreeSet;

use wave_core::clock::Nanos;
use wave_core::message::{Sequence, Subject};
use wave_core::outcome::Code;
use wave_core::planted::{Planted, is_planted};
use wave_core::snapshot::{Record, State};
use wave_sched::wire::{Event, Kind, NO_CORE};

/// One thread.
#[derive(Clone, Debug)]
pub struct Thread {
    generation: u32,
    sequence: Sequence,
    state: State,
    core: u16,
    used: bool,
    /// Runnable, with nothing to do before a request comes.
    awaits: bool,
    /// The class that its application gave it.
    pub class: u16,
    /// What it has still to run before it stops by itself.
    pub remaining: Nanos,
    /// What its application remembers of it.
    pub tag: u64,
}

/// All threads of an enclave.
#[derive(Clone, Debug)]
pub struct Table {
    threads: Vec<Thread>,
    free: Vec<u32>,
    runnable: BTreeSet<u32>,
}

impl Table {
    /// Room for so many at once.
    pub fn new(count: u32) -> Table {
        let thread = Thread {
            generation: 0,
            sequence: Sequence(0),
            state: State::Free,
            core: 0,
            used: false,
            awaits: false,
            class: 0,
            remaining: Nanos(0),
            tag: 0,
        };
        Table {
            threads: vec![thread; count as usize],
            free: (0..count).rev().collect(),
            runnable: BTreeSet::new(),
        }
    }

    /// A thread, by its id.
    pub fn thread(&mut self, id: u32) -> &mut Thread {
        &mut self.threads[id as usize]
    }

    /// What identifies a thread now.
    pub fn subject(&self, id: u32) -> Subject {
        Subject { id, generation: self.threads[id as usize].generation }
    }

    /// The version of a thread's state.
    pub fn sequence(&self, id: u32) -> Sequence {
        self.threads[id as usize].sequence
    }

    /// What a thread does.
    pub fn state(&self, id: u32) -> State {
        self.threads[id as usize].state
    }

    /// Threads that wait for a core, by id.
    pub fn runnable(&self) -> impl Iterator<Item = u32> + '_ {
        self.runnable.iter().copied()
    }

    /// Whether a thread waits for a decision at this sequence.
    pub fn waits(&self, subject: Subject, at: Sequence) -> bool {
        let thread = &self.threads[subject.id as usize];
        let same = thread.generation == subject.generation && thread.sequence == at;
        same && thread.state == State::Runnable && !thread.awaits
    }

    /// Those that wait for a decision, from the id `from` on, then the others.
    pub fn waiting_from(&self, from: u32) -> impl Iterator<Item = (Subject, Sequence)> + '_ {
        let ids = self.runnable.range(from..).chain(self.runnable.range(..from));
        let waiting = ids.filter(|id| !self.threads[**id as usize].awaits);
        waiting.map(|id| (self.subject(*id), self.sequence(*id)))
    }

    /// Creates a thread, or blocks one that will be woken: `None` where every id is taken.
    pub fn create(&mut self, class: u16, runnable: bool) -> Option<(u32, Event)> {
        let id = self.free.pop()?;
        let thread = &mut self.threads[id as usize];
        thread.used = true;
        thread.generation += 1;
        thread.class = class;
        if !runnable {
            // It is announced when it first wakes.
            thread.state = State::Blocked;
            return Some((id, self.event(id, Kind::New, NO_CORE, Nanos(0))));
        }
        Some((id, self.change(id, State::Runnable, Kind::New, NO_CORE, Nanos(0))))
    }

    /// Wakes a blocked thread.
    pub fn wake(&mut self, id: u32, core: u16) -> Event {
        assert_eq!(
            self.threads[id as usize].state,
            State::Blocked,
            "only what is blocked is woken"
        );
        self.change(id, State::Runnable, Kind::Wakeup, core, Nanos(0))
    }

    /// The thread that runs on `core` leaves it.
    pub fn leave(&mut self, id: u32, kind: Kind, core: u16, ran: Nanos) -> Event {
        let thread = &self.threads[id as usize];
        assert_eq!((thread.state, thread.core), (State::Running, core), "it runs there");
        let state = match kind {
            Kind::Blocked => State::Blocked,
            Kind::Dead | Kind::Departed => State::Free,
            _ => State::Runnable,
        };
        self.change(id, state, kind, core, ran)
    }

    fn change(&mut self, id: u32, state: State, kind: Kind, core: u16, ran: Nanos) -> Event {
        let thread = &mut self.threads[id as usize];
        thread.sequence = thread.sequence.next();
        thread.state = state;
        thread.awaits = kind == Kind::Awaits;
        match state {
            State::Runnable => {
                self.runnable.insert(id);
            }
            State::Free => self.free.push(id),
            _ => {}
        }
        self.event(id, kind, core, ran)
    }

    fn event(&self, id: u32, kind: Kind, core: u16, ran: Nanos) -> Event {
        let thread = &self.threads[id as usize];
        Event {
            kind,
            thread: self.subject(id),
            sequence: thread.sequence,
            core,
            class: thread.class,
            ran,
        }
    }

    /// Commits a decision: the one place where a thread gets onto a core.
    pub fn commit(&mut self, core: u16, subject: Subject, expected: Sequence) -> Result<u32, Code> {
        let thread = self.threads.get_mut(subject.id as usize).ok_or(Code::TargetNotFound)?;
        let checks_generation = !is_planted(Planted::GenerationUnchecked);
        let other_life = thread.generation != subject.generation && checks_generation;
        if other_life || thread.state == State::Free {
            return Err(Code::TargetNotFound);
        }
        if thread.sequence != expected && !is_planted(Planted::SequenceUnchecked) {
            return Err(Code::TargetStale);
        }
        match thread.state {
            State::Runnable => {}
            State::Running => return Err(Code::TargetOnCpu),
            State::Blocked | State::Free => return Err(Code::TargetNotRunnable),
        }
        thread.state = State::Running;
        thread.core = core;
        self.runnable.remove(&subject.id);
        Ok(subject.id)
    }

    /// Every id that was ever used.
    pub fn records(&self) -> impl Iterator<Item = Record> + '_ {
        self.threads.iter().enumerate().filter(|(_, thread)| thread.used).map(|(id, thread)| {
            Record {
                subject: Subject { id: id as u32, generation: thread.generation },
                sequence: thread.sequence,
                state: thread.state,
                core: thread.core,
                class: thread.class,
            }
        })
    }
}

//! The thread table: the source of truth, and the only place where a thread changes its state.
//!
//! One 64-bit word per id holds everything that a decision is checked against, so that a commit is
//! one compare-and-swap:
//!
//! ```text
//! bits 63..32 sequence | 31..8 generation | 3..0 state
//! ```
//!
//! Writers of the word: while the thread runs, only its core, which therefore releases it with a plain store (a locked
//! instruction would wait until the last message's line has come from the agent's cache); while it is runnable, the core that
//! commits it, by compare-and-swap; while it is parked or waits, its waker, by compare-and-swap. A waker of a thread that still
//! runs leaves a mark in the thread's *token* word.
//!
//! # Orderings
//!
//! Each ordering is as weak as it may be, and `tests/loom.rs` fails if any is weakened. `Release` and `Acquire` hand over the
//! host's data and the class with the word, and a waker's writes with its token; read-modify-writes continue the last owner's
//! release. `SeqCst` is only for the race between blocking and waking: one side accesses the word and then the tokens, the
//! other the tokens and then the word. The race with the switch to the fallback has its own barrier
//! ([`super::fallback::Fallback::enter`]).
//!
//! # Events
//!
//! Each change that a message reports returns its [`Event`], which the host sends afterwards. A commit returns none: its outcome
//! reports it.

use std::boxed::Box;

use wave_core::clock::Nanos;
use wave_core::message::{Sequence, Subject};
use wave_core::outcome::Code;
use wave_core::planted::{Planted, is_planted};
use wave_core::snapshot::{Record, State};

use super::sync::{AtomicU8, AtomicU16, AtomicU64, Ordering};
use crate::wire::{Event, Kind, NO_CORE};

const FREE: u64 = 0;
const RUNNABLE: u64 = 1;
const RUNNING: u64 = 2;
/// The thread waits for [`Table::unpark`].
const PARKED: u64 = 3;
/// The thread waits for [`Table::wake`].
const WAITING: u64 = 4;
/// The thread is runnable but awaits a request, and needs no decision before one comes.
const AWAITING: u64 = 5;
const STATE: u64 = 0xf;
/// Token: an unpark came before the park.
const NOTIFIED: u8 = 1;
/// Token: a runtime wake-up came before the thread had left its core.
const WOKEN: u8 = 2;
const GENERATION_SHIFT: u32 = 8;
const GENERATION_MASK: u32 = (1 << 24) - 1;
const SEQUENCE_ONE: u64 = 1 << 32;

fn generation(word: u64) -> u32 {
    (word >> GENERATION_SHIFT) as u32 & GENERATION_MASK
}

fn sequence(word: u64) -> Sequence {
    Sequence((word >> 32) as u32)
}

/// The word with the new `state` and the next sequence.
fn moved(word: u64, state: u64) -> u64 {
    (word.wrapping_add(SEQUENCE_ONE) & !STATE) | state
}

const fn is_runnable(word: u64) -> bool {
    matches!(word & STATE, RUNNABLE | AWAITING)
}

fn state(word: u64) -> State {
    match word & STATE {
        FREE => State::Free,
        RUNNABLE | AWAITING => State::Runnable,
        RUNNING => State::Running,
        _ => State::Blocked,
    }
}

/// Why a thread leaves its core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Leave {
    /// The thread yields, and stays runnable.
    Yield,
    /// The thread is preempted, and stays runnable.
    Preempt,
    /// The thread waits for [`Table::unpark`].
    Park,
    /// The thread waits for [`Table::wake`].
    Wait,
    /// The thread has ended; its id may be reused.
    Exit,
    /// The thread is runnable but has nothing to do before a request comes. If it was unparked before, it is ready at once.
    Await,
}

impl Leave {
    /// The variant with this number (`leave as u8`). Panics if there is none.
    pub fn from_number(number: u8) -> Leave {
        use Leave::{Await, Exit, Park, Preempt, Wait, Yield};
        [Yield, Preempt, Park, Wait, Exit, Await][usize::from(number)]
    }

    const fn kind(self) -> Kind {
        match self {
            Leave::Yield => Kind::Yield,
            Leave::Preempt => Kind::Preempt,
            Leave::Park | Leave::Wait => Kind::Blocked,
            Leave::Exit => Kind::Dead,
            Leave::Await => Kind::Awaits,
        }
    }
}

/// The events that a host sends after a thread has left its core, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// The change of state when the thread left its core.
    pub event: Event,
    /// A token was pending, so the thread is runnable again. If the core was late, this may concern the thread's next park, or
    /// the next generation of the id.
    pub woken: Option<Event>,
}

/// The state of an id. Two slots never share a cache line, nor a pair of lines that is fetched together.
#[repr(align(128))]
struct Slot<T> {
    word: AtomicU64,
    tokens: AtomicU8,
    core: AtomicU16,
    class: AtomicU16,
    own: T,
}

impl<T> Slot<T> {
    /// Takes a token if it is set. Only one of several takers gets it, and sees the waker's earlier writes.
    #[inline]
    fn take_token(&self, token: u8) -> bool {
        self.tokens.load(Ordering::SeqCst) & token != 0
            && self.tokens.fetch_and(!token, Ordering::Acquire) & token != 0
    }
}

/// The event of a change that left the thread in state `word`, on no core.
#[inline]
fn event(kind: Kind, id: u32, word: u64, class: u16) -> Event {
    let thread = Subject { id, generation: generation(word) };
    let (core, ran) = (NO_CORE, Nanos(0));
    Event { kind, thread, sequence: sequence(word), core, class, ran }
}

/// The threads of an enclave, by id, each with host data of type `T`.
///
/// A thread has one owner at a time: its spawner until it is runnable, then the core that committed it. Each owner sees the
/// previous owner's writes to `T`, also those of the last owner of the id's previous generation. So a host may keep owner-only
/// data in `T`.
pub struct Table<T> {
    slots: Box<[Slot<T>]>,
}

impl<T> core::fmt::Debug for Table<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Table").field("slots", &self.slots.len()).finish_non_exhaustive()
    }
}

impl<T> Table<T> {
    /// A table of `count` free ids, from 0, each with the host data that `own` returns.
    pub fn new(count: u32, mut own: impl FnMut() -> T) -> Table<T> {
        let slot = |_| Slot {
            word: AtomicU64::new(FREE),
            tokens: AtomicU8::new(0),
            core: AtomicU16::new(0),
            class: AtomicU16::new(0),
            own: own(),
        };
        Table { slots: (0..count).map(slot).collect() }
    }

    /// The host data of an id. Panics for an id outside the table.
    #[inline]
    pub fn own(&self, id: u32) -> &T {
        &self.slots[id as usize].own
    }

    /// The host data of an id. `None` for an id outside the table.
    #[inline]
    pub fn get(&self, id: u32) -> Option<&T> {
        self.slots.get(id as usize).map(|slot| &slot.own)
    }

    /// An id with its generation. For a free id that is the last generation.
    #[inline]
    pub fn subject(&self, id: u32) -> Subject {
        let word = self.slots[id as usize].word.load(Ordering::Relaxed);
        Subject { id, generation: generation(word) }
    }

    /// A thread's class: chosen by its spawner, until [`Table::set_class`] changes it.
    #[inline]
    pub fn class(&self, id: u32) -> u16 {
        self.slots[id as usize].class.load(Ordering::Relaxed)
    }

    /// Changes the class of a blocked thread, which its next message reports. To be called by its waker.
    pub fn set_class(&self, id: u32, class: u16) {
        self.slots[id as usize].class.store(class, Ordering::Relaxed);
    }

    /// The core that last committed a thread with this id; 0 if none has.
    pub fn core(&self, id: u32) -> u16 {
        self.slots[id as usize].core.load(Ordering::Relaxed)
    }

    /// A thread's state, as a snapshot reports it: runnable while it waits for a decision or awaits a request.
    pub fn state(&self, id: u32) -> State {
        state(self.slots[id as usize].word.load(Ordering::Relaxed))
    }

    /// Starts the next generation of a free id as a runnable thread, after `begin` has written the id's host data. `core`: the
    /// spawner's core, or [`NO_CORE`]. Panics for an id outside the table.
    ///
    /// The caller took the id from its list of free ids, so no other caller creates a thread with it at the same time.
    pub fn create(&self, id: u32, class: u16, core: u16, begin: impl FnOnce(&T)) -> Event {
        let word = self.next_generation(id, class);
        let slot = &self.slots[id as usize];
        begin(&slot.own);
        let runnable = moved(word, RUNNABLE);
        slot.word.store(runnable, Ordering::Release);
        Event { core, ..event(Kind::New, id, runnable, class) }
    }

    /// As [`Table::create`], but the thread is parked, and its first unpark announces it to the agent, as a wake-up. The
    /// unparking thread writes the host data.
    pub fn create_parked(&self, id: u32, class: u16) {
        let word = self.next_generation(id, class);
        self.slots[id as usize].word.store(word | PARKED, Ordering::Release);
    }

    /// The word of an id's next generation, still free.
    fn next_generation(&self, id: u32, class: u16) -> u64 {
        let slot = &self.slots[id as usize];
        // The writes of the previous generation's last owner to `own` are visible to `begin`.
        let old = slot.word.load(Ordering::Acquire);
        debug_assert_eq!(old & STATE, FREE);
        slot.class.store(class, Ordering::Relaxed);
        slot.tokens.store(0, Ordering::Relaxed);
        let generation = (generation(old) + 1) & GENERATION_MASK;
        u64::from(sequence(old).0) << 32 | u64::from(generation) << GENERATION_SHIFT
    }

    /// Commits a decision: the thread gets onto `core`. No other function puts a thread on a core. Returns the thread's id. A
    /// refusal returns its code and changes nothing: `TargetNotFound` for an id outside the table, a free id or another
    /// generation; `TargetStale` for another sequence than `expected`; `TargetOnCpu` and `TargetNotRunnable` for the state.
    #[inline]
    pub fn commit(&self, core: u16, subject: Subject, expected: Sequence) -> Result<u32, Code> {
        let slot = self.slots.get(subject.id as usize).ok_or(Code::TargetNotFound)?;
        let mut word = slot.word.load(Ordering::Relaxed);
        loop {
            let is_other_generation =
                generation(word) != subject.generation && !is_planted(Planted::GenerationUnchecked);
            if is_other_generation || word & STATE == FREE {
                return Err(Code::TargetNotFound);
            }
            if sequence(word) != expected && !is_planted(Planted::SequenceUnchecked) {
                return Err(Code::TargetStale);
            }
            match word & STATE {
                RUNNABLE | AWAITING => {}
                RUNNING => return Err(Code::TargetOnCpu),
                _ => return Err(Code::TargetNotRunnable),
            }
            let running = word & !STATE | RUNNING;
            match slot.word.compare_exchange_weak(
                word,
                running,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    slot.core.store(core, Ordering::Relaxed);
                    return Ok(subject.id);
                }
                Err(now) => word = now,
            }
        }
    }

    /// The thread that runs on `core` leaves it, after a run of `ran`. To be called by that core alone, which owns the thread
    /// until then. If the thread has ended, its id may be reused after this.
    #[inline]
    pub fn leave(&self, id: u32, why: Leave, core: u16, ran: Nanos) -> Left {
        let slot = &self.slots[id as usize];
        let old = slot.word.load(Ordering::Relaxed);
        debug_assert_eq!(old & STATE, RUNNING);
        // Read before the change: afterwards the id may soon belong to another thread.
        let class = match is_planted(Planted::ClassForgotten) {
            true => 0,
            false => slot.class.load(Ordering::Relaxed),
        };
        let (state, token) = match why {
            Leave::Yield | Leave::Preempt => (RUNNABLE, None),
            Leave::Exit => (FREE, None),
            Leave::Await => (AWAITING, Some(NOTIFIED)),
            Leave::Park => (PARKED, Some(NOTIFIED)),
            Leave::Wait => (WAITING, Some(WOKEN)),
        };
        let new = moved(old, state);
        let woken = match token {
            // [`super::fallback::Fallback::enter`] says what this plain store requires of the fallback.
            None => {
                slot.word.store(new, Ordering::Release);
                None
            }
            Some(token) => {
                slot.word.store(new, Ordering::SeqCst);
                if slot.take_token(token) { self.rouse(id, None, token) } else { None }
            }
        };
        let event = Event { core, ran, ..event(why.kind(), id, new, class) };
        Left { event, woken: woken.map(|woken| Event { core, ..woken }) }
    }

    /// Ends a park or an await, or leaves a token for the next one; does nothing to a thread that has ended. If a thread became
    /// runnable, returns the event to send. The event names no core; a caller on a core sets it.
    pub fn unpark(&self, thread: Subject) -> Option<Event> {
        self.rouse(thread.id, Some(thread.generation), NOTIFIED)
    }

    /// Ends a wait ([`Leave::Wait`]), or leaves a token for the next one. Otherwise as [`Table::unpark`].
    pub fn wake(&self, thread: Subject) -> Option<Event> {
        self.rouse(thread.id, Some(thread.generation), WOKEN)
    }

    /// Makes a thread runnable that is blocked until `token` comes, or leaves `token` for it. `expected` is the thread's
    /// generation; `None`: the caller took `token` from this id, and gives it to the current generation.
    ///
    /// [`Table::leave`] blocks the thread first and then looks for a token; this function leaves its token first and then
    /// checks whether the thread has blocked. Both in sequentially consistent order, so at least one sees the other, and takes
    /// the token. The side that takes a token may be late: the thread may have been woken by another waker, run, and ended, and
    /// the token may be for its next run or for the id's next generation. So the taker wakes the thread that is blocked now, or
    /// leaves the token again.
    ///
    /// A waker that races with exit and reuse may leave a token for the next generation, whose next park then returns early.
    fn rouse(&self, id: u32, mut expected: Option<u32>, token: u8) -> Option<Event> {
        let slot = self.slots.get(id as usize)?;
        let ends = |word: u64| match word & STATE {
            PARKED | AWAITING => token == NOTIFIED,
            WAITING => token == WOKEN,
            _ => false,
        };
        loop {
            let old = slot.word.load(Ordering::Acquire);
            let is_other = expected.is_some_and(|expected| expected != generation(old));
            if is_other || old & STATE == FREE {
                return None;
            }
            if ends(old) {
                let new = moved(old, RUNNABLE);
                let class = slot.class.load(Ordering::Relaxed);
                let exchange =
                    slot.word.compare_exchange(old, new, Ordering::Release, Ordering::Relaxed);
                if exchange.is_ok() {
                    return Some(event(Kind::Wakeup, id, new, class));
                }
                continue;
            }
            slot.tokens.fetch_or(token, Ordering::SeqCst);
            if !ends(slot.word.load(Ordering::SeqCst)) || !slot.take_token(token) {
                return None;
            }
            expected = None;
        }
    }

    /// Takes an unpark's token, if there is one: the thread then need not park. To be called by the running thread.
    pub fn take_notified(&self, id: u32) -> bool {
        self.slots[id as usize].take_token(NOTIFIED)
    }

    /// Whether the thread still waits for a decision at sequence `at`. False for a thread that awaits a request.
    pub fn waits(&self, subject: Subject, at: Sequence) -> bool {
        let word = self.slots[subject.id as usize].word.load(Ordering::Relaxed);
        generation(word) == subject.generation && sequence(word) == at && word & STATE == RUNNABLE
    }

    /// Every runnable thread with its sequence, by id, including those that await requests. Threads may change during the scan.
    pub fn runnable(&self) -> impl Iterator<Item = (Subject, Sequence)> + '_ {
        self.find(0, is_runnable)
    }

    /// Every thread that waits for a decision, with its sequence, by id: from `from` on, then from 0. Threads that await
    /// requests do not count.
    pub fn waiting_from(&self, from: u32) -> impl Iterator<Item = (Subject, Sequence)> + '_ {
        self.find(from, |word| word & STATE == RUNNABLE)
    }

    /// The threads whose words satisfy `is_so`: ids from `from` to the last, then from 0.
    fn find(&self, from: u32, is_so: fn(u64) -> bool) -> impl Iterator<Item = (Subject, Sequence)> {
        let (before, after) = self.slots.split_at(self.slots.len().min(from as usize));
        let ids = (from as usize..self.slots.len()).chain(0..before.len());
        ids.zip(after.iter().chain(before)).filter_map(move |(id, slot)| {
            let word = slot.word.load(Ordering::Relaxed);
            let subject = Subject { id: id as u32, generation: generation(word) };
            is_so(word).then(|| (subject, sequence(word)))
        })
    }

    /// The record of every id that was ever used, by id, for an agent's snapshot. Each record is consistent in itself; two may
    /// be of different moments, and messages about changes in between follow.
    pub fn records(&self) -> impl Iterator<Item = Record> + '_ {
        self.slots.iter().enumerate().filter_map(|(id, slot)| {
            let word = slot.word.load(Ordering::Acquire);
            let record = Record {
                subject: Subject { id: id as u32, generation: generation(word) },
                sequence: sequence(word),
                state: state(word),
                core: slot.core.load(Ordering::Relaxed),
                class: slot.class.load(Ordering::Relaxed),
            };
            (word != 0).then_some(record)
        })
    }
}

//! The thread table: the host's truth, and the only place where a thread changes its state.
//!
//! One 64-bit word per id holds everything that a decision is checked against, so that a commit is
//! one compare-and-swap:
//!
//! ```text
//! bits 63..32 sequence | 31..8 generation | 3..0 state
//! ```
//!
//! Who may write the word: while the thread runs, only its core, which therefore lets it go with a
//! plain store (a locked instruction would wait until the last message's line has come from the
//! agent's cache); while it is runnable, whoever commits it, by compare-and-swap; while it is
//! parked or waits, whoever wakes it, by compare-and-swap. What wakes a thread that still runs is
//! left in its *token* word.

use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use wave_core::message::{Sequence, Subject};
use wave_core::outcome::Code;
use wave_core::snapshot::{Record, State};

use crate::fiber::{Fiber, FiberYielder};
use crate::inline_fn::InlineFn;
use crate::region::Where;

const NO_KLT: u32 = u32::MAX;
const FREE: u64 = 0;
const RUNNABLE: u64 = 1;
/// As runnable to whoever decides, but it has nothing to do before a request comes, so it waits for no decision.
const AWAITING: u64 = 5;
const RUNNING: u64 = 2;
/// Until [`Thread::unpark`].
const PARKED: u64 = 3;
/// Until the runtime itself wakes it.
const WAITING: u64 = 4;
const STATE: u64 = 0xf;
/// Token: an unpark came before the park.
const NOTIFIED: u8 = 1;
/// Token: a wake of the runtime's came before the thread had left its core.
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

/// `word` one message later, in `state`.
fn moved(word: u64, state: u64) -> u64 {
    (word.wrapping_add(SEQUENCE_ONE) & !STATE) | state
}

const fn is_runnable(word: u64) -> bool {
    matches!(word & STATE, RUNNABLE | AWAITING)
}

/// A thread's identity: an id and which use of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Thread(pub(crate) Subject);

impl Thread {
    /// As messages, decisions and notes name it: whoever tells a front where requests are served says this.
    pub fn subject(self) -> Subject {
        self.0
    }
}

/// What lies behind an id.
#[repr(align(128))]
pub(crate) struct Slot {
    word: AtomicU64,
    tokens: AtomicU8,
    core: AtomicU16,
    class: AtomicU16,
    /// What carries a kernel-level thread; [`NO_KLT`] for a user-level one. Written while the id is free.
    klt: AtomicU32,
    /// Of a user-level thread: whether it is in [`crate::preempt_anywhere`], and where it may be preempted
    /// now (a [`Where`]). Written by the thread itself.
    is_in_region: AtomicBool,
    preempted: AtomicU8,
    /// The signal came when it could not be preempted.
    is_interrupted: AtomicBool,
    /// These belong to whoever has the thread: its spawner until it is runnable, then the core that
    /// committed it. The commit's compare-and-swap orders one owner after the other.
    entry: UnsafeCell<Option<InlineFn>>,
    fiber: UnsafeCell<Option<Fiber>>,
    yielder: Cell<*const FiberYielder>,
}

// SAFETY: `entry`, `fiber` and `yielder` are touched only by the thread's owner, see there. The
// state word passes ownership with acquire and release.
unsafe impl Sync for Slot {}
// SAFETY: the closure and the fiber are `Send`; the yielder lies on the fiber's stack.
unsafe impl Send for Slot {}

impl Slot {
    pub(crate) fn set_yielder(&self, yielder: &FiberYielder) {
        self.yielder.set(yielder);
    }

    pub(crate) fn yielder(&self) -> *const FiberYielder {
        self.yielder.get()
    }

    /// What the thread runs. To be called by its owner, once.
    pub(crate) fn take_entry(&self) -> InlineFn {
        // SAFETY: the caller owns the thread (see the field).
        unsafe { &mut *self.entry.get() }.take().expect("a thread starts once")
    }

    /// The fiber of a thread that this core has just committed; none before its first run.
    pub(crate) fn take_fiber(&self) -> Option<Fiber> {
        // SAFETY: the caller owns the thread (see the field).
        unsafe { &mut *self.fiber.get() }.take()
    }

    /// Keeps the fiber of a thread that this core is about to let go.
    pub(crate) fn keep_fiber(&self, fiber: Fiber) {
        // SAFETY: the caller owns the thread (see the field).
        unsafe { *self.fiber.get() = Some(fiber) };
    }

    /// Takes a token, if it is there. Only one of several takers gets it.
    #[inline]
    fn take_token(&self, token: u8) -> bool {
        self.tokens.load(Ordering::SeqCst) & token != 0
            && self.tokens.fetch_and(!token, Ordering::SeqCst) & token != 0
    }

    pub(crate) fn class(&self) -> u16 {
        self.class.load(Ordering::Relaxed)
    }

    /// What carries the thread, if it is a kernel-level one.
    #[inline]
    pub(crate) fn klt(&self) -> Option<u32> {
        Some(self.klt.load(Ordering::Relaxed)).filter(|klt| *klt != NO_KLT)
    }

    #[inline]
    pub(crate) fn is_in_region(&self) -> bool {
        self.is_in_region.load(Ordering::Relaxed)
    }

    pub(crate) fn set_in_region(&self, is_in_region: bool) {
        self.is_in_region.store(is_in_region, Ordering::Relaxed);
    }

    pub(crate) fn preempted(&self) -> Where {
        Where::from_number(self.preempted.load(Ordering::Relaxed))
    }

    pub(crate) fn set_interrupted(&self) {
        self.is_interrupted.store(true, Ordering::Relaxed);
    }

    pub(crate) fn take_interrupted(&self) -> bool {
        self.is_interrupted.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn set_preempted(&self, at: Where) {
        self.preempted.store(at as u8, Ordering::Relaxed);
    }
}

/// What came of blocking a thread; with its new version.
pub(crate) enum Left {
    /// It is blocked, or was and has been woken by somebody who tells of it.
    Blocked(Sequence),
    /// It blocked, and what it was to wait for had come already: it is runnable again, under the
    /// second version.
    Woken(Sequence, Sequence),
}

pub(crate) struct Table {
    slots: Box<[Slot]>,
}

impl Table {
    pub(crate) fn new(count: u32) -> Table {
        let slot = |_| Slot {
            word: AtomicU64::new(FREE),
            tokens: AtomicU8::new(0),
            core: AtomicU16::new(0),
            class: AtomicU16::new(0),
            klt: AtomicU32::new(NO_KLT),
            is_in_region: AtomicBool::new(false),
            preempted: AtomicU8::new(Where::SafePoints as u8),
            is_interrupted: AtomicBool::new(false),
            entry: UnsafeCell::new(None),
            fiber: UnsafeCell::new(None),
            yielder: Cell::new(std::ptr::null()),
        };
        Table { slots: (0..count).map(slot).collect() }
    }

    #[inline]
    pub(crate) fn slot(&self, id: u32) -> &Slot {
        &self.slots[id as usize]
    }

    /// The slot of an id that may be none.
    pub(crate) fn get(&self, id: u32) -> Option<&Slot> {
        self.slots.get(id as usize)
    }

    pub(crate) fn thread(&self, id: u32) -> Thread {
        let word = self.slot(id).word.load(Ordering::Relaxed);
        Thread(Subject { id, generation: generation(word) })
    }

    /// Gives a free id, which the caller took from the free list, a new life, on `klt` if it is a
    /// kernel-level thread's.
    pub(crate) fn create(
        &self,
        id: u32,
        class: u16,
        klt: Option<u32>,
        entry: InlineFn,
    ) -> (Thread, Sequence) {
        let slot = self.slot(id);
        let old = slot.word.load(Ordering::Acquire);
        debug_assert_eq!(old & STATE, FREE);
        // SAFETY: the id is free and the caller alone holds it.
        unsafe { *slot.entry.get() = Some(entry) };
        slot.class.store(class, Ordering::Relaxed);
        slot.klt.store(klt.unwrap_or(NO_KLT), Ordering::Relaxed);
        slot.is_in_region.store(false, Ordering::Relaxed);
        slot.preempted.store(Where::SafePoints as u8, Ordering::Relaxed);
        slot.tokens.store(0, Ordering::Relaxed);
        let generation = (generation(old) + 1) & GENERATION_MASK;
        let sequence = sequence(old).next();
        let word =
            u64::from(sequence.0) << 32 | u64::from(generation) << GENERATION_SHIFT | RUNNABLE;
        slot.word.store(word, Ordering::SeqCst);
        (Thread(Subject { id, generation }), sequence)
    }

    /// Commits a decision: the one place where a thread gets onto a core.
    #[inline]
    pub(crate) fn commit(
        &self,
        core: u16,
        subject: Subject,
        expected: Sequence,
    ) -> Result<u32, Code> {
        let slot = self.slots.get(subject.id as usize).ok_or(Code::TargetNotFound)?;
        let mut word = slot.word.load(Ordering::Acquire);
        loop {
            if generation(word) != subject.generation || word & STATE == FREE {
                return Err(Code::TargetNotFound);
            }
            if sequence(word) != expected {
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
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => {
                    slot.core.store(core, Ordering::Relaxed);
                    return Ok(subject.id);
                }
                Err(now) => word = now,
            }
        }
    }

    /// The running thread stays runnable.
    ///
    /// A plain store: see [`crate::shared::Shared::enter_fallback`] for what that asks of others.
    #[inline]
    pub(crate) fn leave_runnable(&self, id: u32) -> Sequence {
        self.leave(id, RUNNABLE)
    }

    /// The running thread stays runnable, and has nothing to do before a request comes, unless it was unparked before.
    pub(crate) fn leave_awaiting(&self, id: u32) -> Left {
        self.block(id, AWAITING, NOTIFIED)
    }

    /// The running thread has ended. The id may be given out again after this.
    #[inline]
    pub(crate) fn leave_dead(&self, id: u32) -> Sequence {
        self.leave(id, FREE)
    }

    #[inline]
    fn leave(&self, id: u32, state: u64) -> Sequence {
        let word = &self.slot(id).word;
        let old = word.load(Ordering::Relaxed);
        debug_assert_eq!(old & STATE, RUNNING);
        let new = moved(old, state);
        word.store(new, Ordering::Release);
        sequence(new)
    }

    /// The running thread parks, unless it was unparked before.
    pub(crate) fn leave_parked(&self, id: u32) -> Left {
        self.block(id, PARKED, NOTIFIED)
    }

    /// The running thread waits for the runtime, unless that has woken it already.
    pub(crate) fn leave_waiting(&self, id: u32) -> Left {
        self.block(id, WAITING, WOKEN)
    }

    /// Blocks first and looks for a token then; [`Table::rouse`] leaves its token first and looks
    /// whether the thread has blocked then. Both in sequentially consistent order: at least one sees
    /// the other, and whoever takes the token wakes the thread. So no token outlives the wake-up
    /// that it stands for.
    fn block(&self, id: u32, state: u64, token: u8) -> Left {
        let slot = self.slot(id);
        let old = slot.word.load(Ordering::Relaxed);
        debug_assert_eq!(old & STATE, RUNNING);
        let blocked = moved(old, state);
        slot.word.store(blocked, Ordering::SeqCst);
        let runnable = moved(blocked, RUNNABLE);
        if slot.take_token(token)
            && slot
                .word
                .compare_exchange(blocked, runnable, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
        {
            return Left::Woken(sequence(blocked), sequence(runnable));
        }
        Left::Blocked(sequence(blocked))
    }

    /// Makes a thread that blocked in `from` runnable, or leaves `token` for it. Returns its new
    /// version if it became runnable. An unpark also ends an await.
    fn rouse(&self, subject: Subject, from: u64, token: u8) -> Option<Sequence> {
        let slot = self.slots.get(subject.id as usize)?;
        let ends = |word: u64| match word & STATE {
            AWAITING => from == PARKED,
            state => state == from,
        };
        loop {
            let old = slot.word.load(Ordering::SeqCst);
            if generation(old) != subject.generation || old & STATE == FREE {
                return None;
            }
            if ends(old) {
                let new = moved(old, RUNNABLE);
                let exchange =
                    slot.word.compare_exchange(old, new, Ordering::SeqCst, Ordering::Relaxed);
                if exchange.is_ok() {
                    return Some(sequence(new));
                }
                continue;
            }
            slot.tokens.fetch_or(token, Ordering::SeqCst);
            // If it has blocked in between, one of the two takes the token back and wakes it.
            if !ends(slot.word.load(Ordering::SeqCst)) || !slot.take_token(token) {
                return None;
            }
        }
    }

    /// [`Thread::unpark`].
    pub(crate) fn unpark(&self, thread: Thread) -> Option<Sequence> {
        self.rouse(thread.0, PARKED, NOTIFIED)
    }

    /// The runtime's own wake-up.
    pub(crate) fn wake(&self, thread: Thread) -> Option<Sequence> {
        self.rouse(thread.0, WAITING, WOKEN)
    }

    /// Takes the token of an unpark, if there is one.
    pub(crate) fn take_notified(&self, id: u32) -> bool {
        self.slot(id).take_token(NOTIFIED)
    }

    /// Whether a thread waits for a decision at just this sequence.
    pub(crate) fn waits(&self, subject: Subject, at: Sequence) -> bool {
        let word = self.slot(subject.id).word.load(Ordering::Relaxed);
        generation(word) == subject.generation && sequence(word) == at && word & STATE == RUNNABLE
    }

    /// Every runnable thread, those that await requests included.
    pub(crate) fn runnable(&self) -> impl Iterator<Item = (Subject, Sequence)> + '_ {
        self.find(0, is_runnable)
    }

    /// Every thread that waits for a decision, from the id `from` on, then from 0.
    pub(crate) fn waiting_from(&self, from: u32) -> impl Iterator<Item = (Subject, Sequence)> + '_ {
        self.find(from, |word| word & STATE == RUNNABLE)
    }

    /// Those whose words are so, from the id `from` on, then from 0.
    fn find(&self, from: u32, is_so: fn(u64) -> bool) -> impl Iterator<Item = (Subject, Sequence)> {
        let (before, after) = self.slots.split_at(self.slots.len().min(from as usize));
        let ids = (from as usize..self.slots.len()).chain(0..before.len());
        ids.zip(after.iter().chain(before)).filter_map(move |(id, slot)| {
            let word = slot.word.load(Ordering::SeqCst);
            let subject = Subject { id: id as u32, generation: generation(word) };
            is_so(word).then(|| (subject, sequence(word)))
        })
    }

    /// Every id that was ever used, as an agent's snapshot wants it.
    pub(crate) fn records(&self) -> impl Iterator<Item = Record> + '_ {
        self.slots.iter().enumerate().filter_map(|(id, slot)| {
            let word = slot.word.load(Ordering::SeqCst);
            let state = match word & STATE {
                FREE => State::Free,
                RUNNABLE | AWAITING => State::Runnable,
                RUNNING => State::Running,
                _ => State::Blocked,
            };
            let subject = Subject { id: id as u32, generation: generation(word) };
            let core = slot.core.load(Ordering::Relaxed);
            let class = slot.class();
            let record = Record { subject, sequence: sequence(word), state, core, class };
            (word != 0).then_some(record)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_awaits_is_runnable_and_waits_for_nothing() {
        let table = Table::new(2);
        let (thread, sequence) = table.create(1, 0, None, InlineFn::new(|| {}));
        table.commit(0, thread.0, sequence).unwrap();
        let Left::Blocked(sequence) = table.leave_awaiting(1) else { panic!("nobody unparked it") };
        assert_eq!(table.runnable().collect::<Vec<_>>(), [(thread.0, sequence)]);
        assert_eq!(table.records().next().unwrap().state, State::Runnable);
        // The watchdog would bark at an agent without requests.
        assert_eq!(table.waiting_from(0).count(), 0);
        assert!(!table.waits(thread.0, sequence));
        assert_eq!(table.commit(0, thread.0, sequence), Ok(1));
        let sequence = table.leave_runnable(1);
        assert!(table.waits(thread.0, sequence));
    }
}

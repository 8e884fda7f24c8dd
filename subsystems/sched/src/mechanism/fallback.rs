//! Scheduling without an agent: the host's own first-in, first-out queue.

use std::collections::VecDeque;
use std::sync::PoisonError;

use wave_core::message::{Sequence, Subject};
use wave_core::planted::{Planted, is_planted};

use super::sync::{AtomicBool, Mutex, MutexGuard, Ordering, compiler_fence};
use super::table::Table;
use crate::wire::Event;

/// The side that chooses threads for cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// An agent decides.
    Agent,
    /// The host decides, first in, first out.
    Fallback,
}

/// The current mode, and the threads that wait while no agent decides.
#[derive(Debug)]
pub struct Fallback {
    /// Accessed relaxed: the barrier in [`Fallback::enter`] orders it with the table's words, and it publishes no other data.
    agent_decides: AtomicBool,
    /// In the order in which the threads became runnable. An entry may be out of date; the commit then refuses it.
    waiting: Mutex<VecDeque<(Subject, Sequence)>>,
}

impl Fallback {
    /// Starts in [`Mode::Fallback`] with an empty queue. `subjects`: the number of ids in the table.
    pub fn new(subjects: u32) -> Fallback {
        Fallback {
            agent_decides: AtomicBool::new(false),
            // An id may be queued twice: when the thread became runnable, and by the scan.
            waiting: Mutex::new(VecDeque::with_capacity(2 * subjects as usize)),
        }
    }

    /// The side that decides now. Another thread may switch it at any time. A reader that sees [`Mode::Fallback`] also sees
    /// everything before [`Fallback::enter`].
    #[inline]
    pub fn mode(&self) -> Mode {
        if self.agent_decides.load(Ordering::Acquire) { Mode::Agent } else { Mode::Fallback }
    }

    /// Lets an agent decide from now on. The agent's snapshot contains the threads that wait in this queue.
    pub fn leave(&self) {
        self.agent_decides.store(true, Ordering::Relaxed);
    }

    /// Lets the host decide from now on. The caller then wakes its cores.
    ///
    /// A thread that becomes runnable changes its word and then reads the mode; `enter` sets the mode and then scans the words.
    /// If both sides have a full barrier in between, each runnable thread is seen by at least one of the two. If both see it,
    /// the commit refuses the second. [`Fallback::became_runnable`] has no barrier instruction, because yields are a million
    /// times as frequent as calls of `enter`: instead, `barrier` executes one on behalf of every thread of the process.
    pub fn enter<T>(&self, table: &Table<T>, barrier: impl FnOnce()) {
        self.waiting().clear();
        self.agent_decides.store(false, Ordering::Release);
        barrier();
        for waiting in table.runnable() {
            self.waiting().push_back(waiting);
        }
    }

    /// Queues a thread that has become runnable, if the host decides. Call it after the change of state that `event` reports.
    /// Returns whether the caller has to wake a sleeping core.
    #[inline]
    pub fn became_runnable(&self, event: &Event) -> bool {
        // This thread's half of the barrier in [`Fallback::enter`]: the compiler must not move the read of the mode above the
        // change.
        compiler_fence(Ordering::SeqCst);
        let decides = self.mode() == Mode::Fallback;
        if decides {
            self.waiting().push_back((event.thread, event.sequence));
        }
        decides
    }

    /// Whether threads may be waiting in the queue.
    pub fn has_waiting(&self) -> bool {
        !self.waiting().is_empty()
    }

    /// Commits, for `core`, the thread that has waited longest. `None` if no thread waits.
    pub fn pop<T>(&self, table: &Table<T>, core: u16) -> Option<(Subject, Sequence)> {
        while !is_planted(Planted::FallbackForgotten) {
            let (subject, sequence) = self.waiting().pop_front()?;
            if table.commit(core, subject, sequence).is_ok() {
                return Some((subject, sequence));
            }
        }
        None
    }

    /// Locks the queue, ignoring poisoning: a panic while the lock was held leaves the queue consistent.
    fn waiting(&self) -> MutexGuard<'_, VecDeque<(Subject, Sequence)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

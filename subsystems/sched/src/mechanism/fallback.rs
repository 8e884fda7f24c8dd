//! Scheduling without an agent: first in, first out, by the host itself.

use std::collections::VecDeque;
use std::sync::PoisonError;

use wave_core::message::{Sequence, Subject};
use wave_core::planted::{Planted, is_planted};

use super::sync::{AtomicBool, Mutex, MutexGuard, Ordering, compiler_fence};
use super::table::Table;
use crate::wire::Event;

/// The side that decides which thread a core runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// An agent decides; the host's queue is not used.
    Agent,
    /// The host itself: first in, first out.
    Fallback,
}

/// The mode, and the queue of threads that wait while no agent decides.
#[derive(Debug)]
pub struct Fallback {
    /// Relaxed: the barrier in [`Fallback::enter`] orders it with the table's words, and nothing else is read by it.
    agent_decides: AtomicBool,
    /// In the order in which they became runnable. An entry may be out of date: the commit refuses it.
    waiting: Mutex<VecDeque<(Subject, Sequence)>>,
}

impl Fallback {
    /// The host decides, and no thread waits. `subjects`: the number of ids in the table.
    pub fn new(subjects: u32) -> Fallback {
        Fallback {
            agent_decides: AtomicBool::new(false),
            // Every id may stand here twice: once since it became runnable, once from the scan.
            waiting: Mutex::new(VecDeque::with_capacity(2 * subjects as usize)),
        }
    }

    /// The side that decides now. Other threads may switch it. A reader that sees [`Mode::Fallback`] sees what came before
    /// [`Fallback::enter`].
    #[inline]
    pub fn mode(&self) -> Mode {
        if self.agent_decides.load(Ordering::Acquire) { Mode::Agent } else { Mode::Fallback }
    }

    /// From now on an agent decides. Its snapshot tells it of the threads that wait here.
    pub fn leave(&self) {
        self.agent_decides.store(true, Ordering::Relaxed);
    }

    /// From now on the host decides. The caller wakes its cores after this.
    ///
    /// A thread that becomes runnable changes its word and then looks at the mode; this sets the mode and then looks at the
    /// words. Each runnable thread is seen by one of the two, or by both (which the commit sorts out), if both sides have a
    /// full barrier in between. [`Fallback::became_runnable`] has none that the processor would see, because a yield comes a
    /// million times for each time this does: `barrier` executes one on every thread of the process.
    pub fn enter<T>(&self, table: &Table<T>, barrier: impl FnOnce()) {
        self.waiting().clear();
        self.agent_decides.store(false, Ordering::Release);
        barrier();
        for waiting in table.runnable() {
            self.waiting().push_back(waiting);
        }
    }

    /// Keeps a thread that has become runnable, if the host decides. To be called after the change of state that `event` tells.
    /// Returns whether the caller has to wake a core that sleeps.
    #[inline]
    pub fn became_runnable(&self, event: &Event) -> bool {
        // This thread's half of the barrier in [`Fallback::enter`]: the compiler keeps the change before the look.
        compiler_fence(Ordering::SeqCst);
        let decides = self.mode() == Mode::Fallback;
        if decides {
            self.waiting().push_back((event.thread, event.sequence));
        }
        decides
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

    /// A panic elsewhere while the lock was held leaves nothing half done here.
    fn waiting(&self) -> MutexGuard<'_, VecDeque<(Subject, Sequence)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

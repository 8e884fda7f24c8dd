//! A policy in a few lines: a [`Scheduler`] says in which order threads run, and [`Scheduled`] does the rest.
//!
//! ```
//! use std::collections::VecDeque;
//! use wave_sched::scheduler::{Run, Scheduler, Thread};
//!
//! /// Last in, first out.
//! #[derive(Default)]
//! struct Lifo(Vec<Thread>);
//!
//! impl Scheduler for Lifo {
//!     fn ready(&mut self, thread: Thread) {
//!         self.0.push(thread);
//!     }
//!     fn pick(&mut self, _core: u16) -> Option<Run> {
//!         self.0.pop().map(Run::to_completion)
//!     }
//! }
//! ```
//!
//! The rest is what every policy needs, written once: the generation and the sequence that a decision names, where each
//! thread is, what a snapshot changes, which refused thread still waits, the requests of a front, cores that ask, and prestaging.
//! Beyond it there are [`Discipline`], which also ends runs by the agent's clock, and
//! [`Policy`](wave_core::policy::Policy), which hears every message.

use alloc::vec::Vec;
use core::fmt;

use wave_core::clock::Nanos;
use wave_core::layout::Config;
use wave_core::settings::class_index;

use crate::policies::common::{self, Cause, Discipline, Preemptive, Runs};

/// In which order threads run. It has no clock, no I/O and no randomness of its own: the same calls give the same picks, so that a
/// log replays.
pub trait Scheduler {
    /// The policy's name, for debugging.
    fn name(&self) -> &'static str {
        core::any::type_name::<Self>()
    }

    /// This thread waits for a core from now on, and is yours until you pick it.
    ///
    /// It may stop waiting in the meantime, without a call: [`Scheduled`] then skips your pick, and asks again.
    /// If it waits again, in the same class, before you have picked it, you are not told: it keeps the place that you gave it.
    fn ready(&mut self, thread: Thread);

    /// Takes out the thread that runs next, on this core; `None` if no thread should. A thread that you do not have, because you
    /// have picked it before, counts as none. A `None` must leave no trace: you are asked again at any time, and a log does not say
    /// how often.
    fn pick(&mut self, core: u16) -> Option<Run>;

    /// Whether the next pick may be left for a core that still runs another thread. It then begins there without waiting for a
    /// decision, and cannot be taken back for a more urgent one. Only asked while at least as many threads wait as there are cores.
    /// Those that you hold may be more: some may have stopped waiting.
    fn may_prestage(&self, _cores: u16) -> bool {
        true
    }

    /// A thread has run for so long, as the host measures it.
    fn ran(&mut self, _thread: Thread, _time: Nanos) {}
}

/// A thread that waits, or that ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Thread {
    id: u32,
    class: u16,
    core: u16,
}

impl Thread {
    /// Its number, below `Config::subjects`; those of threads that have ended are used again.
    pub fn id(self) -> u32 {
        self.id
    }

    /// The class that its spawner gave it, or that of the request that it serves.
    pub fn class(self) -> u16 {
        self.class
    }

    /// The core that it ran on last; [`NO_CORE`](crate::wire::NO_CORE) for a new one.
    pub fn last_core(self) -> u16 {
        self.core
    }
}

/// What a core is to do: run a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    thread: Thread,
    slice: Nanos,
}

impl Run {
    /// A run until the thread stops on its own.
    pub fn to_completion(thread: Thread) -> Run {
        Run { thread, slice: Nanos(0) }
    }

    /// A run until the thread stops on its own, or the core's own timer ends the run after `slice`, which is not
    /// zero. The thread is then ready again. Hosts without such a timer refuse it.
    pub fn for_slice(thread: Thread, slice: Nanos) -> Run {
        Run { thread, slice }
    }
}

/// The policy of a [`Scheduler`].
pub type Scheduled<S> = Preemptive<Order<S>>;

impl<S: Scheduler> Scheduled<S> {
    /// For an enclave of this configuration.
    pub fn of(config: &Config, scheduler: S) -> Scheduled<S> {
        let known = alloc::vec![Known::default(); config.subjects as usize];
        Preemptive::with(config, Order { scheduler, known, waiting: 0, slice: Nanos(0) })
    }
}

/// The adapter's record of a thread.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    waits: bool,
    class: u16,
    /// A bit for each class in which the scheduler holds it, even if it no longer waits or has changed class. So there are never
    /// more entries of one thread than classes, for any messages of a host.
    handed: u16,
}

/// The discipline of a [`Scheduler`].
pub struct Order<S> {
    scheduler: S,
    known: Vec<Known>,
    waiting: usize,
    /// Of the thread that was taken last.
    slice: Nanos,
}

impl<S> fmt::Debug for Order<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Order").field("waiting", &self.waiting).finish()
    }
}

fn bit(class: u16) -> u16 {
    1 << class_index(class)
}

impl<S: Scheduler> Discipline for Order<S> {
    fn name(&self) -> &'static str {
        self.scheduler.name()
    }

    fn waiting(&self) -> usize {
        self.waiting
    }

    fn may_prestage(&self, cores: u16) -> bool {
        self.scheduler.may_prestage(cores)
    }

    fn enter(&mut self, _now: Nanos, id: u32, thread: &mut common::Thread, cause: Cause) {
        let known = &mut self.known[id as usize];
        (known.waits, known.class) = (true, thread.class);
        self.waiting += 1;
        if cause != Cause::Runs && known.handed & bit(thread.class) == 0 {
            known.handed |= bit(thread.class);
            self.scheduler.ready(Thread { id, class: thread.class, core: thread.core });
        }
    }

    fn leave(&mut self, id: u32) {
        self.known[id as usize].waits = false;
        self.waiting -= 1;
    }

    fn take(&mut self, _now: Nanos, core: u16, _threads: &[common::Thread]) -> Option<u32> {
        while self.waiting > 0 {
            let Run { thread, slice } = self.scheduler.pick(core)?;
            let known = self.known.get_mut(thread.id as usize)?;
            // One that it has picked before: asked again, it could pick it for ever.
            if known.handed & bit(thread.class) == 0 {
                return None;
            }
            known.handed &= !bit(thread.class);
            if known.waits && class_index(known.class) == class_index(thread.class) {
                self.slice = slice;
                self.leave(thread.id);
                return Some(thread.id);
            }
        }
        None
    }

    fn clear(&mut self) {
        // The scheduler keeps its threads: the flag `waits` says which of them still wait.
        self.known.iter_mut().for_each(|known| known.waits = false);
        self.waiting = 0;
    }

    fn charge(&mut self, id: u32, thread: &mut common::Thread, ran: Nanos) {
        self.scheduler.ran(Thread { id, class: thread.class, core: thread.core }, ran);
    }

    fn rank(&self, now: Nanos, _thread: &common::Thread) -> u64 {
        now.0
    }

    fn victim(&mut self, _now: Nanos, _runs: &Runs, _threads: &[common::Thread]) -> Option<u16> {
        None
    }

    fn next_victim(&self, _now: Nanos, _runs: &Runs) -> Option<Nanos> {
        None
    }

    fn slice_in_decisions(&self) -> Nanos {
        self.slice
    }
}

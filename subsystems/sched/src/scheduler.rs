//! A policy in a few lines: a [`Scheduler`] sets the order in which threads run, and [`Scheduled`] does the rest.
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
//! The rest is common to all policies: the generation and the sequence that a decision names, where each thread is, what a
//! snapshot changes, which refused thread still waits, the requests of a front, cores that ask, and prestaging. For more
//! control there are [`Discipline`], which also ends runs by the agent's clock, and [`Policy`](wave_core::policy::Policy),
//! which receives every message.

use alloc::vec::Vec;
use core::fmt;

use wave_core::clock::Nanos;
use wave_core::layout::Config;
use wave_core::settings::class_index;

use crate::policies::common::{self, Cause, Discipline, Preemptive, Runs};

/// The order in which threads run. It has no clock, no I/O and no randomness of its own: the same calls give the same picks, so
/// that a log replays.
///
/// Only [`ready`](Scheduler::ready) and [`pick`](Scheduler::pick) are required. The other calls are for policies that keep
/// accounts: of what runs now, of the time that threads took, of threads by number.
///
/// ```text
///              ready            pick                        a core takes the decision
///   (waits) ─────────> held ──────────> picked ───────────────────────────────────────> runs
///      ^                 │                 │                                              │  ^
///      │     it ended    │                 │ refused, stale or lost                       │  │ runs: the host chose
///      │                 v                 v                                              v  │ by itself
///      │               ended         did_not_run                                         ran │
///      │                 ^                 │                                              │  │
///      │                 └─────────────────┼───────────── it ended ───────────────────────┤ (any)
///      └───────────────────────────────────┴───────────── it waits again ─────────────────┘
/// ```
///
/// - Each pick is followed by exactly one `ran` or `did_not_run` of the picked thread. A pick of a thread that you do not hold
///   counts as `None`, and nothing follows. Whether a picked thread runs yet is not reported: count it as running.
/// - Each `runs` is followed by exactly one `ran` of that thread, and `ran` follows nothing but a pick or a `runs`.
/// - A thread has at most one pick or `runs` that is not over, but for a pick that is skipped: its `did_not_run` comes at once.
/// - `ended` comes last, once for each thread that you were told of, with no pick or `runs` of it left open.
///
/// So the threads that you picked or heard of by `runs`, less those of `ran` and `did_not_run`, are those that run or are about
/// to run. That holds through lost messages, snapshots and from the first snapshot on. It is the agent's knowledge: a run that
/// the host begins or ends is reported after the message has crossed the link.
pub trait Scheduler {
    /// The policy's name, for debugging.
    fn name(&self) -> &'static str {
        core::any::type_name::<Self>()
    }

    /// This thread waits for a core from now on, and is yours until you pick it. [`Thread::reason`] says why it waits.
    ///
    /// It may stop waiting before you pick it, without a call: [`Scheduled`] then skips your pick, and asks again. If it begins
    /// to wait again, in the same class, `ready` is not called again: it keeps the place that you gave it.
    fn ready(&mut self, thread: Thread);

    /// Removes and returns the thread to run next on this core; `None` if no thread should run. A thread that you have already
    /// picked counts as `None`. Returning `None` must not change your state: `pick` may be called at any time, and a log does
    /// not record the number of calls.
    fn pick(&mut self, core: u16) -> Option<Run>;

    /// How long a thread may wait beside an idle core because [`pick`](Scheduler::pick) returns `None` on purpose, in the worst
    /// case. Zero for a policy that picks a thread whenever one waits. Hosts must be more patient than that
    /// (`Config::patience`), and the fuzzer is.
    fn idles_for(&self) -> Nanos {
        Nanos(0)
    }

    /// Whether the next pick may be prestaged on a core that still runs another thread. It then begins there without waiting
    /// for a decision, and cannot be taken back for a more urgent one. Called only while at least as many threads wait as there
    /// are cores. You may hold more: some may have stopped waiting.
    fn may_prestage(&self, _cores: u16) -> bool {
        true
    }

    /// A thread has run for the duration `_time`, as the host measures it, or zero if its report was lost. If it waits for a
    /// core again, `ready` follows. The thread is as you picked it, but [`Thread::last_core`] is where it ran.
    fn ran(&mut self, _thread: Thread, _time: Nanos) {}

    /// A thread that you picked does not run, and no `ran` follows: a core refused it, it had stopped waiting, or the decision
    /// was lost. If it still waits, `ready` follows. The thread is as you picked it.
    fn did_not_run(&mut self, _thread: Thread) {}

    /// A thread runs on this core, although you did not pick it: it ran when the agent attached, or the host decided by itself
    /// until the core had the agent's queue. `ran` follows. If you hold the thread, you still do.
    fn runs(&mut self, _thread: Thread, _core: u16) {}

    /// A thread is gone: forget what you remember of it, for its number may be given to a new thread.
    ///
    /// Returns whether you removed it from all places where you held it. If you hold it and return `false`, it keeps its place
    /// in your order: your pick of it is skipped, unless a new thread with its number waits in that class by then. That one has
    /// the place then, without a `ready`.
    fn ended(&mut self, _thread: Thread) -> bool {
        false
    }
}

/// Why a thread waits for a core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Reason {
    /// A snapshot shows that it waits: at the time of attaching, or after lost messages.
    #[default]
    Found,
    /// It is new.
    Created,
    /// It woke up, or a request came for it.
    Woken,
    /// Its run was ended by the agent or by its slice.
    Preempted,
    /// It yielded its core.
    Yielded,
    /// It was picked, and a core refused to run it.
    DidNotRun,
}

/// A thread that waits, runs or ran. Compare threads by their numbers: the other parts change from run to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Thread {
    id: u32,
    class: u16,
    core: u16,
    reason: Reason,
}

impl Thread {
    /// The thread's number, below `Config::subjects`. Numbers of threads that have ended are reused.
    pub fn id(self) -> u32 {
        self.id
    }

    /// The class chosen by the thread's spawner, or that of the request that it serves.
    pub fn class(self) -> u16 {
        self.class
    }

    /// Why the thread waits; in calls other than `ready`, why it last waited.
    pub fn reason(self) -> Reason {
        self.reason
    }

    /// Whether the thread begins new work: it was created, woke up, or a request came for it. Otherwise it was preempted, has
    /// yielded, or waits still. Threads of a pool serve one request after the other: what a policy remembers of a
    /// request (the time that it took so far, say) ends here.
    pub fn is_woken(self) -> bool {
        matches!(self.reason, Reason::Created | Reason::Woken)
    }

    /// The core that the thread ran on last; [`NO_CORE`](crate::wire::NO_CORE) for one of which no run is known.
    pub fn last_core(self) -> u16 {
        self.core
    }
}

/// An order to a core: run this thread.
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

    /// A run until the thread stops on its own, or the core's own timer ends the run after `slice`, which is not zero. The
    /// thread is then ready again. Hosts without such a timer refuse the run.
    pub fn for_slice(thread: Thread, slice: Nanos) -> Run {
        Run { thread, slice }
    }
}

/// The policy made from a [`Scheduler`].
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
    /// The scheduler was told of the thread, and not of its end.
    is_told: bool,
    class: u16,
    reason: Reason,
    /// The thread as it was picked, or as it runs without a pick, until that is over.
    open: Option<Thread>,
    /// A bit for each class in which the scheduler holds the thread, even if it no longer waits or has changed class. This
    /// bounds a thread's entries by the number of classes, whatever a host sends.
    handed: u16,
}

impl Known {
    fn as_told(&self, id: u32, thread: &common::Thread) -> Thread {
        Thread { id, class: thread.class, core: thread.core, reason: self.reason }
    }
}

/// The discipline made from a [`Scheduler`].
pub struct Order<S> {
    scheduler: S,
    known: Vec<Known>,
    waiting: usize,
    /// The slice of the thread that was taken last.
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

fn reason_of(cause: Cause, thread: &common::Thread) -> Reason {
    match cause {
        Cause::Woken if thread.is_created => Reason::Created,
        Cause::Woken => Reason::Woken,
        Cause::Yielded => Reason::Yielded,
        Cause::Preempted => Reason::Preempted,
        Cause::Refused => Reason::DidNotRun,
        Cause::Found | Cause::Runs => Reason::Found,
    }
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

    fn idles_for(&self) -> Nanos {
        self.scheduler.idles_for()
    }

    fn enter(&mut self, _now: Nanos, id: u32, thread: &mut common::Thread, cause: Cause) {
        let known = &mut self.known[id as usize];
        (known.waits, known.class) = (true, thread.class);
        self.waiting += 1;
        if cause == Cause::Runs {
            return;
        }
        (known.is_told, known.reason) = (true, reason_of(cause, thread));
        if known.handed & bit(thread.class) == 0 {
            known.handed |= bit(thread.class);
            self.scheduler.ready(known.as_told(id, thread));
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
            // The scheduler has picked this thread before. If it were asked again, it could pick the thread for ever.
            if known.handed & bit(thread.class) == 0 {
                return None;
            }
            known.handed &= !bit(thread.class);
            if known.waits && class_index(known.class) == class_index(thread.class) {
                known.open = Some(thread);
                self.slice = slice;
                self.leave(thread.id);
                return Some(thread.id);
            }
            self.scheduler.did_not_run(thread);
        }
        None
    }

    fn clear(&mut self) {
        // The scheduler keeps its threads: the flag `waits` says which of them still wait.
        self.known.iter_mut().for_each(|known| known.waits = false);
        self.waiting = 0;
    }

    fn begin(&mut self, id: u32, thread: &common::Thread, core: u16) {
        let known = &mut self.known[id as usize];
        if known.open.is_none() {
            let runs = Thread { core, ..known.as_told(id, thread) };
            (known.is_told, known.open) = (true, Some(runs));
            self.scheduler.runs(runs, core);
        }
    }

    fn charge(&mut self, id: u32, thread: &mut common::Thread, ran: Nanos) {
        // None: a lying host names no core of the enclave.
        if let Some(open) = self.known[id as usize].open.take() {
            self.scheduler.ran(Thread { core: thread.core, ..open }, ran);
        }
    }

    fn not_run(&mut self, id: u32, _thread: &common::Thread) {
        if let Some(picked) = self.known[id as usize].open.take() {
            self.scheduler.did_not_run(picked);
        }
    }

    fn end(&mut self, id: u32, thread: &common::Thread) {
        let known = &mut self.known[id as usize];
        if core::mem::take(&mut known.is_told) && self.scheduler.ended(known.as_told(id, thread)) {
            known.handed = 0;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes what it is told, and picks in that order.
    #[derive(Default)]
    struct Told(Vec<Thread>);

    impl Scheduler for Told {
        fn ready(&mut self, thread: Thread) {
            self.0.push(thread);
        }
        fn pick(&mut self, _core: u16) -> Option<Run> {
            (!self.0.is_empty()).then(|| Run::to_completion(self.0.remove(0)))
        }
    }

    #[test]
    fn threads_that_begin_new_work_are_told_from_those_that_continue() {
        let known = alloc::vec![Known::default(); 1];
        let mut order = Order { scheduler: Told::default(), known, waiting: 0, slice: Nanos(0) };
        let mut thread = common::UNKNOWN;
        for (cause, is_woken) in [
            (Cause::Woken, true),
            (Cause::Preempted, false),
            (Cause::Yielded, false),
            (Cause::Refused, false),
            (Cause::Found, false),
            (Cause::Woken, true),
        ] {
            order.enter(Nanos(0), 0, &mut thread, cause);
            assert_eq!(order.scheduler.0[0].is_woken(), is_woken, "{cause:?}");
            assert_eq!(order.take(Nanos(0), 0, &[thread]), Some(0));
        }
    }
}

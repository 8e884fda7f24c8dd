//! When a run has to end before the thread ends it: the agent's word, the core's own timer, and what
//! interrupts a thread that does not look.

use std::sync::atomic::Ordering;

use wave_core::clock::{Clock, Nanos};
use wave_sched::mechanism::core_loop::Run;

use super::{Core, CoreLink};
use crate::clock::MonotonicClock;
use crate::stats::bump;

/// Deferrals that are shorter are not worth knowing where they happened.
const WORTH_A_STACK: Nanos = Nanos::from_micros(50);

/// Shorter slices of kernel-level threads would end before the thread has come to anything.
const KLT_SLICE_MIN: Nanos = Nanos::from_micros(10);

impl Core {
    /// Whether the agent has asked for the end of the current run.
    #[inline]
    pub(super) fn is_asked_to_end(&self) -> bool {
        let link = self.link.borrow();
        link.as_ref()
            .is_some_and(|CoreLink { port, protocol, .. }| protocol.preempt_requested(port))
    }

    /// A safe point of the running thread. Returns whether it has to leave the core here.
    #[inline]
    pub(crate) fn must_leave(&self) -> bool {
        if self.is_asked_to_end() {
            return self.acknowledge();
        }
        self.safe_points.pass() && self.look_closer()
    }

    #[cold]
    fn acknowledge(&self) -> bool {
        // A thread that unwinds must stay on one pthread, which counts its panics.
        if std::thread::panicking() {
            bump(&self.mine().counters.refused_unwinding, 1);
            return false;
        }
        self.count_preemption(self.safe_points.deferred(MonotonicClock.now()));
        true
    }

    /// The run ends as it was asked to, so long after that at most.
    fn count_preemption(&self, deferred: Nanos) {
        let mine = self.mine();
        bump(&mine.counters.preempted, 1);
        if mine.counters.deferrals.add(deferred) && deferred >= WORTH_A_STACK {
            mine.worst.capture(self.shared.table.class(self.current()), deferred);
        }
    }

    /// Checks that are too dear for each safe point. A thread also leaves a core that is to stop, or to
    /// adopt another window: the agent there cannot reach it before.
    #[cold]
    fn look_closer(&self) -> bool {
        let now = MonotonicClock.now();
        if self.is_asked_to_end() {
            return self.acknowledge();
        }
        self.safe_points.clear(now);
        self.fire_timers(now);
        if std::thread::panicking() {
            return false;
        }
        self.is_over(now) || self.must_return_to_loop()
    }

    /// Whether the run's slice is over, which is then counted.
    fn is_over(&self, now: Nanos) -> bool {
        let is_over = now >= self.slice_end.get();
        bump(&self.mine().counters.sliced, u64::from(is_over));
        is_over
    }

    /// Whether the core must stop, or adopt another window.
    fn must_return_to_loop(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed) || self.must_adopt()
    }

    /// For a thread that was interrupted: whether it has to leave the core, which it then does. It could
    /// not do so at once if the signal came at `since`. Safe in a signal's handler, of a thread that is
    /// not inside of this crate.
    pub(crate) fn must_leave_now(&self, since: Option<Nanos>) -> bool {
        if self.is_asked_to_end() {
            if let Some(link) = &*self.link.borrow() {
                link.bell(self.index).receive();
            }
            let deferred = since.map_or(Nanos(0), |since| MonotonicClock.now().since(since));
            bump(&self.mine().counters.deferred_inside, u64::from(since.is_some()));
            self.count_preemption(deferred);
            return true;
        }
        self.slice_end.get() != Nanos::MAX && self.is_over(MonotonicClock.now())
            || self.must_return_to_loop()
    }

    /// A kernel-level thread is through its gate. Returns after how long its timer is to interrupt it, if
    /// at all.
    pub(crate) fn begin_on_klt(&self) -> Option<Nanos> {
        let run = self.run.get();
        if run.slice == Nanos(0) && self.timers.borrow().next().is_none() {
            return None;
        }
        let now = MonotonicClock.now();
        if run.slice != Nanos(0) {
            // The slice begins here: the time of the wake-up does not count against the thread.
            self.slice_end.set(Run { slice: run.slice.max(KLT_SLICE_MIN), ..run }.end(now));
        }
        self.set_alarm(now)
    }

    /// How long a kernel-level thread may run until the core has to see to something: the end of its
    /// slice, or a thread that sleeps until then.
    fn set_alarm(&self, now: Nanos) -> Option<Nanos> {
        let timer = self.timers.borrow().next().unwrap_or(Nanos::MAX);
        let alarm = self.slice_end.get().min(timer);
        self.alarm.set(alarm);
        // Zero would stop the timer.
        (alarm != Nanos::MAX).then(|| alarm.since(now).max(Nanos(1)))
    }

    /// For a kernel-level thread that was interrupted, by its timer among others: sees to what is due.
    /// Returns after how long the timer is to interrupt it next, if it was the timer.
    pub(crate) fn heed_alarm(&self) -> Option<Nanos> {
        if self.alarm.get() == Nanos::MAX {
            return None;
        }
        let now = MonotonicClock.now();
        if now < self.alarm.get() {
            return None;
        }
        self.fire_timers(now);
        self.set_alarm(now)
    }

    /// From now on kicks interrupt this thread, or no thread if `None`.
    #[inline]
    pub(super) fn interrupt(&self, thread: Option<libc::pid_t>) {
        if self.interrupts.get() != thread
            && let Some(link) = &*self.link.borrow()
        {
            link.bell(self.index).event_fd().interrupt(thread);
            self.interrupts.set(thread);
        }
    }

    /// From now on kicks interrupt this pthread, which the running thread is on.
    pub(crate) fn interrupt_me(&self) {
        self.interrupt(Some(self.tid));
    }
}

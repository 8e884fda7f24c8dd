//! Preemption: the agent's word and the core's own timer end a run, and a signal interrupts a thread that
//! passes no safe points.

use std::sync::atomic::Ordering;

use wave_core::clock::{Clock, Nanos};
use wave_sched::mechanism::core_loop::Run;

use super::{Core, CoreLink};
use crate::clock::MonotonicClock;
use crate::stats::bump;

/// Shortest deferral for which the stack is captured.
const WORTH_A_STACK: Nanos = Nanos::from_micros(50);

/// Shortest slice of a kernel-level thread. A shorter one would end before the thread makes progress.
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
        self.safe_points.pass() && self.check_slow_path()
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

    /// Counts a run that ends as requested, at most `deferred` after the request.
    fn count_preemption(&self, deferred: Nanos) {
        let mine = self.mine();
        bump(&mine.counters.preempted, 1);
        if mine.counters.deferrals.add(deferred) && deferred >= WORTH_A_STACK {
            mine.worst.capture(self.shared.table.class(self.current()), deferred);
        }
    }

    /// Makes the checks that are too expensive for each safe point. A thread also leaves a core that must stop or
    /// adopt another window: until then the new agent cannot reach the thread.
    #[cold]
    fn check_slow_path(&self) -> bool {
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

    /// Whether the run's slice is over. Counts the run if so.
    fn is_over(&self, now: Nanos) -> bool {
        let is_over = now >= self.slice_end.get();
        bump(&self.mine().counters.sliced, u64::from(is_over));
        is_over
    }

    /// Whether the core must stop, or adopt another window.
    fn must_return_to_loop(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed) || self.must_adopt()
    }

    /// Whether an interrupted thread has to leave the core; the caller then leaves. `since` is when the signal
    /// came, if the thread could not leave at once. Safe in a signal handler, on a thread that is not inside
    /// this crate.
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

    /// Begins the run of a kernel-level thread that has passed its gate. Returns the time until its timer should
    /// interrupt it; `None` for no timer.
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

    /// Sets the alarm to the end of the kernel-level thread's slice or the next sleeper's deadline, whichever is
    /// first, and returns the time until then; `None` if there is neither.
    fn set_alarm(&self, now: Nanos) -> Option<Nanos> {
        let timer = self.timers.borrow().next().unwrap_or(Nanos::MAX);
        let alarm = self.slice_end.get().min(timer);
        self.alarm.set(alarm);
        // Zero would stop the timer.
        (alarm != Nanos::MAX).then(|| alarm.since(now).max(Nanos(1)))
    }

    /// Handles a due alarm of a kernel-level thread that was interrupted, by its timer or otherwise. Returns the
    /// time until the timer should interrupt it next; `None` if no alarm was due.
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

    /// Directs kicks at this pthread from now on; with `None`, kicks interrupt no thread.
    #[inline]
    pub(super) fn interrupt(&self, thread: Option<libc::pid_t>) {
        if self.interrupts.get() != thread
            && let Some(link) = &*self.link.borrow()
        {
            link.bell(self.index).event_fd().interrupt(thread);
            self.interrupts.set(thread);
        }
    }

    /// Directs kicks at this pthread, on which the current thread runs.
    pub(crate) fn interrupt_me(&self) {
        self.interrupt(Some(self.tid));
    }
}

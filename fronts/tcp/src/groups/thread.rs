//! A group's thread: it works turn by turn, and sleeps.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use parking_lot::{Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use wave_core::clock::Nanos;
use wave_process::Yields;
use wave_tcp::datapath::Datapath;
use wave_wires::{Frame, Wire};

use super::bell::Bell;
use super::engine::Engine;

/// Longest sleep.
const SLEEP_MAX: Duration = Duration::from_millis(50);
/// Sleep of a thread whose wire has no descriptor to wait on.
const NAP: Duration = Duration::from_micros(50);

/// A group, as its thread and the control plane share it.
pub(super) struct Shared<W, D> {
    /// Locked by the thread in each turn, and by the control plane for calls that must be done when they return.
    pub(super) engine: Mutex<Engine<W, D>>,
    pub(super) bell: Arc<Bell>,
    /// The control plane waits for the lock.
    pub(super) is_wanted: AtomicBool,
    /// The thread does no turns.
    pub(super) is_paused: AtomicBool,
    pub(super) is_to_end: AtomicBool,
    /// The thread has ended, as it should or not.
    pub(super) has_ended: AtomicBool,
    /// The wire has failed.
    pub(super) has_failed: AtomicBool,
    /// Number of requests that are done.
    pub(super) done: AtomicU64,
}

/// The result of a turn.
struct TurnOutcome {
    worked: bool,
    /// Whether a frame on the wire is a reason to wake up.
    awaits_wire: bool,
    next: Option<Nanos>,
}

impl<W: Wire, D: Datapath<Frame>> Shared<W, D> {
    /// Publishes what a turn has done, where the control plane sees it without the lock.
    pub(super) fn publish(&self, engine: &Engine<W, D>) {
        self.done.store(engine.done(), Ordering::Release);
        if engine.wire_port.failure().is_some() {
            self.has_failed.store(true, Ordering::Release);
        }
    }

    /// The engine, for the control plane.
    pub(super) fn lock_engine(&self) -> MutexGuard<'_, Engine<W, D>> {
        self.engine.try_lock().unwrap_or_else(|| {
            self.is_wanted.store(true, Ordering::Relaxed);
            let engine = self.engine.lock();
            self.is_wanted.store(false, Ordering::Relaxed);
            engine
        })
    }

    fn turn(&self, now: Nanos) -> TurnOutcome {
        let mut engine = self.engine.lock();
        // Set only under the lock, so no turn is running once `hold` returns.
        if self.is_paused.load(Ordering::Relaxed) {
            return TurnOutcome { worked: false, awaits_wire: false, next: None };
        }
        let worked = engine.turn(now, true, &self.is_wanted);
        self.publish(&engine);
        let (awaits_wire, next) = (engine.may_receive(), engine.next);
        // A control plane that waits for the lock gets it next.
        MutexGuard::unlock_fair(engine);
        TurnOutcome { worked, awaits_wire, next }
    }

    /// The thread's loop, until it is to end. `wire` is the wire's descriptor, if it has one.
    pub(super) fn run(&self, wire: Option<&OwnedFd>, start: Instant) {
        let _ended = Ended(&self.has_ended);
        let now = || Nanos(start.elapsed().as_nanos() as u64);
        let mut yields = Yields::default();
        while !self.is_to_end.load(Ordering::Relaxed) {
            let outcome = self.turn(now());
            if outcome.worked || outcome.next.is_some_and(|at| at <= now()) {
                // The other end of the wire may need this CPU.
                yields.yield_now();
                continue;
            }
            self.bell.prepare_park();
            // An order that was sent before that rang no bell.
            let outcome = self.turn(now());
            if !outcome.worked && !self.is_to_end.load(Ordering::Relaxed) {
                let until =
                    outcome.next.map_or(SLEEP_MAX, |at| Duration::from_nanos(at.since(now()).0));
                self.sleep(
                    wire.filter(|_| outcome.awaits_wire),
                    until.min(SLEEP_MAX),
                    wire.is_none(),
                );
            }
            self.bell.unpark();
        }
    }

    fn sleep(&self, wire: Option<&OwnedFd>, timeout: Duration, naps: bool) {
        let timeout = if naps { timeout.min(NAP) } else { timeout };
        // On the stack, so that a sleep allocates nothing.
        let mut polled = ArrayVec::<PollFd<'_>, 2>::new();
        let fds = [Some(self.bell.as_fd()), wire.map(OwnedFd::as_fd)];
        let input = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        polled.extend(fds.into_iter().flatten().map(input));
        let timeout =
            Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        // A signal also ends the wait.
        let _ = poll(&mut polled, Some(&timeout));
    }
}

/// Sets the flag when it is dropped, even by a panic.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

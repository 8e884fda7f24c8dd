//! The clocks that a modelled link runs on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use wave_core::clock::{Clock, Nanos};
use wave_core::link::{Home, LINE_WORDS};

use super::pcie::Carried;

/// A clock on which a context can be kept busy.
///
/// All contexts of a link, in whichever process, must agree on the time.
pub trait Timebase: Clock {
    /// Keeps the calling context busy for `span`.
    fn spend(&self, span: Nanos);

    /// Keeps the calling context busy until `end`, if that is still to come.
    fn spend_until(&self, end: Nanos) {
        let now = self.now();
        if now < end {
            self.spend(end - now);
        }
    }

    /// The extra time that data leaving now is on its way: a link that stalls.
    fn held_up(&self) -> Nanos {
        Nanos(0)
    }

    /// Called for a store to the words of a line that `mask` names, visible from `visible` on.
    #[inline]
    fn stored(&self, _home: Home, _line: u32, _mask: u8, _visible: Nanos) {}

    /// The time at which a line with these words, which arrives at `arrives`, is visible: later if a stage takes it first.
    #[inline]
    fn staged(&self, _home: Home, _line: u32, _words: &[u64; LINE_WORDS], arrives: Nanos) -> Nanos {
        arrives
    }

    /// Charges this many bytes as crossing the link now.
    #[inline]
    fn carried(&self, _bytes: Carried) {}

    /// Called when the context polled a copy that has not completed.
    #[inline]
    fn on_empty_poll(&self) {}
}

/// This machine's monotonic clock, the same in all processes; it spends time by spinning.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealTime;

impl Clock for RealTime {
    fn now(&self) -> Nanos {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is valid for writes for the duration of the call.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
        Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }
}

impl Timebase for RealTime {
    fn spend(&self, span: Nanos) {
        self.spend_until(self.now() + span);
    }

    fn spend_until(&self, end: Nanos) {
        while self.now() < end {
            core::hint::spin_loop();
        }
    }
}

/// A clock that stands still unless someone spends time or sets it. Clones share it.
#[derive(Clone, Debug)]
pub struct ManualTime {
    now: Arc<AtomicU64>,
}

impl ManualTime {
    /// A clock that shows `now`.
    pub fn new(now: Nanos) -> ManualTime {
        ManualTime { now: Arc::new(AtomicU64::new(now.0)) }
    }
}

impl Clock for ManualTime {
    fn now(&self) -> Nanos {
        Nanos(self.now.load(SeqCst))
    }
}

impl Timebase for ManualTime {
    fn spend(&self, span: Nanos) {
        self.now.fetch_add(span.0, SeqCst);
    }
}

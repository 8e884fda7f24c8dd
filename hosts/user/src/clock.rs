//! The host's clock.

use std::sync::OnceLock;
use std::time::Instant;

use wave_core::clock::{Clock, Nanos};

/// CLOCK_MONOTONIC since the first use in this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct MonotonicClock;

impl Clock for MonotonicClock {
    #[inline]
    fn now(&self) -> Nanos {
        static START: OnceLock<Instant> = OnceLock::new();
        Nanos(START.get_or_init(Instant::now).elapsed().as_nanos() as u64)
    }
}

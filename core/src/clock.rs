//! Time as the core sees it: an argument, never a call hidden inside a policy.

use core::ops::{Add, Sub};

/// A point in time or a span, in nanoseconds, on one side's own monotonic clock.
///
/// Host and agent clocks are never compared: what crosses the link is a duration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Nanos(pub u64);

impl Nanos {
    /// The end of time: a deadline that never comes.
    pub const MAX: Nanos = Nanos(u64::MAX);

    /// Converts `count` microseconds to nanoseconds.
    pub const fn from_micros(count: u64) -> Nanos {
        Nanos(count * 1_000)
    }

    /// Converts `count` milliseconds to nanoseconds.
    pub const fn from_millis(count: u64) -> Nanos {
        Nanos(count * 1_000_000)
    }

    /// `self - earlier`, or zero where `earlier` is later.
    pub const fn since(self, earlier: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add for Nanos {
    type Output = Nanos;
    fn add(self, other: Nanos) -> Nanos {
        Nanos(self.0.saturating_add(other.0))
    }
}

impl Sub for Nanos {
    type Output = Nanos;
    fn sub(self, other: Nanos) -> Nanos {
        self.since(other)
    }
}

/// A monotonic clock with an arbitrary origin.
pub trait Clock {
    /// The time now. Never goes backwards on one clock.
    fn now(&self) -> Nanos;
}

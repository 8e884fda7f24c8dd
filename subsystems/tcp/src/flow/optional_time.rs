//! An optional time in eight bytes: an `Option<Nanos>` has sixteen.

use core::fmt;

use serde::{Deserialize, Serialize};
use wave_core::clock::Nanos;

/// A time, or none.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OptionalTime(u64);

impl OptionalTime {
    /// No time.
    pub const NONE: OptionalTime = OptionalTime(u64::MAX);

    /// The time, if there is one.
    #[inline]
    pub fn get(self) -> Option<Nanos> {
        (self != OptionalTime::NONE).then_some(Nanos(self.0))
    }

    /// Whether there is none.
    #[inline]
    pub fn is_none(self) -> bool {
        self == OptionalTime::NONE
    }
}

impl Default for OptionalTime {
    fn default() -> OptionalTime {
        OptionalTime::NONE
    }
}

impl From<Nanos> for OptionalTime {
    fn from(time: Nanos) -> OptionalTime {
        OptionalTime(time.0)
    }
}

impl fmt::Debug for OptionalTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

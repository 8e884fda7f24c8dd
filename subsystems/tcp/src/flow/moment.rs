//! An optional time in eight bytes: an `Option<Nanos>` has sixteen.

use core::fmt;

use serde::{Deserialize, Serialize};
use wave_core::clock::Nanos;

/// A time, or none.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment(u64);

impl Moment {
    /// No time.
    pub const NEVER: Moment = Moment(u64::MAX);

    /// The time, if there is one.
    #[inline]
    pub fn get(self) -> Option<Nanos> {
        (self != Moment::NEVER).then_some(Nanos(self.0))
    }

    /// Whether there is none.
    #[inline]
    pub fn is_never(self) -> bool {
        self == Moment::NEVER
    }
}

impl Default for Moment {
    fn default() -> Moment {
        Moment::NEVER
    }
}

impl From<Nanos> for Moment {
    fn from(time: Nanos) -> Moment {
        Moment(time.0)
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

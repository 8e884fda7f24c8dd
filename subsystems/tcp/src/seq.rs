//! Sequence numbers (RFC 9293, section 3.4): modulo 2^32, compared by distance.

use core::fmt;

use serde::{Deserialize, Serialize};

/// A sequence number. Sequence numbers have no total order, only distances below 2^31.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Seq(pub u32);

impl Seq {
    /// The number `bytes` later, modulo 2^32.
    pub const fn plus(self, bytes: u32) -> Seq {
        Seq(self.0.wrapping_add(bytes))
    }

    /// The number `bytes` earlier, modulo 2^32.
    pub const fn minus(self, bytes: u32) -> Seq {
        Seq(self.0.wrapping_sub(bytes))
    }

    /// Distance from `earlier` to this number; negative if this number comes first.
    pub const fn since(self, earlier: Seq) -> i32 {
        self.0.wrapping_sub(earlier.0) as i32
    }

    /// The position of this number in a stream whose position `near` has the number `at_near`: the one less than 2^31 away from
    /// `near`. `None` if that is before the stream's first byte.
    pub fn position(self, near: u64, at_near: Seq) -> Option<u64> {
        near.checked_add_signed(self.since(at_near).into())
    }
}

impl fmt::Debug for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The number of a position in a stream whose position 0 has the number `base`.
pub const fn seq_of(base: Seq, position: u64) -> Seq {
    base.plus(position as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_right_across_the_wraparound() {
        let late = Seq(u32::MAX - 1);
        assert_eq!(late.plus(4), Seq(2));
        assert_eq!(Seq(2).since(late), 4);
        assert_eq!(late.since(Seq(2)), -4);
    }

    #[test]
    fn a_number_stands_for_the_position_nearest_to_a_known_one() {
        let base = Seq(u32::MAX - 9);
        for near in [0, 100, 1 << 31, (1 << 32) - 1, 1 << 40] {
            for far in [-5_i64, 0, 5, i64::from(i32::MAX), i64::from(i32::MIN)] {
                let position = near as i64 + far;
                let found = seq_of(base, position as u64).position(near, seq_of(base, near));
                assert_eq!(found, u64::try_from(position).ok(), "{near} {far}");
            }
        }
    }
}

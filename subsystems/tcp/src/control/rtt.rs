//! The retransmission timeout (RFC 6298).

use serde::{Deserialize, Serialize};
use wave_core::clock::Nanos;

use crate::flow::optional_time::OptionalTime;
use crate::planted::{Planted, is_planted};

/// Minimum difference between the timeout and the smoothed round trip: Linux's 200 ms, so that a delayed acknowledgement
/// arrives in time however long the round trip is. RFC 6298 has a minimum of one second for the whole timeout.
pub const MIN: Nanos = Nanos::from_millis(200);
/// Longest timeout.
pub const MAX: Nanos = Nanos::from_millis(120_000);
/// Timeout before the first measurement.
pub const INITIAL: Nanos = Nanos::from_millis(1_000);
/// Timeout before the first measurement if the SYN was sent twice.
pub const INITIAL_AFTER_LOSS: Nanos = Nanos::from_millis(3_000);

/// Estimate of the round-trip time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundTrip {
    smoothed: OptionalTime,
    variation: Nanos,
    back_off: u8,
    /// The SYN was sent twice.
    is_after_lost_syn: bool,
}

impl RoundTrip {
    /// An estimate without measurements.
    pub const fn new() -> RoundTrip {
        RoundTrip {
            smoothed: OptionalTime::NONE,
            variation: Nanos(0),
            back_off: 0,
            is_after_lost_syn: false,
        }
    }

    /// An estimate without measurements after a SYN that was sent twice (RFC 6298, 5.7).
    pub const fn after_lost_syn() -> RoundTrip {
        RoundTrip { is_after_lost_syn: true, ..RoundTrip::new() }
    }

    /// Adds a sample: of bytes that were sent once, or from a timestamp.
    pub fn sample(&mut self, took: Nanos) {
        match self.smoothed.get() {
            None => {
                self.smoothed = took.into();
                self.variation = Nanos(took.0 / 2);
            }
            Some(smoothed) => {
                let off = smoothed.0.abs_diff(took.0);
                self.variation = Nanos(self.variation.0 - self.variation.0 / 4 + off / 4);
                self.smoothed = Nanos(smoothed.0 - smoothed.0 / 8 + took.0 / 8).into();
            }
        }
    }

    /// The smoothed round-trip time; `None` before the first measurement.
    pub fn smoothed(&self) -> Option<Nanos> {
        self.smoothed.get()
    }

    /// Mean deviation of the round-trip time.
    pub fn variation(&self) -> Nanos {
        self.variation
    }

    /// The retransmission timeout, with back-off.
    pub fn timeout(&self) -> Nanos {
        let initial = if self.is_after_lost_syn { INITIAL_AFTER_LOSS } else { INITIAL };
        let base = self
            .smoothed
            .get()
            .map_or(initial, |smoothed| Nanos(smoothed.0 + (4 * self.variation.0).max(MIN.0)));
        Nanos((base.0 << self.back_off.min(16)).min(MAX.0))
    }

    /// Doubles the timeout after it expired (RFC 6298, 5.5).
    pub fn back_off(&mut self) {
        if is_planted(Planted::NoBackOff) {
            return;
        }
        self.back_off = self.back_off.saturating_add(1);
    }

    /// Resets the back-off: something new was acknowledged.
    pub fn reset_back_off(&mut self) {
        self.back_off = 0;
    }

    /// Number of consecutive timeouts.
    pub fn timeouts(&self) -> u8 {
        self.back_off
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeout_leaves_200_ms_for_a_delayed_acknowledgement_and_doubles_to_its_max() {
        let mut trip = RoundTrip::new();
        assert_eq!(trip.timeout(), INITIAL);
        trip.sample(Nanos::from_millis(1));
        assert_eq!(trip.timeout(), Nanos::from_millis(201));
        trip.back_off();
        assert_eq!(trip.timeout(), Nanos::from_millis(402));
        for _ in 0..100 {
            trip.back_off();
        }
        assert_eq!(trip.timeout(), MAX);
        trip.reset_back_off();
        assert_eq!(trip.timeout(), Nanos::from_millis(201));
    }

    #[test]
    fn the_timeout_grows_with_the_variation_of_the_round_trip() {
        let mut trip = RoundTrip::new();
        trip.sample(Nanos::from_millis(100));
        // RFC 6298, 2.2: the sample plus four times half of it.
        assert_eq!(trip.timeout(), Nanos::from_millis(300));
        for _ in 0..100 {
            trip.sample(Nanos::from_millis(500));
        }
        assert!(trip.timeout() < Nanos::from_millis(701), "{:?}", trip.timeout());
        assert!(trip.timeout() > Nanos::from_millis(690), "{:?}", trip.timeout());
    }
}

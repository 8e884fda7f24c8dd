//! DCTCP's estimate of the share of data that meets congestion (RFC 8257, 3.3).

use serde::{Deserialize, Serialize};

use super::AckSummary;

/// All of the data, in units of [`MarkedFraction::alpha`].
pub const ONE: u32 = 1 << 20;
/// Weight of the newest window of data: 2^-4, the recommended gain (RFC 8257, 4.2).
const GAIN_SHIFT: u32 = 4;

/// RFC 8257's DCTCP.Alpha, and the counts from which it is updated once per window of data.
///
/// Acknowledgements are counted in groups, as the control plane reads them. If a window of data ends within a group, the
/// group's bytes after that end count for the window, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MarkedFraction {
    alpha: u32,
    bytes: u32,
    marked_bytes: u32,
    /// End of the current window of data (DCTCP.WindowEnd).
    ends_at: u64,
}

impl Default for MarkedFraction {
    /// The initial estimate is all of the data, so that the first mark halves the window (RFC 8257, 3.3).
    fn default() -> MarkedFraction {
        MarkedFraction { alpha: ONE, bytes: 0, marked_bytes: 0, ends_at: 0 }
    }
}

impl MarkedFraction {
    /// The estimate, in units of 1 / [`ONE`].
    pub fn alpha(&self) -> u32 {
        self.alpha
    }

    /// Counts acknowledged and marked bytes.
    pub fn count(&mut self, acks: &AckSummary) {
        self.bytes = self.bytes.saturating_add(acks.bytes);
        self.marked_bytes = self.marked_bytes.saturating_add(acks.marked_bytes.min(acks.bytes));
        if acks.acknowledged <= self.ends_at || self.bytes == 0 {
            return;
        }
        let marked = (u64::from(self.marked_bytes) * u64::from(ONE) / u64::from(self.bytes)) as u32;
        self.alpha = self.alpha - (self.alpha >> GAIN_SHIFT) + (marked >> GAIN_SHIFT);
        *self =
            MarkedFraction { alpha: self.alpha, ends_at: acks.sent, ..MarkedFraction::default() };
    }

    /// `window` in bytes, reduced according to the estimate (RFC 8257, 3.3, equation 9).
    pub fn reduce(&self, window: u32) -> u32 {
        let less = u64::from(window) * u64::from(self.alpha) / u64::from(2 * ONE);
        window - less as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The estimate after `windows` windows of 10,000 bytes, each with `marked_bytes` marked.
    fn after(windows: u64, marked_bytes: u32) -> MarkedFraction {
        let mut fraction = MarkedFraction::default();
        for window in 1..=windows {
            let acks = AckSummary {
                bytes: 10_000,
                marked_bytes,
                acknowledged: window * 10_000,
                sent: window * 10_000 + 9_999,
                ..AckSummary::default()
            };
            fraction.count(&acks);
        }
        fraction
    }

    /// The equation of RFC 8257, 3.3: `Alpha = Alpha * (1 - g) + g * M`.
    #[test]
    fn the_estimate_is_a_moving_average_with_a_gain_of_a_sixteenth() {
        for marked_bytes in [0, 2_500, 10_000] {
            let mut expected = 1.0;
            for windows in 1..60 {
                expected = expected * 15.0 / 16.0 + f64::from(marked_bytes) / 10_000.0 / 16.0;
                let alpha = f64::from(after(windows, marked_bytes).alpha()) / f64::from(ONE);
                assert!((alpha - expected).abs() < 1e-4, "{alpha} for {expected}");
            }
        }
    }

    #[test]
    fn the_window_shrinks_by_half_of_the_estimate() {
        assert_eq!(
            MarkedFraction::default().reduce(10_000),
            5_000,
            "the first mark halves, like a loss"
        );
        let fraction = MarkedFraction { alpha: ONE / 5, ..MarkedFraction::default() };
        assert_eq!(fraction.reduce(10_000), 9_001);
        assert_eq!(after(1_000, 0).reduce(10_000), 10_000);
    }

    #[test]
    fn the_estimate_changes_once_for_each_window_of_data() {
        let mut fraction = MarkedFraction::default();
        let acks = |acknowledged| AckSummary {
            bytes: 1_000,
            acknowledged,
            sent: acknowledged + 10_000,
            ..AckSummary::default()
        };
        fraction.count(&acks(1_000));
        let first = fraction.alpha();
        assert_eq!(first, ONE / 16 * 15);
        for at in 2..=11 {
            fraction.count(&acks(at * 1_000));
            assert_eq!(fraction.alpha(), first, "{at}");
        }
        fraction.count(&acks(12_000));
        assert!(fraction.alpha() < first);
    }
}

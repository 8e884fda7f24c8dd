//! Reno (RFC 5681), counted in bytes (RFC 3465), with an initial window of ten segments (RFC 6928).

use serde::{Deserialize, Serialize};

/// The state of one connection's window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reno {
    window: u32,
    threshold: u32,
    mss: u32,
    /// Bytes acknowledged since the window grew by a segment, above the threshold.
    counted: u32,
}

/// Largest window in bytes: half of RFC 7323's maximum, so that it can be doubled.
const WINDOW_MAX: u32 = 1 << 29;

/// The initial window in bytes.
fn initial(mss: u32) -> u32 {
    (10 * mss).min((2 * mss).max(14_600))
}

impl Reno {
    /// The state of a new connection whose segments carry at most `mss` bytes.
    pub fn new(mss: u16) -> Reno {
        let mss = u32::from(mss.max(1));
        Reno { window: initial(mss), threshold: WINDOW_MAX, mss, counted: 0 }
    }

    /// Sets the largest segment, in bytes.
    pub fn set_mss(&mut self, mss: u16) {
        self.mss = u32::from(mss.max(1));
        self.window = self.window.max(self.mss);
    }

    /// Whether [`Reno::restart`] would change something.
    pub fn has_grown(&self) -> bool {
        self.window > initial(self.mss)
    }

    /// Restarts after an idle period: nothing was sent for a retransmission timeout, so the window is out of date (RFC 5681,
    /// 4.1).
    pub fn restart(&mut self) {
        self.threshold = self.threshold.max(self.window / 4 * 3);
        self.window = self.window.min(initial(self.mss));
        self.counted = 0;
    }

    /// The congestion window, in bytes.
    pub fn window(&self) -> u32 {
        self.window
    }

    /// Window in bytes at which slow start ends.
    pub fn threshold(&self) -> u32 {
        self.threshold
    }

    /// Processes `bytes` acknowledged. `was_full` says whether the window limited sending: otherwise it does not grow (RFC
    /// 7661).
    pub fn on_acknowledged(&mut self, bytes: u32, was_full: bool) {
        if !was_full {
            return;
        }
        if self.window < self.threshold {
            // A limit of two segments per acknowledgement would slow a sender of super-packets down. What counts is how many
            // bytes have left the network, and the window itself limits bursts.
            let grown = bytes.min(self.threshold - self.window).min(self.window);
            self.window = (self.window + grown).min(WINDOW_MAX);
            return;
        }
        self.counted = self.counted.saturating_add(bytes);
        if self.counted >= self.window {
            self.counted -= self.window;
            self.window = (self.window + self.mss).min(WINDOW_MAX);
        }
    }

    /// Reacts to a loss detected without a timeout, with `outstanding` bytes unacknowledged. Bytes beyond the window do not
    /// count: limited transmit sent them (RFC 5681, 3.2), or the peer selectively acknowledged them in the previous recovery.
    pub fn on_loss(&mut self, outstanding: u32) {
        self.threshold = (outstanding.min(self.window) / 2).max(2 * self.mss);
        self.window = self.threshold;
        self.counted = 0;
    }

    /// Reduces the window to at most `window` bytes, but at least two segments: the network has marked packets.
    pub fn reduce(&mut self, window: u32) {
        self.threshold = window.max(2 * self.mss);
        self.window = self.window.min(self.threshold);
        self.counted = 0;
    }

    /// Reacts to a retransmission timeout with `outstanding` bytes unacknowledged; `again` if the timer had already expired for
    /// the same bytes.
    pub fn on_timeout(&mut self, outstanding: u32, again: bool) {
        if !again {
            self.threshold = (outstanding / 2).max(2 * self.mss);
        }
        self.window = self.mss;
        self.counted = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn above_the_threshold_the_window_grows_by_a_segment_per_round_trip() {
        let mut reno = Reno::new(1000);
        assert_eq!(reno.window(), 10_000);
        reno.on_acknowledged(10_000, true);
        assert_eq!(reno.window(), 20_000);
        reno.on_loss(20_000);
        assert_eq!((reno.window(), reno.threshold()), (10_000, 10_000));
        reno.on_acknowledged(9_999, true);
        assert_eq!(reno.window(), 10_000);
        reno.on_acknowledged(1, true);
        assert_eq!(reno.window(), 11_000);
    }

    #[test]
    fn a_timeout_leaves_one_segment_and_a_second_one_does_not_halve_again() {
        let mut reno = Reno::new(1000);
        reno.on_timeout(10_000, false);
        reno.on_timeout(1_000, true);
        assert_eq!((reno.window(), reno.threshold()), (1_000, 5_000));
    }

    /// Bytes that the peer SACKed in the previous recovery count as outstanding, too.
    #[test]
    fn a_loss_halves_at_most_the_window_even_if_more_is_outstanding() {
        let mut reno = Reno::new(1000);
        reno.on_loss(30_000);
        assert_eq!(reno.window(), 5_000);
    }

    /// ACK division (RFC 3465, section 1): a peer that acknowledges byte by byte gains nothing.
    #[test]
    fn ack_division_does_not_grow_the_window_faster() {
        let grown = |pieces: u32| {
            let mut reno = Reno::new(1000);
            (0..pieces).for_each(|_| reno.on_acknowledged(10_000 / pieces, true));
            reno.on_loss(reno.window());
            let threshold = reno.window();
            (0..pieces).for_each(|_| reno.on_acknowledged(10_000 / pieces, true));
            (threshold, reno.window())
        };
        assert_eq!(grown(1), (10_000, 11_000));
        for pieces in [2, 10, 1_000, 10_000] {
            assert_eq!(grown(pieces), grown(1));
        }
    }

    #[test]
    fn a_window_that_does_not_limit_sending_does_not_grow() {
        let mut reno = Reno::new(1000);
        reno.on_acknowledged(5_000, false);
        assert_eq!(reno.window(), 10_000);
    }
}

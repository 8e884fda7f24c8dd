//! DCTCP (RFC 8257): the window shrinks with the share of bytes whose packets met a long queue, and by losses as Reno's does.

use super::{Acknowledgement, Reno};

/// One, as a fraction.
const ONE: u32 = 1 << 20;
/// A new share counts for 1/16 (RFC 8257, 3.3: `g`).
const GAIN_SHIFT: u32 = 4;

/// The state of one connection's window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dctcp {
    reno: Reno,
    /// Estimate of the share of marked bytes, of [`ONE`]. It begins with all (RFC 8257, 3.3).
    alpha: u32,
    /// Acknowledged since the observation began, and marked among that.
    acknowledged: u64,
    marked: u64,
    /// The observation ends when all before this position is acknowledged: about a round trip.
    observed_until: u64,
}

impl Dctcp {
    /// A connection whose segments carry at most so many bytes.
    pub fn new(mss: u16) -> Dctcp {
        Dctcp { reno: Reno::new(mss), alpha: ONE, acknowledged: 0, marked: 0, observed_until: 0 }
    }

    /// Most bytes that are sent and not acknowledged.
    pub fn window(&self) -> u32 {
        self.reno.window()
    }

    /// Where slow start ends.
    pub fn threshold(&self) -> u32 {
        self.reno.threshold()
    }

    /// Thousandths of the bytes that are thought to meet long queues.
    pub fn marked_permille(&self) -> u32 {
        (u64::from(self.alpha) * 1000 / u64::from(ONE)) as u32
    }

    /// Bytes were acknowledged.
    pub fn on_acknowledged(&mut self, news: &Acknowledgement) {
        self.acknowledged += u64::from(news.bytes);
        self.marked += u64::from(news.marked.min(news.bytes));
        // Nothing grows by an acknowledgement that tells of a mark (RFC 3168, 6.1.2).
        if news.marked == 0 {
            self.reno.on_acknowledged(news);
        }
        if news.position < self.observed_until {
            return;
        }
        let share = (self.marked * u64::from(ONE)).checked_div(self.acknowledged).unwrap_or(0);
        self.alpha = self.alpha - (self.alpha >> GAIN_SHIFT) + (share as u32 >> GAIN_SHIFT);
        if self.marked > 0 {
            let window = u64::from(self.reno.window());
            let cut = window * u64::from(self.alpha) / u64::from(2 * ONE);
            self.reno.shrink((window - cut) as u32);
        }
        (self.acknowledged, self.marked, self.observed_until) = (0, 0, news.sent);
    }

    /// See [`Reno::on_loss`].
    pub fn on_loss(&mut self, outstanding: u32) {
        self.reno.on_loss(outstanding);
    }

    /// See [`Reno::on_timeout`].
    pub fn on_timeout(&mut self, outstanding: u32, again: bool) {
        self.reno.on_timeout(outstanding, again);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Up to a position all is acknowledged and sent.
    fn news(position: u64, bytes: u32, marked: u32) -> Acknowledgement {
        Acknowledgement { position, bytes, marked, sent: position, was_full: true }
    }

    /// Windows that are acknowledged one after the other, each with so many marked thousandths.
    fn rounds(dctcp: &mut Dctcp, position: &mut u64, permille: &[u32]) -> u32 {
        for permille in permille {
            let window = dctcp.window();
            *position += u64::from(window);
            let marked = (u64::from(window) * u64::from(*permille) / 1000) as u32;
            dctcp.on_acknowledged(&news(*position, window, marked));
        }
        dctcp.window()
    }

    #[test]
    fn the_first_mark_halves_as_a_loss_would() {
        let (mut dctcp, mut position) = (Dctcp::new(1000), 0);
        let before = rounds(&mut dctcp, &mut position, &[0]);
        let after = rounds(&mut dctcp, &mut position, &[1000]);
        assert!(after.abs_diff(before / 2) <= before / 32, "{before} {after}");
    }

    #[test]
    fn a_tenth_that_is_marked_shrinks_a_window_by_a_twentieth() {
        let (mut dctcp, mut position) = (Dctcp::new(1000), 0);
        rounds(&mut dctcp, &mut position, &[0; 4]);
        rounds(&mut dctcp, &mut position, &[100; 100]);
        assert!(dctcp.marked_permille().abs_diff(100) <= 3, "{}", dctcp.marked_permille());
        let before = dctcp.window();
        let after = rounds(&mut dctcp, &mut position, &[100]);
        let expected = (before - before / 20).max(2_000);
        assert!(after.abs_diff(expected) <= before / 100 + 1, "{before} {after}");
    }

    #[test]
    fn a_window_shrinks_once_a_round_whatever_is_marked() {
        let mut dctcp = Dctcp::new(1000);
        // The first acknowledgement begins an observation.
        dctcp.on_acknowledged(&Acknowledgement { sent: 11_000, ..news(1_000, 1_000, 0) });
        let before = dctcp.window();
        for position in (2_000..11_000).step_by(1_000) {
            dctcp.on_acknowledged(&news(position, 1_000, 1_000));
            assert_eq!(dctcp.window(), before);
        }
        dctcp.on_acknowledged(&news(11_000, 1_000, 1_000));
        assert!(dctcp.window() < before);
    }

    #[test]
    fn without_marks_it_forgets() {
        let (mut dctcp, mut position) = (Dctcp::new(1000), 0);
        rounds(&mut dctcp, &mut position, &[0; 100]);
        assert!(dctcp.marked_permille() <= 2);
        let before = dctcp.window();
        let after = rounds(&mut dctcp, &mut position, &[10]);
        assert!(after >= before - before / 200, "{before} {after}");
    }
}

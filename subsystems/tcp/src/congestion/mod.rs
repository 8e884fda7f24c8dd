//! Congestion control: pure policies that turn events into a window and a rate.
//!
//! Under either [`Algorithm`], windows grow, and shrink after losses, as in [`Reno`]. The algorithms differ in their reaction
//! to a congestion mark (RFC 3168): the same as to a loss, or in proportion to the share of marked bytes (DCTCP, RFC 8257).

mod dctcp;
mod reno;

use serde::{Deserialize, Serialize};
use wave_core::clock::Nanos;

pub use dctcp::{MarkedFraction, ONE};
pub use reno::Reno;

use crate::datapath::Echo;

/// The congestion control of an agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Algorithm {
    /// RFC 5681. ECN is used where the peer asks for it, and a mark halves the window (RFC 3168).
    #[default]
    Reno,
    /// RFC 8257. Handshakes ask for ECN, and flows that have met congestion are paced.
    Dctcp,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Algorithm; 2] = [Algorithm::Reno, Algorithm::Dctcp];

    /// The name in Linux (TCP_CONGESTION) and on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Reno => "reno",
            Algorithm::Dctcp => "dctcp",
        }
    }

    /// The algorithm with this name; `None` if the name is unknown.
    pub fn by_name(name: &str) -> Option<Algorithm> {
        Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }

    /// Whether our SYNs ask for ECN.
    pub const fn asks_for_ecn(self) -> bool {
        matches!(self, Algorithm::Dctcp)
    }

    /// How the receiver echoes marks.
    pub const fn echo(self) -> Echo {
        match self {
            Algorithm::Reno => Echo::UntilReduced,
            Algorithm::Dctcp => Echo::Exact,
        }
    }
}

/// A summary of the acknowledgements since the last call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AckSummary {
    /// Bytes acknowledged.
    pub bytes: u32,
    /// Bytes whose acknowledgements echo a mark.
    pub marked_bytes: u32,
    /// Position: all bytes before it are acknowledged.
    pub acknowledged: u64,
    /// Position: all bytes before it were sent.
    pub sent: u64,
    /// Whether the congestion window limited sending.
    pub was_full: bool,
    /// Whether recovery from a loss is in progress: the window has shrunk for it, and does not change until recovery ends.
    pub is_recovering: bool,
}

/// Congestion control of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Congestion {
    algorithm: Algorithm,
    reno: Reno,
    fraction: MarkedFraction,
    /// Marks of data before this position are ignored: the window has been reduced since that data was sent (RFC 3168, 6.1.2).
    reduced_until: u64,
    /// The flow has met congestion at least once.
    has_met_congestion: bool,
}

impl Congestion {
    /// The state of a new connection whose segments carry at most `mss` bytes.
    pub fn new(algorithm: Algorithm, mss: u16) -> Congestion {
        Congestion {
            algorithm,
            reno: Reno::new(mss),
            fraction: MarkedFraction::default(),
            reduced_until: 0,
            has_met_congestion: false,
        }
    }

    /// Sets the largest segment, in bytes.
    pub fn set_mss(&mut self, mss: u16) {
        self.reno.set_mss(mss);
    }

    /// The congestion window, in bytes.
    pub fn window(&self) -> u32 {
        self.reno.window()
    }

    /// The window in bytes at which slow start ends.
    pub fn threshold(&self) -> u32 {
        self.reno.threshold()
    }

    /// Window and threshold, as values of a trace record.
    pub(crate) fn values(&self) -> [u64; 2] {
        [self.window().into(), self.threshold().into()]
    }

    /// The share of data that meets congestion, in units of 1 / [`ONE`]; `None` unless the algorithm is DCTCP.
    pub fn alpha(&self) -> Option<u32> {
        (self.algorithm == Algorithm::Dctcp).then_some(self.fraction.alpha())
    }

    /// Pacing rate in bytes per second. It is twice a window per round trip in slow start, and 5/4 of a window per round trip
    /// above the threshold, so that on average the window, and not the rate, limits a flow. `None` if the flow is not paced: it
    /// has met no congestion (thesis 4.3.4), or the algorithm has no rates.
    pub fn rate(&self, round_trip: Option<Nanos>) -> Option<u64> {
        let round_trip = round_trip.filter(|it| it.0 > 0 && self.has_met_congestion)?;
        if self.algorithm != Algorithm::Dctcp {
            return None;
        }
        let window = u64::from(self.window());
        let gained = if self.window() < self.threshold() { 2 * window } else { window * 5 / 4 };
        Some((gained * 1_000_000_000 / round_trip.0).max(1))
    }

    /// Whether [`Congestion::restart`] would change something.
    pub fn has_grown(&self) -> bool {
        self.reno.has_grown()
    }

    /// Restarts after an idle period: nothing was sent for a retransmission timeout, so the window is out of date (RFC 5681,
    /// 4.1).
    pub fn restart(&mut self) {
        self.reno.restart();
    }

    /// Processes acknowledged bytes. Returns whether the window was reduced; the peer must then be told (RFC 3168, 6.1.2).
    pub fn on_acknowledged(&mut self, acks: &AckSummary) -> bool {
        self.fraction.count(acks);
        if acks.is_recovering || acks.bytes == 0 {
            return false;
        }
        if acks.marked_bytes == 0 {
            self.reno.on_acknowledged(acks.bytes, acks.was_full);
            return false;
        }
        // Reduce once per window of data. Acknowledgements that echo a mark never grow the window.
        let reduces = acks.acknowledged > self.reduced_until;
        if reduces {
            let window = self.reno.window();
            self.reno.reduce(match self.algorithm {
                Algorithm::Reno => window / 2,
                Algorithm::Dctcp => self.fraction.reduce(window),
            });
            self.reduced_until = acks.sent;
            self.has_met_congestion = true;
        }
        reduces
    }

    /// Reacts to a loss detected without a timeout. `outstanding` bytes are unacknowledged; all bytes before position `sent`
    /// were sent.
    pub fn on_loss(&mut self, outstanding: u32, sent: u64) {
        self.reno.on_loss(outstanding);
        self.reduced_until = sent;
        self.has_met_congestion = true;
    }

    /// Reacts to a retransmission timeout with `outstanding` bytes unacknowledged; `again` if the timer had already expired for
    /// the same bytes.
    pub fn on_timeout(&mut self, outstanding: u32, again: bool) {
        self.reno.on_timeout(outstanding, again);
        self.has_met_congestion = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Acknowledges `bytes` up to position `acknowledged`, with one more window sent.
    fn acks(acknowledged: u64, bytes: u32, marked_bytes: u32) -> AckSummary {
        let sent = acknowledged + 10_000;
        AckSummary { bytes, marked_bytes, acknowledged, sent, was_full: true, is_recovering: false }
    }

    #[test]
    fn a_mark_halves_renos_window_once_for_each_window_of_data() {
        let mut congestion = Congestion::new(Algorithm::Reno, 1_000);
        assert!(congestion.on_acknowledged(&acks(1_000, 1_000, 1_000)));
        assert_eq!((congestion.window(), congestion.threshold()), (5_000, 5_000));
        // The peer echoes the mark until it learns that the window was reduced.
        for at in 2..=11 {
            assert!(!congestion.on_acknowledged(&acks(at * 1_000, 1_000, 1_000)), "{at}");
        }
        assert_eq!(congestion.window(), 5_000, "the window does not grow meanwhile");
        assert!(congestion.on_acknowledged(&acks(12_000, 1_000, 1_000)));
        assert_eq!(congestion.window(), 2_500);
        assert!(congestion.on_acknowledged(&acks(23_000, 1_000, 1_000)));
        assert_eq!(congestion.window(), 2_000, "at least two segments");
    }

    #[test]
    fn dctcp_reduces_by_the_share_of_marked_bytes() {
        let mut congestion = Congestion::new(Algorithm::Dctcp, 1_000);
        // Nothing is marked for a long time.
        for at in 1..1_000 {
            congestion.on_acknowledged(&acks(at * 20_000, 1_000, 0));
        }
        let window = congestion.window();
        let small = congestion.fraction;
        assert!(small.alpha() < ONE / 1_000);
        assert!(congestion.on_acknowledged(&acks(20_000_000, 1_000, 1_000)));
        // The estimate is now one sixteenth, and the window shrinks by half of that.
        let share = f64::from(congestion.window()) / f64::from(window);
        assert!((share - (1.0 - 1.0 / 32.0)).abs() < 0.001, "{share}");
    }

    /// DCTCP reacts to a loss like any other algorithm (RFC 8257, 3.5); marks of the same window of data do not add to that.
    #[test]
    fn a_loss_halves_the_window_and_marks_of_the_same_data_are_ignored() {
        for algorithm in Algorithm::ALL {
            let mut congestion = Congestion::new(algorithm, 1_000);
            congestion.on_loss(10_000, 10_000);
            assert_eq!(congestion.window(), 5_000);
            assert!(!congestion.on_acknowledged(&acks(10_000, 1_000, 1_000)));
            assert_eq!(congestion.window(), 5_000);
        }
    }

    #[test]
    fn only_dctcp_after_congestion_is_paced_and_its_rate_spreads_the_window() {
        let round_trip = Some(Nanos::from_millis(10));
        let mut congestion = Congestion::new(Algorithm::Dctcp, 1_000);
        assert_eq!(congestion.rate(round_trip), None);
        congestion.on_loss(10_000, 10_000);
        assert_eq!(congestion.rate(None), None);
        assert_eq!(congestion.rate(round_trip), Some(5_000 * 100 * 5 / 4));
        congestion.on_timeout(5_000, false);
        assert_eq!(congestion.rate(round_trip), Some(2 * 1_000 * 100));
        let mut reno = Congestion::new(Algorithm::Reno, 1_000);
        reno.on_loss(10_000, 10_000);
        assert_eq!(reno.rate(round_trip), None);
    }
}

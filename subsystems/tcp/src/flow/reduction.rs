//! Proportional rate reduction (RFC 6937): after a loss, a sender goes on sending in proportion to what arrives, so that about one reduced
//! window is in flight at the end of recovery. Without it, the sender is silent until half of a window has arrived, and then sends a burst.

/// The state of one recovery, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reduction {
    /// Bytes that the peer is known to have.
    delivered: u64,
    /// Bytes in flight when the loss was noticed (RecoverFS).
    flight: u32,
    /// Bytes delivered since then.
    arrived: u32,
    /// Bytes sent since then (prr_out).
    out: u32,
    /// Most bytes that may be in flight until the next acknowledgement.
    limit: u32,
}

impl Reduction {
    /// Before any recovery.
    pub const NONE: Reduction = Reduction { delivered: 0, flight: 0, arrived: 0, out: 0, limit: 0 };

    /// A loss is noticed: the peer has `delivered` of the `highest` bytes sent, and `in_flight` are in flight.
    pub fn new(delivered: u64, highest: u64, in_flight: u64, mss: u16) -> Reduction {
        let flight = narrow(highest.saturating_sub(delivered)).max(1);
        let limit = narrow(in_flight + u64::from(mss));
        Reduction { delivered, flight, arrived: 0, out: 0, limit }
    }

    /// An acknowledgement: the peer is known to have `delivered` bytes, and `in_flight` are in flight.
    pub fn on_acknowledgement(&mut self, delivered: u64, in_flight: u64, window: u32, mss: u16) {
        let newly = narrow(delivered.saturating_sub(self.delivered));
        self.delivered = self.delivered.max(delivered);
        self.arrived = self.arrived.saturating_add(newly);
        let in_flight = narrow(in_flight);
        let more = if in_flight > window {
            let due = u64::from(self.arrived) * u64::from(window) / u64::from(self.flight.max(1));
            narrow(due).saturating_sub(self.out)
        } else {
            // RFC 6937's slow-start reduction bound.
            let owed = self.arrived.saturating_sub(self.out);
            (window - in_flight).min(owed.max(newly).saturating_add(mss.into()))
        };
        self.limit = in_flight.saturating_add(more);
    }

    /// `bytes` were sent.
    pub fn on_sent(&mut self, bytes: u32) {
        self.out = self.out.saturating_add(bytes);
    }

    /// Most bytes that may be in flight.
    pub fn limit(&self) -> u64 {
        self.limit.into()
    }
}

/// Saturates: no window has more bytes than 32 bits count.
fn narrow(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 6937, Figure 2: of 20 segments the first is lost, and a window of 10 is kept, by Reno's half.
    #[test]
    fn every_second_segment_that_arrives_lets_one_go() {
        // The lost segment, and three that told of it, are not in flight.
        let mut in_flight = 16_000;
        let mut reduction = Reduction::new(3_000, 20_000, in_flight, 1_000);
        let mut sent = Vec::new();
        for arrived in 4..=19 {
            in_flight -= 1_000;
            reduction.on_acknowledgement(arrived * 1_000, in_flight, 10_000, 1_000);
            let segments = (reduction.limit() - in_flight) / 1_000;
            reduction.on_sent(segments as u32 * 1_000);
            in_flight += segments * 1_000;
            sent.push(segments);
        }
        assert!(sent.iter().all(|segments| *segments <= 1), "{sent:?}");
        assert_eq!((sent.iter().sum::<u64>(), in_flight), (10, 10_000), "{sent:?}");
    }

    #[test]
    fn after_heavy_loss_at_most_two_segments_answer_one() {
        let mut reduction = Reduction::new(3_000, 20_000, 2_000, 1_000);
        reduction.on_acknowledgement(4_000, 1_000, 10_000, 1_000);
        assert_eq!(reduction.limit(), 3_000);
        reduction.on_sent(2_000);
        reduction.on_acknowledgement(5_000, 2_000, 10_000, 1_000);
        assert_eq!(reduction.limit(), 4_000);
    }
}

//! Proportional rate reduction (RFC 9937): after a loss, a sender keeps sending in proportion to the bytes that arrive, so that
//! about one reduced window is in flight at the end of recovery. Without it, the sender is silent until half of a window has
//! arrived, and then sends a burst.

/// The state of one recovery, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prr {
    /// Bytes that the peer is known to have.
    delivered: u64,
    /// Bytes in flight when the loss was detected (RecoverFS).
    flight: u32,
    /// Bytes delivered since then.
    arrived: u32,
    /// Bytes sent since then (prr_out).
    out: u32,
    /// Limit of bytes in flight until the next acknowledgement.
    limit: u32,
}

impl Prr {
    /// The state before any recovery.
    pub const NONE: Prr = Prr { delivered: 0, flight: 0, arrived: 0, out: 0, limit: 0 };

    /// Starts when a loss is detected: the peer has `delivered` of the `highest` bytes sent, and `in_flight` are in flight.
    pub fn new(delivered: u64, highest: u64, in_flight: u64, mss: u16) -> Prr {
        let flight = narrow(highest.saturating_sub(delivered)).max(1);
        let limit = narrow(in_flight + u64::from(mss));
        Prr { delivered, flight, arrived: 0, out: 0, limit }
    }

    /// Processes an acknowledgement: the peer is known to have `delivered` bytes, and `in_flight` are in flight. `is_safe`: it
    /// acknowledges something new, and no further loss was found (SafeACK).
    pub fn on_acknowledgement(
        &mut self,
        delivered: u64,
        in_flight: u64,
        window: u32,
        mss: u16,
        is_safe: bool,
    ) {
        let newly = narrow(delivered.saturating_sub(self.delivered));
        self.delivered = self.delivered.max(delivered);
        self.arrived = self.arrived.saturating_add(newly);
        let in_flight = narrow(in_flight);
        let more = if in_flight > window {
            let due = u64::from(self.arrived) * u64::from(window);
            narrow(due.div_ceil(self.flight.max(1).into())).saturating_sub(self.out)
        } else {
            // As many bytes as have arrived, and one segment more as in slow start, but not while losses continue.
            let owed = self.arrived.saturating_sub(self.out).max(newly);
            let grown = if is_safe { owed.saturating_add(mss.into()) } else { owed };
            grown.min(window - in_flight)
        };
        // The first retransmission is sent at once.
        let first = if self.out == 0 { mss.into() } else { 0 };
        self.limit = in_flight.saturating_add(more.max(first));
    }

    /// Counts `bytes` as sent.
    pub fn on_sent(&mut self, bytes: u32) {
        self.out = self.out.saturating_add(bytes);
    }

    /// Limit of bytes in flight.
    pub fn limit(&self) -> u64 {
        self.limit.into()
    }
}

/// Saturates: every window fits in 32 bits.
fn narrow(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 6937, Figure 2 (RFC 9937 has the same example): the first of 20 segments is lost, and Reno halves the window to 10.
    #[test]
    fn with_half_the_window_one_segment_is_sent_for_every_two_that_arrive() {
        // The lost segment, and the three that revealed the loss, are not in flight.
        let mut in_flight = 16_000;
        let mut prr = Prr::new(3_000, 20_000, in_flight, 1_000);
        let mut sent = Vec::new();
        for arrived in 4..=19 {
            in_flight -= 1_000;
            prr.on_acknowledgement(arrived * 1_000, in_flight, 10_000, 1_000, false);
            let segments = (prr.limit() - in_flight) / 1_000;
            prr.on_sent(segments as u32 * 1_000);
            in_flight += segments * 1_000;
            sent.push(segments);
        }
        assert!(sent.iter().all(|segments| *segments <= 1), "{sent:?}");
        assert_eq!((sent.iter().sum::<u64>(), in_flight), (10, 10_000), "{sent:?}");
    }

    #[test]
    fn after_heavy_loss_two_segments_are_sent_per_arrival_but_one_while_losses_continue() {
        for (is_safe, segments) in [(true, 2), (false, 1)] {
            let mut prr = Prr::new(3_000, 20_000, 2_000, 1_000);
            let mut in_flight = 2_000;
            for arrived in 4..8 {
                in_flight -= 1_000;
                prr.on_acknowledgement(arrived * 1_000, in_flight, 10_000, 1_000, is_safe);
                assert_eq!(prr.limit(), in_flight + segments * 1_000);
                prr.on_sent(segments as u32 * 1_000);
                in_flight += segments * 1_000;
            }
        }
    }

    #[test]
    fn the_first_lost_segment_is_retransmitted_at_once_even_if_the_window_is_full() {
        let mut prr = Prr::new(3_000, 20_000, 16_000, 1_000);
        prr.on_acknowledgement(3_000, 16_000, 10_000, 1_000, false);
        assert_eq!(prr.limit(), 17_000);
        prr.on_sent(1_000);
        prr.on_acknowledgement(3_000, 17_000, 10_000, 1_000, false);
        assert_eq!(prr.limit(), 17_000);
    }
}

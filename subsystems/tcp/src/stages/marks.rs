//! The protocol stage's processing of congestion marks (RFC 3168; RFC 8257, 3.2).

use wave_core::clock::Nanos;

use super::arbiter::Answer;
use super::compose::{SegmentHeader, compose_header};
use crate::datapath::{Echo, EcnState};
use crate::flow::state::Protocol;
use crate::packet::Flags;
use crate::seq::seq_of;

/// Congestion signals of a data packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// The packet met congestion (CE).
    pub is_marked: bool,
    /// The sender has reduced its window (CWR).
    pub has_reduced: bool,
}

/// Processes the marks of data that has reached the host's ring and is not acknowledged yet. Returns an acknowledgement of the
/// earlier bytes if they had a different mark and are not acknowledged (RFC 8257, 3.2).
///
/// Only accepted data counts: marks of data outside the window may be a stranger's (RFC 3168, 6.1.5).
pub fn process_marks(
    flow: &mut Protocol,
    marks: Marks,
    now: Nanos,
    answer: impl FnOnce(&mut Protocol) -> Answer,
) -> Option<SegmentHeader> {
    let EcnState { echo, is_echoing, .. } = flow.ecn?;
    let echoes = match echo {
        Echo::UntilReduced => marks.is_marked || (is_echoing && !marks.has_reduced),
        Echo::Exact => marks.is_marked,
    };
    if echoes == is_echoing {
        return None;
    }
    let mut earlier = None;
    if echo == Echo::Exact {
        if flow.last_ack_sent != flow.expected() {
            let seq = seq_of(flow.send_base, flow.highest);
            let answer = answer(flow);
            earlier = Some(compose_header(flow, answer, seq, Flags::ACK, 0, now));
        }
        flow.acknowledge_now = true;
    }
    flow.ecn = flow.ecn.map(|ecn| EcnState { is_echoing: echoes, ..ecn });
    earlier
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::Established;
    use crate::flow::state::split;
    use crate::flow::tests::established;

    const NOW: Nanos = Nanos::from_millis(1_000);

    fn flow(echo: Echo) -> Protocol {
        let ecn = Some(EcnState { echo, is_echoing: false, is_capable: true });
        split(&Established { ecn, ..established() }, NOW).1
    }

    fn answer(flow: &mut Protocol) -> Answer {
        Answer { ack: flow.expected(), window: 0 }
    }

    /// Receives `bytes`: first their marks are processed, then they are acknowledgeable.
    fn lands(
        flow: &mut Protocol,
        bytes: u64,
        is_marked: bool,
        has_reduced: bool,
    ) -> Option<SegmentHeader> {
        let header = process_marks(flow, Marks { is_marked, has_reduced }, NOW, answer);
        flow.received += bytes;
        flow.landed += bytes;
        header
    }

    fn echoes(flow: &mut Protocol) -> bool {
        let answer = answer(flow);
        compose_header(flow, answer, seq_of(flow.send_base, 0), Flags::ACK, 0, NOW)
            .flags
            .contains(Flags::ECE)
    }

    /// RFC 8257, 3.2, Figure 1: both transitions of the state machine.
    #[test]
    fn bytes_with_another_mark_are_acknowledged_before_the_echo_changes() {
        let mut flow = flow(Echo::Exact);
        assert_eq!(lands(&mut flow, 1_000, false, false), None);
        let before =
            lands(&mut flow, 1_000, true, false).expect("1,000 bytes are not acknowledged yet");
        assert_eq!(before.ack, seq_of(flow.receive_base, 1_000));
        assert!(!before.flags.contains(Flags::ECE) && flow.acknowledge_now);
        assert!(echoes(&mut flow));
        // All marked bytes were acknowledged.
        assert_eq!(lands(&mut flow, 1_000, false, false), None);
        assert!(!echoes(&mut flow));
        assert_eq!(lands(&mut flow, 1_000, true, false), None);
        assert_eq!(lands(&mut flow, 1_000, true, false), None, "the same mark as before");
        let marked = lands(&mut flow, 1_000, false, false).unwrap();
        assert_eq!(marked.ack, seq_of(flow.receive_base, 5_000));
        assert!(marked.flags.contains(Flags::ECE));
    }

    #[test]
    fn a_dctcp_receiver_ignores_cwr() {
        let mut flow = flow(Echo::Exact);
        lands(&mut flow, 1_000, true, true);
        assert!(echoes(&mut flow));
    }

    /// RFC 3168, 6.1.3.
    #[test]
    fn a_mark_is_echoed_until_the_sender_has_reduced_its_window() {
        let mut flow = flow(Echo::UntilReduced);
        lands(&mut flow, 1_000, true, false);
        for _ in 0..3 {
            assert_eq!(lands(&mut flow, 1_000, false, false), None);
            assert!(echoes(&mut flow));
        }
        lands(&mut flow, 1_000, true, true);
        assert!(echoes(&mut flow), "marked again");
        lands(&mut flow, 1_000, false, true);
        assert!(!echoes(&mut flow));
    }

    #[test]
    fn marks_are_ignored_without_ecn() {
        let mut flow = split(&established(), NOW).1;
        assert_eq!(lands(&mut flow, 1_000, true, true), None);
        assert!(!echoes(&mut flow));
    }
}

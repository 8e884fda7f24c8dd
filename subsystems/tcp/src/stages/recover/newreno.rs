//! Recovery for peers without selective acknowledgements: NewReno (RFC 6582).

use wave_core::clock::Nanos;

use super::{Ack, DUP_THRESH, enter_recovery, on_cumulative_ack, update_prr};
use crate::flow::state::Protocol;

/// Processes an acknowledgement. A duplicate says that a segment has arrived, but not which one.
pub(super) fn count_duplicates(flow: &mut Protocol, ack: &Ack<'_>, prior: u64, now: Nanos) -> bool {
    let mss = u64::from(flow.mss);
    if ack.newly_acked > 0 {
        // Duplicates had reported all of these segments except the retransmitted one.
        let reported = ack.newly_acked.saturating_sub(mss) / mss;
        let left = u64::from(flow.duplicates).saturating_sub(reported);
        flow.duplicates = if flow.loss().is_recovering { left as u8 } else { 0 };
        on_cumulative_ack(flow, now);
        // A partial acknowledgement: the segment that the peer expects is lost, too.
        let lost = (flow.acknowledged + mss).min(flow.highest);
        match flow.disorder.as_mut().filter(|disorder| disorder.loss.is_recovering) {
            Some(disorder) => disorder.loss.lost = lost,
            None => flow.duplicates = 0,
        }
    } else if ack.is_duplicate {
        flow.duplicates = flow.duplicates.saturating_add(1);
        let is_loss = flow.duplicates == DUP_THRESH && flow.acknowledged >= flow.recover;
        if is_loss && !flow.loss().is_recovering {
            if let Some(disorder) = &mut flow.disorder {
                disorder.loss.lost = (flow.acknowledged + mss).min(flow.highest);
            }
            enter_recovery(flow, prior);
            return true;
        }
    }
    // Not safe: a partial acknowledgement indicates another loss.
    update_prr(flow, false);
    false
}

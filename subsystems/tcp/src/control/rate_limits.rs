//! Rate limits of answers to strangers, so that they cannot make us flood others.

use wave_core::clock::Nanos;

use super::Stack;
use crate::datapath::Datapath;

/// Limit of answers to strangers per millisecond, on average.
const ANSWERS_PER_MILLISECOND: u32 = 16;

impl<F: AsRef<[u8]>, D: Datapath<F>> Stack<F, D> {
    /// Whether a neighbour's query for our address may be answered now. Its rate limit is separate from that for strangers.
    pub(super) fn may_answer_neighbour(&mut self, now: Nanos) -> bool {
        let millisecond = now.0 / 1_000_000;
        if self.arp_answers.0 != millisecond {
            self.arp_answers = (millisecond, 0);
        }
        self.arp_answers.1 += 1;
        self.arp_answers.1 <= ANSWERS_PER_MILLISECOND
    }

    /// Whether a stranger may be answered now.
    pub(super) fn may_answer(&mut self, now: Nanos) -> bool {
        let millisecond = now.0 / 1_000_000;
        if self.answers.0 != millisecond {
            self.answers = (millisecond, 0);
        }
        self.answers.1 += 1;
        let may = self.answers.1 <= self.secrets.jittered(ANSWERS_PER_MILLISECOND, millisecond);
        self.counters.held_back += u64::from(!may);
        may
    }
}

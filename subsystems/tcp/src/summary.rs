//! The header summary: the fields of a segment's headers that later stages need (thesis 4.3.1.3).

use crate::packet::SACK_BLOCKS_MAX;
use crate::seq::Seq;

/// Header fields of a segment of an established connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Sequence number of the first byte.
    pub seq: Seq,
    /// Acknowledgement number.
    pub ack: Seq,
    /// The window field, not scaled.
    pub window: u16,
    /// Number of payload bytes.
    pub bytes: u32,
    /// The payload ends what the sender had to send (PSH).
    pub push: bool,
    /// The sender's stream ends after the payload.
    pub fin: bool,
    /// The sender's timestamp, and the echo of ours.
    pub timestamps: Option<(u32, u32)>,
    /// Blocks that the sender has beyond `ack` (RFC 2018): first sequence number, and the one after the last. Empty blocks are
    /// unused.
    pub sack: [(Seq, Seq); SACK_BLOCKS_MAX],
    /// The sender echoes a congestion mark (ECE; RFC 3168).
    pub echoes_mark: bool,
    /// The sender has reduced its window (CWR).
    pub has_reduced: bool,
    /// The network has marked the packet (CE).
    pub is_marked: bool,
}

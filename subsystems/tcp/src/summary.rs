//! The header summary: what later stages need of a segment, instead of the segment (thesis 4.3.1.3).

use crate::packet::SACK_BLOCKS_MAX;
use crate::seq::Seq;

/// What a segment of an established connection says.
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
    /// The stream ends behind the payload.
    pub fin: bool,
    /// A value of the sender's clock, and the echo of ours.
    pub timestamps: Option<(u32, u32)>,
    /// What the sender has beyond `ack` (RFC 2018); those that end where they begin say nothing.
    pub sack: [(Seq, Seq); SACK_BLOCKS_MAX],
    /// The sender echoes a mark of the network's (RFC 3168).
    pub echoes_mark: bool,
    /// The sender has reduced its window (CWR).
    pub has_reduced: bool,
    /// The network has marked its packet (CE).
    pub is_marked: bool,
}

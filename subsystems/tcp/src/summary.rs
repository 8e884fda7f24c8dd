//! The header summary: what later stages need of a segment, instead of the segment (thesis 4.3.1.3).

use crate::seq::Seq;

/// What a segment of an established connection says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Its first byte.
    pub seq: Seq,
    /// What it acknowledges.
    pub ack: Seq,
    /// The window field, not scaled.
    pub window: u16,
    /// Bytes of payload.
    pub bytes: u32,
    /// The stream ends behind the payload.
    pub fin: bool,
    /// The sender will not have been helped by a late acknowledgement (RFC 9293, 3.9.1).
    pub push: bool,
    /// A value of the sender's clock, and the echo of ours.
    pub timestamps: Option<(u32, u32)>,
    /// The network marked its packet (RFC 3168).
    pub is_marked: bool,
    /// The sender echoes such a mark.
    pub echoes_mark: bool,
}

//! Laminar: TCP on a match-action pipeline (thesis, chapter 5).
//!
//! The state of a connection is spread over registers of successive pipeline stages, each of which a packet reads and modifies once.
//! What an early register needs of a later one is assumed ([`receive`]: a segment is within the window) and checked behind; what a
//! later one must write to an earlier one comes around in a pseudo segment, a mirrored copy of fields that enters the egress again.
//!
//! [`THESIS`] is the pipeline as the thesis describes it, so that its tables and figures can be held against it. Where the text is
//! open, a comment says what was chosen.

pub mod fields;
pub mod receive;
pub mod trace;
pub mod transmit;

use wave_rmt::devices::TOFINO2;
use wave_rmt::pipeline::Intrinsic;
use wave_rmt::{Constant, Mirror, Pipeline, Table};

use fields::*;
pub use fields::{FIELDS, REGISTERS};

/// Most connections.
pub const CONNECTIONS: u32 = 32_768;
/// Most contexts.
pub const CONTEXTS: u32 = 1024;

/// Kinds of packets, in the field `kind`.
pub mod kind {
    /// A segment from the wire.
    pub const RECEIVE: u32 = 1;
    /// A pseudo segment, which becomes an acknowledgement.
    pub const PSEUDO: u32 = 2;
    /// Bytes that a host sends.
    pub const TRANSMIT: u32 = 3;
    /// SYNC: the control plane or a host writes registers.
    pub const SYNC: u32 = 4;
}

/// The mirror session of pseudo segments.
pub const PSEUDO_SESSION: u32 = 1;
/// Digest: a peer has sent bytes beyond the window in order; registers must be set back (5.3.1.2).
pub const DIGEST_BEYOND_WINDOW: u32 = 1;
/// Digest: a peer has acknowledged bytes that were never sent (5.3.2.3).
pub const DIGEST_UNSENT: u32 = 2;
/// Digest: three duplicate acknowledgements (5.3.2.3).
pub const DIGEST_FAST_RETRANSMIT: u32 = 3;

/// The pipeline after the thesis.
pub const THESIS: Pipeline<'static> = Pipeline {
    name: "laminar",
    fields: FIELDS,
    registers: REGISTERS,
    egress: &[
        receive::NEXT,
        transmit::NEXT_ACK,
        receive::ORDER,
        transmit::PROGRESS,
        receive::AVAIL,
        transmit::DUPACKS,
        receive::TAIL,
        transmit::AVAIL,
        receive::HEAD,
        transmit::CREDITS,
        transmit::REMOTE,
        receive::MERGE,
        receive::VERDICT,
        transmit::VERDICT,
        receive::CONTEXT,
        transmit::ACKED_BYTES,
        transmit::MARKED_BYTES,
        transmit::FAST_RETRANSMITS,
    ],
    mirrors: &[Mirror {
        name: "pseudo",
        carries: &[
            (PSEUDO_KIND, KIND),
            (CONNECTION, CONNECTION),
            (CONTEXT, CONTEXT),
            (NEXT, SEQ),
            (MERGED, LENGTH),
            (MERGE_END, END),
        ],
    }],
    intrinsic: Intrinsic {
        drop: Some(DROP),
        mirror: Some(MIRROR),
        digest: Some(DIGEST),
        source: Some(SESSION),
    },
    is_ingress_stateless: true,
    ..Pipeline::NOTHING
};

const _: () = THESIS.must_fit(&TOFINO2);

/// [`THESIS`] as a constant that the compiler specialises.
#[derive(Clone, Copy, Debug)]
pub struct Thesis;

impl Constant for Thesis {
    const PIPELINE: Pipeline<'static> = THESIS;
}

/// An empty table, to build others on.
const TABLE: Table<'static> = Table::NOTHING;

#[cfg(test)]
mod tests;

//! Laminar: TCP on a match-action pipeline (thesis, chapter 5).
//!
//! The state of a connection is spread over registers of successive pipeline stages, each of which a packet reads and modifies once.
//! What an early register needs of a later one is assumed ([`receive`]: a segment is within the window) and checked behind; what a
//! later one must write to an earlier one comes around in a pseudo segment, a mirrored copy of fields that enters the egress again.
//!
//! [`LAMINAR`] is the pipeline that is safe against peers that send beyond the window. [`THESIS`] is the one that the thesis describes, so that its tables can
//! be held against it: it acknowledges bytes that never came if a peer sends beyond the window ([`window`]). Where the text is
//! open, a comment says what was chosen. [`explore`] searches both exhaustively.

mod connections;
pub mod datapath;
pub mod explore;
pub mod fields;
mod flight;
pub mod ingress;
mod landed;
pub mod planted;
pub mod receive;
pub mod trace;
pub mod transmit;
pub mod window;

use wave_rmt::devices::TOFINO2;
use wave_rmt::pipeline::Intrinsic;
use wave_rmt::state::Refused;
use wave_rmt::{Constant, Mirror, Pipeline, State, Table};

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
/// Digest: a segment for the slow path.
pub const DIGEST_SLOW_PATH: u32 = 4;
/// Digest: a segment that had no effect, which asks for an acknowledgement (RFC 5961).
pub const DIGEST_CHALLENGE: u32 = 5;

/// The pipeline.
pub const LAMINAR: Pipeline<'static> = Pipeline {
    name: "laminar",
    ingress: &[
        ingress::LOOKUP,
        ingress::OWNER,
        ingress::SEGMENT,
        flight::PEER,
        flight::STREAM,
        ingress::ADMIT,
        ingress::ENDS,
    ],
    egress: &[
        landed::BEGIN,
        flight::BEGIN,
        landed::ADVERTISE,
        flight::PROGRESS,
        window::WINDOW,
        window::ORDER,
        window::TAIL,
        receive::HEAD,
        window::START_COPY,
        window::COUNT_COPY,
        flight::REMOTE,
        flight::DUPACKS,
        flight::CREDITS,
        receive::MERGE,
        window::VERDICT,
        flight::VERDICT,
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
            (MERGE_END, BOUND),
        ],
    }],
    ..THESIS
};

const _: () = LAMINAR.must_fit(&TOFINO2);

/// The pipeline after the thesis.
pub const THESIS: Pipeline<'static> = Pipeline {
    name: "laminar-thesis",
    fields: FIELDS,
    registers: REGISTERS,
    parser: ingress::PARSER,
    ingress: &[
        ingress::LOOKUP,
        ingress::OWNER,
        ingress::SEGMENT,
        ingress::PEER,
        ingress::STREAM,
        ingress::ADMIT,
        ingress::ENDS,
    ],
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
};

const _: () = THESIS.must_fit(&TOFINO2);

/// [`LAMINAR`] as a constant that the compiler specialises.
#[derive(Clone, Copy, Debug)]
pub struct Laminar;

impl Constant for Laminar {
    const PIPELINE: Pipeline<'static> = LAMINAR;
}

/// The registers of reassembly, as Table 5.1 names them: `rx_next`, `rx_avail`, `rx_ooo_tail`, `rx_ooo_head`.
pub type Reassembly = [u32; 4];

/// The registers of reassembly of a connection, in either pipeline.
pub fn reassembly<const WORD: u8>(
    pipeline: &Pipeline<'_>,
    state: &State<WORD>,
    connection: u32,
) -> Reassembly {
    let read = |register| state.read(register, connection).unwrap_or_default();
    let [next, avail] = if is_thesis(pipeline) {
        [read(RX_NEXT)[0], read(RX_AVAIL)[0]]
    } else {
        let [next, edge] = read(RX_WINDOW);
        [next, edge.wrapping_sub(next) & word::<WORD>()]
    };
    [next, avail, read(RX_OOO_TAIL)[0], read(RX_OOO_HEAD)[0]]
}

/// Writes the registers of reassembly of a connection, in either pipeline. All bytes before `rx_next` have landed.
///
/// # Errors
/// There is no such connection.
pub fn set_reassembly<const WORD: u8>(
    pipeline: &Pipeline<'_>,
    state: &mut State<WORD>,
    connection: u32,
    [next, avail, tail, head]: Reassembly,
) -> Result<(), Refused> {
    if is_thesis(pipeline) {
        state.write(RX_NEXT, connection, [next, 0])?;
        state.write(RX_AVAIL, connection, [avail, 0])?;
    } else {
        let edge = next.wrapping_add(avail);
        state.write(RX_WINDOW, connection, [next, edge])?;
        state.write(RX_LANDED, connection, [next, edge])?;
    }
    state.write(RX_OOO_TAIL, connection, [tail, 0])?;
    state.write(RX_OOO_HEAD, connection, [head, 0])
}

/// The registers of transmission: the first number that is not acknowledged, the distance from there to the end of what was sent, duplicate
/// acknowledgements, send credits, and the peer's window behind the first number.
pub type Transmission = [u32; 5];

/// The registers of transmission of a connection, in either pipeline.
pub fn transmission<const WORD: u8>(
    pipeline: &Pipeline<'_>,
    state: &State<WORD>,
    connection: u32,
) -> Transmission {
    let read = |register| state.read(register, connection).unwrap_or_default();
    let [una, avail] = if is_thesis(pipeline) {
        [read(TX_NEXT_ACK)[0], read(TX_AVAIL)[0]]
    } else {
        let [una, sent] = read(TX_WINDOW);
        [una, sent.wrapping_sub(una) & word::<WORD>()]
    };
    [una, avail, read(TX_DUPACKS)[0], read(TX_CREDITS)[0], read(TX_REMOTE_AVAIL)[0]]
}

/// Writes the registers of transmission of a connection, in either pipeline.
///
/// # Errors
/// There is no such connection.
pub fn set_transmission<const WORD: u8>(
    pipeline: &Pipeline<'_>,
    state: &mut State<WORD>,
    connection: u32,
    [una, avail, dupacks, credits, remote]: Transmission,
) -> Result<(), Refused> {
    if is_thesis(pipeline) {
        state.write(TX_NEXT_ACK, connection, [una, 0])?;
        state.write(TX_AVAIL, connection, [avail, 0])?;
    } else {
        state.write(TX_WINDOW, connection, [una, una.wrapping_add(avail)])?;
    }
    state.write(TX_DUPACKS, connection, [dupacks, 0])?;
    state.write(TX_CREDITS, connection, [credits, 0])?;
    state.write(TX_REMOTE_AVAIL, connection, [remote, 0])
}

/// Whether a pipeline keeps `rx_next` and `rx_avail` apart.
fn is_thesis(pipeline: &Pipeline<'_>) -> bool {
    !pipeline.egress.iter().any(|table| table.name == window::WINDOW.name)
}

/// All bits of a word.
const fn word<const WORD: u8>() -> u32 {
    u32::MAX >> (32 - WORD as u32)
}

/// The thesis' Table 5.2 in whole units of all 20 stages of a Tofino 2, by the names of [`Units::named`]. It prints percentages; each
/// has one number of units nearest to it.
///
/// [`Units::named`]: wave_rmt::check::Units::named
pub const TABLE_5_2: &[(&str, u32)] = &[
    ("stateful ALUs", 21),
    ("SRAM blocks", 317),
    ("map RAM blocks", 139),
    ("TCAM blocks", 2),
    ("gateways", 85),
    ("VLIW instructions", 61),
    ("exact crossbar bytes", 276),
];

/// An empty table, to build others on.
const TABLE: Table<'static> = Table::NOTHING;

#[cfg(test)]
mod tests;

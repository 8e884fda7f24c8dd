//! The pre-processing stage of received frames: validation, identification, summary (thesis 4.3.1.3: Val, Id, Sum).

use core::net::SocketAddr;
use core::ops::Range;

use crate::datapath::Tuple;
use crate::packet::{Cause, Ecn, Flags, Parsed, parse};
use crate::summary::Summary;

/// Segments with one of these flags go to the control plane. Their payload is dropped, and the peer retransmits it.
const CONTROL: Flags = Flags::SYN.with(Flags::RST);

/// Result of examining a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Examined {
    /// A segment of data or acknowledgements.
    Data {
        /// Both ends of the connection.
        tuple: Tuple,
        /// Fields that later stages need.
        summary: Summary,
        /// Range of the payload in the frame.
        payload: Range<usize>,
    },
    /// Anything else, with both ends if it is a segment.
    Control(Option<Tuple>),
}

/// Both ends of a received segment, seen from this side.
pub fn tuple_of(source: SocketAddr, destination: SocketAddr) -> Tuple {
    Tuple { local: destination, remote: source }
}

/// Examines a received frame.
///
/// # Errors
/// The frame is malformed.
pub fn examine(frame: &[u8], checksum_is_good: bool) -> Result<Examined, Cause> {
    let Parsed::Tcp { ethernet, ip, segment } = parse(frame, checksum_is_good)? else {
        return Ok(Examined::Control(None));
    };
    // VLAN-tagged: we are in no virtual network, and send no tags.
    if ethernet.vlan.is_some() {
        return Err(Cause::WrongAddress);
    }
    if segment.options.is_malformed {
        return Err(Cause::BadTcpOptions);
    }
    let tuple = tuple_of(
        SocketAddr::new(ip.source, segment.source_port),
        SocketAddr::new(ip.destination, segment.destination_port),
    );
    let flags = segment.flags;
    // RFC 9293, 3.10.7.4: without ACK, a segment of an established connection is dropped; the control plane counts it.
    let Some(ack) = segment.ack.filter(|_| !flags.intersects(CONTROL)) else {
        return Ok(Examined::Control(Some(tuple)));
    };
    let summary = Summary {
        seq: segment.seq,
        ack,
        window: segment.window,
        bytes: segment.payload.len() as u32,
        push: flags.contains(Flags::PSH),
        fin: flags.contains(Flags::FIN),
        timestamps: segment.options.timestamps,
        sack: segment.options.sack,
        echoes_mark: flags.contains(Flags::ECE),
        has_reduced: flags.contains(Flags::CWR),
        is_marked: ip.ecn == Ecn::Congestion,
    };
    Ok(Examined::Data { tuple, summary, payload: segment.payload })
}

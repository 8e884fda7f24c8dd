//! The pre-processing stage for a frame that came in: valid, whose, and in short (thesis 4.3.1.3: Val, Id, Sum).

use core::net::SocketAddr;
use core::ops::Range;

use crate::datapath::Tuple;
use crate::packet::{Cause, Ecn, Flags, Parsed, parse};
use crate::summary::Summary;

/// Segments with one of these are the control plane's. What they carry beside is sent again.
const CONTROL: Flags = Flags::SYN.with(Flags::RST);

/// Result of examining a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Examined {
    /// A segment of data or acknowledgements.
    Data {
        /// Both ends, this one first.
        tuple: Tuple,
        /// Fields that later stages need.
        summary: Summary,
        /// Its payload, in the frame.
        payload: Range<usize>,
    },
    /// Anything else, and the ends of it that is a segment.
    Control(Option<Tuple>),
}

/// Both ends of a segment that came in.
pub fn ends(source: SocketAddr, destination: SocketAddr) -> Tuple {
    Tuple { local: destination, remote: source }
}

/// Looks at a frame.
///
/// # Errors
/// It is malformed.
pub fn examine(frame: &[u8], checksum_is_good: bool) -> Result<Examined, Cause> {
    let Parsed::Tcp { ethernet, ip, segment } = parse(frame, checksum_is_good)? else {
        return Ok(Examined::Control(None));
    };
    // Of a virtual network that we are not in: what we send has no tag.
    if ethernet.vlan.is_some() {
        return Err(Cause::WrongAddress);
    }
    if segment.options.is_malformed {
        return Err(Cause::BadTcpOptions);
    }
    let tuple = ends(
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
        fin: flags.contains(Flags::FIN),
        timestamps: segment.options.timestamps,
        sack: segment.options.sack,
        echoes_mark: flags.contains(Flags::ECE),
        has_reduced: flags.contains(Flags::CWR),
        is_marked: ip.ecn == Ecn::Congestion,
    };
    Ok(Examined::Data { tuple, summary, payload: segment.payload })
}

//! ICMP (RFC 792): echoes, and "destination unreachable" with the next hop's MTU (RFC 1191).

use core::net::SocketAddrV4;

use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::ethernet::{self, ETHERNET_BYTES, EtherType, EthernetView};
use super::ipv4::{self, Ecn, IPV4_BYTES, Ipv4Header, Ipv4View, PROTOCOL_ICMP, PROTOCOL_TCP};
use super::{Cause, TTL_DEFAULT, checksum};
use crate::seq::Seq;

/// Length of a message's fixed part.
pub const ICMP_BYTES: usize = 8;

const ECHO_REPLY: u8 = 0;
const UNREACHABLE: u8 = 3;
const ECHO_REQUEST: u8 = 8;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Wire {
    kind: u8,
    code: u8,
    checksum: U16,
    /// An echo's identifier.
    first: U16,
    /// An echo's sequence number, or the next hop's MTU.
    second: U16,
}

/// The part of a TCP header that every error quotes.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct QuotedWire {
    source_port: U16,
    destination_port: U16,
    seq: U32,
}

const _: () = assert!(size_of::<Wire>() == ICMP_BYTES && size_of::<QuotedWire>() == 8);

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Icmp<'a> {
    /// To be answered with the same bytes.
    EchoRequest(Echo<'a>),
    /// The answer.
    EchoReply(Echo<'a>),
    /// A datagram did not arrive.
    Unreachable(Unreachable),
    /// Another message.
    Other {
        /// Its type.
        kind: u8,
        /// Its code.
        code: u8,
    },
}

/// An echo request or reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Echo<'a> {
    /// Tells programs apart that send requests.
    pub identifier: u16,
    /// Tells a program's requests apart.
    pub sequence: u16,
    /// Bytes that come back.
    pub data: &'a [u8],
}

/// A datagram that did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreachable {
    /// The reason; 4 is [`Unreachable::TOO_BIG`].
    pub code: u8,
    /// The next hop's MTU in bytes, if the datagram was too big and the router says so; routers of before RFC 1191 do not.
    pub next_hop_mtu: Option<u16>,
    /// The segment that did not arrive; `None` if the datagram was none of TCP, or a later fragment. Anybody could have sent
    /// this: the sequence number must be one that is on its way (RFC 5927).
    pub quoted: Option<Quoted>,
}

impl Unreachable {
    /// The code of a datagram that is too big and must not be fragmented.
    pub const TOO_BIG: u8 = 4;
}

/// The start of a TCP segment in an error's datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quoted {
    /// The segment's sender, to which the error is addressed.
    pub source: SocketAddrV4,
    /// The segment's receiver.
    pub destination: SocketAddrV4,
    /// The segment's sequence number.
    pub seq: Seq,
}

/// Reads the message in the payload of `ip`, which was read from `frame`.
///
/// # Errors
/// [`Cause::WrongAddress`], [`Cause::Truncated`], [`Cause::BadIcmpChecksum`].
pub fn parse<'a>(frame: &'a [u8], ip: &Ipv4View) -> Result<Icmp<'a>, Cause> {
    ip.check_unicast()?;
    let bytes = frame.get(ip.payload.clone()).ok_or(Cause::Truncated)?;
    let (wire, data) = Wire::ref_from_prefix(bytes).map_err(|_| Cause::Truncated)?;
    if checksum::sum(bytes) != checksum::GOOD {
        return Err(Cause::BadIcmpChecksum);
    }
    let echo = Echo { identifier: wire.first.get(), sequence: wire.second.get(), data };
    Ok(match (wire.kind, wire.code) {
        (ECHO_REQUEST, 0) => Icmp::EchoRequest(echo),
        (ECHO_REPLY, 0) => Icmp::EchoReply(echo),
        (UNREACHABLE, code) => {
            let mtu = wire.second.get();
            Icmp::Unreachable(Unreachable {
                code,
                next_hop_mtu: (code == Unreachable::TOO_BIG && mtu != 0).then_some(mtu),
                quoted: parse_quoted(data),
            })
        }
        (kind, code) => Icmp::Other { kind, code },
    })
}

fn parse_quoted(data: &[u8]) -> Option<Quoted> {
    let (source, destination, PROTOCOL_TCP, rest) = ipv4::parse_quoted(data)? else {
        return None;
    };
    let (wire, _) = QuotedWire::ref_from_prefix(rest).ok()?;
    Some(Quoted {
        source: SocketAddrV4::new(source, wire.source_port.get()),
        destination: SocketAddrV4::new(destination, wire.destination_port.get()),
        seq: Seq(wire.seq.get()),
    })
}

/// Writes the frame that answers an echo request with these headers. Returns the frame's length; `None` if `out` is shorter.
pub fn build_echo_reply(
    out: &mut [u8],
    ethernet: &EthernetView,
    ip: &Ipv4View,
    echo: &Echo<'_>,
) -> Option<usize> {
    let message_bytes = ICMP_BYTES + echo.data.len();
    let total = ETHERNET_BYTES + IPV4_BYTES + message_bytes;
    let out = out.get_mut(..total)?;
    ethernet::build(out, ethernet.destination, ethernet.source, EtherType::Ipv4);
    let header = Ipv4Header {
        source: ip.destination,
        destination: ip.source,
        protocol: PROTOCOL_ICMP,
        ecn: Ecn::NotCapable,
        ttl: TTL_DEFAULT,
    };
    ipv4::build(&mut out[ETHERNET_BYTES..], &header, message_bytes as u32);
    let mut wire = Wire {
        kind: ECHO_REPLY,
        code: 0,
        checksum: 0.into(),
        first: echo.identifier.into(),
        second: echo.sequence.into(),
    };
    let sum = checksum::add(checksum::sum(wire.as_bytes()), checksum::sum(echo.data));
    wire.checksum = (!sum).into();
    let message = &mut out[ETHERNET_BYTES + IPV4_BYTES..];
    message[..ICMP_BYTES].copy_from_slice(wire.as_bytes());
    message[ICMP_BYTES..].copy_from_slice(echo.data);
    Some(total)
}

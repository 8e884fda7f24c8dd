//! ICMP (RFC 792): echoes, and "destination unreachable" with the next hop's MTU (RFC 1191).

use core::net::{IpAddr, SocketAddr};

use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::ipv4::{self, Ipv4View, PROTOCOL_TCP};
use super::{Cause, checksum};
use crate::seq::Seq;

/// Length of a message's fixed part, in bytes.
pub const ICMP_BYTES: usize = 8;

pub(super) const ECHO_REPLY: u8 = 0;
pub(super) const UNREACHABLE: u8 = 3;
const ECHO_REQUEST: u8 = 8;
const TIME_EXCEEDED: u8 = 11;
const PARAMETER_PROBLEM: u8 = 12;

#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Wire {
    kind: u8,
    code: u8,
    checksum: U16,
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

/// An ICMP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Icmp<'a> {
    /// An echo request, which is answered with the same bytes.
    EchoRequest(Echo<'a>),
    /// An echo reply.
    EchoReply(Echo<'a>),
    /// A datagram did not arrive.
    Unreachable(Unreachable),
    /// A datagram's lifetime was exceeded, or its header was faulty.
    Problem(Problem),
    /// A message of another type.
    Other {
        /// Type of the message.
        kind: u8,
        /// Code of the message.
        code: u8,
    },
}

/// An echo request or reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Echo<'a> {
    /// Distinguishes programs that send requests.
    pub identifier: u16,
    /// Distinguishes a program's requests.
    pub sequence: u16,
    /// Data of an echo, which a reply returns.
    pub data: &'a [u8],
}

/// A datagram that did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreachable {
    /// The reason; 4 is [`Unreachable::TOO_BIG`].
    pub code: u8,
    /// The next hop's MTU in bytes, if the datagram was too big and the router names the MTU; routers older than RFC 1191 do
    /// not.
    pub next_hop_mtu: Option<u16>,
    /// The segment that did not arrive; `None` if the datagram was not TCP, or was a later fragment. Anybody could have sent
    /// this message: the caller must check that the sequence number is in flight (RFC 5927).
    pub quoted: Option<Quoted>,
}

/// A datagram whose hop limit or reassembly time was exceeded, or whose header is faulty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The segment, as in [`Unreachable::quoted`].
    pub quoted: Option<Quoted>,
}

impl Unreachable {
    /// The code of a datagram that is too big and must not be fragmented.
    pub const TOO_BIG: u8 = 4;
}

/// The start of a TCP segment that an ICMP error quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quoted {
    /// The segment's sender, to which the error is addressed.
    pub source: SocketAddr,
    /// The segment's receiver.
    pub destination: SocketAddr,
    /// The segment's sequence number.
    pub seq: Seq,
}

impl Quoted {
    /// The quoted segment, from the source, destination, protocol and payload of the IP header before it; `None` if it is not TCP,
    /// or its ports and sequence number are missing.
    pub(super) fn of<A: Into<IpAddr>>(
        (source, destination, protocol, rest): (A, A, u8, &[u8]),
    ) -> Option<Quoted> {
        let (wire, _) = QuotedWire::ref_from_prefix(rest).ok()?;
        (protocol == PROTOCOL_TCP).then(|| Quoted {
            source: SocketAddr::new(source.into(), wire.source_port.get()),
            destination: SocketAddr::new(destination.into(), wire.destination_port.get()),
            seq: Seq(wire.seq.get()),
        })
    }
}

/// Parses the message in the payload of `ip`, which was parsed from `frame`.
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
    let quoted = || ipv4::parse_quoted(data).and_then(Quoted::of);
    Ok(match (wire.kind, wire.code) {
        (ECHO_REQUEST, 0) => Icmp::EchoRequest(echo),
        (ECHO_REPLY, 0) => Icmp::EchoReply(echo),
        (UNREACHABLE, code) => {
            let mtu = wire.second.get();
            Icmp::Unreachable(Unreachable {
                code,
                next_hop_mtu: (code == Unreachable::TOO_BIG && mtu != 0).then_some(mtu),
                quoted: quoted(),
            })
        }
        (TIME_EXCEEDED | PARAMETER_PROBLEM, _) => Icmp::Problem(Problem { quoted: quoted() }),
        (kind, code) => Icmp::Other { kind, code },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::ipv4::PROTOCOL_ICMP;
    use crate::packet::{Ecn, TTL_DEFAULT};
    use core::ops::Range;

    /// "Too big" with an MTU, about a segment from 10.0.0.1:80 to 10.0.0.2:81 with sequence number 7.
    const ERROR: [u8; 36] = [
        3, 4, 0, 0, 0, 0, 5, 0, // ICMP
        0x45, 0, 0, 100, 0, 0, 0x40, 0, 64, 6, 0xba, 0xd0, 10, 0, 0, 1, 10, 0, 0, 2, // IPv4
        0, 80, 0, 81, 0, 0, 0, 7, // TCP
    ];

    fn ip(payload: Range<usize>) -> Ipv4View {
        Ipv4View {
            source: [10, 0, 0, 9].into(),
            destination: [10, 0, 0, 1].into(),
            protocol: PROTOCOL_ICMP,
            ecn: Ecn::NotCapable,
            ttl: TTL_DEFAULT,
            payload,
        }
    }

    /// The error with one byte changed and its checksum corrected.
    fn with(at: usize, byte: u8) -> [u8; 36] {
        let mut message = ERROR;
        message[at] = byte;
        let sum = checksum::sum(&message);
        message[2..4].copy_from_slice(&(!sum).to_be_bytes());
        message
    }

    fn unreachable(at: usize, byte: u8) -> Unreachable {
        match parse(&with(at, byte), &ip(0..36)) {
            Ok(Icmp::Unreachable(unreachable)) => unreachable,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_error_has_an_mtu_only_if_the_router_names_one() {
        let quoted = Quoted {
            source: SocketAddr::from(([10, 0, 0, 1], 80)),
            destination: SocketAddr::from(([10, 0, 0, 2], 81)),
            seq: Seq(7),
        };
        let expected = Unreachable { code: 4, next_hop_mtu: Some(1280), quoted: Some(quoted) };
        assert_eq!(unreachable(8, 0x45), expected);
        let old = unreachable(6, 0);
        assert_eq!(old, Unreachable { next_hop_mtu: None, ..expected });
        let port = unreachable(1, 3);
        assert_eq!(port, Unreachable { code: 3, next_hop_mtu: None, ..expected });
    }

    #[test]
    fn only_an_error_that_quotes_the_start_of_a_tcp_segment_has_a_quote() {
        // Version, header length (too short, too long), a later fragment, UDP.
        for (at, byte) in [(8, 0x65), (8, 0x44), (8, 0x4f), (15, 1), (17, 17)] {
            assert_eq!(unreachable(at, byte).quoted, None, "byte {at}");
        }
        // A first fragment has the start of the segment.
        assert!(unreachable(14, 0x20).quoted.is_some());
    }

    #[test]
    fn other_messages_keep_their_type_and_code() {
        assert_eq!(parse(&with(0, 4), &ip(0..36)), Ok(Icmp::Other { kind: 4, code: 4 }));
        for kind in [TIME_EXCEEDED, PARAMETER_PROBLEM] {
            let Ok(Icmp::Problem(Problem { quoted })) = parse(&with(0, kind), &ip(0..36)) else {
                panic!("kind {kind}")
            };
            assert_eq!(quoted.map(|quoted| quoted.seq), Some(Seq(7)));
        }
    }

    #[test]
    fn each_fault_has_its_cause() {
        assert_eq!(parse(&ERROR, &ip(0..36)), Err(Cause::BadIcmpChecksum));
        assert_eq!(parse(&ERROR, &ip(0..7)), Err(Cause::Truncated));
        let group = Ipv4View { source: [224, 0, 0, 1].into(), ..ip(0..36) };
        assert_eq!(parse(&ERROR, &group), Err(Cause::WrongAddress));
    }
}

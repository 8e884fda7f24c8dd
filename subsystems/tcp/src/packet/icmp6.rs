//! ICMPv6 (RFC 4443): echoes, and errors about segments. Neighbour discovery is in [`super::discovery`].

use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::discovery::{self, Discovery};
use super::icmp::{Echo, ICMP_BYTES, Quoted};
use super::ipv6::{self, Ipv6Header, Ipv6View, PROTOCOL_ICMP6};
use super::{Cause, checksum};

pub(super) const UNREACHABLE: u8 = 1;
const TOO_BIG: u8 = 2;
const TIME_EXCEEDED: u8 = 3;
const PARAMETER_PROBLEM: u8 = 4;
const ECHO_REQUEST: u8 = 128;
pub(super) const ECHO_REPLY: u8 = 129;

#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[cfg_attr(test, derive(zerocopy::IntoBytes))]
#[repr(C)]
struct Wire {
    kind: u8,
    code: u8,
    checksum: U16,
    /// The next hop's MTU, or an echo's identifier and sequence number.
    rest: U32,
}

const _: () = assert!(size_of::<Wire>() == ICMP_BYTES);

/// An ICMPv6 message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Icmp6<'a> {
    /// An echo request, which is answered with the same bytes.
    EchoRequest(Echo<'a>),
    /// An echo reply.
    EchoReply(Echo<'a>),
    /// A datagram did not arrive.
    Unreachable {
        /// The reason; 4 is a port without a listener.
        code: u8,
        /// The quoted segment; see [`super::Unreachable::quoted`].
        quoted: Option<Quoted>,
    },
    /// A datagram was too big for a link.
    TooBig {
        /// The link's MTU in bytes.
        mtu: u32,
        /// The quoted segment, if any.
        quoted: Option<Quoted>,
    },
    /// A datagram's hop limit was exceeded, or its header was faulty.
    Problem {
        /// The quoted segment, if any.
        quoted: Option<Quoted>,
    },
    /// A neighbour discovery message.
    Discovery(Discovery),
    /// A message of another type.
    Other {
        /// Type of the message.
        kind: u8,
        /// Code of the message.
        code: u8,
    },
}

/// Parses the message in the payload of `ip`, which was parsed from `frame`. Addresses may be groups' or unspecified only in
/// neighbour discovery and unknown messages.
///
/// # Errors
/// [`Cause::Truncated`], [`Cause::BadIcmpChecksum`], [`Cause::BadHopLimit`], [`Cause::BadDiscovery`]; [`Cause::WrongAddress`] for
/// echoes and errors.
pub fn parse<'a>(frame: &'a [u8], ip: &Ipv6View) -> Result<Icmp6<'a>, Cause> {
    let bytes = frame.get(ip.payload.clone()).ok_or(Cause::Truncated)?;
    let (wire, data) = Wire::ref_from_prefix(bytes).map_err(|_| Cause::Truncated)?;
    let len = bytes.len() as u32;
    let pseudo = checksum::pseudo_sum(ip.source.into(), ip.destination.into(), PROTOCOL_ICMP6, len);
    if checksum::add(pseudo, checksum::sum(bytes)) != checksum::GOOD {
        return Err(Cause::BadIcmpChecksum);
    }
    let (kind, code, rest) = (wire.kind, wire.code, wire.rest.get());
    if let Some(discovery) = discovery::parse(bytes, ip)? {
        return Ok(Icmp6::Discovery(discovery));
    }
    let quoted = || ipv6::parse_quoted(data).and_then(Quoted::of);
    let echo = Echo { identifier: (rest >> 16) as u16, sequence: rest as u16, data };
    let message = match (kind, code) {
        (ECHO_REQUEST, 0) => Icmp6::EchoRequest(echo),
        (ECHO_REPLY, 0) => Icmp6::EchoReply(echo),
        (UNREACHABLE, code) => Icmp6::Unreachable { code, quoted: quoted() },
        // RFC 4443, 3.2: a receiver ignores the code.
        (TOO_BIG, _) => Icmp6::TooBig { mtu: rest, quoted: quoted() },
        (TIME_EXCEEDED | PARAMETER_PROBLEM, _) => Icmp6::Problem { quoted: quoted() },
        (kind, code) => return Ok(Icmp6::Other { kind, code }),
    };
    ip.check_unicast()?;
    Ok(message)
}

/// The checksum of a message in two parts; the first has an even length, and a checksum field of 0.
pub(super) fn checksum(header: &Ipv6Header, front: &[u8], back: &[u8]) -> u16 {
    let (source, destination) = (header.source.into(), header.destination.into());
    let len = (front.len() + back.len()) as u32;
    let pseudo = checksum::pseudo_sum(source, destination, PROTOCOL_ICMP6, len);
    !checksum::add(pseudo, checksum::add(checksum::sum(front), checksum::sum(back)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Ecn;
    use crate::packet::ipv4::PROTOCOL_TCP;
    use crate::seq::Seq;
    use core::net::{Ipv6Addr, SocketAddr};
    use zerocopy::IntoBytes;

    const OURS: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2);
    const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 9);
    const PEER: Ipv6Addr = Ipv6Addr::new(0xfd78, 0, 0, 0, 0, 0, 0, 0x70);

    /// A message of this kind and code from the router, about our segment with sequence number 7.
    fn error(kind: u8, code: u8, rest: u32, change: impl FnOnce(&mut [u8])) -> (Vec<u8>, Ipv6View) {
        let mut message = vec![0; 8 + 40 + 8];
        let wire = Wire { kind, code, checksum: 0.into(), rest: rest.into() };
        message[..8].copy_from_slice(wire.as_bytes());
        let quoted = Ipv6Header {
            source: OURS,
            destination: PEER,
            protocol: PROTOCOL_TCP,
            ecn: Ecn::NotCapable,
            hop_limit: 60,
        };
        ipv6::build(&mut message[8..], &quoted, 1400);
        message[48..56].copy_from_slice(&[0, 80, 0, 81, 0, 0, 0, 7]);
        change(&mut message);
        let header = Ipv6Header { source: ROUTER, destination: OURS, ..quoted };
        let sum = checksum(&header, &message, &[]);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        let ip = Ipv6View {
            source: ROUTER,
            destination: OURS,
            protocol: PROTOCOL_ICMP6,
            ecn: Ecn::NotCapable,
            ttl: 64,
            payload: 0..message.len(),
        };
        (message, ip)
    }

    fn read(kind: u8, code: u8, rest: u32) -> String {
        let (message, ip) = error(kind, code, rest, |_| {});
        format!("{:?}", parse(&message, &ip))
    }

    #[test]
    fn errors_quote_the_segment_that_did_not_arrive() {
        let quoted = Some(Quoted {
            source: SocketAddr::from((OURS, 80)),
            destination: SocketAddr::from((PEER, 81)),
            seq: Seq(7),
        });
        let is = |message: Icmp6<'_>| format!("{:?}", Ok::<_, Cause>(message));
        assert_eq!(read(1, 4, 0), is(Icmp6::Unreachable { code: 4, quoted }));
        assert_eq!(read(2, 0, 1300), is(Icmp6::TooBig { mtu: 1300, quoted }));
        assert_eq!(read(2, 9, 70_000), is(Icmp6::TooBig { mtu: 70_000, quoted }));
        for kind in [3, 4] {
            assert_eq!(read(kind, 1, 0), is(Icmp6::Problem { quoted }));
        }
        assert_eq!(read(5, 1, 0), is(Icmp6::Other { kind: 5, code: 1 }));
        // Redirects and other messages from routers are not read.
        assert_eq!(read(137, 0, 0), is(Icmp6::Other { kind: 137, code: 0 }));
    }

    #[test]
    fn only_an_error_that_quotes_the_start_of_a_tcp_segment_has_a_quote() {
        // Version, protocol, a fragment.
        for (at, byte) in [(8, 0x45), (14, 17), (14, 44)] {
            let (message, ip) = error(1, 0, 0, |message| message[at] = byte);
            let read = parse(&message, &ip);
            assert_eq!(read, Ok(Icmp6::Unreachable { code: 0, quoted: None }), "byte {at}");
        }
    }

    #[test]
    fn each_fault_has_its_cause() {
        let (message, ip) = error(2, 0, 1300, |_| {});
        let mut flipped = message.clone();
        flipped[20] ^= 1;
        assert_eq!(parse(&flipped, &ip), Err(Cause::BadIcmpChecksum));
        // The pseudo header is summed, too: addresses, and the length.
        let elsewhere = Ipv6View { destination: PEER, ..ip.clone() };
        assert_eq!(parse(&message, &elsewhere), Err(Cause::BadIcmpChecksum));
        let longer = [&message[..], &[0, 0]].concat();
        let len = longer.len();
        let view = Ipv6View { payload: 0..len, ..ip.clone() };
        assert_eq!(parse(&longer, &view), Err(Cause::BadIcmpChecksum));
        let short = Ipv6View { payload: 0..7, ..ip };
        assert_eq!(parse(&message, &short), Err(Cause::Truncated));
    }
}

//! TCP headers (RFC 9293, 3.1).

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::ops::{BitOr, BitOrAssign, Range};

use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::ethernet::{self, ETHERNET_BYTES, EtherType, MacAddress};
use super::ip::IpView;
use super::ipv4::{self, Ecn, IPV4_BYTES, Ipv4Header, PROTOCOL_TCP};
use super::ipv6::{self, IPV6_BYTES, Ipv6Header};
use super::options::{OPTIONS_BYTES_MAX, Options};
use super::{Cause, checksum};
use crate::datapath::PartialChecksum;
use crate::planted::{Planted, is_planted};
use crate::seq::Seq;

/// Length of a header without options, in bytes.
pub const TCP_BYTES: usize = 20;
/// Longest headers that [`build_tcp`] writes, in bytes.
pub const HEADERS_BYTES_MAX: usize = ETHERNET_BYTES + IPV6_BYTES + TCP_BYTES + OPTIONS_BYTES_MAX;

/// Offset of the TCP header in frames of this address family that [`build_tcp`] writes.
const fn start(is_ipv6: bool) -> usize {
    ETHERNET_BYTES + if is_ipv6 { IPV6_BYTES } else { IPV4_BYTES }
}

/// The checksum that a wire must complete in a frame whose headers [`build_tcp`] has written, for an end of the same address
/// family.
pub const fn partial_checksum(end: &SocketAddr) -> PartialChecksum {
    PartialChecksum { start: start(end.is_ipv6()) as u16, offset: 16 }
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Wire {
    source_port: U16,
    destination_port: U16,
    seq: U32,
    ack: U32,
    words: u8,
    flags: u8,
    window: U16,
    checksum: U16,
    urgent: U16,
}

const _: () = assert!(size_of::<Wire>() == TCP_BYTES);

/// Control bits of a segment, as a set.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub u8);

impl Flags {
    /// The empty set.
    pub const NONE: Flags = Flags(0);
    /// The sender's stream ends.
    pub const FIN: Flags = Flags(1);
    /// The sender's sequence numbers begin here.
    pub const SYN: Flags = Flags(1 << 1);
    /// The connection is reset.
    pub const RST: Flags = Flags(1 << 2);
    /// Deliver the bytes up to here to the program at once.
    pub const PSH: Flags = Flags(1 << 3);
    /// The acknowledgement number is valid.
    pub const ACK: Flags = Flags(1 << 4);
    /// The urgent pointer is valid. It is neither read nor written.
    pub const URG: Flags = Flags(1 << 5);
    /// The receiver echoes a congestion mark (RFC 3168, 6.1).
    pub const ECE: Flags = Flags(1 << 6);
    /// The sender has reduced its congestion window (RFC 3168, 6.1).
    pub const CWR: Flags = Flags(1 << 7);

    /// Whether all of `flags` are set.
    pub const fn contains(self, flags: Flags) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Whether at least one of `flags` is set.
    pub const fn intersects(self, flags: Flags) -> bool {
        self.0 & flags.0 != 0
    }

    /// The set with `flags`.
    pub const fn with(self, flags: Flags) -> Flags {
        Flags(self.0 | flags.0)
    }

    /// The set without `flags`.
    pub const fn without(self, flags: Flags) -> Flags {
        Flags(self.0 & !flags.0)
    }
}

impl BitOr for Flags {
    type Output = Flags;

    fn bitor(self, flags: Flags) -> Flags {
        self.with(flags)
    }
}

impl BitOrAssign for Flags {
    fn bitor_assign(&mut self, flags: Flags) {
        *self = self.with(flags);
    }
}

impl fmt::Debug for Flags {
    /// tcpdump's notation: a letter for each flag, a dot for ACK.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = "FSRP.UEW".chars().enumerate().filter(|(bit, _)| self.0 >> bit & 1 != 0);
        f.write_str("[")?;
        for (_, letter) in set {
            write!(f, "{letter}")?;
        }
        f.write_str("]")
    }
}

/// A parsed segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpSegment {
    /// Port of the sender.
    pub source_port: u16,
    /// Port of the receiver.
    pub destination_port: u16,
    /// Sequence number of the first byte, or of the SYN.
    pub seq: Seq,
    /// The sequence number that the sender expects next; `None` without [`Flags::ACK`].
    pub ack: Option<Seq>,
    /// Control bits of the segment.
    pub flags: Flags,
    /// The window field of the header, not scaled.
    pub window: u16,
    /// Options of the segment.
    pub options: Options,
    /// Range of the payload in the frame.
    pub payload: Range<usize>,
}

impl TcpSegment {
    /// Length in sequence numbers: payload, SYN and FIN (RFC 9293, 3.4: SEG.LEN).
    pub fn sequence_len(&self) -> u32 {
        let flag = |flag| u32::from(self.flags.contains(flag));
        self.payload.len() as u32 + flag(Flags::SYN) + flag(Flags::FIN)
    }
}

/// Parses the segment in the payload of `ip`, which was parsed from `frame`. The checksum is verified unless
/// `checksum_is_good`. Reserved bits and the urgent pointer are ignored.
///
/// # Errors
/// [`Cause::Truncated`], [`Cause::BadTcpOffset`], [`Cause::BadTcpChecksum`].
pub fn parse(
    frame: &[u8],
    ip: &IpView<IpAddr>,
    checksum_is_good: bool,
) -> Result<TcpSegment, Cause> {
    let bytes = frame.get(ip.payload.clone()).ok_or(Cause::Truncated)?;
    let (wire, _) = Wire::ref_from_prefix(bytes).map_err(|_| Cause::Truncated)?;
    let header_bytes = usize::from(wire.words >> 4) * 4;
    let options = bytes.get(TCP_BYTES..header_bytes).ok_or(Cause::BadTcpOffset)?;
    if !checksum_is_good && !is_planted(Planted::NoChecksum) {
        let len = bytes.len() as u32;
        let pseudo = checksum::pseudo_sum(ip.source, ip.destination, PROTOCOL_TCP, len);
        if checksum::add(pseudo, checksum::sum(bytes)) != checksum::GOOD {
            return Err(Cause::BadTcpChecksum);
        }
    }
    let flags = Flags(wire.flags);
    Ok(TcpSegment {
        source_port: wire.source_port.get(),
        destination_port: wire.destination_port.get(),
        seq: Seq(wire.seq.get()),
        ack: flags.contains(Flags::ACK).then_some(Seq(wire.ack.get())),
        flags,
        window: wire.window.get(),
        options: Options::parse(options, flags.contains(Flags::SYN)),
        payload: ip.payload.start + header_bytes..ip.payload.end,
    })
}

/// Fields of headers to write, from Ethernet's to TCP's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpHeader {
    /// The sender's Ethernet address.
    pub source_mac: MacAddress,
    /// The next hop's Ethernet address.
    pub destination_mac: MacAddress,
    /// Address and port of the sender.
    pub source: SocketAddr,
    /// Address and port of the receiver, of the same address family.
    pub destination: SocketAddr,
    /// The ECN field.
    pub ecn: Ecn,
    /// Hop limit of the packet.
    pub ttl: u8,
    /// Sequence number of the first byte, or of the SYN.
    pub seq: Seq,
    /// The sequence number expected next; [`Flags::ACK`] is set exactly if this is present.
    pub ack: Option<Seq>,
    /// Control bits of the segment.
    pub flags: Flags,
    /// The window field of the header, already scaled.
    pub window: u16,
    /// Options. The SYN flag decides which are written, and in which order: see [`Options::build`].
    pub options: Options,
}

/// The port to which a segment asks to connect, if it does.
pub(super) fn syn_port(bytes: &[u8]) -> Option<u16> {
    let (wire, _) = Wire::ref_from_prefix(bytes).ok()?;
    let flags = Flags(wire.flags);
    let asks = flags.contains(Flags::SYN) && !flags.contains(Flags::ACK);
    asks.then(|| wire.destination_port.get())
}

/// Writes the headers of a segment with `payload_bytes` of payload, which may be a super-packet. Returns the headers' length.
/// IPv4's checksum is complete; TCP's field holds the pseudo header's sum, and [`partial_checksum`] says how to complete it.
///
/// # Panics
/// `out` is shorter than the headers ([`HEADERS_BYTES_MAX`] is enough), the datagram is longer than its header can express, or
/// the ends are of different address families.
pub fn build_tcp(out: &mut [u8], header: &TcpHeader, payload_bytes: u32) -> usize {
    let (source, destination) = (header.source.ip(), header.destination.ip());
    let (front, back) = out.split_at_mut(start(source.is_ipv6()));
    let is_syn = header.flags.contains(Flags::SYN);
    let header_bytes = TCP_BYTES + header.options.build(&mut back[TCP_BYTES..], is_syn);
    let bytes = payload_bytes.saturating_add(header_bytes as u32);

    let (protocol, ecn, ttl) = (PROTOCOL_TCP, header.ecn, header.ttl);
    let network = &mut front[ETHERNET_BYTES..];
    let kind = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            ipv4::build(network, &Ipv4Header { source, destination, protocol, ecn, ttl }, bytes);
            EtherType::Ipv4
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let ip = Ipv6Header { source, destination, protocol, ecn, hop_limit: ttl };
            ipv6::build(network, &ip, bytes);
            EtherType::Ipv6
        }
        _ => panic!("both ends of a segment must have the same address family"),
    };
    ethernet::build(front, header.source_mac, header.destination_mac, kind);

    let flags = match header.ack {
        Some(_) => header.flags.with(Flags::ACK),
        None => header.flags.without(Flags::ACK),
    };
    let wire = Wire {
        source_port: header.source.port().into(),
        destination_port: header.destination.port().into(),
        seq: header.seq.0.into(),
        ack: header.ack.unwrap_or_default().0.into(),
        words: (header_bytes as u8 / 4) << 4,
        flags: flags.0,
        window: header.window.into(),
        checksum: checksum::pseudo_sum(source, destination, PROTOCOL_TCP, bytes).into(),
        urgent: 0.into(),
    };
    back[..TCP_BYTES].copy_from_slice(wire.as_bytes());
    front.len() + header_bytes
}

/// Sets the Differentiated Services codepoint of headers that [`build_tcp`] has written.
pub fn set_diffserv(head: &mut [u8], diffserv: u8) {
    let network = &mut head[ETHERNET_BYTES..];
    match network[0] >> 4 {
        6 => ipv6::set_diffserv(network, diffserv),
        _ => ipv4::set_diffserv(network, diffserv),
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;
    use crate::packet::{self, Parsed, TTL_DEFAULT};

    const HEADER: TcpHeader = TcpHeader {
        source_mac: [2, 0, 0, 0, 0, 1],
        destination_mac: [2, 0, 0, 0, 0, 2],
        source: SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 1),
        destination: SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 2),
        ecn: Ecn::NotCapable,
        ttl: TTL_DEFAULT,
        seq: Seq(1),
        ack: None,
        flags: Flags::SYN,
        window: 3,
        options: Options {
            mss: Some(1460),
            scale: None,
            sack_permitted: false,
            timestamps: None,
            sack: [(Seq(0), Seq(0)); 4],
            sack_count: 0,
            is_malformed: false,
        },
    };

    /// A SYN with the checksum completed.
    fn frame() -> [u8; 58] {
        let mut frame = [0; 58];
        assert_eq!(build_tcp(&mut frame, &HEADER, 0), 58);
        let sum = checksum::sum(&frame[34..]);
        frame[50..52].copy_from_slice(&(!sum).to_be_bytes());
        frame
    }

    fn cause(change: impl FnOnce(&mut [u8; 58])) -> Option<Cause> {
        let mut frame = frame();
        change(&mut frame);
        packet::parse(&frame, true).err()
    }

    #[test]
    fn a_checksum_is_verified_unless_it_is_known_to_be_good() {
        let mut frame = frame();
        assert!(packet::parse(&frame, false).is_ok());
        frame[57] ^= 1;
        assert_eq!(packet::parse(&frame, false), Err(Cause::BadTcpChecksum));
        assert!(packet::parse(&frame, true).is_ok());
    }

    #[test]
    fn each_fault_has_its_cause() {
        assert_eq!(cause(|_| {}), None);
        assert_eq!(cause(|frame| frame[46] = 0x40), Some(Cause::BadTcpOffset));
        assert_eq!(cause(|frame| frame[46] = 0x70), Some(Cause::BadTcpOffset));
        assert_eq!(cause(|frame| frame[0] |= 1), Some(Cause::WrongAddress));
        assert_eq!(cause(|frame| frame[6] |= 1), Some(Cause::WrongAddress));
        let ip = ipv4::parse(&frame(), ETHERNET_BYTES).unwrap().widen();
        let short = IpView { payload: 34..53, ..ip.clone() };
        assert_eq!(parse(&frame(), &short, true), Err(Cause::Truncated));
        assert_eq!(parse(&frame()[..50], &ip, true), Err(Cause::Truncated));
        let to_all = SocketAddr::new(IpAddr::V4(Ipv4Addr::BROADCAST), 2);
        let mut group = [0; 58];
        build_tcp(&mut group, &TcpHeader { destination: to_all, ..HEADER }, 0);
        assert_eq!(packet::parse(&group, true), Err(Cause::WrongAddress));
    }

    #[test]
    fn the_longest_super_packet_is_parsed() {
        let payload_bytes = u16::MAX as usize - IPV4_BYTES - TCP_BYTES - 4;
        let mut frame = vec![0x5a; 58 + payload_bytes];
        build_tcp(&mut frame, &HEADER, payload_bytes as u32);
        let sum = checksum::sum(&frame[34..]);
        frame[50..52].copy_from_slice(&(!sum).to_be_bytes());
        let Ok(Parsed::Tcp { segment, .. }) = packet::parse(&frame, false) else {
            panic!("not a segment")
        };
        assert_eq!(segment.payload, 58..frame.len());
    }

    #[test]
    fn flags_are_shown_as_letters() {
        assert_eq!(format!("{:?}", Flags::SYN | Flags::ACK | Flags::CWR), "[S.W]");
    }
}

//! Encodes segments as Ethernet frames, and decodes them.

use std::net::Ipv4Addr;

use wave_tcp::packet::ipv4::{self, Ipv4Header, PROTOCOL_ICMP, PROTOCOL_TCP};
use wave_tcp::packet::{
    ETHERNET_BYTES, Ecn, EtherType, Flags, IPV4_BYTES, Parsed, TCP_BYTES, TTL_DEFAULT, checksum,
    ethernet, parse,
};

use crate::machine::{OWN, OWN_MAC, PEER, PEER_MAC};
use crate::script::{Segment, TcpOption};

const HEADERS: usize = ETHERNET_BYTES + IPV4_BYTES;

/// Source port and destination port.
pub type Ports = (u16, u16);

impl TcpOption {
    /// The option's encoding in a header.
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            TcpOption::Eol => vec![0],
            TcpOption::Nop => vec![1],
            TcpOption::Mss(mss) => [&[2, 4][..], &mss.to_be_bytes()].concat(),
            TcpOption::Scale(shift) => vec![3, 3, *shift],
            TcpOption::SackOk => vec![4, 2],
            TcpOption::Sack(blocks) => {
                let mut bytes = vec![5, 2 + 8 * blocks.len() as u8];
                for (from, to) in blocks {
                    bytes.extend(from.to_be_bytes());
                    bytes.extend(to.to_be_bytes());
                }
                bytes
            }
            TcpOption::Timestamps(value, echo) => {
                [&[8, 10][..], &value.to_be_bytes(), &echo.to_be_bytes()].concat()
            }
            TcpOption::Raw(bytes) => bytes.clone(),
        }
    }

    /// Parses the options of a header.
    fn read(mut bytes: &[u8]) -> Vec<TcpOption> {
        let word = |bytes: &[u8]| u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let mut options = Vec::new();
        while let [kind, rest @ ..] = bytes {
            let length = match (kind, rest) {
                (0 | 1, _) => 1,
                (_, [length, ..]) if (2..=bytes.len()).contains(&usize::from(*length)) => {
                    usize::from(*length)
                }
                _ => bytes.len(),
            };
            let (option, rest) = bytes.split_at(length);
            options.push(match (kind, option) {
                (0, _) => TcpOption::Eol,
                (1, _) => TcpOption::Nop,
                (2, [_, _, high, low]) => TcpOption::Mss(u16::from_be_bytes([*high, *low])),
                (3, [_, _, shift]) => TcpOption::Scale(*shift),
                (4, [_, _]) => TcpOption::SackOk,
                (5, [_, _, blocks @ ..]) if blocks.len() % 8 == 0 => TcpOption::Sack(
                    blocks.chunks(8).map(|one| (word(one), word(&one[4..]))).collect(),
                ),
                (8, [_, _, words @ ..]) if words.len() == 8 => {
                    TcpOption::Timestamps(word(words), word(&words[4..]))
                }
                _ => TcpOption::Raw(option.to_vec()),
            });
            bytes = rest;
        }
        options
    }
}

/// The options do not fit in a TCP header (40 bytes).
#[derive(Clone, Copy, Debug)]
pub struct TooManyOptions;

/// Builds a frame from the peer. `segment` has the wire's sequence numbers.
///
/// # Errors
/// Its options are longer than 40 bytes.
pub fn frame(
    ports: Ports,
    segment: &Segment,
    ecn: Ecn,
    payload: &[u8],
) -> Result<Vec<u8>, TooManyOptions> {
    let mut options: Vec<u8> =
        segment.options.iter().flatten().flat_map(TcpOption::bytes).collect();
    // Zeros pad the header: a zero byte is the end-of-options option.
    options.resize(options.len().next_multiple_of(4), 0);
    if options.len() > 40 {
        return Err(TooManyOptions);
    }
    let mut tcp = Vec::new();
    tcp.extend(ports.0.to_be_bytes());
    tcp.extend(ports.1.to_be_bytes());
    tcp.extend(segment.seq.to_be_bytes());
    tcp.extend(segment.ack.unwrap_or_default().to_be_bytes());
    tcp.push(((TCP_BYTES + options.len()) as u8 / 4) << 4);
    tcp.push(segment.flags.0);
    tcp.extend(segment.window.unwrap_or_default().to_be_bytes());
    tcp.extend([0; 2]);
    tcp.extend(segment.urgent.to_be_bytes());
    tcp.extend(options);
    tcp.extend(payload);
    let pseudo = checksum::pseudo_sum(PEER.into(), OWN.into(), PROTOCOL_TCP, tcp.len() as u32);
    let sum = !checksum::add(pseudo, checksum::sum(&tcp));
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    Ok(datagram(PEER, PROTOCOL_TCP, ecn, &tcp))
}

fn datagram(source: Ipv4Addr, protocol: u8, ecn: Ecn, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; HEADERS];
    ethernet::build(&mut frame, PEER_MAC, OWN_MAC, EtherType::Ipv4);
    let header = Ipv4Header { source, destination: OWN, protocol, ecn, ttl: TTL_DEFAULT };
    ipv4::build(&mut frame[ETHERNET_BYTES..], &header, payload.len() as u32);
    frame.extend_from_slice(payload);
    frame
}

/// Builds an ICMP error about one of our segments, given its ports and its first sequence number on the wire.
pub fn unreachable(code: u8, mtu: u16, ports: Ports, seq: u32, bytes: u32) -> Vec<u8> {
    let mut message = vec![3, code, 0, 0, 0, 0];
    message.extend(mtu.to_be_bytes());
    let mut quoted = vec![0; IPV4_BYTES];
    let header = Ipv4Header {
        source: OWN,
        destination: PEER,
        protocol: PROTOCOL_TCP,
        ecn: Ecn::NotCapable,
        ttl: TTL_DEFAULT,
    };
    ipv4::build(&mut quoted, &header, TCP_BYTES as u32 + bytes);
    message.extend(quoted);
    message.extend(ports.0.to_be_bytes());
    message.extend(ports.1.to_be_bytes());
    message.extend(seq.to_be_bytes());
    let sum = !checksum::sum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    datagram(PEER, PROTOCOL_ICMP, Ecn::NotCapable, &message)
}

/// A segment that was sent.
#[derive(Clone, Debug)]
pub struct Seen {
    pub ports: Ports,
    /// ECN field of the IP header.
    pub ecn: Ecn,
    /// The segment, with the wire's sequence numbers.
    pub segment: Segment,
    pub payload: Vec<u8>,
}

/// Parses a frame that we sent; `None` if it is not a TCP segment, or one that a peer would not accept.
pub fn read(frame: &[u8]) -> Option<Seen> {
    let Ok(Parsed::Tcp { ip, segment, .. }) = parse(frame, false) else { return None };
    let tcp = &frame[ip.payload.clone()];
    let payload = frame[segment.payload.clone()].to_vec();
    let urgent = u16::from_be_bytes([tcp[18], tcp[19]]);
    let options = &tcp[TCP_BYTES..tcp.len() - payload.len()];
    Some(Seen {
        ports: (segment.source_port, segment.destination_port),
        ecn: ip.ecn,
        segment: Segment {
            flags: segment.flags,
            seq: segment.seq.0,
            bytes: payload.len() as u32,
            ack: segment.ack.map(|ack| ack.0),
            window: Some(segment.window),
            urgent,
            options: Some(TcpOption::read(options)),
        },
        payload,
    })
}

impl Seen {
    /// Appends `next` if it continues where this segment ends, as if the sender had not split them. The PSH flag of `next`
    /// counts, as in packetdrill. Returns whether it was appended.
    pub fn join(&mut self, next: &Seen) -> bool {
        let cut = Flags::PSH | Flags::FIN;
        let (own, other) = (&self.segment, &next.segment);
        let goes_on = self.ports == next.ports
            && own.seq.wrapping_add(own.bytes) == other.seq
            && own.bytes > 0
            && !own.flags.intersects(Flags::FIN | Flags::SYN)
            && own.flags.without(cut) == other.flags.without(cut)
            && (own.ack, own.window) == (other.ack, other.window);
        if goes_on {
            self.segment.bytes += other.bytes;
            self.segment.flags = other.flags;
            self.payload.extend_from_slice(&next.payload);
        }
        goes_on
    }
}

//! Packets for tests, created and read by an independent implementation.
#![allow(dead_code)]

use std::net::IpAddr;

use etherparse::checksum::Sum16BitWords;
use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TcpHeader, TcpSlice, TransportSlice};
use wave_wires::{CsumPlace, Memory, Offload, RawPart, Sent, Wire};

/// Our end, and the other one.
pub const OURS: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub const THEIRS: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// The head of a TCP packet. Its checksum field holds only the pseudo header's sum.
pub struct Head {
    pub bytes: Vec<u8>,
    pub place: CsumPlace,
}

impl Head {
    /// The head of a packet with `payload_bytes` bytes of payload. `ecn` is the field of the IP header.
    pub fn new(from: IpAddr, to: IpAddr, tcp: TcpHeader, payload_bytes: usize, ecn: u8) -> Head {
        Head::between([OURS, THEIRS], from, to, tcp, payload_bytes, ecn)
    }

    pub fn between(
        macs: [[u8; 6]; 2],
        from: IpAddr,
        to: IpAddr,
        tcp: TcpHeader,
        payload_bytes: usize,
        ecn: u8,
    ) -> Head {
        let builder = PacketBuilder::ethernet2(macs[0], macs[1]);
        let tcp_bytes = tcp.header_len() + payload_bytes;
        let mut sum =
            Sum16BitWords::new().add_2bytes([0, 6]).add_2bytes((tcp_bytes as u16).to_be_bytes());
        let builder = match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                sum = sum.add_4bytes(from.octets()).add_4bytes(to.octets());
                builder.ipv4(from.octets(), to.octets(), 64)
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                sum = sum.add_16bytes(from.octets()).add_16bytes(to.octets());
                builder.ipv6(from.octets(), to.octets(), 64)
            }
            _ => panic!("{from} and {to}"),
        };
        let mut bytes = Vec::new();
        let builder = builder.tcp_header(tcp);
        builder.write_to_vec(&mut bytes, &vec![0; payload_bytes]).unwrap();
        bytes.truncate(bytes.len() - payload_bytes);
        let (at, start) = if from.is_ipv4() { (15, 34) } else { (15, 54) };
        bytes[at] |= if from.is_ipv4() { ecn } else { ecn << 4 };
        if from.is_ipv4() {
            set_ipv4_checksum(&mut bytes);
        }
        let pseudo = !sum.ones_complement().to_be();
        bytes[start + 16..start + 18].copy_from_slice(&pseudo.to_be_bytes());
        Head { bytes, place: CsumPlace { start: start as u16, offset: 16 } }
    }

    pub fn offload(&self, segment_bytes: u16) -> Offload {
        Offload { segment_bytes, checksum: Some(self.place) }
    }

    /// Sends the packet with a payload of one part.
    pub fn send(&self, wire: &mut impl Wire, payload: &[u8], segment_bytes: u16) -> Sent {
        let parts = [RawPart::of(payload), RawPart::EMPTY];
        wire.send(&self.bytes, parts, self.offload(segment_bytes)).unwrap()
    }
}

/// The addresses of our end and the other end, in IPv6 or IPv4.
pub fn addresses(is_v6: bool) -> (IpAddr, IpAddr) {
    let address = |text: &str| text.parse().unwrap();
    if is_v6 {
        (address("fd00::2"), address("fd00::1"))
    } else {
        (address("10.77.0.2"), address("10.77.0.1"))
    }
}

pub fn tcp(sequence: u32) -> TcpHeader {
    TcpHeader {
        ack: true,
        acknowledgment_number: 9,
        ..TcpHeader::new(4000, 5000, sequence, 65_000)
    }
}

fn set_ipv4_checksum(frame: &mut [u8]) {
    let header = etherparse::Ipv4HeaderSlice::from_slice(&frame[14..]).unwrap().to_header();
    frame[24..26].copy_from_slice(&header.calc_header_checksum().to_be_bytes());
}

/// The TCP part of a frame, if its lengths and checksums are correct.
pub fn read_tcp(frame: &[u8]) -> Result<TcpSlice<'_>, String> {
    let packet = SlicedPacket::from_ethernet(frame).map_err(|error| error.to_string())?;
    let Some(TransportSlice::Tcp(tcp)) = packet.transport else { return Err("no TCP".into()) };
    let expected = match packet.net {
        Some(NetSlice::Ipv4(ip)) => {
            let header = ip.header();
            if header.to_header().calc_header_checksum() != header.header_checksum() {
                return Err("a wrong IP checksum".into());
            }
            tcp.calc_checksum_ipv4(header.source(), header.destination()).unwrap()
        }
        Some(NetSlice::Ipv6(ip)) => {
            let header = ip.header();
            tcp.calc_checksum_ipv6(header.source(), header.destination()).unwrap()
        }
        _ => return Err("no IP".into()),
    };
    if tcp.checksum() == expected { Ok(tcp) } else { Err("a wrong TCP checksum".into()) }
}

/// Receives all frames in virtual time, with the arrival time of each.
pub fn receive_all(wire: &mut Memory) -> Vec<(u64, Vec<u8>)> {
    let mut frames = Vec::new();
    while let Some(due_ns) = wire.due() {
        wire.advance(due_ns);
        while let Some(frame) = wire.receive().unwrap() {
            frames.push((due_ns, frame.to_vec()));
        }
    }
    frames
}

/// Bytes that make misplaced parts visible.
pub fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|at| (at * 7 + at / 251) as u8).collect()
}

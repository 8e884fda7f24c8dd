//! Packet headers, as far as a wire must know them: lengths, segmentation, congestion marks.

use std::io;

use crate::checksum::{add, complete, sum};
use crate::{CsumPlace, ETHERNET_BYTES, FRAME_BYTES_MAX, Limits, Offload, RawPart};

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
/// Types of 802.1Q and 802.1ad tags.
const TAGS: [u16; 2] = [0x8100, 0x88a8];
const TAGS_MAX: usize = 2;
const IPV4_BYTES: usize = 20;
pub(crate) const IPV6_BYTES: usize = 40;
const TCP_BYTES: usize = 20;
const TCP_CHECKSUM: u16 = 16;

const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;

/// A packet that does not match its wire or its own [`Offload`]. The caller's fault; [`crate::Wire::send`] returns it
/// inside an `InvalidInput`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum PacketError {
    /// The head has no complete Ethernet header.
    #[error("a packet's head must have at least {ETHERNET_BYTES} bytes, not {0}")]
    Short(usize),
    /// The packet is too long for the wire.
    #[error("an IP packet of {bytes} bytes is too long for this wire: {most} at most")]
    Long {
        /// Bytes of the IP packet, or of the longest segment of a super-packet.
        bytes: usize,
        most: usize,
    },
    /// The checksum to complete does not lie in the head.
    #[error("the checksum lies outside the head of {0} bytes")]
    Place(usize),
    /// Only TCP over IPv4 or IPv6 with a checksum to complete can be cut into segments.
    #[error("a super-packet must be TCP over IP, with its checksum left to the wire")]
    Uncuttable,
}

impl From<PacketError> for io::Error {
    fn from(error: PacketError) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidInput, error)
    }
}

/// An IP header within a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Network {
    V4,
    V6,
    /// Any other Ethernet type.
    Other(u16),
}

/// The network header of a frame and its place, after the Ethernet header and tags. The fixed part of an IP header is
/// complete.
pub(crate) fn network(frame: &[u8]) -> Option<(usize, Network)> {
    let mut at = ETHERNET_BYTES;
    let mut kind = be16(frame, at - 2)?;
    for _ in 0..TAGS_MAX {
        if TAGS.contains(&kind) {
            at += 4;
            kind = be16(frame, at - 2)?;
        }
    }
    let (network, bytes) = match kind {
        IPV4 => (Network::V4, IPV4_BYTES),
        IPV6 => (Network::V6, IPV6_BYTES),
        other => (Network::Other(other), 0),
    };
    (frame.len() >= at + bytes).then_some((at, network))
}

pub(crate) fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// A packet that fits its wire.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet<'a> {
    head: &'a [u8],
    payload: [RawPart<'a>; 2],
    checksum: Option<CsumPlace>,
    payload_bytes: usize,
    /// Payload bytes of a segment, if the packet is cut into segments.
    cut: Option<usize>,
    ip: usize,
    network: Network,
}

impl<'a> Packet<'a> {
    pub(crate) fn new(
        head: &'a [u8],
        payload: [RawPart<'a>; 2],
        offload: Offload,
        limits: Limits,
    ) -> Result<Packet<'a>, PacketError> {
        let (ip, network) = match network(head) {
            Some(found) => found,
            None if head.len() < ETHERNET_BYTES => return Err(PacketError::Short(head.len())),
            // The head ends within the IP header, which only segmentation needs.
            None => (ETHERNET_BYTES, Network::Other(0)),
        };
        let payload_bytes = payload[0].len().saturating_add(payload[1].len());
        let fits = |bytes: usize, most: usize| {
            let most = most.min(FRAME_BYTES_MAX - ip);
            if bytes > most { Err(PacketError::Long { bytes, most }) } else { Ok(()) }
        };
        if let Some(place) = offload.checksum
            && usize::from(place.start) + usize::from(place.offset) + 2 > head.len()
        {
            return Err(PacketError::Place(head.len()));
        }
        let headers = head.len() - ip;
        let bytes = headers.saturating_add(payload_bytes);
        let segment_bytes = usize::from(offload.segment_bytes);
        if segment_bytes == 0 {
            fits(bytes, limits.mtu.into())?;
        } else {
            fits(bytes, limits.gso_bytes as usize)?;
            fits(headers + segment_bytes.min(payload_bytes), limits.mtu.into())?;
            let is_tcp = offload.checksum.is_some_and(|place| {
                let start = usize::from(place.start);
                let ip_bytes = match network {
                    Network::V4 => usize::from(head[ip] & 0x0f) * 4,
                    Network::V6 => IPV6_BYTES,
                    Network::Other(_) => usize::MAX - ip,
                };
                place.offset == TCP_CHECKSUM
                    && ip_bytes >= IPV4_BYTES
                    && start >= ip + ip_bytes
                    && start + TCP_BYTES <= head.len()
            });
            if !is_tcp {
                return Err(PacketError::Uncuttable);
            }
        }
        let cut = (segment_bytes != 0 && payload_bytes > segment_bytes).then_some(segment_bytes);
        let checksum = offload.checksum;
        Ok(Packet { head, payload, checksum, payload_bytes, cut, ip, network })
    }

    /// Bytes of the frame as a whole.
    pub(crate) fn bytes(&self) -> usize {
        self.head.len() + self.payload_bytes
    }

    pub(crate) fn network(&self) -> Network {
        self.network
    }

    /// Number of frames on the cable.
    pub(crate) fn segments(&self) -> usize {
        self.cut.map_or(1, |bytes| self.payload_bytes.div_ceil(bytes))
    }

    /// Writes one segment to `out`, as a network card with TSO would send it, and returns its length. CWR goes with
    /// the first segment only (RFC 3168 6.1.2).
    pub(crate) fn write_segment(&self, number: usize, out: &mut [u8]) -> usize {
        let headers = self.head.len();
        let (at, bytes) = self.cut.map_or((0, self.payload_bytes), |cut| {
            (number * cut, cut.min(self.payload_bytes - number * cut))
        });
        let out = &mut out[..headers + bytes];
        out[..headers].copy_from_slice(self.head);
        self.copy_payload(at, &mut out[headers..]);
        let Some(place) = self.checksum else { return out.len() };
        if self.cut.is_some() {
            self.adapt_head(number, at, place, out);
        }
        complete(out, place);
        headers + bytes
    }

    /// Turns the super-packet's headers in `out` into those of a segment, whose payload begins at `at`.
    fn adapt_head(&self, number: usize, at: usize, place: CsumPlace, out: &mut [u8]) {
        let (ip, tcp) = (self.ip, usize::from(place.start));
        let bytes = out.len();
        // The lengths fit into their fields, because the super-packet's do.
        match self.network {
            Network::V4 => {
                put16(out, ip + 2, (bytes - ip) as u16);
                let id = be16(out, ip + 4).unwrap_or(0);
                put16(out, ip + 4, id.wrapping_add(number as u16));
                complete_ipv4(out, ip);
            }
            _ => put16(out, ip + 4, (bytes - ip - IPV6_BYTES) as u16),
        }
        let sequence: [u8; 4] = out[tcp + 4..tcp + 8].try_into().expect("four bytes");
        let sequence = u32::from_be_bytes(sequence).wrapping_add(at as u32);
        out[tcp + 4..tcp + 8].copy_from_slice(&sequence.to_be_bytes());
        if number > 0 {
            out[tcp + 13] &= !CWR;
        }
        if number + 1 < self.segments() {
            out[tcp + 13] &= !(FIN | PSH);
        }
        // In the pseudo header's sum, the segment's length replaces the whole packet's.
        let field = tcp + usize::from(place.offset);
        let pseudo = add(be16(out, field).unwrap_or(0), !((self.bytes() - tcp) as u16));
        put16(out, field, add(pseudo, (bytes - tcp) as u16));
    }

    fn copy_payload(&self, mut at: usize, mut out: &mut [u8]) {
        for part in self.payload {
            let skipped = at.min(part.len());
            at -= skipped;
            let bytes = (part.len() - skipped).min(out.len());
            part.skip(skipped).copy_to(&mut out[..bytes]);
            out = &mut out[bytes..];
        }
    }
}

/// Sets the checksum of the IPv4 header at `ip`.
fn complete_ipv4(frame: &mut [u8], ip: usize) {
    let end = ip + usize::from(frame[ip] & 0x0f) * 4;
    let Some(header) = frame.get_mut(ip..end).filter(|header| header.len() >= IPV4_BYTES) else {
        return;
    };
    put16(header, 10, 0);
    let checksum = !sum(header);
    put16(header, 10, checksum);
}

/// Marks an ECN-capable IP packet with CE (RFC 3168 5). Returns whether the packet is ECN-capable.
pub(crate) fn mark_congestion(frame: &mut [u8]) -> bool {
    match network(frame) {
        Some((ip, Network::V4)) if frame[ip + 1] & 0x03 != 0 => {
            frame[ip + 1] |= 0x03;
            complete_ipv4(frame, ip);
            true
        }
        Some((ip, Network::V6)) if frame[ip + 1] & 0x30 != 0 => {
            frame[ip + 1] |= 0x30;
            true
        }
        _ => false,
    }
}

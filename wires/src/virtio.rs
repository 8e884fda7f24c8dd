//! The header of a virtio network card (virtio 1.2, 5.1.6), which TAP devices and packet sockets put before each frame.
//!
//! It is the header of a legacy device: ten bytes, in the machine's byte order.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use rustix::io::Errno;

use crate::frame::Pool;
use crate::packet::{Network, Packet};
use crate::{Checksum, Counters, CsumPlace, ETHERNET_BYTES, Frame, Limits, Offload, RawPart, Sent};

/// Most bytes of a super-packet: the largest length that an IPv4 header can hold.
pub(crate) const GSO_BYTES: u32 = 65_535;
/// Bytes of `struct virtio_net_hdr`. With an Ethernet header after it, the IP header is aligned to eight bytes.
pub(crate) const HEADER_BYTES: usize = 10;
const NEEDS_CHECKSUM: u8 = 1;
const CHECKSUM_VALID: u8 = 2;
const GSO_TCP4: u8 = 1;
const GSO_TCP6: u8 = 4;
const GSO_ECN: u8 = 0x80;
/// Byte offset of CWR in a TCP header, and its bit.
const CWR: (usize, u8) = (13, 0x80);

/// Receives the next frame from a descriptor from which each read(2) gets one frame, after its header.
///
/// # Errors
///
/// The error of the system call, except `EAGAIN`, which is `None`.
pub(crate) fn receive(
    fd: BorrowedFd<'_>,
    pool: &Arc<Pool>,
    counters: &mut Counters,
) -> Result<Option<Frame>, Errno> {
    let Some(mut buffer) = pool.take() else {
        counters.dropped.starved += 1;
        return Ok(None);
    };
    loop {
        match rustix::io::read(fd, &mut buffer[..]) {
            Ok(bytes) if bytes < HEADER_BYTES + ETHERNET_BYTES || bytes > buffer.len() => {
                counters.dropped.malformed += 1;
            }
            Ok(bytes) => {
                let header = Header::read(&buffer);
                let mut frame = Frame::new(pool, buffer, HEADER_BYTES..bytes);
                header.describe(&mut frame);
                counters.received.count(frame.len());
                return Ok(Some(frame));
            }
            Err(Errno::INTR) => {}
            Err(error) => {
                pool.give(buffer);
                return if error == Errno::AGAIN { Ok(None) } else { Err(error) };
            }
        }
    }
}

/// Sends a packet to a descriptor to which each write(2) sends one frame, after its header: as a whole or not at all.
///
/// # Errors
///
/// The packet is malformed; or the error of the system call, except those that every such descriptor has.
pub(crate) fn send(
    fd: BorrowedFd<'_>,
    limits: Limits,
    counters: &mut Counters,
    head: &[u8],
    payload: [RawPart<'_>; 2],
    offload: Offload,
) -> io::Result<Sent> {
    let packet = Packet::new(head, payload, offload, limits)?;
    let header = Header::of(&packet, head, offload).bytes();
    let parts = [RawPart::of(&header), RawPart::of(head), payload[0], payload[1]];
    let vectors = parts.map(RawPart::vector);
    loop {
        // SAFETY: the vectors name `header`, `head` and two parts, all readable until the call returns; the kernel
        // only reads them, and other processes may write.
        let written =
            unsafe { libc::writev(fd.as_raw_fd(), vectors.as_ptr(), vectors.len() as i32) };
        if written >= 0 {
            counters.sent.count(packet.bytes());
            return Ok(Sent::Taken);
        }
        let error = io::Error::last_os_error();
        match Errno::from_io_error(&error) {
            Some(Errno::INTR) => {}
            Some(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => {
                counters.dropped.full += 1;
                return Ok(Sent::Full);
            }
            // The kernel cannot read the payload's memory: only its owner loses bytes.
            Some(Errno::FAULT) => {
                counters.dropped.unreadable += 1;
                return Ok(Sent::Lost);
            }
            _ => return Err(error),
        }
    }
}

/// `struct virtio_net_hdr`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Header {
    flags: u8,
    gso_type: u8,
    /// Length of all headers in bytes; only a hint.
    head_bytes: u16,
    segment_bytes: u16,
    checksum_start: u16,
    checksum_offset: u16,
}

impl Header {
    /// The header of a packet to send.
    fn of(packet: &Packet<'_>, head: &[u8], offload: Offload) -> Header {
        let Some(place) = offload.checksum else { return Header::default() };
        let mut header = Header {
            flags: NEEDS_CHECKSUM,
            checksum_start: place.start,
            checksum_offset: place.offset,
            ..Header::default()
        };
        if packet.segments() > 1 {
            let is_v4 = packet.network() == Network::V4;
            // A packet that is cut into segments has a TCP header at the checksum's start.
            let cwr = head[usize::from(place.start) + CWR.0] & CWR.1 != 0;
            header.gso_type = if is_v4 { GSO_TCP4 } else { GSO_TCP6 } | (u8::from(cwr) * GSO_ECN);
            header.head_bytes = head.len() as u16;
            header.segment_bytes = offload.segment_bytes;
        }
        header
    }

    fn bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [self.flags, self.gso_type, 0, 0, 0, 0, 0, 0, 0, 0];
        let fields =
            [self.head_bytes, self.segment_bytes, self.checksum_start, self.checksum_offset];
        for (place, field) in bytes[2..].chunks_exact_mut(2).zip(fields) {
            place.copy_from_slice(&field.to_ne_bytes());
        }
        bytes
    }

    /// Reads the header at the start of the received bytes.
    fn read(bytes: &[u8]) -> Header {
        let field = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        Header {
            flags: bytes[0],
            gso_type: bytes[1],
            head_bytes: field(2),
            segment_bytes: field(4),
            checksum_start: field(6),
            checksum_offset: field(8),
        }
    }

    /// Copies the header's fields to a frame.
    fn describe(self, frame: &mut Frame) {
        if self.flags & (NEEDS_CHECKSUM | CHECKSUM_VALID) != 0 {
            frame.checksum = Checksum::Good;
        }
        if self.flags & NEEDS_CHECKSUM != 0 {
            let (start, offset) = (self.checksum_start, self.checksum_offset);
            frame.partial = Some(CsumPlace { start, offset });
        }
        if matches!(self.gso_type & !GSO_ECN, GSO_TCP4 | GSO_TCP6) {
            frame.segment_bytes = self.segment_bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_round_trip() {
        let header = Header {
            flags: NEEDS_CHECKSUM,
            gso_type: GSO_TCP6 | GSO_ECN,
            head_bytes: 74,
            segment_bytes: 1440,
            checksum_start: 54,
            checksum_offset: 16,
        };
        assert_eq!(header.bytes(), [1, 0x84, 74, 0, 0xa0, 5, 54, 0, 16, 0]);
        assert_eq!(Header::read(&header.bytes()), header);
        let mut frame = Frame::copied_from(&[0; 80]);
        header.describe(&mut frame);
        assert_eq!((frame.checksum, frame.segment_bytes), (Checksum::Good, 1440));
        assert_eq!(frame.partial, Some(CsumPlace { start: 54, offset: 16 }));
    }
}

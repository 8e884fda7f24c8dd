//! TAP devices: an Ethernet cable between this process and the kernel's network.
//!
//! Each frame in `/dev/net/tun` follows the header of a virtio network card (virtio 1.2, 5.1.6). By that header each
//! side leaves checksums and segmentation to the other, with super-packets of up to 64 KiB.

mod device;
mod error;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

pub use error::TapError;

use crate::frame::Pool;
use crate::packet::{Network, Packet};
use crate::{
    Checksum, Counters, CsumPlace, ETHERNET_BYTES, FRAME_BYTES_MAX, Frame, Limits, Offload,
    RawPart, Sent, Wire,
};
use device::Request;

/// Most bytes of an interface's name (`IFNAMSIZ`, less the terminating 0).
pub const NAME_BYTES_MAX: usize = libc::IFNAMSIZ - 1;
/// Smallest MTU. Every host has to accept IPv4 packets of this size (RFC 1122 3.3.2), and TCP sends them to a peer
/// that announced no maximum segment size (RFC 9293 3.7.1).
pub const MTU_MIN: u16 = 576;
/// Smallest MTU over IPv6 (RFC 8200 5).
pub const MTU_MIN_V6: u16 = 1280;

const CLONE_DEVICE: &str = "/dev/net/tun";
/// Most bytes of a super-packet: what an IPv4 header's length can say.
const GSO_BYTES: u32 = 65_535;

/// Bytes of `struct virtio_net_hdr`. With an Ethernet header behind it, the IP header is aligned to eight bytes.
const HEADER_BYTES: usize = 10;
const NEEDS_CHECKSUM: u8 = 1;
const CHECKSUM_VALID: u8 = 2;
const GSO_TCP4: u8 = 1;
const GSO_TCP6: u8 = 4;
const GSO_ECN: u8 = 0x80;
/// Where CWR is in a TCP header, and its bit.
const CWR: (usize, u8) = (13, 0x80);

/// The device to open.
#[derive(Clone, Debug)]
pub struct TapOptions {
    /// The interface's name in Linux, of 1 to [`NAME_BYTES_MAX`] bytes. A `%d` stands for the first free number. An
    /// existing TAP device of this name is attached to.
    pub name: String,
    /// Whether a new device stays when its last user closes it. No effect on an existing device.
    pub persistent: bool,
    /// Whether the device can be opened several times, for one wire per thread. The kernel spreads flows over them.
    pub multi_queue: bool,
    /// Received frames in use at a time, each in a buffer of 64 KiB of virtual memory.
    pub frames: usize,
}

impl TapOptions {
    /// Not persistent, one wire, 256 frames.
    pub fn new(name: impl Into<String>) -> TapOptions {
        TapOptions { name: name.into(), persistent: false, multi_queue: false, frames: 256 }
    }
}

/// A wire to a TAP device. Linux is at the other end of the cable, and its end has an address and an MTU of its own.
///
/// Never deletes a device. The kernel removes a device that is not persistent when its last wire is dropped.
#[derive(Debug)]
pub struct Tap {
    fd: OwnedFd,
    is_made: bool,
    limits: Limits,
    pool: Arc<Pool>,
    counters: Counters,
}

impl Tap {
    /// Attaches to the device, or creates it. A new device is down and without an address: see [`Tap::configure`].
    ///
    /// # Errors
    ///
    /// See [`TapError`]. A new device is removed again, unless it was made persistent already.
    pub fn open(options: &TapOptions) -> Result<Tap, TapError> {
        let mut request = Request::named(&options.name)?;
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::open(CLONE_DEVICE, flags, Mode::empty())
            .map_err(|error| TapError::opening(&options.name, error))?;
        // Another process may create it in between; then both count as its creator.
        let is_made = !device::exists(&options.name);
        let mode = if options.multi_queue { libc::IFF_MULTI_QUEUE } else { 0 };
        let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | mode;
        request.set_flags(flags as u16);
        device::control(fd.as_fd(), libc::TUNSETIFF, &mut request)
            .map_err(|source| TapError::attaching(options, source))?;
        let name = request.name();
        let failed = |what| {
            let name = name.clone();
            move |source| TapError::System { what, name, source }
        };
        // An existing device keeps the settings of its last user.
        device::control_value(fd.as_fd(), libc::TUNSETVNETHDRSZ, HEADER_BYTES as i32)
            .map_err(failed("set the length of packets' headers of"))?;
        device::control_value(fd.as_fd(), libc::TUNSETVNETLE, 1)
            .map_err(failed("set the byte order of packets' headers of"))?;
        let offloads = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
        device::control_number(fd.as_fd(), libc::TUNSETOFFLOAD, offloads)
            .map_err(failed("let the kernel leave checksums and super-packets to us on"))?;
        if is_made && options.persistent {
            device::control_number(fd.as_fd(), libc::TUNSETPERSIST, 1).map_err(failed("keep"))?;
        }
        let socket = device::socket().map_err(failed("ask for the state of"))?;
        let mut request = Request::named(&name)?;
        device::control(socket.as_fd(), libc::SIOCGIFHWADDR, &mut request)
            .map_err(failed("read the Ethernet address of"))?;
        let mac = our_mac(&name, request.mac());
        let limits = Limits { mtu: read_mtu(&name)?, gso_bytes: GSO_BYTES, mac };
        let pool = Pool::new(options.frames, HEADER_BYTES + FRAME_BYTES_MAX);
        Ok(Tap { fd, is_made, limits, pool, counters: Counters::default() })
    }

    /// The interface's name in Linux, as it is now.
    ///
    /// # Errors
    ///
    /// The device was deleted.
    pub fn name(&self) -> Result<String, TapError> {
        let mut request = Request::default();
        device::control(self.fd.as_fd(), libc::TUNGETIFF, &mut request).map_err(|source| {
            TapError::System { what: "ask for the name of", name: "a TAP device".into(), source }
        })?;
        Ok(request.name())
    }

    /// Whether this wire made the device.
    pub fn is_made(&self) -> bool {
        self.is_made
    }

    /// Sets address, prefix in bits and MTU in bytes of *Linux's* end of the cable, and brings it up. The first IPv4
    /// address is replaced; an IPv6 address is added. Applies to an existing device, too.
    ///
    /// # Errors
    ///
    /// [`TapError::Mtu`] below [`MTU_MIN`] or [`MTU_MIN_V6`], [`TapError::Prefix`], [`TapError::Privilege`], or
    /// [`TapError::System`].
    pub fn configure(&mut self, address: IpAddr, prefix: u8, mtu: u16) -> Result<(), TapError> {
        let (least, most) = if address.is_ipv4() { (MTU_MIN, 32) } else { (MTU_MIN_V6, 128) };
        if mtu < least {
            return Err(TapError::Mtu { mtu, least });
        }
        if prefix > most {
            return Err(TapError::Prefix { prefix, most });
        }
        let name = self.name()?;
        device::configure(&name, address, prefix, mtu)
            .map_err(|(what, source)| TapError::configuring(what, &name, source))?;
        self.refresh()
    }

    /// Reads Linux's MTU again, for [`Wire::limits`].
    ///
    /// # Errors
    ///
    /// The device was deleted, or its MTU is below [`MTU_MIN`].
    pub fn refresh(&mut self) -> Result<(), TapError> {
        self.limits.mtu = read_mtu(&self.name()?)?;
        Ok(())
    }
}

/// Linux's MTU of an interface.
fn read_mtu(name: &str) -> Result<u16, TapError> {
    let mtu = device::mtu(name).map_err(|source| TapError::System {
        what: "read the MTU of",
        name: name.to_owned(),
        source,
    })?;
    let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
    if mtu < MTU_MIN { Err(TapError::Mtu { mtu, least: MTU_MIN }) } else { Ok(mtu) }
}

/// A locally administered address for our end: FNV-1a of the interface's name and of Linux's address. So all wires of
/// a device share it, and devices of the same name on two machines differ.
fn our_mac(name: &str, theirs: [u8; 6]) -> [u8; 6] {
    let bytes = name.bytes().chain(theirs);
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let [.., a, b, c, d, e] = hash.to_be_bytes();
    [0x02, a, b, c, d, e]
}

impl Wire for Tap {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn receive(&mut self) -> io::Result<Option<Frame>> {
        let Some(mut buffer) = self.pool.take() else {
            self.counters.dropped.starved += 1;
            return Ok(None);
        };
        loop {
            let read = rustix::io::read(&self.fd, &mut buffer[..]);
            let bytes = match read {
                Ok(bytes) if bytes < HEADER_BYTES + ETHERNET_BYTES || bytes > buffer.len() => {
                    self.counters.dropped.malformed += 1;
                    continue;
                }
                Ok(bytes) => bytes,
                Err(Errno::INTR) => continue,
                Err(error) => {
                    self.pool.give(buffer);
                    return if error == Errno::AGAIN { Ok(None) } else { Err(error.into()) };
                }
            };
            let header = Header::read(&buffer);
            let mut frame = Frame::new(&self.pool, buffer, HEADER_BYTES..bytes);
            header.describe(&mut frame);
            self.counters.received.count(frame.len());
            return Ok(Some(frame));
        }
    }

    fn send(
        &mut self,
        head: &[u8],
        payload: [RawPart<'_>; 2],
        offload: Offload,
    ) -> io::Result<Sent> {
        let packet = Packet::new(head, payload, offload, self.limits)?;
        let header = Header::of(&packet, head, offload).bytes();
        let parts = [RawPart::of(&header), RawPart::of(head), payload[0], payload[1]];
        let vectors = parts.map(RawPart::vector);
        loop {
            // SAFETY: the vectors name `header`, `head` and two parts, all readable until the call returns; the kernel
            // only reads them, and other processes may write.
            let written = unsafe {
                libc::writev(self.fd.as_raw_fd(), vectors.as_ptr(), vectors.len() as i32)
            };
            if written >= 0 {
                // A TAP device takes a frame as a whole or not at all.
                self.counters.sent.count(packet.bytes());
                return Ok(Sent::Taken);
            }
            let error = io::Error::last_os_error();
            match Errno::from_io_error(&error) {
                Some(Errno::INTR) => {}
                Some(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => {
                    self.counters.dropped.full += 1;
                    return Ok(Sent::Full);
                }
                // Linux's side is down.
                Some(Errno::IO) => {
                    self.counters.dropped.down += 1;
                    return Ok(Sent::Lost);
                }
                _ => return Err(error),
            }
        }
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

/// `struct virtio_net_hdr`, little-endian on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Header {
    flags: u8,
    gso_type: u8,
    /// Bytes of all headers, a hint.
    head_bytes: u16,
    segment_bytes: u16,
    checksum_start: u16,
    checksum_offset: u16,
}

impl Header {
    /// The header of a packet that is sent.
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
            // A packet that is cut has a TCP header at the checksum's start.
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
            place.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    /// The header at the beginning of what was received.
    fn read(bytes: &[u8]) -> Header {
        let field = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        Header {
            flags: bytes[0],
            gso_type: bytes[1],
            head_bytes: field(2),
            segment_bytes: field(4),
            checksum_start: field(6),
            checksum_offset: field(8),
        }
    }

    /// Copies the header's statements to a frame.
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
    fn names_that_linux_has_no_room_for_are_refused_before_anything_is_opened() {
        for name in ["", "sixteen-letters-", "a/b", "a b", "a:b", ".."] {
            let error = Tap::open(&TapOptions::new(name)).unwrap_err();
            assert!(matches!(error, TapError::Name(_)), "{name}: {error}");
        }
    }

    #[test]
    fn addresses_are_ours_alone() {
        let one = our_mac("wave0", [2, 0, 0, 0, 0, 1]);
        assert_eq!(one[0] & 0x03, 0x02, "locally administered, of one station");
        assert_eq!(one, our_mac("wave0", [2, 0, 0, 0, 0, 1]));
        assert_ne!(one, our_mac("wave1", [2, 0, 0, 0, 0, 1]));
        assert_ne!(one, our_mac("wave0", [2, 0, 0, 0, 0, 2]));
    }

    #[test]
    fn headers_survive_the_wire() {
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

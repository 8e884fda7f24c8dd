//! TAP devices: an Ethernet cable between this process and the kernel's network.
//!
//! Each frame in `/dev/net/tun` follows the header of a virtio network card (virtio 1.2, 5.1.6). With that header, each
//! side leaves checksums and segmentation to the other, and passes super-packets of up to 64 KiB.

mod error;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

pub use error::TapError;

use crate::device::{self, Request};
use crate::frame::Pool;
use crate::virtio::{self, GSO_BYTES, HEADER_BYTES};
use crate::{Counters, FRAME_BYTES_MAX, Frame, Limits, Offload, RawPart, Sent, Wire};

/// Most bytes of an interface's name (`IFNAMSIZ`, less the terminating 0).
pub const NAME_BYTES_MAX: usize = libc::IFNAMSIZ - 1;
/// Smallest MTU. Every host must accept IPv4 packets of this size (RFC 1122 3.3.2), and TCP sends them to a peer
/// that announced no maximum segment size (RFC 9293 3.7.1).
pub const MTU_MIN: u16 = 576;
/// Smallest MTU over IPv6 (RFC 8200 5).
pub const MTU_MIN_V6: u16 = 1280;

/// Byte order of the headers: the machine's.
const LITTLE_ENDIAN: i32 = cfg!(target_endian = "little") as i32;
const CLONE_DEVICE: &str = "/dev/net/tun";

/// Options of [`Tap::open`].
#[derive(Clone, Debug)]
pub struct TapOptions {
    /// The interface's name in Linux, of 1 to [`NAME_BYTES_MAX`] bytes. A `%d` stands for the first free number. If a TAP
    /// device with this name exists, the wire attaches to it.
    pub name: String,
    /// Whether a new device stays when its last user closes it. No effect on an existing device.
    pub persistent: bool,
    /// Whether the device can be opened several times, for one wire per thread. The kernel spreads flows over them.
    pub multi_queue: bool,
    /// Most received frames in use at a time, each in a buffer of 64 KiB of virtual memory.
    pub frames: usize,
}

impl TapOptions {
    /// A device that is not persistent, with one wire and 256 frames.
    pub fn new(name: impl Into<String>) -> TapOptions {
        TapOptions { name: name.into(), persistent: false, multi_queue: false, frames: 256 }
    }
}

/// A wire to a TAP device. Linux is at the other end of the cable, and its end has its own address and MTU.
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
    /// Attaches to the device, or creates it. A new device is down and has no address: see [`Tap::configure`].
    ///
    /// # Errors
    ///
    /// See [`TapError`]. A new device is removed again, unless it is already persistent.
    pub fn open(options: &TapOptions) -> Result<Tap, TapError> {
        let mut request =
            Request::named(&options.name).ok_or_else(|| TapError::Name(options.name.clone()))?;
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::open(CLONE_DEVICE, flags, Mode::empty())
            .map_err(|error| TapError::opening(&options.name, error))?;
        // Another process may create the device in between; then both count as its creator.
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
            .map_err(failed("set the length of packet headers of"))?;
        device::control_value(fd.as_fd(), libc::TUNSETVNETLE, LITTLE_ENDIAN)
            .map_err(failed("set the byte order of packet headers of"))?;
        let offloads = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
        device::control_number(fd.as_fd(), libc::TUNSETOFFLOAD, offloads)
            .map_err(failed("turn on offloads of"))?;
        if is_made && options.persistent {
            device::control_number(fd.as_fd(), libc::TUNSETPERSIST, 1)
                .map_err(failed("set the persistence of"))?;
        }
        Tap::over(fd, &TapOptions { name, ..options.clone() }, is_made)
    }

    /// Takes over a device that another process has opened, by its descriptor.
    ///
    /// # Errors
    /// The descriptor is not a TAP device, or the device was deleted.
    pub fn adopt(fd: OwnedFd) -> Result<Tap, TapError> {
        let mut request = Request::default();
        device::control(fd.as_fd(), libc::TUNGETIFF, &mut request).map_err(|source| {
            TapError::System { what: "ask for the name of", name: "a TAP device".into(), source }
        })?;
        let options = TapOptions::new(request.name());
        Tap::over(fd, &options, false)
    }

    fn over(fd: OwnedFd, options: &TapOptions, is_made: bool) -> Result<Tap, TapError> {
        let name = options.name.clone();
        let failed = |what| {
            let name = name.clone();
            move |source| TapError::System { what, name, source }
        };
        let socket = device::socket().map_err(failed("ask for the state of"))?;
        let mut request = Request::named(&name).ok_or_else(|| TapError::Name(name.clone()))?;
        device::control(socket.as_fd(), libc::SIOCGIFHWADDR, &mut request)
            .map_err(failed("read the Ethernet address of"))?;
        let mac = our_mac(&name, request.mac());
        let limits = Limits { mtu: read_mtu(&name)?, gso_bytes: GSO_BYTES, mac };
        let pool = Pool::new(options.frames, HEADER_BYTES + FRAME_BYTES_MAX);
        Ok(Tap { fd, is_made, limits, pool, counters: Counters::default() })
    }

    /// The interface's current name in Linux.
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

    /// Whether Linux's end is up.
    ///
    /// # Errors
    ///
    /// The device was deleted.
    pub fn is_up(&self) -> Result<bool, TapError> {
        let name = self.name()?;
        let failed =
            |source| TapError::System { what: "ask for the state of", name: name.clone(), source };
        let socket = device::socket().map_err(failed)?;
        let mut request = Request::named(&name).ok_or_else(|| TapError::Name(name.clone()))?;
        device::control(socket.as_fd(), libc::SIOCGIFFLAGS, &mut request).map_err(failed)?;
        Ok(request.flags() & libc::IFF_UP as u16 != 0)
    }

    /// Whether this wire created the device.
    pub fn is_made(&self) -> bool {
        self.is_made
    }

    /// Sets the address, the prefix in bits and the MTU in bytes of *Linux's* end of the cable, and brings it up. The first
    /// IPv4 address is replaced; an IPv6 address is added. Applies to an existing device as well.
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

/// A locally administered address for our end: FNV-1a of the interface's name and Linux's address. So all wires of
/// a device share it, and devices of the same name on two machines differ.
pub(crate) fn our_mac(name: &str, theirs: [u8; 6]) -> [u8; 6] {
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
        Ok(virtio::receive(self.fd.as_fd(), &self.pool, &mut self.counters)?)
    }

    fn send(
        &mut self,
        head: &[u8],
        payload: [RawPart<'_>; 2],
        offload: Offload,
    ) -> io::Result<Sent> {
        let fd = self.fd.as_fd();
        match virtio::send(fd, self.limits, &mut self.counters, head, payload, offload) {
            // Linux's side is down.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::IO) => {
                self.counters.dropped.down += 1;
                Ok(Sent::Lost)
            }
            sent => sent,
        }
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_interface_names_are_refused_before_a_device_is_opened() {
        for name in ["", "sixteen-letters-", "a/b", "a b", "a:b", ".."] {
            let error = Tap::open(&TapOptions::new(name)).unwrap_err();
            assert!(matches!(error, TapError::Name(_)), "{name}: {error}");
        }
    }

    #[test]
    fn ethernet_addresses_are_locally_administered_and_distinct() {
        let one = our_mac("wave0", [2, 0, 0, 0, 0, 1]);
        assert_eq!(one[0] & 0x03, 0x02, "not locally administered, or not unicast");
        assert_eq!(one, our_mac("wave0", [2, 0, 0, 0, 0, 1]));
        assert_ne!(one, our_mac("wave1", [2, 0, 0, 0, 0, 1]));
        assert_ne!(one, our_mac("wave0", [2, 0, 0, 0, 0, 2]));
    }
}

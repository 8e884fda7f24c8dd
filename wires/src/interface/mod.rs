//! Linux's network interfaces, whose frames the agent shares with the kernel (packet(7)).
//!
//! Each frame follows the header of a virtio network card, as with TAP devices: super-packets of up to 64 KiB pass in
//! both directions if the interface has TSO and GRO.
//!
//! Separate addresses keep the kernel's own stack out of the way. The wire has its own Ethernet address besides the
//! interface's. To the kernel's stack, a frame to that address is "for another host" and is dropped without an answer;
//! and the kernel answers ARP only for its own IP addresses.

mod error;
mod spread;

use std::ffi::c_int;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};

pub use error::InterfaceError;
pub use spread::Spread;
use spread::filter;

use crate::device::{self, Request};
use crate::frame::Pool;
use crate::tap::our_mac;
use crate::virtio::{self, GSO_BYTES, HEADER_BYTES};
use crate::{Counters, FRAME_BYTES_MAX, Frame, Limits, MTU_MIN, Offload, RawPart, Sent, Wire};

/// Options of packet sockets (`linux/if_packet.h`).
const ADD_MEMBERSHIP: c_int = 1;
const VNET_HDR: c_int = 15;
const QDISC_BYPASS: c_int = 20;
const IGNORE_OUTGOING: c_int = 23;
const FANOUT: c_int = 18;
const FANOUT_DATA: c_int = 22;
/// `PACKET_FANOUT_CBPF`: a program chooses the socket.
const FANOUT_CBPF: c_int = 6;
/// `PACKET_FANOUT_FLAG_UNIQUEID`.
const FANOUT_UNIQUE_ID: c_int = 0x2000;
/// `PACKET_FANOUT_FLAG_IGNORE_OUTGOING`. Older kernels ignore it; the filter drops these frames as well.
const FANOUT_IGNORE_OUTGOING: c_int = 0x4000;
/// `PACKET_MR_UNICAST`: an additional Ethernet address for the interface.
const UNICAST: u16 = 3;
/// Size of the kernel's buffer in each direction, in bytes, as far as the kernel allows: a few hundred super-packets.
const BUFFER_BYTES: c_int = 16 << 20;

/// Options of [`Interface::open`].
#[derive(Clone, Debug)]
pub struct InterfaceOptions {
    /// Name of the interface in Linux.
    pub name: String,
    /// Our address. The wire does not receive frames for other addresses.
    pub address: Ipv4Addr,
    /// Most received frames in use at a time, each in a buffer of 64 KiB of virtual memory.
    pub frames: usize,
}

impl InterfaceOptions {
    /// Options with 256 frames.
    pub fn new(name: impl Into<String>, address: Ipv4Addr) -> InterfaceOptions {
        InterfaceOptions { name: name.into(), address, frames: 256 }
    }
}

/// A wire to the network behind an Ethernet interface, for one IPv4 address.
///
/// The only change to the interface is that its list of accepted Ethernet addresses contains ours until the wire is dropped. The
/// machine's own kernel, at this end of the cable, cannot be reached over the wire.
#[derive(Debug)]
pub struct Interface {
    fd: OwnedFd,
    name: String,
    limits: Limits,
    pool: Arc<Pool>,
    counters: Counters,
    /// The interface was down at its last use. Then no event shows that it is deleted.
    is_down: bool,
}

impl Interface {
    /// Opens an interface that is up. Needs CAP_NET_RAW; with CAP_NET_ADMIN, the kernel's buffers are larger.
    ///
    /// # Errors
    ///
    /// See [`InterfaceError`].
    pub fn open(options: &InterfaceOptions) -> Result<Interface, InterfaceError> {
        let name = options.name.clone();
        let failed = |what| {
            let name = name.clone();
            move |source: io::Error| InterfaceError::of(what, name, source)
        };
        let request = Request::named(&name).ok_or_else(|| InterfaceError::Name(name.clone()))?;
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        // No protocol: the socket receives no frames before it is bound.
        let fd = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)
            .map_err(io::Error::from)
            .map_err(failed("open a packet socket for"))?;
        let index = netdevice::name_to_index(&fd, &name)
            .map_err(io::Error::from)
            .map_err(failed("find"))?;
        let ask = |code, what| {
            let mut answer = request;
            device::control(fd.as_fd(), code, &mut answer).map_err(failed(what))?;
            Ok(answer)
        };
        let hardware = ask(libc::SIOCGIFHWADDR, "read the Ethernet address of")?;
        if hardware.hardware() != libc::ARPHRD_ETHER {
            return Err(InterfaceError::NotEthernet { name });
        }
        let is_up = ask(libc::SIOCGIFFLAGS, "read the state of")?.flags() & libc::IFF_UP as u16;
        if is_up == 0 {
            return Err(InterfaceError::Down { name });
        }
        let mtu = ask(libc::SIOCGIFMTU, "read the MTU of")?.number();
        let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
        if mtu < MTU_MIN {
            return Err(InterfaceError::Mtu { name, mtu });
        }
        let mac = our_mac(&format!("{name} {}", options.address), hardware.mac());
        set(fd.as_fd(), VNET_HDR, &1).map_err(failed("turn on offloads of"))?;
        set(fd.as_fd(), IGNORE_OUTGOING, &1).map_err(failed("ignore outgoing frames of"))?;
        set(fd.as_fd(), QDISC_BYPASS, &1).map_err(failed("bypass the queueing discipline of"))?;
        set_buffers(fd.as_fd());
        attach_filter(fd.as_fd(), mac, options.address).map_err(failed("attach a filter to"))?;
        bind(fd.as_fd(), index).map_err(failed("bind to"))?;
        add_address(fd.as_fd(), index, mac).map_err(failed("add an Ethernet address to"))?;
        let limits = Limits { mtu, gso_bytes: GSO_BYTES, mac };
        let pool = Pool::new(options.frames, HEADER_BYTES + FRAME_BYTES_MAX);
        Ok(Interface { fd, name, limits, pool, counters: Counters::default(), is_down: false })
    }

    /// Takes over an interface that another process has opened for the same address, by its descriptor.
    ///
    /// # Errors
    /// The interface has gone.
    pub fn adopt(fd: OwnedFd, options: &InterfaceOptions) -> Result<Interface, InterfaceError> {
        let name = options.name.clone();
        let failed = |what| {
            let name = name.clone();
            move |source: io::Error| InterfaceError::of(what, name, source)
        };
        let ask = |code, what| {
            let mut answer =
                Request::named(&name).ok_or_else(|| InterfaceError::Name(name.clone()))?;
            device::control(fd.as_fd(), code, &mut answer).map_err(failed(what))?;
            Ok(answer)
        };
        let hardware = ask(libc::SIOCGIFHWADDR, "read the Ethernet address of")?;
        let mtu = ask(libc::SIOCGIFMTU, "read the MTU of")?.number();
        let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
        let mac = our_mac(&format!("{name} {}", options.address), hardware.mac());
        let limits = Limits { mtu, gso_bytes: GSO_BYTES, mac };
        let pool = Pool::new(options.frames, HEADER_BYTES + FRAME_BYTES_MAX);
        Ok(Interface { fd, name, limits, pool, counters: Counters::default(), is_down: false })
    }

    /// Spreads the frames of one interface over wires to it, which were opened for the same address: each gets the TCP segments
    /// with its number by [`Spread::number`]. The first one also gets all other frames.
    ///
    /// If the interface goes down and comes up again, the kernel may number the wires in another order.
    ///
    /// # Errors
    /// The kernel refuses it (packet(7), PACKET_FANOUT).
    pub fn spread(wires: &[Interface], spread: Spread) -> Result<(), InterfaceError> {
        let Some((first, others)) = wires.split_first() else { return Ok(()) };
        let failed = |source: io::Error| {
            InterfaceError::of("spread the frames of", first.name.clone(), source)
        };
        // The kernel chooses a number for the group, so that it is no other program's.
        let kind = FANOUT_CBPF | FANOUT_IGNORE_OUTGOING;
        set(first.fd.as_fd(), FANOUT, &((kind | FANOUT_UNIQUE_ID) << 16)).map_err(failed)?;
        let number = fanout_of(first.fd.as_fd()).map_err(failed)? & 0xffff;
        for wire in others {
            set(wire.fd.as_fd(), FANOUT, &(number | kind << 16)).map_err(failed)?;
        }
        let program = spread.program(wires.len() as u32);
        let len = program.len() as u16;
        let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
        set(first.fd.as_fd(), FANOUT_DATA, &program).map_err(failed)
    }

    /// Returns an error if the interface no longer exists. An interface that is down may come up again.
    fn check(&mut self) -> io::Result<()> {
        self.is_down = true;
        // The kernel unbinds the socket of an interface that is deleted.
        let index = bound_to(self.fd.as_fd())?;
        if index <= 0 {
            let name = self.name.clone();
            return Err(io::Error::other(InterfaceError::Gone { name }));
        }
        Ok(())
    }
}

impl Wire for Interface {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn receive(&mut self) -> io::Result<Option<Frame>> {
        match virtio::receive(self.fd.as_fd(), &self.pool, &mut self.counters) {
            Ok(None) if self.is_down => self.check().map(|()| None),
            Ok(frame) => {
                self.is_down &= frame.is_none();
                Ok(frame)
            }
            Err(Errno::NETDOWN | Errno::NXIO | Errno::NODEV) => self.check().map(|()| None),
            // A frame that a virtio header cannot describe. It is lost.
            Err(Errno::INVAL) => {
                self.counters.dropped.malformed += 1;
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn send(
        &mut self,
        head: &[u8],
        payload: [RawPart<'_>; 2],
        offload: Offload,
    ) -> io::Result<Sent> {
        let fd = self.fd.as_fd();
        let error = match virtio::send(fd, self.limits, &mut self.counters, head, payload, offload)
        {
            Ok(sent) => return Ok(sent),
            Err(error) => error,
        };
        match Errno::from_io_error(&error) {
            Some(Errno::NETDOWN | Errno::NXIO | Errno::NODEV) => self.check()?,
            // The interface's MTU has become smaller.
            Some(Errno::MSGSIZE) => {}
            _ => return Err(error),
        }
        self.counters.dropped.down += 1;
        Ok(Sent::Lost)
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

/// Sets an option of a packet socket.
fn set<T>(fd: BorrowedFd<'_>, option: c_int, value: &T) -> io::Result<()> {
    set_at(fd, libc::SOL_PACKET, option, value)
}

fn set_at<T>(fd: BorrowedFd<'_>, level: c_int, option: c_int, value: &T) -> io::Result<()> {
    let (at, bytes) = (std::ptr::from_ref(value), size_of::<T>() as libc::socklen_t);
    // SAFETY: the kernel reads `bytes` bytes there. The one pointer in such a value, of a filter, is valid until the call
    // returns.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, at.cast(), bytes) })
}

fn check(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Enlarges the kernel's buffers; without CAP_NET_ADMIN only up to `net.core.rmem_max` and `wmem_max`.
fn set_buffers(fd: BorrowedFd<'_>) {
    let options =
        [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)];
    for (forced, allowed) in options {
        if set_at(fd, libc::SOL_SOCKET, forced, &BUFFER_BYTES).is_err() {
            // The present size is enough to work with.
            let _ = set_at(fd, libc::SOL_SOCKET, allowed, &BUFFER_BYTES);
        }
    }
}

/// Accepts only untagged incoming frames: ARP, and IPv4 packets to this Ethernet and IP address.
fn attach_filter(fd: BorrowedFd<'_>, mac: [u8; 6], address: Ipv4Addr) -> io::Result<()> {
    let word = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().expect("four bytes"));
    let load = |size: u32, at: u32| filter(libc::BPF_LD | size | libc::BPF_ABS, at, [0, 0]);
    let equals = |value: u32, then: [u8; 2]| {
        filter(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, then)
    };
    let tagged = (libc::SKF_AD_OFF + libc::SKF_AD_VLAN_TAG_PRESENT) as u32;
    let direction = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE) as u32;
    let program = [
        load(libc::BPF_B, direction),
        equals(u32::from(libc::PACKET_OUTGOING), [12, 0]),
        load(libc::BPF_B, tagged),
        equals(0, [0, 10]),
        load(libc::BPF_H, 12),
        equals(libc::ETH_P_ARP as u32, [7, 0]),
        equals(libc::ETH_P_IP as u32, [0, 7]),
        load(libc::BPF_H, 0),
        equals(u32::from(u16::from_be_bytes([mac[0], mac[1]])), [0, 5]),
        load(libc::BPF_W, 2),
        equals(word(&mac[2..]), [0, 3]),
        load(libc::BPF_W, 30),
        equals(address.to_bits(), [0, 1]),
        filter(libc::BPF_RET | libc::BPF_K, u32::MAX, [0, 0]),
        filter(libc::BPF_RET | libc::BPF_K, 0, [0, 0]),
    ];
    let len = program.len() as u16;
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    set_at(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

/// The number and the kind of a socket's fanout group.
fn fanout_of(fd: BorrowedFd<'_>) -> io::Result<c_int> {
    let (mut value, mut bytes) = (0, size_of::<c_int>() as libc::socklen_t);
    let at = std::ptr::from_mut::<c_int>(&mut value).cast();
    // SAFETY: the kernel writes at most `bytes` bytes at `at`, and their number.
    let result =
        unsafe { libc::getsockopt(fd.as_raw_fd(), libc::SOL_PACKET, FANOUT, at, &raw mut bytes) };
    check(result).map(|()| value)
}

/// Begins to receive this interface's frames, of all protocols: the filter selects among them.
fn bind(fd: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid `sockaddr_ll`.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index as i32;
    let bytes = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the kernel reads a `sockaddr_ll` there.
    check(unsafe { libc::bind(fd.as_raw_fd(), std::ptr::from_ref(&address).cast(), bytes) })
}

/// The index of the interface to which a socket is bound; -1 if the interface was deleted.
fn bound_to(fd: BorrowedFd<'_>) -> io::Result<i32> {
    // SAFETY: all-zero bytes are a valid `sockaddr_ll`.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut bytes = size_of_val(&address) as libc::socklen_t;
    let at = std::ptr::from_mut(&mut address).cast();
    // SAFETY: the kernel writes at most a `sockaddr_ll` there, and its length.
    check(unsafe { libc::getsockname(fd.as_raw_fd(), at, &raw mut bytes) })?;
    Ok(address.sll_ifindex)
}

/// Makes the interface accept frames for an additional Ethernet address, as long as the socket is open.
fn add_address(fd: BorrowedFd<'_>, index: u32, mac: [u8; 6]) -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid `packet_mreq`.
    let mut request: libc::packet_mreq = unsafe { std::mem::zeroed() };
    request.mr_ifindex = index as i32;
    request.mr_type = UNICAST;
    request.mr_alen = mac.len() as u16;
    request.mr_address[..mac.len()].copy_from_slice(&mac);
    set(fd, ADD_MEMBERSHIP, &request)
}

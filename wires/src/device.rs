//! The ioctl requests that create, configure and describe an interface (netdevice(7), `linux/if_tun.h`).

use std::ffi::c_int;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};

use crate::NAME_BYTES_MAX;

/// `struct ifreq` as bytes: a name and a value. The kernel accepts any alignment.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Request {
    name: [u8; libc::IFNAMSIZ],
    value: [u8; 24],
}

const _: () = assert!(size_of::<Request>() >= size_of::<libc::ifreq>());

impl Request {
    /// A request about the interface with this name. `None` if it is not a valid interface name.
    pub(crate) fn named(name: &str) -> Option<Request> {
        let is_name = (1..=NAME_BYTES_MAX).contains(&name.len())
            && !name.bytes().any(|byte| matches!(byte, b'/' | b':' | 0) || byte <= b' ')
            && !matches!(name, "." | "..");
        if !is_name {
            return None;
        }
        let mut request = Request::default();
        request.name[..name.len()].copy_from_slice(name.as_bytes());
        Some(request)
    }

    /// The name, with `%d` replaced by the kernel.
    pub(crate) fn name(&self) -> String {
        let name = self.name.split(|&byte| byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(name).into_owned()
    }

    pub(crate) fn set_flags(&mut self, flags: u16) {
        self.value[..2].copy_from_slice(&flags.to_ne_bytes());
    }

    pub(crate) fn flags(&self) -> u16 {
        u16::from_ne_bytes([self.value[0], self.value[1]])
    }

    fn set_number(&mut self, number: i32) {
        self.value[..4].copy_from_slice(&number.to_ne_bytes());
    }

    pub(crate) fn number(&self) -> i32 {
        i32::from_ne_bytes(self.value[..4].try_into().expect("four bytes"))
    }

    /// A `struct sockaddr_in`.
    fn set_address(&mut self, address: Ipv4Addr) {
        self.value = [0; 24];
        self.set_flags(libc::AF_INET as u16);
        self.value[4..8].copy_from_slice(&address.octets());
    }

    /// The kind of hardware in a `struct sockaddr`: `ARPHRD_ETHER` and others.
    pub(crate) fn hardware(&self) -> u16 {
        self.flags()
    }

    /// The Ethernet address in a `struct sockaddr`.
    pub(crate) fn mac(&self) -> [u8; 6] {
        self.value[2..8].try_into().expect("six bytes")
    }
}

/// Asks the kernel about an interface, or changes it. `code` is a request that reads and writes a `struct ifreq`.
pub(crate) fn control(
    fd: BorrowedFd<'_>,
    code: libc::Ioctl,
    request: &mut Request,
) -> io::Result<()> {
    // SAFETY: such a request touches at most a `struct ifreq` at this address, and `Request` is no shorter.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), code, std::ptr::from_mut(request)) })
}

/// Passes a number to a TAP device by pointer. `code` is a request that reads an `int`.
pub(crate) fn control_value(fd: BorrowedFd<'_>, code: libc::Ioctl, value: c_int) -> io::Result<()> {
    // SAFETY: such a request reads an `int` at this address.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), code, &raw const value) })
}

/// Passes a number to a TAP device by value. `code` is a request that takes the number itself.
pub(crate) fn control_number(fd: BorrowedFd<'_>, code: libc::Ioctl, number: u32) -> io::Result<()> {
    // SAFETY: no memory is involved.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), code, libc::c_ulong::from(number)) })
}

fn check(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A socket for requests about interfaces.
pub(crate) fn socket() -> io::Result<OwnedFd> {
    of_family(AddressFamily::INET)
}

fn of_family(family: AddressFamily) -> io::Result<OwnedFd> {
    Ok(socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
}

/// A request about an interface, whose name must be valid.
fn named(name: &str) -> io::Result<Request> {
    Request::named(name).ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// Whether there is an interface with this name.
pub(crate) fn exists(name: &str) -> bool {
    socket().is_ok_and(|socket| netdevice::name_to_index(socket, name).is_ok())
}

/// An interface's MTU in bytes.
pub(crate) fn mtu(name: &str) -> io::Result<i32> {
    let mut request = named(name)?;
    control(socket()?.as_fd(), libc::SIOCGIFMTU, &mut request)?;
    Ok(request.number())
}

/// Sets an interface's MTU and address, and brings it up. An error names the step that failed.
pub(crate) fn configure(
    name: &str,
    address: IpAddr,
    prefix: u8,
    mtu: u16,
) -> Result<(), (&'static str, io::Error)> {
    let during = |what: &'static str| move |error: io::Error| (what, error);
    let socket = socket().map_err(during("configure"))?;
    let named = || named(name).map_err(during("configure"));
    let mut request = named()?;
    request.set_number(mtu.into());
    control(socket.as_fd(), libc::SIOCSIFMTU, &mut request).map_err(during("set the MTU of"))?;
    match address {
        IpAddr::V4(address) => {
            let failed = during("set the address of");
            let mut request = named()?;
            request.set_address(address);
            control(socket.as_fd(), libc::SIOCSIFADDR, &mut request).map_err(failed)?;
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
            request.set_address(Ipv4Addr::from_bits(mask));
            control(socket.as_fd(), libc::SIOCSIFNETMASK, &mut request).map_err(failed)?;
        }
        IpAddr::V6(address) => {
            let failed = during("set the address of");
            let index = netdevice::name_to_index(&socket, name).map_err(io::Error::from);
            let request = libc::in6_ifreq {
                ifr6_addr: libc::in6_addr { s6_addr: address.octets() },
                ifr6_prefixlen: prefix.into(),
                ifr6_ifindex: index.map_err(failed)? as i32,
            };
            let socket = of_family(AddressFamily::INET6).map_err(failed)?;
            // SAFETY: the request reads a `struct in6_ifreq` at this address.
            let result = unsafe {
                libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFADDR as _, &raw const request)
            };
            match check(result) {
                // The interface already has the address.
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
                done => done.map_err(failed)?,
            }
        }
    }
    let mut request = named()?;
    let failed = during("bring up");
    control(socket.as_fd(), libc::SIOCGIFFLAGS, &mut request).map_err(failed)?;
    request.set_flags(request.flags() | libc::IFF_UP as u16);
    control(socket.as_fd(), libc::SIOCSIFFLAGS, &mut request).map_err(failed)
}

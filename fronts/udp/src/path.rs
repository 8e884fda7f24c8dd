//! The two ends of a datagram.
//!
//! A socket that is bound to all addresses replies from the address of the route to the client. That need not be the
//! address that the client has sent to: a client with a connected socket, or behind a NAT, then gets no reply. Such a
//! socket therefore asks the kernel for the address of each request (IP_PKTINFO), and names it with the reply.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use nix::cmsg_space;
use nix::libc::{in_addr, in_pktinfo, in6_addr, in6_pktinfo};
use nix::sys::socket::sockopt::{Ipv4PacketInfo, Ipv6RecvPacketInfo};
use nix::sys::socket::{ControlMessage, ControlMessageOwned, setsockopt};

/// The ends of a request and its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Path {
    pub client: SocketAddr,
    /// This machine's address, which the client has sent to. `None`: the kernel chooses, as the socket is bound to one
    /// address, or the request went to a group.
    pub local: Option<IpAddr>,
}

/// Makes the kernel report the address that each datagram was sent to, if the socket is bound to all addresses.
///
/// # Errors
/// The kernel refuses.
pub fn ask_for_local(socket: &UdpSocket) -> io::Result<()> {
    match socket.local_addr()?.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => setsockopt(socket, Ipv4PacketInfo, &true)?,
        // Also for IPv4, whose addresses then come as mapped ones.
        IpAddr::V6(ip) if ip.is_unspecified() => setsockopt(socket, Ipv6RecvPacketInfo, &true)?,
        _ => {}
    }
    Ok(())
}

/// The local address in a control message of a received datagram.
pub fn local(said: &ControlMessageOwned) -> Option<IpAddr> {
    match said {
        // For a broadcast this is an address of the interface.
        ControlMessageOwned::Ipv4PacketInfo(info) => {
            Some(Ipv4Addr::from(info.ipi_spec_dst.s_addr.to_ne_bytes()).into())
        }
        ControlMessageOwned::Ipv6PacketInfo(info) => {
            let ip = Ipv6Addr::from(info.ipi6_addr.s6_addr);
            let is_group = ip.is_multicast() || ip.to_ipv4_mapped().is_some_and(is_group);
            (!is_group).then_some(ip.into())
        }
        _ => None,
    }
}

fn is_group(ip: Ipv4Addr) -> bool {
    ip.is_multicast() || ip.is_broadcast()
}

/// The source of replies, as the kernel takes it.
pub enum Source {
    V4(in_pktinfo),
    V6(in6_pktinfo),
}

impl From<IpAddr> for Source {
    fn from(local: IpAddr) -> Source {
        // Interface 0: the route chooses it, or the client's scope.
        match local {
            IpAddr::V4(ip) => {
                let ipi_spec_dst = in_addr { s_addr: u32::from_ne_bytes(ip.octets()) };
                let ipi_addr = in_addr { s_addr: 0 };
                Source::V4(in_pktinfo { ipi_ifindex: 0, ipi_spec_dst, ipi_addr })
            }
            IpAddr::V6(ip) => {
                let ipi6_addr = in6_addr { s6_addr: ip.octets() };
                Source::V6(in6_pktinfo { ipi6_addr, ipi6_ifindex: 0 })
            }
        }
    }
}

impl Source {
    /// Bytes of [`Source::message`] in a buffer of control messages.
    pub fn space(&self) -> usize {
        match self {
            Source::V4(_) => cmsg_space!(in_pktinfo).len(),
            Source::V6(_) => cmsg_space!(in6_pktinfo).len(),
        }
    }

    pub fn message(&self) -> ControlMessage<'_> {
        match self {
            Source::V4(info) => ControlMessage::Ipv4PacketInfo(info),
            Source::V6(info) => ControlMessage::Ipv6PacketInfo(info),
        }
    }
}

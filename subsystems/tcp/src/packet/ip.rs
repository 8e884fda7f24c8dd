//! What headers of IPv4 and IPv6 have in common.

use core::net::IpAddr;
use core::ops::Range;

use super::Ecn;

/// A header that was read: of a whole datagram, and valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpView<A> {
    /// Address of the sender.
    pub source: A,
    /// Address of the receiver.
    pub destination: A,
    /// The protocol that follows.
    pub protocol: u8,
    /// Congestion notification.
    pub ecn: Ecn,
    /// Hop limit on arrival.
    pub ttl: u8,
    /// The part of the frame that follows: options, extension headers and padding are not in it.
    pub payload: Range<usize>,
}

impl<A: Into<IpAddr>> IpView<A> {
    /// The same, of either family.
    pub fn widen(self) -> IpView<IpAddr> {
        let IpView { source, destination, protocol, ecn, ttl, payload } = self;
        let (source, destination) = (source.into(), destination.into());
        IpView { source, destination, protocol, ecn, ttl, payload }
    }
}

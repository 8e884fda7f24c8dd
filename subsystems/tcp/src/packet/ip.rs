//! The fields that IPv4 and IPv6 headers have in common.

use core::net::IpAddr;
use core::ops::Range;

use super::Ecn;

/// A parsed and valid header of a whole datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpView<A> {
    /// Address of the sender.
    pub source: A,
    /// Address of the receiver.
    pub destination: A,
    /// The protocol that follows.
    pub protocol: u8,
    /// The ECN field.
    pub ecn: Ecn,
    /// Hop limit on arrival.
    pub ttl: u8,
    /// Range of the payload in the frame, without options, extension headers and padding.
    pub payload: Range<usize>,
}

impl<A: Into<IpAddr>> IpView<A> {
    /// The same view with addresses of either family.
    pub fn widen(self) -> IpView<IpAddr> {
        let IpView { source, destination, protocol, ecn, ttl, payload } = self;
        let (source, destination) = (source.into(), destination.into());
        IpView { source, destination, protocol, ecn, ttl, payload }
    }
}

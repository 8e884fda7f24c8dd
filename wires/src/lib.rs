//! Wires: ways for packets in and out of an agent.
//!
//! A [`Wire`] is what a TCP engine without I/O of its own sends and receives Ethernet frames by. It knows
//! frames, checksums and super-packets, and neither connections nor the agent that polls it. Nothing here blocks, and
//! nothing allocates once a wire is open.
//!
//! A *super-packet* is a TCP packet of up to 64 KiB that is cut into segments below the sender, or was joined from
//! segments below the receiver (TSO, GRO). Its checksum and its cut are the wire's work.

#![deny(unsafe_op_in_unsafe_fn)]

mod frame;
mod part;

use std::io;
use std::os::fd::BorrowedFd;

pub use frame::{Checksum, FRAME_BYTES_MAX, Frame};
pub use part::RawPart;

/// Bytes of an Ethernet header without tags, the shortest frame.
pub const ETHERNET_BYTES: usize = 14;

/// A way for Ethernet frames in and out. One thread polls a wire; a front with several threads has a wire in each.
pub trait Wire {
    /// What the wire takes. It stays the same until a method of the implementation says otherwise.
    fn limits(&self) -> Limits;

    /// The next frame, if one is there. Never waits.
    ///
    /// The frame lies in a buffer of the wire's bounded pool. While all buffers are in use the answer is `None`,
    /// counted as [`Dropped::starved`], whether or not a frame waits.
    ///
    /// # Errors
    ///
    /// The wire is gone, as when its device was deleted. It will not come back.
    fn receive(&mut self) -> io::Result<Option<Frame>>;

    /// Sends one packet: `head`, then both parts of `payload`. Never waits, and copies nothing in this process where
    /// the wire is a descriptor.
    ///
    /// `head` is the Ethernet, IP and TCP header. Its lengths are those of the packet as a whole, and it is
    /// complete but for the checksum that [`Offload::checksum`] names. A payload may change while it is sent
    /// (see [`RawPart`]); then what is sent is a mixture, under a checksum that fits what is sent.
    ///
    /// # Errors
    ///
    /// `InvalidInput`: the caller's fault, the packet does not fit [`Wire::limits`] or its own `offload`; nothing was
    /// sent. Anything else: the wire is gone, as for [`Wire::receive`].
    fn send(
        &mut self,
        head: &[u8],
        payload: [RawPart<'_>; 2],
        offload: Offload,
    ) -> io::Result<Sent>;

    /// What to wait on for a frame with poll(2), if the wire has a descriptor. It is readable when
    /// [`Wire::receive`] would return a frame.
    fn as_fd(&self) -> Option<BorrowedFd<'_>>;

    /// What passed and what did not since the wire was opened.
    fn counters(&self) -> Counters;
}

/// What a wire takes and who is at our end of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes of an IP packet, its header included, that is not a super-packet.
    pub mtu: u16,
    /// Most bytes of the IP packet of a super-packet that the wire cuts into segments. 0: it takes none.
    pub gso_bytes: u32,
    /// The Ethernet address of our end.
    pub mac: [u8; 6],
}

/// What the wire has to do to a packet before it is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// Most bytes of TCP payload of each segment that the packet is cut into. 0: it is sent as it is. Otherwise it is
    /// TCP, and `checksum` is some.
    pub segment_bytes: u16,
    /// Where the wire puts the checksum. `None`: the header is complete.
    pub checksum: Option<CsumPlace>,
}

/// Which checksum is to be completed.
///
/// The field holds the sum of the pseudo header, folded and *not* complemented (RFC 9293 3.1), with the TCP length
/// of the packet as a whole, super-packets included. The wire adds the bytes from `start` to the packet's end, and
/// complements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CsumPlace {
    /// Bytes from the Ethernet header's first to the TCP or UDP header's first.
    pub start: u16,
    /// Bytes from there to the checksum's first: 16 in TCP, 6 in UDP.
    pub offset: u16,
}

/// What became of a packet that was to be sent.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The wire has it.
    Taken,
    /// There is no room now; nothing was sent. Try again later: no readiness tells when.
    Full,
    /// The wire is down for now and the packet is lost, as on a cable that was pulled.
    Lost,
}

/// Frames, and the bytes that they have from the Ethernet header on. A super-packet is one frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Frames.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Traffic {
    /// One more frame.
    pub(crate) fn count(&mut self, bytes: usize) {
        self.frames += 1;
        self.bytes += bytes as u64;
    }
}

/// What did not pass, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Looks for a frame that found every buffer in use.
    pub starved: u64,
    /// Frames that came and are shorter than an Ethernet header, or longer than a buffer.
    pub malformed: u64,
    /// Packets that were not taken since there was no room ([`Sent::Full`]).
    pub full: u64,
    /// Packets that were lost since the wire was down ([`Sent::Lost`]).
    pub down: u64,
}

/// What a wire counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames that [`Wire::receive`] returned.
    pub received: Traffic,
    /// Packets that [`Wire::send`] took.
    pub sent: Traffic,
    /// The others.
    pub dropped: Dropped,
}

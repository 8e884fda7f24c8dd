//! Wires: the paths of packets into and out of an agent.
//!
//! A TCP engine without its own I/O sends and receives Ethernet frames through a [`Wire`]. A wire knows frames,
//! checksums and super-packets; it must not know connections or the agent that polls it. Nothing here blocks, and
//! nothing allocates once a wire is open.
//!
//! | wire | description |
//! | --- | --- |
//! | [`Tap`] | a TAP device, with Linux at its other end |
//! | [`Interface`] | a Linux network interface, shared with the kernel's own stack (AF_PACKET) |
//! | [`Memory`] | one of a pair in memory, connected by a seeded adversary in virtual time |
//! | [`Capture`] | another wire whose frames are recorded for Wireshark |
//!
//! A *super-packet* is a TCP packet of up to 64 KiB that is cut into segments below the sender, or was joined from
//! segments below the receiver (TSO, GRO). The wire computes its checksum and cuts it.

#![deny(unsafe_op_in_unsafe_fn)]

mod capture;
mod checksum;
mod device;
mod frame;
mod interface;
mod memory;
mod packet;
mod part;
mod tap;
mod virtio;

use std::io;
use std::os::fd::BorrowedFd;

pub use capture::{Capture, CaptureOptions, Clock, Filter, Recorder};
pub use frame::{Checksum, FRAME_BYTES_MAX, Frame};
pub use interface::{Interface, InterfaceError, InterfaceOptions, Spread};
pub use memory::{Adversity, Fates, Memory};
pub use packet::PacketError;
pub use part::RawPart;
pub use tap::{MTU_MIN, MTU_MIN_V6, NAME_BYTES_MAX, Tap, TapError, TapOptions};

/// Bytes of an Ethernet header without tags, the shortest frame.
pub const ETHERNET_BYTES: usize = 14;

/// A path for Ethernet frames in and out. One thread polls a wire; a front with several threads has one wire per thread.
pub trait Wire {
    /// The sizes that the wire accepts, and our address. They change only by the methods that say so ([`Tap::configure`],
    /// [`Tap::refresh`]).
    fn limits(&self) -> Limits;

    /// Receives the next frame, if there is one. Never waits.
    ///
    /// The frame lies in a buffer of the wire's bounded pool. While all buffers are in use, the result is `None`
    /// whether or not a frame waits, and is counted as [`Dropped::starved`].
    ///
    /// # Errors
    ///
    /// The wire is gone for good, for example because its device was deleted.
    fn receive(&mut self) -> io::Result<Option<Frame>>;

    /// Sends one packet: `head`, then both parts of `payload`. Never waits, and copies nothing in this process if the
    /// wire is a descriptor.
    ///
    /// `head` has the Ethernet, IP and TCP headers. Their lengths are those of the packet as a whole, and they are
    /// complete except for the checksum that [`Offload::checksum`] names. A payload may change while it is sent
    /// (see [`RawPart`]); then a mixture of old and new bytes is sent, under a checksum that matches it.
    ///
    /// # Errors
    ///
    /// `InvalidInput`: the caller's fault, with a [`PacketError`] inside; nothing was sent. Anything else: the wire
    /// is gone, as for [`Wire::receive`].
    fn send(
        &mut self,
        head: &[u8],
        payload: [RawPart<'_>; 2],
        offload: Offload,
    ) -> io::Result<Sent>;

    /// The descriptor to wait on with poll(2), if the wire has one. It is readable while a frame waits.
    fn as_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Traffic and drops since the wire was opened.
    fn counters(&self) -> Counters;
}

/// The sizes that a wire accepts, and the address of our end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes of an IP packet that is not a super-packet, its header included.
    pub mtu: u16,
    /// Most bytes of a super-packet's IP packet, which the wire cuts into segments. 0: it accepts no super-packets.
    pub gso_bytes: u32,
    /// The Ethernet address of our end.
    pub mac: [u8; 6],
}

/// Work that the sender leaves to the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// Most payload bytes of each TCP segment into which the packet is cut. 0: the packet is sent whole. Otherwise it
    /// must be TCP, with `checksum` set.
    pub segment_bytes: u16,
    /// Place of the checksum to complete. `None`: the head is complete.
    pub checksum: Option<CsumPlace>,
}

/// Place of a checksum to complete.
///
/// The field holds the sum of the pseudo header, folded and *not* complemented (RFC 9293 3.1), with the TCP length
/// of the packet as a whole, super-packets included. The wire adds the bytes from `start` to the packet's end, and
/// complements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CsumPlace {
    /// Offset of the TCP or UDP header from the start of the Ethernet header, in bytes.
    pub start: u16,
    /// Offset of the checksum in that header, in bytes: 16 in TCP, 6 in UDP.
    pub offset: u16,
}

/// Outcome of [`Wire::send`].
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The wire has taken the frame.
    Taken,
    /// There is no room now; nothing was sent. Try again later; no readiness event announces room.
    Full,
    /// The packet is lost: the wire is down at the moment, like an unplugged cable, or the payload's memory cannot be read.
    Lost,
}

/// Frames and their bytes, Ethernet headers included. A super-packet counts as one frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Number of frames.
    pub frames: u64,
    /// Bytes of these frames.
    pub bytes: u64,
}

impl Traffic {
    pub(crate) fn count(&mut self, bytes: usize) {
        self.frames += 1;
        self.bytes += bytes as u64;
    }
}

/// Dropped frames by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Calls of [`Wire::receive`] that found every buffer in use.
    pub starved: u64,
    /// Received frames shorter than an Ethernet header or longer than a buffer.
    pub malformed: u64,
    /// Packets refused for lack of room ([`Sent::Full`]).
    pub full: u64,
    /// Packets lost because the wire was down ([`Sent::Lost`]).
    pub down: u64,
    /// Packets lost because the kernel could not read their payload ([`Sent::Lost`]).
    pub unreadable: u64,
}

/// Counters of a wire since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames that [`Wire::receive`] returned.
    pub received: Traffic,
    /// Packets that [`Wire::send`] accepted.
    pub sent: Traffic,
    /// Dropped frames by cause.
    pub dropped: Dropped,
}

impl std::ops::Add for Counters {
    type Output = Counters;

    fn add(self, more: Counters) -> Counters {
        let traffic = |one: Traffic, other: Traffic| Traffic {
            frames: one.frames + other.frames,
            bytes: one.bytes + other.bytes,
        };
        let Dropped { starved, malformed, full, down, unreadable } = more.dropped;
        Counters {
            received: traffic(self.received, more.received),
            sent: traffic(self.sent, more.sent),
            dropped: Dropped {
                starved: self.dropped.starved + starved,
                malformed: self.dropped.malformed + malformed,
                full: self.dropped.full + full,
                down: self.dropped.down + down,
                unreadable: self.dropped.unreadable + unreadable,
            },
        }
    }
}

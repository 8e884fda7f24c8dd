//! What a handshake offers and accepts: no more than the data path can do (docs/adr/0111).

use super::super::Stack;
use super::Handshake;
use crate::capabilities::Capabilities;
use crate::datapath::{Datapath, Echo, Tuple};
use crate::packet::{Flags, Options, SCALE_MAX, TcpSegment};

impl Handshake {
    /// What the connection may need of its data path.
    pub(in crate::control) fn needed(&self, tuple: &Tuple, echo: Echo) -> Capabilities {
        Capabilities {
            timestamps: self.options.timestamps.is_some(),
            sack: false,
            window_scale: self.options.scale.is_some(),
            echoes: if self.ecn.is_possible() { echo.alone() } else { &[] },
            ipv6: tuple.local.is_ipv6(),
        }
    }
}

/// The smallest window scale that can advertise a whole ring.
fn smallest_scale(ring_bytes: u32) -> u8 {
    (0..SCALE_MAX).find(|shift| ring_bytes >> shift <= u16::MAX.into()).unwrap_or(SCALE_MAX)
}

/// The options of a peer's SYN that we accept, as we offer them, too.
pub(super) fn both(ours: &Options, theirs: &Options) -> Options {
    Options {
        timestamps: theirs.timestamps.filter(|_| ours.timestamps.is_some()),
        scale: theirs.scale.filter(|_| ours.scale.is_some()),
        sack_permitted: theirs.sack_permitted && ours.sack_permitted,
        ..*theirs
    }
}

impl<F: AsRef<[u8]>, D: Datapath<F>> Stack<F, D> {
    /// The options that we offer, with this window scale. A SYN that answers none has 0 as the peer's timestamp.
    pub(super) fn offered(&self, scale: u8) -> Options {
        let Capabilities { timestamps, sack, window_scale, .. } = self.capabilities();
        Options {
            timestamps: timestamps.then_some((0, 0)),
            scale: window_scale.then_some(scale),
            sack_permitted: sack,
            ..Options::default()
        }
    }

    /// The window scale that we offer for a receive ring.
    pub(super) fn own_scale(&self, ring_bytes: u32) -> u8 {
        if self.capabilities().window_scale { smallest_scale(ring_bytes) } else { 0 }
    }

    /// The flags of a peer's SYN; those of ECN only if the data path can echo marks as our congestion control demands.
    pub(super) fn agreed_flags(&self, segment: &TcpSegment) -> Flags {
        match self.has_ecn() {
            true => segment.flags,
            false => segment.flags.without(Flags::ECE | Flags::CWR),
        }
    }

    pub(super) fn has_ecn(&self) -> bool {
        self.capabilities().echoes.contains(&self.algorithm.echo())
    }
}

//! The wires of flow groups, and the control plane's end of them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use wave_tcp::datapath::Tuple;
use wave_tcp::packet::{Parsed, parse};
use wave_tcp::steering::Steering;
use wave_wires::{Counters, Frame, Limits, Offload, RawPart, Sent, Wire};

use super::bell::Bell;

/// The wires of a front with flow groups. All lead to the same network, and have the same address.
pub struct GroupWires<W> {
    /// The wire of each group.
    pub wires: Vec<W>,
    /// For each group, the wire on which the control plane sends segments of its connections. A device that picks a receive queue by
    /// the last sent segment (TAP) then picks the group's queue. Nothing is received here.
    pub senders: Vec<W>,
    /// Assignment of connections to groups. A wire may bring any frame; one of another group is passed on.
    pub steering: Steering,
    /// CPUs of the groups' threads, which take them in turn. Empty: any.
    pub cpus: Vec<usize>,
}

/// An assignment of connections to 1 to [`GROUPS_MAX`](wave_tcp::steering::GROUPS_MAX) groups, with a new secret.
pub fn steering_over(groups: u16) -> Steering {
    Steering::new(groups, rand::random())
}

/// The control plane's wire: it sends each segment on its group's queue. Frames arrive at the groups.
pub struct Sender<W> {
    pub(super) wires: Vec<W>,
    pub(super) steering: Steering,
    pub(super) bell: Arc<Bell>,
}

impl<W: Wire> Wire for Sender<W> {
    fn limits(&self) -> Limits {
        self.wires[0].limits()
    }

    fn receive(&mut self) -> io::Result<Option<Frame>> {
        Ok(None)
    }

    fn send(
        &mut self,
        head: &[u8],
        payload: [RawPart<'_>; 2],
        offload: Offload,
    ) -> io::Result<Sent> {
        let group = match parse(head, true) {
            Ok(Parsed::Tcp { ip, segment, .. }) => self.steering.group_of(&Tuple {
                local: (ip.source, segment.source_port).into(),
                remote: (ip.destination, segment.destination_port).into(),
            }),
            _ => 0,
        };
        self.wires[usize::from(group)].send(head, payload, offload)
    }

    /// The bell that groups ring.
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.bell.as_fd())
    }

    fn counters(&self) -> Counters {
        self.wires.iter().fold(Counters::default(), |sum, wire| sum + wire.counters())
    }
}

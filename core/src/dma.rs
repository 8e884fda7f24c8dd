//! Queues whose entries are moved by the copy engine (Wave 5.3, kinds `dma-sync` and `dma-async`).
//!
//! The producer writes into a ring in its *own* memory; [`DmaProducer::publish`] hands the new
//! lines to the engine, which copies them to a ring of the same shape in the *consumer's* memory.
//! A line arrives whole and carries its own lap word, so copies may complete in any order. The
//! credit goes back the same way. Copies progress in publish and poll, never in a thread.

use crate::link::{Dma, Home, Mapping, Port, Span, Ticket, Window};
use crate::queue::{Consumer, Entry, Malformed, Producer, PushError, Ring, Tag};

/// Copies under way at once, per queue. Beyond that, entries wait for the next publish.
pub const COPIES_MAX: usize = 8;

fn near_and_far(producer_home: Home) -> (Home, Home) {
    match producer_home {
        Home::Nic => (Home::Nic, Home::Host),
        Home::Host => (Home::Host, Home::Nic),
    }
}

/// The writing end: a staging ring, and the part of it that has been sent.
#[derive(Debug)]
pub struct DmaProducer {
    ring: Producer,
    near: Home,
    far: Home,
    target: Ring,
    sent: u64,
    copies: [Option<Ticket>; COPIES_MAX],
    wait: bool,
}

impl DmaProducer {
    /// Creates a producer that stages in `staging` (in memory at `near`) for the ring `target` on the
    /// other side. With `wait`, publish returns when the entries have arrived.
    pub fn new(staging: Ring, near: Home, target: Ring, wait: bool) -> DmaProducer {
        assert_eq!(staging.entries, target.entries, "staging and target must be of one size");
        let (near, far) = near_and_far(near);
        let ring = Producer::new(staging, Mapping::WriteBack);
        DmaProducer { ring, near, far, target, sent: 0, copies: [None; COPIES_MAX], wait }
    }

    /// Writes one entry to the staging ring.
    #[inline]
    pub fn push<const N: usize>(
        &mut self,
        port: &impl Port,
        tag: Tag,
        payload: &[u64; N],
    ) -> Result<(), PushError> {
        self.ring.push(port.window(self.near), tag, payload)
    }

    /// How many entries can be pushed now.
    pub fn room(&mut self, port: &impl Port) -> u32 {
        self.ring.room(port.window(self.near))
    }

    /// Whether `wanted` more entries can be pushed now.
    ///
    /// # Errors
    /// As [`Producer::has_room`].
    pub fn has_room(&mut self, port: &impl Port, wanted: u32) -> Result<bool, PushError> {
        self.ring.has_room(port.window(self.near), wanted)
    }

    /// Sends the entries pushed since the last publish, as far as [`COPIES_MAX`] allows.
    pub fn publish(&mut self, port: &impl Port) {
        self.poll(port);
        let produced = self.ring.produced();
        let staging = self.ring.ring();
        while self.sent < produced {
            let Some(slot) = self.copies.iter_mut().find(|copy| copy.is_none()) else { return };
            let offset = self.sent as u32 & (staging.entries - 1);
            let lines = (produced - self.sent).min(u64::from(staging.entries - offset)) as u32;
            let from = Span { home: self.near, line: staging.first + offset, lines };
            let to = Span { home: self.far, line: self.target.first + offset, lines };
            let ticket = port.dma().copy(from, to);
            self.sent += u64::from(lines);
            if self.wait {
                while !port.dma().is_done(ticket) {
                    core::hint::spin_loop();
                }
            } else {
                *slot = Some(ticket);
            }
        }
    }

    /// Publishes, waits until every entry has arrived, and orders that before later loads of this context.
    pub fn fence(&mut self, port: &impl Port) {
        self.publish(port);
        while !self.poll(port) {
            self.publish(port);
            core::hint::spin_loop();
        }
        // A copy may consist of this CPU's own stores.
        port.window(self.near).fence();
    }

    /// Retires completed copies. Returns whether no copy is under way or waiting.
    pub fn poll(&mut self, port: &impl Port) -> bool {
        for slot in &mut self.copies {
            if slot.is_some_and(|ticket| port.dma().is_done(ticket)) {
                *slot = None;
            }
        }
        self.sent == self.ring.produced() && self.copies.iter().all(Option::is_none)
    }
}

/// The reading end: a ring in the consumer's own memory, whose credit is copied back.
#[derive(Debug)]
pub struct DmaConsumer {
    ring: Consumer,
    near: Home,
    far: Home,
    staging: Ring,
    returned: u64,
    copy: Option<Ticket>,
}

impl DmaConsumer {
    /// The consumer of `target`, in memory at `near`, fed from `staging` on the other side.
    pub fn new(target: Ring, near: Home, staging: Ring) -> DmaConsumer {
        let (near, far) = near_and_far(near);
        let ring = Consumer::new(target, Mapping::WriteBack);
        DmaConsumer { ring, near, far, staging, returned: 0, copy: None }
    }

    /// Takes the next entry, if it has arrived.
    #[inline]
    pub fn pop(&mut self, port: &impl Port) -> Result<Option<Entry>, Malformed> {
        let entry = self.ring.pop(port.window(self.near));
        self.return_credit(port);
        entry
    }

    /// Whether entry number `index` has arrived ([`Consumer::has`]).
    pub fn has(&self, port: &impl Port, index: u64) -> bool {
        self.ring.has(port.window(self.near), index)
    }

    /// Number of entries popped since the beginning.
    pub fn consumed(&self) -> u64 {
        self.ring.consumed()
    }

    /// Advances the copy of the credit. Returns whether none is under way or waiting.
    pub fn poll(&mut self, port: &impl Port) -> bool {
        self.return_credit(port);
        self.copy.is_none()
    }

    /// Copies the credit, one copy at a time: with two, the older could arrive last and leave the
    /// producer with a full ring for ever.
    fn return_credit(&mut self, port: &impl Port) {
        if self.copy.is_some_and(|ticket| port.dma().is_done(ticket)) {
            self.copy = None;
        }
        if self.copy.is_none() && self.ring.credited() != self.returned {
            self.returned = self.ring.credited();
            let from = Span { home: self.near, line: self.ring.ring().credit, lines: 1 };
            let to = Span { home: self.far, line: self.staging.credit, lines: 1 };
            self.copy = Some(port.dma().copy(from, to));
        }
    }
}

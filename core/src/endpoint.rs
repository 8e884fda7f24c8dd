//! A queue's two ends, over the transport that its configuration names (Wave 3.2, `CREATE_QUEUE` and
//! `SET_QUEUE_TYPE`).

use crate::dma::{DmaConsumer, DmaProducer};
use crate::layout::QueuePlace;
use crate::link::{Home, Port, Side, Transport, Window};
use crate::queue::{Consumer, Entry, Malformed, Producer, PushError, Tag};

/// The writing end of a queue.
#[derive(Debug)]
pub enum Sender {
    /// Stores go straight to the ring, at this home.
    Mmio(Producer, Home),
    /// Stores go to a staging ring.
    Dma(DmaProducer),
}

impl Sender {
    /// Creates the producer's end of the queue at `place`, on `side`.
    pub fn new(place: &QueuePlace, side: Side) -> Sender {
        match place.transport {
            Transport::Mmio => {
                Sender::Mmio(Producer::new(place.ring, place.mapping(side)), place.home)
            }
            transport => Sender::Dma(DmaProducer::new(
                place.staging,
                home_of(side),
                place.ring,
                transport == Transport::DmaSync,
            )),
        }
    }

    /// Continues a queue into which another producer has pushed `produced` entries. `None` if its entries go by DMA: copies
    /// under way belong to that producer.
    pub fn resume(place: &QueuePlace, side: Side, produced: u64) -> Option<Sender> {
        let ring = || Producer::resume(place.ring, place.mapping(side), produced);
        (place.transport == Transport::Mmio).then(|| Sender::Mmio(ring(), place.home))
    }

    /// Number of entries pushed since the beginning; `None` if they go by DMA.
    pub fn produced(&self) -> Option<u64> {
        match self {
            Sender::Mmio(ring, _) => Some(ring.produced()),
            Sender::Dma(_) => None,
        }
    }

    /// Writes one entry. It travels at the latest with the next publish.
    #[inline]
    pub fn push<const N: usize>(
        &mut self,
        port: &impl Port,
        tag: Tag,
        payload: &[u64; N],
    ) -> Result<(), PushError> {
        match self {
            Sender::Mmio(ring, home) => ring.push(port.window(*home), tag, payload),
            Sender::Dma(ring) => ring.push(port, tag, payload),
        }
    }

    /// Sends the entries pushed so far.
    #[inline]
    pub fn publish(&mut self, port: &impl Port) {
        match self {
            Sender::Mmio(_, home) => port.window(*home).publish(),
            Sender::Dma(ring) => ring.publish(port),
        }
    }

    /// Publishes, and orders all pushed entries before later loads of this context.
    #[inline]
    pub fn fence(&mut self, port: &impl Port) {
        match self {
            Sender::Mmio(_, home) => port.window(*home).fence(),
            Sender::Dma(ring) => ring.fence(port),
        }
    }

    /// Advances copies. Returns whether none is under way.
    #[inline]
    pub fn poll(&mut self, port: &impl Port) -> bool {
        match self {
            Sender::Mmio(..) => true,
            Sender::Dma(ring) => {
                ring.publish(port);
                ring.poll(port)
            }
        }
    }

    /// How many entries can be pushed now.
    pub fn room(&mut self, port: &impl Port) -> u32 {
        match self {
            Sender::Mmio(ring, home) => ring.room(port.window(*home)),
            Sender::Dma(ring) => ring.room(port),
        }
    }

    /// Whether `wanted` more entries can be pushed now.
    ///
    /// # Errors
    /// As [`Producer::has_room`].
    pub fn has_room(&mut self, port: &impl Port, wanted: u32) -> Result<bool, PushError> {
        match self {
            Sender::Mmio(ring, home) => ring.has_room(port.window(*home), wanted),
            Sender::Dma(ring) => ring.has_room(port, wanted),
        }
    }
}

/// The reading end of a queue.
#[derive(Debug)]
pub enum Receiver {
    /// Loads come straight from the ring, at this home.
    Mmio(Consumer, Home),
    /// Loads come from a ring in the consumer's own memory.
    Dma(DmaConsumer),
}

impl Receiver {
    /// Creates the consumer's end of the queue at `place`, on `side`.
    pub fn new(place: &QueuePlace, side: Side) -> Receiver {
        match place.transport {
            Transport::Mmio => {
                Receiver::Mmio(Consumer::new(place.ring, place.mapping(side)), place.home)
            }
            _ => Receiver::Dma(DmaConsumer::new(place.ring, home_of(side), place.staging)),
        }
    }

    /// Continues a queue from which another consumer has popped `positions[0]` entries, and published `positions[1]` of them as
    /// credit. `None` if its entries come by DMA.
    pub fn resume(place: &QueuePlace, side: Side, positions: [u64; 2]) -> Option<Receiver> {
        let ring = || Consumer::resume(place.ring, place.mapping(side), positions);
        (place.transport == Transport::Mmio).then(|| Receiver::Mmio(ring(), place.home))
    }

    /// Number of entries popped, and number published as credit; `None` if entries come by DMA.
    pub fn positions(&self) -> Option<[u64; 2]> {
        match self {
            Receiver::Mmio(ring, _) => Some([ring.consumed(), ring.credited()]),
            Receiver::Dma(_) => None,
        }
    }

    /// Takes the next entry, if it is there.
    #[inline]
    pub fn pop(&mut self, port: &impl Port) -> Result<Option<Entry>, Malformed> {
        match self {
            Receiver::Mmio(ring, home) => ring.pop(port.window(*home)),
            Receiver::Dma(ring) => ring.pop(port),
        }
    }

    /// Number of entries popped since the beginning.
    pub fn consumed(&self) -> u64 {
        match self {
            Receiver::Mmio(ring, _) => ring.consumed(),
            Receiver::Dma(ring) => ring.consumed(),
        }
    }

    /// Whether entry number `index`, counted from 0, has arrived ([`Consumer::has`]).
    pub fn has(&self, port: &impl Port, index: u64) -> bool {
        match self {
            Receiver::Mmio(ring, home) => ring.has(port.window(*home), index),
            Receiver::Dma(ring) => ring.has(port, index),
        }
    }

    /// Advances the credit on its way back. Returns whether none is under way.
    #[inline]
    pub fn poll(&mut self, port: &impl Port) -> bool {
        match self {
            Receiver::Mmio(..) => true,
            Receiver::Dma(ring) => ring.poll(port),
        }
    }

    /// Starts to fetch the next entry (Wave 5.4). Does nothing if the entry lies in near memory.
    #[inline]
    pub fn prefetch(&mut self, port: &impl Port) {
        if let Receiver::Mmio(ring, home) = self {
            ring.prefetch(port.window(*home));
        }
    }

    /// Gives up the line of the last popped entry ([`Consumer::release`]).
    #[inline]
    pub fn release(&self, port: &impl Port) {
        if let Receiver::Mmio(ring, home) = self {
            ring.release(port.window(*home));
        }
    }

    /// Starts to fetch prestaged entries, where the fetched lines cannot go stale.
    #[inline]
    pub fn prefetch_ahead(&mut self, port: &impl Port) {
        if let Receiver::Mmio(ring, home) = self {
            ring.prefetch_ahead(port.window(*home));
        }
    }
}

/// The memory that a side reaches without crossing the link.
pub const fn home_of(side: Side) -> Home {
    match side {
        Side::Host => Home::Host,
        Side::Agent => Home::Nic,
    }
}

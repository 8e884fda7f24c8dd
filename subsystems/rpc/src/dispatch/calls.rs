//! The table of calls.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use bytes::Bytes;
use wave_core::backlog::Backlog;
use wave_core::clock::Nanos;
use wave_core::message::Subject;

use crate::steer::Request;
use crate::window::Load;
use crate::wire::message_flags;

/// A call is refused if its address already has this many times the number of free slots. An address that is alone gets about three
/// quarters of all slots.
pub const ADDRESS_SHARE: usize = 3;

/// A new call, from a front.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// Index into the methods of the service.
    pub method: u16,
    /// Class of the call, which steering uses.
    pub class: u8,
    /// The call's latency objective, if it is known.
    pub slo: Option<Nanos>,
    /// Hash of the call's connection, by which RSS would steer.
    pub hash: u64,
    /// Hash of the client's address, by which the calls of a client are counted and limited; `None` if the front limits them itself.
    pub address: Option<u64>,
    /// When the client stops waiting, by the agent's clock.
    pub deadline: Option<Nanos>,
    /// Metadata in its encoded form.
    pub metadata: Bytes,
    /// The first message, if it has arrived.
    pub message: Option<Bytes>,
    /// Whether the message arrived compressed.
    pub compressed: bool,
    /// The client has half-closed: it sends nothing more.
    pub end: bool,
}

impl Arrival {
    pub(super) const fn request(&self) -> Request {
        Request { class: self.class, slo: self.slo, hash: self.hash }
    }
}

/// State of a call between its client and its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Queued in the steering policy.
    Waiting,
    /// Handed to a worker, at this time.
    Handed { worker: u16, at: Nanos },
}

/// How a call that was handed over counts against its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It takes one of its worker's places.
    Runs,
    /// Its worker runs other calls between its messages ([`YIELDS`](crate::wire::YIELDS)).
    Yields,
    /// It waits for its client ([`WAITS`](crate::wire::WAITS)).
    Waits,
}

#[derive(Debug)]
pub(super) struct Slot {
    generation: u32,
    in_use: bool,
    /// Whether the front still wants its events.
    pub(super) front: bool,
    pub(super) place: Place,
    pub(super) method: u16,
    pub(super) request: Request,
    address: Option<u64>,
    /// Frames sent to its worker after its BEGIN.
    pub(super) frames: u32,
    /// The worker runs other calls between this call's messages.
    pub(super) yields: bool,
    /// Since when the worker can do nothing for this call before its client acts.
    pub(super) waits: Option<Nanos>,
    pub(super) deadline: Option<Nanos>,
    metadata: Bytes,
    /// Messages from the client for which the window has no room, and the flags of each. An entry without a message is a
    /// half-close.
    pub(super) pending: Backlog<(Option<Bytes>, u8)>,
    /// The client sends nothing more.
    pub(super) half_closed: bool,
    /// Messages on their way to the host, which it has not taken.
    pub(super) on_way: Load,
    /// Replies that arrived, and whose room was not granted again.
    pub(super) replies: Load,
    /// Replies that reached the client, of which the worker was not told yet.
    pub(super) to_grant: Load,
    /// A reply, or the metadata before it, has arrived.
    pub(super) replied: bool,
}

impl Slot {
    pub(super) fn standing(&self) -> Standing {
        match (self.waits, self.yields) {
            (Some(_), _) => Standing::Waits,
            (None, true) => Standing::Yields,
            (None, false) => Standing::Runs,
        }
    }

    /// Takes the contents of the call's BEGIN: metadata, the first message if there is one, and flags.
    pub(super) fn take_first(&mut self) -> (Bytes, Option<Bytes>, u8) {
        let metadata = core::mem::take(&mut self.metadata);
        let (message, flags) = self.pending.pop_front().unwrap_or((None, 0));
        (metadata, message, flags)
    }
}

/// All calls of an incarnation.
#[derive(Debug)]
pub(super) struct Calls {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Number of slots in use, by address. Entries stay at 0 for a while: most clients come back.
    of_address: BTreeMap<u64, u32>,
}

impl Calls {
    pub(super) fn new(count: u32) -> Calls {
        let slot = |_| Slot {
            generation: 0,
            in_use: false,
            front: false,
            place: Place::Waiting,
            method: 0,
            request: Request::default(),
            address: None,
            frames: 0,
            yields: false,
            waits: None,
            deadline: None,
            metadata: Bytes::new(),
            pending: Backlog::new(),
            half_closed: false,
            on_way: Load::default(),
            replies: Load::default(),
            to_grant: Load::default(),
            replied: false,
        };
        Calls {
            slots: (0..count).map(slot).collect(),
            free: (0..count).rev().collect(),
            of_address: BTreeMap::new(),
        }
    }

    pub(super) fn open(&self) -> u32 {
        (self.slots.len() - self.free.len()) as u32
    }

    /// Begins a call. `None` if no slot is free, or the address has used its share.
    pub(super) fn begin(&mut self, arrival: Arrival) -> Option<Subject> {
        if let Some(address) = arrival.address {
            if self.of_address.len() > 2 * self.slots.len() {
                self.of_address.retain(|_, count| *count > 0);
            }
            let count = self.of_address.entry(address).or_default();
            if *count as usize >= ADDRESS_SHARE * self.free.len() {
                return None;
            }
            *count += 1;
        }
        let id = self.free.pop()?;
        let slot = &mut self.slots[id as usize];
        slot.generation = slot.generation.wrapping_add(1);
        (slot.in_use, slot.front, slot.place) = (true, true, Place::Waiting);
        slot.request = arrival.request();
        (slot.address, slot.frames) = (arrival.address, 0);
        (slot.yields, slot.waits) = (false, None);
        (slot.method, slot.deadline, slot.metadata) =
            (arrival.method, arrival.deadline, arrival.metadata);
        (slot.on_way, slot.replies, slot.to_grant) = Default::default();
        (slot.half_closed, slot.replied) = (arrival.end, false);
        if arrival.message.is_some() || arrival.end {
            slot.pending
                .push_back((arrival.message, message_flags(arrival.end, arrival.compressed)));
        }
        Some(Subject { id, generation: slot.generation })
    }

    pub(super) fn free(&mut self, id: u32) {
        let slot = &mut self.slots[id as usize];
        (slot.in_use, slot.front) = (false, false);
        slot.pending.clear();
        let count = slot.address.take().and_then(|address| self.of_address.get_mut(&address));
        if let Some(count) = count {
            *count -= 1;
        }
        self.free.push(id);
    }

    /// The slot of a call that the front may name: an open one that was not given up.
    pub(super) fn of_front(&mut self, call: Subject) -> Option<&mut Slot> {
        self.of(call).filter(|slot| slot.front)
    }

    pub(super) fn of_worker(&mut self, call: Subject, worker: u16) -> Option<&mut Slot> {
        self.of(call)
            .filter(|slot| matches!(slot.place, Place::Handed { worker: its, .. } if its == worker))
    }

    fn of(&mut self, call: Subject) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(call.id as usize)?;
        (slot.in_use && slot.generation == call.generation).then_some(slot)
    }

    /// Picks the address with the most calls that wait for their clients, then its connection with the most, and returns the up
    /// to `count` calls of this connection that have waited longest. Calls that were given up do not count: their workers end
    /// them.
    pub(super) fn longest_of_most(&self, count: usize) -> Vec<Subject> {
        let waiting = || {
            let slots = self.slots.iter().enumerate();
            slots.filter_map(|(id, slot)| {
                let since = slot.waits.filter(|_| slot.in_use && slot.front)?;
                Some((id as u32, slot.address, slot.request.hash, since))
            })
        };
        let Some(address) = most(waiting().map(|(_, address, ..)| address)) else {
            return Vec::new();
        };
        let of_address = || waiting().filter(|(_, its, ..)| *its == address);
        let connection = most(of_address().map(|(_, _, hash, _)| hash));
        let of_connection = of_address().filter(|(_, _, hash, _)| Some(*hash) == connection);
        let mut longest: Vec<_> = of_connection.map(|(id, .., since)| (since, id)).collect();
        longest.sort_unstable();
        longest.iter().take(count).map(|(_, id)| self.subject(*id)).collect()
    }

    /// A slot that is known to be in use.
    pub(super) fn slot(&mut self, id: u32) -> &mut Slot {
        &mut self.slots[id as usize]
    }

    pub(super) fn subject(&self, id: u32) -> Subject {
        Subject { id, generation: self.slots[id as usize].generation }
    }
}

/// The most frequent value.
fn most<T: Ord>(all: impl Iterator<Item = T>) -> Option<T> {
    let mut counts = BTreeMap::new();
    for one in all {
        *counts.entry(one).or_insert(0_u32) += 1;
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(one, _)| one)
}

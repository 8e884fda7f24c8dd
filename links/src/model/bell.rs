//! Doorbells with an interrupt's costs.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

use wave_core::clock::Nanos;
use wave_core::link::{Doorbell, Waiter};

use super::charges::Tally;
use super::setup::ModelError;
use super::stamps::Stamps;
use super::time::Timebase;
use crate::costs::Costs;
use crate::doorbell::EventFd;
use crate::memory::Memory;

/// An event descriptor with the costs of an interrupt of the modelled link.
///
/// Ringing occupies `kick_send`. A waiter returns when `kick_flight` has passed since then, and is
/// occupied for `kick_receive` after that; the time that waking it actually took counts towards the
/// flight. The time of the last ring is a word of the window: a second ring during a flight delays
/// the first (a kick may be late), by one flight at most.
#[derive(Debug)]
pub struct ModelDoorbell<T> {
    bell: EventFd,
    stamps: Stamps,
    vector: usize,
    time: T,
    send: u64,
    flight: u64,
    receive: u64,
    sent: [AtomicU64; 2],
    received: [AtomicU64; 2],
}

/// What one end of a doorbell was charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KickCharges {
    /// Rings that were sent, and their costs.
    pub sent: Tally,
    /// Rings received. Waiting is not charged.
    pub received: Tally,
}

impl<T: Timebase> ModelDoorbell<T> {
    /// The doorbell `vector` of a window (below [`super::VECTORS_MAX`]), rung through `bell`.
    pub fn new(
        memory: Arc<Memory>,
        vector: usize,
        bell: EventFd,
        costs: &Costs,
        time: T,
    ) -> Result<ModelDoorbell<T>, ModelError> {
        let stamps = Stamps::new(memory).ok_or(ModelError::NoRoom)?;
        if vector >= super::VECTORS_MAX {
            return Err(ModelError::NoSuchVector(vector));
        }
        Ok(ModelDoorbell {
            bell,
            stamps,
            vector,
            time,
            send: costs.kick_send.nanos().0,
            flight: costs.kick_flight.nanos().0,
            receive: costs.kick_receive.nanos().0,
            sent: Default::default(),
            received: Default::default(),
        })
    }

    /// The descriptor that a ring signals.
    pub fn event_fd(&self) -> &EventFd {
        &self.bell
    }

    /// What this end was charged since the last call.
    pub fn take_charges(&self) -> KickCharges {
        let take = |tally: &[AtomicU64; 2]| Tally {
            count: tally[0].swap(0, Relaxed),
            ns: tally[1].swap(0, Relaxed),
        };
        KickCharges { sent: take(&self.sent), received: take(&self.received) }
    }
}

fn charge(tally: &[AtomicU64; 2], ns: u64) {
    tally[0].fetch_add(1, Relaxed);
    tally[1].fetch_add(ns, Relaxed);
}

impl<T: Timebase> Doorbell for ModelDoorbell<T> {
    fn ring(&self) {
        let sent = self.time.now().0.saturating_add(self.send);
        self.stamps.ring(self.vector).store(sent, Release);
        self.bell.ring();
        self.time.spend_until(Nanos(sent));
        charge(&self.sent, self.send);
    }
}

impl<T: Timebase> ModelDoorbell<T> {
    /// Charges for a ring that was just taken from [`ModelDoorbell::event_fd`].
    pub fn receive(&self) {
        let now = self.time.now().0;
        // The peer may have written any value as the time; no wait is longer than a kick.
        let longest = now.saturating_add(self.send).saturating_add(self.flight);
        let sent = self.stamps.ring(self.vector).load(Acquire);
        let arrival = sent.saturating_add(self.flight).clamp(now, longest);
        self.time.spend_until(Nanos(arrival.saturating_add(self.receive)));
        charge(&self.received, self.receive);
    }
}

impl<T: Timebase> Waiter for ModelDoorbell<T> {
    fn wait(&self, timeout: Option<Duration>) -> bool {
        let rung = self.bell.wait(timeout);
        if rung {
            self.receive();
        }
        rung
    }
}

//! The server's control thread: lets agents attach, sends them the list of methods, and turns them out.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use wave_core::clock::Clock;
use wave_core::control::Revoked;
use wave_core::endpoint::Sender;
use wave_core::link::{Doorbell, Side};
use wave_core::message::Subject;
use wave_rpc::boxes::Outbox;
use wave_rpc::extents::Extents;
use wave_rpc::wire::{Head, SERVICE};

use super::missed_requests::{MissedRequests, POLL_EVERY};
use super::server::Shared;
use crate::clock::MonotonicClock;
use crate::door::{Door, Guest, report_fault, wait_for_any};
use crate::shared::lock;

/// How often this thread checks an agent that has not taken the list of methods yet, in milliseconds.
const TELL_EVERY_MS: i32 = 1;
/// How often it checks candidates, in milliseconds.
const CANDIDATES_EVERY_MS: i32 = 100;
/// How often it checks for requests that a scheduler overlooks, in milliseconds.
const POLL_EVERY_MS: i32 = (POLL_EVERY.0 / 1_000_000) as i32;

struct Agent {
    guest: Guest,
    /// The list of methods, on its way to the agent.
    outbox: Outbox,
    told: bool,
    missed: MissedRequests,
}

impl Agent {
    /// Revokes the agent's window. Rings the agent, in case it sleeps.
    fn revoke(&self, why: Revoked) {
        self.guest.control.revoke(&self.guest.port, why);
        self.guest.incarnation.agent_bell.ring();
    }
}

pub(super) struct Control {
    shared: Arc<Shared>,
    door: Door,
    attached: Option<Agent>,
}

impl Control {
    pub(super) fn new(shared: Arc<Shared>, door: Door) -> Control {
        Control { shared, door, attached: None }
    }

    /// Runs the control loop until the server stops.
    pub(super) fn run(mut self) {
        while !self.shared.stop.load(Ordering::SeqCst) {
            self.wait();
            while let Some(guest) = self.door.answer(MonotonicClock.now()) {
                self.attach(guest);
            }
            self.serve();
            // Workers that are threads of an enclave sleep without a limit.
            self.shared.trim_heap(MonotonicClock.now(), true);
        }
        self.detach(Revoked::Ended);
    }

    fn wait(&mut self) {
        let fds = self.door.fds().chain([self.shared.control_bell.as_fd()]);
        let fds = fds.chain(self.attached.iter().flat_map(|agent| agent.guest.fds()));
        let timeout_ms = match &self.attached {
            Some(agent) if !agent.told => TELL_EVERY_MS,
            // The workers are threads of an enclave.
            Some(_) if !lock(&self.shared.unpark).is_empty() => POLL_EVERY_MS,
            _ if !self.door.is_empty() => CANDIDATES_EVERY_MS,
            _ => -1,
        };
        wait_for_any(fds, timeout_ms);
        self.shared.control_bell.drain();
        self.door.drain();
        if let Some(agent) = &self.attached {
            agent.guest.incarnation.control_bell.event_fd().drain();
        }
    }

    /// Starts a new incarnation. Calls of the previous one are gone with the agent that held them.
    fn attach(&mut self, guest: Guest) {
        if let Some(old) = self.attached.take() {
            old.guest.control.revoke(&old.guest.port, Revoked::Replaced);
            old.guest.incarnation.agent_bell.ring();
        }
        let layout = &guest.incarnation.layout;
        let place = &layout.messages[layout.control_context()];
        let mut outbox = Outbox::new(Sender::new(place, Side::Host), Extents::none());
        if self.shared.checksums {
            outbox.check();
        }
        let service = self.shared.methods.service().encode();
        let head =
            Head { lengths: [service.len() as u32, 0], ..Head::new(SERVICE, Subject::default()) };
        // A fresh window has room; the rest is sent when there is room again.
        let sent = outbox.send(&guest.port, &head, &service, &[]);
        if let Err(error) = sent {
            guest.incarnation.fault.note(error);
        }
        lock(&self.shared.stats).attached += 1;
        self.shared.switch(Some(Arc::clone(&guest.incarnation)));
        let missed = MissedRequests::new(&guest.incarnation.layout);
        self.attached = Some(Agent { guest, outbox, told: false, missed });
    }

    fn serve(&mut self) {
        let Some(Agent { guest, outbox, told, missed }) = &mut self.attached else { return };
        if !*told {
            if let Err(error) = outbox.flush(&guest.port) {
                guest.incarnation.fault.note(error);
            }
            outbox.publish(&guest.port);
            *told = outbox.poll(&guest.port);
            guest.incarnation.agent_bell.ring();
        }
        let awaits = self.shared.tallies.iter().map(|tally| &tally.awaits);
        for worker in missed.check(MonotonicClock.now(), &guest.port, awaits) {
            lock(&self.shared.stats).overlooked += 1;
            // The threads are in the order of the workers.
            if let Some(unpark) = lock(&self.shared.unpark).get(worker) {
                unpark();
            }
        }
        let fault = guest.incarnation.fault.is_set();
        if fault || guest.connection.has_left() {
            let mut stats = lock(&self.shared.stats);
            stats.lost += 1;
            stats.faults += u64::from(fault);
            let faults = stats.faults;
            drop(stats);
            if fault {
                report_fault(self.door.socket(), guest, faults);
            }
            self.detach(if fault { Revoked::Fault } else { Revoked::TurnedOut });
        }
    }

    fn detach(&mut self, why: Revoked) {
        let Some(agent) = self.attached.take() else { return };
        agent.revoke(why);
        self.shared.switch(None);
    }
}

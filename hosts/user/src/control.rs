//! The control thread: lets agents attach, watches them, and turns them out. [`wave_host`] draws the
//! states of an agent.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use wave_core::clock::{Clock, Nanos};
use wave_core::control::Revoked;
use wave_core::host::Context;
use wave_core::layout::Layout;
use wave_core::link::Doorbell;
use wave_core::message::{Sequence, Subject};
use wave_core::snapshot::Record;
use wave_core::watchdog::Starved;
use wave_host::{Core, SupervisedHost, Supervisor};
use wave_links::socket::Listener;
use wave_links::{EventFd, LinkSpec};

use crate::clock::MonotonicClock;
use crate::door::{Door, Guest, Incarnation, report_fault, wait_for_any};
use crate::shared::{CoreShared, Shared, lock};
use crate::stats::Mode;

/// Looks at rest after which the watchdog looks less often. Large enough that a load with gaps does not
/// reach it: otherwise an agent that hangs is found too late.
const LOOKS_AT_REST: u32 = 20;

pub(crate) struct Control {
    shared: Arc<Shared>,
    door: Door,
    attached: Option<Guest>,
    supervisor: Supervisor,
    looks_at_rest: u32,
    /// Switches of all cores as of the last look.
    switches_seen: u64,
}

impl Control {
    pub(crate) fn new(
        shared: Arc<Shared>,
        listener: Listener,
        link: LinkSpec,
        layout: Layout,
    ) -> Control {
        let supervisor = Supervisor::new(&shared.config);
        // A core's bell interrupts the thread that runs on the core, if the thread is to be interrupted.
        let signal = shared.signal;
        let bell = move || EventFd::interrupting(signal);
        Control {
            door: Door::new(shared.name.clone(), listener, link, layout, bell),
            shared,
            attached: None,
            supervisor,
            looks_at_rest: 0,
            switches_seen: 0,
        }
    }

    /// Runs the control loop until the enclave stops.
    pub(crate) fn run(mut self) {
        while !self.shared.stop.load(Ordering::SeqCst) {
            self.wait();
            let now = MonotonicClock.now();
            while let Some(guest) = self.door.answer(now) {
                self.attach(guest);
            }
            self.serve(now);
        }
        if let Some(guest) = self.attached.take() {
            guest.control.revoke(&guest.port, Revoked::Ended);
        }
    }

    /// Waits until something happens or the watchdog is due. Without an agent there is nothing to watch.
    fn wait(&mut self) {
        let fds = self.door.fds().chain([self.shared.control_bell.as_fd()]);
        let fds = fds.chain(self.attached.iter().flat_map(Guest::fds));
        let quarter_ms = (self.shared.config.patience.0 / 4_000_000).clamp(1, 1000) as i32;
        let timeout_ms = match &self.attached {
            Some(_) if self.supervisor.wants_snapshot() || self.supervisor.awaits_cores() => 1,
            Some(_) if self.looks_at_rest > LOOKS_AT_REST && self.door.is_empty() => {
                10 * quarter_ms
            }
            Some(_) => quarter_ms,
            None if self.door.is_empty() => -1,
            None => 100,
        };
        wait_for_any(fds, timeout_ms);
        self.count_rest();
        self.shared.control_bell.drain();
        self.door.drain();
        if let Some(guest) = &self.attached {
            guest.incarnation.control_bell.event_fd().drain();
        }
    }

    /// Counts looks at which no thread was alive and no core had switched since the previous look.
    /// Nothing waits then, and nothing is about to wait, so the watchdog may look less often.
    fn count_rest(&mut self) {
        let counters = self.shared.cores.iter().map(|core| &core.counters.switches);
        let switches = counters.map(|switches| switches.load(Ordering::Relaxed)).sum();
        let nothing_alive = self.shared.free.len() == self.shared.free.capacity();
        let rests = nothing_alive && switches == self.switches_seen;
        self.switches_seen = switches;
        self.looks_at_rest = if rests { self.looks_at_rest.saturating_add(1) } else { 0 };
    }

    /// Starts a new incarnation. The workload keeps running: idle cores wait until the snapshot reaches the
    /// agent, and running threads notice nothing.
    fn attach(&mut self, guest: Guest) {
        if let Some(old) = self.attached.take() {
            old.control.revoke(&old.port, Revoked::Replaced);
        }
        self.supervisor.begin();
        self.shared.kill.store(false, Ordering::SeqCst);
        // Only now: whoever sees the count may kill this agent.
        lock(&self.shared.agents).attached += 1;
        self.shared.fallback.leave();
        self.switch_windows(Some(&guest.incarnation));
        self.attached = Some(guest);
    }

    /// Points every context to another window, or to none.
    fn switch_windows(&self, to: Option<&Arc<Incarnation>>) {
        {
            let mut incarnation = lock(&self.shared.incarnation);
            *incarnation = to.cloned();
            self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        }
        self.shared.cores.iter().for_each(CoreShared::ring);
        for (at, outside) in self.shared.outside.iter().enumerate() {
            let link = to.map(|incarnation| {
                let layout = &incarnation.layout;
                let place = &layout.messages[self.shared.cores.len() + at];
                (incarnation.port(), Context::new(layout, place), Arc::clone(incarnation))
            });
            lock(outside).link = link;
        }
    }

    fn serve(&mut self, now: Nanos) {
        let Some(guest) = &mut self.attached else { return };
        let Guest { incarnation, port, control, connection } = guest;
        let host = Supervised { shared: &self.shared, incarnation };
        let look = self.supervisor.supervise(now, control, port, &host);
        if look.has_sent {
            lock(&self.shared.agents).snapshots += 1;
        }
        if let Some(seen) = look.fault {
            incarnation.fault.note(seen);
        }
        if look.ring {
            incarnation.agent_bell.ring();
        }
        let is_fault = incarnation.fault.is_set();
        let gone = connection.has_left() || self.shared.kill.swap(false, Ordering::SeqCst);
        if gone || is_fault || look.bark.is_some() {
            let mut agents = lock(&self.shared.agents);
            agents.lost += 1;
            agents.faults += u64::from(is_fault);
            agents.barks += u64::from(look.bark.is_some());
            let faults = agents.faults;
            drop(agents);
            if is_fault {
                report_fault(self.door.socket(), guest, faults);
            }
            let starved = look.bark.filter(|_| !is_fault);
            self.detach(if is_fault { Revoked::Fault } else { Revoked::TurnedOut }, starved);
        }
    }

    /// Handles the loss of the agent: revokes its window, because of `starved` if the watchdog found one; the host
    /// decides now.
    fn detach(&mut self, why: Revoked, starved: Option<Starved>) {
        let Some(guest) = self.attached.take() else { return };
        match starved {
            Some(starved) => guest.control.turn_out(&guest.port, &starved),
            None => guest.control.revoke(&guest.port, why),
        }
        self.switch_windows(None);
        self.shared.enter_fallback();
    }
}

/// The enclave, as its supervisor sees it.
struct Supervised<'a> {
    shared: &'a Shared,
    incarnation: &'a Incarnation,
}

impl SupervisedHost for Supervised<'_> {
    fn cores(&self) -> Vec<Core> {
        let epoch = self.shared.epoch.load(Ordering::SeqCst);
        let is_agents = self.shared.mode() == Mode::Agent;
        let cores = self.shared.cores.iter();
        let see = |core: &CoreShared| {
            // Epoch before record: a core that switches windows in between is reported as not yet using the new one.
            let is_here = core.epoch.load(Ordering::SeqCst) == epoch;
            Core { record: core.record(), is_here, is_agents }
        };
        cores.map(see).collect()
    }

    fn records(&self) -> impl Iterator<Item = Record> {
        self.shared.table.records()
    }

    fn waits(&self, subject: Subject, sequence: Sequence) -> bool {
        self.shared.table.waits(subject, sequence)
    }

    fn waiting_from(&self, from: u32) -> impl Iterator<Item = (Subject, Sequence)> {
        self.shared.table.waiting_from(from)
    }

    fn take_lost(&self) -> bool {
        self.incarnation.lost.swap(false, Ordering::SeqCst)
    }
}

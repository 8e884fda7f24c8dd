//! The control thread: lets agents attach, watches them, and turns them out.
//!
//! ```text
//!   connect            agent announces itself        hangs up, writes nonsense,
//!  ---------> Candidate --------------------> Attached -------------------------> fallback
//!                 |  never does: dropped         ^  |  makes work wait too long
//!                 |                              |  | another candidate announces itself:
//!                 +------------------------------+--+ it takes over, the old window is revoked
//! ```
//!
//! Each candidate gets a window and doorbells of its own. Whatever an agent does after its window
//! was revoked reaches nobody.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use wave_core::clock::{Clock, Nanos};
use wave_core::control::Revoked;
use wave_core::host::Context;
use wave_core::layout::{Layout, PROTOCOL_VERSION};
use wave_core::link::Doorbell;
use wave_core::message::TxnId;
use wave_core::snapshot::CoreRecord;
use wave_core::watchdog::Watchdog;
use wave_links::socket::Listener;
use wave_links::{EventFd, LinkSpec};

use crate::clock::MonotonicClock;
use crate::door::{Door, Guest, Incarnation, wait_for_any};
use crate::shared::{CoreShared, Shared, lock};
use crate::stats::Mode;

/// Looks at rest after which the watchdog looks less often. A load that merely has gaps must not
/// get there, or an agent that hangs is found too late.
const LOOKS_AT_REST: u32 = 20;
/// Shortest time between two snapshots: an agent that asks without end must not keep this thread
/// from everything else.
const SNAPSHOT_GAP: Nanos = Nanos::from_millis(1);

struct Agent {
    guest: Guest,
    /// How many cores had adopted the window when the last snapshot was taken.
    cores_in_snapshot: Option<usize>,
    wants_snapshot: bool,
    last_snapshot: Nanos,
}

pub(crate) struct Control {
    shared: Arc<Shared>,
    door: Door,
    attached: Option<Agent>,
    watchdog: Watchdog,
    looks_at_rest: u32,
    /// Switches of all cores as of the last look.
    switches_seen: u64,
    /// Every core as of the last look.
    cores_seen: Vec<CoreRecord>,
}

impl Control {
    pub(crate) fn new(
        shared: Arc<Shared>,
        listener: Listener,
        link: LinkSpec,
        layout: Layout,
    ) -> Control {
        let watchdog = Watchdog::new(shared.config.patience);
        let cores_seen = vec![CoreRecord::default(); shared.cores.len()];
        // A core's bell interrupts the thread that runs there, if that wants it.
        let signal = shared.signal;
        let bell = move || EventFd::interrupting(signal);
        Control {
            door: Door::new(shared.name.clone(), listener, link, layout, PROTOCOL_VERSION, bell),
            shared,
            attached: None,
            watchdog,
            looks_at_rest: 0,
            switches_seen: 0,
            cores_seen,
        }
    }

    /// Until the enclave stops.
    pub(crate) fn run(mut self) {
        while !self.shared.stop.load(Ordering::SeqCst) {
            self.wait();
            let now = MonotonicClock.now();
            while let Some(guest) = self.door.answer(now) {
                self.attach(guest);
            }
            self.serve(now);
        }
        if let Some(agent) = self.attached.take() {
            agent.guest.control.revoke(&agent.guest.port, Revoked::Ended);
        }
    }

    /// Until something happens, or the watchdog wants to look. Without an agent there is nothing
    /// to look at.
    fn wait(&mut self) {
        let fds = self.door.fds().chain([self.shared.control_bell.as_fd()]);
        let fds = fds.chain(self.attached.iter().flat_map(|agent| agent.guest.fds()));
        let quarter_ms = (self.shared.config.patience.0 / 4_000_000).clamp(1, 1000) as i32;
        let timeout_ms = match &self.attached {
            Some(agent)
                if agent.wants_snapshot
                    || agent.cores_in_snapshot != Some(self.shared.cores.len()) =>
            {
                1
            }
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
        if let Some(agent) = &self.attached {
            agent.guest.incarnation.control_bell.event_fd().drain();
        }
    }

    /// Counts looks at which no thread was alive and no core had switched since the look before:
    /// nothing can wait then, and nothing is about to, so the watchdog may look less often.
    fn count_rest(&mut self) {
        let counters = self.shared.cores.iter().map(|core| &core.counters.switches);
        let switches = counters.map(|switches| switches.load(Ordering::Relaxed)).sum();
        let nothing_alive = self.shared.free.len() == self.shared.free.capacity();
        let rests = nothing_alive && switches == self.switches_seen;
        self.switches_seen = switches;
        self.looks_at_rest = if rests { self.looks_at_rest.saturating_add(1) } else { 0 };
    }

    /// A new incarnation begins. The workload goes on meanwhile: cores that are idle wait for the
    /// snapshot to reach the agent, running threads notice nothing.
    fn attach(&mut self, guest: Guest) {
        let agent =
            Agent { guest, cores_in_snapshot: None, wants_snapshot: true, last_snapshot: Nanos(0) };
        if let Some(old) = self.attached.take() {
            old.guest.control.revoke(&old.guest.port, Revoked::Replaced);
        }
        lock(&self.shared.agents).attached += 1;
        self.watchdog = Watchdog::new(self.shared.config.patience);
        self.shared.kill.store(false, Ordering::SeqCst);
        self.shared.leave_fallback();
        self.switch_windows(Some(&agent.guest.incarnation));
        self.attached = Some(agent);
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
        let Some(agent) = &mut self.attached else { return };
        let Guest { incarnation, port, control, connection, .. } = &mut agent.guest;
        let requests = control.poll(port);
        let mut faults = requests.fault;
        // Messages that a core sent on its old window after the snapshot's scan reach nobody; so
        // another snapshot follows when more cores have come over.
        let epoch = self.shared.epoch.load(Ordering::SeqCst);
        let here =
            self.shared.cores.iter().filter(|core| core.epoch.load(Ordering::SeqCst) == epoch);
        let here = here.count();
        agent.wants_snapshot |= requests.resync;
        agent.wants_snapshot |= incarnation.lost.swap(false, Ordering::SeqCst);
        agent.wants_snapshot |= agent.cores_in_snapshot != Some(here);
        if agent.wants_snapshot && now.since(agent.last_snapshot) >= SNAPSHOT_GAP {
            let record = |core: &CoreShared| {
                let came_over = core.epoch.load(Ordering::SeqCst) == epoch;
                let record = core.record();
                // Until then the decision that it answered last was another window's.
                let txn = if came_over { record.txn } else { TxnId::new(0) };
                CoreRecord { txn, ..record }
            };
            let cores: Vec<CoreRecord> = self.shared.cores.iter().map(record).collect();
            if control.send_snapshot(port, &cores, self.shared.table.records()) {
                agent.cores_in_snapshot = Some(here);
                agent.wants_snapshot = false;
                agent.last_snapshot = now;
                lock(&self.shared.agents).snapshots += 1;
            }
        }
        let signals = control.take_signals();
        faults |= signals.fault();
        if signals.ring_agent() {
            incarnation.agent_bell.ring();
        }
        faults |= incarnation.fault.load(Ordering::SeqCst);
        let gone = connection.hung_up() || self.shared.kill.swap(false, Ordering::SeqCst);
        // A core that merely asks at each look, because looks and switches come together on a CPU
        // that they share, is not idle.
        let mut idle = false;
        for (core, seen) in self.shared.cores.iter().zip(&mut self.cores_seen) {
            let record = core.record();
            idle |= record.has_idled_since(seen);
            *seen = record;
        }
        let table = &self.shared.table;
        let bark = self.watchdog.look(
            now,
            idle && self.shared.mode() == Mode::Agent,
            |subject, sequence| table.waits(subject, sequence),
            |from| table.waiting_from(from),
        );
        if gone || faults || bark.is_some() {
            let mut agents = lock(&self.shared.agents);
            agents.lost += 1;
            agents.faults += u64::from(faults);
            agents.barks += u64::from(bark.is_some());
            drop(agents);
            self.detach();
        }
    }

    /// The agent is no more: revoke its window, and let the host decide.
    fn detach(&mut self) {
        let Some(agent) = self.attached.take() else { return };
        agent.guest.control.revoke(&agent.guest.port, Revoked::TurnedOut);
        self.switch_windows(None);
        self.shared.enter_fallback();
    }
}

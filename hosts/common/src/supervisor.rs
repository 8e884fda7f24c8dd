//! The supervisor of an agent that schedules threads: decides when the agent gets a snapshot, and whether it is turned out.

use wave_core::clock::Nanos;
use wave_core::control::HostControl;
use wave_core::layout::Config;
use wave_core::link::Port;
use wave_core::message::{Sequence, Subject, TxnId};
use wave_core::snapshot::{CoreRecord, Record};
use wave_core::watchdog::{Starved, Watchdog};

/// Shortest time between two snapshots: an agent that keeps asking must not keep the control thread from all other work.
const SNAPSHOT_GAP: Nanos = Nanos::from_millis(1);

/// A core, as a supervisor sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Core {
    /// The core's state, as snapshots report it.
    pub record: CoreRecord,
    /// The core uses the agent's window. Until then, `record.txn` belongs to an earlier window.
    pub is_here: bool,
    /// The agent decides for this core: the core is present, and the host is not in fallback.
    pub is_agents: bool,
}

/// A host that schedules threads, as its supervisor sees it.
pub trait SupervisedHost {
    /// State of every core, by index.
    fn cores(&self) -> Vec<Core>;

    /// Records of all threads that an agent must know.
    fn records(&self) -> impl Iterator<Item = Record>;

    /// Whether a thread is runnable, and has been since this sequence.
    fn waits(&self, subject: Subject, sequence: Sequence) -> bool;

    /// Runnable threads in the order of ids: from this id on, then from 0.
    fn waiting_from(&self, from: u32) -> impl Iterator<Item = (Subject, Sequence)>;

    /// Whether a message or outcome to the agent was lost since the last call.
    fn take_lost(&self) -> bool;
}

/// Findings of one look at the agent, for the host to act on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Look {
    /// The agent asked for a snapshot.
    pub asked: bool,
    /// Whether a snapshot was sent.
    pub has_sent: bool,
    /// Whether to ring the agent.
    pub ring: bool,
    /// What the agent did wrong, if it violated the protocol.
    pub fault: Option<&'static str>,
    /// The thread that has waited longest beside an idle core, if for longer than the patience.
    pub bark: Option<Starved>,
}

/// Watches one agent after the other.
#[derive(Debug)]
pub struct Supervisor {
    patience: Nanos,
    watchdog: Watchdog,
    cores_seen: Vec<CoreRecord>,
    wants_snapshot: bool,
    /// Number of cores that used the window when the last snapshot was sent.
    cores_in_snapshot: Option<usize>,
    last_snapshot: Option<Nanos>,
}

impl Supervisor {
    /// A supervisor for a host with this configuration.
    pub fn new(config: &Config) -> Supervisor {
        Supervisor {
            patience: config.patience,
            watchdog: Watchdog::new(config.patience),
            cores_seen: vec![CoreRecord::default(); config.cores.into()],
            wants_snapshot: true,
            cores_in_snapshot: None,
            last_snapshot: None,
        }
    }

    /// Starts watching a new agent. It needs a snapshot.
    pub fn begin(&mut self) {
        self.watchdog = Watchdog::new(self.patience);
        self.wants_snapshot = true;
        (self.cores_in_snapshot, self.last_snapshot) = (None, None);
    }

    /// Whether a snapshot is due but could not be sent yet.
    pub fn wants_snapshot(&self) -> bool {
        self.wants_snapshot
    }

    /// Whether some core did not use the window yet when the last snapshot was sent. Another snapshot will follow.
    pub fn awaits_cores(&self) -> bool {
        self.cores_in_snapshot != Some(self.cores_seen.len())
    }

    /// Handles the agent's requests, sends a snapshot if one is due, and checks for faults and starved threads. Call at least
    /// four times per [`Config::patience`].
    pub fn supervise(
        &mut self,
        now: Nanos,
        control: &mut HostControl,
        port: &impl Port,
        host: &impl SupervisedHost,
    ) -> Look {
        let requests = control.poll(port);
        let mut look = Look { asked: requests.resync, ..Look::default() };
        if requests.fault {
            look.fault =
                Some("it made an invalid request, or returned an extent that was not lent");
        }
        // Before the records, because they may miss a later loss: a loss after this point is left to the next snapshot.
        let has_lost = host.take_lost();
        let cores = host.cores();
        // Messages that a core sends through its old window after the snapshot are lost, so another snapshot follows when more
        // cores use the new window.
        let here = cores.iter().filter(|core| core.is_here).count();
        self.wants_snapshot |= requests.resync | has_lost;
        self.wants_snapshot |= self.cores_in_snapshot != Some(here);
        let is_rested = self.last_snapshot.is_none_or(|last| now.since(last) >= SNAPSHOT_GAP);
        if self.wants_snapshot && is_rested {
            let told = |core: &Core| {
                let txn = if core.is_here { core.record.txn } else { TxnId::new(0) };
                CoreRecord { txn, ..core.record }
            };
            let told: Vec<CoreRecord> = cores.iter().map(told).collect();
            if control.send_snapshot(port, &told, host.records()) {
                self.cores_in_snapshot = Some(here);
                self.wants_snapshot = false;
                self.last_snapshot = Some(now);
                look.has_sent = true;
            }
        }
        let signals = control.take_signals();
        if signals.fault() {
            look.fault = look.fault.or(Some(signals.seen()));
        }
        look.ring = signals.ring_agent();
        // Sending takes a while: a core may have found work meanwhile.
        let cores = if look.has_sent { host.cores() } else { cores };
        // A core that asks at every look is not necessarily idle: looks and switches may coincide on a CPU that they share.
        let mut idle = None;
        for (at, (core, seen)) in (0..).zip(cores.iter().zip(&mut self.cores_seen)) {
            let is_idle = core.is_agents && core.record.has_idled_since(seen);
            idle = idle.or(is_idle.then_some(at));
            *seen = core.record;
        }
        look.bark = self.watchdog.check(
            now,
            idle,
            |subject, sequence| host.waits(subject, sequence),
            |from| host.waiting_from(from),
        );
        look
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::sync::Arc;

    use wave_core::layout::{Layout, write_header};
    use wave_core::link::{Home, Side};
    use wave_links::{AnyPort, LinkSpec, Memory};

    use super::*;

    const THREAD: Subject = Subject { id: 3, generation: 1 };
    const WAITS: Sequence = Sequence(7);

    /// A host with two cores and one waiting thread.
    struct Host {
        /// Names of the queries in the order in which they were made.
        asked: RefCell<Vec<&'static str>>,
        here: Cell<usize>,
        is_agents: Cell<bool>,
        lost: Cell<bool>,
    }

    impl SupervisedHost for Host {
        fn cores(&self) -> Vec<Core> {
            self.asked.borrow_mut().push("cores");
            let record = CoreRecord { asks: true, ..CoreRecord::default() };
            let is_agents = self.is_agents.get();
            (0..2).map(|at| Core { record, is_here: at < self.here.get(), is_agents }).collect()
        }

        fn records(&self) -> impl Iterator<Item = Record> {
            std::iter::empty()
        }

        fn waits(&self, subject: Subject, sequence: Sequence) -> bool {
            (subject, sequence) == (THREAD, WAITS)
        }

        fn waiting_from(&self, _: u32) -> impl Iterator<Item = (Subject, Sequence)> {
            [(THREAD, WAITS)].into_iter()
        }

        fn take_lost(&self) -> bool {
            self.asked.borrow_mut().push("lost");
            self.lost.take()
        }
    }

    struct Watched {
        host: Host,
        supervisor: Supervisor,
        control: HostControl,
        port: AnyPort,
    }

    impl Watched {
        fn new() -> Watched {
            let config = Config::coherent(2);
            let layout = Layout::new(config).unwrap();
            let (memory, _) =
                Memory::create("test", layout.nic_lines, layout.host_lines, 0).unwrap();
            let mappings = layout.mappings(Side::Host);
            let port = LinkSpec::Shm.port(&Arc::new(memory), Side::Host, &mappings).unwrap();
            write_header(&layout, port.window(Home::Nic));
            let asked = RefCell::default();
            let host = Host { asked, here: 0.into(), is_agents: true.into(), lost: false.into() };
            let control = HostControl::new(&layout);
            Watched { host, supervisor: Supervisor::new(&layout.config), control, port }
        }

        fn supervise(&mut self, at_us: u64) -> Look {
            let Watched { host, supervisor, control, port } = self;
            supervisor.supervise(Nanos::from_micros(at_us), control, port, host)
        }
    }

    #[test]
    fn snapshot_is_sent_at_start_and_when_cores_switch_windows_and_after_loss() {
        let mut watched = Watched::new();
        assert!(watched.supervise(0).has_sent);
        assert!(!watched.supervise(5_000).has_sent);
        assert!(watched.supervisor.awaits_cores());
        watched.host.here.set(2);
        assert!(watched.supervise(10_000).has_sent);
        assert!(!watched.supervisor.awaits_cores());
        let mut watched = Watched::new();
        assert!(watched.supervise(0).has_sent);
        watched.host.lost.set(true);
        assert!(watched.supervise(10_000).has_sent);
    }

    /// In the other order, an outcome lost between the two steps would leave its core reported in an old state, and the loss
    /// forgotten.
    #[test]
    fn losses_are_read_before_core_states() {
        let mut watched = Watched::new();
        assert!(watched.supervise(0).has_sent);
        assert_eq!(watched.host.asked.borrow()[..2], ["lost", "cores"]);
    }

    #[test]
    fn snapshots_are_at_least_a_millisecond_apart() {
        let mut watched = Watched::new();
        assert!(watched.supervise(0).has_sent);
        watched.host.lost.set(true);
        assert!(!watched.supervise(999).has_sent);
        assert!(watched.supervisor.wants_snapshot());
        assert!(watched.supervise(1_000).has_sent);
    }

    #[test]
    fn agent_that_reads_no_snapshots_gets_at_most_two() {
        let mut watched = Watched::new();
        for at in 0..2 {
            watched.host.lost.set(true);
            assert!(watched.supervise(at * 10_000).has_sent);
        }
        watched.host.lost.set(true);
        assert!(!watched.supervise(30_000).has_sent);
        assert!(watched.supervisor.wants_snapshot(), "the snapshot is sent once there is room");
    }

    #[test]
    fn watchdog_barks_when_a_thread_waits_while_an_agents_core_idles() {
        let patience_us = Config::coherent(2).patience.0 / 1_000;
        let bark = |is_agents: bool| {
            let mut watched = Watched::new();
            watched.host.is_agents.set(is_agents);
            (0..8)
                .map(|quarter| watched.supervise(quarter * patience_us / 4).bark)
                .any(|bark| bark.is_some())
        };
        assert!(bark(true));
        assert!(!bark(false));
    }
}

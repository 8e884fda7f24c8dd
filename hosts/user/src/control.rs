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

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use wave_core::clock::{Clock, Nanos};
use wave_core::control::{AgentState, HostControl};
use wave_core::host::Context;
use wave_core::layout::{Layout, PROTOCOL_VERSION, write_header};
use wave_core::link::{Doorbell, Home, Port, Side};
use wave_core::message::TxnId;
use wave_core::snapshot::CoreRecord;
use wave_core::watchdog::Watchdog;
use wave_links::memory::Memory;
use wave_links::socket::{Connection, Listener, Offer};
use wave_links::{AnyPort, EventFd, LinkSpec, SocketBell};

use crate::clock::MonotonicClock;
use crate::shared::{CoreShared, Incarnation, Shared, lock};
use crate::stats::Mode;

/// Candidates at once; more are refused.
const CANDIDATES_MAX: usize = 4;
/// Looks at rest after which the watchdog looks less often. A load that merely has gaps must not
/// get there, or an agent that hangs is found too late.
const LOOKS_AT_REST: u32 = 20;
/// Shortest time between two snapshots: an agent that asks without end must not keep this thread
/// from everything else.
const SNAPSHOT_GAP: Nanos = Nanos::from_millis(1);
/// How long a candidate may take to announce itself.
const CANDIDATE_PATIENCE: Nanos = Nanos::from_millis(2000);

struct Agent {
    incarnation: Arc<Incarnation>,
    port: AnyPort,
    control: HostControl,
    connection: Connection,
    since: Nanos,
    /// How many cores had adopted the window when the last snapshot was taken.
    cores_in_snapshot: Option<usize>,
    wants_snapshot: bool,
    last_snapshot: Nanos,
}

pub(crate) struct Control {
    shared: Arc<Shared>,
    listener: Listener,
    link: LinkSpec,
    layout: Layout,
    candidates: Vec<Agent>,
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
        Control {
            shared,
            listener,
            link,
            layout,
            candidates: Vec::new(),
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
            self.accept(now);
            self.promote(now);
            self.serve(now);
        }
        if let Some(agent) = self.attached.take() {
            agent.control.revoke(&agent.port);
        }
    }

    /// Until something happens, or the watchdog wants to look. Without an agent there is nothing
    /// to look at.
    fn wait(&mut self) {
        let agents = self.candidates.iter().chain(&self.attached);
        let mut fds =
            vec![poll_in(self.listener.as_fd()), poll_in(self.shared.control_bell.as_fd())];
        for agent in agents {
            fds.push(poll_in(agent.connection.as_fd()));
            fds.push(poll_in(agent.incarnation.control_bell.event_fd().as_fd()));
        }
        let quarter_ms = (self.shared.config.patience.0 / 4_000_000).clamp(1, 1000) as i32;
        let timeout_ms = match &self.attached {
            Some(agent)
                if agent.wants_snapshot
                    || agent.cores_in_snapshot != Some(self.shared.cores.len()) =>
            {
                1
            }
            Some(_) if self.looks_at_rest > LOOKS_AT_REST && self.candidates.is_empty() => {
                10 * quarter_ms
            }
            Some(_) => quarter_ms,
            None if self.candidates.is_empty() => -1,
            None => 100,
        };
        // SAFETY: `fds` is an array of as many valid entries as are said, alive during the call.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout_ms) };
        self.count_rest();
        self.shared.control_bell.drain();
        for agent in self.candidates.iter().chain(&self.attached) {
            agent.incarnation.control_bell.event_fd().drain();
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

    fn accept(&mut self, now: Nanos) {
        // A refused connection has been told why; the next may be a good one.
        for _ in 0..CANDIDATES_MAX {
            let connection = match self.listener.accept() {
                Ok(Some(connection)) => connection,
                Ok(None) => return,
                Err(_) => continue,
            };
            if self.candidates.len() == CANDIDATES_MAX {
                let _ = connection.refuse("too many agents are attaching at once; try again");
                continue;
            }
            match self.offer(&connection) {
                Ok((incarnation, port, control)) => self.candidates.push(Agent {
                    incarnation,
                    port,
                    control,
                    connection,
                    since: now,
                    cores_in_snapshot: None,
                    wants_snapshot: true,
                    last_snapshot: Nanos(0),
                }),
                Err(error) => {
                    let _ = connection.refuse(&format!("the host cannot make a window: {error}"));
                }
            }
        }
    }

    /// Makes a window and hands it over (Wave Table 1, `CREATE_QUEUE`, `ASSOC_QUEUE_WITH`).
    fn offer(
        &self,
        connection: &Connection,
    ) -> Result<(Arc<Incarnation>, AnyPort, HostControl), Box<dyn std::error::Error>> {
        let layout = self.layout.clone();
        let (nic, host) = (layout.nic_lines, layout.host_lines);
        let extra = self.link.extra_lines(nic, host);
        let (memory, memory_fd) = Memory::create(&self.shared.name, nic, host, extra)?;
        let memory = Arc::new(memory);
        // The agent's own bell is the last.
        let [agent_bell, agents_end] = SocketBell::pair()?;
        // A core's interrupts the thread that runs there, if that wants it.
        let (mut bells, mut agents_ends) = (Vec::new(), Vec::new());
        for _ in &self.shared.cores {
            let [waiting, ringing] = EventFd::interrupting(self.shared.signal)?;
            bells.push(waiting);
            agents_ends.push(ringing);
        }
        let control_bell = EventFd::new()?;
        agents_ends.push(control_bell.try_clone()?);
        bells.push(control_bell);
        let port = self.link.port(&memory, Side::Host, &layout.mappings(Side::Host))?;
        write_header(&layout, port.window(Home::Nic));
        let fds = agents_ends.iter().map(AsFd::as_fd).chain([agents_end.as_fd()]);
        let fds: Vec<BorrowedFd<'_>> = fds.collect();
        connection.send_offer(&Offer {
            version: PROTOCOL_VERSION,
            lines: [nic, host, extra],
            memory: memory_fd.as_fd(),
            doorbells: &fds,
            link: &self.link.to_text(),
        })?;
        let bells = bells.into_iter().enumerate();
        let mut bells = bells
            .map(|(vector, bell)| self.link.doorbell(&memory, vector, bell))
            .collect::<Result<Vec<_>, _>>()?;
        let control_bell = bells.pop().ok_or("no doorbells")?;
        let control = HostControl::new(&layout);
        let link = self.link.clone();
        let incarnation = Incarnation {
            layout,
            memory,
            link,
            core_bells: bells,
            control_bell,
            agent_bell,
            lost: AtomicBool::new(false),
            fault: AtomicBool::new(false),
        };
        Ok((Arc::new(incarnation), port, control))
    }

    /// Lets a candidate that has announced itself take over; drops those that never will.
    fn promote(&mut self, now: Nanos) {
        let mut at = 0;
        while at < self.candidates.len() {
            let candidate = &self.candidates[at];
            match candidate.control.agent_state(&candidate.port) {
                AgentState::Ready => {
                    let agent = self.candidates.swap_remove(at);
                    self.attach(agent);
                    continue;
                }
                AgentState::OtherVersion(version) => {
                    let text = format!(
                        "the host speaks protocol version {PROTOCOL_VERSION}, the agent {version}"
                    );
                    let _ = candidate.connection.refuse(&text);
                    self.candidates.swap_remove(at);
                    continue;
                }
                AgentState::Absent => {}
            }
            let late = now.since(candidate.since) > CANDIDATE_PATIENCE;
            if late || candidate.connection.hung_up() {
                self.candidates.swap_remove(at);
                continue;
            }
            at += 1;
        }
    }

    /// A new incarnation begins. The workload goes on meanwhile: cores that are idle wait for the
    /// snapshot to reach the agent, running threads notice nothing.
    fn attach(&mut self, agent: Agent) {
        if let Some(old) = self.attached.take() {
            old.control.revoke(&old.port);
        }
        lock(&self.shared.agents).attached += 1;
        self.watchdog = Watchdog::new(self.shared.config.patience);
        self.shared.kill.store(false, Ordering::SeqCst);
        self.shared.leave_fallback();
        self.switch_windows(Some(&agent.incarnation));
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
        let requests = agent.control.poll(&agent.port);
        let mut faults = requests.fault;
        // Messages that a core sent on its old window after the snapshot's scan reach nobody; so
        // another snapshot follows when more cores have come over.
        let epoch = self.shared.epoch.load(Ordering::SeqCst);
        let here =
            self.shared.cores.iter().filter(|core| core.epoch.load(Ordering::SeqCst) == epoch);
        let here = here.count();
        agent.wants_snapshot |= requests.resync;
        agent.wants_snapshot |= agent.incarnation.lost.swap(false, Ordering::SeqCst);
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
            if agent.control.send_snapshot(&agent.port, &cores, self.shared.table.records()) {
                agent.cores_in_snapshot = Some(here);
                agent.wants_snapshot = false;
                agent.last_snapshot = now;
                lock(&self.shared.agents).snapshots += 1;
            }
        }
        let signals = agent.control.take_signals();
        faults |= signals.fault();
        if signals.ring_agent() {
            agent.incarnation.agent_bell.ring();
        }
        faults |= agent.incarnation.fault.load(Ordering::SeqCst);
        let gone = agent.connection.hung_up() || self.shared.kill.swap(false, Ordering::SeqCst);
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
            |from| table.runnable_from(from),
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
        agent.control.revoke(&agent.port);
        self.switch_windows(None);
        self.shared.enter_fallback();
    }
}

fn poll_in(fd: BorrowedFd<'_>) -> libc::pollfd {
    libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN | libc::POLLRDHUP, revents: 0 }
}

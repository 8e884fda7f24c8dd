//! The control thread: lets agents attach, watches them, turns them out, and rings for both sides where
//! the kernel cannot.
//!
//! The states are those of hosts/user: a candidate has a window and doorbells of its own, and takes
//! over when it has announced itself; whatever an agent does after its window was revoked reaches
//! nobody.

use std::cell::Cell;
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use wave_core::clock::Nanos;
use wave_core::control::{AgentState, HostControl, Revoked};
use wave_core::layout::{Layout, PROTOCOL_VERSION, write_header};
use wave_core::link::{Home, Port, Side};
use wave_core::message::{Sequence, Subject};
use wave_core::snapshot::CoreRecord;
use wave_core::watchdog::Watchdog;
use wave_links::socket::{Connection, Listener, Offer};
use wave_links::{AnyPort, EventFd, LinkSpec, SocketBell};

use super::object::{LoadError, Mechanism};
use super::{Shared, lock};
use crate::device::Nic;
use crate::line::Line;
use crate::window::Window;

/// Candidates at once; more are refused.
const CANDIDATES_MAX: usize = 4;
/// Shortest time between two snapshots.
const SNAPSHOT_GAP: Nanos = Nanos::from_millis(1);
/// How long a candidate may take to announce itself.
const CANDIDATE_PATIENCE: Nanos = Nanos::from_millis(10_000);

/// How often it is looked who waits for long.
const STARVED_LOOK: Nanos = Nanos::from_millis(1_000);
/// A thread that has waited this long for a decision gets one run from the host: after 30 s the kernel would turn
/// the whole scheduler out.
const STARVED: Nanos = Nanos::from_millis(10_000);

struct Agent {
    window: Arc<Window>,
    port: AnyPort,
    control: HostControl,
    line: Line,
    /// A bell per core, then the control context's.
    bells: Vec<EventFd>,
    since: Nanos,
    /// How many cores had come over when the last snapshot was taken.
    cores_in_snapshot: Option<usize>,
    wants_snapshot: bool,
    last_snapshot: Nanos,
}

pub(super) struct Control {
    shared: Arc<Shared>,
    mechanism: Arc<Mechanism>,
    listener: Listener,
    layout: Layout,
    // Agents before the device that they are behind.
    candidates: Vec<Agent>,
    attached: Option<Agent>,
    nic: Option<Nic>,
    watchdog: Watchdog,
    cores_seen: Vec<CoreRecord>,
    /// Threads that wait, and since when.
    waiting: HashMap<(Subject, Sequence), Nanos>,
    waiting_looked: Nanos,
}

impl Control {
    pub(super) fn new(
        shared: Arc<Shared>,
        mechanism: Arc<Mechanism>,
        listener: Listener,
        layout: Layout,
        nic: Option<Nic>,
    ) -> Control {
        let cores = usize::from(layout.config.cores);
        let watchdog = Watchdog::new(layout.config.patience);
        Control {
            shared,
            mechanism,
            listener,
            layout,
            candidates: Vec::new(),
            attached: None,
            nic,
            watchdog,
            cores_seen: vec![CoreRecord::default(); cores],
            waiting: HashMap::new(),
            waiting_looked: Nanos(0),
        }
    }

    /// Until the enclave stops. `seats` are the CPUs outside the enclave, where this thread keeps no
    /// thread of the enclave from running.
    pub(super) fn run(mut self, seats: &[usize]) -> Result<(), LoadError> {
        if !seats.is_empty() {
            // Elsewhere it works as well.
            let _ = super::cpus::pin(seats);
        }
        let rung = Rc::new(Cell::new(false));
        let heard = Rc::clone(&rung);
        let bells = self.mechanism.bells(move |bells| heard.set(heard.get() | bells.agent))?;
        if let Some(nic) = &self.nic {
            nic.greet();
        }
        while !self.shared.stop.load(Ordering::SeqCst) {
            self.wait(bells.epoll_fd());
            let _ = bells.consume();
            if rung.take()
                && let Some(agent) = &self.attached
            {
                agent.line.ring();
            }
            if let Some(nic) = &mut self.nic {
                nic.look();
                nic.control_bell().drain();
            }
            self.kick();
            let now = super::now();
            self.mechanism.beat(now.0);
            self.accept(now);
            self.answer(now);
            self.promote(now)?;
            self.serve(now)?;
            self.help_the_starved(now);
        }
        self.detach(Revoked::Ended)
    }

    /// Until something happens, or the watchdog wants to look.
    fn wait(&self, program: i32) {
        let mut fds = vec![
            poll_in(self.listener.as_fd()),
            poll_in(self.shared.bell.as_fd()),
            libc::pollfd { fd: program, events: libc::POLLIN, revents: 0 },
        ];
        for agent in self.candidates.iter().chain(&self.attached) {
            if let Line::Socket(connection, _) = &agent.line {
                fds.push(poll_in(connection.as_fd()));
                fds.extend(agent.bells.iter().map(|bell| poll_in(bell.as_fd())));
            }
        }
        // The device's are whoever's is attached; a candidate rings for control only.
        if let Some(Agent { line: Line::Device(_), bells, .. }) = &self.attached {
            fds.extend(bells.iter().map(|bell| poll_in(bell.as_fd())));
        }
        if let Some(nic) = &self.nic {
            fds.push(poll_in(nic.control_bell().as_fd()));
        }
        let quarter_ms = (self.layout.config.patience.0 / 4_000_000).clamp(1, 1000) as i32;
        let cores = usize::from(self.layout.config.cores);
        let timeout_ms = match &self.attached {
            _ if self.nic.as_ref().is_some_and(Nic::is_polled) => 0,
            Some(agent) if agent.wants_snapshot || agent.cores_in_snapshot != Some(cores) => 1,
            _ => quarter_ms,
        };
        // SAFETY: `fds` is an array of as many valid entries as are said, alive during the call.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout_ms) };
        self.shared.bell.drain();
    }

    /// Passes on what the agent has rung.
    fn kick(&self) {
        let Some(agent) = &self.attached else { return };
        for (core, bell) in agent.bells.iter().enumerate() {
            if bell.drain() && core < usize::from(self.layout.config.cores) {
                self.mechanism.kick(core as u32);
            }
        }
    }

    fn accept(&mut self, now: Nanos) {
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
            self.mechanism.spare_agent(connection.peer_pid());
            match self.offer(connection, now) {
                Ok(agent) => self.candidates.push(agent),
                Err((connection, error)) => {
                    let _ = connection.refuse(&format!("the host cannot make a window: {error}"));
                }
            }
        }
    }

    /// Makes a window and hands it over (Wave Table 1, `CREATE_QUEUE`, `ASSOC_QUEUE_WITH`).
    fn offer(
        &self,
        connection: Connection,
        now: Nanos,
    ) -> Result<Agent, (Connection, Box<dyn std::error::Error>)> {
        let made = || -> Result<_, Box<dyn std::error::Error>> {
            let window = Window::new(&self.layout)?;
            let [agent_bell, agents_end] = SocketBell::pair()?;
            let bells = (0..self.layout.agent_vector())
                .map(|_| EventFd::new())
                .collect::<Result<Vec<_>, _>>()?;
            let link = LinkSpec::Shm;
            let mappings = self.layout.mappings(Side::Host);
            let port = link.port(&window.memory, Side::Host, &mappings)?;
            write_header(&self.layout, port.window(Home::Nic));
            let fds = bells.iter().map(AsFd::as_fd).chain([agents_end.as_fd()]);
            let fds: Vec<BorrowedFd<'_>> = fds.collect();
            connection.send_offer(&Offer {
                version: PROTOCOL_VERSION,
                lines: [self.layout.nic_lines, self.layout.host_lines, 0],
                memory: window.fd(),
                doorbells: &fds,
                link: &link.to_text(),
            })?;
            Ok((Arc::new(window), port, bells, agent_bell))
        };
        match made() {
            Ok((window, port, bells, agent_bell)) => {
                let line = Line::Socket(connection, agent_bell);
                Ok(self.candidate(window, port, bells, line, now))
            }
            Err(error) => Err((connection, error)),
        }
    }

    fn candidate(
        &self,
        window: Arc<Window>,
        port: AnyPort,
        bells: Vec<EventFd>,
        line: Line,
        now: Nanos,
    ) -> Agent {
        Agent {
            control: HostControl::new(&self.layout),
            window,
            port,
            line,
            bells,
            since: now,
            cores_in_snapshot: None,
            wants_snapshot: true,
            last_snapshot: Nanos(0),
        }
    }

    /// Makes a window for an agent behind the device that asks for one.
    fn answer(&mut self, now: Nanos) {
        let Some(nic) = &mut self.nic else { return };
        let Some((request, number)) = nic.asked() else { return };
        if self.candidates.len() == CANDIDATES_MAX {
            nic.refuse(request, number, "too many agents are attaching at once; try again");
            return;
        }
        let layout = &self.layout;
        let mut made = || -> Result<_, Box<dyn std::error::Error>> {
            let lease = nic.lease(layout, request, number)?;
            let window = Arc::clone(lease.window());
            let port =
                LinkSpec::Shm.port(&window.memory, Side::Host, &layout.mappings(Side::Host))?;
            write_header(layout, port.window(Home::Nic));
            let bells = nic.bells()?;
            nic.offer(layout, &lease);
            Ok((window, port, bells, lease))
        };
        match made() {
            Ok((window, port, bells, lease)) => {
                let agent = self.candidate(window, port, bells, Line::Device(lease), now);
                self.candidates.push(agent);
            }
            Err(error) => {
                nic.refuse(request, number, &format!("the host cannot make a window: {error}"));
            }
        }
    }

    /// Lets a candidate that has announced itself take over; drops those that never will.
    fn promote(&mut self, now: Nanos) -> Result<(), LoadError> {
        let mut at = 0;
        while at < self.candidates.len() {
            let candidate = &self.candidates[at];
            match candidate.control.agent_state(&candidate.port) {
                AgentState::Ready => {
                    let agent = self.candidates.swap_remove(at);
                    self.attach(agent)?;
                    continue;
                }
                AgentState::OtherVersion(version) => {
                    let text = format!(
                        "the host speaks protocol version {PROTOCOL_VERSION}, the agent {version}"
                    );
                    candidate.line.refuse(self.nic.as_mut(), &text);
                    self.candidates.swap_remove(at);
                    continue;
                }
                AgentState::Absent => {}
            }
            let late = now.since(candidate.since) > CANDIDATE_PATIENCE;
            if late || candidate.line.hung_up(self.nic.as_ref()) {
                self.candidates.swap_remove(at);
                continue;
            }
            at += 1;
        }
        Ok(())
    }

    /// A new incarnation begins; the workload goes on meanwhile.
    fn attach(&mut self, agent: Agent) -> Result<(), LoadError> {
        if let Some(old) = self.attached.take() {
            old.control.revoke(&old.port, Revoked::Replaced);
        }
        let mut agents = lock(&self.shared.agents);
        agents.attached += 1;
        agents.pid = agent.line.pid();
        drop(agents);
        self.watchdog = Watchdog::new(self.layout.config.patience);
        self.shared.kill.store(false, Ordering::SeqCst);
        let far = match (&agent.line, &self.nic) {
            (Line::Device(lease), Some(nic)) => nic.far(lease),
            _ => None,
        };
        self.mechanism.switch_windows(Some(&agent.window), far)?;
        self.mechanism.set_agent_decides(true);
        // A core that sleeps comes over, and asks.
        self.mechanism.kick_all();
        self.attached = Some(agent);
        Ok(())
    }

    fn serve(&mut self, now: Nanos) -> Result<(), LoadError> {
        let Some(agent) = &mut self.attached else { return Ok(()) };
        let requests = agent.control.poll(&agent.port);
        let (cores, here) = self.mechanism.cores();
        agent.wants_snapshot |= requests.resync;
        agent.wants_snapshot |= self.mechanism.take_lost();
        agent.wants_snapshot |= agent.cores_in_snapshot != Some(here);
        if agent.wants_snapshot && now.since(agent.last_snapshot) >= SNAPSHOT_GAP {
            let records = self.mechanism.records();
            if agent.control.send_snapshot(&agent.port, &cores, records) {
                agent.cores_in_snapshot = Some(here);
                agent.wants_snapshot = false;
                agent.last_snapshot = now;
                lock(&self.shared.agents).snapshots += 1;
            }
        }
        let signals = agent.control.take_signals();
        if signals.ring_agent() {
            agent.line.ring();
        }
        let faults = requests.fault | signals.fault() | self.mechanism.take_fault();
        // The program has turned it out by itself, because this thread was late.
        let unwatched = !self.mechanism.agent_decides();
        let gone =
            agent.line.hung_up(self.nic.as_ref()) || self.shared.kill.swap(false, Ordering::SeqCst);
        let mut idle = false;
        for (record, seen) in cores.iter().zip(&mut self.cores_seen) {
            idle |= record.has_idled_since(seen);
            *seen = *record;
        }
        let mechanism = &self.mechanism;
        let bark = self.watchdog.look(
            now,
            idle,
            |subject, sequence| mechanism.waits(subject, sequence),
            |from| mechanism.runnable_from(from),
        );
        if gone || faults || unwatched || bark.is_some() {
            let mut agents = lock(&self.shared.agents);
            agents.lost += 1;
            agents.faults += u64::from(faults);
            agents.barks += u64::from(bark.is_some());
            drop(agents);
            self.detach(Revoked::TurnedOut)?;
        }
        Ok(())
    }

    /// A policy may let threads wait for ever behind others that do not stop; the kernel does not.
    fn help_the_starved(&mut self, now: Nanos) {
        if now.since(self.waiting_looked) < STARVED_LOOK {
            return;
        }
        self.waiting_looked = now;
        let before = std::mem::take(&mut self.waiting);
        for (subject, sequence) in self.mechanism.runnable_from(0) {
            let since = *before.get(&(subject, sequence)).unwrap_or(&now);
            if now.since(since) < STARVED {
                self.waiting.insert((subject, sequence), since);
            } else if self.mechanism.take(subject.id) {
                lock(&self.shared.agents).starved += 1;
            }
        }
    }

    /// The agent is no more: revoke its window, and let the host decide.
    fn detach(&mut self, why: Revoked) -> Result<(), LoadError> {
        let Some(agent) = self.attached.take() else { return Ok(()) };
        agent.control.revoke(&agent.port, why);
        self.mechanism.set_agent_decides(false);
        self.mechanism.switch_windows(None, None)?;
        self.mechanism.kick_all();
        Ok(())
    }
}

fn poll_in(fd: BorrowedFd<'_>) -> libc::pollfd {
    libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN | libc::POLLRDHUP, revents: 0 }
}

//! The control thread: lets agents attach, watches them, turns them out, and rings for both sides where
//! the kernel cannot. [`wave_host`] draws the states of an agent.

use std::cell::Cell;
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use wave_core::clock::Nanos;
use wave_core::control::{AgentState, HostControl, Revoked};
use wave_core::layout::Layout;
use wave_core::message::{Sequence, Subject};
use wave_core::snapshot::Record;
use wave_core::watchdog::Starved;
use wave_host::{Candidate, Candidates, Core, Offered, SupervisedHost, Supervisor, offer};
use wave_links::socket::{Connection, Listener};
use wave_links::{AnyPort, EventFd, LinkSpec};

use super::Shared;
use super::object::{LoadError, Mechanism};
use crate::device::{Leased, Nic};
use crate::line::{Line, one_bell};
use crate::lock;
use crate::window::Window;

/// How long a candidate may take to announce itself before it is dropped.
const CANDIDATE_PATIENCE: Nanos = Nanos::from_millis(10_000);

/// Time between two looks for starving threads.
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
}

impl Candidate for Agent {
    type Beside = Option<Nic>;

    fn state(&self) -> AgentState {
        self.control.agent_state(&self.port)
    }

    fn has_gone(&self, nic: &Option<Nic>) -> bool {
        self.line.has_left(nic.as_ref())
    }

    fn turn_away(&self, nic: &mut Option<Nic>, why: Option<&str>) {
        self.line.turn_away(nic.as_mut(), why);
    }
}

pub(super) struct Control {
    shared: Arc<Shared>,
    mechanism: Arc<Mechanism>,
    listener: Listener,
    layout: Layout,
    // Agents are dropped before the device that they are behind.
    candidates: Candidates<Agent>,
    attached: Option<Agent>,
    nic: Option<Nic>,
    supervisor: Supervisor,
    /// Waiting threads, and since when they wait.
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
        let supervisor = Supervisor::new(&layout.config);
        Control {
            shared,
            mechanism,
            listener,
            layout,
            candidates: Candidates::new(CANDIDATE_PATIENCE),
            attached: None,
            nic,
            supervisor,
            waiting: HashMap::new(),
            waiting_looked: Nanos(0),
        }
    }

    /// Runs the control loop until the enclave stops. `seats` are the CPUs outside the enclave, where this thread
    /// keeps no thread of the enclave from running.
    pub(super) fn run(mut self, seats: &[usize]) -> Result<(), LoadError> {
        if !seats.is_empty() {
            // Without pinning, the control thread works as well.
            let _ = wave_process::cpus::pin_thread(0, seats);
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
                nic.poll_rings();
                nic.control_bell().drain();
            }
            self.kick();
            let now = super::now();
            self.mechanism.beat(now.0);
            self.accept(now);
            while let Some(agent) = self.candidates.announced(now, &mut self.nic) {
                self.attach(agent)?;
            }
            self.serve(now)?;
            self.help_the_starved(now);
        }
        self.detach(Revoked::Ended, None)
    }

    /// Waits until something happens or the watchdog is due.
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
        // The device's bells belong to the attached agent; a candidate rings only the control context.
        if let Some(Agent { line: Line::Device(_), bells, .. }) = &self.attached {
            fds.extend(bells.iter().map(|bell| poll_in(bell.as_fd())));
        }
        if let Some(nic) = &self.nic {
            fds.push(poll_in(nic.control_bell().as_fd()));
        }
        let quarter_ms = (self.layout.config.patience.0 / 4_000_000).clamp(1, 1000) as i32;
        let timeout_ms = match &self.attached {
            _ if self.nic.as_ref().is_some_and(Nic::is_polled) => 0,
            Some(_) if self.supervisor.wants_snapshot() || self.supervisor.awaits_cores() => 1,
            _ => quarter_ms,
        };
        // SAFETY: `fds` is an array of `fds.len()` valid entries, alive during the call.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout_ms) };
        self.shared.bell.drain();
    }

    /// Kicks the cores whose doorbells the agent has rung.
    fn kick(&self) {
        // A candidate's rings mean nothing yet, and would end every wait. A device's bells belong to the attached agent.
        for candidate in self.candidates.iter().filter(|it| matches!(it.line, Line::Socket(..))) {
            for bell in &candidate.bells {
                bell.drain();
            }
        }
        let Some(agent) = &self.attached else { return };
        for (core, bell) in agent.bells.iter().enumerate() {
            if bell.drain() && core < usize::from(self.layout.config.cores) {
                self.mechanism.kick(core as u32);
            }
        }
    }

    /// Accepts agents that have connected, or that ask through the device.
    fn accept(&mut self, now: Nanos) {
        let Control { mechanism, listener, layout, candidates, nic, .. } = self;
        let make = |connection: &Connection| -> Result<_, Box<dyn std::error::Error>> {
            mechanism.spare_agent(connection.peer_pid());
            let window = Window::new(layout)?;
            let at = (&window.memory, window.fd());
            let offered = offer(connection, layout, &LinkSpec::Shm, at, one_bell)?;
            Ok((Arc::new(window), offered))
        };
        let join = |connection, (window, Offered { port, bells, agent_bell })| {
            let line = Line::Socket(connection, agent_bell);
            Agent { control: HostControl::new(layout), window, port, line, bells }
        };
        candidates.accept(listener, now, make, join);
        let asked = nic.as_mut().and_then(|nic| nic.answer(layout, candidates.check_room()));
        if let Some(Leased { port, bells, lease }) = asked {
            let (control, window) = (HostControl::new(layout), Arc::clone(lease.window()));
            let line = Line::Device(lease);
            candidates.push(Agent { control, window, port, line, bells }, now);
        }
    }

    /// Begins a new incarnation, while the workload keeps running.
    fn attach(&mut self, agent: Agent) -> Result<(), LoadError> {
        if let Some(old) = self.attached.take() {
            old.control.revoke(&old.port, Revoked::Replaced);
        }
        lock(&self.shared.agents).pid = agent.line.pid();
        self.supervisor.begin();
        self.shared.kill.store(false, Ordering::SeqCst);
        let far = match (&agent.line, &self.nic) {
            (Line::Device(lease), Some(nic)) => nic.far(lease),
            _ => None,
        };
        self.mechanism.switch_windows(Some(&agent.window), far)?;
        self.mechanism.set_agent_decides(true);
        // Counted last: whoever sees the count may rely on the agent having begun to decide.
        lock(&self.shared.agents).attached += 1;
        // Sleeping cores then switch to the new window, and ask.
        self.mechanism.kick_all();
        self.attached = Some(agent);
        Ok(())
    }

    fn serve(&mut self, now: Nanos) -> Result<(), LoadError> {
        let Some(agent) = &mut self.attached else { return Ok(()) };
        let look =
            self.supervisor.supervise(now, &mut agent.control, &agent.port, &*self.mechanism);
        if look.has_sent {
            lock(&self.shared.agents).snapshots += 1;
        }
        if look.ring {
            agent.line.ring();
        }
        let faults = look.fault.is_some() | self.mechanism.take_fault();
        // The BPF program has turned the agent out, because this thread was late.
        let unwatched = !self.mechanism.agent_decides();
        let gone = agent.line.has_left(self.nic.as_ref())
            || self.shared.kill.swap(false, Ordering::SeqCst);
        if gone || faults || unwatched || look.bark.is_some() {
            let mut agents = lock(&self.shared.agents);
            agents.lost += 1;
            agents.faults += u64::from(faults);
            agents.barks += u64::from(look.bark.is_some());
            drop(agents);
            let starved = look.bark.filter(|_| !faults);
            self.detach(if faults { Revoked::Fault } else { Revoked::TurnedOut }, starved)?;
        }
        Ok(())
    }

    /// Gives starving threads a run. A policy may let threads wait forever behind endless ones; the kernel does not.
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

    /// Handles the loss of the agent: revokes its window, because of `starved` if the watchdog found one; the host
    /// decides now.
    fn detach(&mut self, why: Revoked, starved: Option<Starved>) -> Result<(), LoadError> {
        let Some(agent) = self.attached.take() else { return Ok(()) };
        match starved {
            Some(starved) => agent.control.turn_out(&agent.port, &starved),
            None => agent.control.revoke(&agent.port, why),
        }
        self.mechanism.set_agent_decides(false);
        self.mechanism.switch_windows(None, None)?;
        self.mechanism.kick_all();
        Ok(())
    }
}

impl SupervisedHost for Mechanism {
    fn cores(&self) -> Vec<Core> {
        self.supervised_cores()
    }

    fn records(&self) -> impl Iterator<Item = Record> {
        self.records()
    }

    fn waits(&self, subject: Subject, sequence: Sequence) -> bool {
        self.waits(subject, sequence)
    }

    fn waiting_from(&self, from: u32) -> impl Iterator<Item = (Subject, Sequence)> {
        self.runnable_from(from)
    }

    fn take_lost(&self) -> bool {
        self.take_lost()
    }
}

fn poll_in(fd: BorrowedFd<'_>) -> libc::pollfd {
    libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN | libc::POLLRDHUP, revents: 0 }
}

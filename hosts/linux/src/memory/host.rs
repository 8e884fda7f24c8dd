//! The thread of an enclave: surveys what is mapped, lets agents attach, and serves the one that decides.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use wave_core::clock::Nanos;
use wave_core::control::{AgentState, Revoked};
use wave_core::layout::{Layout, PROTOCOL_VERSION, write_header};
use wave_core::link::{Home, Port, Side};
use wave_links::memory::Memory;
use wave_links::socket::{Connection, Listener, Offer};
use wave_links::{AnyPort, EventFd, LinkSpec, SocketBell};
use wave_memory::serve::{Fault, Server, State, Step};

use super::Group;
use super::enclave::{Options, Shared, lock};
use super::kernel::Kernel;
use crate::device::Nic;
use crate::line::Line;

/// Candidates at once; more are refused.
const CANDIDATES_MAX: usize = 4;
/// How long a candidate may take to announce itself.
const CANDIDATE_PATIENCE: Nanos = Nanos::from_millis(10_000);
/// Steps between two looks at who wants to attach.
const STEPS_PER_LOOK: usize = 64;
/// How often the figures are read.
const FIGURES: Nanos = Nanos::from_millis(500);
/// How often it is looked what is mapped.
const SURVEY: Nanos = Nanos::from_millis(1_000);
/// How long memory stays left out whose bits could not be cleared.
const PARDON: Nanos = Nanos::from_millis(600_000);
/// A survey may take this share of a core at most.
const SURVEY_SHARE: u64 = 200;

struct Agent {
    port: AnyPort,
    server: Server,
    line: Line,
    /// The core's, then the control context's.
    bells: Vec<EventFd>,
    since: Nanos,
}

pub(super) struct Host {
    shared: Arc<Shared>,
    listener: Listener,
    link: LinkSpec,
    groups: Vec<Group>,
    layout: Layout,
    state: State,
    kernel: Kernel,
    // Agents before the device that they are behind.
    candidates: Vec<Agent>,
    attached: Option<Agent>,
    nic: Option<Nic>,
    run: u32,
    figures_at: Nanos,
    survey_at: Nanos,
    survey_ns: u64,
    pardon_at: Nanos,
}

impl Host {
    pub(super) fn new(
        shared: Arc<Shared>,
        options: Options,
        listener: Listener,
        nic: Option<Nic>,
        layout: Layout,
        state: State,
        kernel: Kernel,
    ) -> Host {
        let now = super::now();
        Host {
            shared,
            listener,
            link: options.link,
            groups: options.groups,
            layout,
            state,
            kernel,
            candidates: Vec::new(),
            attached: None,
            nic,
            run: 0,
            figures_at: now,
            survey_at: now,
            survey_ns: 0,
            pardon_at: now + PARDON,
        }
    }

    pub(super) fn run(mut self) {
        // Advice holds the program's mappings: a thread that waits for a CPU meanwhile keeps the program waiting.
        // SAFETY: takes numbers and touches no memory; 0 is the calling thread. Without the right it stays as it is.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -10) };
        if let Some(nic) = &self.nic {
            nic.greet();
        }
        while !self.shared.stop.load(Ordering::SeqCst) {
            let now = super::now();
            if let Some(nic) = &mut self.nic {
                nic.look();
            }
            self.accept(now);
            self.answer(now);
            self.promote(now);
            let busy = self.serve();
            let now = super::now();
            if now >= self.survey_at {
                self.survey(now);
            }
            if now >= self.figures_at {
                self.look_at_figures(now);
            }
            if !busy {
                self.wait();
            }
        }
        if let Some(agent) = self.attached.take() {
            agent.server.control().revoke(&agent.port, Revoked::Ended);
        }
    }

    /// Until something happens, or something is due.
    fn wait(&self) {
        let mut fds = vec![poll_in(self.listener.as_fd()), poll_in(self.shared.bell.as_fd())];
        for agent in self.candidates.iter().chain(&self.attached) {
            if let Line::Socket(connection, _) = &agent.line {
                fds.push(poll_in(connection.as_fd()));
            }
            fds.extend(agent.bells.iter().map(|bell| poll_in(bell.as_fd())));
        }
        if let Some(nic) = &self.nic {
            fds.push(poll_in(nic.control_bell().as_fd()));
        }
        let due = self.figures_at.min(self.survey_at).since(super::now());
        let timeout_ms = match &self.nic {
            Some(nic) if nic.is_polled() => 1,
            _ => (due.0 / 1_000_000 + 1) as i32,
        };
        // SAFETY: `fds` is an array of as many valid entries as are said, alive during the call.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout_ms) };
        self.shared.bell.drain();
        if let Some(nic) = &self.nic {
            nic.control_bell().drain();
        }
        for agent in self.candidates.iter().chain(&self.attached) {
            for bell in &agent.bells {
                bell.drain();
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
            match self.offer(&connection) {
                Ok((port, bell, bells)) => {
                    let server = Server::new(&self.layout, self.run, now);
                    let line = Line::Socket(connection, bell);
                    self.candidates.push(Agent { port, server, line, bells, since: now });
                }
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
    ) -> Result<(AnyPort, SocketBell, Vec<EventFd>), Box<dyn std::error::Error>> {
        let layout = &self.layout;
        let (nic, host) = (layout.nic_lines, layout.host_lines);
        let extra = self.link.extra_lines(nic, host);
        let (memory, memory_fd) = Memory::create("wave-memory", nic, host, extra)?;
        let memory = Arc::new(memory);
        let [agent_bell, agents_end] = SocketBell::pair()?;
        let bells = vec![EventFd::new()?, EventFd::new()?];
        let port = self.link.port(&memory, Side::Host, &layout.mappings(Side::Host))?;
        write_header(layout, port.window(Home::Nic));
        let fds = [bells[0].as_fd(), bells[1].as_fd(), agents_end.as_fd()];
        connection.send_offer(&Offer {
            version: PROTOCOL_VERSION,
            lines: [nic, host, extra],
            memory: memory_fd.as_fd(),
            doorbells: &fds,
            link: &self.link.to_text(),
        })?;
        Ok((port, agent_bell, bells))
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
            let memory = &lease.window().memory;
            let port = LinkSpec::Shm.port(memory, Side::Host, &layout.mappings(Side::Host))?;
            write_header(layout, port.window(Home::Nic));
            let bells = nic.bells()?;
            nic.offer(layout, &lease);
            Ok((port, bells, Line::Device(lease)))
        };
        match made() {
            Ok((port, bells, line)) => {
                let server = Server::new(layout, self.run, now);
                self.candidates.push(Agent { port, server, line, bells, since: now });
            }
            Err(error) => {
                nic.refuse(request, number, &format!("the host cannot make a window: {error}"));
            }
        }
    }

    /// Lets a candidate that has announced itself take over; drops those that never will.
    fn promote(&mut self, now: Nanos) {
        let mut at = 0;
        while at < self.candidates.len() {
            let candidate = &self.candidates[at];
            match candidate.server.control().agent_state(&candidate.port) {
                AgentState::Ready => {
                    let agent = self.candidates.swap_remove(at);
                    self.attach(agent, now);
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
    }

    /// A new incarnation begins. Pages stay where they are.
    fn attach(&mut self, mut agent: Agent, now: Nanos) {
        self.detach(Revoked::Replaced);
        agent.server = Server::new(&self.layout, self.run, now);
        let mut stats = lock(&self.shared.stats);
        stats.agents += 1;
        stats.agent_pid = agent.line.pid();
        stats.agent_decides = true;
        drop(stats);
        self.attached = Some(agent);
    }

    fn detach(&mut self, why: Revoked) {
        let Some(agent) = self.attached.take() else { return };
        self.run = agent.server.record().run;
        agent.server.control().revoke(&agent.port, why);
        lock(&self.shared.stats).agent_decides = false;
    }

    /// Returns whether there is more to do at once.
    fn serve(&mut self) -> bool {
        let Some(agent) = &mut self.attached else { return false };
        let mut busy = true;
        for _ in 0..STEPS_PER_LOOK {
            let step = agent.server.step(&agent.port, &mut self.state, &mut self.kernel);
            if agent.server.take_ring() {
                agent.line.ring();
            }
            match step {
                Ok(Step::Progress) => {}
                Ok(Step::Idle) => {
                    busy = false;
                    break;
                }
                Err(fault) => {
                    let mut stats = lock(&self.shared.stats);
                    stats.lost_agents += 1;
                    stats.faults += u64::from(fault == Fault::Nonsense);
                    stats.late += u64::from(fault == Fault::Late);
                    drop(stats);
                    self.detach(Revoked::TurnedOut);
                    return true;
                }
            }
        }
        if agent.line.hung_up(self.nic.as_ref()) {
            lock(&self.shared.stats).lost_agents += 1;
            self.detach(Revoked::TurnedOut);
        }
        busy
    }

    fn survey(&mut self, now: Nanos) {
        if now >= self.pardon_at {
            self.pardon_at = now + PARDON;
            self.state.table.pardon();
        }
        // A group whose last process has ended just has none.
        let _ = self.kernel.survey(&self.groups, &mut self.state.table);
        let took = super::now().since(now).0;
        self.survey_ns += took;
        self.survey_at = now + SURVEY.max(Nanos(took * SURVEY_SHARE));
    }

    pub(super) fn look_at_figures(&mut self, now: Nanos) {
        self.figures_at = now + FIGURES;
        let figures = self.kernel.look(&self.groups, &mut self.state.guard);
        let held = self.state.guard.held(now);
        let refaults_per_minute = self.state.guard.refaults(now);
        let mut intervals_ms: Vec<(u32, u64)> = Vec::new();
        let mut batches = 0;
        self.state.table.intervals(|interval_us| {
            batches += 1;
            // By powers of two: intervals of one period differ a little.
            let ms = interval_us / 1_000;
            let class = if ms == 0 { 0 } else { (ms + ms / 2).next_power_of_two() / 2 };
            match intervals_ms.binary_search_by_key(&class, |(class, _)| *class) {
                Ok(at) => intervals_ms[at].1 += 1,
                Err(at) => intervals_ms.insert(at, (class, 1)),
            }
        });
        let mut stats = lock(&self.shared.stats);
        stats.totals = self.state.totals;
        if let Some(agent) = &self.attached {
            stats.outcomes = agent.server.counts().iter().collect();
        }
        stats.programs = self.kernel.programs();
        stats.resident_bytes = figures.resident_bytes;
        stats.swapped_bytes = figures.swapped_bytes;
        stats.zram_bytes = figures.zram_bytes;
        stats.zram_held_bytes = figures.zram_held_bytes;
        stats.swap_bytes = figures.swap_bytes;
        stats.swap_free_bytes = figures.swap_free_bytes;
        stats.swap_full = self.kernel.is_swap_full();
        (stats.held, stats.refaults_per_minute) = (held, refaults_per_minute);
        (stats.intervals_ms, stats.batches) = (intervals_ms, batches);
        stats.left_out = self.state.table.left_out();
        (stats.cpu, stats.survey) = (thread_cpu(), Duration::from_nanos(self.survey_ns));
    }
}

/// What the calling thread has spent.
fn thread_cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writes for the duration of the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn poll_in(fd: BorrowedFd<'_>) -> libc::pollfd {
    libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN | libc::POLLRDHUP, revents: 0 }
}

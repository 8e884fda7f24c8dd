//! The thread of an enclave: surveys mappings, lets agents attach, and serves the one that decides.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use wave_core::clock::Nanos;
use wave_core::control::{AgentState, Revoked};
use wave_core::layout::Layout;
use wave_core::outcome::Counts;
use wave_host::{Candidate, Candidates, OfferError, Offered, create_window, offer};
use wave_links::socket::{Connection, Listener};
use wave_links::{AnyPort, EventFd, LinkSpec};
use wave_memory::serve::{Fault, Server, State, Step};

use super::Group;
use super::enclave::{Options, Shared};
use super::kernel::Kernel;
use crate::device::{Leased, Nic};
use crate::line::{Line, one_bell};
use crate::lock;

/// How long a candidate may take to announce itself.
const CANDIDATE_PATIENCE: Nanos = Nanos::from_millis(10_000);
/// Steps between two looks for agents that want to attach.
const STEPS_PER_LOOK: usize = 64;
/// How often the figures are read.
const FIGURES: Nanos = Nanos::from_millis(500);
/// How often mappings are surveyed.
const SURVEY: Nanos = Nanos::from_millis(1_000);
/// Time for which memory is left out after its access bits could not be cleared: at first, and at most if that happens
/// repeatedly. The other process of a fork may end soon, or never.
const PARDON_LEAST: Nanos = Nanos::from_millis(10_000);
const PARDON_MOST: Nanos = Nanos::from_millis(600_000);
/// Most of a core that surveys may take: one part in this many.
const SURVEY_SHARE: u64 = 200;

struct Agent {
    port: AnyPort,
    server: Server,
    line: Line,
    /// The core's bell, then the control context's.
    bells: Vec<EventFd>,
}

impl Candidate for Agent {
    type Beside = Option<Nic>;

    fn state(&self) -> AgentState {
        self.server.control().agent_state(&self.port)
    }

    fn has_gone(&self, nic: &Option<Nic>) -> bool {
        self.line.has_left(nic.as_ref())
    }

    fn turn_away(&self, nic: &mut Option<Nic>, why: Option<&str>) {
        self.line.turn_away(nic.as_mut(), why);
    }
}

pub(super) struct Host {
    shared: Arc<Shared>,
    listener: Listener,
    link: LinkSpec,
    groups: Vec<Group>,
    layout: Layout,
    state: State,
    kernel: Kernel,
    // Agents are dropped before the device that they are behind.
    candidates: Candidates<Agent>,
    attached: Option<Agent>,
    nic: Option<Nic>,
    run: u32,
    /// Outcomes of earlier agents.
    counts: Counts,
    figures_at: Nanos,
    survey_at: Nanos,
    survey_ns: u64,
    pardon_at: Nanos,
    pardon_after: Nanos,
    /// Number of batches that had been left out when the last pardon was given.
    unclearable: u64,
    pardon_incompressible_at: Nanos,
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
            candidates: Candidates::new(CANDIDATE_PATIENCE),
            attached: None,
            nic,
            run: 0,
            counts: Counts::default(),
            figures_at: now,
            survey_at: now,
            survey_ns: 0,
            pardon_at: now + PARDON_LEAST,
            pardon_after: PARDON_LEAST,
            unclearable: 0,
            pardon_incompressible_at: now + PARDON_MOST,
        }
    }

    pub(super) fn run(mut self) {
        // Advice locks the program's mappings: if this thread waits for a CPU meanwhile, the program waits too.
        // SAFETY: takes numbers and touches no memory; 0 is the calling thread. Without the right the priority stays as it is.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -10) };
        if let Some(nic) = &self.nic {
            nic.greet();
        }
        while !self.shared.stop.load(Ordering::SeqCst) {
            let now = super::now();
            if let Some(nic) = &mut self.nic {
                nic.poll_rings();
            }
            self.accept(now);
            while let Some(agent) = self.candidates.announced(now, &mut self.nic) {
                self.attach(agent, now);
            }
            let busy = self.serve();
            let now = super::now();
            if now >= self.survey_at {
                self.survey(now);
            }
            if now >= self.figures_at {
                self.read_figures(now);
            }
            if self.kernel.written_at().is_some_and(|due| now >= due) {
                self.kernel.free_written(&mut self.state.table);
            }
            if !busy {
                self.wait();
            }
        }
        // Programs that have ended since the last look are counted up to their end.
        let _ = self.kernel.survey(&self.groups, &mut self.state.table);
        self.read_figures(super::now());
        if let Some(agent) = self.attached.take() {
            agent.server.control().revoke(&agent.port, Revoked::Ended);
        }
    }

    /// Waits until something happens or is due.
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
        let due = self.figures_at.min(self.survey_at);
        let due = self.kernel.written_at().map_or(due, |written| written.min(due));
        let due = due.since(super::now());
        let timeout_ms = match &self.nic {
            Some(nic) if nic.is_polled() => 1,
            _ => (due.0 / 1_000_000 + 1) as i32,
        };
        // SAFETY: `fds` is an array of `fds.len()` valid entries, alive during the call.
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

    /// Accepts agents that have connected, or that ask through the device.
    fn accept(&mut self, now: Nanos) {
        let Host { listener, link, layout, candidates, nic, run, .. } = self;
        let make = |connection: &Connection| -> Result<Offered, OfferError> {
            let (memory, fd) = create_window("wave-memory", layout, link)?;
            offer(connection, layout, link, (&memory, fd.as_fd()), one_bell)
        };
        let server = || Server::new(layout, *run, now);
        let join = |connection, Offered { port, bells, agent_bell }| Agent {
            port,
            server: server(),
            line: Line::Socket(connection, agent_bell),
            bells,
        };
        candidates.accept(listener, now, make, join);
        let asked = nic.as_mut().and_then(|nic| nic.answer(layout, candidates.check_room()));
        if let Some(Leased { port, bells, lease }) = asked {
            let line = Line::Device(lease);
            candidates.push(Agent { port, server: server(), line, bells }, now);
        }
    }

    /// Starts a new incarnation. Pages stay where they are.
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
        self.counts.merge(agent.server.counts());
        agent.server.control().revoke(&agent.port, why);
        lock(&self.shared.stats).agent_decides = false;
    }

    /// Serves the attached agent. Returns whether there is more to do at once.
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
                    self.detach(match fault {
                        Fault::Nonsense => Revoked::Fault,
                        Fault::Late => Revoked::TurnedOut,
                    });
                    return true;
                }
            }
        }
        if agent.line.has_left(self.nic.as_ref()) {
            lock(&self.shared.stats).lost_agents += 1;
            self.detach(Revoked::TurnedOut);
        }
        busy
    }

    fn survey(&mut self, now: Nanos) {
        if now >= self.pardon_at {
            let unclearable = self.state.totals.unclearable;
            self.pardon_after = match unclearable == self.unclearable {
                true => PARDON_LEAST,
                false => PARDON_MOST.min(Nanos(self.pardon_after.0 * 2)),
            };
            (self.unclearable, self.pardon_at) = (unclearable, now + self.pardon_after);
            self.state.table.pardon_unclearable();
        }
        if now >= self.pardon_incompressible_at {
            self.pardon_incompressible_at = now + PARDON_MOST;
            self.state.table.pardon_incompressible();
        }
        // A control group without processes has no memory to manage.
        let before = super::thread_cpu();
        let _ = self.kernel.survey(&self.groups, &mut self.state.table);
        let took = super::thread_cpu().saturating_sub(before).as_nanos() as u64;
        self.survey_ns += took;
        self.survey_at = now + SURVEY.max(Nanos(took * SURVEY_SHARE));
    }

    pub(super) fn read_figures(&mut self, now: Nanos) {
        self.figures_at = now + FIGURES;
        if !self.state.dry_run {
            self.kernel.measure();
        }
        let refaults = self.state.totals.refaults;
        let figures = self.kernel.read_figures(&self.groups, &mut self.state.guard, refaults);
        let held = self.state.guard.held(now);
        let refaults_per_minute = self.state.guard.refaults(now);
        let slowdown = self.state.guard.slowdown(now);
        let account = self.state.table.account();
        let intervals_ms = self.state.table.intervals_ms();
        let batches = intervals_ms.iter().map(|(_, count)| count).sum();
        let mut counts = self.counts.clone();
        if let Some(agent) = &self.attached {
            counts.merge(agent.server.counts());
        }
        let mut stats = lock(&self.shared.stats);
        stats.totals = self.state.totals;
        stats.outcomes = counts.iter().collect();
        stats.programs = self.kernel.programs();
        stats.resident_bytes = figures.resident_bytes;
        stats.swapped_bytes = figures.swapped_bytes;
        stats.cached_bytes = figures.cached_bytes;
        stats.major_faults = figures.major_faults;
        (stats.slowdown, stats.refault) =
            (slowdown, figures.refault.map(|time| Duration::from_nanos(time.0)));
        stats.account = account;
        stats.swap_bytes = self.kernel.swap().total_bytes;
        stats.swap_free_bytes = self.kernel.swap().free_bytes;
        stats.swap_full = self.kernel.is_swap_full();
        (stats.held, stats.refaults_per_minute) = (held, refaults_per_minute);
        (stats.intervals_ms, stats.batches) = (intervals_ms, batches);
        stats.left_out = self.state.table.left_out();
        (stats.cpu, stats.survey) = (super::thread_cpu(), Duration::from_nanos(self.survey_ns));
    }
}

fn poll_in(fd: BorrowedFd<'_>) -> libc::pollfd {
    libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN | libc::POLLRDHUP, revents: 0 }
}

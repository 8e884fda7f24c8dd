//! Where agents come in: each that connects gets a window and doorbells of its own, and takes over when it announces itself.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use wave_core::clock::Nanos;
use wave_core::control::{AgentState, HostControl};
use wave_core::layout::{Layout, PROTOCOL_VERSION, write_header};
use wave_core::link::{Home, Port, Side};
use wave_links::memory::Memory;
use wave_links::socket::{Connection, Listener, Offer};
use wave_links::{AnyBell, AnyPort, EventFd, LinkSpec, SocketBell};

/// Candidates at once; more are refused.
const CANDIDATES_MAX: usize = 4;
/// How long a candidate may take to announce itself.
const CANDIDATE_PATIENCE: Nanos = Nanos::from_millis(2000);

/// One life of an agent, as the host sees it: a window of its own, and doorbells of its own, so that nothing an earlier agent
/// still holds reaches anybody.
#[derive(Debug)]
pub(crate) struct Incarnation {
    pub(crate) layout: Layout,
    memory: Arc<Memory>,
    link: LinkSpec,
    /// A bell per core.
    pub(crate) core_bells: Vec<AnyBell>,
    pub(crate) control_bell: AnyBell,
    pub(crate) agent_bell: SocketBell,
    /// Something went missing on the way to this agent.
    pub(crate) lost: AtomicBool,
    /// This agent wrote nonsense.
    pub(crate) fault: AtomicBool,
}

impl Incarnation {
    /// A port for one more context of the host.
    pub(crate) fn port(&self) -> AnyPort {
        self.link
            .port(&self.memory, Side::Host, &self.layout.mappings(Side::Host))
            .expect("the control thread made one over the same memory")
    }
}

/// An agent that has connected.
pub(crate) struct Guest {
    pub(crate) incarnation: Arc<Incarnation>,
    pub(crate) port: AnyPort,
    pub(crate) control: HostControl,
    pub(crate) connection: Connection,
    since: Nanos,
}

impl Guest {
    /// What wakes a control thread on its behalf.
    pub(crate) fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.connection.as_fd(), self.incarnation.control_bell.event_fd().as_fd()]
    }
}

/// Waits until there is something to read on one of these, or for so many milliseconds; for ever if that is negative.
pub(crate) fn wait_for_any<'a>(fds: impl Iterator<Item = BorrowedFd<'a>>, timeout_ms: i32) {
    let events = libc::POLLIN | libc::POLLRDHUP;
    let entry = |fd: BorrowedFd<'_>| libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
    let mut fds: Vec<_> = fds.map(entry).collect();
    // SAFETY: `fds` is an array of as many valid entries as are said, alive during the call.
    unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout_ms) };
}

/// Waits for agents.
pub(crate) struct Door {
    name: String,
    listener: Listener,
    link: LinkSpec,
    layout: Layout,
    /// Of its offers: what kind of window they are of.
    version: u32,
    /// Makes the two ends of a core's bell.
    bell: Box<dyn Fn() -> std::io::Result<[EventFd; 2]> + Send>,
    candidates: Vec<Guest>,
}

impl Door {
    /// A door in front of windows of this layout.
    pub(crate) fn new(
        name: String,
        listener: Listener,
        link: LinkSpec,
        layout: Layout,
        version: u32,
        bell: impl Fn() -> std::io::Result<[EventFd; 2]> + Send + 'static,
    ) -> Door {
        Door { name, listener, link, layout, version, bell: Box::new(bell), candidates: Vec::new() }
    }

    /// Whether nobody has connected without announcing itself yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.candidates.is_empty()
    }

    /// What wakes a control thread on behalf of the door.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [self.listener.as_fd()].into_iter().chain(self.candidates.iter().flat_map(Guest::fds))
    }

    /// Forgets rings of those who wait.
    pub(crate) fn drain(&self) {
        for guest in &self.candidates {
            guest.incarnation.control_bell.event_fd().drain();
        }
    }

    /// Lets those in who have connected. Returns an agent that has announced itself; ask again until there is none.
    pub(crate) fn answer(&mut self, now: Nanos) -> Option<Guest> {
        self.accept(now);
        self.promote(now)
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
                Ok((incarnation, port, control)) => {
                    let incarnation = Arc::new(incarnation);
                    let guest = Guest { incarnation, port, control, connection, since: now };
                    self.candidates.push(guest);
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
    ) -> Result<(Incarnation, AnyPort, HostControl), Box<dyn std::error::Error>> {
        let layout = self.layout.clone();
        let (nic, host) = (layout.nic_lines, layout.host_lines);
        let extra = self.link.extra_lines(nic, host);
        let (memory, memory_fd) = Memory::create(&self.name, nic, host, extra)?;
        let memory = Arc::new(memory);
        // The agent's own bell is the last.
        let [agent_bell, agents_end] = SocketBell::pair()?;
        let (mut bells, mut agents_ends) = (Vec::new(), Vec::new());
        for _ in 0..layout.config.cores {
            let [waiting, ringing] = (self.bell)()?;
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
            version: self.version,
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
        let incarnation = Incarnation {
            layout,
            memory,
            link: self.link.clone(),
            core_bells: bells,
            control_bell,
            agent_bell,
            lost: AtomicBool::new(false),
            fault: AtomicBool::new(false),
        };
        Ok((incarnation, port, control))
    }

    /// The next candidate that has announced itself. Drops those that never will.
    fn promote(&mut self, now: Nanos) -> Option<Guest> {
        let mut at = 0;
        while at < self.candidates.len() {
            let candidate = &self.candidates[at];
            match candidate.control.agent_state(&candidate.port) {
                AgentState::Ready => return Some(self.candidates.swap_remove(at)),
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
        None
    }
}

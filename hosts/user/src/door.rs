//! The door: each agent that connects gets a window and doorbells of its own, and takes over when it announces itself.

use std::fmt::Display;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use wave_core::clock::Nanos;
use wave_core::control::{AgentState, HostControl};
use wave_core::layout::Layout;
use wave_core::link::Side;
use wave_host::{Candidate, Candidates, OfferError, Offered, create_window, offer};
use wave_links::memory::Memory;
use wave_links::socket::{Connection, Listener};
use wave_links::{AnyBell, AnyPort, EventFd, LinkSpec, SocketBell};
use wave_process::say;

use crate::shared::lock;

/// How long a candidate may take to announce itself.
const CANDIDATE_PATIENCE: Nanos = Nanos::from_millis(2000);

/// One life of an agent, as the host sees it, with its own window and doorbells. Earlier agents may still hold theirs, but
/// reach nobody with them.
#[derive(Debug)]
pub(crate) struct Incarnation {
    pub(crate) layout: Layout,
    memory: Arc<Memory>,
    link: LinkSpec,
    /// Doorbell of each core, by index.
    pub(crate) core_bells: Vec<AnyBell>,
    pub(crate) control_bell: AnyBell,
    pub(crate) agent_bell: SocketBell,
    /// A message or outcome to this agent was lost.
    pub(crate) lost: AtomicBool,
    /// This agent's violation of the protocol, if any.
    pub(crate) fault: Fault,
}

/// Whether an agent violated the protocol, and the first violation seen.
#[derive(Debug, Default)]
pub(crate) struct Fault {
    is_set: AtomicBool,
    seen: Mutex<String>,
}

impl Fault {
    /// Records a violation. Returns whether it is the first.
    pub(crate) fn note(&self, seen: impl Display) -> bool {
        let mut first = lock(&self.seen);
        if first.is_empty() {
            *first = seen.to_string();
        }
        !self.is_set.swap(true, Ordering::SeqCst)
    }

    pub(crate) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::SeqCst)
    }

    pub(crate) fn seen(&self) -> String {
        lock(&self.seen).clone()
    }
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
}

impl Candidate for Guest {
    type Beside = ();

    fn state(&self) -> AgentState {
        self.control.agent_state(&self.port)
    }

    fn has_gone(&self, (): &()) -> bool {
        self.connection.has_left()
    }

    fn turn_away(&self, (): &mut (), why: Option<&str>) {
        if let Some(why) = why {
            // An agent that has gone needs no answer.
            let _ = self.connection.refuse(why);
        }
    }
}

impl Guest {
    /// Descriptors that wake the control thread on the agent's behalf.
    pub(crate) fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.connection.as_fd(), self.incarnation.control_bell.event_fd().as_fd()]
    }
}

/// Number of faults on one host that are each reported in a line; later ones only at powers of two.
const FAULTS_SAID: u64 = 16;

/// Reports why an agent that violated the protocol is turned out: the agent itself cannot know. `faults` counts violations so
/// far.
pub(crate) fn report_fault(socket: &Path, guest: &Guest, faults: u64) {
    if faults > FAULTS_SAID && !faults.is_power_of_two() {
        return;
    }
    let (seen, agent) = (guest.incarnation.fault.seen(), guest.connection.peer_pid());
    say!(
        "wave host: turning the agent at {} out (process {agent}), because its part of the window makes no sense: \
         {seen}",
        socket.display()
    );
}

/// Waits until one of `fds` is readable, for at most `timeout_ms` milliseconds; without limit if the timeout is negative.
pub(crate) fn wait_for_any<'a>(fds: impl Iterator<Item = BorrowedFd<'a>>, timeout_ms: i32) {
    let events = libc::POLLIN | libc::POLLRDHUP;
    let entry = |fd: BorrowedFd<'_>| libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
    let mut fds: Vec<_> = fds.map(entry).collect();
    // SAFETY: `fds` is an array of `fds.len()` valid entries, alive during the call.
    unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout_ms) };
}

pub(crate) struct Door {
    name: String,
    listener: Listener,
    link: LinkSpec,
    layout: Layout,
    /// Makes the two ends of a core's doorbell.
    bell: Box<dyn Fn() -> std::io::Result<[EventFd; 2]> + Send>,
    candidates: Candidates<Guest>,
}

impl Door {
    /// A door that offers windows of this layout.
    pub(crate) fn new(
        name: String,
        listener: Listener,
        link: LinkSpec,
        layout: Layout,
        bell: impl Fn() -> std::io::Result<[EventFd; 2]> + Send + 'static,
    ) -> Door {
        let candidates = Candidates::new(CANDIDATE_PATIENCE);
        Door { name, listener, link, layout, bell: Box::new(bell), candidates }
    }

    pub(crate) fn socket(&self) -> &Path {
        self.listener.path()
    }

    /// Whether no candidate waits to announce itself.
    pub(crate) fn is_empty(&self) -> bool {
        self.candidates.is_empty()
    }

    /// Descriptors that wake a control thread on behalf of the door.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [self.listener.as_fd()].into_iter().chain(self.candidates.iter().flat_map(Guest::fds))
    }

    /// Drains the doorbells of waiting candidates.
    pub(crate) fn drain(&self) {
        for guest in self.candidates.iter() {
            guest.incarnation.control_bell.event_fd().drain();
        }
    }

    /// Accepts new connections. Returns an agent that has announced itself; call again until it returns `None`.
    pub(crate) fn answer(&mut self, now: Nanos) -> Option<Guest> {
        let Door { name, listener, link, layout, bell, candidates } = self;
        let make = |connection: &Connection| make(name, connection, link, layout, &*bell);
        let join = |connection, (incarnation, port)| {
            let control = HostControl::new(layout);
            Guest { incarnation: Arc::new(incarnation), port, control, connection }
        };
        candidates.accept(listener, now, make, join);
        candidates.announced(now, &mut ())
    }
}

/// Makes a window and hands it over.
fn make(
    name: &str,
    connection: &Connection,
    link: &LinkSpec,
    layout: &Layout,
    bell: impl Fn() -> std::io::Result<[EventFd; 2]>,
) -> Result<(Incarnation, AnyPort), OfferError> {
    let (memory, fd) = create_window(name, layout, link)?;
    let Offered { port, bells, agent_bell } =
        offer(connection, layout, link, (&memory, fd.as_fd()), bell)?;
    let bells = bells.into_iter().enumerate();
    let mut bells = bells
        .map(|(vector, bell)| link.doorbell(&memory, vector, bell))
        .collect::<Result<Vec<_>, _>>()?;
    let incarnation = Incarnation {
        layout: layout.clone(),
        memory,
        link: link.clone(),
        control_bell: bells.pop().expect("the control context's bell is the last"),
        core_bells: bells,
        agent_bell,
        lost: AtomicBool::new(false),
        fault: Fault::default(),
    };
    Ok((incarnation, port))
}

//! A process that was let in: the agent's end of its window.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use wave_core::endpoint::{Receiver, Sender};
use wave_core::layout::{AGENT_READY, Layout, PROTOCOL_VERSION};
use wave_core::link::{Doorbell, Home, Port, Side, Window};
use wave_core::park::ParkWord;
use wave_core::queue::{self, PushError};
use wave_links::shm::ShmPort;
use wave_links::socket::Connection;
use wave_links::{AnyPort, Lender, LentPayload, Memory, SocketBell};
use wave_tcp::context::{Event, LastReads, Malformed, PauseWords, Request, window as window_of};
use wave_tcp::control::Owner;
use wave_tcp::datapath::Ring;

use crate::door::{Opened, owner_of};
use crate::refusal_log::Peer;

/// Most requests that [`Process::poll`] takes from one context before it turns to the next.
pub const REQUESTS_PER_TURN: usize = 16;

/// A process broke the protocol. Its connections are to be reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// An entry of an unknown kind, or with too few words.
    #[error(transparent)]
    Request(#[from] Malformed),
    /// A malformed queue entry.
    #[error(transparent)]
    Entry(#[from] queue::Malformed),
    /// The process's credit counts events that were never sent.
    #[error(transparent)]
    Credit(PushError),
}

/// An entry taken from a context's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// A request. Its rings, if it has any, lie within the process's payload memory. Everything else is still to be checked:
    /// names, flows (a process may name one that is not its own), addresses, positions.
    Request(Request),
    /// A request that names impossible rings. Answer it by [`Event::Failed`] with
    /// [`Reason::Invalid`](wave_tcp::context::Reason::Invalid).
    Invalid {
        /// The process's name for the connection.
        socket: u32,
    },
}

/// A process with its contexts. Dropping it closes the connection to the process, whose sockets then fail with ECONNRESET.
#[derive(Debug)]
pub struct Process {
    connection: Connection,
    layout: Layout,
    /// The window's file, kept to hand it to another agent.
    window: OwnedFd,
    port: AnyPort,
    contexts: Vec<Context>,
    /// The context that [`Process::poll`] begins with.
    first: usize,
    payload: LentPayload,
    /// Further mappings of that memory, for the agent's other threads, until they have them.
    for_threads: Vec<LentPayload>,
    /// Rung by the process if it finds the agent parked.
    bell: SocketBell,
    /// How often the process was asked to stop using shared connections.
    stops: u64,
}

/// The state of a process's queues, handed over with its descriptors.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct KeptProcess {
    payload_bytes: u64,
    stops: u64,
    /// Per context: the number of requests taken, and the part of it that the process knows; the number of events sent.
    queues: Vec<([u64; 2], Option<u64>)>,
}

impl KeptProcess {
    /// Number of the process's descriptors.
    pub(crate) fn descriptors(&self) -> usize {
        self.queues.len() + 4
    }
}

#[derive(Debug)]
struct Context {
    requests: Receiver,
    events: Sender,
    bell: SocketBell,
    /// Whether events were pushed and not published.
    is_unpublished: bool,
}

impl Process {
    pub(crate) fn new(connection: Connection, opened: Opened) -> Process {
        let Opened { layout, memory, window, payload, for_threads, bells, agent_bell } = opened;
        let context = |(at, bell): (usize, SocketBell)| Context {
            requests: Receiver::new(&layout.messages[at], Side::Agent),
            events: Sender::new(&layout.decisions[at], Side::Agent),
            bell,
            is_unpublished: false,
        };
        let contexts = bells.into_iter().enumerate().map(context).collect();
        let port = AnyPort::from(ShmPort::new(&memory));
        let bell = agent_bell;
        Process {
            connection,
            layout,
            window,
            port,
            contexts,
            first: 0,
            payload,
            for_threads,
            bell,
            stops: 0,
        }
    }

    /// The state of its queues and its descriptors, by which another agent can [`Process::restore`] it. All events must be
    /// published.
    pub(crate) fn hand_over(&self) -> (KeptProcess, Vec<BorrowedFd<'_>>) {
        let queues = |context: &Context| {
            (context.requests.positions().unwrap_or_default(), context.events.produced())
        };
        let kept = KeptProcess {
            payload_bytes: self.payload.bytes(),
            stops: self.stops,
            queues: self.contexts.iter().map(queues).collect(),
        };
        let own = [self.connection.as_fd(), self.window.as_fd(), self.payload.file()];
        let bells = self.contexts.iter().map(|context| context.bell.as_fd());
        (kept, own.into_iter().chain([self.bell.as_fd()]).chain(bells).collect())
    }

    /// Takes over a process that another agent has let in. Does not write to its memory.
    ///
    /// # Errors
    /// Its memory cannot be mapped (a stranger's was sealed), or its descriptors are wrong.
    pub(crate) fn restore(
        kept: &KeptProcess,
        fds: Vec<OwnedFd>,
        threads: usize,
    ) -> Result<Process, String> {
        let contexts = kept.queues.len();
        let (mut fds, expected) = (fds.into_iter(), kept.descriptors());
        if fds.len() != expected || contexts == 0 {
            return Err(format!("it has {expected} descriptors, but {} arrived", fds.len()));
        }
        let [connection, window, payload, bell] =
            [(); 4].map(|()| fds.next().expect("they were counted"));
        let connection = Connection::adopt(connection).map_err(|error| error.to_string())?;
        let layout = Layout::new(window_of(contexts as u16)).map_err(|error| error.to_string())?;
        let (nic, host) = (layout.nic_lines, layout.host_lines);
        // The other agent has sealed the memory of strangers, so mapping it fails here.
        let lender = Lender::Trusted;
        let memory = Memory::map_lent(window.as_fd(), nic, host, lender)
            .map_err(|error| error.to_string())?;
        let mut for_threads =
            LentPayload::take_for(1 + threads, payload, kept.payload_bytes, lender)
                .map_err(|error| error.to_string())?;
        let payload = for_threads.remove(0);
        let bell_of = |fd| SocketBell::from_untrusted(fd).map_err(|error| error.to_string());
        let agent_bell = bell_of(bell)?;
        let mut contexts = Vec::with_capacity(contexts);
        for (at, ((consumed, produced), bell)) in kept.queues.iter().zip(fds).enumerate() {
            let requests = Receiver::resume(&layout.messages[at], Side::Agent, *consumed);
            let events = produced
                .and_then(|produced| Sender::resume(&layout.decisions[at], Side::Agent, produced));
            let (Some(requests), Some(events)) = (requests, events) else {
                return Err("its queues use DMA, and cannot be taken over".to_owned());
            };
            let bell = bell_of(bell)?;
            contexts.push(Context { requests, events, bell, is_unpublished: false });
        }
        let port = AnyPort::from(ShmPort::new(&Arc::new(memory)));
        Ok(Process {
            connection,
            layout,
            window,
            port,
            contexts,
            first: 0,
            payload,
            for_threads,
            bell: agent_bell,
            stops: kept.stops,
        })
    }

    /// Tells the process that it was let in.
    pub fn announce(&mut self) {
        let nic = self.port.window(Home::Nic);
        nic.store(self.layout.agent, 0, AGENT_READY | u64::from(PROTOCOL_VERSION));
        nic.fence();
        self.contexts.iter().for_each(|context| context.bell.ring());
    }

    /// Asks the process not to use shared connections until it has got one more [`Event::Demoted`].
    pub(crate) fn stop(&mut self) {
        self.stops += 1;
        PauseWords::of(&self.layout).stop(&self.port, self.stops);
    }

    /// Whether the process may use shared connections at present; if not, the agent knows everything that it has read and written
    /// once its queue is empty.
    pub(crate) fn is_inside(&self) -> bool {
        PauseWords::of(&self.layout).is_inside(&self.port)
    }

    /// How far the process, which has ended, has read.
    pub(crate) fn last_reads(&self) -> LastReads {
        LastReads::of(&self.layout, &self.port)
    }

    /// The next message of the process about shared connections, if it has sent one.
    pub(crate) fn receive_shared(&self) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
        self.connection.receive_descriptors(Duration::ZERO).ok()
    }

    /// Turns the process away instead; `why` is a sentence for its user.
    pub fn refuse(self, why: &str) {
        // A failure does not matter: the connection ends anyway.
        let _ = self.connection.refuse(why);
    }

    /// The process, as the kernel knew it when it connected; 0 if it is in another namespace.
    pub fn pid(&self) -> i32 {
        self.connection.peer_pid()
    }

    /// The process's effective user at that time.
    pub fn uid(&self) -> u32 {
        self.connection.peer_uid()
    }

    pub(crate) fn peer(&self) -> Peer {
        Peer { pid: self.pid(), uid: self.uid() }
    }

    /// The name of the process's program, for people: what the kernel says now, without control characters.
    pub(crate) fn program(&self) -> Option<String> {
        let name = std::fs::read(format!("/proc/{}/comm", self.pid())).ok()?;
        let name = String::from_utf8_lossy(name.trim_ascii());
        Some(name.chars().filter(|one| !one.is_control()).collect())
    }

    /// Number of contexts: 1 to [`wave_tcp::context::CONTEXTS_MAX`].
    pub fn contexts(&self) -> u16 {
        self.contexts.len() as u16
    }

    /// Program and user of the process.
    pub(crate) fn owner(&self) -> Owner {
        owner_of(&self.connection)
    }

    /// Number of this agent's descriptors that the process uses.
    pub(crate) fn descriptors(&self) -> u32 {
        // The bells of each context and the agent, the connection, the window, the payload memory.
        self.contexts.len() as u32 + 4
    }

    /// The memory that holds the process's rings.
    pub fn payload(&self) -> &LentPayload {
        &self.payload
    }

    /// Mappings of the payload memory for the agent's other threads, once.
    pub(crate) fn lend_to_threads(&mut self) -> Vec<LentPayload> {
        std::mem::take(&mut self.for_threads)
    }

    /// The payload memory, to look for more of its pages.
    pub fn payload_mut(&mut self) -> &mut LentPayload {
        &mut self.payload
    }

    /// Takes at most `budget` requests, and at most [`REQUESTS_PER_TURN`] from each context, in the order of each context.
    /// Returns their number; 0 if there were none.
    ///
    /// # Errors
    /// The process is at fault. Requests that were taken before are valid.
    pub fn poll(
        &mut self,
        budget: usize,
        mut take: impl FnMut(u16, Received),
    ) -> Result<usize, Fault> {
        let count = self.contexts.len();
        let memory_bytes = self.payload.bytes();
        let (first, mut taken) = (self.first, 0);
        for at in (first..count).chain(0..first) {
            for _ in 0..REQUESTS_PER_TURN.min(budget - taken) {
                let Some(entry) = self.contexts[at].requests.pop(&self.port)? else { break };
                let request = check_rings(Request::from_entry(&entry)?, memory_bytes);
                taken += 1;
                take(at as u16, request);
            }
            if taken == budget {
                // The next call begins with a context that this one may not have reached.
                self.first = (at + 1) % count;
                break;
            }
        }
        Ok(taken)
    }

    /// Sends an event to a context, at the latest with the next [`Process::publish`]. Returns false if the context's queue is
    /// full: then send the event later, or a newer event that replaces it.
    ///
    /// Panics if there is no such context.
    ///
    /// # Errors
    /// The process is at fault.
    pub fn send(&mut self, context: u16, event: &Event) -> Result<bool, Fault> {
        let context = &mut self.contexts[usize::from(context)];
        let (tag, words) = event.to_words();
        match context.events.push(&self.port, tag, &words) {
            Ok(()) => {
                context.is_unpublished = true;
                Ok(true)
            }
            Err(PushError::Full(_)) => Ok(false),
            Err(fault @ PushError::BadCredit { .. }) => Err(Fault::Credit(fault)),
        }
    }

    /// Number of events for which a context has room; a send may find more. Panics if there is no such context.
    pub fn room(&mut self, context: u16) -> u32 {
        self.contexts[usize::from(context)].events.room(&self.port)
    }

    /// Publishes events, and rings the receiving contexts that sleep. Call it once a turn.
    pub fn publish(&mut self) {
        let unpublished = self.contexts.iter_mut().filter(|context| context.is_unpublished);
        if unpublished.map(|context| context.events.publish(&self.port)).count() == 0 {
            return;
        }
        // One fence for all: their queues and park words are in one region.
        self.port.window(Home::Nic).fence();
        for (at, context) in self.contexts.iter_mut().enumerate() {
            let is_unpublished = std::mem::take(&mut context.is_unpublished);
            if is_unpublished && ParkWord::of_core(&self.layout, at as u16).is_parked(&self.port) {
                context.bell.ring();
            }
        }
    }

    /// Announces that the agent is about to sleep until [`Process::fds`] are readable. The agent must poll once more before it
    /// does.
    pub fn park(&mut self) {
        ParkWord::of_agent(&self.layout).park(&self.port);
    }

    /// Announces that the agent is awake, and discards rings of its bell.
    pub fn unpark(&mut self) {
        ParkWord::of_agent(&self.layout).unpark(&self.port);
        self.bell.drain();
    }

    /// Descriptors to poll while parked: the bell for input, the connection for hang-up.
    pub fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.bell.as_fd(), self.connection.as_fd()]
    }

    /// Whether the process has gone, or wants to go. Its earlier requests still count: [`Process::poll`] until there are none
    /// left.
    pub fn has_hung_up(&self) -> bool {
        self.connection.hung_up()
    }
}

fn check_rings(request: Request, memory_bytes: u64) -> Received {
    let (socket, rings): (u32, [Ring; 2]) = match request {
        Request::Slot { socket, receive, send, .. } => (socket, [receive, send]),
        Request::Connect { socket, receive, send, .. } => (socket, [receive, send]),
        Request::Take { socket, receive, send, .. } => (socket, [receive, send]),
        _ => return Received::Request(request),
    };
    match rings.iter().all(|ring| ring.is_within(memory_bytes)) {
        true => Received::Request(request),
        false => Received::Invalid { socket },
    }
}

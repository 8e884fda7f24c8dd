//! The sockets and listeners of a context, driven by its events and by the program's calls. Never waits.

mod listening;
mod queries;
mod readiness;
mod reports;
mod rings;
mod sharing;
mod takeover;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::time::Instant;

use rustix::io::Errno;
use wave_tcp::context::{Event, Reason, Request, SocketOptions, Tail};
use wave_tcp::datapath::FlowId;

use crate::agent_window::{Fault, Queues};
use crate::buddy::Buddy;
use crate::socket::{FIRST_FILL, Phase, Socket};

pub use sharing::Identity;

/// Most slots that a listener offers at a time; fewer if its backlog is smaller. Further connections of the backlog wait at the agent.
pub const SLOTS: usize = 128;
/// Most writes that are published together.
pub const BURST: u32 = 16;
/// Most events that one [`Context::process_events`] processes.
const EVENTS_AT_ONCE: usize = 1024;
/// Low bits of a socket's name: its place. The other bits distinguish it from earlier sockets in that place.
pub const PLACE_BITS: u32 = 18;

/// All sockets and listeners of one thread. Their rings lie in payload memory, which the context does not own.
///
/// Programs use it through a [`Toe`](crate::Toe), over a window. Tests drive it over other [`Queues`], in virtual time: it never
/// waits. Calls that may have to wait return `None` while they would have to.
#[derive(Debug)]
pub struct Context<Q> {
    /// The queues to and from the agent.
    pub queues: Q,
    buddy: Buddy,
    /// Sizes of new rings in bytes: receive, send.
    ring_bytes: [u32; 2],
    /// Most bytes of a new receive ring that are populated at first.
    first_fill: u32,
    /// The agent must be told of something at once: a ring has got memory, or a stream was read to its end.
    has_urgent: bool,
    places: Vec<Place>,
    free: Vec<u32>,
    /// Listeners by name.
    listeners: BTreeMap<u32, Listening>,
    last_listener: u32,
    /// Sockets with an update (positions or memory) to report to the agent.
    dirty: VecDeque<u32>,
    /// Sockets with news that [`Context::pop_changed`] has not returned yet, each once.
    changed: VecDeque<u32>,
    /// Other requests, which are sent after all updates.
    outbox: VecDeque<Request>,
    /// Writes since the last publish.
    writes: u32,
    /// A listener may have fewer slots than it should.
    wants_slots: bool,
    /// When to offer a slot again, after the agent had room for none of a listener.
    retry_at: Option<Instant>,
    /// Events were processed since the last [`Context::take_had_events`]. Any call processes the events of all sockets.
    had_events: bool,
    /// Some connections are shared with other processes. `demotions` counts those that the agent has made streams of the kernel's.
    shares: bool,
    demotions: u64,
    /// The port of the agent's door for streams of the kernel's, once it is known; 0 is none.
    door: Option<u16>,
    /// Number of requests to lend connections that the agent has not answered.
    lending: u32,
    /// The agent has gone, or is at fault.
    is_dead: bool,
}

#[derive(Debug, Default)]
struct Place {
    /// Number of the place's current life, for names.
    life: u32,
    socket: Option<Socket>,
}

/// One of the program's listeners.
#[derive(Debug)]
pub(crate) struct Listening {
    /// Its local address, once the agent has answered.
    pub local: Option<SocketAddr>,
    /// Errno if the listener failed or has ended.
    pub error: Option<i32>,
    /// Connections that the program has not accepted yet.
    pub accepted: VecDeque<u32>,
    /// Most such connections.
    backlog: usize,
    /// Other processes may have the listener, too: a slot is offered only while the program waits.
    is_shared: bool,
    /// The program waits for a connection of a shared listener, and has got none since.
    is_awaited: bool,
    /// Slots that no connection has taken.
    offered: usize,
    /// Most such slots.
    slots_max: usize,
}

impl<Q: Queues> Context<Q> {
    /// A context without sockets, with `payload_bytes` bytes of payload memory and rings of `ring_bytes` bytes (receive, send).
    pub fn new(queues: Q, payload_bytes: u64, ring_bytes: [u32; 2]) -> Context<Q> {
        Context {
            queues,
            buddy: Buddy::new(payload_bytes),
            ring_bytes,
            first_fill: FIRST_FILL,
            has_urgent: false,
            places: Vec::new(),
            free: Vec::new(),
            listeners: BTreeMap::new(),
            last_listener: 0,
            dirty: VecDeque::new(),
            changed: VecDeque::new(),
            outbox: VecDeque::new(),
            writes: 0,
            wants_slots: false,
            retry_at: None,
            had_events: false,
            shares: false,
            demotions: 0,
            door: None,
            lending: 0,
            is_dead: false,
        }
    }

    /// Whether the agent has gone. Then every socket and listener has failed.
    pub fn is_dead(&self) -> bool {
        self.is_dead
    }

    /// Handles the agent's death: processes its last events, then fails every socket.
    pub fn handle_death(&mut self) {
        while self.process_events() {}
        self.die();
    }

    /// Fails every socket and listener: the agent has gone, or is at fault.
    pub fn die(&mut self) {
        self.is_dead = true;
        self.dirty.clear();
        self.outbox.clear();
        let reset = Errno::CONNRESET.raw_os_error();
        self.listeners.values_mut().for_each(|listener| listener.error = Some(reset));
        for place in &mut self.places {
            if let Some(socket) =
                place.socket.as_mut().filter(|socket| socket.phase != Phase::Ended)
            {
                socket.phase = socket.phase.after_end();
                socket.error = Some(reset);
            }
        }
        for at in 0..self.places.len() {
            self.change(self.places[at].life << PLACE_BITS | at as u32);
        }
    }

    /// The socket with this name. Panics if there is none; the socket of a handle always exists.
    pub fn socket(&mut self, name: u32) -> &mut Socket {
        self.find(name).expect("the socket of a handle exists")
    }

    /// The listener with this name; panics as [`Context::socket`] does.
    pub(crate) fn listener(&mut self, name: u32) -> &mut Listening {
        self.listeners.get_mut(&name).expect("the listener of a handle exists")
    }

    /// Records news of a socket, if it exists.
    fn change(&mut self, name: u32) {
        if let Some(socket) = self.find(name)
            && !std::mem::replace(&mut socket.is_changed, true)
        {
            self.changed.push_back(name);
        }
    }

    /// A socket with a handle and with news, if there is one. Each is returned once, until it has more news.
    pub fn pop_changed(&mut self) -> Option<u32> {
        loop {
            let name = self.changed.pop_front()?;
            let Some(socket) = self.find(name) else { continue };
            socket.is_changed = false;
            // News of a connection in the accept queue is reported when it is accepted.
            if !socket.is_closed && socket.is_accepted {
                return Some(name);
            }
        }
    }

    fn peek(&self, name: u32) -> Option<&Socket> {
        let place = self.places.get((name & ((1 << PLACE_BITS) - 1)) as usize)?;
        place.socket.as_ref().filter(|_| place.life == name >> PLACE_BITS)
    }

    fn find(&mut self, name: u32) -> Option<&mut Socket> {
        let place = self.places.get_mut((name & ((1 << PLACE_BITS) - 1)) as usize)?;
        place.socket.as_mut().filter(|_| place.life == name >> PLACE_BITS)
    }

    /// Processes the agent's events. Returns whether there were any.
    pub fn process_events(&mut self) -> bool {
        let mut taken = 0;
        while !self.is_dead && taken < EVENTS_AT_ONCE {
            let took = match self.queues.pop() {
                Ok(None) => break,
                Ok(Some(event)) => self.take(&event),
                Err(fault) => Err(fault),
            };
            taken += 1;
            if took.is_err() {
                self.die();
            }
        }
        self.had_events |= taken > 0;
        if std::mem::take(&mut self.has_urgent) {
            self.flush();
        }
        taken > 0
    }

    /// Whether any event was processed since the last call.
    pub fn take_had_events(&mut self) -> bool {
        std::mem::take(&mut self.had_events)
    }

    fn take(&mut self, event: &Event) -> Result<(), Fault> {
        match *event {
            Event::Progress(progress) => match self.find(progress.socket) {
                Some(socket) if socket.flow().is_some() => {
                    socket.progress(&progress)?;
                    self.change(progress.socket);
                    self.fill_ahead(progress.socket);
                    Ok(())
                }
                // The program may have closed it meanwhile.
                _ => Ok(()),
            },
            Event::TcpInfo(info) => {
                if let Some(socket) = self.find(info.socket) {
                    socket.tcp_info = Some(info);
                }
                Ok(())
            }
            Event::LocalAddress { socket, local } => {
                if let Some(socket) =
                    self.find(socket).filter(|socket| socket.phase == Phase::Connecting)
                {
                    socket.local = local;
                }
                Ok(())
            }
            Event::Lent { .. } => {
                self.lending = self.lending.saturating_sub(1);
                Ok(())
            }
            Event::Listening { listener, local } => {
                if let Some(listener) = self.listeners.get_mut(&listener) {
                    listener.local = Some(local);
                    self.wants_slots = true;
                }
                Ok(())
            }
            Event::NotListening { listener, reason } => {
                if let Some(listener) = self.listeners.get_mut(&listener) {
                    listener.error = Some(reason.errno());
                }
                Ok(())
            }
            Event::Accepted { socket, flow, remote, mss, .. } => {
                self.on_accepted(socket, flow, remote, mss)
            }
            Event::Connected { socket: name, flow, local, mss } => {
                let socket = self.find(name).ok_or(Fault)?;
                if socket.phase != Phase::Connecting {
                    return Err(Fault);
                }
                socket.phase = Phase::Open(flow);
                socket.local = local;
                socket.mss = mss;
                if socket.is_closed {
                    self.outbox.push_back(Request::Abort { flow });
                } else if socket.sending.is_eager || socket.sending.is_finished {
                    self.mark_dirty(name);
                }
                self.change(name);
                if self.socket(name).options != SocketOptions::default() {
                    self.configure(name);
                }
                Ok(())
            }
            Event::SoftError { socket, reason } => {
                if let Some(socket) = self.find(socket) {
                    socket.soft_error = Some(reason.errno());
                }
                Ok(())
            }
            Event::Failed { socket, reason } => self.end(socket, Some(reason)),
            Event::Closed { socket } | Event::Unused { socket } => self.end(socket, None),
            Event::Door { port } => {
                self.door = Some(port);
                Ok(())
            }
            Event::Taken { socket } => {
                self.on_taken_away(socket, Phase::Taken);
                Ok(())
            }
            Event::Demoted { socket } => {
                self.demotions += 1;
                self.on_taken_away(socket, Phase::Demoted);
                Ok(())
            }
        }
    }

    fn on_accepted(
        &mut self,
        name: u32,
        flow: FlowId,
        remote: SocketAddr,
        mss: u16,
    ) -> Result<(), Fault> {
        let socket = self.find(name).ok_or(Fault)?;
        let Phase::Slot(listener) = socket.phase else { return Err(Fault) };
        socket.phase = Phase::Open(flow);
        socket.remote = remote;
        socket.mss = mss;
        // The agent gives a connection of a closed slot to another listener, or resets it.
        if !socket.is_closed
            && let Some(listening) = self.listeners.get_mut(&listener)
        {
            listening.on_connected(name);
            self.wants_slots = true;
        }
        Ok(())
    }

    /// Ends a socket. The agent no longer uses its rings.
    fn end(&mut self, name: u32, reason: Option<Reason>) -> Result<(), Fault> {
        // A request that crossed the end may get one more answer.
        let Some(socket) = self.find(name) else { return Ok(()) };
        let before = socket.phase;
        socket.phase = before.after_end();
        socket.error = Some(reason.unwrap_or(Reason::Reset).errno());
        let is_closed = socket.is_closed;
        self.change(name);
        if is_closed {
            self.release(name);
            return Ok(());
        }
        if let Phase::Slot(listener) = before {
            self.release(name);
            if let Some(listener) = self.listeners.get_mut(&listener) {
                listener.offered -= 1;
                match reason {
                    Some(Reason::NoRoom) => listener.on_no_room(&mut self.retry_at),
                    Some(reason) => listener.error = Some(reason.errno()),
                    None => {}
                }
            }
        }
        Ok(())
    }

    /// Requests a connection; `None` if there is no memory for its rings.
    pub fn connect(&mut self, remote: SocketAddr) -> Option<u32> {
        self.connect_from(0, remote, u16::MAX)
    }

    /// As [`Context::connect`], from this port (0 is any), with segments of at most `mss_max` bytes, options included (TCP_MAXSEG).
    pub fn connect_from(
        &mut self,
        local_port: u16,
        remote: SocketAddr,
        mss_max: u16,
    ) -> Option<u32> {
        let unknown = SocketAddr::new([0, 0, 0, 0].into(), 0);
        let socket = self.insert(Phase::Connecting, unknown, remote)?;
        let Socket { receiving, sending, is_accepted, .. } = self.socket(socket);
        *is_accepted = true;
        let (receive, send, filled) = (receiving.ring, sending.ring, receiving.filled);
        let connect =
            Request::Connect { socket, remote, local_port, mss_max, receive, send, filled };
        self.outbox.push_back(connect);
        Some(socket)
    }

    /// The result of a requested connection, once it is known.
    pub fn connected(&mut self, name: u32) -> Option<io::Result<()>> {
        let socket = self.socket(name);
        match (socket.phase, socket.error) {
            // It may have changed hands since.
            (Phase::Open(_) | Phase::Taken | Phase::Demoted, _) => Some(Ok(())),
            (Phase::Ended, Some(errno)) => Some(Err(io::Error::from_raw_os_error(errno))),
            _ => None,
        }
    }

    /// Shuts down one direction or both.
    ///
    /// # Errors
    /// `ENOTCONN` if the connection is not established, or has ended.
    pub fn shutdown(&mut self, name: u32, how: Shutdown) -> io::Result<()> {
        let socket = self.socket(name);
        let Some(flow) = socket.flow() else { return Err(Errno::NOTCONN.into()) };
        if how != Shutdown::Read {
            socket.sending.is_finished = true;
            socket.sending.tail = socket.sending.tail.released();
            self.mark_dirty(name);
        }
        let is_shut = &mut self.socket(name).receiving.is_shut;
        if how != Shutdown::Write && !std::mem::replace(is_shut, true) {
            self.outbox.push_back(Request::ShutdownRead { flow });
        }
        self.flush();
        Ok(())
    }

    /// Sets TCP_NODELAY, which releases bytes that wait for more to be written. The agent learns of it with the next publish.
    pub fn set_nodelay(&mut self, name: u32, is_eager: bool) {
        let sending = &mut self.socket(name).sending;
        sending.is_eager = is_eager;
        if is_eager {
            sending.tail = sending.tail.released();
        }
        self.mark_dirty(name);
    }

    /// Tells the agent a socket's options, once the connection is established.
    pub fn configure(&mut self, name: u32) {
        let socket = self.socket(name);
        if let Some(flow) = socket.flow() {
            let options = socket.options;
            self.outbox.push_back(Request::Configure { flow, options });
        }
    }

    /// Records that a socket's update must be reported to the agent.
    pub fn mark_dirty(&mut self, name: u32) {
        let socket = self.socket(name);
        if socket.flow().is_some() && !std::mem::replace(&mut socket.is_dirty, true) {
            self.dirty.push_back(name);
        }
    }

    /// Called after bytes were written to a socket's ring. They are published in bursts.
    pub fn commit_write(&mut self, name: u32, bytes: u64) {
        let sending = &mut self.socket(name).sending;
        sending.tail = Tail::Whole;
        let is_much = sending.advance(bytes);
        self.mark_dirty(name);
        self.writes += 1;
        if is_much || self.writes >= BURST {
            self.flush();
        }
    }

    /// As [`Context::commit_write`], for bytes that are held back for more to follow, as `tail` says. The agent learns of them once they may
    /// fill a segment, and with [`Context::push`], which the caller must call later.
    pub fn commit_write_with(&mut self, name: u32, bytes: u64, tail: Tail) {
        let socket = self.socket(name);
        let mss = u64::from(socket.mss);
        let sending = &mut socket.sending;
        sending.tail = tail;
        if sending.advance(bytes) || sending.unreported() >= mss {
            self.mark_dirty(name);
            self.flush();
        } else if socket.is_shared {
            self.mark_dirty(name);
        }
    }

    /// Publishes the written bytes, held ones included, if the socket still exists.
    pub fn push(&mut self, name: u32) {
        if let Some(socket) = self.find(name) {
            socket.sending.tail = socket.sending.tail.released();
            self.mark_dirty(name);
            self.flush();
        }
    }

    /// Called after bytes of a socket's ring were read. The agent learns of it now and then, and if this process ends.
    pub fn commit_read(&mut self, name: u32, bytes: u64) {
        let socket = self.socket(name);
        let receiving = &mut socket.receiving;
        let (is_much, is_shared) = (receiving.advance(bytes), socket.is_shared);
        let read = receiving.read;
        let before = self.queues.note_read(name, read);
        if before != name && self.peek(before).is_some_and(|one| one.receiving.has_unreported()) {
            self.mark_dirty(before);
        }
        if is_much {
            self.mark_dirty(name);
            self.flush();
        } else if is_shared {
            self.mark_dirty(name);
        }
    }

    /// Closes a socket: the program will neither read nor write any more.
    pub fn close(&mut self, name: u32) {
        let socket = self.socket(name);
        socket.is_closed = true;
        match socket.phase {
            Phase::Open(flow) => {
                socket.sending.is_finished = true;
                socket.sending.tail = socket.sending.tail.released();
                // The exact positions are sent first: unread bytes decide how the connection ends.
                self.mark_dirty(name);
                self.outbox.push_back(Request::Close { flow });
            }
            Phase::Connecting => self.outbox.push_back(Request::Cancel { socket: name }),
            Phase::Ended | Phase::Taken | Phase::Slot(_) => self.release(name),
            // Its rings stay in use until the stream has ended.
            Phase::Demoted => {}
        }
        self.flush();
    }

    /// Closes a socket, and resets its connection.
    pub fn abort(&mut self, name: u32) {
        match self.socket(name).flow() {
            Some(flow) => {
                self.socket(name).is_closed = true;
                self.outbox.push_back(Request::Abort { flow });
                self.flush();
            }
            None => self.close(name),
        }
    }

    /// Sends all pending requests to the agent, as far as its queue has room, and wakes it.
    pub fn flush(&mut self) {
        self.writes = 0;
        self.offer_again();
        if std::mem::take(&mut self.wants_slots) {
            self.offer_slots();
        }
        if self.is_dead || !self.has_unsent() {
            return;
        }
        if self.push_all().is_err() {
            return self.die();
        }
        self.queues.publish();
    }

    /// Whether requests are pending because the agent's queue had no room.
    pub fn has_unsent(&self) -> bool {
        !self.dirty.is_empty() || !self.outbox.is_empty()
    }

    fn push_all(&mut self) -> Result<(), Fault> {
        while let Some(&name) = self.dirty.front() {
            // The socket may have ended meanwhile.
            if let Some(socket) = self.find(name) {
                if let Some(update) = socket.update() {
                    if !self.queues.push(&Request::Update(update))? {
                        return Ok(());
                    }
                    if !self.socket(name).record_update(&update) {
                        continue;
                    }
                }
                self.socket(name).is_dirty = false;
            }
            self.dirty.pop_front();
        }
        while let Some(request) = self.outbox.front() {
            if !self.queues.push(request)? {
                return Ok(());
            }
            self.outbox.pop_front();
        }
        Ok(())
    }
}

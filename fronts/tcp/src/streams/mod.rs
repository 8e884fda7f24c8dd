//! Connections of which several processes have a descriptor (docs/adr/0104).
//!
//! While one process uses such a connection, it is that process's. When another one wants it, or its process has gone and others still
//! have a descriptor, the connection is *held* here; and once a process has connected the kernel socket that took its place, the
//! connection is a stream of the kernel's, and bytes are *relayed* between the two.

mod descriptors;
mod door;
mod lending;
mod pending_takeovers;
mod poll_interval;
mod relay;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use serde::{Deserialize, Serialize};
use wave_core::clock::Nanos;
use wave_tcp::context::demotion::{Answer, Cause};
use wave_tcp::context::{ContextId, Request};
use wave_tcp::control::HeldFlow;
use wave_tcp::datapath::FlowId;

use descriptors::DescriptorWatch;
use door::{Caller, DOOR, Stage, StreamDoor};
use pending_takeovers::PendingTakeover;
use poll_interval::PollInterval;
use relay::KeptRelay;
pub(crate) use relay::{Relay, Turn};

const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// A new stream is ready at once: bytes may have arrived before.
const AT_FIRST: EventFlags = EventFlags::IN.union(EventFlags::OUT);
/// Most ready streams that are found in a turn.
const READY_MAX: usize = 64;
/// Most streams. A process may have as many as it leaves free for others.
const STREAMS_MAX: usize = 4_096;
/// Interval between looks whether any process still has a descriptor of a held connection.
const DESCRIPTORS_EVERY: Nanos = Nanos::from_millis(50);

/// All shared connections.
pub(crate) struct Streams {
    /// The door's sockets, and the streams.
    set: OwnedFd,
    open_descriptors: DescriptorWatch,
    door: StreamDoor,
    pace: PollInterval,
    shared: HashMap<u64, Shared>,
    /// The numbers of shared connections, by every name that each has had.
    by_name: HashMap<u64, u64>,
    /// The numbers of held connections, by the owner's name.
    held: HashMap<(u16, u32), u64>,
    /// The numbers of connections whose process was asked to stop: it waits until it is told to go on, whoever has asked for it.
    stopping: Vec<u64>,
    takeovers: Vec<PendingTakeover>,
    last: u64,
    polled_at: Nanos,
    /// Number of entries after the last removal of those that are over.
    kept: usize,
    pub(crate) counts: Counts,
}

/// Counters for reports.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Counts {
    /// Connections that became a stream of the kernel's, by cause.
    pub(crate) demoted: [u64; Cause::ALL.len()],
    /// Those that were reset, since their process was killed in the middle of a call.
    pub(crate) torn: u64,
}

#[derive(Debug)]
struct Shared {
    flow: FlowId,
    owner: ContextId,
    socket: u32,
    /// Secrets of the processes that may have descriptors: the owner's family first, then those that got the connection by a ticket.
    secrets: Vec<u128>,
    names: Vec<u64>,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Its process serves it.
    Owned,
    /// Its process was asked to stop, and was seen to be outside in this turn of the front.
    Stopping(Option<u64>),
    Held(Box<Relay>),
}

/// A process that owns a shared connection, as the front sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Gone,
    Inside,
    /// Outside; its queue was last found empty in this turn.
    Outside(u64),
}

/// What the front must do for a connection.
pub(crate) enum Need {
    /// Ask its process to stop.
    Stop(u16),
    /// Take it from its process, and tell the process.
    Hold { id: u64, flow: FlowId, owner: ContextId, socket: u32 },
    /// Tell people that a connection of this process has become a stream of the kernel's.
    LogDemotion { process: u16, cause: Cause },
    /// Let a process take a connection over, whose process has stopped.
    Take { from: ContextId, request: Request },
    /// Serve the door again in the next turn.
    Poll,
}

/// What becomes of a process at the door.
enum Led {
    Stays,
    Leaves,
    /// It leaves, and the connection is a stream of the kernel's.
    Demoted,
}

/// All shared connections, handed over with their descriptors.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct KeptStreams {
    shared: Vec<(u64, KeptShared)>,
    has_door: bool,
    last: u64,
    counts: Counts,
}

#[derive(Debug, Serialize, Deserialize)]
struct KeptShared {
    flow: FlowId,
    owner: ContextId,
    socket: u32,
    secrets: Vec<u128>,
    names: Vec<u64>,
    /// Its process was asked to stop.
    is_stopping: bool,
    /// `None`: its process serves it.
    held: Option<KeptRelay>,
}

impl KeptStreams {
    /// Number of descriptors: the set of placeholders and the door, then one for each stream.
    pub(crate) fn descriptors(&self) -> usize {
        let relays = self.shared.iter().filter_map(|(_, one)| one.held.as_ref());
        1 + usize::from(self.has_door) + relays.filter(|relay| relay.has_stream).count()
    }
}

impl Streams {
    /// The state and the descriptors for another agent. Processes at the door ask again.
    pub(crate) fn hand_over(&self) -> (KeptStreams, Vec<BorrowedFd<'_>>) {
        let mut fds = vec![self.open_descriptors.as_fd()];
        fds.extend(self.door.listener());
        let mut shared = Vec::with_capacity(self.shared.len());
        for (id, one) in &self.shared {
            let held = match &one.state {
                State::Held(relay) => {
                    fds.extend(relay.stream.as_ref().map(AsFd::as_fd));
                    Some(relay.kept())
                }
                _ => None,
            };
            let (flow, owner, socket) = (one.flow, one.owner, one.socket);
            let (secrets, names) = (one.secrets.clone(), one.names.clone());
            let is_stopping = matches!(one.state, State::Stopping(_));
            let kept = KeptShared { flow, owner, socket, secrets, names, is_stopping, held };
            shared.push((*id, kept));
        }
        let has_door = self.door.listener().is_some();
        (KeptStreams { shared, has_door, last: self.last, counts: self.counts }, fds)
    }

    /// Takes over another agent's shared connections.
    pub(crate) fn restore(&mut self, kept: KeptStreams, fds: Vec<OwnedFd>) -> io::Result<()> {
        if fds.len() != kept.descriptors() {
            return Err(io::Error::other("descriptors of shared connections are missing"));
        }
        let mut fds = fds.into_iter();
        let mut next = || fds.next().expect("they were counted");
        self.open_descriptors = DescriptorWatch::over(next());
        self.door = StreamDoor::over(kept.has_door.then(|| next().into()));
        if let Some(listener) = self.door.listener() {
            epoll::add(&self.set, listener, EventData::new_u64(DOOR), EventFlags::IN)?;
        }
        (self.last, self.counts) = (kept.last, kept.counts);
        for (id, one) in kept.shared {
            let KeptShared { flow, owner, socket, secrets, names, is_stopping, held } = one;
            self.by_name.extend(names.iter().map(|name| (*name, id)));
            let state = match held {
                Some(relay) => {
                    self.held.insert((owner.process, socket), id);
                    let stream = relay.has_stream.then(&mut next);
                    // The other agent's set knows its descriptors by their numbers there, and would not let this one change them.
                    if let Some(stream) = &stream {
                        epoll::add(&self.set, stream, EventData::new_u64(id), AT_FIRST)?;
                    }
                    State::Held(Box::new(Relay::restored(relay, stream)))
                }
                None if is_stopping => {
                    self.stopping.push(id);
                    State::Stopping(None)
                }
                None => State::Owned,
            };
            self.shared.insert(id, Shared { flow, owner, socket, secrets, names, state });
        }
        Ok(())
    }

    /// No connections, and a new door.
    pub(crate) fn new() -> io::Result<Streams> {
        Streams::with(StreamDoor::new()?)
    }

    /// What [`Streams::restore`] replaces. A confined agent may make no door.
    pub(crate) fn to_restore() -> io::Result<Streams> {
        Streams::with(StreamDoor::over(None))
    }

    fn with(door: StreamDoor) -> io::Result<Streams> {
        let set = epoll::create(CreateFlags::CLOEXEC)?;
        if let Some(listener) = door.listener() {
            epoll::add(&set, listener, EventData::new_u64(DOOR), EventFlags::IN)?;
        }
        Ok(Streams {
            set,
            open_descriptors: DescriptorWatch::new()?,
            door,
            pace: PollInterval::default(),
            shared: HashMap::new(),
            by_name: HashMap::new(),
            held: HashMap::new(),
            stopping: Vec::new(),
            takeovers: Vec::new(),
            last: DOOR,
            polled_at: Nanos(0),
            kept: 0,
            counts: Counts::default(),
        })
    }

    /// Readable while a process is at the door, or a stream has work.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }

    pub(crate) fn port(&self) -> u16 {
        self.door.port()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.held.is_empty() && self.next_poll().is_none()
    }

    /// When the door must be served, even if no socket there is ready.
    pub(crate) fn next_poll(&self) -> Option<Nanos> {
        let is_quiet =
            self.door.is_quiet() && self.stopping.is_empty() && self.takeovers.is_empty();
        (!is_quiet).then(|| self.pace.at())
    }

    /// Whether a connection is a stream of the kernel's, or about to become one.
    pub(crate) fn is_held(&self, flow: FlowId) -> bool {
        let id = self.by_name.get(&flow.to_word());
        id.and_then(|id| self.shared.get(id))
            .is_some_and(|shared| matches!(shared.state, State::Held(_)))
    }

    /// The present name of a connection of which other processes may have descriptors.
    pub(crate) fn shared(&self, flow: FlowId) -> Option<FlowId> {
        let id = self.by_name.get(&flow.to_word())?;
        self.shared.get(id).map(|shared| shared.flow)
    }

    /// What serves a connection, for reports: its process, a stream of the kernel's, or nobody until a process wants to use it.
    pub(crate) fn served_by(&self, flow: FlowId) -> &'static str {
        let shared = self.by_name.get(&flow.to_word()).and_then(|id| self.shared.get(id));
        match shared.map(|shared| &shared.state) {
            Some(State::Held(relay)) if relay.has_begun => "stream",
            Some(State::Held(_)) => "nobody",
            _ => "process",
        }
    }

    /// Records that other processes may have descriptors of a connection. `placeholder` is the kernel socket in its place.
    pub(crate) fn share(
        &mut self,
        flow: FlowId,
        (owner, socket): (ContextId, u32),
        secret: u128,
        placeholder: OwnedFd,
    ) {
        let name = flow.to_word();
        if self.by_name.contains_key(&name) {
            return;
        }
        self.last += 1;
        if self.open_descriptors.watch(self.last, placeholder) {
            let names = vec![name];
            let secrets = vec![secret];
            let shared = Shared { flow, owner, socket, secrets, names, state: State::Owned };
            self.shared.insert(self.last, shared);
            self.by_name.insert(name, self.last);
        }
    }

    /// Records that another process has taken a connection over, under another name. Returns the previous owner and its name for the
    /// connection, if it was asked to stop, and waits to go on.
    pub(crate) fn renamed(
        &mut self,
        before: FlowId,
        (flow, owner, socket): (FlowId, ContextId, u32),
    ) -> Option<(ContextId, u32)> {
        let id = self.by_name.get(&before.to_word()).copied()?;
        let shared = self.shared.get_mut(&id)?;
        self.by_name.insert(flow.to_word(), id);
        shared.names.push(flow.to_word());
        let was = (shared.owner, shared.socket);
        (shared.flow, shared.owner, shared.socket) = (flow, owner, socket);
        self.stopping.retain(|one| *one != id);
        let waits =
            matches!(std::mem::replace(&mut shared.state, State::Owned), State::Stopping(_));
        waits.then_some(was)
    }

    /// The shared connections of a process that has gone, of which another process may have a descriptor. Forgets the others: a later
    /// process with its number would be taken for their owner, and told of their end.
    pub(crate) fn left_by(&mut self, process: u16) -> Vec<(u64, FlowId)> {
        let is_its = |shared: &Shared| {
            shared.owner.process == process && !matches!(shared.state, State::Held(_))
        };
        let its = self.shared.iter().filter(|(_, shared)| is_its(shared));
        let its: Vec<(u64, FlowId)> = its.map(|(id, shared)| (*id, shared.flow)).collect();
        if its.is_empty() {
            return its;
        }
        let copies = self.open_descriptors.still_open(self.shared.len());
        let (left, over): (Vec<_>, Vec<_>) =
            its.into_iter().partition(|(id, _)| copies.contains(id));
        over.into_iter().for_each(|(id, _)| self.forget(id));
        left
    }

    /// Holds a connection from now on.
    pub(crate) fn hold(&mut self, id: u64, held: HeldFlow) {
        let Some(shared) = self.shared.get_mut(&id) else { return };
        let relay = Relay::new(held);
        self.held.insert((held.context.process, held.socket), id);
        self.stopping.retain(|one| *one != id);
        shared.state = State::Held(Box::new(relay));
    }

    /// The connection cannot be held any more: it is over.
    pub(crate) fn forget(&mut self, id: u64) {
        let Some(shared) = self.shared.remove(&id) else { return };
        self.stopping.retain(|one| *one != id);
        for name in &shared.names {
            self.by_name.remove(name);
        }
        // A later process may have its number, and the same name for a connection that is held.
        let key = (shared.owner.process, shared.socket);
        if self.held.get(&key) == Some(&id) {
            self.held.remove(&key);
        }
    }

    /// Removes entries of connections that are over.
    pub(crate) fn sweep(&mut self, is_over: impl Fn(FlowId) -> bool) {
        if self.shared.len() < 2 * self.kept + 64 {
            return;
        }
        // A process that was asked to stop has yet to be told to go on.
        let is_owned = |shared: &Shared| matches!(shared.state, State::Owned);
        let over =
            self.shared.iter().filter(|(_, shared)| is_owned(shared) && is_over(shared.flow));
        let over: Vec<u64> = over.map(|(id, _)| *id).collect();
        over.into_iter().for_each(|id| self.forget(id));
        self.kept = self.shared.len();
    }

    /// The number of a held connection, by its owner's name for it.
    pub(crate) fn held_as(&self, process: u16, socket: u32) -> Option<u64> {
        self.held.get(&(process, socket)).copied()
    }

    /// Held connections that no process wants to use, and of which none has a descriptor any more.
    pub(crate) fn abandoned(&mut self, now: Nanos) -> Vec<(u64, FlowId)> {
        if self.held.is_empty() || now.since(self.polled_at) < DESCRIPTORS_EVERY {
            return Vec::new();
        }
        self.polled_at = now;
        let waits =
            |shared: &Shared| matches!(&shared.state, State::Held(relay) if !relay.has_begun);
        let waiting: Vec<(u64, FlowId)> = self
            .held
            .values()
            .filter_map(|id| {
                self.shared.get(id).filter(|one| waits(one)).map(|one| (*id, one.flow))
            })
            .collect();
        if waiting.is_empty() {
            return waiting;
        }
        // A placeholder that is being connected is not among the copies.
        let is_led = |id: &u64| {
            self.door.callers.iter().any(|caller| {
                caller.stage != Stage::Waits && self.by_name.get(&caller.wants.flow) == Some(id)
            })
        };
        let copies = self.open_descriptors.still_open(self.shared.len());
        let gone = waiting.into_iter().filter(|(id, _)| !copies.contains(id) && !is_led(id));
        gone.collect()
    }

    /// Ready streams, and whether a process is at the door.
    pub(crate) fn poll_ready(&self) -> (Vec<u64>, bool) {
        let mut events = [const { Event { flags: EventFlags::empty(), data: EventData::new_u64(0) } };
            READY_MAX];
        let count = epoll::wait(&self.set, &mut events[..], Some(&AT_ONCE)).unwrap_or(0);
        let ids = events[..count].iter().map(|event| event.data.u64());
        let is_called = ids.clone().any(|id| id == DOOR);
        (ids.filter(|id| *id != DOOR).collect(), is_called)
    }

    /// Serves the door, one of whose sockets `is_ready`. `owner` tells the state of a process, and `is_changing_owner` whether a connection is
    /// changing hands. Returns what the front must do.
    pub(crate) fn serve_door(
        &mut self,
        now: Nanos,
        turn: u64,
        is_ready: bool,
        owner: impl Fn(u16) -> Owner,
        is_changing_owner: impl Fn(FlowId) -> bool,
    ) -> Vec<Need> {
        self.door.poll(now, &self.set, is_ready);
        let mut callers = std::mem::take(&mut self.door.callers);
        let mut needs = self.poll_takeovers();
        for id in self.stopping.clone() {
            needs.extend(self.stop(id, turn, &owner, &is_changing_owner));
        }
        let mut led: Vec<u64> = Vec::new();
        // Those that lead come first, so that nobody else is told to lead.
        callers.sort_by_key(|caller| caller.stage == Stage::Waits);
        callers.retain_mut(|caller| {
            let id = self.by_name.get(&caller.wants.flow).copied();
            let known = id.and_then(|id| Some((id, self.shared.get(&id)?)));
            let secret = caller.wants.secret;
            let is_entitled = |shared: &Shared| secret != 0 && shared.secrets.contains(&secret);
            let Some((id, shared)) = known.filter(|(_, one)| is_entitled(one)) else {
                caller.answer(Answer::Never);
                return false;
            };
            match &shared.state {
                State::Held(relay) if relay.has_begun => {
                    caller.answer(Answer::Done);
                    return false;
                }
                State::Held(_) => {}
                State::Owned => {
                    needs.extend(self.stop(id, turn, &owner, &is_changing_owner));
                    return true;
                }
                State::Stopping(_) => return true,
            }
            match self.lead(now, id, caller, &mut led) {
                Led::Stays => true,
                Led::Leaves => false,
                Led::Demoted => {
                    let cause = caller.wants.cause;
                    self.counts.demoted[cause as usize] += 1;
                    let owner = self.shared.get(&id).map(|one| one.owner.process);
                    needs.extend(owner.map(|process| Need::LogDemotion { process, cause }));
                    false
                }
            }
        });
        self.door.callers = callers;
        self.door.arm(&self.set);
        self.pace.record_poll(now, is_ready || !needs.is_empty());
        needs
    }

    /// Advances the stop of a connection's process.
    fn stop(
        &mut self,
        id: u64,
        turn: u64,
        owner: &impl Fn(u16) -> Owner,
        is_changing_owner: &impl Fn(FlowId) -> bool,
    ) -> Option<Need> {
        let shared = self.shared.get_mut(&id)?;
        let (process, flow) = (shared.owner.process, shared.flow);
        match (&mut shared.state, owner(process)) {
            (State::Owned, Owner::Inside | Owner::Outside(_)) => {
                shared.state = State::Stopping(None);
                if !self.stopping.contains(&id) {
                    self.stopping.push(id);
                }
                Some(Need::Stop(process))
            }
            (State::Stopping(seen @ None), Owner::Outside(_)) => {
                *seen = Some(turn);
                Some(Need::Poll)
            }
            // What it had published before it was seen outside was taken since.
            (State::Stopping(Some(_)), _) if is_changing_owner(flow) => None,
            (State::Stopping(Some(seen)), Owner::Outside(drained)) if drained > *seen => {
                let hold = Need::Hold { id, flow, owner: shared.owner, socket: shared.socket };
                self.next_takeover(id).or(Some(hold))
            }
            _ => None,
        }
    }

    /// Whether the owner of a connection may have one more stream.
    fn has_room(&self, id: u64) -> bool {
        let Some(process) = self.shared.get(&id).map(|one| one.owner.process) else { return false };
        let own = self.held.keys().filter(|(owner, _)| *owner == process).count();
        own <= STREAMS_MAX.saturating_sub(self.held.len())
    }

    /// Lets one caller at a time connect the placeholder.
    fn lead(&mut self, now: Nanos, id: u64, caller: &mut Caller, led: &mut Vec<u64>) -> Led {
        match caller.stage {
            Stage::Waits if led.contains(&id) => Led::Stays,
            Stage::Waits => {
                caller.stage = Stage::Leads;
                caller.since = now;
                led.push(id);
                let held = self.relay(id).map(|relay| relay.held);
                caller.answer(Answer::Go(held.as_ref().map(HeldFlow::shut).unwrap_or_default()));
                Led::Stays
            }
            Stage::Leads | Stage::Connected(_) if !caller.is_patient(now) => Led::Leaves,
            Stage::Leads => {
                led.push(id);
                Led::Stays
            }
            Stage::Connected(port) => {
                led.push(id);
                let Some(stream) = self.door.take(port) else { return Led::Stays };
                if !self.has_room(id) {
                    caller.answer(Answer::Never);
                    return Led::Leaves;
                }
                let Some(Shared { state: State::Held(relay), .. }) = self.shared.get_mut(&id)
                else {
                    return Led::Leaves;
                };
                let _ = epoll::delete(&self.set, &stream);
                let data = EventData::new_u64(id);
                let is_added = epoll::add(&self.set, &stream, data, AT_FIRST).is_ok();
                if !is_added || relay.begin(stream).is_err() {
                    return Led::Leaves;
                }
                caller.answer(Answer::Done);
                Led::Demoted
            }
        }
    }

    /// The relay of a held connection.
    pub(crate) fn relay(&mut self, id: u64) -> Option<&mut Relay> {
        match &mut self.shared.get_mut(&id)?.state {
            State::Held(relay) => Some(relay),
            _ => None,
        }
    }

    /// Waits for the events that a stream needs now.
    pub(crate) fn rearm(&mut self, id: u64) {
        if let Some(Shared { state: State::Held(relay), .. }) = self.shared.get(&id)
            && let Some(stream) = &relay.stream
        {
            let _ = epoll::modify(&self.set, stream, EventData::new_u64(id), relay.interest());
        }
    }
}

//! The host, as calls see it: through its dispatcher if that is on the same core, else through queues to the core that has it.

use std::sync::Arc;

use bytes::Bytes;
use wave_agent::HostBell;
use wave_agent::lanes::{In, PIECES_PER_STEP, ROOM_EVERY, lane};
use wave_core::agent::Step;
use wave_core::clock::Nanos;
use wave_core::message::Subject;
use wave_links::AnyPort;
use wave_rpc::dispatch::{Arrival, Dispatch, DispatchError, Event, Refused};
use wave_rpc::status::{Code, Status};

use crate::lanes::{Out, ToCore, ToHost};
use crate::slots::Ready;

/// The owner of a call in the dispatcher: a call on this core, or on a connection core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    Slot(u32),
    /// A call of a connection core, by the core's name for it.
    Core {
        core: usize,
        call: Subject,
    },
}

/// A host whose dispatcher is on this core.
pub struct Own {
    /// The agent's side of the host's window.
    pub dispatch: Dispatch<AnyPort, HostBell>,
    /// Owners of calls, by the calls' ids.
    owners: Vec<Owner>,
}

impl Own {
    /// A host over a fresh window with room for `calls` calls.
    pub fn new(dispatch: Dispatch<AnyPort, HostBell>, calls: u32) -> Own {
        Own { dispatch, owners: vec![Owner::Slot(u32::MAX); calls as usize] }
    }

    /// Begins a call, and records its owner.
    pub fn begin(
        &mut self,
        now: Nanos,
        arrival: Arrival,
        owner: Owner,
    ) -> Result<Subject, Refused> {
        let call = self.dispatch.begin(now, arrival)?;
        self.owners[call.id as usize] = owner;
        Ok(call)
    }

    /// The last owner of a call with this id.
    pub fn owner(&self, call: Subject) -> Option<Owner> {
        self.owners.get(call.id as usize).copied()
    }
}

/// A connection core's knowledge of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Absent,
    /// A host is attached, and does not take calls yet.
    Attached,
    Ready {
        /// Number of the attached host, counted from the first.
        host: u32,
        /// How long to look for work before parking.
        spin: Nanos,
    },
}

/// A host whose dispatcher is on the first core.
pub struct Remote {
    requests: Out<ToHost>,
    events: In<ToCore>,
    state: State,
    /// Number of calls so far; wraps.
    begun: u32,
}

/// The first core's end of the queues of a [`Remote`].
#[derive(Debug)]
pub struct RemoteEnd {
    /// Requests of the connection core.
    pub requests: In<ToHost>,
    pub events: Out<ToCore>,
}

impl Remote {
    /// Makes both ends: `own` rings the connection core, `first` the first core.
    pub fn new(own: Arc<Ready>, first: Arc<Ready>) -> (Remote, RemoteEnd) {
        let (requests, requests_end) = lane(first);
        let (events_end, events) = lane(own);
        let end = RemoteEnd { requests: requests_end, events: events_end };
        (Remote { requests, events, state: State::Absent, begun: 0 }, end)
    }

    fn begin(&mut self, arrival: Arrival, slot: u32) -> Result<Subject, Refused> {
        let State::Ready { host, .. } = self.state else { return Err(Refused::NoHost) };
        self.begun = self.begun.wrapping_add(1);
        let call = Subject { id: slot, generation: self.begun };
        self.requests.send(ToHost::Begin { host, call, arrival });
        Ok(call)
    }

    /// Takes events from the first core, up to the report that the host has gone.
    fn step(&mut self, now: Nanos, events: &mut Vec<Event>) -> Step {
        self.requests.flush();
        let mut any = false;
        for _ in 0..PIECES_PER_STEP {
            let Some(event) = self.events.take() else { break };
            any = true;
            match event {
                ToCore::Event(event) => events.push(event),
                ToCore::Attached => self.state = State::Attached,
                ToCore::Ready { host, spin } => {
                    self.state = State::Ready { host, spin };
                    self.requests.send(ToHost::Ready(host));
                }
                ToCore::Gone => return Step::Revoked,
            }
        }
        match any {
            true => Step::Progress,
            false => Step::Idle(self.requests.is_behind().then(|| now + ROOM_EVERY)),
        }
    }
}

/// The host, as calls see it.
pub enum Host {
    /// The dispatcher is on this core.
    Own(Box<Own>),
    /// The dispatcher is on the first core, if a host is attached at all.
    Remote(Remote),
}

impl Host {
    /// Whether calls may begin.
    pub fn is_ready(&self) -> bool {
        match self {
            Host::Own(own) => own.dispatch.is_ready(),
            Host::Remote(remote) => matches!(remote.state, State::Ready { .. }),
        }
    }

    /// Whether a host is attached, ready or not.
    fn is_attached(&self) -> bool {
        match self {
            Host::Own(_) => true,
            Host::Remote(remote) => remote.state != State::Absent,
        }
    }

    /// The dispatcher, if it is on this core.
    pub fn own(&self) -> Option<&Own> {
        match self {
            Host::Own(own) => Some(own),
            Host::Remote(_) => None,
        }
    }

    /// The dispatcher, if it is on this core.
    pub fn own_mut(&mut self) -> Option<&mut Own> {
        match self {
            Host::Own(own) => Some(own),
            Host::Remote(_) => None,
        }
    }

    /// How long to look for work before parking.
    pub fn spin(&self) -> Nanos {
        match self {
            Host::Own(own) => own.dispatch.spin(),
            Host::Remote(remote) => match remote.state {
                State::Ready { spin, .. } => spin,
                State::Absent | State::Attached => Nanos(0),
            },
        }
    }

    /// Begins a slot's call. A far host may still refuse it later, by an event.
    pub fn begin(&mut self, now: Nanos, arrival: Arrival, slot: u32) -> Result<Subject, Refused> {
        match self {
            Host::Own(own) => own.begin(now, arrival, Owner::Slot(slot)),
            Host::Remote(remote) => remote.begin(arrival, slot),
        }
    }

    /// The client has sent a message; with `end` it is the last.
    pub fn message(&mut self, call: Subject, message: Bytes, end: bool, compressed: bool) {
        match self {
            Host::Own(own) => own.dispatch.message(call, message, end, compressed),
            Host::Remote(remote) => {
                remote.requests.send(ToHost::Message { call, message, end, compressed })
            }
        }
    }

    /// The client sends nothing more.
    pub fn half_close(&mut self, call: Subject) {
        match self {
            Host::Own(own) => own.dispatch.half_close(call),
            Host::Remote(remote) => remote.requests.send(ToHost::HalfClose(call)),
        }
    }

    /// Grants the room of a reply of `bytes` bytes again, which was passed on to the client.
    pub fn grant(&mut self, call: Subject, bytes: u32) {
        match self {
            Host::Own(own) => own.dispatch.grant(call, bytes),
            Host::Remote(remote) => remote.requests.send(ToHost::Grant(call, bytes)),
        }
    }

    /// Cancels the call: its events are dropped from now on.
    pub fn cancel(&mut self, call: Subject, why: Code) {
        match self {
            Host::Own(own) => own.dispatch.cancel(call, why),
            Host::Remote(remote) => remote.requests.send(ToHost::Cancel(call, why)),
        }
    }

    /// The owner of the call that an event names.
    pub fn owner(&self, call: Subject) -> Option<Owner> {
        match self {
            Host::Own(own) => own.owner(call),
            Host::Remote(_) => Some(Owner::Slot(call.id)),
        }
    }

    pub fn step(&mut self, now: Nanos, events: &mut Vec<Event>) -> Result<Step, DispatchError> {
        match self {
            Host::Own(own) => own.dispatch.step(now, events),
            Host::Remote(remote) => Ok(remote.step(now, events)),
        }
    }

    /// Publishes requests to the first core.
    pub fn flush(&mut self) {
        if let Host::Remote(remote) = self {
            remote.requests.flush();
        }
    }

    /// Whether clients have to wait until the first core has taken some requests.
    pub fn is_behind(&self) -> bool {
        match self {
            Host::Own(_) => false,
            Host::Remote(remote) => remote.requests.is_behind(),
        }
    }

    /// Whether the other end of the queues has gone, so that requests are lost.
    pub fn is_abandoned(&self) -> bool {
        match self {
            Host::Own(_) => false,
            Host::Remote(remote) => remote.requests.is_abandoned(),
        }
    }

    /// Forgets a host that has gone. Returns the queues to the next one, if this host was far.
    pub fn gone(self) -> Option<Host> {
        match self {
            Host::Own(_) => None,
            Host::Remote(remote) => Some(Host::Remote(Remote { state: State::Absent, ..remote })),
        }
    }

    /// Announces that this core is about to sleep.
    pub fn prepare_park(&mut self) {
        if let Host::Own(own) = self {
            own.dispatch.prepare_park();
        }
    }

    /// Clears the flag that says that this core is parked.
    pub fn unpark(&mut self) {
        if let Host::Own(own) = self {
            own.dispatch.unpark();
        }
    }
}

/// The answer to calls that the host cannot take: it has gone, or is not ready yet.
pub fn unavailable(host: Option<&Host>) -> Status {
    let why = match host.is_some_and(Host::is_attached) {
        false => "no host is attached to the agent that serves this address",
        true => "the host of the agent that serves this address has attached, and is not ready yet",
    };
    Status::new(Code::Unavailable, why)
}

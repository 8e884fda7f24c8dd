//! What all calls of a front share: the host, what it serves, limits, time.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Instant;

use wave_core::clock::Nanos;
use wave_core::message::Subject;
use wave_links::AnyPort;
use wave_rpc::dispatch::Dispatch;
use wave_rpc::service::Method;
use wave_rpc::status::{Code, Status};

use super::limits::Limits;
use super::methods::Methods;
use super::reply::Templates;
use crate::attach::HostBell;

/// A host that is attached.
pub struct Host {
    /// The agent's side of its window.
    pub dispatch: Dispatch<AnyPort, HostBell>,
    /// Slots by the ids of calls.
    slots: Vec<u32>,
}

impl Host {
    /// Over a fresh window of so many calls.
    pub fn new(dispatch: Dispatch<AnyPort, HostBell>, calls: u32) -> Host {
        Host { dispatch, slots: vec![u32::MAX; calls as usize] }
    }

    /// Notes which slot has a call.
    pub fn set_slot(&mut self, call: Subject, slot: u32) {
        self.slots[call.id as usize] = slot;
    }

    /// The slot that had a call of this id last.
    pub fn slot(&self, call: Subject) -> Option<u32> {
        self.slots.get(call.id as usize).copied()
    }
}

/// How many calls came to what in the front.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrontCounts {
    /// Connections that were taken.
    pub connections: u64,
    /// Connections that were turned away, because there were as many as there may be.
    pub turned_away: u64,
    /// Requests that came.
    pub calls: u64,
    /// Calls that were answered to their end.
    pub ended: u64,
    /// Calls that their clients ended.
    pub gone: u64,
}

/// What all calls share.
pub struct Shared {
    /// The host, if one is there.
    pub host: Option<Host>,
    /// What it serves, or what the last one did.
    pub methods: Option<Rc<Methods>>,
    /// The limits.
    pub limits: Limits,
    /// Parts of replies.
    pub templates: Templates,
    /// Bytes that calls hold.
    pub held: usize,
    /// When calls that the host does not have end by themselves, and their slots.
    pub deadlines: BTreeSet<(Nanos, u32)>,
    /// The front is about to end.
    pub is_draining: bool,
    /// What came to what.
    pub counts: FrontCounts,
    /// The time of the last step.
    pub stepped: Nanos,
    start: Instant,
}

impl Shared {
    /// Of a front whose clock began at `start`.
    pub fn new(limits: Limits, start: Instant) -> Shared {
        Shared {
            host: None,
            methods: None,
            limits,
            templates: Templates::default(),
            held: 0,
            deadlines: BTreeSet::new(),
            is_draining: false,
            counts: FrontCounts::default(),
            stepped: Nanos(0),
            start,
        }
    }

    /// The time.
    pub fn now(&self) -> Nanos {
        Nanos(self.start.elapsed().as_nanos() as u64)
    }

    /// Whether calls can be served.
    pub fn is_serving(&self) -> bool {
        !self.is_draining && self.host.as_ref().is_some_and(|host| host.dispatch.is_ready())
    }

    /// A method of the host's.
    pub fn method(&self, method: u16) -> Option<&Method> {
        self.methods.as_ref().map(|methods| methods.get(method))
    }

    /// Whether so many bytes more may be held.
    pub fn check_room(&self, bytes: usize) -> Result<(), Status> {
        if self.held.saturating_add(bytes) <= self.limits.held_bytes {
            return Ok(());
        }
        Err(Status::new(Code::ResourceExhausted, "the agent holds as many messages as it may"))
    }
}

//! State that all calls of a core share: the host, its service, limits, time.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use wave_core::clock::Nanos;
use wave_rpc::service::Method;
use wave_rpc::status::{Code, Status};

use crate::host::Host;
use crate::limits::Limits;
use crate::methods::Methods;
use crate::orca::Meter;
use crate::reply::Templates;

/// Counters of connections and calls in the front.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrontCounts {
    /// Connections that were accepted.
    pub connections: u64,
    /// Connections that were refused, because the limit was reached and all had calls.
    pub turned_away: u64,
    /// Connections that got a GOAWAY to make room for others.
    pub displaced: u64,
    /// Requests received, refused ones included.
    pub calls: u64,
    /// Calls that were answered completely.
    pub ended: u64,
    /// Calls that their clients ended.
    pub gone: u64,
    /// Most bytes that one core read from its clients between two polls of its sockets. Those of TLS count twice.
    pub read_max: u64,
}

impl FrontCounts {
    /// The sums of both counts, and the higher maximum.
    pub fn plus(self, other: FrontCounts) -> FrontCounts {
        FrontCounts {
            connections: self.connections + other.connections,
            turned_away: self.turned_away + other.turned_away,
            displaced: self.displaced + other.displaced,
            calls: self.calls + other.calls,
            ended: self.ended + other.ended,
            gone: self.gone + other.gone,
            read_max: self.read_max.max(other.read_max),
        }
    }
}

/// Memory that the calls of all cores of a front hold together, and the host's load.
#[derive(Debug)]
pub struct Totals {
    held: AtomicUsize,
    held_max: usize,
    /// The load of the host.
    pub load: Meter,
}

impl Totals {
    /// Allows at most `held_max` bytes for messages.
    pub fn new(held_max: usize) -> Totals {
        Totals { held: AtomicUsize::new(0), held_max, load: Meter::default() }
    }

    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Records that a call that held `was` bytes now holds `is`.
    pub fn hold(&self, was: usize, is: usize) {
        if was != is {
            // The sum wraps, so a smaller `is` subtracts.
            self.held.fetch_add(is.wrapping_sub(was), Ordering::Relaxed);
        }
    }

    /// Bytes that may still be held.
    pub fn left(&self) -> usize {
        self.held_max.saturating_sub(self.held())
    }

    /// Checks whether `bytes` more bytes may be held.
    pub fn check_room(&self, bytes: usize) -> Result<(), Status> {
        match bytes <= self.left() {
            true => Ok(()),
            false => Err(Totals::no_room()),
        }
    }

    /// The status of calls for which there is no memory.
    pub fn no_room() -> Status {
        Status::new(Code::ResourceExhausted, "the agent holds as many messages as it may")
    }
}

/// State that all calls of a core share.
pub struct Shared {
    /// The host, as calls reach it. On the first core only while one is attached.
    pub host: Option<Host>,
    /// Methods of the host, or of the last one.
    pub methods: Option<Rc<Methods>>,
    pub limits: Limits,
    /// Prepared parts of replies.
    pub templates: Templates,
    /// Memory that calls hold.
    pub totals: Arc<Totals>,
    /// Due times and slots of calls that the front times itself, because the host does not have them.
    pub deadlines: BTreeSet<(Nanos, u32)>,
    /// Whether trailers carry a load report.
    pub reports_load: bool,
    /// The front is about to end.
    pub is_draining: bool,
    pub counts: FrontCounts,
    /// Time of the last step.
    pub stepped: Nanos,
    start: Instant,
}

impl Shared {
    /// State of one core of a front whose clock began at `start`. All its cores share `totals`.
    pub fn new(limits: Limits, start: Instant, totals: Arc<Totals>) -> Shared {
        Shared {
            host: None,
            methods: None,
            limits,
            templates: Templates::default(),
            totals,
            deadlines: BTreeSet::new(),
            reports_load: false,
            is_draining: false,
            counts: FrontCounts::default(),
            stepped: Nanos(0),
            start,
        }
    }

    pub fn now(&self) -> Nanos {
        Nanos(self.start.elapsed().as_nanos() as u64)
    }

    /// Whether calls can be served.
    pub fn is_serving(&self) -> bool {
        !self.is_draining && self.host.as_ref().is_some_and(Host::is_ready)
    }

    /// A method of the host.
    pub fn method(&self, method: u16) -> Option<&Method> {
        self.methods.as_ref().map(|methods| methods.get(method))
    }
}

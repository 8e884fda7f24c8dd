//! Processes that were let in, with what each has of the agent: windows, descriptors, address space, events that wait.

use std::collections::{HashMap, VecDeque};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use wave_links::LentPayload;
use wave_tcp::context::{Event, Request};
use wave_tcp::control::{PayloadMemory, Shares};
use wave_tcp::datapath::Ring;

use crate::process::Process;

/// Processes at once.
pub const PROCESSES_MAX: usize = 256;
/// Descriptors for all else: those of an offer while it is looked at, connections that wait, the wire, inquiries, captures.
const DESCRIPTORS_KEPT: u64 = 320;
/// A part of payload memory for which the kernel keeps a page of its own in this process: what maps its pages.
const SPAN_BYTES: u64 = 2 << 20;
/// Most spans of all payload memories that rings lie in: 128 GiB, at up to 256 MiB for their tables.
pub const SPANS_MAX: u32 = 1 << 16;
/// Most events that wait for all processes.
pub const EVENTS_MAX: u32 = 1 << 17;
/// Events that a process gets room for at a time.
const EVENTS_AT_A_TIME: u32 = 1 << 10;

/// What processes have shares of.
const WINDOWS: usize = 0;
const DESCRIPTORS: usize = 1;
const SPANS: usize = 2;
const EVENTS: usize = 3;

/// What all processes have.
#[derive(Debug)]
pub(crate) struct Seats(Shares<4>);

/// A process in its seat.
pub(crate) struct Seated {
    pub(crate) process: Process,
    at: u16,
    /// Events that found their queue full, and where the last [`Event::Progress`] of a socket is among all there ever were.
    overflow: VecDeque<(u16, Event)>,
    latest: HashMap<u32, u64>,
    first: u64,
    /// Events that it has room for.
    events_max: u32,
    /// Of each span of its payload memory, whether a ring was ever in it.
    spans: Vec<u64>,
    /// It has hung up. What it asked for before is still taken.
    pub(crate) has_hung_up: bool,
    /// It has gone; its memory stays until the stack names it no more.
    pub(crate) is_gone: bool,
}

/// A process does not get this connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BeyondShare {
    /// The process's name for it.
    pub(crate) socket: u32,
}

impl Seats {
    /// For as many descriptors as this process may have.
    pub(crate) fn new() -> Seats {
        let limit = getrlimit(Resource::Nofile);
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
        let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let descriptors = u32::try_from(most.saturating_sub(DESCRIPTORS_KEPT)).unwrap_or(u32::MAX);
        Seats(Shares::new([PROCESSES_MAX as u32, descriptors, SPANS_MAX, EVENTS_MAX]))
    }

    /// Takes what a process needs for a seat, unless its program or user has its share.
    pub(crate) fn admit(&mut self, at: u16, process: &Process) -> bool {
        let descriptors = process.descriptors();
        self.0.enter(at, process.owner());
        if !self.0.has_room(at, WINDOWS, 1) || !self.0.has_room(at, DESCRIPTORS, descriptors) {
            self.0.leave(at);
            return false;
        }
        self.0.take(at, WINDOWS, 1);
        self.0.take(at, DESCRIPTORS, descriptors);
        true
    }

    /// A seat is free again.
    pub(crate) fn leave(&mut self, at: u16) {
        self.0.leave(at);
    }
}

impl Seated {
    /// A process that was admitted.
    pub(crate) fn new(at: u16, process: Process) -> Seated {
        let spans = process.payload().bytes().div_ceil(SPAN_BYTES).div_ceil(64) as usize;
        Seated {
            process,
            at,
            overflow: VecDeque::new(),
            latest: HashMap::new(),
            first: 0,
            events_max: 0,
            spans: vec![0; spans],
            has_hung_up: false,
            is_gone: false,
        }
    }

    /// Whether the rings of a request, if it names any, may be used: this process has room for what the kernel keeps for them.
    ///
    /// # Errors
    /// Its program, or its user, has its share of that.
    pub(crate) fn reach(
        &mut self,
        seats: &mut Seats,
        request: &Request,
    ) -> Result<(), BeyondShare> {
        let (socket, rings) = match *request {
            Request::Slot { socket, receive, send, .. } => (socket, [receive, send]),
            Request::Connect { socket, receive, send, .. } => (socket, [receive, send]),
            _ => return Ok(()),
        };
        for Ring { offset, bytes } in rings {
            let spans = offset / SPAN_BYTES..(offset + u64::from(bytes)).div_ceil(SPAN_BYTES);
            let bit = |span: u64| ((span / 64) as usize, 1_u64 << (span % 64));
            let is_new = |seated: &Seated, span: u64| seated.spans[bit(span).0] & bit(span).1 == 0;
            let new = spans.clone().filter(|span| is_new(self, *span)).count() as u32;
            if new == 0 {
                continue;
            }
            if !seats.0.has_room(self.at, SPANS, new) {
                return Err(BeyondShare { socket });
            }
            seats.0.take(self.at, SPANS, new);
            spans.for_each(|span| self.spans[bit(span).0] |= bit(span).1);
        }
        Ok(())
    }

    /// Sends an event, or keeps it. Returns false if the process is at fault.
    pub(crate) fn send(&mut self, seats: &mut Seats, context: u16, event: Event) -> bool {
        if self.is_gone || context >= self.process.contexts() {
            return true;
        }
        if self.overflow.is_empty() {
            match self.process.send(context, &event) {
                Ok(true) => return true,
                Ok(false) => {}
                Err(_) => return false,
            }
        }
        match event {
            // Such events are lost where many come at once.
            Event::Warned { .. } => return true,
            // A newer one says all that an older one said.
            Event::Progress(progress) => {
                let at = self.latest.get(&progress.socket);
                let at = at.and_then(|at| at.checked_sub(self.first));
                let waits = at.and_then(|at| self.overflow.get_mut(at as usize));
                if let Some(kept @ (_, Event::Progress(_))) = waits.filter(|kept| kept.0 == context)
                {
                    kept.1 = event;
                    return true;
                }
                self.latest.insert(progress.socket, self.first + self.overflow.len() as u64);
            }
            _ => {}
        }
        if self.overflow.len() as u32 == self.events_max {
            if !seats.0.has_room(self.at, EVENTS, EVENTS_AT_A_TIME) {
                return false;
            }
            seats.0.take(self.at, EVENTS, EVENTS_AT_A_TIME);
            self.events_max += EVENTS_AT_A_TIME;
        }
        self.overflow.push_back((context, event));
        true
    }

    /// Sends what waits, as far as there is room. Returns false if the process is at fault.
    pub(crate) fn flush(&mut self, seats: &mut Seats) -> bool {
        while let Some((context, event)) = self.overflow.front().copied() {
            match self.process.send(context, &event) {
                Ok(true) => {}
                Ok(false) => return true,
                Err(_) => return false,
            }
            self.overflow.pop_front();
            self.first += 1;
        }
        self.forget_events(seats);
        true
    }

    /// It has gone: nothing is sent to it any more.
    pub(crate) fn go(&mut self, seats: &mut Seats) {
        self.is_gone = true;
        self.overflow.clear();
        self.forget_events(seats);
    }

    /// No events wait, and room for them is for others.
    fn forget_events(&mut self, seats: &mut Seats) {
        if self.events_max > 0 {
            seats.0.give(self.at, EVENTS, self.events_max);
            self.events_max = 0;
            self.overflow = VecDeque::new();
            self.latest = HashMap::new();
        }
    }
}

/// A process's payload memory, as the stack looks at it.
pub(crate) struct Lent<'a>(pub(crate) &'a mut LentPayload);

impl PayloadMemory for Lent<'_> {
    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn holds(&mut self, at: u64, bytes: u32) -> bool {
        self.0.holds(at, bytes)
    }
}

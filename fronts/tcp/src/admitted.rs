//! Admitted processes, and the agent's resources that each uses: windows, descriptors, address space, waiting events.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};
use wave_links::LentPayload;
use wave_tcp::context::demotion::Cause;
use wave_tcp::context::{Event, Request};
use wave_tcp::control::{PayloadMemory, Shares};
use wave_tcp::datapath::Ring;

use crate::process::{KeptProcess, Process};
use crate::wire_port::ProcessPayloads;

/// Most processes at a time: a server with a process for each of 1,000 connections leaves room for others.
pub const PROCESSES_MAX: usize = 2_048;
/// Descriptors for everything else: an offer while it is checked, waiting connections, the wire, reports, captures.
const DESCRIPTORS_KEPT: u64 = 320;
/// Most address space for the mappings of payload memories, where there are several of each: half of what a process has.
const PAYLOADS_BYTES_MAX: u64 = 1 << 46;
/// Descriptors of a flow group: its wire and two copies, and its bell.
const DESCRIPTORS_OF_A_THREAD: u64 = 4;
/// Size of a span: the part of payload memory that one page of the agent's page tables maps.
const SPAN_BYTES: u64 = 2 << 20;
/// Most spans with rings in all payload memories: 128 GiB, with up to 256 MiB of page tables, or as much for each flow group.
pub const SPANS_MAX: u32 = 1 << 16;
/// Most waiting events of all processes.
pub const EVENTS_MAX: u32 = 1 << 17;
/// Events that a process gets room for at a time.
const EVENTS_AT_A_TIME: u32 = 1 << 10;

/// The resources that are shared, as tables of [`ProcessShares`].
const WINDOWS: usize = 0;
const DESCRIPTORS: usize = 1;
const SPANS: usize = 2;
const EVENTS: usize = 3;

/// The agent's shared resources, and their use by each process.
#[derive(Debug)]
pub(crate) struct ProcessShares(Shares<4>);

/// An admitted process.
pub(crate) struct Admitted {
    pub(crate) process: Process,
    at: u16,
    /// Events that found their queue full. `latest` is the number of a socket's last [`Event::Progress`], `first` that of the
    /// first event.
    overflow: VecDeque<(u16, Event)>,
    latest: HashMap<u32, u64>,
    first: u64,
    /// Events that `overflow` may hold.
    events_max: u32,
    /// A bit for each span of its payload memory, set once a ring was in it.
    spans: Vec<u64>,
    /// The front's turn in which its queue was last found empty.
    pub(crate) drained: u64,
    /// The process has hung up. Its earlier requests are still served.
    pub(crate) has_hung_up: bool,
    /// The process has gone. Its memory stays until the stack no longer names it.
    pub(crate) is_gone: bool,
    /// A bit for each cause for which a line was logged that a connection of the process was demoted.
    logged_causes: u32,
}

/// The state of an admitted process, handed over with the process's descriptors.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct KeptAdmitted {
    pub(crate) process: KeptProcess,
    overflow: VecDeque<(u16, Event)>,
    latest: HashMap<u32, u64>,
    first: u64,
    spans: Vec<u64>,
    has_hung_up: bool,
    is_gone: bool,
    logged_causes: u32,
}

/// A connection is refused, because the process's program or user has used up its share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BeyondShare {
    /// The process's name for the connection.
    pub(crate) socket: u32,
}

/// Counters of refused processes and requests, for reports.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct AdmissionCounters {
    /// Processes whose offers the door refused.
    pub(crate) refused_offers: u64,
    /// Processes that were not admitted: their program or user had its share, or no number was free.
    pub(crate) over_share: u64,
    /// Processes turned out because they wrote nonsense, or took no events.
    pub(crate) evicted: u64,
    /// Requests whose rings would have exceeded a share.
    pub(crate) rings: u64,
}

impl ProcessShares {
    /// Raises the agent's limit of descriptors as far as allowed, and shares them out. Each of the `threads` other threads maps
    /// payload memories separately, which takes addresses again.
    pub(crate) fn new(threads: usize, payload_bytes_max: u64) -> ProcessShares {
        let limit = getrlimit(Resource::Nofile);
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
        let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let kept = DESCRIPTORS_KEPT + DESCRIPTORS_OF_A_THREAD * threads as u64;
        let descriptors = u32::try_from(most.saturating_sub(kept)).unwrap_or(u32::MAX);
        let windows = match threads {
            0 => PROCESSES_MAX as u32,
            // Each thread maps each payload memory.
            threads => (PAYLOADS_BYTES_MAX / payload_bytes_max / (1 + threads as u64))
                .clamp(1, PROCESSES_MAX as u64) as u32,
        };
        ProcessShares(Shares::new([windows, descriptors, SPANS_MAX, EVENTS_MAX]))
    }

    /// Takes what a process needs. Returns false if its program or user has used up its share.
    pub(crate) fn admit(&mut self, at: u16, process: &Process) -> bool {
        let descriptors = process.descriptors();
        self.0.add_process(at, process.owner());
        if !self.0.has_room(at, WINDOWS, 1) || !self.0.has_room(at, DESCRIPTORS, descriptors) {
            self.0.remove_process(at);
            return false;
        }
        self.0.acquire(at, WINDOWS, 1);
        self.0.acquire(at, DESCRIPTORS, descriptors);
        true
    }

    /// Acquires the shares of a process that is restored from its old agent.
    pub(crate) fn acquire_restored(&mut self, admitted: &Admitted) {
        let (at, process) = (admitted.at, &admitted.process);
        self.0.add_process(at, process.owner());
        self.0.acquire(at, WINDOWS, 1);
        self.0.acquire(at, DESCRIPTORS, process.descriptors());
        self.0.acquire(at, SPANS, admitted.spans.iter().map(|word| word.count_ones()).sum());
        self.0.acquire(at, EVENTS, admitted.events_max);
    }

    /// Frees what a process used.
    pub(crate) fn remove_process(&mut self, at: u16) {
        self.0.remove_process(at);
    }
}

impl Admitted {
    /// A process that [`ProcessShares::admit`] has admitted.
    pub(crate) fn new(at: u16, process: Process) -> Admitted {
        let spans = process.payload().bytes().div_ceil(SPAN_BYTES).div_ceil(64) as usize;
        Admitted {
            process,
            at,
            overflow: VecDeque::new(),
            latest: HashMap::new(),
            first: 0,
            events_max: 0,
            spans: vec![0; spans],
            drained: 0,
            has_hung_up: false,
            is_gone: false,
            logged_causes: 0,
        }
    }

    /// Whether no line was logged yet about a connection of the process that was demoted for this cause.
    pub(crate) fn is_first_demotion(&mut self, cause: Cause) -> bool {
        let bit = 1 << cause as u8;
        let is_first = self.logged_causes & bit == 0;
        self.logged_causes |= bit;
        is_first
    }

    /// The state and the descriptors for another agent.
    pub(crate) fn hand_over(&self) -> (KeptAdmitted, Vec<BorrowedFd<'_>>) {
        let (process, fds) = self.process.hand_over();
        let kept = KeptAdmitted {
            process,
            overflow: self.overflow.clone(),
            latest: self.latest.clone(),
            first: self.first,
            spans: self.spans.clone(),
            has_hung_up: self.has_hung_up,
            is_gone: self.is_gone,
            logged_causes: self.logged_causes,
        };
        (kept, fds)
    }

    /// Restores a process of the old agent.
    ///
    /// # Errors
    /// See [`Process::restore`].
    pub(crate) fn restore(
        at: u16,
        kept: KeptAdmitted,
        fds: Vec<OwnedFd>,
        threads: usize,
    ) -> Result<Admitted, String> {
        let process = Process::restore(&kept.process, fds, threads)?;
        let KeptAdmitted {
            overflow,
            latest,
            first,
            spans,
            has_hung_up,
            is_gone,
            logged_causes,
            ..
        } = kept;
        let events_max = (overflow.len() as u32).next_multiple_of(EVENTS_AT_A_TIME);
        let admitted = Admitted::new(at, process);
        let admitted = Admitted { overflow, latest, first, events_max, spans, ..admitted };
        Ok(Admitted { has_hung_up, is_gone, logged_causes, ..admitted })
    }

    /// Takes the spans of a request's rings, if it names any.
    ///
    /// # Errors
    /// The process's program or user has used up its share of spans.
    pub(crate) fn reserve(
        &mut self,
        shares: &mut ProcessShares,
        request: &Request,
    ) -> Result<(), BeyondShare> {
        let (socket, rings) = match *request {
            Request::Slot { socket, receive, send, .. } => (socket, [receive, send]),
            Request::Connect { socket, receive, send, .. } => (socket, [receive, send]),
            Request::Take { socket, receive, send, .. } => (socket, [receive, send]),
            _ => return Ok(()),
        };
        for Ring { offset, bytes } in rings {
            let spans = offset / SPAN_BYTES..(offset + u64::from(bytes)).div_ceil(SPAN_BYTES);
            let bit = |span: u64| ((span / 64) as usize, 1_u64 << (span % 64));
            let is_new =
                |admitted: &Admitted, span: u64| admitted.spans[bit(span).0] & bit(span).1 == 0;
            let new = spans.clone().filter(|span| is_new(self, *span)).count() as u32;
            if new == 0 {
                continue;
            }
            if !shares.0.has_room(self.at, SPANS, new) {
                return Err(BeyondShare { socket });
            }
            shares.0.acquire(self.at, SPANS, new);
            spans.for_each(|span| self.spans[bit(span).0] |= bit(span).1);
        }
        Ok(())
    }

    /// Sends an event, or queues it. Returns false if the process is at fault.
    pub(crate) fn send(&mut self, shares: &mut ProcessShares, context: u16, event: Event) -> bool {
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
            // Such an event is dropped if its queue is full.
            Event::SoftError { .. } => return true,
            // Progress is cumulative: the newer one replaces the older one.
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
            if !shares.0.has_room(self.at, EVENTS, EVENTS_AT_A_TIME) {
                return false;
            }
            shares.0.acquire(self.at, EVENTS, EVENTS_AT_A_TIME);
            self.events_max += EVENTS_AT_A_TIME;
        }
        self.overflow.push_back((context, event));
        true
    }

    /// Sends waiting events, as far as there is room. Returns false if the process is at fault.
    pub(crate) fn flush(&mut self, shares: &mut ProcessShares) -> bool {
        while let Some((context, event)) = self.overflow.front().copied() {
            match self.process.send(context, &event) {
                Ok(true) => {}
                Ok(false) => return true,
                Err(_) => return false,
            }
            if let Event::Progress(progress) = event
                && self.latest.get(&progress.socket) == Some(&self.first)
            {
                self.latest.remove(&progress.socket);
            }
            self.overflow.pop_front();
            self.first += 1;
        }
        self.forget_events(shares);
        true
    }

    /// Marks the process as gone: nothing is sent to it any more.
    pub(crate) fn mark_gone(&mut self, shares: &mut ProcessShares) {
        self.is_gone = true;
        self.overflow.clear();
        self.forget_events(shares);
    }

    /// Returns the room for events. No event may wait.
    fn forget_events(&mut self, shares: &mut ProcessShares) {
        if self.events_max > 0 {
            shares.0.release(self.at, EVENTS, self.events_max);
            self.events_max = 0;
            self.overflow = VecDeque::new();
            self.latest = HashMap::new();
        }
    }
}

impl ProcessPayloads for Vec<Option<Box<Admitted>>> {
    fn payload(&self, process: u16) -> Option<&LentPayload> {
        let admitted = self.get(usize::from(process))?.as_ref()?;
        Some(admitted.process.payload())
    }
}

/// A process's payload memory, as the stack sees it.
pub(crate) struct Lent<'a>(pub(crate) &'a mut LentPayload);

impl PayloadMemory for Lent<'_> {
    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn is_backed(&mut self, at: u64, bytes: u32) -> bool {
        self.0.is_backed(at, bytes)
    }
}

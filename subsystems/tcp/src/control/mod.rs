//! The control plane: handshakes, timers, closing, and everything else that is not data of an established connection.
//!
//! A [`Stack`] is a data path with its control plane. The control plane observes a flow through its statistics and changes it
//! through commands (docs/adr/0055). The caller gets frames to send, payload to copy, and events for hosts.

mod address;
mod closed_ports;
mod connection;
mod discovery;
mod ecn;
mod frames;
mod handover;
mod handshake;
mod held;
mod icmp_errors;
mod listeners;
mod memory;
mod neighbours;
mod options;
mod ports;
mod rate_limits;
mod refusals;
mod reply;
mod requests;
mod rtt;
mod secrets;
mod shares;
mod socket_info;
mod takeover;
mod time_wait;

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::num::NonZeroU64;

use serde::{Deserialize, Serialize};
use wave_core::clock::Nanos;
use wave_core::waiting::Heap;

pub use address::{Address, Ipv6Config};
pub use handover::{RestoreError, State as StackState};
pub use held::HeldFlow;
pub use memory::PayloadMemory;
pub use refusals::Call;
pub use secrets::Secrets;
pub use shares::{Owner, Shares};
pub use socket_info::{SocketInfo, State};
pub use takeover::RingCopy;

use crate::capabilities::Capabilities;
use crate::congestion::Algorithm;
use crate::context::{ContextId, Event, LastReads, Reason, Sharing, Update};
use crate::datapath::{Batch, Datapath, FlowId, Output, Packet, Ring, Ticket};
use crate::trace::Trace;
use crate::tuples::Tuples;
use closed_ports::ClosedPorts;
use connection::Connection;
use handshake::Handshake;
use handshake::early::EarlySegments;
use listeners::accepts_at;
use neighbours::Neighbours;
use takeover::{Lent, Takeover};
use time_wait::TimeWait;

// Tables have an entry for each connection, each handshake, and each connection in TIME_WAIT, so entries must stay small.
const _: () = {
    assert!(size_of::<Option<Connection>>() <= 336);
    assert!(size_of::<Handshake>() <= 168);
    assert!(size_of::<time_wait::TimeWaitEntry>() <= 48);
};

/// Limit of packets that wait for the data path, and of requests.
const WAITING_MAX: usize = 1024;
/// Capacity for the outputs of one poll, which usually suffices.
const OUTPUTS: usize = 512;
/// Limit of statistics read in one poll.
const STATISTICS_PER_POLL: usize = 64;
/// Limit of connections of gone processes that one poll closes.
const CLOSED_PER_POLL: u32 = 64;

/// Sizes of a stack's tables.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Bounds {
    /// Limit of connections.
    pub flows: u32,
    /// Limit of handshakes.
    pub handshakes: u32,
    /// Limit of connections in TIME_WAIT.
    pub time_wait: u32,
    /// Limit of listeners.
    pub listeners: u32,
    /// Limit of unused slots of one listener.
    pub slots: u32,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { flows: 16_384, handshakes: 2_048, time_wait: 4_096, listeners: 256, slots: 1_024 }
    }
}

/// Work that only a stack leaves to its caller.
#[derive(Clone, Copy, Debug)]
pub enum Action {
    /// Copy rings from one process's memory to another's, then call [`Stack::rings_copied`].
    CopyRings(RingCopy),
    /// The stack no longer uses this process's memory; its number may be reused.
    Released(u16),
    /// For people: the stack has refused this context a call, or has reset its connection, for a reason of its own.
    Refused(ContextId, Call, Reason),
}

/// Work that a poll of a [`Stack`] leaves to the caller. Written payload is reported to [`Stack::complete`].
pub type StackOutput<F> = Output<F, Action>;

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Slot {
    socket: u32,
    receive: Ring,
    send: Ring,
    /// Bytes of `receive` that have memory.
    filled: u32,
}

/// The [shape](Slot::shape) that is assumed until a listener's first slot arrives: that of the library's usual slot. A larger window
/// would be taken back, and the scale holds for as long as the connection.
const SHAPE_UNKNOWN: (u32, u32) = (1 << 20, 16 << 10);

impl Slot {
    /// Whether the rings lie within `memory`, and their first part is backed.
    fn is_valid_in(&self, memory: &mut impl PayloadMemory) -> bool {
        let bytes = memory.bytes();
        self.receive.is_within(bytes)
            && self.send.is_within(bytes)
            && self.filled <= self.receive.bytes
            && memory.is_backed(self.receive.offset, self.filled)
    }

    /// First receive window of a connection, in bytes.
    fn window_bytes(&self) -> u32 {
        Ring::limit(self.receive.bytes, 0, self.filled) as u32
    }

    /// Receive ring and first receive window, in bytes.
    fn shape(&self) -> (u32, u32) {
        (self.receive.bytes, self.window_bytes())
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Listener {
    context: ContextId,
    name: u32,
    /// Address and port. An unspecified address stands for all of the agent's; IPv6's includes those of IPv4.
    local: SocketAddr,
    backlog: u16,
    sharing: Sharing,
    /// Other processes may have it, too: its slots are those of programs that wait, and its backlog waits here.
    is_shared: bool,
    /// TCP_MAXSEG.
    mss_max: u16,
    slots: VecDeque<Slot>,
    /// Number of handshakes under way.
    half_open: u32,
    /// Number of those that are acknowledged, and wait for a slot.
    acknowledged: u32,
    /// These, oldest first, mixed with some that are over.
    waiting: VecDeque<FlowId>,
    /// Receive ring and first window of the last slot, in bytes.
    shape: Option<(u32, u32)>,
    /// The most unused slots that there were at a time.
    slots_max: u32,
    /// Number of its connections that the program has not accepted.
    unaccepted: u32,
    /// When a SYN was last answered with a cookie.
    cookie_sent_at: Option<Nanos>,
}

/// Counters of the control plane.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ControlCounters {
    /// Connections opened by hosts (ActiveOpens).
    pub active_opens: u64,
    /// Connections that were accepted (PassiveOpens).
    pub passive_opens: u64,
    /// Handshakes that failed (AttemptFails).
    pub attempts_failed: u64,
    /// Connections that were reset (EstabResets).
    pub resets: u64,
    /// Connections that were dropped after too many timeouts (TCPAbortOnTimeout).
    pub timed_out: u64,
    /// SYNs that were dropped as the whole backlog waits, and acknowledgements that found no slot (ListenOverflows).
    pub overflows: u64,
    /// SYNs that found no room and could get no cookie, and connections for which the data path had no room (TCPReqQFullDrop).
    pub full: u64,
    /// Challenge ACKs sent (TCPChallengeACK).
    pub challenges: u64,
    /// Resets sent in answer to segments of no connection.
    pub stranger_resets: u64,
    /// Answers that the rate limit suppressed, so that strangers cannot make us flood others.
    pub held_back: u64,
    /// Echo requests answered.
    pub echoes: u64,
    /// Datagrams answered with "port unreachable" (IcmpOutDestUnreachs).
    pub ports_unreachable: u64,
    /// Packets by which another host claims our address.
    pub duplicate_addresses: u64,
    /// Keep-alive probes sent (TCPKeepAlive).
    pub keep_alives: u64,
    /// Reductions of a connection's segment size after a router reported that they do not fit.
    pub path_mtu_reductions: u64,
    /// SYNs that were answered with a cookie (SyncookiesSent).
    pub cookies_sent: u64,
    /// Acknowledgements with a valid cookie (SyncookiesRecv).
    pub cookies_received: u64,
    /// Acknowledgements whose cookie was wrong, expired or spent, at a port that has sent cookies recently (SyncookiesFailed).
    pub cookies_failed: u64,
    /// Connections, handshakes and listeners refused because the program or its user had used up its share.
    pub beyond_share: u64,
    /// Connections that were reset because their program claimed memory that it does not have.
    pub without_memory: u64,
    /// Connections of gone programs that were reset because there were too many of them, or they took too long to end.
    pub orphans_reset: u64,
}

/// A process that has gone, and has connections to be closed.
#[derive(Debug)]
struct GoneProcess {
    process: u16,
    /// Next index of `connections` to check.
    next: u32,
    /// How far it had read.
    reads: LastReads,
}

/// A data path with its control plane.
#[derive(Debug)]
pub struct Stack<F, D> {
    /// The data path that this control plane drives.
    pub data: D,
    address: Address,
    bounds: Bounds,
    secrets: Secrets,
    algorithm: Algorithm,
    /// Handshakes offer and answer timestamps (RFC 7323).
    has_timestamps: bool,
    listeners: Vec<Listener>,
    /// The last arrival number given to a listener's connection.
    arrivals: NonZeroU64,
    /// Counter for choosing in turn among listeners that share a port.
    turn: usize,
    /// Secrets of processes that have joined a family, by process; 0 is none.
    families: Vec<u128>,
    /// Connections that are being taken over.
    takes: Vec<Takeover>,
    lent: Vec<Lent>,
    shares: Shares<3>,
    handshakes: Tuples<Handshake>,
    /// Connections by the index of their flow.
    connections: Vec<Option<Connection>>,
    /// The latest generation of a flow so far.
    newest: u32,
    time_wait: TimeWait,
    /// Hashes of the last cookies that became a connection or a handshake, oldest first.
    spent_cookies: VecDeque<u64>,
    neighbours: Neighbours,
    /// Deadlines: of connections, by their index, then of handshakes.
    timers: Heap,
    /// Flows to be removed as soon as they have nothing in flight.
    tearing_down: VecDeque<FlowId>,
    /// Processes that have gone, and whose connections are being closed.
    gone: VecDeque<GoneProcess>,
    /// Processes that have gone, and have connections left.
    lingering: Vec<u16>,
    /// Number of connections of gone processes.
    orphans: u32,
    /// Gone processes without connections, each with the count of requests that must be done before its number is free.
    released: VecDeque<(u16, u64)>,
    /// Number of requests that the data path has taken so far.
    submitted: u64,
    packets: VecDeque<Packet<F>>,
    early: EarlySegments<F>,
    requests: VecDeque<(ContextId, Update)>,
    data_outputs: VecDeque<Output<F>>,
    out: VecDeque<StackOutput<F>>,
    ports_tried: u32,
    /// The current millisecond, and the number of answers in it.
    answers: (u64, u32),
    /// The same for ARP.
    arp_answers: (u64, u32),
    closed_ports: ClosedPorts,
    counters: ControlCounters,
    trace: Arc<Trace>,
}

impl<F: AsRef<[u8]>, D: Datapath<F>> Stack<F, D> {
    /// A stack without connections, over a data path without flows.
    pub fn new(data: D, address: Address, bounds: Bounds, secrets: Secrets) -> Stack<F, D> {
        Stack {
            data,
            address,
            bounds,
            secrets,
            algorithm: Algorithm::default(),
            has_timestamps: true,
            listeners: Vec::with_capacity(bounds.listeners as usize),
            arrivals: NonZeroU64::MIN,
            turn: 0,
            families: Vec::new(),
            takes: Vec::new(),
            lent: Vec::new(),
            shares: Shares::new([bounds.flows, bounds.handshakes, bounds.listeners]),
            handshakes: Tuples::new(bounds.handshakes, secrets.table),
            connections: alloc::vec![None; bounds.flows as usize],
            newest: 0,
            time_wait: TimeWait::new(bounds.time_wait, secrets.table),
            spent_cookies: VecDeque::with_capacity(handshake::cookies::SPENT_MAX),
            neighbours: Neighbours::new(),
            timers: Heap::new(bounds.flows + bounds.handshakes),
            tearing_down: VecDeque::with_capacity(bounds.flows as usize),
            gone: VecDeque::new(),
            lingering: Vec::new(),
            orphans: 0,
            released: VecDeque::new(),
            submitted: 0,
            packets: VecDeque::with_capacity(WAITING_MAX),
            early: EarlySegments::new(),
            requests: VecDeque::with_capacity(WAITING_MAX),
            data_outputs: VecDeque::with_capacity(OUTPUTS),
            out: VecDeque::with_capacity(OUTPUTS),
            ports_tried: 0,
            answers: (0, 0),
            arp_answers: (0, 0),
            closed_ports: ClosedPorts::new(),
            counters: ControlCounters::default(),
            trace: Arc::new(Trace::new(0)),
        }
    }

    /// Sets the trace that records the control plane's points.
    pub fn set_trace(&mut self, trace: Arc<Trace>) {
        self.trace = trace;
    }

    /// Sets the congestion control of new connections.
    pub fn set_congestion(&mut self, algorithm: Algorithm) {
        self.algorithm = algorithm;
    }

    /// Sets whether new connections negotiate timestamps (RFC 7323) if the data path has them. The default is true.
    pub fn set_timestamps(&mut self, has_timestamps: bool) {
        self.has_timestamps = has_timestamps;
    }

    /// What handshakes offer, and accept.
    fn capabilities(&self) -> Capabilities {
        let all = self.data.capabilities();
        Capabilities { timestamps: all.timestamps && self.has_timestamps, ..all }
    }

    /// The congestion control of new connections.
    pub fn congestion(&self) -> Algorithm {
        self.algorithm
    }

    /// Sizes of the tables.
    pub fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// Addresses of the agent.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The control plane's counters.
    pub fn counters(&self) -> &ControlCounters {
        &self.counters
    }

    /// Number of packets that [`Stack::receive`] accepts before the next poll.
    pub fn room_for_packets(&self) -> usize {
        WAITING_MAX - self.packets.len().min(WAITING_MAX)
    }

    /// Number of requests that [`Stack::request`] accepts before the next poll.
    pub fn room_for_requests(&self) -> usize {
        WAITING_MAX - self.requests.len().min(WAITING_MAX)
    }

    /// Queues a received frame.
    pub fn receive(&mut self, packet: Packet<F>) {
        self.packets.push_back(packet);
    }

    /// Reports that a copy or a transmission is done.
    pub fn complete(&mut self, now: Nanos, ticket: Ticket) {
        self.data.complete(now, ticket);
    }

    /// Resets all connections: the agent is shutting down.
    pub fn reset_all(&mut self, now: Nanos) {
        for index in 0..self.connections.len() {
            if let Some(flow) = self.connections[index].map(|connection| connection.flow) {
                self.reset(now, flow, Reason::Reset);
            }
        }
    }

    /// Resets the connections of a process whose memory is lost. The caller must still call [`Stack::remove_process`].
    pub fn reset_all_of(&mut self, now: Nanos, process: u16) {
        for index in 0..self.connections.len() {
            let own = self.connections[index].filter(|one| one.context.process == process);
            if let Some(connection) = own {
                self.reset(now, connection.flow, Reason::Reset);
            }
        }
    }

    /// Handles the end of a process: its listeners are dropped, and its connections close as if it had closed them, except those
    /// that it has not accepted, which go to other listeners. It has read as far as its requests have said. The second call for
    /// a process does nothing: its number must be released once.
    pub fn remove_process(&mut self, process: u16) {
        self.remove_process_after(process, LastReads::default());
    }

    /// As [`Stack::remove_process`], for a process that may have read more than its requests have said.
    pub fn remove_process_after(&mut self, process: u16, reads: LastReads) {
        let has_left = self.gone.iter().any(|gone| gone.process == process);
        if has_left || self.lingering.contains(&process) {
            return;
        }
        while let Some(at) = self.listeners.iter().position(|one| one.context.process == process) {
            self.drop_listener(at, false);
        }
        let waiting: Vec<FlowId> = self
            .handshakes
            .iter()
            .filter(|(_, _, handshake)| handshake.is_for(process))
            .map(|(id, _, _)| id)
            .collect();
        for id in waiting {
            self.drop_handshake(id);
        }
        self.join(process, 0);
        self.drop_takeovers(process);
        self.gone.push_back(GoneProcess { process, next: 0, reads });
    }

    /// Works, at most `budget` steps of the data path. Returns when to poll next if no input arrives before; `None`: not at
    /// all.
    pub fn poll(
        &mut self,
        now: Nanos,
        budget: usize,
        out: &mut VecDeque<StackOutput<F>>,
    ) -> Option<Nanos> {
        self.fire_timers(now);
        self.time_wait.expire(now);
        self.close_orphans(now);
        // Connections that wait come before those that segments below establish.
        self.assign_slots(now);
        let mut batch = Batch { packets: &mut self.packets, requests: &mut self.requests };
        let waiting = batch.requests.len();
        self.data.submit(now, &mut batch);
        self.submitted += (waiting - batch.requests.len()) as u64;
        let mut outputs = core::mem::take(&mut self.data_outputs);
        self.data.poll(now, budget, &mut outputs);
        for output in outputs.drain(..) {
            match output {
                Output::Send(segment) => self.out.push_back(Output::Send(segment)),
                Output::Write(write) => self.out.push_back(Output::Write(write)),
                Output::Notify(context, event) => self.notify(context, event),
                Output::Control((packet, flow)) => self.on_packet(now, packet, flow),
            }
        }
        self.data_outputs = outputs;
        self.read_statistics(now);
        let has_removed = self.remove_torn_down(now) | self.advance_takeovers(now);
        self.assign_slots(now);
        // Asked last: the control plane's commands above may have created work.
        let data_next = self.data.poll(now, 0, &mut self.data_outputs);
        self.report_released();
        out.append(&mut self.out);
        let is_busy = !self.packets.is_empty()
            || !self.requests.is_empty()
            || has_removed
            || !self.released.is_empty()
            || !self.gone.is_empty();
        let timer = self.timers.first().map(|(at, _)| Nanos(at));
        [data_next, timer, is_busy.then_some(now)].into_iter().flatten().min()
    }

    fn read_statistics(&mut self, now: Nanos) {
        let mut read = [None; STATISTICS_PER_POLL];
        let mut count = 0;
        self.data.drain_statistics(STATISTICS_PER_POLL, &mut |statistics| {
            read[count] = Some(statistics);
            count += 1;
        });
        for statistics in read.into_iter().flatten() {
            self.on_statistics(now, &statistics);
        }
    }

    fn fire_timers(&mut self, now: Nanos) {
        while let Some((at, id)) = self.timers.first() {
            if at > now.0 {
                return;
            }
            self.timers.remove(id);
            match id.checked_sub(self.bounds.flows) {
                None => self.on_timer(now, id),
                Some(handshake) => self.on_handshake_timer(now, handshake),
            }
        }
    }

    /// Sets the only deadline of a connection or a handshake.
    fn set_timer(&mut self, id: u32, at: Option<Nanos>) {
        self.timers.remove(id);
        if let Some(at) = at {
            self.timers.push(id, at.0);
        }
    }

    fn notify(&mut self, context: ContextId, event: Event) {
        self.out.push_back(Output::Notify(context, event));
    }
}

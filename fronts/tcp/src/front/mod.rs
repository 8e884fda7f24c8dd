//! The front: a stack, a wire, and the processes that own the stack's connections.

mod doors;
mod reap;
mod replacement;
mod sleep;
mod streams;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use arrayvec::ArrayVec;
use wave_agent::Seat;
use wave_agent::lanes::ROOM_EVERY;
use wave_core::agent::Front;
use wave_core::clock::Nanos;
use wave_core::policy::{Note, Progress};
use wave_tcp::congestion::Algorithm;
use wave_tcp::context::{ContextId, Event, Reason, Request};
use wave_tcp::control::{Action, Address, Bounds, Call, Ipv6Config, Secrets, Stack, StackOutput};
use wave_tcp::datapath::{Datapath, OUTPUTS_PER_STEP, Output, Settings};
use wave_tcp::packet::syn_port;
use wave_tcp::trace::Trace;
use wave_wires::{Frame, Limits, Wire};

use crate::admitted::{
    AdmissionCounters, Admitted, BeyondShare, Lent, PROCESSES_MAX, ProcessShares,
};
use crate::captures::{CAPTURES_MAX, Captures};
use crate::door::{Door, WAITING_MAX};
use crate::front_datapath::{FRAMES_PER_TURN, FrontDatapath, POLLS_PER_TURN, STEPS_PER_POLL};
use crate::groups::{GroupWires, Groups, Sender};
use crate::process::{Process, Received};
use crate::refusal_log::{Refusal, Refusals, TAKES_NO_EVENTS};
use crate::report_socket::ReportSocket;
use crate::streams::Streams;
use crate::traces::{TRACES_MAX, Traces};
use crate::wire_port::{WirePort, copy};
use reap::termination_flag;
use replacement::Replaceable;

/// Most requests taken from one process in a turn.
const REQUESTS_PER_TURN: usize = 64;
/// Outputs of one poll, in most cases.
const OUTPUTS: usize = STEPS_PER_POLL * OUTPUTS_PER_STEP;
/// Most descriptors of the door, of reports, captures and traces, and of agents that replace this one.
const DOOR_DESCRIPTORS_MAX: usize = 1 + 1 + WAITING_MAX + 1 + 1 + CAPTURES_MAX + 1 + TRACES_MAX + 2;
/// Most descriptors to wait on: these, two of each process, and the wire's.
const DESCRIPTORS_MAX: usize = DOOR_DESCRIPTORS_MAX + 2 * PROCESSES_MAX + 1;
/// Interval between polls of the doors' descriptors.
const DOORS_CHECK_INTERVAL: Nanos = Nanos::from_millis(1);
/// Longest interval between polls of the doors, so that slow clients are dropped in time.
const DOORS_POLL_INTERVAL_MAX: Nanos = Nanos::from_millis(10);
/// Interval between checks for processes that have gone.
const LIFE_CHECK: Nanos = Nanos::from_millis(50);

/// Options of a front, beside its wire.
#[derive(Debug)]
pub struct TcpOptions {
    /// The front's IPv4 address. MTU and Ethernet address are the wire's.
    pub ip: std::net::Ipv4Addr,
    /// Length of the network prefix in bits.
    pub prefix: u8,
    /// Gateway for packets that leave the network, if there is one.
    pub gateway: Option<std::net::Ipv4Addr>,
    /// The front's IPv6 address, if it has one.
    pub v6: Option<Ipv6Config>,
    /// Limits of the stack.
    pub bounds: Bounds,
    /// Congestion control of the connections.
    pub congestion: Algorithm,
    /// How the front's core waits for work.
    pub seat: Seat,
}

/// A front that owns an address, over one data path or several.
pub struct TcpFront<W, D> {
    stack: Stack<Frame, D>,
    wire_port: WirePort<W>,
    door: Door,
    reports: ReportSocket,
    captures: Captures,
    traces: Traces,
    /// Processes by number. Boxed: few agents have many.
    processes: Vec<Option<Box<Admitted>>>,
    /// Numbers of processes that could not be taken over, while the stack still has connections of theirs.
    lost: Vec<u16>,
    shares: ProcessShares,
    streams: Streams,
    /// Number of polls so far.
    turn: u64,
    /// Counters of processes that were refused, or evicted.
    admission: AdmissionCounters,
    outputs: VecDeque<StackOutput<Frame>>,
    next: Option<Nanos>,
    /// When a door was last found ready or not (`doors_checked`), when the doors were last polled, and when hang-ups were last detected.
    doors_checked: Nanos,
    doors_polled: Nanos,
    hang_ups_checked: Nanos,
    /// The process whose requests are taken first.
    first: usize,
    refusals: Refusals,
    /// A descriptor of a door is readable: a process, a request for a report, a capture, a trace or a new agent.
    is_called: bool,
    /// A process may have gone.
    may_have_exited: bool,
    /// Processes to look at before this turn goes on, since they may have gone: they have a listener that another process has just closed,
    /// or for which a SYN has just come.
    suspects: Vec<u16>,
    /// Ports for which a SYN has come in this turn.
    syn_ports: Vec<u16>,
    ends: Arc<AtomicBool>,
    start: Instant,
    seat: Seat,
    /// The data paths' threads were started.
    has_begun: bool,
    failure: Option<String>,
    replaceable: Option<Replaceable>,
    /// People are told of errors alone.
    is_quiet: bool,
    /// A successor has replaced this agent.
    is_replaced: bool,
}

/// The agent's listening sockets.
struct ListeningSockets {
    streams: Streams,
    door: Door,
    reports: ReportSocket,
    captures: Captures,
    traces: Traces,
}

/// Room that a super-packet's payload leaves for headers, in bytes.
const HEADERS_BYTES: u32 = 60 + 12;

/// Keys of the tables and the control plane's secrets.
fn random() -> (u64, u64) {
    rand::random()
}

fn settings(limits: Limits, bounds: Bounds) -> Settings {
    Settings {
        mac: limits.mac,
        super_bytes: limits.gso_bytes.saturating_sub(HEADERS_BYTES),
        flows: bounds.flows,
        key: random(),
    }
}

impl TcpOptions {
    fn address(&self, limits: Limits) -> Address {
        let TcpOptions { ip, prefix, gateway, v6, .. } = *self;
        Address { ip, prefix, gateway, v6, mac: limits.mac, mtu: limits.mtu }
    }
}

impl<W: Wire, D: Datapath<Frame>> TcpFront<W, Box<D>> {
    /// A front over this wire and the data path that `make` makes, for the processes that attach at this door.
    ///
    /// # Errors
    /// The signal handlers cannot be set.
    pub fn new(
        wire: W,
        make: impl FnOnce(Settings, Arc<Trace>) -> D,
        door: Door,
        reports: ReportSocket,
        captures: Captures,
        traces: Traces,
        options: &TcpOptions,
    ) -> io::Result<TcpFront<W, Box<D>>> {
        let (address, start) = (options.address(wire.limits()), Instant::now());
        let streams = Streams::new()?;
        let sockets = ListeningSockets { door, reports, captures, traces, streams };
        let data = sockets.single_datapath(&wire, options.bounds, make);
        let ends = termination_flag()?;
        Ok(TcpFront::assemble(wire, data, sockets, (address, options.bounds), start, ends)
            .with(options))
    }
}

impl<W: Wire + Send + 'static, D: Datapath<Frame> + Send + 'static>
    TcpFront<Sender<W>, Groups<W, D>>
{
    /// A front with a flow group for each of these wires, whose data path `make` makes.
    ///
    /// # Errors
    /// The signal handlers cannot be set, or the system has no descriptors left.
    pub fn with_groups(
        wires: GroupWires<W>,
        make: impl FnMut(Settings, Arc<Trace>) -> D,
        door: Door,
        reports: ReportSocket,
        captures: Captures,
        traces: Traces,
        options: &TcpOptions,
    ) -> io::Result<TcpFront<Sender<W>, Groups<W, D>>> {
        let (address, start) = (options.address(wires.wires[0].limits()), Instant::now());
        let streams = Streams::new()?;
        let sockets = ListeningSockets { door, reports, captures, traces, streams };
        let (sender, data) = sockets.groups(wires, options.bounds, start, make)?;
        let ends = termination_flag()?;
        Ok(TcpFront::assemble(sender, data, sockets, (address, options.bounds), start, ends)
            .with(options))
    }
}

impl ListeningSockets {
    /// The data path for a front with one wire.
    fn single_datapath<D>(
        &self,
        wire: &impl Wire,
        bounds: Bounds,
        make: impl FnOnce(Settings, Arc<Trace>) -> D,
    ) -> Box<D> {
        Box::new(make(settings(wire.limits(), bounds), self.traces.trace()))
    }

    /// The data paths of flow groups, and the front's end of their wires.
    fn groups<W: Wire, D: Datapath<Frame>>(
        &self,
        wires: GroupWires<W>,
        bounds: Bounds,
        start: Instant,
        make: impl FnMut(Settings, Arc<Trace>) -> D,
    ) -> io::Result<(Sender<W>, Groups<W, D>)> {
        let settings = settings(wires.wires[0].limits(), bounds);
        let (trace, recorders) = (self.traces.trace(), self.captures.recorders());
        Groups::new(wires, settings, &recorders, (&trace, start), make)
    }
}

impl<W: Wire, D: FrontDatapath> TcpFront<W, D> {
    /// The front with the options that do not change once it runs.
    fn with(mut self, options: &TcpOptions) -> TcpFront<W, D> {
        self.stack.set_congestion(options.congestion);
        self.seat = options.seat;
        self
    }

    /// Makes a front whose clock began at `start`.
    fn assemble(
        wire: W,
        data: D,
        sockets: ListeningSockets,
        (address, bounds): (Address, Bounds),
        start: Instant,
        ends: Arc<AtomicBool>,
    ) -> TcpFront<W, D> {
        let ListeningSockets { door, reports, captures, mut traces, streams } = sockets;
        traces.set_points(data.points());
        let [sequence, timestamp, port, table] = [(); 4].map(|()| random());
        let secrets = Secrets { sequence, timestamp, port, table };
        let (threads, payload_bytes_max) = (data.threads(), door.options().payload_bytes_max);
        let mut stack = Stack::new(data, address, bounds, secrets);
        stack.set_trace(traces.trace());
        TcpFront {
            stack,
            wire_port: WirePort::new(wire, captures.recorders(), OUTPUTS),
            door: door.for_threads(threads),
            reports,
            captures,
            traces,
            processes: Vec::with_capacity(PROCESSES_MAX),
            lost: Vec::new(),
            shares: ProcessShares::new(threads, payload_bytes_max),
            streams,
            turn: 0,
            admission: AdmissionCounters::default(),
            outputs: VecDeque::with_capacity(OUTPUTS),
            next: None,
            doors_checked: Nanos(0),
            doors_polled: Nanos(0),
            hang_ups_checked: Nanos(0),
            first: 0,
            refusals: Refusals::default(),
            is_called: true,
            may_have_exited: false,
            suspects: Vec::with_capacity(PROCESSES_MAX),
            syn_ports: Vec::with_capacity(FRAMES_PER_TURN),
            ends,
            start,
            seat: Seat::Shared,
            has_begun: false,
            failure: None,
            replaceable: None,
            is_quiet: false,
            is_replaced: false,
        }
    }

    fn admit(&mut self, now: Nanos, process: Process) {
        let is_free =
            |at: &usize| self.processes[*at].is_none() && !self.lost.contains(&(*at as u16));
        let free = (0..self.processes.len()).find(is_free);
        let at = free.unwrap_or(self.processes.len());
        if at == PROCESSES_MAX {
            self.admission.over_share += 1;
            let (peer, why) = (process.peer(), "the agent serves as many processes as it can");
            process.refuse(why);
            return self.refusals.add(now, peer, Refusal::new("is turned away", why));
        }
        if !self.shares.admit(at as u16, &process) {
            self.admission.over_share += 1;
            let peer = process.peer();
            process.refuse("this program or user has used up its share of windows or descriptors");
            let why = "its program or user has its share of the agent's windows or descriptors";
            return self.refusals.add(now, peer, Refusal::new("is turned away", why));
        }
        self.stack.add_process(at as u16, process.owner());
        let mut admitted = Admitted::new(at as u16, process);
        self.stack.data.add_process(at as u16, admitted.process.lend_to_threads());
        admitted.process.announce();
        if at == self.processes.len() {
            self.processes.push(None);
        }
        self.processes[at] = Some(Box::new(admitted));
    }

    /// Takes requests of all processes. Returns whether there were any.
    fn take_requests(&mut self, now: Nanos) -> bool {
        let mut worked = false;
        let (mut shares, mut lends) = (Vec::new(), Vec::new());
        let count = self.processes.len();
        self.first = (self.first + 1) % count.max(1);
        let present = self.processes.iter().flatten().filter(|admitted| !admitted.is_gone).count();
        for at in (self.first..count).chain(0..self.first) {
            // Each process gets a part of the room, and each turn begins with another process.
            let room = self.stack.room_for_requests();
            let budget = REQUESTS_PER_TURN.min(room).min((room / present.max(1)).max(1));
            let Some(admitted) = self.processes[at].as_mut().filter(|admitted| !admitted.is_gone)
            else {
                continue;
            };
            let mut requests = ArrayVec::<(u16, Received), REQUESTS_PER_TURN>::new();
            let taken =
                admitted.process.poll(budget, |context, taken| requests.push((context, taken)));
            let mut is_honest = true;
            for (context, mut request) in requests {
                let from = ContextId { process: at as u16, context };
                if let Received::Request(request) = &mut request {
                    let of = streams::flow_of(request);
                    if of.is_some_and(|flow| self.streams.is_held(flow)) {
                        continue;
                    }
                    if let Request::Lend { flow, secret } = request {
                        // The process may know it by an earlier name.
                        *flow = self.streams.shared(*flow).unwrap_or(*flow);
                        lends.push((at as u16, *flow, *secret));
                    }
                    if *request == Request::Placeholders {
                        shares.push((at, context));
                        continue;
                    }
                }
                let failed = match request {
                    Received::Request(Request::Report { failure }) => {
                        self.refusals.add(now, admitted.process.peer(), Refusal::reported(failure));
                        continue;
                    }
                    Received::Request(request) => {
                        match admitted.reserve(&mut self.shares, &request) {
                            Ok(()) => {
                                if let Request::Unlisten { listener } = request {
                                    self.suspects
                                        .extend(self.stack.sharers(from.process, listener));
                                }
                                if let Request::Take { flow, .. } = request
                                    && self.stack.may_be_taken_over(flow, from.process)
                                    && self.streams.await_stop(flow, from, request)
                                {
                                    continue;
                                }
                                let memory = Lent(admitted.process.payload_mut());
                                self.stack.request(now, from, request, memory);
                                continue;
                            }
                            Err(BeyondShare { socket }) => {
                                self.admission.rings += 1;
                                let may_go_on = matches!(request, Request::Take { flow, .. }
                                if streams::may_be_demoted(&self.streams, &self.stack, flow));
                                if !may_go_on {
                                    let refusal = Refusal::beyond_share(&request);
                                    self.refusals.add(now, admitted.process.peer(), refusal);
                                }
                                (socket, Reason::NoRoom)
                            }
                        }
                    }
                    Received::Invalid { socket } => {
                        self.refusals.add(now, admitted.process.peer(), Refusal::invalid());
                        (socket, Reason::Invalid)
                    }
                };
                let (socket, reason) = failed;
                is_honest &=
                    admitted.send(&mut self.shares, context, Event::Failed { socket, reason });
            }
            is_honest &= admitted.flush(&mut self.shares);
            match taken {
                Ok(0) if budget > 0 => {
                    admitted.drained = self.turn;
                    if admitted.has_hung_up && !shares.iter().any(|(process, _)| *process == at) {
                        self.hold_shared_connections(now, at);
                        self.reap(at);
                        continue;
                    }
                }
                Ok(count) => worked |= count > 0,
                Err(fault) => {
                    self.evict(now, at, Refusal::new("is turned out", fault.to_string()));
                    continue;
                }
            }
            if !is_honest {
                self.evict(now, at, Refusal::new("is turned out", TAKES_NO_EVENTS));
            }
        }
        for (at, context) in shares {
            if !self.take_shared(at, context) {
                self.evict(now, at, Refusal::new("is turned out", TAKES_NO_EVENTS));
            }
        }
        // A connection is shared before it is lent.
        for (at, flow, secret) in lends {
            self.streams.lend(flow, secret, at, |process| self.stack.family(process));
        }
        worked
    }

    /// Takes frames from the wire. Returns whether there were any.
    fn receive(&mut self) -> bool {
        let budget = FRAMES_PER_TURN.min(self.stack.room_for_packets());
        self.wire_port.receive(budget, |packet| {
            self.syn_ports.extend(syn_port(&packet.frame));
            self.stack.receive(packet);
        })
    }

    fn perform(&mut self, now: Nanos) {
        while let Some(output) = self.outputs.pop_front() {
            match output {
                Output::Send(segment) => {
                    let stack = &mut self.stack;
                    let mut done = |ticket| stack.complete(now, ticket);
                    self.wire_port.send(&self.processes, segment, &mut done);
                }
                Output::Write(write) => {
                    copy(&self.processes, &write);
                    self.stack.complete(now, write.ticket);
                }
                Output::Control(Action::CopyRings(copy)) => self.copy_rings(now, &copy),
                Output::Notify(context, event) => {
                    let id = streams::socket_of(&event)
                        .and_then(|socket| self.streams.held_as(context.process, socket));
                    let Some(event) = (match id {
                        Some(id) => self.on_held(now, id, event),
                        None => Some(event),
                    }) else {
                        continue;
                    };
                    let at = usize::from(context.process);
                    let Some(Some(admitted)) = self.processes.get_mut(at) else { continue };
                    if !admitted.send(&mut self.shares, context.context, event) {
                        self.evict(now, at, Refusal::new("is turned out", TAKES_NO_EVENTS));
                    }
                }
                Output::Control(Action::Refused(_, Call::TakeOver(flow), _))
                    if streams::may_be_demoted(&self.streams, &self.stack, flow) => {}
                Output::Control(Action::Refused(context, call, reason)) => {
                    let admitted = self.processes.get(usize::from(context.process));
                    if let Some(Some(admitted)) = admitted {
                        let refusal = Refusal::of_stack(call, reason);
                        self.refusals.add(now, admitted.process.peer(), refusal);
                    }
                }
                Output::Control(Action::Released(process)) => {
                    self.processes[usize::from(process)] = None;
                    self.stack.data.remove_process(process);
                    self.lost.retain(|lost| *lost != process);
                    self.shares.remove_process(process);
                }
            }
        }
    }

    fn send_held(&mut self, now: Nanos) {
        let stack = &mut self.stack;
        self.wire_port.send_held(&self.processes, &mut |ticket| stack.complete(now, ticket));
    }

    fn live_processes(&self) -> impl Iterator<Item = &Process> {
        let here = self.processes.iter().flatten().filter(|admitted| !admitted.is_gone);
        here.map(|admitted| &admitted.process)
    }

    fn live_processes_mut(&mut self) -> impl Iterator<Item = &mut Process> {
        let here = self.processes.iter_mut().flatten().filter(|admitted| !admitted.is_gone);
        here.map(|admitted| &mut admitted.process)
    }
}

impl<W: Wire, D: FrontDatapath> Front for TcpFront<W, D> {
    fn poll(&mut self, now: Nanos, _notes: &mut Vec<Note>) -> Progress {
        let mut worked = false;
        if !self.has_begun {
            self.has_begun = true;
            if let Err(error) = self.stack.data.begin() {
                self.failure = Some(format!("cannot start a flow group's thread: {error}"));
            }
        }
        // This costs a system call, which not every turn under load can afford.
        if now.since(self.doors_checked) >= DOORS_CHECK_INTERVAL {
            self.doors_checked = now;
            self.is_called |= self.has_door_event();
        }
        let is_called = std::mem::take(&mut self.is_called);
        let polls_doors = is_called || now.since(self.doors_polled) >= DOORS_POLL_INTERVAL_MAX;
        if polls_doors {
            worked = self.poll_doors(now);
            // Another process may wait behind this one.
            self.is_called = worked;
        }
        let may_have_exited = std::mem::take(&mut self.may_have_exited);
        // A process that attaches may replace one that has just gone: the resources of that one are freed first.
        if is_called || may_have_exited || now.since(self.hang_ups_checked) >= LIFE_CHECK {
            self.detect_hang_ups(now);
        }
        self.turn += 1;
        worked |= self.take_requests(now);
        // If the last process has closed a listener, its line has hung up: nobody must connect there any more.
        worked |= self.reap_suspects(now);
        worked |= self.serve_streams(now, is_called);
        self.send_held(now);
        if !self.wire_port.is_full() {
            worked |= self.receive();
            // No connection is made for a program that has ended just now.
            worked |= self.reap_suspects(now);
            for _ in 0..POLLS_PER_TURN {
                self.next = self.stack.poll(now, STEPS_PER_POLL, &mut self.outputs);
                if self.outputs.is_empty() {
                    break;
                }
                worked = true;
                self.perform(now);
            }
        }
        if self.wire_port.is_behind() {
            let soon = now + ROOM_EVERY;
            // While too many segments wait, the stack waits as well.
            let next = self.next.filter(|_| !self.wire_port.is_full());
            self.next = Some(next.map_or(soon, |next| next.min(soon)));
        }
        if let Some(look) = self.streams.next_poll() {
            self.next = Some(self.next.map_or(look, |next| next.min(look)));
        }
        if !self.traces.is_empty() {
            self.traces.deliver();
        }
        if self.reports.is_behind() || self.captures.is_behind() || self.traces.is_behind() {
            let soon = now + DOORS_CHECK_INTERVAL;
            self.next = Some(self.next.map_or(soon, |next| next.min(soon)));
        }
        for process in self.live_processes_mut() {
            process.publish();
        }
        if polls_doors && self.poll_successors(now) {
            // The attempt took time, or this agent is replaced.
            return Progress::More;
        }
        let has_more = self.next.is_some_and(|at| at <= now);
        if worked || has_more { Progress::More } else { Progress::Done }
    }

    fn next_deadline(&self) -> Option<Nanos> {
        self.next
    }

    fn prepare_park(&mut self) {
        if self.is_replaced {
            return;
        }
        self.stack.data.prepare_park();
        self.live_processes_mut().for_each(Process::park);
    }

    fn unpark(&mut self) {
        // The doorbells' rings are for the new agent.
        if self.is_replaced {
            return;
        }
        self.stack.data.unpark();
        self.live_processes_mut().for_each(Process::unpark);
    }
}

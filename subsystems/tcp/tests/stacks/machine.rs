//! A machine in virtual time: a stack, its wire, and a process that writes and reads.

use std::collections::{HashMap, VecDeque};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use wave_core::clock::Nanos;
use wave_tcp::context::{ContextId, Event, Filled, Reason, Request, Sharing, Tail, Update};
use wave_tcp::control::{Action, Address, Bounds, Call, Ipv6Home, Secrets, Stack};
use wave_tcp::datapath::{FlowId, Output, Packet, Payload, Ring, Segment, Ticket, Write};
use wave_tcp::executors::Inline;
use wave_tcp::flextoe::{FlexToe, Settings};
use wave_tcp::stages::recover::{Recovery, Sack};
use wave_wires::{Checksum, CsumPlace, Frame, Memory, Offload, RawPart, Wire};

/// Most connections of a stack.
const FLOWS: u32 = 64;
pub const CONTEXT: ContextId = ContextId { process: 3, context: 1 };
pub const RING: u32 = 1 << 14;

/// A process's view of one connection.
#[derive(Clone, Debug, Default)]
pub struct Socket {
    pub flow: Option<FlowId>,
    pub wrote: Vec<u8>,
    pub read: Vec<u8>,
    pub received: u64,
    pub acknowledged: u64,
    pub peer_is_finished: bool,
    pub is_finished: bool,
    pub is_closed: bool,
    pub failed: Option<Reason>,
    pub is_over: bool,
}

pub struct Machine<R: Recovery = Sack> {
    pub stack: Stack<Frame, FlexToe<Frame, Inline<Frame, R>>>,
    pub wire: Memory,
    /// The last byte of the machine's address.
    last: u8,
    /// Number of stacks so far.
    stacks: u64,
    memory: Vec<u8>,
    ring: u32,
    pub sockets: HashMap<u32, Socket>,
    pub accepted: VecDeque<u32>,
    /// The process says at once that it has accepted its connections.
    pub accepts: bool,
    pub events: Vec<Event>,
    next_socket: u32,
    pub released: Vec<u16>,
    /// What people are told: process, call, reason.
    pub refused: Vec<(u16, Call, Reason)>,
    /// Events of other contexts.
    pub others: Vec<(ContextId, Event)>,
}

impl<R: Recovery> Machine<R> {
    pub fn new(last: u8, wire: Memory) -> Machine<R> {
        Machine::with_rings(last, wire, RING)
    }

    pub fn with_rings(last: u8, wire: Memory, ring: u32) -> Machine<R> {
        Machine {
            stack: Machine::<R>::new_stack(last, &wire, 0, FLOWS),
            wire,
            last,
            stacks: 1,
            memory: vec![0; FLOWS as usize * 2 * ring as usize],
            ring,
            sockets: HashMap::new(),
            accepted: VecDeque::new(),
            accepts: true,
            events: Vec::new(),
            next_socket: 0,
            released: Vec::new(),
            refused: Vec::new(),
            others: Vec::new(),
        }
    }

    /// A stack with secrets of its own.
    fn new_stack(
        last: u8,
        wire: &Memory,
        number: u64,
        flows: u32,
    ) -> Stack<Frame, FlexToe<Frame, Inline<Frame, R>>> {
        let limits = wire.limits();
        let mac = limits.mac;
        let address = Address {
            ip: Ipv4Addr::new(10, 0, 0, last),
            prefix: 24,
            gateway: None,
            v6: Some(Ipv6Home {
                ip: Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, last.into()),
                prefix: 64,
                gateway: None,
            }),
            mac,
            mtu: limits.mtu,
        };
        let bounds = Bounds { flows, handshakes: 16, time_wait: 8, listeners: 4, slots: 8 };
        let key = |n: u64| (n + 8 * number, u64::from(last));
        let secrets = Secrets { sequence: key(1), timestamp: key(2), port: key(3), table: key(4) };
        let super_bytes = limits.gso_bytes.saturating_sub(80);
        let settings = Settings { mac, super_bytes, flows: bounds.flows, key: key(5) };
        Stack::new(FlexToe::new(settings), address, bounds, secrets)
    }

    /// Has a table of this size from now on, in which no connection is open.
    pub fn set_flows(&mut self, flows: u32) {
        self.stack = Machine::<R>::new_stack(self.last, &self.wire, self.stacks, flows);
    }

    /// Works without accepting input until all connections are frozen.
    pub fn freeze(&mut self, now: Nanos) {
        let mut is_asked = false;
        for _ in 0..1_000 {
            self.work(now);
            if !is_asked && self.stack.is_at_rest(now) {
                self.stack.freeze();
                is_asked = true;
            } else if is_asked && self.stack.is_at_rest(now) && self.stack.is_frozen() {
                return;
            }
        }
        panic!("the stack never becomes frozen");
    }

    /// Replaces the agent by a successor, which gets the state as text.
    pub fn replace(&mut self, now: Nanos) {
        self.freeze(now);
        let before = self.shown();
        let text = serde_json::to_vec(&self.stack.state()).unwrap();
        self.stack = Machine::<R>::new_stack(self.last, &self.wire, self.stacks, FLOWS);
        self.stacks += 1;
        self.stack.restore(now, serde_json::from_slice(&text).unwrap()).unwrap();
        assert_eq!(self.shown(), before);
    }

    /// Starts a handover that is given up, and thaws the connections.
    pub fn keep(&mut self, now: Nanos) {
        self.freeze(now);
        let before = self.shown();
        self.stack.thaw(now);
        assert_eq!(self.shown(), before);
    }

    /// Everything that the stack shows, in no particular order.
    fn shown(&self) -> Vec<String> {
        let mut all = Vec::new();
        self.stack.show(&mut |shown| all.push(format!("{shown:?}")));
        all.sort_unstable();
        all
    }

    /// `bytes` bytes of a ring, from a position on.
    pub fn bytes(&self, ring: Ring, position: u64, bytes: usize) -> &[u8] {
        &self.memory[(ring.offset + position) as usize..][..bytes]
    }

    pub fn put(&mut self, ring: Ring, position: u64, bytes: &[u8]) {
        self.memory[(ring.offset + position) as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    pub fn rings(&self, socket: u32) -> (Ring, Ring) {
        let bytes = self.ring;
        let ring = |at: u32| Ring { offset: u64::from(at) * u64::from(bytes), bytes };
        (ring(2 * (socket % 64)), ring(2 * (socket % 64) + 1))
    }

    pub fn ask(&mut self, now: Nanos, request: Request) {
        self.stack.request(now, CONTEXT, request, self.memory.len() as u64);
    }

    pub fn new_socket(&mut self) -> u32 {
        self.next_socket += 1;
        self.sockets.insert(self.next_socket, Socket::default());
        self.next_socket
    }

    pub fn listen(&mut self, now: Nanos, port: u16, slots: u32) {
        let local = SocketAddr::from(([0, 0, 0, 0], port));
        self.ask(
            now,
            Request::Listen {
                listener: port.into(),
                local,
                backlog: 8,
                sharing: Sharing::default(),
            },
        );
        for _ in 0..slots {
            self.slot(now, port);
        }
    }

    pub fn slot(&mut self, now: Nanos, port: u16) {
        let socket = self.new_socket();
        let (receive, send) = self.rings(socket);
        self.ask(
            now,
            Request::Slot { listener: port.into(), socket, receive, send, filled: self.ring },
        );
    }

    pub fn connect(&mut self, now: Nanos, remote: SocketAddr) -> u32 {
        let socket = self.new_socket();
        self.connect_from(now, socket, remote, 0);
        socket
    }

    pub fn connect_from(&mut self, now: Nanos, socket: u32, remote: SocketAddr, local_port: u16) {
        let (receive, send) = self.rings(socket);
        self.ask(
            now,
            Request::Connect {
                socket,
                remote,
                local_port,
                mss_max: u16::MAX,
                receive,
                send,
                filled: self.ring,
            },
        );
    }

    /// Writes as many bytes as there is room for, and returns their number.
    pub fn write(&mut self, socket: u32, bytes: &[u8]) -> usize {
        let (_, ring) = self.rings(socket);
        let state = self.sockets.get_mut(&socket).unwrap();
        let at = state.wrote.len() as u64;
        let room = (u64::from(self.ring) - (at - state.acknowledged)) as usize;
        let bytes = &bytes[..bytes.len().min(room)];
        state.wrote.extend_from_slice(bytes);
        let mut left = bytes;
        for (offset, len) in ring.parts(at, bytes.len() as u32) {
            let (first, rest) = left.split_at(len as usize);
            self.memory[offset as usize..][..len as usize].copy_from_slice(first);
            left = rest;
        }
        bytes.len()
    }

    pub fn read(&mut self, socket: u32, most: usize) {
        let (ring, _) = self.rings(socket);
        let state = self.sockets.get_mut(&socket).unwrap();
        let at = state.read.len() as u64;
        let there = (state.received - at) as usize;
        for (offset, len) in ring.parts(at, there.min(most) as u32) {
            state.read.extend_from_slice(&self.memory[offset as usize..][..len as usize]);
        }
    }

    pub fn report_progress(&mut self, now: Nanos, socket: u32) {
        let state = &self.sockets[&socket];
        let Some(flow) = state.flow else { return };
        let update = Update {
            flow,
            written: state.wrote.len() as u64,
            read: state.read.len() as u64,
            is_finished: state.is_finished,
            is_eager: false,
            tail: Tail::Whole,
            filled: Filled { receive: self.ring, send: self.ring },
        };
        if self.stack.room_for_requests() > 0 {
            self.ask(now, Request::Update(update));
        }
    }

    pub fn close(&mut self, now: Nanos, socket: u32) {
        self.sockets.get_mut(&socket).unwrap().is_finished = true;
        self.report_progress(now, socket);
        let state = self.sockets.get_mut(&socket).unwrap();
        state.is_closed = true;
        if let Some(flow) = state.flow {
            self.ask(now, Request::Close { flow });
        }
    }

    /// Receives frames, polls the stack, and performs its outputs. Returns when to poll next.
    pub fn step(&mut self, now: Nanos) -> Option<Nanos> {
        while self.stack.room_for_packets() > 0 {
            let Some(frame) = self.wire.receive().unwrap() else { break };
            let checksum_is_good = frame.checksum == Checksum::Good;
            let segment_bytes = frame.segment_bytes;
            self.stack.receive(Packet { frame, checksum_is_good, segment_bytes });
        }
        self.work(now)
    }

    /// Polls the stack, and performs its outputs. Returns when to poll next.
    fn work(&mut self, now: Nanos) -> Option<Nanos> {
        let mut out = VecDeque::new();
        let next = self.stack.poll(now, 64, &mut out);
        for output in out {
            match output {
                Output::Send(segment) => self.send(now, &segment),
                Output::Write(write) => self.copy(now, &write),
                Output::Notify(CONTEXT, event) => self.on_event(event),
                Output::Notify(context, event) => self.others.push((context, event)),
                Output::Control(Action::CopyRings(copy)) => {
                    for ((from, to), bytes) in copy.from.iter().zip(copy.to).zip(copy.bytes) {
                        let (from, bytes) = (from.offset as usize, bytes as usize);
                        self.memory.copy_within(from..from + bytes, to.offset as usize);
                    }
                    self.stack.rings_copied(now, copy.flow);
                }
                Output::Control(Action::Released(process)) => self.released.push(process),
                Output::Control(Action::Refused(context, call, reason)) => {
                    self.refused.push((context.process, call, reason));
                }
            }
        }
        next
    }

    fn copy(&mut self, now: Nanos, write: &Write<Frame>) {
        let mut left = &write.frame[write.bytes.clone()];
        for (offset, len) in write.ring.parts(write.position, write.bytes.len() as u32) {
            let (first, rest) = left.split_at(len as usize);
            self.memory[offset as usize..][..len as usize].copy_from_slice(first);
            left = rest;
        }
        self.stack.complete(now, write.ticket);
    }

    fn send(&mut self, now: Nanos, segment: &Segment<Frame>) {
        let part = |(offset, len): (u64, u32)| {
            RawPart::of(&self.memory[offset as usize..][..len as usize])
        };
        let parts = match &segment.payload {
            Payload::None => [RawPart::EMPTY; 2],
            Payload::Ring { ring, position, bytes, .. } => ring.parts(*position, *bytes).map(part),
            Payload::Frame(frame, range) => [RawPart::of(&frame[range.clone()]), RawPart::EMPTY],
        };
        let offload = Offload {
            segment_bytes: segment.segment_bytes,
            checksum: segment
                .checksum
                .map(|place| CsumPlace { start: place.start, offset: place.offset }),
        };
        let _ = self.wire.send(segment.head.bytes(), parts, offload).unwrap();
        if let Some(ticket @ Ticket(_)) = segment.ticket {
            self.stack.complete(now, ticket);
        }
    }

    fn on_event(&mut self, event: Event) {
        self.events.push(event);
        match event {
            Event::Progress(progress) => {
                let state = self.sockets.get_mut(&progress.socket).unwrap();
                assert!(!state.is_over, "{progress:?}");
                assert!(progress.received >= state.received);
                assert!(progress.acknowledged >= state.acknowledged);
                state.received = progress.received;
                state.acknowledged = progress.acknowledged;
                state.peer_is_finished |= progress.is_finished;
            }
            Event::Accepted { socket, flow, .. } => {
                self.sockets.get_mut(&socket).unwrap().flow = Some(flow);
                self.accepted.push_back(socket);
                if self.accepts {
                    self.ask(Nanos(0), Request::Accept { flow });
                }
            }
            Event::Connected { socket, flow, .. } => {
                self.sockets.get_mut(&socket).unwrap().flow = Some(flow);
            }
            Event::Failed { socket, reason } => {
                let state = self.sockets.get_mut(&socket).unwrap();
                assert!(!state.is_over);
                state.failed = Some(reason);
                state.is_over = true;
            }
            Event::Closed { socket } | Event::Unused { socket } | Event::Taken { socket } => {
                let state = self.sockets.get_mut(&socket).unwrap();
                assert!(!state.is_over);
                state.is_over = true;
            }
            Event::Door { .. }
            | Event::Demoted { .. }
            | Event::Listening { .. }
            | Event::NotListening { .. }
            | Event::Known(_)
            | Event::Located { .. }
            | Event::Lent { .. }
            | Event::Warned { .. } => {}
        }
    }

    /// Whether no flow is left in the data path.
    pub fn is_empty(&self) -> bool {
        let mut count = 0;
        self.stack.show(&mut |shown| count += usize::from(shown.established.is_some()));
        count == 0
    }
}

/// Runs both machines until `turn` returns true; panics if it does not within `most`. Time jumps to the next event.
pub fn run<R: Recovery>(
    machines: &mut [Machine<R>; 2],
    now: &mut Nanos,
    most: Nanos,
    mut turn: impl FnMut(&mut [Machine<R>; 2], Nanos) -> bool,
) {
    let end = *now + most;
    while *now < end {
        machines[0].wire.advance(now.0);
        let mut next = end;
        for machine in machines.iter_mut() {
            if let Some(at) = machine.step(*now) {
                next = next.min(at);
            }
        }
        if turn(machines, *now) {
            return;
        }
        let due = machines[0].wire.due().map_or(end, Nanos);
        let soon = *now + Nanos::from_micros(20);
        // The processes act now and then, too.
        let late = *now + Nanos::from_millis(5);
        *now = next.min(due).min(late).max(soon);
    }
    for machine in machines.iter() {
        machine.stack.show(&mut |shown| eprintln!("{shown:?}"));
        eprintln!("{:?}\n{:?}", machine.stack.data.counters(), machine.stack.counters());
    }
    panic!("the condition was not met within {most:?}");
}

/// Connects the first machine to port 80 of the second. Returns both, the time, and both names of the connection.
pub fn join<R: Recovery>(mut both: [Machine<R>; 2]) -> ([Machine<R>; 2], Nanos, u32, u32) {
    let mut now = Nanos(0);
    both[1].listen(now, 80, 1);
    let socket = both[0].connect(now, SocketAddr::from(([10, 0, 0, 2], 80)));
    run(&mut both, &mut now, Nanos::from_millis(60_000), |both, _| {
        !both[1].accepted.is_empty() && both[0].sockets[&socket].flow.is_some()
    });
    let peer = both[1].accepted.pop_front().unwrap();
    (both, now, socket, peer)
}

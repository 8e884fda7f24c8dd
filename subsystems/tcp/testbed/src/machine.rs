//! A stack, its wire, and a program that writes and reads.

use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use wave_core::clock::Nanos;
use wave_tcp::context::{ContextId, Event, Filled, Reason, Request, Sharing};
use wave_tcp::control::{
    Action, Address, Bounds, Call, Ipv6Config, Secrets, Stack, StackOutput, State,
};
use wave_tcp::datapath::{Datapath, Output, Packet, Ring, Segment, Settings};
use wave_wires::{Checksum, CsumPlace, Frame, Memory, Offload, RawPart, Wire};

use crate::executors::{By, Data, Runs};
use crate::memory::PayloadBytes;
use crate::socket::{Socket, connect};

/// The program's only context.
pub const CONTEXT: ContextId = ContextId { process: 3, context: 1 };
/// Length of a ring, in bytes, unless a [`Setup`] has another.
pub const RING: u32 = 1 << 14;
/// Bounds of a stack, unless a [`Setup`] has others.
pub const BOUNDS: Bounds =
    Bounds { flows: 64, handshakes: 16, time_wait: 8, listeners: 4, slots: 8 };
/// Steps of the data path in one poll.
const BUDGET: usize = 64;

/// Sizes and keys of a machine.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Last byte of the machine's addresses.
    pub host: u8,
    pub secrets: Secrets,
    pub bounds: Bounds,
    /// Sockets with rings of their own.
    pub sockets: u32,
    pub ring_bytes: u32,
    /// Parts of a new socket's rings that have memory.
    pub filled: Filled,
    /// Loss recovery, for a data path that has several.
    pub by: By,
}

impl Setup {
    /// A stack with selective acknowledgements, and rings of [`RING`].
    pub fn new(host: u8) -> Setup {
        Setup::with_rings(host, RING)
    }

    pub fn with_rings(host: u8, ring_bytes: u32) -> Setup {
        let key = |number| (number, u64::from(host));
        Setup {
            host,
            secrets: Secrets { sequence: key(1), timestamp: key(2), port: key(3), table: key(4) },
            bounds: BOUNDS,
            sockets: 64,
            ring_bytes,
            filled: Filled { receive: ring_bytes, send: ring_bytes },
            by: By::Sack,
        }
    }

    fn stack(&self, wire: &Memory, make: Make<'_>) -> Engine {
        let limits = wire.limits();
        let mac = limits.mac;
        let address = Address {
            ip: Ipv4Addr::new(10, 0, 0, self.host),
            prefix: 24,
            gateway: None,
            v6: Some(Ipv6Config { ip: host6(self.host), prefix: 64, gateway: None }),
            mac,
            mtu: limits.mtu,
        };
        let flows = self.bounds.flows;
        let super_bytes = limits.gso_bytes.saturating_sub(80);
        let settings = Settings { mac, super_bytes, flows, key: self.secrets.table };
        Stack::new(make(settings, self.by), address, self.bounds, self.secrets)
    }
}

/// Makes a machine's data path.
pub type Make<'a> = &'a dyn Fn(Settings, By) -> Data<Frame>;

fn inline(settings: Settings, by: By) -> Data<Frame> {
    Runs::Inline.datapath(settings, by)
}

/// IPv6 address of a machine.
pub fn host6(host: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, host.into())
}

/// A machine's stack.
pub type Engine = Stack<Frame, Data<Frame>>;

pub struct Machine {
    pub stack: Engine,
    pub wire: Memory,
    pub memory: PayloadBytes,
    pub sockets: BTreeMap<u32, Socket>,
    /// Connections that the stack has accepted.
    pub accepted: VecDeque<u32>,
    /// The program says at once that it has accepted its connections.
    pub accepts: bool,
    pub events: Vec<Event>,
    /// Events of other contexts.
    pub others: Vec<(ContextId, Event)>,
    pub released: Vec<u16>,
    /// Refused calls: process, call, reason.
    pub refused: Vec<(u16, Call, Reason)>,
    setup: Setup,
    next_socket: u32,
}

impl Machine {
    /// A machine over FlexTOE's data path, with all stages on one core.
    pub fn new(setup: Setup, wire: Memory) -> Machine {
        Machine::over(setup, wire, &inline)
    }

    /// A machine over a data path of its caller.
    pub fn over(setup: Setup, wire: Memory, make: Make<'_>) -> Machine {
        Machine {
            stack: setup.stack(&wire, make),
            wire,
            memory: PayloadBytes::new(2 * (setup.sockets * setup.ring_bytes) as usize),
            sockets: BTreeMap::new(),
            accepted: VecDeque::new(),
            accepts: true,
            events: Vec::new(),
            others: Vec::new(),
            released: Vec::new(),
            refused: Vec::new(),
            setup,
            next_socket: 0,
        }
    }

    /// Replaces the stack by one without connections, with keys and a data path of its own.
    pub(crate) fn renew(&mut self, make: Make<'_>) {
        let Secrets { sequence, timestamp, port, table } = &mut self.setup.secrets;
        [sequence, timestamp, port, table].into_iter().for_each(|key| key.0 += 8);
        self.stack = self.setup.stack(&self.wire, make);
    }

    /// The data path's counter with this name.
    pub fn counter(&self, name: &str) -> u64 {
        self.stack.data.counter(name)
    }

    pub fn ask(&mut self, now: Nanos, request: Request) {
        self.stack.request(now, CONTEXT, request, self.memory.bytes());
    }

    /// The receive ring and the send ring of a socket.
    fn rings(&self, socket: u32) -> [Ring; 2] {
        let Setup { sockets, ring_bytes: bytes, .. } = self.setup;
        let first = 2 * (socket % sockets);
        [first, first + 1].map(|at| Ring { offset: u64::from(at) * u64::from(bytes), bytes })
    }

    fn new_socket(&mut self) -> u32 {
        let number = self.next_socket;
        self.next_socket += 1;
        self.sockets.insert(number, Socket::new(self.rings(number), self.setup.filled));
        number
    }

    /// Listens on every IPv4 address, and offers slots.
    pub fn listen(&mut self, now: Nanos, port: u16, slots: u32) {
        self.listen_at(now, SocketAddr::from(([0, 0, 0, 0], port)), slots);
    }

    pub fn listen_at(&mut self, now: Nanos, local: SocketAddr, slots: u32) {
        let port = local.port();
        let (listener, sharing) = (port.into(), Sharing::default());
        self.ask(now, Request::Listen { listener, local, backlog: 8, sharing });
        for _ in 0..slots {
            self.slot(now, port);
        }
    }

    /// Offers a slot to a listener.
    pub fn slot(&mut self, now: Nanos, listener: u16) {
        let socket = self.new_socket();
        let [receive, send] = self.rings(socket);
        let (listener, filled) = (listener.into(), self.setup.filled.receive);
        self.ask(now, Request::Slot { listener, socket, receive, send, filled });
    }

    pub fn connect(&mut self, now: Nanos, remote: SocketAddr) -> u32 {
        self.connect_from(now, 0, remote)
    }

    /// Connects from this port, or from any (0).
    pub fn connect_from(&mut self, now: Nanos, local_port: u16, remote: SocketAddr) -> u32 {
        let socket = self.new_socket();
        let filled = self.setup.filled.receive;
        self.ask(now, connect(socket, self.rings(socket), filled, local_port, remote));
        socket
    }

    pub fn socket(&mut self, socket: u32) -> &mut Socket {
        self.sockets.get_mut(&socket).expect("the socket exists")
    }

    /// Writes as many bytes as there is room for, and returns their number.
    pub fn write(&mut self, socket: u32, bytes: &[u8]) -> usize {
        let Machine { sockets, memory, .. } = self;
        sockets.get_mut(&socket).expect("the socket exists").write(memory, bytes)
    }

    /// Reads at most `most` bytes, and returns them.
    pub fn read(&mut self, socket: u32, most: usize) -> &[u8] {
        let Machine { sockets, memory, .. } = self;
        sockets.get_mut(&socket).expect("the socket exists").read(memory, most)
    }

    /// Writes, and reports it. Returns the number of bytes written.
    pub fn send(&mut self, now: Nanos, socket: u32, bytes: &[u8]) -> usize {
        let written = self.write(socket, bytes);
        self.report_progress(now, socket);
        written
    }

    /// Reads at most `most` bytes, and reports it.
    pub fn receive(&mut self, now: Nanos, socket: u32, most: usize) {
        self.read(socket, most);
        self.report_progress(now, socket);
    }

    pub fn report_progress(&mut self, now: Nanos, socket: u32) {
        if let Some(update) = self.sockets[&socket].update()
            && self.stack.room_for_requests() > 0
        {
            self.ask(now, Request::Update(update));
        }
    }

    pub fn close(&mut self, now: Nanos, socket: u32) {
        self.socket(socket).is_finished = true;
        self.report_progress(now, socket);
        let state = self.socket(socket);
        state.is_closed = true;
        if let Some(flow) = state.flow {
            self.ask(now, Request::Close { flow });
        }
    }

    /// Receives frames, polls the stack, and performs its outputs. Returns when to poll next.
    pub fn step(&mut self, now: Nanos) -> Option<Nanos> {
        while self.stack.room_for_packets() > 0 {
            let Some(frame) = self.wire.receive().expect("the wire is in memory") else { break };
            let checksum_is_good = frame.checksum == Checksum::Good;
            let segment_bytes = frame.segment_bytes;
            self.stack.receive(Packet { frame, checksum_is_good, segment_bytes });
        }
        self.work(now)
    }

    /// Polls the stack, and performs its outputs. Returns when to poll next.
    pub(crate) fn work(&mut self, now: Nanos) -> Option<Nanos> {
        let mut outputs = VecDeque::new();
        let next = self.stack.poll(now, BUDGET, &mut outputs);
        outputs.into_iter().for_each(|output| self.perform(now, output));
        next
    }

    fn perform(&mut self, now: Nanos, output: StackOutput<Frame>) {
        match output {
            Output::Send(segment) => {
                self.transmit(&segment);
                if let Some(ticket) = segment.ticket {
                    self.stack.complete(now, ticket);
                }
            }
            Output::Write(write) => {
                self.memory.land(&write);
                self.stack.complete(now, write.ticket);
            }
            Output::Notify(CONTEXT, event) => self.on_event(event),
            Output::Notify(context, event) => self.others.push((context, event)),
            Output::Control(Action::CopyRings(copy)) => {
                for ((from, to), bytes) in copy.from.iter().zip(copy.to).zip(copy.bytes) {
                    self.memory.copy(*from, to, bytes);
                }
                self.stack.rings_copied(now, copy.flow);
            }
            Output::Control(Action::Released(process)) => self.released.push(process),
            Output::Control(Action::Refused(context, call, reason)) => {
                self.refused.push((context.process, call, reason));
            }
        }
    }

    /// Gives a segment to the wire.
    pub fn transmit(&mut self, segment: &Segment<Frame>) {
        let checksum = segment.checksum;
        let offload = Offload {
            segment_bytes: segment.segment_bytes,
            checksum: checksum.map(|place| CsumPlace { start: place.start, offset: place.offset }),
        };
        let parts = self.memory.payload(&segment.payload).map(RawPart::of);
        let sent = self.wire.send(segment.head.bytes(), parts, offload);
        let _ = sent.expect("the wire accepts every packet of the stack");
    }

    fn on_event(&mut self, event: Event) {
        self.events.push(event);
        match event {
            Event::Progress(progress) => {
                let state = self.socket(progress.socket);
                assert!(!state.goes_back(&progress), "{progress:?}");
                state.on_progress(&progress);
            }
            Event::Accepted { socket, flow, .. } => {
                self.socket(socket).flow = Some(flow);
                self.accepted.push_back(socket);
                if self.accepts {
                    self.ask(Nanos(0), Request::Accept { flow });
                }
            }
            Event::Connected { socket, flow, .. } => self.socket(socket).flow = Some(flow),
            Event::Failed { socket, reason } => {
                self.ends(socket);
                self.socket(socket).failed = Some(reason);
            }
            Event::Closed { socket } | Event::Unused { socket } | Event::Taken { socket } => {
                self.ends(socket);
            }
            _ => {}
        }
    }

    fn ends(&mut self, socket: u32) {
        let was_over = std::mem::replace(&mut self.socket(socket).is_over, true);
        assert!(!was_over, "socket {socket} ended twice");
    }

    /// States of the stack's connections and listeners, with their ports: ours and the peer's.
    pub fn entries(&self) -> Vec<(State, (u16, u16))> {
        let mut entries = Vec::new();
        self.stack.visit_sockets(&mut |shown| {
            let remote = shown.remote.map_or(0, |remote| remote.port());
            entries.push((shown.state, (shown.local.port(), remote)));
        });
        entries
    }

    pub fn states(&self) -> Vec<State> {
        self.entries().into_iter().map(|(state, _)| state).collect()
    }

    /// Whether no flow is left in the data path.
    pub fn is_empty(&self) -> bool {
        let mut is_empty = true;
        self.stack.visit_sockets(&mut |shown| is_empty &= shown.established.is_none());
        is_empty
    }
}

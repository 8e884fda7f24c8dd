//! A stack, and a peer whose segments are all handwritten: options, windows, control bits, IP headers and ICMP. An independent
//! implementation, etherparse, computes and verifies the peer's checksums.

use std::net::{Ipv4Addr, SocketAddrV4};

use etherparse::checksum::Sum16BitWords;
use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};

use wave_core::clock::Nanos;
use wave_tcp::context::{Event, Request, SocketOptions, Update};
use wave_tcp::control::State;
use wave_tcp::datapath::Established;
use wave_tcp::packet::{
    ArpOperation, ArpPacket, ETHERNET_BYTES, Ecn, Flags, IPV4_BYTES, Options, Parsed, TcpHeader,
    TcpSegment, build_arp, build_tcp, parse,
};
use wave_tcp::seq::Seq;
pub use wave_tcp_testbed::{MINUTE, MS, SECOND};
use wave_tcp_testbed::{Machine, Setup, update};
use wave_wires::{Adversity, Memory, Offload, RawPart, Wire};

pub const PEER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 5000);
pub const OURS: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 80);
pub const ISN: Seq = Seq(u32::MAX - 7);
/// The peer's window if a test names none.
pub const WINDOW: u16 = 60_000;
/// Offset of the TCP header in a frame.
const TCP_AT: usize = ETHERNET_BYTES + IPV4_BYTES;

/// A segment that the stack sent.
#[derive(Clone, Debug)]
pub struct Seen {
    pub at: Nanos,
    pub segment: TcpSegment,
    pub bytes: Vec<u8>,
}

impl Seen {
    pub fn payload(&self) -> &[u8] {
        &self.bytes[self.segment.payload.clone()]
    }

    pub fn has(&self, flags: Flags) -> bool {
        self.segment.flags.contains(flags)
    }

    pub fn source(&self) -> Ipv4Addr {
        self.ip(12)
    }

    pub fn destination(&self) -> Ipv4Addr {
        self.ip(16)
    }

    fn ip(&self, at: usize) -> Ipv4Addr {
        let bytes = &self.bytes[ETHERNET_BYTES + at..][..4];
        Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3])
    }

    /// Differentiated Services codepoint and hop limit.
    pub fn service(&self) -> (u8, u8) {
        (self.bytes[ETHERNET_BYTES + 1] >> 2, self.bytes[ETHERNET_BYTES + 8])
    }

    /// The bytes of the TCP options.
    pub fn options(&self) -> &[u8] {
        &self.bytes[TCP_AT + 20..self.segment.payload.start]
    }

    /// The segment with its IP header, as an ICMP error quotes it.
    pub fn quoted(&self) -> &[u8] {
        &self.bytes[ETHERNET_BYTES..TCP_AT + 8]
    }
}

/// The checksum of these parts, each but the last of an even length, by etherparse.
fn internet_checksum(parts: &[&[u8]]) -> [u8; 2] {
    let sum = parts.iter().fold(Sum16BitWords::new(), |sum, part| sum.add_slice(part));
    sum.ones_complement().to_be().to_be_bytes()
}

/// Verifies the checksums of a segment and of its IP header by etherparse.
fn assert_checksums(frame: &[u8]) {
    let packet = SlicedPacket::from_ethernet(frame).unwrap();
    let (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Tcp(tcp))) = (packet.net, packet.transport)
    else {
        panic!("no TCP over IPv4: {frame:?}")
    };
    let ip = ip.header();
    assert_eq!(ip.header_checksum(), ip.to_header().calc_header_checksum(), "{frame:?}");
    let expected = tcp.calc_checksum_ipv4(ip.source(), ip.destination()).unwrap();
    assert_eq!(tcp.checksum(), expected, "{frame:?}");
}

#[derive(Clone, Debug)]
pub struct Sends<'a> {
    pub source: SocketAddrV4,
    pub destination: SocketAddrV4,
    pub seq: Seq,
    pub ack: Option<Seq>,
    pub flags: Flags,
    pub window: u16,
    /// Encoded TCP options, a multiple of 4 bytes.
    pub options: &'a [u8],
    /// Encoded IP options, a multiple of 4 bytes.
    pub ip_options: &'a [u8],
    pub urgent: u16,
    pub data: &'a [u8],
    pub breaks_checksum: bool,
}

pub struct Peer {
    pub machine: Machine,
    pub wire: Memory,
    pub now: Nanos,
    pub seq: Seq,
    pub ack: Seq,
    pub socket: u32,
    /// Address and port of the stack.
    pub ours: SocketAddrV4,
    /// Number of ARP requests that the stack sent.
    pub asked: u32,
    /// Whether the peer answers ARP requests.
    pub answers_arp: bool,
    pub mac: [u8; 6],
}

impl Peer {
    pub fn new() -> Peer {
        Peer::over(1500)
    }

    /// A stack and a peer over a wire with this MTU that splits no super-packets.
    pub fn over(mtu: u16) -> Peer {
        Peer::with(Setup::new(2), mtu)
    }

    pub fn with(setup: Setup, mtu: u16) -> Peer {
        let (wire, other) = Memory::pair(&Adversity { mtu, gso_bytes: 0, ..Adversity::default() });
        let mac = wire.limits().mac;
        Peer {
            machine: Machine::new(setup, other),
            wire,
            now: SECOND,
            seq: ISN,
            ack: Seq(0),
            socket: 0,
            ours: OURS,
            asked: 0,
            answers_arp: true,
            mac,
        }
    }

    /// A connection that the peer opened, with these options in its SYN.
    pub fn accepted_with(options: &[u8], mtu: u16) -> Peer {
        let mut peer = Peer::over(mtu);
        peer.machine.listen(Nanos(0), 80, 4);
        peer.open(options);
        peer
    }

    pub fn accepted() -> Peer {
        Peer::accepted_with(&[], 1500)
    }

    /// Opens a connection from the peer, with these options in its SYN. Returns the stack's segments.
    pub fn open(&mut self, options: &[u8]) -> Vec<Seen> {
        self.send(Sends { ack: None, flags: Flags::SYN, options, ..self.plain() });
        let seen = self.after(5);
        let [syn] = &seen[..] else { panic!("{seen:?}") };
        assert_eq!(syn.segment.flags, Flags::SYN | Flags::ACK);
        (self.seq, self.ack) = (self.seq.plus(1), syn.segment.seq.plus(1));
        self.send(self.plain());
        assert!(self.after(5).is_empty());
        self.socket = self.machine.accepted.pop_front().expect("the connection is accepted");
        seen
    }

    /// A stack that connects to the peer, from this port or any (0), and its SYN.
    pub fn connecting(local_port: u16) -> (Peer, Seen) {
        let mut peer = Peer::new();
        peer.connect(local_port);
        let seen = peer.after(5);
        let [syn] = &seen[..] else { panic!("{seen:?}") };
        assert_eq!((syn.segment.flags, syn.segment.ack), (Flags::SYN, None));
        let port = syn.segment.source_port;
        peer.ours = SocketAddrV4::new(*OURS.ip(), port);
        peer.ack = syn.segment.seq.plus(1);
        (peer, syn.clone())
    }

    pub fn connect(&mut self, local_port: u16) {
        self.socket = self.machine.connect_from(self.now, local_port, PEER.into());
    }

    /// A connection that the stack opened.
    pub fn connected() -> Peer {
        let (mut peer, _) = Peer::connecting(0);
        peer.send(Sends { flags: Flags::SYN, ..peer.plain() });
        peer.seq = peer.seq.plus(1);
        peer.after(5);
        assert_eq!(peer.states(), [State::Established]);
        peer
    }

    /// A plain acknowledgement with the peer's current numbers.
    pub fn plain(&self) -> Sends<'static> {
        Sends {
            source: PEER,
            destination: self.ours,
            seq: self.seq,
            ack: Some(self.ack),
            flags: Flags::ACK,
            window: WINDOW,
            options: &[],
            ip_options: &[],
            urgent: 0,
            data: &[],
            breaks_checksum: false,
        }
    }

    pub fn send(&mut self, sends: Sends<'_>) {
        let header = TcpHeader {
            source_mac: self.mac,
            destination_mac: self.machine.wire.limits().mac,
            source: sends.source.into(),
            destination: sends.destination.into(),
            ecn: Ecn::default(),
            ttl: 64,
            seq: sends.seq,
            ack: sends.ack,
            flags: sends.flags,
            window: sends.window,
            options: Options::default(),
        };
        let mut head = [0; 120];
        let len = build_tcp(&mut head, &header, (sends.options.len() + sends.data.len()) as u32);
        let mut tcp = [&head[TCP_AT..len], sends.options, sends.data].concat();
        tcp[12] += (sends.options.len() as u8 / 4) << 4;
        tcp[18..20].copy_from_slice(&sends.urgent.to_be_bytes());
        tcp[16..18].fill(0);
        let [source, destination] = [sends.source, sends.destination].map(|end| end.ip().octets());
        let pseudo = [&source[..], &destination, &[0, 6], &(tcp.len() as u16).to_be_bytes()];
        let sum = internet_checksum(&[&pseudo.concat(), &tcp]);
        tcp[16..18].copy_from_slice(&sum);
        tcp[16] ^= u8::from(sends.breaks_checksum);
        let mut ip = [&head[ETHERNET_BYTES..TCP_AT], sends.ip_options].concat();
        ip[0] += sends.ip_options.len() as u8 / 4;
        let total = (ip.len() + tcp.len()) as u16;
        ip[2..4].copy_from_slice(&total.to_be_bytes());
        ip[10..12].fill(0);
        let sum = internet_checksum(&[&ip]);
        ip[10..12].copy_from_slice(&sum);
        self.put(&[&head[..ETHERNET_BYTES], &ip, &tcp].concat());
    }

    pub fn put(&mut self, frame: &[u8]) {
        let offload = Offload { segment_bytes: 0, checksum: None };
        let parts = [RawPart::EMPTY; 2];
        let _ = self.wire.send(frame, parts, offload).unwrap();
    }

    /// Sends an ICMP error about a segment. `rest` is the last two bytes of its fixed part.
    pub fn icmp(&mut self, kind: u8, code: u8, rest: u16, quoted: &[u8]) {
        let [high, low] = rest.to_be_bytes();
        let mut frame = Vec::new();
        PacketBuilder::ethernet2(self.mac, self.machine.wire.limits().mac)
            .ipv4([10, 0, 0, 9], [10, 0, 0, 2], 64)
            .icmpv4_raw(kind, code, [0, 0, high, low])
            .write(&mut frame, quoted)
            .unwrap();
        self.put(&frame);
    }

    /// Runs the stack for `time`, and returns the segments that it sends. ARP requests are answered.
    pub fn until(&mut self, time: Nanos, step: Nanos) -> Vec<Seen> {
        let mut seen = Vec::new();
        self.run(time, step, |peer, bytes| match parse(&bytes, false) {
            Ok(Parsed::Tcp { segment, .. }) => {
                assert_checksums(&bytes);
                seen.push(Seen { at: peer.now, segment, bytes });
            }
            Ok(Parsed::Arp(_, arp)) => peer.on_arp(&arp),
            other => panic!("the stack sent {other:?}"),
        });
        seen
    }

    /// Runs the stack for 5 ms, and returns the frames that it sends.
    pub fn frames(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        self.run(Nanos(5 * MS.0), MS, |_, frame| frames.push(frame));
        frames
    }

    fn run(&mut self, time: Nanos, step: Nanos, mut on_frame: impl FnMut(&mut Peer, Vec<u8>)) {
        let end = self.now + time;
        while self.now < end {
            // Several polls, so that segments that a command asks for are sent at the same time.
            for _ in 0..4 {
                self.wire.advance(self.now.0);
                self.machine.step(self.now);
                while let Some(frame) = self.wire.receive().unwrap() {
                    on_frame(self, frame.to_vec());
                }
            }
            self.now = self.now + step;
        }
    }

    pub fn after(&mut self, milliseconds: u64) -> Vec<Seen> {
        self.until(Nanos::from_millis(milliseconds), MS)
    }

    fn on_arp(&mut self, arp: &ArpPacket) {
        assert_eq!(arp.operation, ArpOperation::Request);
        self.asked += 1;
        if self.answers_arp {
            let mut frame = [0; 60];
            build_arp(&mut frame, &arp.reply(self.mac));
            self.put(&frame);
        }
    }

    pub fn write(&mut self, bytes: &[u8]) {
        assert_eq!(self.machine.send(self.now, self.socket, bytes), bytes.len());
    }

    /// Sets TCP_NODELAY for the program.
    pub fn set_eager(&mut self) {
        let state = &self.machine.sockets[&self.socket];
        let flow = state.flow.unwrap();
        let written = state.wrote.len() as u64;
        let update = Update { written, is_eager: true, ..update(flow) };
        self.machine.ask(self.now, Request::Update(update));
    }

    /// Acknowledges `bytes` more from the peer.
    pub fn acknowledge(&mut self, bytes: u32) {
        self.ack = self.ack.plus(bytes);
        self.send(self.plain());
    }

    /// Sends bytes from the peer, in order.
    pub fn sends(&mut self, data: &[u8]) {
        self.send(Sends { data, ..self.plain() });
        self.seq = self.seq.plus(data.len() as u32);
    }

    pub fn configure(&mut self, options: SocketOptions) {
        let flow = self.machine.sockets[&self.socket].flow.unwrap();
        self.machine.ask(self.now, Request::Configure { flow, options });
    }

    pub fn states(&self) -> Vec<State> {
        self.machine.states()
    }

    /// The data path's state of the connection.
    pub fn established(&self) -> Option<Established> {
        let mut found = None;
        self.machine.stack.visit_sockets(&mut |shown| found = found.or(shown.established));
        found.map(|(_, established)| established)
    }

    /// Congestion window and slow-start threshold, in bytes.
    pub fn congestion(&self) -> (u32, u32) {
        let mut found = None;
        self.machine.stack.visit_sockets(&mut |shown| found = found.or(shown.congestion));
        found.unwrap()
    }

    pub fn warnings(&self) -> Vec<wave_tcp::context::Reason> {
        let warned = |event: &Event| match event {
            Event::SoftError { reason, .. } => Some(*reason),
            _ => None,
        };
        self.machine.events.iter().filter_map(warned).collect()
    }

    pub fn received(&self) -> u64 {
        self.machine.sockets[&self.socket].received
    }
}

//! What a script says.

use wave_core::clock::Nanos;
use wave_tcp::congestion::Algorithm;
use wave_tcp::packet::{Ecn, Flags};

/// A script that was read.
#[derive(Clone, Debug)]
pub struct Script {
    /// How far a time may be off (`--tolerance_usecs`).
    pub tolerance: Nanos,
    /// What its commands choose.
    pub settings: Settings,
    /// In the order of the text.
    pub events: Vec<Event>,
}

/// What a script's commands choose for all connections, and for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Congestion control (`sysctl net.ipv4.tcp_congestion_control=dctcp`).
    pub algorithm: Algorithm,
    /// Handshakes agree on timestamps (`sysctl net.ipv4.tcp_timestamps=0`).
    pub has_timestamps: bool,
    /// The device takes super-packets (`ethtool -K tun0 tso off gso off`).
    pub takes_super_packets: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            algorithm: Algorithm::default(),
            has_timestamps: true,
            takes_super_packets: true,
        }
    }
}

/// A line: when, and what.
#[derive(Clone, Debug)]
pub struct Event {
    /// Its line in the text, from 1.
    pub line: usize,
    /// When it happens, or is expected.
    pub at: When,
    /// Added to the expected time alone: a mutant's.
    pub skew: Nanos,
    /// What happens, or is expected.
    pub action: Action,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// `*`: whenever it comes.
    Any,
    /// `0.1`: since the script's begin.
    Absolute(Nanos),
    /// `+0.1`: since the event before.
    Relative(Nanos),
    /// Between two times from the start, `0.1~0.2`.
    AbsoluteRange(Nanos, Nanos),
    /// Between two times from the last event, `+0.1~+0.2`.
    RelativeRange(Nanos, Nanos),
}

/// What happens, or is expected.
#[derive(Clone, Debug)]
pub enum Action {
    /// `<`: a packet comes in.
    In(Packet),
    /// `>`: a packet is expected.
    Out(Packet),
    /// A call of the program's, and what it returns.
    Call(Call),
    /// A sleep.
    Sleep,
}

#[derive(Clone, Debug)]
pub struct Packet {
    /// Ports of its source and destination, where they are named.
    pub ports: Option<(u16, u16)>,
    /// The bits of ECN in its IP header, where they are named.
    pub ecn: Option<Ecn>,
    pub body: Body,
}

#[derive(Clone, Debug)]
pub enum Body {
    Tcp(Segment),
    /// A message that something does not arrive.
    Icmp(Unreachable),
}

/// A segment. Numbers of ours begin at 0 with our SYN; the peer's are its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    pub flags: Flags,
    pub seq: u32,
    pub bytes: u32,
    /// Acknowledgement number.
    pub ack: Option<u32>,
    /// The window field; not compared where there is none.
    pub window: Option<u16>,
    pub urgent: u16,
    /// Options in their order; `None` is `<...>`, and not compared.
    pub options: Option<Vec<TcpOption>>,
}

/// One option of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TcpOption {
    /// `mss 1460`.
    Mss(u16),
    /// `sackOK`.
    SackOk,
    /// `TS val 1 ecr 2`.
    Timestamps(u32, u32),
    Nop,
    Eol,
    /// `wscale 7`.
    Scale(u8),
    /// `sack 1:2 3:4`.
    Sack(Vec<(u32, u32)>),
    /// `bytes 9 0`: as they are.
    Raw(Vec<u8>),
}

/// A message of ICMP about a segment of ours.
#[derive(Clone, Debug)]
pub struct Unreachable {
    /// Code of RFC 792.
    pub code: u8,
    /// The next hop's MTU (RFC 1191).
    pub mtu: u16,
    /// The first sequence number of the segment that it quotes, and its bytes of payload.
    pub seq: u32,
    pub bytes: u32,
}

#[derive(Clone, Debug)]
pub struct Call {
    pub name: String,
    pub arguments: Vec<Argument>,
    /// Time from its begin's base to its end, if it waits: `+0...0.2`.
    pub until: Option<Nanos>,
    /// What it returns; `None` is `...`.
    pub result: Option<i64>,
    /// Name of the expected errno.
    pub errno: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Argument {
    /// Any value, `...`.
    Any,
    Number(i64),
    /// A name, or several: `O_RDWR|O_NONBLOCK`.
    Names(Vec<String>),
    Text(String),
    /// A list, as `[1]`.
    List(Vec<Argument>),
    /// `{events=POLLIN, fd=4}`.
    Struct(Vec<(String, Argument)>),
}

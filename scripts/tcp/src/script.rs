//! A parsed script: its settings and events.

use wave_core::clock::Nanos;
use wave_tcp::congestion::Algorithm;
use wave_tcp::packet::{Ecn, Flags};

/// A parsed script.
#[derive(Clone, Debug)]
pub struct Script {
    /// Allowed deviation of a time (`--tolerance_usecs`).
    pub tolerance: Nanos,
    /// The settings that its commands choose.
    pub settings: Settings,
    /// Events in the order of the text.
    pub events: Vec<Event>,
}

/// Settings of all connections and of the device, chosen by a script's commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Congestion control (`sysctl net.ipv4.tcp_congestion_control=dctcp`).
    pub algorithm: Algorithm,
    /// Handshakes negotiate timestamps (false by `sysctl net.ipv4.tcp_timestamps=0`).
    pub has_timestamps: bool,
    /// The device accepts super-packets (false by `ethtool -K tun0 tso off gso off`).
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

/// One line: a time and an action.
#[derive(Clone, Debug)]
pub struct Event {
    /// Its line in the text, from 1.
    pub line: usize,
    /// When it happens, or is expected.
    pub at: When,
    /// Offset of a mutant, added only to the expected time.
    pub skew: Nanos,
    /// What happens, or is expected.
    pub action: Action,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// `*`: at any time.
    Any,
    /// `0.1`: since the script's start.
    Absolute(Nanos),
    /// `+0.1`: since the previous event.
    Relative(Nanos),
    /// Between two times from the start, `0.1~0.2`.
    AbsoluteRange(Nanos, Nanos),
    /// Between two times from the last event, `+0.1~+0.2`.
    RelativeRange(Nanos, Nanos),
}

/// What happens, or is expected.
#[derive(Clone, Debug)]
pub enum Action {
    /// `<`: a packet is received.
    In(Packet),
    /// `>`: a packet is expected.
    Out(Packet),
    /// A call by the program, and its expected result.
    Call(Call),
    /// Time passes until this line.
    Sleep,
}

#[derive(Clone, Debug)]
pub struct Packet {
    /// Source and destination port, if named.
    pub ports: Option<(u16, u16)>,
    /// ECN field of the IP header, if named.
    pub ecn: Option<Ecn>,
    pub body: Body,
}

#[derive(Clone, Debug)]
pub enum Body {
    Tcp(Segment),
    /// An ICMP Destination Unreachable message.
    Icmp(Unreachable),
}

/// A segment. Our sequence numbers are relative to our SYN, which has 0; the peer's are absolute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    pub flags: Flags,
    pub seq: u32,
    pub bytes: u32,
    /// Acknowledgement number.
    pub ack: Option<u32>,
    /// Window field; not compared if `None`.
    pub window: Option<u16>,
    pub urgent: u16,
    /// Options in order; `None` is `<...>`: not compared.
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
    /// `bytes 9 0`: raw bytes.
    Raw(Vec<u8>),
}

/// An ICMP error about one of our segments.
#[derive(Clone, Debug)]
pub struct Unreachable {
    /// Code of RFC 792.
    pub code: u8,
    /// The next hop's MTU (RFC 1191).
    pub mtu: u16,
    /// First sequence number of the quoted segment; `bytes` is the length of its payload.
    pub seq: u32,
    pub bytes: u32,
}

#[derive(Clone, Debug)]
pub struct Call {
    pub name: String,
    pub arguments: Vec<Argument>,
    /// End time of a blocking call, `+0...0.2`, relative to the base of its start time.
    pub until: Option<Nanos>,
    /// Expected result; `None` is `...`.
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
    /// A list, such as `[1]`.
    List(Vec<Argument>),
    /// `{events=POLLIN, fd=4}`.
    Struct(Vec<(String, Argument)>),
}

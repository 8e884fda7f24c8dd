//! A connection as both ends outside of the data path see it: the host's rings and requests, and the peer's streams.

use std::collections::VecDeque;
use std::net::SocketAddr;

use wave_core::clock::Nanos;
use wave_tcp::capabilities::Capabilities;
use wave_tcp::context::{Filled, Update};
use wave_tcp::datapath::{EcnState, Established, FlowId, Limits, Packet, Ring, Timestamps, Tuple};
use wave_tcp::packet::tcp::HEADERS_BYTES_MAX;
use wave_tcp::packet::{Ecn, Flags, Options, TcpHeader, build_tcp};
use wave_tcp::seq::{Seq, seq_of};
use wave_tcp_testbed_planted::{byte, update};

use crate::operation::{Ack, Arrival};

pub const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub const RING: u32 = 1 << 14;
pub const MSS: u16 = 1_000;
/// Earlier requests that may come again.
const EARLIER_MAX: usize = 4;

/// A connection, from its installation to the end of the history.
pub struct Connection {
    pub id: FlowId,
    pub initial: Established,
    /// The data path that has it, or had it last.
    pub home: usize,
    /// Its state, while it is exported.
    pub exported: Option<Established>,
    pub is_freezing: bool,
    /// The data path has said that the connection is frozen, and nothing has given it work since: a request or the control plane.
    pub is_frozen: bool,
    /// A reset is expected: by command, or because the host is at fault.
    pub may_reset: bool,
    pub is_reset: bool,

    /// Bytes that the host has written, and those of which a request has told.
    pub written: u64,
    pub told_written: u64,
    pub read: u64,
    pub told_read: u64,
    pub is_ended: bool,
    pub has_told_end: bool,
    pub earlier: VecDeque<Update>,
    /// The last notice's positions.
    pub notified: (u64, u64),
    pub notified_end: bool,

    /// Whether the host's ring has each byte of the peer's stream.
    pub landed: Vec<bool>,
    /// A segment with the peer's FIN has arrived, and the last of its bytes are in the ring.
    pub has_taken_fin: bool,
    /// A segment with the peer's FIN has arrived, whether it was taken or not.
    pub has_sent_fin: bool,
    /// Right edge of the advertised window, and the last acknowledged position, without the FIN.
    pub edge: u64,
    pub acknowledged: u64,
    pub fin_acknowledged: bool,

    /// Positions up to which the peer has sent its stream and its end.
    pub peer_sent: u64,
    pub peer_is_ended: bool,
    /// The bytes of the host's stream that have arrived at the peer.
    pub arrived: Vec<bool>,
    pub fin_arrived: bool,
    /// The last acknowledgement of the peer, the FIN included, and the right edge of its window.
    pub peer_acked: u64,
    pub peer_edge: u64,
    /// The largest window that congestion control has set.
    pub window_max: u64,
    pub mss_max: u16,
    /// The last timestamp of the data path.
    pub stamp: u32,
}

/// Length of the prefix whose bytes are all there.
fn prefix(bytes: &[bool]) -> u64 {
    bytes.iter().take_while(|is_there| **is_there).count() as u64
}

/// Marks a range as there.
pub fn mark(bytes: &mut Vec<bool>, from: u64, count: usize) {
    let end = from as usize + count;
    if bytes.len() < end {
        bytes.resize(end, false);
    }
    bytes[from as usize..end].fill(true);
}

/// A new connection, at a place. No two have the same ends, and every second one uses all that the data paths can do.
pub fn established(place: usize, number: u64, capabilities: &Capabilities) -> Established {
    let ends = Tuple {
        local: SocketAddr::from(([10, 0, 0, 2], 80)),
        remote: SocketAddr::from(([10, 0, 0, 1], 5_000 + number as u16)),
    };
    let bases = [Seq(u32::MAX - 3_000), Seq(u32::MAX - 7_000 * number as u32)];
    let first = wave_tcp_testbed_planted::established(ends, bases, RING);
    let offset = 2 * u64::from(RING) * place as u64;
    let ring = |ring: Ring| Ring { offset: ring.offset + offset, ..ring };
    let (mut sending, mut receiving) = (first.sending, first.receiving);
    (sending.ring, receiving.ring) = (ring(sending.ring), ring(receiving.ring));
    sending.mss = MSS;
    let is_rich = number.is_multiple_of(2);
    let scale = if is_rich && capabilities.window_scale { 2 } else { 0 };
    (sending.scale, receiving.scale) = (scale, scale);
    let stamps = Timestamps { recent: 0, offset: 77 };
    let echo = capabilities.echoes.first();
    Established {
        sending,
        receiving,
        socket: place as u32,
        timestamps: (is_rich && capabilities.timestamps).then_some(stamps),
        sack_permitted: is_rich && capabilities.sack,
        ecn: echo.filter(|_| is_rich).map(|echo| EcnState {
            echo: *echo,
            is_echoing: false,
            is_capable: true,
        }),
        limits: Limits { window_bytes: 10 * u32::from(MSS), ..Limits::default() },
        ..first
    }
}

impl Connection {
    pub fn new(id: FlowId, home: usize, initial: Established) -> Connection {
        Connection {
            id,
            initial,
            home,
            exported: None,
            is_freezing: false,
            is_frozen: false,
            may_reset: false,
            is_reset: false,
            written: 0,
            told_written: 0,
            read: 0,
            told_read: 0,
            is_ended: false,
            has_told_end: false,
            earlier: VecDeque::new(),
            notified: (0, 0),
            notified_end: false,
            landed: Vec::new(),
            has_taken_fin: false,
            has_sent_fin: false,
            edge: initial.receiving.edge,
            acknowledged: 0,
            fin_acknowledged: false,
            peer_sent: 0,
            peer_is_ended: false,
            arrived: Vec::new(),
            fin_arrived: false,
            peer_acked: 0,
            peer_edge: initial.sending.edge,
            window_max: initial.limits.window_bytes.into(),
            mss_max: initial.sending.mss,
            stamp: 0,
        }
    }

    /// Whether the data path serves it, and the host has made no mistake.
    pub fn is_live(&self) -> bool {
        self.exported.is_none() && !self.may_reset
    }

    pub fn landed_prefix(&self) -> u64 {
        prefix(&self.landed)
    }

    /// The position up to which the peer has received, its FIN included.
    pub fn arrived_prefix(&self) -> u64 {
        let bytes = prefix(&self.arrived);
        bytes + u64::from(self.fin_arrived && bytes == self.written)
    }

    /// All of the peer's stream is in the host's ring, and the FIN may have been taken.
    pub fn may_have_ended(&self) -> bool {
        self.has_sent_fin && self.landed_prefix() == self.peer_sent
    }

    /// All of the peer's stream is in the host's ring, and the FIN must have been taken.
    pub fn must_have_ended(&self) -> bool {
        self.has_taken_fin && self.landed_prefix() == self.peer_sent
    }

    /// The byte of the peer's stream at a position.
    pub fn peer_byte(&self, position: u64) -> u8 {
        byte(position ^ u64::from(self.initial.socket) << 40)
    }

    /// The host's request.
    pub fn tell(&mut self) -> Update {
        self.told_written = self.written;
        self.told_read = self.read;
        self.has_told_end |= self.is_ended;
        let told = Update {
            written: self.written,
            read: self.read,
            is_finished: self.is_ended,
            is_eager: true,
            filled: Filled { receive: RING, send: RING },
            ..update(self.id)
        };
        self.earlier.push_back(told);
        if self.earlier.len() > EARLIER_MAX {
            self.earlier.pop_front();
        }
        told
    }

    /// A segment of the peer. It may lie outside of the window, but says only what is so, except for [`Ack::Unsent`].
    pub fn segment(&mut self, now: Nanos, arrival: &Arrival) -> Packet<Vec<u8>> {
        let from = self.acknowledged.saturating_add_signed(arrival.skip.into());
        let mut to = from + u64::from(arrival.bytes);
        if arrival.is_last && self.peer_sent > from {
            to = self.peer_sent;
        }
        if self.peer_is_ended {
            to = to.min(self.peer_sent);
        } else {
            // The window may grow until a segment beyond it is processed.
            self.peer_sent = self.peer_sent.max(to);
        }
        let from = from.min(to);
        // Once its FIN is acknowledged, the peer sends acknowledgements alone, unless an old segment comes again.
        let is_over = self.fin_acknowledged && from == self.peer_sent && arrival.skip == 0;
        let is_end = self.peer_is_ended && to == self.peer_sent && !is_over;
        let ack = match arrival.ack {
            Ack::All => self.arrived_prefix(),
            Ack::Same => self.peer_acked,
            Ack::Unsent => self.told_written + 4 * u64::from(RING),
        };
        self.has_sent_fin |= is_end;
        let is_honest = !matches!(arrival.ack, Ack::Unsent) && !arrival.is_corrupt;
        if is_honest {
            self.peer_acked = self.peer_acked.max(ack);
            let window = u64::from(arrival.window) << self.initial.sending.scale;
            self.peer_edge = self.peer_edge.max(ack + window);
        }
        let stamps = (now.0 / 1_000_000) as u32;
        let has_ecn = self.initial.ecn.is_some();
        let header = TcpHeader {
            source_mac: [2; 6],
            destination_mac: MAC,
            source: self.initial.tuple.remote,
            destination: self.initial.tuple.local,
            ecn: match has_ecn && to > from {
                true if arrival.is_marked => Ecn::Congestion,
                true => Ecn::Capable0,
                false => Ecn::NotCapable,
            },
            ttl: 64,
            seq: seq_of(self.initial.receiving.base, from + u64::from(is_over)),
            ack: Some(seq_of(self.initial.sending.base, ack)),
            flags: if is_end { Flags::FIN } else { Flags::NONE },
            window: arrival.window,
            options: Options {
                timestamps: self.initial.timestamps.map(|_| (stamps, self.stamp)),
                ..Options::default()
            },
        };
        let mut frame = vec![0; HEADERS_BYTES_MAX];
        let bytes = (to - from) as u32;
        let head = build_tcp(&mut frame, &header, bytes);
        frame.truncate(head);
        frame.extend((from..to).map(|position| self.peer_byte(position)));
        if arrival.is_corrupt {
            let last = frame.len() - 1;
            frame[last] ^= 1;
        }
        // Only the sum of the pseudo header is there, so a frame whose checksum must be verified is dropped.
        Packet { frame, checksum_is_good: !arrival.is_corrupt, segment_bytes: 0 }
    }
}

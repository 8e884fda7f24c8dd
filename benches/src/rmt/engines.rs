//! The last rows of `wave bench rmt`: Laminar's data path against FlexTOE's inline one, for received segments of one MSS.
//!
//! A chunk makes a data path, installs the connections, and gives it each segment: frame, copy (which ends at once), acknowledgement, notice,
//! and a request of the host for every 16 segments of a connection. Frames are in memory and their checksums count as verified; nothing
//! is copied. Both rows get the same frames in the same order.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use wave_core::clock::Nanos;
use wave_tcp::context::{ContextId, Event, Filled, Tail, Update};
use wave_tcp::datapath::{
    Batch, Datapath, Established, Fin, FlowId, INTERVALS_MAX, Limits, Output, Packet, Receiving,
    Ring, Sending, Settings, Tuple,
};
use wave_tcp::datapaths::DatapathKind;
use wave_tcp::packet::tcp::HEADERS_BYTES_MAX;
use wave_tcp::packet::{Ecn, Flags, Options, TcpHeader, build_tcp};
use wave_tcp::seq::{Seq, seq_of};
use wave_tcp::trace::Trace;

use crate::SEED;

/// The rows, in the order of their chunks.
pub const KINDS: [DatapathKind; 2] = [DatapathKind::FlexToe, DatapathKind::Laminar];
/// Bytes of a segment's payload.
const MSS: u32 = 1448;
/// Segments of a chunk: two for each of the most connections.
const SEGMENTS: usize = 65_536;
/// Segments of a connection between two requests of its host.
const READ_AFTER: u32 = 16;
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const RING: u32 = 1 << 17;
const CONTEXT: ContextId = ContextId { process: 0, context: 0 };
/// Steps of a poll.
const BUDGET: usize = 16;

/// Frames of connections in random order, and the connection of each.
pub struct Frames {
    connections: u32,
    frames: Vec<(u32, Vec<u8>)>,
}

fn established(connection: u32) -> Established {
    let ring = Ring { offset: 0, bytes: RING };
    let bytes = 10_u32 << 24 | 1 << 16 | connection;
    Established {
        tuple: Tuple {
            local: SocketAddr::from(([10, 0, 0, 2], 80)),
            remote: SocketAddr::from((bytes.to_be_bytes(), 7_000)),
        },
        peer_mac: [4; 6],
        context: CONTEXT,
        socket: connection,
        sending: Sending {
            ring,
            base: Seq(connection.wrapping_mul(0x9e37_79b9)),
            acknowledged: 0,
            sent: 0,
            written: 0,
            edge: RING.into(),
            fin: Fin::No,
            scale: 7,
            mss: MSS as u16,
            filled: RING,
        },
        receiving: Receiving {
            ring,
            base: Seq(connection.wrapping_mul(0x85eb_ca6b)),
            received: 0,
            read: 0,
            edge: RING.into(),
            intervals: [(0, 0); INTERVALS_MAX],
            fin: None,
            scale: 7,
            filled: RING,
        },
        timestamps: None,
        sack_permitted: false,
        ecn: None,
        is_eager: true,
        limits: Limits { window_bytes: RING, ..Limits::default() },
    }
}

impl Frames {
    pub fn new(connections: u32) -> Frames {
        let mut random = Pcg64Mcg::seed_from_u64(SEED);
        let mut sent = vec![0_u64; connections as usize];
        let frame = |_| {
            let connection = random.random_range(0..connections);
            let state = established(connection);
            let header = TcpHeader {
                source_mac: [4; 6],
                destination_mac: MAC,
                source: state.tuple.remote,
                destination: state.tuple.local,
                ecn: Ecn::NotCapable,
                ttl: 64,
                seq: seq_of(state.receiving.base, sent[connection as usize]),
                ack: Some(state.sending.base),
                flags: Flags::NONE,
                window: 1_000,
                options: Options::default(),
            };
            sent[connection as usize] += u64::from(MSS);
            let mut frame = vec![0; HEADERS_BYTES_MAX];
            let head = build_tcp(&mut frame, &header, MSS);
            frame.resize(head + MSS as usize, 7);
            (connection, frame)
        };
        Frames { connections, frames: (0..SEGMENTS).map(frame).collect() }
    }

    /// Nanoseconds per segment of a data path, and the number of segments that it sent.
    ///
    /// # Errors
    /// It has not received what came.
    pub fn chunk(&self, kind: DatapathKind) -> Result<(f64, u64), String> {
        let settings =
            Settings { mac: MAC, super_bytes: 0, flows: self.connections, key: (SEED, SEED) };
        let mut data = kind.make(settings, Arc::new(Trace::new(0)));
        let start = Nanos::from_millis(1_000);
        let no_room =
            |_| format!("{} has no room for {} connections", kind.name(), self.connections);
        let flows: Vec<FlowId> = (0..self.connections)
            .map(|connection| data.install(start, &established(connection)))
            .collect::<Result<_, _>>()
            .map_err(no_room)?;
        let (mut outputs, mut packets, mut requests) =
            (VecDeque::with_capacity(64), VecDeque::with_capacity(1), VecDeque::with_capacity(1));
        settle(&mut data, start, &mut outputs, &mut |_, _| ());
        let mut sent = 0;
        let mut unread = vec![0; self.connections as usize];
        let began = Instant::now();
        for (number, (connection, frame)) in (1..).zip(&self.frames) {
            let now = start + Nanos::from_micros(number);
            let packet = Packet { frame: &frame[..], checksum_is_good: true, segment_bytes: 0 };
            packets.push_back(packet);
            data.submit(now, &mut Batch { packets: &mut packets, requests: &mut requests });
            let mut received = 0;
            settle(&mut data, now, &mut outputs, &mut |is_sent, position| {
                sent += u64::from(is_sent);
                received = position.max(received);
            });
            let unread = &mut unread[*connection as usize];
            *unread += 1;
            if *unread >= READ_AFTER && received > 0 {
                *unread = 0;
                let update = Update {
                    flow: flows[*connection as usize],
                    written: 0,
                    read: received,
                    is_finished: false,
                    is_eager: true,
                    tail: Tail::Whole,
                    filled: Filled { receive: RING, send: RING },
                };
                requests.push_back((CONTEXT, update));
            }
        }
        let took = began.elapsed();
        let received: u64 = flows
            .iter()
            .filter_map(|flow| data.inspect(*flow))
            .map(|state| state.receiving.received)
            .sum();
        let expected = SEGMENTS as u64 * u64::from(MSS);
        if received != expected {
            return Err(format!("{} received {received} of {expected} bytes", kind.name()));
        }
        Ok((took.as_nanos() as f64 / SEGMENTS as f64, sent))
    }
}

/// Polls until there is nothing to do at this time. Copies end at once. `sees` gets whether an output is a segment, and the position up to
/// which the host may read.
fn settle<'f>(
    data: &mut impl Datapath<&'f [u8]>,
    now: Nanos,
    outputs: &mut VecDeque<Output<&'f [u8]>>,
    sees: &mut impl FnMut(bool, u64),
) {
    loop {
        let next = data.poll(now, BUDGET, outputs);
        let mut has_completed = false;
        for output in outputs.drain(..) {
            match output {
                Output::Write(write) => {
                    data.complete(now, write.ticket);
                    has_completed = true;
                }
                Output::Send(segment) => {
                    sees(true, 0);
                    if let Some(ticket) = segment.ticket {
                        data.complete(now, ticket);
                    }
                }
                Output::Notify(_, Event::Progress(progress)) => sees(false, progress.received),
                Output::Notify(..) | Output::Control(_) => {}
            }
        }
        if !has_completed && next.is_none_or(|at| at > now) {
            return;
        }
    }
}

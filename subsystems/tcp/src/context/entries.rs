//! Encoding of requests and events as queue entries.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use wave_core::clock::Nanos;
use wave_core::queue::{Entry, Tag};

use super::{
    Event, Filled, HostFailure, KeepAlive, Progress, Reason, Request, Sharing, SocketOptions, Tail,
    TcpInfo, Update,
};
use crate::datapath::{FlowId, Ring};

/// A request or an event encoded as a queue entry: its tag and payload words.
pub type Words = (Tag, [u64; 6]);

/// An entry that no correct peer writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("peer's fault: malformed entry of kind {kind}")]
pub struct Malformed {
    /// The entry's kind.
    pub kind: u16,
}

const MOVED: u16 = 1;
const LISTEN: u16 = 2;
const UNLISTEN: u16 = 3;
const SLOT: u16 = 4;
const CONNECT: u16 = 5;
const CANCEL: u16 = 6;
const CLOSE: u16 = 7;
const ABORT: u16 = 8;
const CONFIGURE: u16 = 9;
const SHARE: u16 = 10;
const JOIN: u16 = 11;
const TAKE: u16 = 12;
const ACCEPT: u16 = 13;
const LEND: u16 = 14;
const QUERY_TCP_INFO: u16 = 15;
const LIMIT_SEGMENTS: u16 = 16;
const REPORT: u16 = 17;
const PLACEHOLDERS: u16 = 18;
const QUERY_LOCAL_ADDRESS: u16 = 19;
const SHUTDOWN_READ: u16 = 20;

const PROGRESS: u16 = 1;
const LISTENING: u16 = 2;
const NOT_LISTENING: u16 = 3;
const ACCEPTED: u16 = 4;
const CONNECTED: u16 = 5;
const FAILED: u16 = 6;
const CLOSED: u16 = 7;
const UNUSED: u16 = 8;
const SOFT_ERROR: u16 = 9;
const TCP_INFO: u16 = 10;
const LENT: u16 = 11;
const TAKEN: u16 = 12;
const DEMOTED: u16 = 13;
const DOOR: u16 = 14;
const LOCAL_ADDRESS: u16 = 15;

const FINISHED: u8 = 1;
const EAGER: u8 = 2;
/// Bit offset of [`Tail`] in the flags.
const TAIL_SHIFT: u32 = 2;
const KEEP_ALIVE: u8 = 1;
const USER_TIMEOUT: u8 = 2;
const REUSES_PORT: u8 = 1;

impl Request {
    /// Encodes the request as an entry.
    pub fn to_words(&self) -> Words {
        match *self {
            Request::Update(update) => {
                let Update { flow, written, read, is_finished, is_eager, tail, filled } = update;
                let flags = if is_finished { FINISHED } else { 0 }
                    | if is_eager { EAGER } else { 0 }
                    | (tail as u8) << TAIL_SHIFT;
                let filled = pair(filled.receive, filled.send);
                (Tag { kind: MOVED, flags }, [flow.to_word(), written, read, filled, 0, 0])
            }
            Request::Listen { listener, local, backlog, sharing } => {
                let [high, low] = address_words(local.ip());
                let more = u64::from(local.port()) << 16 | u64::from(backlog);
                let Sharing { secret, reuses_port } = sharing;
                let flags = if reuses_port { REUSES_PORT } else { 0 };
                let secret = [(secret >> 64) as u64, secret as u64];
                let words = [pair(listener, 0), high, low, more, secret[0], secret[1]];
                (Tag { kind: LISTEN, flags }, words)
            }
            Request::Share { listener } => (tag(SHARE), [pair(listener, 0), 0, 0, 0, 0, 0]),
            Request::Unlisten { listener } => (tag(UNLISTEN), [pair(listener, 0), 0, 0, 0, 0, 0]),
            Request::Slot { listener, socket, receive, send, filled } => {
                let [a, b, c] = ring_words(receive, send, filled);
                (tag(SLOT), [pair(listener, socket), a, b, c, 0, 0])
            }
            Request::Connect { socket, remote, local_port, mss_max, receive, send, filled } => {
                let [high, low] = address_words(remote.ip());
                let ports = u32::from(local_port) << 16 | u32::from(remote.port());
                let [a, b, c] = ring_words(receive, send, filled);
                let c = c | u64::from(mss_max) << 16;
                (tag(CONNECT), [pair(socket, ports), high, low, a, b, c])
            }
            Request::LimitSegments { listener, mss_max } => {
                (tag(LIMIT_SEGMENTS), [pair(listener, mss_max.into()), 0, 0, 0, 0, 0])
            }
            Request::Join { secret } => {
                (tag(JOIN), [(secret >> 64) as u64, secret as u64, 0, 0, 0, 0])
            }
            Request::Lend { flow, secret } => {
                (tag(LEND), [flow.to_word(), (secret >> 64) as u64, secret as u64, 0, 0, 0])
            }
            Request::Take { flow, socket, receive, send, read, written } => {
                let [a, b, c] = ring_words(receive, send, socket);
                (tag(TAKE), [flow.to_word(), a, b, c, read, written])
            }
            Request::Report { failure } => (Tag { kind: REPORT, flags: failure as u8 }, [0; 6]),
            Request::Placeholders => (tag(PLACEHOLDERS), [0; 6]),
            Request::QueryTcpInfo { flow } => {
                (tag(QUERY_TCP_INFO), [flow.to_word(), 0, 0, 0, 0, 0])
            }
            Request::Accept { flow } => (tag(ACCEPT), [flow.to_word(), 0, 0, 0, 0, 0]),
            Request::QueryLocalAddress { socket } => {
                (tag(QUERY_LOCAL_ADDRESS), [pair(socket, 0), 0, 0, 0, 0, 0])
            }
            Request::Cancel { socket } => (tag(CANCEL), [pair(socket, 0), 0, 0, 0, 0, 0]),
            Request::ShutdownRead { flow } => (tag(SHUTDOWN_READ), [flow.to_word(), 0, 0, 0, 0, 0]),
            Request::Close { flow } => (tag(CLOSE), [flow.to_word(), 0, 0, 0, 0, 0]),
            Request::Abort { flow } => (tag(ABORT), [flow.to_word(), 0, 0, 0, 0, 0]),
            Request::Configure { flow, options } => {
                let SocketOptions { keep_alive, user_timeout, diffserv, hop_limit } = options;
                let flags = if keep_alive.is_some() { KEEP_ALIVE } else { 0 }
                    | if user_timeout.is_some() { USER_TIMEOUT } else { 0 };
                let (times, probes) = keep_alive.map_or((0, 0), |keep| {
                    (pair(milliseconds(keep.idle), milliseconds(keep.interval)), keep.probes)
                });
                let timeout = user_timeout.map_or(0, |after| milliseconds(after).into());
                let bytes = u64::from_le_bytes([probes, diffserv, hop_limit, 0, 0, 0, 0, 0]);
                (Tag { kind: CONFIGURE, flags }, [flow.to_word(), times, bytes, timeout, 0, 0])
            }
        }
    }

    /// Decodes a request. The caller must still check its rings against the payload memory.
    ///
    /// # Errors
    /// The entry is not a request.
    pub fn from_entry(entry: &Entry) -> Result<Request, Malformed> {
        let Tag { kind, flags } = entry.tag;
        let malformed = Malformed { kind };
        let words: &[u64; 6] = entry.words().try_into().map_err(|_| malformed)?;
        let [first, a, b, c, d, e] = *words;
        let flow = FlowId::from_word(first);
        let (left, right) = (first as u32, (first >> 32) as u32);
        Ok(match kind {
            MOVED => Request::Update(Update {
                flow,
                written: a,
                read: b,
                is_finished: flags & FINISHED != 0,
                is_eager: flags & EAGER != 0,
                tail: Tail::ALL[usize::from(flags >> TAIL_SHIFT) % Tail::ALL.len()],
                filled: Filled { receive: c as u32, send: (c >> 32) as u32 },
            }),
            LISTEN => Request::Listen {
                listener: left,
                local: SocketAddr::new(address(a, b), (c >> 16) as u16),
                backlog: c as u16,
                sharing: Sharing {
                    secret: u128::from(d) << 64 | u128::from(e),
                    reuses_port: flags & REUSES_PORT != 0,
                },
            },
            SHARE => Request::Share { listener: left },
            UNLISTEN => Request::Unlisten { listener: left },
            SLOT => {
                let (receive, send, filled) = rings(a, b, c);
                Request::Slot { listener: left, socket: right, receive, send, filled }
            }
            CONNECT => {
                let (receive, send, filled) = rings(c, d, e);
                let remote = SocketAddr::new(address(a, b), right as u16);
                let local_port = (right >> 16) as u16;
                let mss_max = (e >> 16) as u16;
                Request::Connect {
                    socket: left,
                    remote,
                    local_port,
                    mss_max,
                    receive,
                    send,
                    filled,
                }
            }
            LIMIT_SEGMENTS => Request::LimitSegments { listener: left, mss_max: right as u16 },
            JOIN => Request::Join { secret: u128::from(first) << 64 | u128::from(a) },
            TAKE => {
                let (receive, send, socket) = rings(a, b, c);
                Request::Take { flow, socket, receive, send, read: d, written: e }
            }
            REPORT => {
                let mut all = HostFailure::ALL.into_iter();
                let failure = all.find(|one| *one as u8 == flags).ok_or(malformed)?;
                Request::Report { failure }
            }
            PLACEHOLDERS => Request::Placeholders,
            QUERY_TCP_INFO => Request::QueryTcpInfo { flow },
            ACCEPT => Request::Accept { flow },
            QUERY_LOCAL_ADDRESS => Request::QueryLocalAddress { socket: left },
            LEND => Request::Lend { flow, secret: u128::from(a) << 64 | u128::from(b) },
            CANCEL => Request::Cancel { socket: left },
            SHUTDOWN_READ => Request::ShutdownRead { flow },
            CLOSE => Request::Close { flow },
            ABORT => Request::Abort { flow },
            CONFIGURE => {
                let [probes, diffserv, hop_limit, ..] = b.to_le_bytes();
                let time = |milliseconds: u64| Nanos::from_millis(milliseconds & 0xffff_ffff);
                let keep = KeepAlive { idle: time(a), interval: time(a >> 32), probes };
                let options = SocketOptions {
                    keep_alive: (flags & KEEP_ALIVE != 0).then_some(keep),
                    user_timeout: (flags & USER_TIMEOUT != 0).then_some(time(c)),
                    diffserv,
                    hop_limit,
                };
                Request::Configure { flow, options }
            }
            _ => return Err(malformed),
        })
    }
}

impl Event {
    /// Encodes the event as an entry.
    pub fn to_words(&self) -> Words {
        match *self {
            Event::Progress(Progress { socket, received, acknowledged, is_finished }) => {
                let flags = if is_finished { FINISHED } else { 0 };
                (Tag { kind: PROGRESS, flags }, [pair(socket, 0), received, acknowledged, 0, 0, 0])
            }
            Event::TcpInfo(info) => {
                let TcpInfo { socket, round_trip_us, variation_us, timeout_us, .. } = info;
                let TcpInfo { mss, unacknowledged, window, threshold, .. } = info;
                let first = pair(socket, round_trip_us);
                let times = pair(variation_us, timeout_us);
                let windows = pair(window, threshold);
                (tag(TCP_INFO), [first, times, pair(mss, unacknowledged), windows, 0, 0])
            }
            Event::Lent { flow } => (tag(LENT), [flow.to_word(), 0, 0, 0, 0, 0]),
            Event::LocalAddress { socket, local } => {
                let [high, low] = address_words(local.ip());
                (tag(LOCAL_ADDRESS), [pair(socket, local.port().into()), high, low, 0, 0, 0])
            }
            Event::Listening { listener, local } => {
                let [high, low] = address_words(local.ip());
                (tag(LISTENING), [pair(listener, local.port().into()), high, low, 0, 0, 0])
            }
            Event::NotListening { listener, reason } => {
                (tag(NOT_LISTENING), [pair(listener, reason as u32), 0, 0, 0, 0, 0])
            }
            Event::Accepted { listener, socket, flow, remote, mss } => {
                let [high, low] = address_words(remote.ip());
                let port = u64::from(mss) << 16 | u64::from(remote.port());
                (tag(ACCEPTED), [pair(listener, socket), flow.to_word(), high, low, port, 0])
            }
            Event::Connected { socket, flow, local, mss } => {
                let [high, low] = address_words(local.ip());
                let port = u64::from(mss) << 16 | u64::from(local.port());
                (tag(CONNECTED), [pair(socket, 0), flow.to_word(), high, low, port, 0])
            }
            Event::Failed { socket, reason } => {
                (tag(FAILED), [pair(socket, reason as u32), 0, 0, 0, 0, 0])
            }
            Event::Closed { socket } => (tag(CLOSED), [pair(socket, 0), 0, 0, 0, 0, 0]),
            Event::Door { port } => (tag(DOOR), [u64::from(port), 0, 0, 0, 0, 0]),
            Event::Taken { socket } => (tag(TAKEN), [pair(socket, 0), 0, 0, 0, 0, 0]),
            Event::Demoted { socket } => (tag(DEMOTED), [pair(socket, 0), 0, 0, 0, 0, 0]),
            Event::Unused { socket } => (tag(UNUSED), [pair(socket, 0), 0, 0, 0, 0, 0]),
            Event::SoftError { socket, reason } => {
                (tag(SOFT_ERROR), [pair(socket, reason as u32), 0, 0, 0, 0, 0])
            }
        }
    }

    /// Decodes an event.
    ///
    /// # Errors
    /// The entry is not an event.
    pub fn from_entry(entry: &Entry) -> Result<Event, Malformed> {
        let Tag { kind, flags } = entry.tag;
        let malformed = Malformed { kind };
        let words: &[u64; 6] = entry.words().try_into().map_err(|_| malformed)?;
        let [first, a, b, c, d, _] = *words;
        let (left, right) = (first as u32, (first >> 32) as u32);
        let reason = || {
            let found = Reason::ALL.into_iter().find(|reason| *reason as u32 == right);
            found.ok_or(malformed)
        };
        Ok(match kind {
            PROGRESS => Event::Progress(Progress {
                socket: left,
                received: a,
                acknowledged: b,
                is_finished: flags & FINISHED != 0,
            }),
            TCP_INFO => Event::TcpInfo(TcpInfo {
                socket: left,
                round_trip_us: right,
                variation_us: a as u32,
                timeout_us: (a >> 32) as u32,
                mss: b as u32,
                unacknowledged: (b >> 32) as u32,
                window: c as u32,
                threshold: (c >> 32) as u32,
            }),
            LENT => Event::Lent { flow: FlowId::from_word(first) },
            LOCAL_ADDRESS => Event::LocalAddress {
                socket: left,
                local: SocketAddr::new(address(a, b), right as u16),
            },
            LISTENING => Event::Listening {
                listener: left,
                local: SocketAddr::new(address(a, b), right as u16),
            },
            NOT_LISTENING => Event::NotListening { listener: left, reason: reason()? },
            ACCEPTED => Event::Accepted {
                listener: left,
                socket: right,
                flow: FlowId::from_word(a),
                remote: SocketAddr::new(address(b, c), d as u16),
                mss: (d >> 16) as u16,
            },
            CONNECTED => Event::Connected {
                socket: left,
                flow: FlowId::from_word(a),
                local: SocketAddr::new(address(b, c), d as u16),
                mss: (d >> 16) as u16,
            },
            FAILED => Event::Failed { socket: left, reason: reason()? },
            CLOSED => Event::Closed { socket: left },
            DOOR => Event::Door { port: left as u16 },
            TAKEN => Event::Taken { socket: left },
            DEMOTED => Event::Demoted { socket: left },
            UNUSED => Event::Unused { socket: left },
            SOFT_ERROR => Event::SoftError { socket: left, reason: reason()? },
            _ => return Err(malformed),
        })
    }
}

const fn tag(kind: u16) -> Tag {
    Tag { kind, flags: 0 }
}

const fn pair(low: u32, high: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

fn milliseconds(time: Nanos) -> u32 {
    u32::try_from(time.0 / 1_000_000).unwrap_or(u32::MAX)
}

/// Encodes an address; IPv4 as an IPv4-mapped address (RFC 4291, 2.5.5.2).
fn address_words(ip: IpAddr) -> [u64; 2] {
    let ip = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let bits = ip.to_bits();
    [(bits >> 64) as u64, bits as u64]
}

fn address(high: u64, low: u64) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low))).to_canonical()
}

/// A ring's length is a power of two: its exponent is enough.
fn ring_words(receive: Ring, send: Ring, filled: u32) -> [u64; 3] {
    let exponents = receive.bytes.trailing_zeros() | send.bytes.trailing_zeros() << 8;
    [receive.offset, send.offset, pair(exponents, filled)]
}

fn rings(receive: u64, send: u64, sizes: u64) -> (Ring, Ring, u32) {
    let ring = |offset, exponent: u64| Ring { offset, bytes: 1 << (exponent & 31) };
    (ring(receive, sizes), ring(send, sizes >> 8), (sizes >> 32) as u32)
}

#[cfg(test)]
mod tests {
    use rand::{RngCore, SeedableRng};
    use wave_core::layout::Layout;

    use super::super::{CONTEXTS_MAX, QUEUE_ENTRIES, window};
    use super::*;

    fn entry((tag, words): Words) -> Entry {
        Entry::new(tag, &words)
    }

    #[test]
    fn requests_and_events_survive_encoding_and_decoding() {
        let mut random = rand_pcg::Pcg64Mcg::seed_from_u64(1);
        for kind in 0..22 {
            let mut survived = [0, 0];
            for round in 0..1_000 {
                let mut words = [0; 6].map(|_: u64| random.next_u64());
                let mut flags = random.next_u32() as u8;
                // Random numbers and flags hardly ever are a reason.
                if round % 2 == 0 {
                    let reason = Reason::ALL[random.next_u32() as usize % Reason::ALL.len()];
                    words[0] = pair(words[0] as u32, reason as u32);
                    flags %= 4;
                }
                let entry_of_kind = Entry::new(Tag { kind, flags }, &words);
                if let Ok(request) = Request::from_entry(&entry_of_kind) {
                    assert_eq!(Request::from_entry(&entry(request.to_words())), Ok(request));
                    survived[0] += 1;
                }
                if let Ok(event) = Event::from_entry(&entry_of_kind) {
                    assert_eq!(Event::from_entry(&entry(event.to_words())), Ok(event));
                    survived[1] += 1;
                }
            }
            let known = [MOVED..=SHUTDOWN_READ, PROGRESS..=LOCAL_ADDRESS]
                .map(|kinds| kinds.contains(&kind));
            assert_eq!(survived.map(|count| count > 100), known, "kind {kind}: {survived:?}");
        }
    }

    #[test]
    fn every_number_of_contexts_has_a_valid_window_layout() {
        for contexts in [1, 2, CONTEXTS_MAX] {
            let layout = Layout::new(window(contexts)).unwrap();
            assert_eq!(layout.decisions.len(), usize::from(contexts));
            assert!(layout.decisions.iter().all(|queue| queue.ring.entries == QUEUE_ENTRIES));
        }
    }

    #[test]
    fn entries_of_unknown_kind_or_wrong_length_are_malformed() {
        let short = Entry::new(tag(MOVED), &[1, 2, 3]);
        assert_eq!(Request::from_entry(&short), Err(Malformed { kind: MOVED }));
        let unknown = Entry::new(tag(99), &[0; 6]);
        assert_eq!(Event::from_entry(&unknown), Err(Malformed { kind: 99 }));
    }
}

//! Clients that cause work without calls, as fast as they can: another client is answered after a bounded part of the flood.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use wave_agent::ThreadFront;
use wave_core::agent::Front;
use wave_core::clock::Nanos;
use wave_grpc::{Limits, RpcFront, RpcOptions};

use crate::dial::Dial;
use crate::fixture::Fixture;
use crate::frames::{Line, SETTINGS, frame, greeting, headers, ping};
use crate::killed::front_options;

/// Connections of a flood, all of one address.
const FLOODERS: usize = 8;
/// Bytes on each connection of a flood that ends.
const FLOOD_BYTES: usize = 1 << 20;
/// Number of a flood's last ping.
const LAST: u64 = u64::MAX - 1;
/// Clients that do handshakes at once; fewer than a listener's backlog.
const CROWD: usize = 120;
/// Bytes of a flood between two of its pings, which show how much the front has read.
const BLOCK_BYTES: usize = 16 << 10;
/// Most bytes that a core reads in one turn from one address that is alone: two quanta of 1 ms at 1 ns per byte, and for each the
/// quantum of the last connection, whose last read may exceed it.
const TURN_BYTES_MAX: u64 = 2 * (1_000_000 + 250_000 + (32 << 10)) + 250_000;

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Frames of a type that HTTP/2 does not know (RFC 9113, 5.5).
    Unknown,
    WindowUpdate,
    Priority,
    /// SETTINGS that take and give every stream's window in turns, while many streams are open.
    InitialWindow,
    Ping,
    /// DATA of one byte each, in a call that is not read.
    TinyData,
    /// Requests that are reset at once.
    Reset,
}

const KINDS: [Kind; 7] = [
    Kind::Unknown,
    Kind::WindowUpdate,
    Kind::Priority,
    Kind::InitialWindow,
    Kind::Ping,
    Kind::TinyData,
    Kind::Reset,
];

impl Kind {
    /// Frames before the flood.
    fn first(self) -> Vec<u8> {
        match self {
            Kind::InitialWindow => (0..100)
                .flat_map(|at| headers(2 * at + 1, "/grpc.health.v1.Health/Watch"))
                .collect(),
            Kind::TinyData => headers(1, "/grpc.health.v1.Health/Check"),
            _ => Vec::new(),
        }
    }

    /// The next of the repeated frames, on a connection whose next stream is `stream`.
    fn unit(self, stream: &mut u32) -> Vec<u8> {
        match self {
            Kind::Unknown => frame(0x42, 0, 0, &[]),
            Kind::WindowUpdate => frame(8, 0, 0, &[0, 0, 0, 1]),
            Kind::Priority => frame(2, 0, 1, &[0, 0, 0, 3, 5]),
            Kind::InitialWindow => {
                let window = |bytes: u32| [&[0, 4][..], &bytes.to_be_bytes()].concat();
                [window(0), window(65_535)].map(|window| frame(SETTINGS, 0, 0, &window)).concat()
            }
            Kind::Ping => ping(u64::MAX),
            Kind::TinyData => frame(0, 0, 1, &[0]),
            Kind::Reset => {
                *stream += 2;
                let reset = frame(3, 0, *stream, &[0, 0, 0, 8]);
                [headers(*stream, "/test.Test/Echo"), reset].concat()
            }
        }
    }
}

/// A connection that floods.
struct Flooder {
    line: Line,
    kind: Kind,
    /// Bytes that were not written yet.
    left: Vec<u8>,
    /// Number of blocks so far, each of which ends with a ping.
    blocks: u64,
    stream: u32,
    written: usize,
}

impl Flooder {
    /// Floods after the frames `first`.
    fn new(line: Line, kind: Kind, first: Vec<u8>) -> Flooder {
        Flooder { line, kind, left: first, blocks: 0, stream: 1, written: 0 }
    }

    /// Writes until the sockets' buffers are full.
    fn fill(&mut self) {
        self.fill_up_to(usize::MAX);
    }

    /// As [`Flooder::fill`], but no more than `bytes` in all and a block.
    fn fill_up_to(&mut self, bytes: usize) {
        while !self.line.is_closed && self.written < bytes {
            if self.left.is_empty() {
                while self.left.len() < BLOCK_BYTES {
                    self.left.extend(self.kind.unit(&mut self.stream));
                }
                self.left.extend(ping(self.blocks));
                self.blocks += 1;
            }
            let written = self.line.write(&self.left);
            if written == 0 {
                return;
            }
            self.left.drain(..written);
            self.written += written;
        }
    }

    /// Bytes that the front has read at least.
    fn read(&mut self) -> usize {
        self.line.read();
        let blocks = self.line.pongs.iter().filter(|&&number| number != u64::MAX).count();
        blocks * BLOCK_BYTES
    }
}

/// Floods a front with [`FLOOD_BYTES`] until it has read all, or has closed the connection.
fn flood(address: SocketAddr, is_tls: bool, kind: Kind) {
    let first = [greeting(), kind.first()].concat();
    let mut flooder = Flooder::new(Line::new(address, is_tls), kind, first);
    while !flooder.line.is_closed && flooder.line.pongs.last() != Some(&LAST) {
        if flooder.written < FLOOD_BYTES {
            flooder.fill_up_to(FLOOD_BYTES);
        } else if flooder.blocks != LAST {
            flooder.blocks = LAST;
            flooder.left.extend(ping(LAST));
        }
        let written = flooder.line.write(&flooder.left);
        flooder.left.drain(..written);
        flooder.line.read();
        std::thread::yield_now();
    }
}

/// A front without connection cores that only the test polls.
struct Polled {
    front: RpcFront,
    is_tls: bool,
    _folder: tempfile::TempDir,
}

impl Polled {
    fn new(is_tls: bool) -> Polled {
        let folder = tempfile::tempdir().unwrap();
        let files = Dial::identity(is_tls).map(|texts| {
            let files = [(texts.0, "cert"), (texts.1, "key")];
            let [cert, key] = files.map(|(text, name)| {
                let path = folder.path().join(name);
                std::fs::write(&path, text).unwrap();
                path
            });
            (cert, key)
        });
        let options = front_options(folder.path().join("host").into(), "127.0.0.1:0", "jbsq:k=4");
        let limits = Limits { drain: Duration::ZERO, ..Limits::default() };
        let options = RpcOptions { connection_cpus: Vec::new(), tls: files, limits, ..options };
        let front = RpcFront::new(options, Instant::now()).unwrap();
        Polled { front, is_tls, _folder: folder }
    }

    fn address(&self) -> SocketAddr {
        self.front.addresses()[0]
    }

    fn poll(&mut self) {
        self.front.poll(Nanos(0), &mut Vec::new());
    }

    /// Connects a client, and does the handshakes. It first sends `first`.
    fn connect(&mut self, first: &[u8]) -> Line {
        let mut line = Line::new(self.address(), self.is_tls);
        let mut left = [&greeting()[..], first].concat();
        while !left.is_empty() || !line.is_greeted {
            self.poll();
            line.read();
            let written = line.write(&left);
            left.drain(..written);
            assert!(!line.is_closed);
        }
        line
    }

    /// Connects flooders. On return their sockets' buffers are full, and threads keep them full.
    fn flood(&mut self, kind: Kind) -> Flood {
        let connect = |_| Flooder::new(self.connect(&kind.first()), kind, Vec::new());
        let mut flooders: Vec<_> = (0..FLOODERS).map(connect).collect();
        // The test does not poll the front from here on.
        flooders.iter_mut().for_each(Flooder::fill);
        let is_over = Arc::new(AtomicBool::new(false));
        let spawn = |mut flooder: Flooder| {
            let is_over = Arc::clone(&is_over);
            std::thread::spawn(move || {
                while !is_over.load(SeqCst) {
                    flooder.fill();
                    flooder.line.read();
                    std::thread::yield_now();
                }
                flooder.read()
            })
        };
        let threads = flooders.into_iter().map(spawn).collect();
        Flood { threads, is_over }
    }
}

/// Threads that flood a front which the test polls.
struct Flood {
    threads: Vec<JoinHandle<usize>>,
    is_over: Arc<AtomicBool>,
}

impl Flood {
    /// Ends the flood of a front that is not polled any more. Returns the number of bytes that the front has read.
    fn end(self) -> u64 {
        self.is_over.store(true, SeqCst);
        self.threads.into_iter().map(|thread| thread.join().unwrap() as u64).sum()
    }
}

/// A poll begins one turn, so that two polls see three turns.
const BYTES_MAX: u64 = 3 * TURN_BYTES_MAX;

#[test]
fn ping_is_answered_after_a_bounded_part_of_a_flood_on_other_connections() {
    for (kind, is_tls) in KINDS.iter().flat_map(|kind| [(*kind, false), (*kind, true)]) {
        let mut front = Polled::new(is_tls);
        let mut good = front.connect(&[]);
        let flood = front.flood(kind);
        // The front finds the flood before the ping.
        front.poll();
        good.write(&ping(7));
        while good.pongs.is_empty() {
            front.poll();
            good.read();
            assert!(!good.is_closed);
        }
        let read = flood.end();
        assert!(read <= BYTES_MAX, "{kind:?}, TLS {is_tls}: a ping is answered after {read} bytes");
    }
}

#[test]
fn end_of_a_drain_is_noticed_after_a_bounded_part_of_a_flood() {
    for kind in KINDS {
        let mut front = Polled::new(false);
        let flood = front.flood(kind);
        front.front.ender().end();
        while {
            front.poll();
            !front.front.has_ended()
        } {}
        let read = flood.end();
        assert!(read <= BYTES_MAX, "{kind:?}: the drain is over after {read} bytes");
    }
}

#[test]
fn ping_is_answered_before_a_crowd_has_done_its_handshakes() {
    let mut front = Polled::new(true);
    let mut good = front.connect(&[]);
    let mut crowd: Vec<_> = (0..CROWD).map(|_| Line::new(front.address(), true)).collect();
    // Sends the first message of the TLS handshake.
    crowd.iter_mut().for_each(Line::read);
    front.poll();
    good.write(&ping(7));
    while good.pongs.is_empty() {
        front.poll();
        good.read();
    }
    let done = crowd.iter_mut().filter_map(|line| {
        line.read();
        (line.write(&[0]) > 0).then_some(())
    });
    assert!(done.count() < CROWD);
}

/// With connection cores as well: a core counts what it reads between two polls of its sockets.
#[test]
fn core_reads_a_bounded_number_of_bytes_between_two_polls_of_its_sockets() {
    for (cores, is_tls) in [(0, false), (0, true), (2, false), (2, true)] {
        for kind in KINDS {
            let fixture = Fixture::on_cores(cores, Limits::default(), Dial::identity(is_tls));
            let threads: Vec<_> = (0..FLOODERS)
                .map(|_| {
                    let address = fixture.address;
                    std::thread::spawn(move || flood(address, is_tls, kind))
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            let read_max = fixture.leave().read_max;
            assert!(read_max <= TURN_BYTES_MAX, "{kind:?}, TLS {is_tls}: {read_max}");
        }
    }
}

//! `wave bench queue`: the lap-word queue between two processes against rtrb between two threads.
//!
//! Both move entries of 64 bytes through rings of 1,024, unbatched, between the same two CPUs.
//! *One way* is half of a round trip through two queues, the mean of a chunk; *throughput* is
//! entries pushed per second, flow control included. The two take turns.
//!
//! For comparison, the machine's own times are measured ([`PingPong`]): one bare line, and 64 bytes in the next line of
//! a ring. The rest of an entry's time is the queue's own.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use wave_apps::launch::{self, Dialogue};
use wave_compare::{PerRound, in_turns};
use wave_core::link::{Home, Mapping, Port};
use wave_core::queue::{Consumer, Producer, Ring, Tag};
use wave_core::subsystem::SubsystemId;
use wave_experiments::measure::{ns_per, pin};
use wave_links::Memory;
use wave_links::shm::ShmPort;
use wave_links::socket::{Connection, Listener, Offer};
use wave_process::{cpus, places};
use wave_terminal::out;

use crate::SEED;
use crate::bench::Better::{Higher, Lower};
use crate::bench::{Bench, Figure, without_arguments};
use crate::line::{PingPong, Sent};

pub static BENCH: Bench = Bench {
    name: "queue",
    about: "The queue between two processes, against rtrb between two threads",
    help: "Entries of 64 bytes in rings of 1,024, unbatched.

  oneway_ratio_vs_rtrb      half of a round trip through two queues, divided by rtrb's (lower is better)
  throughput_ratio_vs_rtrb  entries pushed per second, divided by rtrb's (higher is better)
  line_ping_pong_ns         one way of one word in one line between the same CPUs, for comparison
  ring_ping_pong_ns         the same for 64 bytes, each time in the next line of a ring
  oneway_account_ns         parts of an entry's time: the line, the ring's other lines, and the queue itself; if these
                            vary between chunks, a part may come out negative
  cpus                      the two CPUs, and their distance as the system reports it: near (they share their last-level
                            cache), far (they share none), other (threads of one core, or a virtual machine, whose CPUs
                            may move: use line_ping_pong_ns instead)

Examples:
  wave bench queue
  wave bench queue --json | jq '.oneway_ratio_vs_line, .oneway_account_ns, .cpus'",
    figures: &[
        Figure::of("oneway_ratio_vs_rtrb").measured("one way of a 64-byte entry between processes / rtrb between threads"),
        Figure::of("oneway_ratio_vs_line").measured("the same / one bare line between the same CPUs"),
        Figure::of("oneway_ns.p50").compared(Lower).measured("one way of an entry, ns"),
        Figure::of("oneway_account_ns.line").measured("of that: one bare line, ns"),
        Figure::of("oneway_account_ns.ring_of_entries").measured("of that: 64 bytes in the next line of a ring instead, ns more"),
        Figure::of("oneway_account_ns.queue").measured("of that: the queue's own, ns"),
        Figure::of("throughput_ratio_vs_rtrb").measured("entries pushed per second / rtrb's"),
        Figure::of("pushes_per_second.p50").compared(Higher),
        Figure::peer("rtrb_oneway_ns.p50").compared(Lower),
        Figure::peer("rtrb_pushes_per_second.p50").compared(Higher),
    ],
    short: &[],
    has_two_cpus: true,
    arguments: without_arguments,
    run: |_, _| queue(),
};

const ENTRIES: u32 = 1024;
const LINES: u32 = 2 * (ENTRIES + 1);
const ROUND_TRIPS: usize = 8_000;
const PUSHES: usize = 200_000;
const CHUNKS: usize = 41;
const WARM_UP: usize = 4;
const TAG: Tag = Tag { kind: 1, flags: 0 };

fn rings() -> [Ring; 2] {
    [0, ENTRIES + 1].map(|base| Ring { first: base + 1, entries: ENTRIES, credit: base })
}

/// One side's ends of our two queues, one in each direction.
///
/// The measured functions are inlined, here and for rtrb. Otherwise the compiler's choice depends on the rest of the crate.
struct Ours {
    port: ShmPort,
    out: Producer,
    back: Consumer,
}

impl Ours {
    fn new(memory: &Arc<Memory>, out: Ring, back: Ring) -> Ours {
        Ours {
            port: ShmPort::new(memory),
            out: Producer::new(out, Mapping::WriteBack),
            back: Consumer::new(back, Mapping::WriteBack),
        }
    }

    #[inline(always)]
    fn push(&mut self, value: u64) {
        let payload = [value; 7];
        while self.out.push(self.port.window(Home::Nic), TAG, &payload).is_err() {
            std::hint::spin_loop();
        }
    }

    #[inline(always)]
    fn pop(&mut self) -> u64 {
        loop {
            let window = self.port.window(Home::Nic);
            if let Ok(Some(entry)) = self.back.pop(window) {
                self.back.release(window);
                return entry.words().iter().fold(0, |sum, word| sum ^ word);
            }
            std::hint::spin_loop();
        }
    }
}

/// A chunk, as a command to the other side.
#[derive(Clone, Copy)]
enum Chunk {
    Echo(usize),
    Take(usize),
}

impl Chunk {
    fn serve(self, mut pop: impl FnMut() -> u64, mut push: impl FnMut(u64)) {
        match self {
            Chunk::Echo(count) => (0..count).for_each(|_| push(pop())),
            Chunk::Take(count) => {
                let sum = (0..count).fold(0u64, |sum, _| sum.wrapping_add(pop()));
                std::hint::black_box(sum);
            }
        }
    }
}

/// The other process: `wave-bench peer SOCKET CPU`. It gets commands as lines on its standard input.
pub fn peer(socket: &Path, cpu: usize) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| format!("bench peer: {error}");
    pin(cpu)?;
    let connection = Connection::connect(socket).map_err(|error| text(&error))?;
    let offer = connection.receive_offer(1, None).map_err(|error| text(&error))?;
    let memory = Memory::map(offer.memory.as_fd(), LINES, 0, 0).map_err(|error| text(&error))?;
    let [there, back] = rings();
    let mut ours = Ours::new(&Arc::new(memory), back, there);
    for line in std::io::stdin().lines() {
        let line = line.map_err(|error| text(&error))?;
        let count = line[1..].parse().map_err(|error| text(&error))?;
        let chunk = if line.starts_with('e') { Chunk::Echo(count) } else { Chunk::Take(count) };
        out!("ready");
        match chunk {
            Chunk::Echo(count) => (0..count).for_each(|_| {
                let value = ours.pop();
                ours.push(value);
            }),
            Chunk::Take(count) => {
                let sum = (0..count).fold(0u64, |sum, _| sum.wrapping_add(ours.pop()));
                std::hint::black_box(sum);
            }
        }
        out!("done");
    }
    Ok(())
}

struct PeerProcess {
    dialogue: Dialogue,
    _connection: Connection,
}

impl PeerProcess {
    fn start(memory: std::os::fd::BorrowedFd<'_>, cpu: usize) -> Result<PeerProcess, String> {
        let text = |error: &dyn std::fmt::Display| format!("starting the bench's peer: {error}");
        let socket = places::socket("queue").map_err(|error| text(&error))?;
        let listener = Listener::bind(&socket, &[]).map_err(|error| text(&error))?;
        let cpu = cpu.to_string();
        let words: [&OsStr; 3] = ["peer".as_ref(), socket.as_ref(), cpu.as_ref()];
        let dialogue = launch::own(words).and_then(|mut command| Dialogue::start(&mut command));
        let mut dialogue = dialogue.map_err(|error| text(&error))?;
        let connection = loop {
            if let Some(connection) = listener.accept().map_err(|error| text(&error))? {
                break connection;
            }
            if let Some(status) = dialogue.process().wait_for_end(Duration::ZERO) {
                return Err(text(&format!("the process ended with {status}")));
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let offer = Offer {
            version: 1,
            subsystem: SubsystemId::NONE,
            lines: [LINES, 0, 0],
            memory,
            doorbells: &[],
            files: &[],
            link: "shm",
        };
        connection.send_offer(&offer).map_err(|error| text(&error))?;
        Ok(PeerProcess { dialogue, _connection: connection })
    }

    fn hear(&mut self) -> Result<(), String> {
        let heard = self.dialogue.read_line();
        heard.map(drop).map_err(|_| "the bench's peer has ended".to_owned())
    }

    /// Runs this side of a chunk while the peer serves it.
    fn chunk(&mut self, chunk: Chunk, body: impl FnOnce()) -> Result<f64, String> {
        let (letter, count) = match chunk {
            Chunk::Echo(count) => ('e', count),
            Chunk::Take(count) => ('t', count),
        };
        self.dialogue.write_line(&format!("{letter}{count}")).map_err(|error| error.to_string())?;
        self.hear()?;
        let ns = ns_per(count, body);
        self.hear()?;
        Ok(ns)
    }
}

/// The same with rtrb, and a thread as the other side.
struct Rtrb {
    out: rtrb::Producer<[u64; 8]>,
    back: rtrb::Consumer<[u64; 8]>,
    told: mpsc::Sender<Chunk>,
    ready: mpsc::Receiver<()>,
}

#[inline(always)]
fn rtrb_push(ring: &mut rtrb::Producer<[u64; 8]>, value: u64) {
    while ring.push([value; 8]).is_err() {
        std::hint::spin_loop();
    }
}

#[inline(always)]
fn rtrb_pop(ring: &mut rtrb::Consumer<[u64; 8]>) -> u64 {
    loop {
        if let Ok(words) = ring.pop() {
            return words.iter().fold(0, |sum, word| sum ^ word);
        }
        std::hint::spin_loop();
    }
}

impl Rtrb {
    fn start(cpu: usize) -> Rtrb {
        let (out, mut there) = rtrb::RingBuffer::new(ENTRIES as usize);
        let (mut home, back) = rtrb::RingBuffer::new(ENTRIES as usize);
        let (told, hears) = mpsc::channel::<Chunk>();
        let (says, ready) = mpsc::channel();
        std::thread::spawn(move || {
            let _ = pin(cpu);
            for chunk in hears {
                let _ = says.send(());
                chunk.serve(|| rtrb_pop(&mut there), |value| rtrb_push(&mut home, value));
                let _ = says.send(());
            }
        });
        Rtrb { out, back, told, ready }
    }

    fn chunk(&mut self, chunk: Chunk) -> Result<f64, String> {
        let gone = |_| "the rtrb thread has ended".to_owned();
        self.told.send(chunk).map_err(|_| gone(mpsc::RecvError))?;
        self.ready.recv().map_err(gone)?;
        let ns = match chunk {
            Chunk::Echo(count) => ns_per(count, || {
                for value in 0..count as u64 {
                    rtrb_push(&mut self.out, value);
                    std::hint::black_box(rtrb_pop(&mut self.back));
                }
            }),
            Chunk::Take(count) => ns_per(count, || {
                (0..count as u64).for_each(|value| rtrb_push(&mut self.out, value));
            }),
        };
        self.ready.recv().map_err(gone)?;
        Ok(ns)
    }
}

pub fn queue() -> Result<serde_json::Value, String> {
    let [host, other] = cpus::two()?;
    pin(host)?;
    let (memory, fd) =
        Memory::create("wave-bench", LINES, 0, 0).map_err(|error| error.to_string())?;
    let [there, back] = rings();
    let mut ours = Ours::new(&Arc::new(memory), there, back);
    let mut process = PeerProcess::start(fd.as_fd(), other)?;
    let mut rtrb = Rtrb::start(other);
    let mut lines = [Sent::Bare, Sent::Ring].map(|sent| PingPong::start(other, sent));
    let measured: [Vec<f64>; 6] = in_turns(SEED, WARM_UP, CHUNKS, |row| match row {
        0 => process.chunk(Chunk::Echo(ROUND_TRIPS), || {
            for value in 0..ROUND_TRIPS as u64 {
                ours.push(value);
                std::hint::black_box(ours.pop());
            }
        }),
        1 => rtrb.chunk(Chunk::Echo(ROUND_TRIPS)),
        2 => process.chunk(Chunk::Take(PUSHES), || {
            (0..PUSHES as u64).for_each(|value| ours.push(value));
        }),
        3 => rtrb.chunk(Chunk::Take(PUSHES)),
        _ => lines[row - 4].chunk(ROUND_TRIPS),
    })?;
    let [our_trip, their_trip, our_push, their_push, line, ring] =
        measured.map(PerRound::from_iter);
    let [our_way, their_way] = [our_trip, their_trip].map(|trip| trip.map(|ns| ns / 2.0));
    let [ours, theirs] = [our_push, their_push].map(|push| push.map(|ns| 1e9 / ns));
    Ok(serde_json::json!({
        "bench": "queue",
        "peer": "rtrb 0.3, two threads of one process",
        "entry_bytes": 64,
        "entries": ENTRIES,
        "chunks": CHUNKS,
        "oneway_ratio_vs_rtrb": our_way.over(&their_way).estimate(),
        "throughput_ratio_vs_rtrb": ours.over(&theirs).estimate(),
        "oneway_ratio_vs_line": our_way.over(&line).estimate(),
        "line_ping_pong_ns": line.spread(),
        "ring_ping_pong_ns": ring.spread(),
        "oneway_account_ns": {
            "line": line.median(),
            "ring_of_entries": ring.median() - line.median(),
            "queue": our_way.median() - ring.median(),
        },
        "oneway_ns": our_way.spread(),
        "rtrb_oneway_ns": their_way.spread(),
        "pushes_per_second": ours.spread(),
        "rtrb_pushes_per_second": theirs.spread(),
    }))
}

//! A program of a bake-off: a process in a cgroup of its own, and how it is made to use its memory.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Zipf};
use rand_pcg::Pcg64Mcg;
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use super::cgroup::Cgroup;
use super::places::Places;
use super::plan;
use crate::launch::{self, Process};
use crate::memory::size;
use wave_lab::Failure;
use wave_lab::terminal::note;

const PAGE: usize = 4096;
const PAGE_WORDS: usize = PAGE / 8;
/// Words of a batch of 256 KiB.
const BATCH_WORDS: usize = 64 * PAGE_WORDS;
/// Accesses come in groups, one every so often.
const TICK: Duration = Duration::from_millis(2);
/// How often it is told how many there were.
const TELL: Duration = Duration::from_millis(20);
/// How long a program may take until its memory is filled.
const FILL_PATIENCE: Duration = Duration::from_secs(120);
/// Share of the accesses that go to the hot fifth.
const HOT_ACCESSES: f64 = 0.999;
/// Parts of the memory, one of which is hot.
const PARTS: usize = 5;
/// Pages of every batch that are always used, as an allocator's lists are, and the share of accesses to them.
const BUSY: [usize; 3] = [0, 21, 42];
const BUSY_ACCESSES: f64 = 0.25;
/// Bytes of a value in redis.
const VALUE_BYTES: usize = 2_000;
/// Commands that are on their way to redis at once.
const COMMANDS: usize = 100;

/// Which pages are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// 99.9% of the accesses go to the first fifth of the memory, the rest to the rest.
    HotSet,
    /// The same, and a quarter of the accesses goes to three pages of every 256 KiB.
    Metadata,
    /// Zipf of 0.99 over pages in the order of their addresses.
    Zipf,
    /// A hot fifth, and every so often the next one.
    Phases,
    /// A redis server, and GETs of the first half of its keys.
    Redis,
}

impl Pattern {
    /// In a sentence.
    pub fn describe(self) -> &'static str {
        match self {
            Pattern::HotSet => {
                "99.9% of the accesses go to the first fifth of the pages, the others to the rest"
            }
            Pattern::Metadata => {
                "as the hot set, and a quarter of the accesses goes to three pages in every 256 KiB"
            }
            Pattern::Zipf => "Zipf of 0.99 over pages in the order of their addresses",
            Pattern::Phases => "a hot fifth of the pages, and after each phase the next one",
            Pattern::Redis => "GETs of the first half of redis's keys, which were set in order",
        }
    }
}

/// What a process of ours is to do.
#[derive(Debug, Deserialize, Serialize)]
enum Order {
    /// Use memory.
    Use { cgroup: PathBuf, pattern: Pattern, bytes: u64, rate: f64, seed: u64, phase: Duration },
    /// Become another program.
    Become { cgroup: PathBuf, words: Vec<String>, name: String },
    /// Ask redis.
    Ask { port: u16, bytes: u64, rate: f64, seed: u64 },
}

/// A program that runs. Killed when it is dropped: its client first.
pub struct Program {
    client: Option<Process>,
    target: Process,
    accesses: Arc<AtomicU64>,
}

impl Program {
    /// Starts it in its cgroup, and waits until its memory is filled. `over` says when to give up.
    pub fn start(
        planned: &plan::Program,
        seed: u64,
        cgroup: &Cgroup,
        places: Places,
        over: impl Fn() -> Result<(), Failure>,
    ) -> Result<Program, Failure> {
        let bytes = size::parse(&planned.memory).map_err(Failure::Scenario)?;
        let rate = planned.accesses_per_second;
        let cgroup = cgroup.folder().to_owned();
        let accesses = Arc::new(AtomicU64::new(0));
        let mut program = match planned.pattern {
            Pattern::Redis => {
                let port = free_port().map_err(Failure::cannot)?;
                let target = redis(cgroup, port)?;
                let mut program = Program { target, client: None, accesses };
                let order = Order::Ask { port, bytes, rate, seed };
                program.client = Some(places.beside(|| start(&order))?);
                program
            }
            pattern => {
                let phase = Duration::from_secs_f64(planned.phase_seconds);
                let target = start(&Order::Use { cgroup, pattern, bytes, rate, seed, phase })?;
                Program { target, client: None, accesses }
            }
        };
        program.listen();
        let began = Instant::now();
        while program.accesses.load(Ordering::Relaxed) == 0 {
            over()?;
            let who = program.client.as_mut().unwrap_or(&mut program.target);
            let left = who.has_ended();
            if left || began.elapsed() > FILL_PATIENCE {
                let why = if left { "it ended" } else { "it took too long" };
                let name = &planned.name;
                let why = format!("program {name} did not fill its memory: {why}");
                return Err(Failure::Cannot(why));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(program)
    }

    /// The process whose memory it is.
    pub fn pid(&self) -> i32 {
        self.target.pid().as_raw_pid()
    }

    /// Accesses so far; 0 until the memory is filled.
    pub fn accesses(&self) -> u64 {
        self.accesses.load(Ordering::Relaxed)
    }

    fn listen(&mut self) {
        let who = self.client.as_mut().unwrap_or(&mut self.target);
        let Some(output) = who.output() else { return };
        let accesses = Arc::clone(&self.accesses);
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Ok(count) = line.parse() {
                    accesses.store(count, Ordering::Relaxed);
                }
            }
        });
    }
}

fn start(order: &Order) -> Result<Process, Failure> {
    let order = serde_json::to_string(order).map_err(Failure::cannot)?;
    let mut command = launch::wave(["memory-program", &order]).map_err(Failure::cannot)?;
    // An interrupt from the terminal is for who started it.
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped());
    Process::start(&mut command).map_err(Failure::cannot)
}

fn free_port() -> std::io::Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Where redis is; Debian's redis-tools have the server under another name.
pub fn redis_program() -> Option<&'static str> {
    let places = ["/usr/bin/redis-server", "/usr/bin/redis-check-rdb"];
    places.into_iter().find(|path| Path::new(path).exists())
}

fn redis(cgroup: PathBuf, port: u16) -> Result<Process, Failure> {
    let program = redis_program().ok_or_else(|| {
        Failure::Cannot("redis is not installed: apt-get install redis-tools".to_owned())
    })?;
    let port = port.to_string();
    let words = [program, "--port", &port, "--bind", "127.0.0.1", "--save", ""];
    let words = words.into_iter().map(str::to_owned).collect();
    start(&Order::Become { cgroup, words, name: "redis-server".to_owned() })
}

/// What the hidden command does.
pub fn main(order: &str) -> ExitCode {
    let done = serde_json::from_str(order).map_err(std::io::Error::from).and_then(obey);
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            note!("wave memory-program: {error}");
            ExitCode::from(3)
        }
    }
}

fn obey(order: Order) -> std::io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    match order {
        Order::Use { cgroup, pattern, bytes, rate, seed, phase } => {
            enter(&cgroup)?;
            Memory::new(pattern, phase, bytes, seed).use_at(rate)
        }
        Order::Become { cgroup, words, name } => {
            enter(&cgroup)?;
            let mut command = Command::new(&words[0]);
            Err(command.arg0(name).args(&words[1..]).stdout(Stdio::null()).exec())
        }
        Order::Ask { port, bytes, rate, seed } => Redis::connect(port, bytes, seed)?.ask_at(rate),
    }
}

/// Every tool gets pages of 4 KiB.
fn enter(cgroup: &Path) -> std::io::Result<()> {
    std::fs::write(cgroup.join("cgroup.procs"), "0")?;
    Ok(rustix::thread::disable_transparent_huge_pages(true)?)
}

/// Does `step` at a fixed rate, whatever it takes, and tells how often it was done.
fn paced(
    rate: f64,
    mut step: impl FnMut(Duration, usize) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let mut out = std::io::stdout();
    let began = Instant::now();
    let (mut done, mut told) = (0_u64, None);
    loop {
        let time = began.elapsed();
        let due = (time.as_secs_f64() * rate) as u64;
        step(time, (due - done) as usize)?;
        done = due;
        if told.is_none_or(|told| time > told + TELL) {
            told = Some(time);
            writeln!(out, "{}", done.max(1))?;
        }
        std::thread::sleep(TICK);
    }
}

/// Memory of our own, and who uses which page of it.
struct Memory {
    pattern: Pattern,
    phase: Duration,
    words: Vec<u64>,
    /// The first word of a batch.
    first: usize,
    pages: usize,
    rng: Pcg64Mcg,
    zipf: Zipf<f64>,
}

impl Memory {
    fn new(pattern: Pattern, phase: Duration, bytes: u64, seed: u64) -> Memory {
        let pages = (bytes as usize / PAGE).max(PARTS * 64);
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let mut words = vec![0_u64; pages * PAGE_WORDS + BATCH_WORDS];
        let first = words.as_ptr().align_offset(BATCH_WORDS * 8);
        // Half of each page can be compressed.
        for page in words[first..].chunks_mut(PAGE_WORDS).take(pages) {
            page[..PAGE_WORDS / 2].fill_with(|| rng.random());
            page[PAGE_WORDS / 2..].fill(1);
        }
        let zipf = Zipf::new(pages as f64, 0.99).expect("there are pages, and the exponent is one");
        Memory { pattern, phase, words, first, pages, rng, zipf }
    }

    /// The page to use next.
    fn page(&mut self, time: Duration) -> usize {
        let part = self.pages / PARTS;
        let rng = &mut self.rng;
        if self.pattern == Pattern::Zipf {
            return (self.zipf.sample(rng) as usize - 1).min(self.pages - 1);
        }
        if self.pattern == Pattern::Metadata && rng.random_bool(BUSY_ACCESSES) {
            let batch = rng.random_range(0..self.pages / 64);
            return batch * 64 + BUSY[rng.random_range(0..BUSY.len())];
        }
        let begin = match self.pattern {
            Pattern::Phases => {
                (time.as_secs_f64() / self.phase.as_secs_f64()) as usize % PARTS * part
            }
            _ => 0,
        };
        let offset = match rng.random_bool(HOT_ACCESSES) {
            true => rng.random_range(0..part),
            false => rng.random_range(part..self.pages),
        };
        (begin + offset) % self.pages
    }

    fn use_at(mut self, rate: f64) -> std::io::Result<()> {
        paced(rate, |time, count| {
            for _ in 0..count {
                let page = self.page(time);
                let at = self.first + page * PAGE_WORDS + self.rng.random_range(0..PAGE_WORDS);
                // Half of the accesses write.
                let word = std::hint::black_box(self.words[at]);
                if self.rng.random() {
                    self.words[at] = std::hint::black_box(word);
                }
            }
            Ok(())
        })
    }
}

/// Keys and values of a redis.
struct Redis {
    stream: TcpStream,
    keys: usize,
    rng: Pcg64Mcg,
    answers: Vec<u8>,
}

impl Redis {
    fn connect(port: u16, bytes: u64, seed: u64) -> std::io::Result<Redis> {
        let began = Instant::now();
        let stream = loop {
            match TcpStream::connect(("127.0.0.1", port)) {
                Ok(stream) => break stream,
                Err(error) if began.elapsed() > FILL_PATIENCE => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        stream.set_nodelay(true)?;
        let keys = bytes as usize / VALUE_BYTES;
        let rng = Pcg64Mcg::seed_from_u64(seed);
        let mut redis = Redis { stream, keys, rng, answers: Vec::new() };
        redis.fill()?;
        Ok(redis)
    }

    fn fill(&mut self) -> std::io::Result<()> {
        let mut keys = 0..self.keys;
        while !keys.is_empty() {
            let (mut commands, mut count) = (Vec::new(), 0);
            for key in keys.by_ref().take(COMMANDS) {
                let mut value = vec![b'x'; VALUE_BYTES];
                self.rng.fill(&mut value[..VALUE_BYTES / 2]);
                let key = format!("key:{key}");
                let length = key.len();
                write!(commands, "*3\r\n$3\r\nSET\r\n${length}\r\n{key}\r\n${VALUE_BYTES}\r\n")?;
                commands.extend(value);
                commands.extend(b"\r\n");
                count += 1;
            }
            self.stream.write_all(&commands)?;
            self.read(count * b"+OK\r\n".len())?;
        }
        Ok(())
    }

    fn read(&mut self, bytes: usize) -> std::io::Result<()> {
        self.answers.resize(bytes, 0);
        self.stream.read_exact(&mut self.answers)
    }

    /// One byte of each value is asked for: what counts is that it is touched.
    fn ask_at(mut self, rate: f64) -> std::io::Result<()> {
        paced(rate, |_, mut count| {
            while count > 0 {
                let group = count.min(COMMANDS);
                let mut commands = Vec::new();
                for _ in 0..group {
                    let key = format!("key:{}", self.rng.random_range(0..self.keys / 2));
                    let at = VALUE_BYTES - 1;
                    let (length, digits) = (key.len(), at.to_string().len());
                    write!(
                        commands,
                        "*4\r\n$8\r\nGETRANGE\r\n${length}\r\n{key}\r\n${digits}\r\n{at}\r\n${digits}\r\n{at}\r\n"
                    )?;
                }
                self.stream.write_all(&commands)?;
                self.read(group * b"$1\r\nx\r\n".len())?;
                count -= group;
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PHASE: Duration = Duration::from_secs(3);

    fn shares(pattern: Pattern, time: Duration) -> Vec<f64> {
        let mut memory = Memory::new(pattern, PHASE, 4 << 20, 7);
        let (pages, count) = (memory.pages, 200_000);
        let mut shares = vec![0.0; pages];
        (0..count).for_each(|_| shares[memory.page(time)] += 1.0 / f64::from(count));
        shares
    }

    #[test]
    fn patterns_use_the_pages_that_they_say() {
        let part = |shares: &[f64], at: usize| -> f64 {
            let pages = shares.len() / PARTS;
            shares[at * pages..(at + 1) * pages].iter().sum()
        };
        let hot = shares(Pattern::HotSet, PHASE);
        assert!((part(&hot, 0) - HOT_ACCESSES).abs() < 0.001, "{}", part(&hot, 0));
        let phases = shares(Pattern::Phases, PHASE);
        assert!(part(&phases, 1) > 0.99 && part(&phases, 0) < 0.01);
        let busy = shares(Pattern::Metadata, PHASE);
        let of_busy: f64 = (0..busy.len() / 64)
            .filter(|batch| *batch > busy.len() / 64 / PARTS)
            .flat_map(|batch| BUSY.map(|page| busy[batch * 64 + page]))
            .sum();
        assert!(of_busy > 0.15, "{of_busy}");
        let zipf = shares(Pattern::Zipf, PHASE);
        assert!(zipf[0] > 0.1 && zipf[0] > 1.8 * zipf[1] && part(&zipf, 4) > 0.01);
    }
}

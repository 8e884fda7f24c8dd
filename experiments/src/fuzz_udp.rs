//! A flood of valid, mutated and random datagrams to an agent's front, beside a client that behaves.
//!
//! Chunks of three kinds take turns: the client alone; beside the flood; and beside as many datagrams to a socket that nobody reads, which
//! shows what sending them costs the client. Agent and worker share one CPU; client and flood share another.

mod datagrams;

use std::fs;
use std::net::UdpSocket;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use wave_links::places;
use wave_user::rpc::{Methods, Options, Server};
use wave_workloads::udp::{Generator, Outcome, Settings};

use self::datagrams::Sender;
pub use self::datagrams::Sent;
use crate::launch::{self, Process};
use crate::measure::{Chunks, pin, two_cpus};
use wave_lab::Failure;
use wave_lab::progress::Progress;

/// Senders of the flood, each with a cookie of its own.
const SENDERS: usize = 8;
/// Requests of the good client per second.
const GOOD_PER_SECOND: f64 = 1_000.0;
const CHUNK: Duration = Duration::from_secs(1);
/// After how long the good client sends again.
const RETRY: Duration = Duration::from_millis(20);
/// How long the last answers may take.
const DRAIN: Duration = Duration::from_secs(5);
/// How often datagrams are sent: as many as are due then.
const TICK: Duration = Duration::from_micros(100);
/// What a front may grow by: kept replies and the windows of all senders
/// (`KEPT_BYTES`, and `SENDERS_MAX` times `WINDOW` slots of 64 bytes, in fronts/udp/src/senders.rs), and what an allocator keeps.
pub const RSS_GROWTH_BYTES_MAX: u64 = (32 << 20) + 2048 * 1024 * 64 + (32 << 20);

/// How much is sent.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Datagrams of the flood.
    pub datagrams: u64,
    /// Of them per second.
    pub per_second: f64,
    /// What they are made from.
    pub seed: u64,
}

/// What was found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Found {
    /// Datagrams that were sent, by how they were made.
    pub sent: Sent,
    /// How often the agent ended by itself.
    pub crashes: u64,
    /// How much the agent's resident memory grew at most since before the flood.
    pub rss_growth_bytes: u64,
    /// What it may grow by.
    pub rss_growth_bytes_max: u64,
    /// Requests of the good client, and those without a right reply.
    pub good_sent: u64,
    /// Requests of the good client without a right reply.
    pub good_failed: u64,
    /// Its p99 with the flood by its p99 beside a flood to elsewhere, median over rounds.
    pub good_p99_ratio: f64,
    /// Its p99 with the flood by its p99 alone, median over rounds.
    pub good_p99_ratio_vs_alone: f64,
    /// Its p99 alone, in nanoseconds: p5, p50, p95 over rounds.
    pub good_p99_alone_ns: serde_json::Value,
    /// Its p99 beside a flood to elsewhere.
    pub good_p99_flooded_elsewhere_ns: serde_json::Value,
    /// Its p99 with the flood.
    pub good_p99_flooded_ns: serde_json::Value,
}

impl Found {
    /// What is wrong, in words; empty where all is well.
    pub fn failed(&self) -> Vec<String> {
        let checks = [
            (self.crashes > 0, format!("the agent ended {} times", self.crashes)),
            (
                self.rss_growth_bytes > self.rss_growth_bytes_max,
                format!("the agent grew by {} bytes", self.rss_growth_bytes),
            ),
            (
                self.good_failed > 0,
                format!("{} requests of the good client had no right reply", self.good_failed),
            ),
        ];
        checks.into_iter().filter(|(is_wrong, _)| *is_wrong).map(|(_, what)| what).collect()
    }
}

/// An agent's process, started again when it ends.
struct Agent {
    words: Vec<String>,
    process: Process,
}

impl Agent {
    fn start(words: Vec<String>) -> Result<Agent, Failure> {
        let process = launch::wave(&words).and_then(|mut command| Process::start(&mut command));
        Ok(Agent { words, process: process.map_err(Failure::cannot)? })
    }

    /// Whether it had ended. Another one runs then.
    fn revive(&mut self) -> Result<bool, Failure> {
        if !self.process.has_ended() {
            return Ok(false);
        }
        *self = Agent::start(std::mem::take(&mut self.words))?;
        Ok(true)
    }

    /// Resident bytes; 0 of a process that has just ended.
    fn rss_bytes(&self) -> u64 {
        let path = format!("/proc/{}/statm", self.process.pid().as_raw_pid());
        let pages = fs::read_to_string(path).ok().and_then(|statm| {
            statm.split_ascii_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok())
        });
        pages.unwrap_or(0) * rustix::param::page_size() as u64
    }
}

/// Floods a front of an agent of its own.
///
/// # Errors
/// Host, agent or client cannot be started.
pub fn run(plan: &Plan, quiet: bool) -> Result<Found, Failure> {
    let [server_cpu, load_cpu] = two_cpus().map_err(Failure::Cannot)?;
    let socket = places::socket("fuzz-udp").map_err(Failure::cannot)?;
    let _socket = Removed(socket.clone());
    let mut options = Options::new(&socket).workers(1);
    options.cpus = vec![server_cpu];
    options.yields_cpu = true;
    let methods = Methods::new().unary("/wave.fuzz/Echo", |_, request| Ok(request.to_vec()));
    let _server = Server::start(options, methods).map_err(Failure::cannot)?;
    pin(load_cpu).map_err(Failure::Cannot)?;
    let address = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    let address = address.map_err(Failure::cannot)?;
    let words = format!(
        "agent --rpc {} --udp {address} --cpu {server_cpu} --share-cpu --quiet --leave-with-parent",
        socket.display()
    );
    let mut agent = Agent::start(words.split(' ').map(str::to_owned).collect())?;
    let settings = Settings {
        target: address.to_string(),
        sockets: 1,
        mix: "echo=1".parse().expect("it is a mix"),
        keys: 1_000,
        value_bytes: 64,
        retry: Some(RETRY),
        seed: plan.seed & 0xffff,
    };
    let mut good = Generator::connect(&settings).map_err(Failure::cannot)?;
    // Until the host is there, and all memory that a quiet client takes.
    for _ in 0..2 {
        chunk(&mut good)?;
    }
    let mut senders = (0..SENDERS)
        .map(|number| Sender::new(address, plan.seed, number as u64))
        .collect::<Result<Vec<_>, _>>()
        .map_err(Failure::cannot)?;
    let sink = UdpSocket::bind("127.0.0.1:0").map_err(Failure::cannot)?;
    let elsewhere = sink.local_addr().map_err(Failure::cannot)?;
    let mut others = (0..SENDERS)
        .map(|number| Sender::to_nobody(elsewhere, plan.seed, number as u64))
        .collect::<Result<Vec<_>, _>>()
        .map_err(Failure::cannot)?;
    let rss_bytes = agent.rss_bytes();
    let mut found = Found { rss_growth_bytes_max: RSS_GROWTH_BYTES_MAX, ..Found::default() };
    let per_round = (plan.per_second * CHUNK.as_secs_f64()).max(1.0) as u64;
    let rounds = plan.datagrams.div_ceil(per_round);
    let mut p99_ns: [Vec<f64>; 3] = Default::default();
    let [alone, flooded_elsewhere, flooded] = &mut p99_ns;
    let progress = Progress::new(rounds, quiet);
    for round in 0..rounds {
        progress.begin("a client alone, and beside the flood");
        let count = per_round.min(plan.datagrams - round * per_round);
        let mut beside = |senders: &mut [Sender]| {
            let is_over = AtomicBool::new(false);
            thread::scope(|scope| {
                let flood = scope.spawn(|| {
                    let _ = pin(load_cpu);
                    flood(senders, count, plan.per_second, &is_over)
                });
                let measured = chunk(&mut good);
                is_over.store(true, Ordering::Relaxed);
                (flood.join().expect("the flood does not panic"), measured)
            })
        };
        flooded_elsewhere.push(found.take(beside(&mut others).1?));
        let (sent, measured) = beside(&mut senders);
        found.sent.add(sent);
        flooded.push(found.take(measured?));
        alone.push(found.take(chunk(&mut good)?));
        let growth = agent.rss_bytes().saturating_sub(rss_bytes);
        found.rss_growth_bytes = found.rss_growth_bytes.max(growth);
        found.crashes += u64::from(agent.revive()?);
        progress.end();
    }
    let ratio = |by: &[f64]| {
        Chunks::new(flooded.iter().zip(by).map(|(flooded, by)| flooded / by).collect()).median()
    };
    found.good_p99_ratio = ratio(flooded_elsewhere);
    found.good_p99_ratio_vs_alone = ratio(alone);
    let [alone, flooded_elsewhere, flooded] = p99_ns.map(|p99_ns| Chunks::new(p99_ns).json());
    found.good_p99_alone_ns = alone;
    found.good_p99_flooded_elsewhere_ns = flooded_elsewhere;
    found.good_p99_flooded_ns = flooded;
    Ok(found)
}

impl Found {
    /// Counts a chunk of the good client. Its p99, in nanoseconds.
    fn take(&mut self, Outcome { point, ends, .. }: Outcome) -> f64 {
        self.good_sent += point.sent;
        self.good_failed += point.sent - point.done + ends.wrong;
        point.classes.first().map_or(f64::NAN, |class| class.latency.p99_ns as f64)
    }
}

fn chunk(good: &mut Generator) -> Result<Outcome, Failure> {
    good.open(GOOD_PER_SECOND, Duration::ZERO, CHUNK, DRAIN).map_err(Failure::cannot)
}

/// Sends at a rate. All are sent, also where the chunk is over meanwhile: then as fast as they go.
fn flood(senders: &mut [Sender], count: u64, per_second: f64, is_over: &AtomicBool) -> Sent {
    let (start, mut sent) = (Instant::now(), Sent::default());
    let cookies: Vec<_> = senders.iter().map(Sender::cookie).collect();
    while sent.all() < count {
        let due = (start.elapsed().as_secs_f64() * per_second) as u64;
        let due = if is_over.load(Ordering::Relaxed) { count } else { due.min(count) };
        while sent.all() < due {
            let at = (sent.all() % senders.len() as u64) as usize;
            senders[at].send(&cookies, &mut sent);
        }
        senders.iter_mut().for_each(Sender::take_replies);
        thread::sleep(TICK);
    }
    sent
}

/// A socket's file that goes at the end.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

//! A flood of valid, mutated and random datagrams to an agent's front, beside a well-behaved client.
//!
//! Chunks of three kinds take turns: the client alone; beside the flood; and beside an equal flood to a socket that no program
//! reads, which shows the client's cost of sending. Agent and worker share one CPU; client and flood share another.

mod datagrams;

use std::fs;
use std::net::UdpSocket;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use wave_compare::PerRound;
use wave_process::{cpus, places};
use wave_user::rpc::{Methods, Options, Server};
use wave_workloads::udp::{Generator, Outcome, Settings};

use self::datagrams::Sender;
pub use self::datagrams::Sent;
use wave_apps::launch::{self, Process};
use wave_terminal::{Failure, Progress, interrupt};

/// Senders of the flood, each with a cookie of its own.
const SENDERS: usize = 8;
/// Requests per second of the well-behaved client.
const GOOD_PER_SECOND: f64 = 1_000.0;
const CHUNK: Duration = Duration::from_secs(1);
/// Interval between tries of the well-behaved client.
const RETRY: Duration = Duration::from_millis(20);
/// Time for the last answers of a chunk.
const DRAIN: Duration = Duration::from_secs(5);
/// Interval between bursts of the datagrams that are due.
const TICK: Duration = Duration::from_micros(100);
/// Bound on a front's growth: kept replies, the windows of all senders (`KEPT_BYTES`, and `SENDERS_MAX` times `WINDOW` slots of 64
/// bytes, in fronts/udp/src/senders.rs), and the allocator's slack.
pub const RSS_GROWTH_BYTES_MAX: u64 = (32 << 20) + 2048 * 1024 * 64 + (32 << 20);

/// Size, rate and seed of a flood.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Number of datagrams in the flood.
    pub datagrams: u64,
    /// Datagrams per second.
    pub per_second: f64,
    pub seed: u64,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Found {
    /// Rounds of all kinds of chunks.
    pub rounds: u64,
    /// Sent datagrams by kind.
    pub sent: Sent,
    /// Number of times that the agent died.
    pub crashes: u64,
    /// Largest growth of the agent's resident memory.
    pub rss_growth_bytes: u64,
    pub rss_growth_bytes_max: u64,
    /// Requests of the well-behaved client.
    pub good_sent: u64,
    /// Requests of the well-behaved client without a correct reply.
    pub good_failed: u64,
    /// Median ratio of its p99 beside the flood to its p99 beside the other flood.
    pub good_p99_ratio: f64,
    /// Median ratio of its p99 beside the flood to its p99 alone.
    pub good_p99_ratio_vs_alone: f64,
    /// Its p99 alone, in nanoseconds: p5, p50, p95 over rounds.
    pub good_p99_alone_ns: serde_json::Value,
    /// Its p99 beside a flood to another socket, in nanoseconds.
    pub good_p99_flooded_elsewhere_ns: serde_json::Value,
    /// Its p99 beside the flood, in nanoseconds.
    pub good_p99_flooded_ns: serde_json::Value,
}

impl Found {
    /// Descriptions of failed checks; empty if all passed.
    pub fn failed(&self) -> Vec<String> {
        let checks = [
            (self.crashes > 0, format!("the agent crashed {} time(s)", self.crashes)),
            (
                self.rss_growth_bytes > self.rss_growth_bytes_max,
                format!("the agent's resident memory grew by {} bytes", self.rss_growth_bytes),
            ),
            (
                self.good_failed > 0,
                format!(
                    "{} requests of the well-behaved client got no correct reply",
                    self.good_failed
                ),
            ),
        ];
        checks.into_iter().filter(|(is_wrong, _)| *is_wrong).map(|(_, what)| what).collect()
    }
}

/// An agent process, restarted when it ends.
struct Agent {
    words: Vec<String>,
    process: Process,
}

impl Agent {
    fn start(words: Vec<String>) -> Result<Agent, Failure> {
        let process = launch::wave(&words).and_then(|mut command| Process::start(&mut command));
        Ok(Agent { words, process: process.map_err(Failure::cannot)? })
    }

    /// Restarts the agent if it has ended. Returns whether it had.
    fn revive(&mut self) -> Result<bool, Failure> {
        if !self.process.has_ended() {
            return Ok(false);
        }
        *self = Agent::start(std::mem::take(&mut self.words))?;
        Ok(true)
    }

    /// Resident bytes; 0 if the process has just ended.
    fn rss_bytes(&self) -> u64 {
        let path = format!("/proc/{}/statm", self.process.pid().as_raw_pid());
        let pages = fs::read_to_string(path).ok().and_then(|statm| {
            statm.split_ascii_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok())
        });
        pages.unwrap_or(0) * rustix::param::page_size() as u64
    }
}

/// Starts a host and an agent, and floods the agent's front.
///
/// # Errors
/// The host, agent or client cannot start.
pub fn run(plan: &Plan, quiet: bool) -> Result<Found, Failure> {
    let [server_cpu, load_cpu] = cpus::two().map_err(Failure::Cannot)?;
    let socket = places::socket("fuzz-udp").map_err(Failure::cannot)?;
    let _socket = Removed(socket.clone());
    let mut options = Options::new(&socket).workers(1);
    options.cpus = vec![server_cpu];
    options.yields_cpu = true;
    let methods = Methods::new().unary("/wave.fuzz/Echo", |_, request| Ok(request.to_vec()));
    let _server = Server::start(options, methods).map_err(Failure::cannot)?;
    cpus::pin(&[load_cpu]).map_err(Failure::cannot)?;
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
        mix: "echo=1".parse().expect("a valid mix"),
        keys: 1_000,
        value_bytes: 64,
        retry: Some(RETRY),
        seed: plan.seed & 0xffff,
        run: 0,
        timed: 0,
        queue_target: None,
        stop: None,
    };
    let mut good = Generator::connect(&settings).map_err(Failure::cannot)?;
    // Warms up: the host attaches, and the agent allocates the memory that a quiet client needs.
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
    found.rounds = rounds;
    let mut p99_ns: [Vec<f64>; 3] = Default::default();
    let [alone, flooded_elsewhere, flooded] = &mut p99_ns;
    let progress = Progress::new(rounds, quiet);
    interrupt::say_steps("wave fuzz udp", &progress, "round")?;
    for round in 0..rounds {
        progress.begin("a client alone, and beside the flood");
        let count = per_round.min(plan.datagrams - round * per_round);
        let mut beside = |senders: &mut [Sender]| {
            let is_over = AtomicBool::new(false);
            thread::scope(|scope| {
                let flood = scope.spawn(|| {
                    let _ = cpus::pin(&[load_cpu]);
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
    let [alone, flooded_elsewhere, flooded] = p99_ns.map(PerRound::from_iter);
    found.good_p99_ratio = flooded.over(&flooded_elsewhere).median();
    found.good_p99_ratio_vs_alone = flooded.over(&alone).median();
    found.good_p99_alone_ns = alone.spread();
    found.good_p99_flooded_elsewhere_ns = flooded_elsewhere.spread();
    found.good_p99_flooded_ns = flooded.spread();
    Ok(found)
}

impl Found {
    /// Counts a chunk of the well-behaved client. Returns its p99 in nanoseconds.
    fn take(&mut self, Outcome { point, ends, .. }: Outcome) -> f64 {
        self.good_sent += point.sent;
        self.good_failed += point.sent - point.done + ends.wrong;
        point.classes.first().map_or(f64::NAN, |class| class.latency.p99_ns as f64)
    }
}

fn chunk(good: &mut Generator) -> Result<Outcome, Failure> {
    good.open(GOOD_PER_SECOND, Duration::ZERO, CHUNK, DRAIN).map_err(Failure::cannot)
}

/// Sends `count` datagrams at a rate. Once the chunk is over, sends the rest as fast as possible.
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

/// A socket's file, removed on drop.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

//! `wave bench hostile`: latencies of a well-behaved client with and without an attacker, on an agent's front and on tonic.
//!
//! The client connects after the attack has begun, and calls an echo in an open loop, as in [`mod@super::rpc`]. Chunks with each
//! attacker and one without take turns, on both servers. During a flood, another connection sends PINGs as well. An
//! agent that is told to end must end in its time.

mod attack;
mod flood;

use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use wave_compare::{PerRound, balanced_order};
use wave_process::cpus;
use wave_workloads::grpc::load::{ByKind, CallSettings, Generator, Kind as Call, Target};

use self::attack::Attack;
use super::rpc::{Plan, Process, free_address, wait_ready};
use crate::SEED;
use crate::bench::{Bench, arguments};
use clap::Args;
use wave_experiments::measure::pin;
use wave_terminal::Progress;

pub static BENCH: Bench = Bench {
    name: "hostile",
    about: "Latencies of a well-behaved client with and without attackers, on an agent's front and on tonic",
    help: "A client connects once an attack has begun, and calls a 64-byte echo --rate times per second over 4 connections: on an
agent's front and a host's worker that share a CPU, and on tonic on that CPU. Latencies are
medians over the chunks of each chunk's p50 and p99, from when a call was due.

  idle_connections       1,000 connections without calls
  unfinished_handshakes  1,000 sockets that send nothing
  unread_streams         one connection that does not read its 100 streams of 16 MiB each
  unread_streams_of_several_addresses
                         the same from eight addresses at once
  unfinished_streams     one connection with 100 bidirectional streams that fall silent after one message
  slow_messages          one connection with 100 calls whose messages stay incomplete
  unknown_frames         six connections that send empty frames of an unknown type as fast as they can
  window_updates         the same with WINDOW_UPDATE
  priorities             the same with PRIORITY
  initial_windows        the same with SETTINGS that set INITIAL_WINDOW_SIZE to 0 and back

  p99_ratio_vs_quiet     the p99 with the attacker divided by that without
  failed                 calls that did not end with OK within 2 s
  kept_out               chunks in which the client could not connect
  longest_ping_ns        during floods: the longest wait for the answer to a PING on another connection, in each chunk
  longest_ping_ratio_vs_tonic
                         these waits, divided by tonic's
  drain_s                seconds that an agent with --drain-s 2 takes to end after SIGTERM, under the flood

Examples:
  wave bench hostile
  wave bench hostile --json | jq '.front_idle_connections, .tonic_idle_connections'

Exit codes: 0 it was measured; 3 this machine cannot run it (the message says why).",
    figures: &[

    ],
    short: &[],
    has_two_cpus: true,
    arguments: |command| {
        let rate = "Calls per second of the well-behaved client";
        Plan::augment_args(command)
            .mut_arg("chunks", |arg| arg.help("Number of chunks to measure for each server and attack"))
            .mut_arg("chunk", |arg| arg.default_value("0.5"))
            .mut_arg("rate", |arg| arg.help(rate).default_value("1000"))
    },
    run: |matches, quiet| hostile(&arguments(matches)?, quiet),
};

const PAYLOAD_BYTES: usize = 64;
/// Wait for outstanding answers after a chunk. Calls without an answer by then count as failed.
const DRAIN: Duration = Duration::from_secs(2);
const CONNECTIONS: usize = 4;
const STREAMS: usize = 100;
/// Time that the agent's open calls get once it is told to end, in seconds.
const AGENT_DRAIN_S: &str = "2";
/// Longest time for the agent to end.
const END_PATIENCE: Duration = Duration::from_secs(60);
/// Number of keys: with [`VALUE_BYTES`] they make 16 MiB, so that a stream of all of them fills every window.
const KEYS: &str = "100000";
const VALUE_BYTES: &str = "160";

/// A server under attack, and its processes.
struct Server {
    name: &'static str,
    address: String,
    processes: Vec<Process>,
    _folder: Option<TempDir>,
}

/// A row: one server under one attack, or none.
#[derive(Default)]
struct Row {
    p50: Vec<f64>,
    p99: Vec<f64>,
    /// The longest wait for an answer to a PING in each chunk, in nanoseconds; only during floods.
    longest: Vec<f64>,
    calls: u64,
    failed: u64,
    /// Chunks in which the client could not connect.
    kept_out: u64,
}

impl Server {
    /// tonic, with one thread on this CPU.
    fn tonic(cpu: usize) -> Result<Server, String> {
        let words = ["serve", "kv", "--on-host", "--listen", "127.0.0.1:0", "--json"];
        let cpu = cpu.to_string();
        let more = ["--cpus", &cpu, "--keys", KEYS, "--value-bytes", VALUE_BYTES];
        let mut host = Process::wave(&[&words[..], &more].concat())?;
        let address = host.address()?;
        Ok(Server { name: "tonic", address, processes: vec![host], _folder: None })
    }

    /// An agent and a host's worker, which share this CPU.
    fn front(cpu: usize) -> Result<Server, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let socket = folder.path().join("host");
        let socket =
            socket.to_str().ok_or("the path of the folder for temporary files is not UTF-8")?;
        let cpu = cpu.to_string();
        let words = ["serve", "kv", "--offload", socket, "--json", "--cpus", &cpu];
        let more = ["--keys", KEYS, "--value-bytes", VALUE_BYTES];
        let mut host = Process::wave(&[&words[..], &more].concat())?;
        host.line()?;
        let address =
            free_address().map_err(|error| format!("cannot find a free port: {error}"))?;
        let words = ["agent", "--rpc", socket, "--listen", &address, "--cpu", &cpu];
        let more = ["--share-cpu", "--quiet", "--leave-with-parent", "--drain-s", AGENT_DRAIN_S];
        let agent = Process::wave(&[&words[..], &more].concat())?;
        let processes = vec![agent, host];
        Ok(Server { name: "front", address, processes, _folder: Some(folder) })
    }

    fn client(&self) -> Result<Generator, String> {
        let target =
            Target { address: self.address.clone(), connections: CONNECTIONS, streams: STREAMS };
        let mut calls = CallSettings::new(ByKind::only(Call::Echo), 1_000);
        calls.value_bytes = PAYLOAD_BYTES;
        Generator::connect(&target, &calls, SEED).map_err(|error| error.to_string())
    }

    fn measure(&self, attack: Option<Attack>, plan: &Plan, row: &mut Row) -> Result<(), String> {
        let address = self.address.parse().map_err(|error| format!("{}: {error}", self.address))?;
        let attackers = begin(attack, address)?;
        let is_flood = attack.is_some_and(Attack::is_flood);
        let chunk = plan.chunk;
        let pings = is_flood.then(|| thread::spawn(move || flood::longest_wait(address, chunk)));
        let measured = self.measure_calls(plan, row);
        if let Some(pings) = pings {
            let longest = pings.join().map_err(|_| "a thread of the bench panicked")?;
            let longest = longest.map_err(|error| format!("no answer to a PING: {error}"))?;
            row.longest.push(longest.as_nanos() as f64);
        }
        flood::end(&attackers);
        measured
    }

    /// Measures a chunk of calls.
    fn measure_calls(&self, plan: &Plan, row: &mut Row) -> Result<(), String> {
        let unanswered_ns = DRAIN.as_nanos() as f64;
        let Ok(mut client) = self.client() else {
            row.kept_out += 1;
            row.p50.push(unanswered_ns);
            row.p99.push(unanswered_ns);
            return Ok(());
        };
        let open = client.open(plan.rate, Duration::ZERO, plan.chunk, DRAIN);
        let open = open.map_err(|error| error.to_string())?;
        let done = open.answers.status("OK") - open.answers.wrong;
        row.calls += open.point.sent;
        row.failed += open.point.sent - done;
        // The histogram has only calls that were answered; others took at least as long as this client waits.
        let failed = (open.point.sent - done) as f64 / open.point.sent.max(1) as f64;
        let latency = open.point.classes.first().filter(|_| done > 0).map(|class| &class.latency);
        let quantile = |ns: Option<u64>, share: f64| match ns {
            Some(ns) if failed < share => ns as f64,
            _ => unanswered_ns,
        };
        row.p50.push(quantile(latency.map(|latency| latency.p50_ns), 0.5));
        row.p99.push(quantile(latency.map(|latency| latency.p99_ns), 0.01));
        Ok(())
    }
}

fn begin(attack: Option<Attack>, address: SocketAddr) -> Result<Vec<TcpStream>, String> {
    let attackers = attack.map(|attack| attack.begin(address)).transpose();
    let attackers = attackers.map_err(|error| format!("cannot start an attack: {error}"))?;
    Ok(attackers.unwrap_or_default())
}

/// The time that an agent takes to end under an attack, in seconds.
fn drain(cpu: usize, attack: Attack) -> Result<f64, String> {
    let mut server = Server::front(cpu)?;
    wait_ready(&mut server.client()?)?;
    let address = server.address.parse().map_err(|error| format!("{error}"))?;
    let attackers = begin(Some(attack), address)?;
    // The flood fills every buffer first.
    thread::sleep(Duration::from_millis(500));
    let start = Instant::now();
    let has_ended = server.processes[0].end(END_PATIENCE)?;
    let seconds = start.elapsed().as_secs_f64();
    flood::end(&attackers);
    has_ended.then_some(seconds).ok_or_else(|| format!("the agent did not end in {END_PATIENCE:?}"))
}

pub fn hostile(plan: &Plan, quiet: bool) -> Result<Value, String> {
    let cpus = cpus::allowed().map_err(|error| error.to_string())?.len();
    let [server, load] = cpus::two()?;
    pin(load)?;
    let progress = Progress::new(u64::from(plan.chunks) + 1, quiet);
    progress.begin("starting servers");
    let servers = [Server::front(server)?, Server::tonic(server)?];
    for server in &servers {
        wait_ready(&mut server.client()?)?;
    }
    progress.end();
    let attacks: Vec<_> = [None].into_iter().chain(Attack::ALL.map(Some)).collect();
    let mut rows: Vec<Row> = Vec::new();
    rows.resize_with(servers.len() * attacks.len(), Row::default);
    for round in 0..plan.chunks {
        progress.begin("measuring in turns");
        for at in balanced_order(SEED, round.into(), rows.len()) {
            let (server, attack) = (&servers[at % 2], attacks[at / 2]);
            server.measure(attack, plan, &mut rows[at])?;
        }
        progress.end();
    }
    let mut report = json!({
        "bench": "hostile",
        "peer": "tonic 0.14 on one single-threaded runtime",
        "cpus_used": cpus.min(2),
        "chunks": plan.chunks,
        "chunk_seconds": plan.chunk.as_secs_f64(),
        "rate": plan.rate,
        "payload_bytes": PAYLOAD_BYTES,
    });
    for (at, row) in rows.iter().enumerate() {
        let name = attacks[at / 2].map_or("quiet", Attack::name);
        let mut json = row.json(&rows[at % 2]);
        if let (0, Some(attack)) = (at % 2, attacks[at / 2].filter(|attack| attack.is_flood())) {
            let [ours, tonics] = [row, &rows[at + 1]].map(Row::longest);
            json["longest_ping_ratio_vs_tonic"] = ours.over(&tonics).estimate();
            json["drain_s"] = drain(server, attack)?.into();
        }
        report[format!("{}_{name}", servers[at % 2].name)] = json;
    }
    Ok(report)
}

impl Row {
    fn p99(&self) -> PerRound {
        self.p99.iter().copied().collect()
    }

    fn longest(&self) -> PerRound {
        self.longest.iter().copied().collect()
    }

    fn json(&self, quiet: &Row) -> Value {
        let mut json = json!({
            "p50_ns": self.p50.iter().copied().collect::<PerRound>().spread(),
            "p99_ns": self.p99().spread(),
            "p99_ratio_vs_quiet": self.p99().over(&quiet.p99()).estimate(),
            "calls": self.calls,
            "failed": self.failed,
            "kept_out": self.kept_out,
        });
        if !self.longest.is_empty() {
            json["longest_ping_ns"] = self.longest().spread();
        }
        json
    }
}

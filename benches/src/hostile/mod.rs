//! `wave bench hostile`: latencies of a well-behaved client with and without an attacker, on an agent's front and on tonic.
//!
//! The client connects after the attack has begun, and calls an echo in an open loop, as in [`mod@super::rpc`]. Chunks with each
//! attacker and one without take turns, on both servers.

mod attack;

use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use wave_workloads::cpu;
use wave_workloads::grpc::load::{ByKind, CallSettings, Generator, Kind as Call, Target};

use self::attack::Attack;
use super::rpc::{Plan, Process, free_address, wait_ready};
use wave_experiments::measure::{Chunks, pin};
use wave_lab::progress::Progress;

const PAYLOAD_BYTES: usize = 64;
/// Wait for outstanding answers after a chunk. Calls without an answer by then count as failed.
const DRAIN: Duration = Duration::from_secs(2);
const CONNECTIONS: usize = 4;
const STREAMS: usize = 100;
const SEED: u64 = 1;
/// Number of keys: with [`VALUE_BYTES`] they make 16 MiB, so that a stream of all of them fills every window.
const KEYS: &str = "100000";
const VALUE_BYTES: &str = "160";

/// A server under attack, and its processes.
struct Server {
    name: &'static str,
    address: String,
    _processes: Vec<Process>,
    _folder: Option<TempDir>,
}

/// A row: one server under one attack, or none.
#[derive(Default)]
struct Row {
    p50: Vec<f64>,
    p99: Vec<f64>,
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
        let told: Value = serde_json::from_str(&host.line()?).map_err(|error| error.to_string())?;
        let address = told["address"].as_str().ok_or("no address")?.to_owned();
        Ok(Server { name: "tonic", address, _processes: vec![host], _folder: None })
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
        let more = ["--share-cpu", "--quiet", "--leave-with-parent"];
        let agent = Process::wave(&[&words[..], &more].concat())?;
        let processes = vec![agent, host];
        Ok(Server { name: "front", address, _processes: processes, _folder: Some(folder) })
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
        let attackers = attack.map(|attack| attack.begin(address)).transpose();
        let _attackers = attackers.map_err(|error| format!("cannot start an attack: {error}"))?;
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

pub fn hostile(plan: &Plan, quiet: bool) -> Result<Value, String> {
    let cpus = cpu::allowed_cpus().map_err(|error| error.to_string())?.len();
    let [server, load] = wave_experiments::measure::two_cpus()?;
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
    for _ in 0..plan.chunks {
        progress.begin("measuring in turns");
        for (at, row) in rows.iter_mut().enumerate() {
            let (server, attack) = (&servers[at % 2], attacks[at / 2]);
            server.measure(attack, plan, row)?;
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
        let quiet = Chunks::new(rows[at % 2].p99.clone()).median();
        report[format!("{}_{name}", servers[at % 2].name)] = row.json(quiet);
    }
    Ok(report)
}

impl Row {
    fn json(self: &Row, quiet_p99: f64) -> Value {
        let [p50, p99] = [&self.p50, &self.p99].map(|values| Chunks::new(values.clone()));
        json!({
            "p50_ns": p50.json(),
            "p99_ns": p99.json(),
            "p99_ratio_vs_quiet": p99.median() / quiet_p99,
            "calls": self.calls,
            "failed": self.failed,
            "kept_out": self.kept_out,
        })
    }
}

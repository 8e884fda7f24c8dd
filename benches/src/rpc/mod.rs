//! `wave bench rpc`: CPU time per gRPC call, of tonic on the host and of a host whose RPCs an agent terminates.
//!
//! The load generator is this process; it has its own CPU if there are three. Servers run in separate processes for
//! the whole bench, and sleep while others are measured. A chunk is a period of load on one server; its cost is the
//! CPU time from before its first call until after its last reply, divided by the number of calls.

mod process;
mod waiting;

use std::hint::black_box;
use std::time::{Duration, Instant};

use bytes::Bytes;
use prost::Message;
use serde_json::{Value, json};
use wave_compare::{PerRound, balanced_order};
use wave_process::cpus;
use wave_workloads::cpu;
use wave_workloads::grpc::load::{Answers, ByKind, CallSettings, Generator, Kind as Call, Target};
use wave_workloads::grpc::proto::echo::Payload;
use wave_workloads::grpc::store::echo;

pub use self::process::host;
pub use self::process::{Front, Kind, Measured, Process, Seats, Waits, free_address};
use self::waiting::Waiting;
use wave_experiments::measure::{ns_per, pin};
use wave_terminal::Progress;

use crate::SEED;
use crate::bench::Better::{Higher, Lower};
use crate::bench::{Bench, Figure, arguments};
use crate::commands::chunk_seconds;
use clap::Args;
use clap::builder::TypedValueParser;

pub static BENCH: Bench = Bench {
    name: "rpc",
    about: "The host's and the agent's CPU time per gRPC call, against tonic on the host",
    help: "Calls of a 64-byte echo, from one load generator to servers in separate processes, in turns:
tonic on one single-threaded runtime, and a host whose RPCs an agent's front terminates.

At 1,000, 10,000 and 50,000 calls per second, with all CPU time of the threads, waiting included:

  total_cpu_with_polling_ratio           worker and agent together divided by tonic's, with default options: the agent has its own CPU,
                                         polls for work for 50 us and then sleeps; p50_ratio_vs_tonic compares these, too
  host_cpu_with_waiting_ratio_vs_tonic   the worker's divided by tonic's (lower is better), while the agent polls (for 5 ms), as on
                                         a NIC
  p50_ratio_vs_polling                   the median latency of these divided by that of a worker and an agent that both poll. With two CPUs
                                         the polling worker shares the generator's CPU, which makes this ratio too favourable
  host_cpu_with_polling_ratio_vs_tonic   CPU time of such a worker divided by tonic's
  at_rates                               the values from which the ratios are computed

At --rate, and in closed loops:

  host_cpu_ratio_vs_tonic        CPU time of tonic's thread by that of the worker, at --rate calls a second; batched (replies
                                 are sent when nothing more waits, or after 64) and unbatched (each at once). Of both, what
                                 decoding, echo and encoding take is subtracted (handler_ns). The worker's is the time from
                                 the look that found a call until the one that found no other
  host_cpu_ratio_with_polling    the same with all CPU time of the worker's thread, its looking for work included
  front_ratio_vs_tonic           CPU time of the agent by tonic's: a closed loop of 4 connections with 16 streams; and 8 with 1
  split_front_ratio              CPU time of an agent whose front has a core for connections, both of its cores together, by that of
                                 one without, in the closed loop of 4x16; split_first_core_share is what its first core has of it,
                                 which steers
  total_cpu_ratio                CPU time of the agent and the worker's time with calls, over tonic's, in the closed loop of 4x16;
                                 total_cpu_ratio_with_polling counts all CPU time of the worker's thread
  throughput_ratio_vs_tonic      calls a second in the closed loops, where all of a server has one CPU: agent and worker
                                 share it, as a sidecar would; tonic has it alone. p99_ratio_vs_tonic beside it

Where the worker is measured at --rate, it and the agent look for work between two calls (for 5 ms). Where the agent is,
it sleeps as soon as there is nothing to do, as tonic does: its CPU time has no polling in it.

Two CPUs do, three are better: with two the worker shares the generator's where it is measured, and what it uses to look
for work says little.

Examples:
  wave bench rpc
  wave bench rpc --json | jq '.host_cpu_ratio_vs_tonic, .front_ratio_vs_tonic'

Exit codes: 0 it was measured; 3 this machine cannot run it (the message says why).",
    figures: &[
        Figure::of("total_cpu_with_polling_ratio.1000").measured("CPU time of worker and agent with default options, polling included / tonic: 1,000 calls/s"),
        Figure::of("total_cpu_with_polling_ratio.10000").measured("the same: 10,000 calls/s"),
        Figure::of("total_cpu_with_polling_ratio.50000").measured("the same: 50,000 calls/s"),
        Figure::of("host_cpu_with_waiting_ratio_vs_tonic.1000").measured("CPU time of the worker, waiting included / tonic: 1,000 calls/s"),
        Figure::of("host_cpu_with_waiting_ratio_vs_tonic.10000").measured("the same: 10,000 calls/s"),
        Figure::of("host_cpu_with_waiting_ratio_vs_tonic.50000").measured("the same: 50,000 calls/s"),
        Figure::of("p50_ratio_vs_polling.1000").measured("p50 / that of a worker that polls (favourable with two CPUs): 1,000 calls/s"),
        Figure::of("p50_ratio_vs_polling.10000").measured("the same: 10,000 calls/s"),
        Figure::of("p50_ratio_vs_polling.50000").measured("the same: 50,000 calls/s"),
        Figure::of("p50_ratio_vs_tonic.1000").measured("p50 with default options / tonic's: 1,000 calls/s"),
        Figure::of("p50_ratio_vs_tonic.10000").measured("the same: 10,000 calls/s"),
        Figure::of("p50_ratio_vs_tonic.50000").measured("the same: 50,000 calls/s"),
        Figure::of("host_cpu_with_polling_ratio_vs_tonic.10000").measured("CPU time of a worker that polls / tonic: 10,000 calls/s"),
        Figure::of("front_ratio_vs_tonic").measured("CPU time of the agent per call / tonic's, 4 connections of 16 streams"),
        Figure::of("total_cpu_ratio_with_polling").measured("CPU time of worker and agent per call, polling included / tonic's, the same calls"),
        Figure::of("throughput_ratio_vs_tonic").measured("calls per second where all of a server has one CPU / tonic"),
        // All CPU time of the worker's thread. The part other than polling would shrink if a worker polled where it could sleep.
        Figure::of("batched_at_rate.host_thread_ns.p50").compared(Lower),
        Figure::of("unbatched_at_rate.host_thread_ns.p50").compared(Lower),
        Figure::of("batched_at_rate.worker_busy_ns.p50").compared(Lower),
        Figure::of("unbatched_at_rate.worker_busy_ns.p50").compared(Lower),
        Figure::of("front_4x16.agent_ns.p50").compared(Lower),
        Figure::of("front_8x1.agent_ns.p50").compared(Lower),
        Figure::of("split_front_4x16.agent_ns.p50").compared(Lower),
        Figure::of("front_4x16.calls_per_second.p50").compared(Higher),
        Figure::of("front_8x1.calls_per_second.p50").compared(Higher),
        Figure::peer("tonic_4x16.host_thread_ns.p50").compared(Lower),
        Figure::peer("tonic_4x16.calls_per_second.p50").compared(Higher),
    ],
    short: &["--chunks", "3", "--chunk-seconds", "0.1"],
    has_two_cpus: true,
    arguments: Plan::augment_args,
    run: |matches, quiet| rpc(&arguments(matches)?, quiet),
};

// The load of a bench. A doc comment would replace the bench's `about`.
#[derive(Args, Clone, Copy, Debug)]
pub struct Plan {
    /// Number of chunks to measure of each; one more warms up.
    #[arg(long, value_name = "N", default_value_t = 21, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub chunks: u32,
    /// Length of a chunk.
    #[arg(long = "chunk-seconds", value_name = "SECONDS", default_value = "0.25", value_parser = chunk_seconds)]
    pub chunk: Duration,
    /// Calls per second for the comparisons at equal rates.
    #[arg(long, value_name = "N", default_value = "10000", value_parser = rates(1))]
    pub rate: f64,
}

/// Parses a rate of at least `least`.
pub fn rates(least: i64) -> impl TypedValueParser<Value = f64> {
    clap::value_parser!(u32).range(least..=1_000_000).map(f64::from)
}

/// Number of replies that a batching worker sends together.
const BATCH: u32 = 64;
pub const PAYLOAD_BYTES: usize = 64;
const DRAIN: Duration = Duration::from_secs(5);
/// Longest time for servers to start answering.
const START_PATIENCE: Duration = Duration::from_secs(10);
const WARM_UP: u32 = 1;
const HANDLER_ROUNDS: usize = 200_000;

/// The load on a server.
#[derive(Clone, Copy, Debug)]
enum Shape {
    Closed {
        connections: usize,
        streams: usize,
    },
    /// An open loop, at this number of calls per second.
    Open(f64),
}

const CLOSED_4X16: Shape = Shape::Closed { connections: 4, streams: 16 };
const CLOSED_8X1: Shape = Shape::Closed { connections: 8, streams: 1 };

/// One server under one load.
struct Row {
    server: usize,
    shape: Shape,
    generator: Generator,
    chunks: Vec<PerCall>,
}

/// Costs per call in nanoseconds: CPU time, or the worker's time with calls (`busy`). Also the rate and the latencies of answers.
#[derive(Clone, Copy, Debug)]
struct PerCall {
    host: f64,
    agent: f64,
    connections: f64,
    busy: f64,
    calls_per_second: f64,
    /// Percentiles of latencies, from the time when a call was sent, or was due in an open loop.
    p50: f64,
    p99: f64,
    /// The generator's own CPU time.
    generator: f64,
}

/// Indices into the list of [`servers`].
const TONIC: usize = 0;
const POLLING: usize = 2;
const WAITING: usize = 5;
const AS_SHIPPED: usize = 6;

#[derive(Clone, Copy)]
enum Name {
    TonicOpen,
    Tonic4x16,
    Tonic8x1,
    Batched,
    Unbatched,
    Front4x16,
    Front8x1,
    Split4x16,
}

impl Name {
    const ALL: [Name; 8] = [
        Name::TonicOpen,
        Name::Tonic4x16,
        Name::Tonic8x1,
        Name::Batched,
        Name::Unbatched,
        Name::Front4x16,
        Name::Front8x1,
        Name::Split4x16,
    ];

    /// The index of the row's server, and the load on it.
    fn is(self, plan: &Plan) -> (usize, Shape) {
        match self {
            Name::TonicOpen => (TONIC, Shape::Open(plan.rate)),
            Name::Tonic4x16 => (TONIC, CLOSED_4X16),
            Name::Tonic8x1 => (TONIC, CLOSED_8X1),
            Name::Batched => (1, Shape::Open(plan.rate)),
            Name::Unbatched => (POLLING, Shape::Open(plan.rate)),
            Name::Front4x16 => (3, CLOSED_4X16),
            Name::Front8x1 => (3, CLOSED_8X1),
            Name::Split4x16 => (4, CLOSED_4X16),
        }
    }
}

/// The servers and their CPUs. tonic and the agents have the same CPU.
///
/// When the worker is measured, neither it nor the agent sleeps between two calls; with two CPUs, the worker shares the
/// generator's. When the agent is measured, it sleeps as soon as there is no work, as tonic does, and the worker shares its CPU: the
/// whole server has one CPU, as tonic has, and the generator has another to itself. With two CPUs, a split front's connection core
/// is on the agent's CPU as well.
fn servers(cpus: &[usize]) -> Result<[(Kind, Seats); 7], String> {
    let [agent, load, third] = match *cpus {
        [first, second] => [first, second, first],
        [first, second, third, ..] => [first, second, third],
        _ => {
            let count = cpus.len();
            return Err(format!(
                "the bench needs two CPUs, but this process may use {count}: see `taskset -pc $$`"
            ));
        }
    };
    let beside_agent = Seats { host: agent, agent, connections: None, load };
    let split = Seats { connections: Some(third), ..beside_agent };
    let beside_load = Seats { host: if third == agent { load } else { third }, ..beside_agent };
    let offload = |batch, waits| Kind::Offload { batch, waits, front: Front::Grpc };
    Ok([
        (Kind::OnHost, beside_agent),
        (offload(BATCH, Waits::Awake), beside_load),
        (offload(1, Waits::Awake), beside_load),
        (offload(BATCH, Waits::Asleep), beside_agent),
        (offload(BATCH, Waits::Asleep), split),
        (offload(1, Waits::AgentAwake), beside_load),
        (offload(1, Waits::AsShipped), beside_load),
    ])
}

fn target(address: &str, shape: Shape) -> Target {
    let (connections, streams) = match shape {
        Shape::Closed { connections, streams } => (connections, streams),
        Shape::Open(_) => (4, 100),
    };
    Target { address: address.to_owned(), connections, streams }
}

/// Waits until calls succeed: a server's front starts before its host.
pub(super) fn wait_ready(generator: &mut Generator) -> Result<(), String> {
    let start = Instant::now();
    while start.elapsed() < START_PATIENCE {
        let closed = generator.closed(Duration::from_millis(5), DRAIN);
        if closed.map_err(|error| error.to_string())?.done > 0 {
            return Ok(());
        }
    }
    Err("a server of the bench does not answer".to_owned())
}

/// Connects to a server that is ready, to call its echo.
fn connect(target: &Target) -> Result<Generator, String> {
    let mut calls = CallSettings::new(ByKind::only(Call::Echo), 1_000);
    calls.value_bytes = PAYLOAD_BYTES;
    let generator = Generator::connect(target, &calls, SEED);
    let mut generator = generator.map_err(|error| error.to_string())?;
    wait_ready(&mut generator)?;
    Ok(generator)
}

/// A generator for closed loops with `streams` calls in flight on each connection.
pub fn closed(address: &str, connections: usize, streams: usize) -> Result<Generator, String> {
    connect(&target(address, Shape::Closed { connections, streams }))
}

/// Runs a chunk of a closed loop. Returns the number of calls.
pub fn run_closed(generator: &mut Generator, time: Duration) -> Result<u64, String> {
    let closed = generator.closed(time, DRAIN).map_err(|error| error.to_string())?;
    check(closed.sent, &closed.answers)?;
    Ok(closed.sent)
}

impl Row {
    fn new((server, shape): (usize, Shape), servers: &[Measured]) -> Result<Row, String> {
        let generator = connect(&target(&servers[server].address, shape))?;
        Ok(Row { server, shape, generator, chunks: Vec::new() })
    }

    fn chunk(&mut self, servers: &mut [Measured], plan: &Plan) -> Result<PerCall, String> {
        let server = &mut servers[self.server];
        let before = server.used()?;
        let (start, generator) = (Instant::now(), cpu::thread_cpu_time_ns());
        let (sent, answers, latencies) = match self.shape {
            Shape::Closed { .. } => {
                let closed = self.generator.closed(plan.chunk, DRAIN);
                let closed = closed.map_err(|error| error.to_string())?;
                (closed.sent, closed.answers, closed.classes)
            }
            Shape::Open(rate) => {
                let open = self.generator.open(rate, Duration::ZERO, plan.chunk, DRAIN);
                let open = open.map_err(|error| error.to_string())?;
                (open.point.sent, open.answers, open.point.classes)
            }
        };
        let (took, generator) = (start.elapsed(), cpu::thread_cpu_time_ns() - generator);
        let used = server.used()?.since(before);
        check(sent, &answers)?;
        let by = |ns: u64, calls: u64| ns as f64 / calls as f64;
        Ok(PerCall {
            host: by(used.host_ns, sent),
            agent: by(used.agent_ns, sent),
            connections: by(used.connections_ns, sent),
            busy: by(used.busy_ns, used.calls),
            calls_per_second: sent as f64 / took.as_secs_f64(),
            // There is only one class, echoes.
            p50: latencies.first().map_or(f64::NAN, |class| class.latency.p50_ns as f64),
            p99: latencies.first().map_or(f64::NAN, |class| class.latency.p99_ns as f64),
            generator: by(generator, sent),
        })
    }
}

/// Runs a chunk of each row, in random order.
fn run_chunks(
    rows: &mut [Row],
    servers: &mut [Measured],
    plan: &Plan,
    round: u32,
) -> Result<(), String> {
    for at in balanced_order(SEED, round.into(), rows.len()) {
        let chunk = rows[at].chunk(servers, plan)?;
        if round >= WARM_UP {
            rows[at].chunks.push(chunk);
        }
    }
    Ok(())
}

/// Checks that every call succeeded: a failed call costs something else.
fn check(sent: u64, answers: &Answers) -> Result<(), String> {
    if sent == 0 {
        return Err("no call was due in a chunk: increase --chunk-seconds or --rate".to_owned());
    }
    match answers.status("OK") == sent && answers.wrong == 0 {
        true => Ok(()),
        false => Err(format!("not all {sent} calls succeeded: {answers:?}")),
    }
}

/// Nanoseconds of the work that every server's handler does for a call.
fn handler_ns() -> f64 {
    let request = Payload { body: Bytes::from(vec![7; PAYLOAD_BYTES]) }.encode_to_vec();
    let mut reply = Vec::new();
    ns_per(HANDLER_ROUNDS, || {
        for _ in 0..HANDLER_ROUNDS {
            let payload = Payload::decode(black_box(&request[..])).expect("a valid payload");
            reply.clear();
            echo(payload).encode(&mut reply).expect("a vector has room for all bytes");
            black_box(&reply);
        }
    })
}

pub fn rpc(plan: &Plan, quiet: bool) -> Result<Value, String> {
    let cpus = cpus::allowed().map_err(|error| error.to_string())?;
    let kinds = servers(&cpus)?;
    pin(kinds[0].1.load)?;
    let progress = Progress::new(u64::from(plan.chunks + WARM_UP) + 1, quiet);
    progress.begin("starting servers");
    let mut servers = Vec::new();
    for (kind, seats) in kinds {
        servers.push(Measured::start(kind, seats)?);
    }
    let mut rows = Vec::new();
    for name in Name::ALL {
        rows.push(Row::new(name.is(plan), &servers)?);
    }
    let mut waiting = Waiting::new(&servers)?;
    progress.end();
    let mut handler = Vec::new();
    for round in 0..WARM_UP + plan.chunks {
        progress.begin("measuring in turns");
        run_chunks(&mut rows, &mut servers, plan, round)?;
        waiting.chunks(&mut servers, plan, round)?;
        if round >= WARM_UP {
            handler.push(handler_ns());
        }
        progress.end();
    }
    let of = |name: Name, part: Part| PerRound::of(&rows[name as usize].chunks, part);
    let mut report = report(plan, cpus.len(), &PerRound::from_iter(handler), of);
    waiting.report(&mut report);
    Ok(report)
}

/// Selects one value of a chunk.
type Part = fn(&PerCall) -> f64;

fn report(
    plan: &Plan,
    cpus: usize,
    handler: &PerRound,
    of: impl Fn(Name, Part) -> PerRound,
) -> Value {
    let (host, agent, busy): (Part, Part, Part) =
        (|chunk| chunk.host, |chunk| chunk.agent, |chunk| chunk.busy);
    let beyond_handler = |name, part| of(name, part).with(handler, |all, handler| all - handler);
    let worker = |name, part| {
        beyond_handler(Name::TonicOpen, host).over(&beyond_handler(name, part)).estimate()
    };
    let front = |ours, theirs| of(ours, agent).over(&of(theirs, host)).estimate();
    let total = |part| {
        let both = of(Name::Front4x16, agent).with(&of(Name::Front4x16, part), |a, b| a + b);
        both.over(&of(Name::Tonic4x16, host)).estimate()
    };
    let first_core: Part = |chunk| 1.0 - chunk.connections / chunk.agent;
    let rate: Part = |chunk| chunk.calls_per_second;
    let p99: Part = |chunk| chunk.p99;
    let generator: Part = |chunk| chunk.generator;
    let ratio = |part, ours, theirs| of(ours, part).over(&of(theirs, part)).estimate();
    let rows = |name: Name| {
        let (server, shape) = name.is(plan);
        let mut row = json!({
            "calls_per_second": of(name, rate).spread(),
            "p99_ns": of(name, p99).spread(),
            "host_thread_ns": of(name, host).spread(),
        });
        // In an open loop, the generator also polls the clock.
        if matches!(shape, Shape::Closed { .. }) {
            row["generator_ns"] = of(name, generator).spread();
        }
        if server != TONIC {
            row["agent_ns"] = of(name, agent).spread();
            row["worker_busy_ns"] = of(name, busy).spread();
        }
        row
    };
    json!({
        "bench": "rpc",
        "peer": "tonic 0.14 on one single-threaded runtime",
        "cpus_used": cpus.min(3),
        "chunks": plan.chunks,
        "chunk_seconds": plan.chunk.as_secs_f64(),
        "rate": plan.rate,
        "payload_bytes": PAYLOAD_BYTES,
        "host_cpu_ratio_vs_tonic": worker(Name::Batched, busy),
        "host_cpu_ratio_vs_tonic_unbatched": worker(Name::Unbatched, busy),
        "host_cpu_ratio_with_polling": worker(Name::Batched, host),
        "host_cpu_ratio_with_polling_unbatched": worker(Name::Unbatched, host),
        "front_ratio_vs_tonic": front(Name::Front4x16, Name::Tonic4x16),
        "front_ratio_vs_tonic_8x1": front(Name::Front8x1, Name::Tonic8x1),
        "split_front_ratio": ratio(agent, Name::Split4x16, Name::Front4x16),
        "split_first_core_share": of(Name::Split4x16, first_core).median(),
        "total_cpu_ratio": total(busy),
        "total_cpu_ratio_with_polling": total(host),
        "throughput_ratio_vs_tonic": ratio(rate, Name::Front4x16, Name::Tonic4x16),
        "throughput_ratio_vs_tonic_8x1": ratio(rate, Name::Front8x1, Name::Tonic8x1),
        "p99_ratio_vs_tonic": ratio(p99, Name::Front4x16, Name::Tonic4x16),
        "p99_ratio_vs_tonic_8x1": ratio(p99, Name::Front8x1, Name::Tonic8x1),
        "handler_ns": handler.spread(),
        "tonic_at_rate": rows(Name::TonicOpen),
        "tonic_4x16": rows(Name::Tonic4x16),
        "tonic_8x1": rows(Name::Tonic8x1),
        "batched_at_rate": rows(Name::Batched),
        "unbatched_at_rate": rows(Name::Unbatched),
        "front_4x16": rows(Name::Front4x16),
        "front_8x1": rows(Name::Front8x1),
        "split_front_4x16": rows(Name::Split4x16),
    })
}

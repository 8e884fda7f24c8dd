//! `wave bench udp`: CPU time per request of the UDP front, of a bare echo and of the gRPC front.
//!
//! The servers are processes that run for the whole bench, pinned to one CPU, and sleep while others are measured. This process
//! generates the load, on another CPU.

mod echo;

use std::time::Duration;

use serde_json::{Value, json};
use wave_apps::launch;
use wave_compare::{PerRound, balanced_order};
use wave_experiments::measure::pin;
use wave_process::cpus;
use wave_terminal::Progress;
use wave_workloads::udp::{Asked, ClosedLoad, Shape};

pub use self::echo::echo;
use crate::SEED;
use crate::bench::{Bench, Figure, arguments};
use crate::rpc::{self, Front, Kind, Measured, Plan, Process, Seats, Waits};
use clap::Args;

pub static BENCH: Bench = Bench {
    name: "udp",
    about: "CPU time per request of the UDP front, against a bare echo and the gRPC front",
    help: "Echoes of 64 bytes over 4 sockets or connections, to servers that share one CPU and sleep when idle.
CPU time covers the whole process, including system time.

  front_cpu_ratio_vs_bare_recvmmsg_echo  CPU time of the agent's process divided by that of a bare echo (recvmmsg, sendmmsg),
                                         in bursts of 32 datagrams at --rate; _closed: with 64 requests in
                                         flight instead
  front_cpu_ratio_vs_grpc                CPU time of the agent's process divided by that of an agent with the gRPC front,
                                         with 64 requests in flight: 16 on each of 4 connections, which share TCP segments;
                                         _8x1: one on each of 8
  bursts, closed, closed_8x1             parts of the ratios, in nanoseconds per request; host_thread_ns is the worker's

Examples:
  wave bench udp
  wave bench udp --json | jq '.front_cpu_ratio_vs_bare_recvmmsg_echo, .front_cpu_ratio_vs_grpc'

Exit codes: 0 it was measured; 3 this machine cannot run it (the message says why).",
    figures: &[
        Figure::of("front_cpu_ratio_vs_bare_recvmmsg_echo").measured("CPU time of the front per datagram, in bursts of 32 / a bare echo's by recvmmsg and sendmmsg"),
        Figure::of("front_cpu_ratio_vs_bare_recvmmsg_echo_closed").measured("the same, with 64 requests under way"),
        Figure::of("front_cpu_ratio_vs_grpc").measured("CPU time of the front per request / the front for gRPC, 16 under way on each of 4 connections"),
        Figure::of("front_cpu_ratio_vs_grpc_8x1").measured("the same, 1 on each of 8 connections"),
    ],
    short: &[],
    has_two_cpus: true,
    arguments: |command| {
        Plan::augment_args(command).mut_arg("rate", |arg| {
            let help = "Datagrams per second for the measurements in bursts";
            arg.help(help).default_value("20000").value_parser(rpc::rates(100))
        })
    },
    run: |matches, quiet| udp(&arguments(matches)?, quiet),
};

/// Requests in a burst.
const BURST: u32 = 32;
/// Sockets or connections of a closed loop, and requests in flight on each.
const MANY: (usize, u32) = (4, 16);
const ONE: (usize, u32) = (8, 1);
const WARM_UP: u32 = 1;
/// Replies that a worker sends at once, as in the gRPC bench.
const BATCH: u32 = 64;

/// CPU time per request of one chunk, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct PerRequest {
    front_ns: f64,
    host_ns: f64,
}

type Rows = [Vec<PerRequest>; 7];
/// Indices into [`Rows`].
const FRONT_BURSTS: usize = 0;
const BARE_BURSTS: usize = 1;
const FRONT_CLOSED: usize = 2;
const BARE_CLOSED: usize = 3;
const GRPC_CLOSED: usize = 4;
const FRONT_8X1: usize = 5;
const GRPC_8X1: usize = 6;

pub fn udp(plan: &Plan, quiet: bool) -> Result<Value, String> {
    let [server, generator] = cpus::two()?;
    pin(generator)?;
    let progress = Progress::new(u64::from(plan.chunks + WARM_UP) + 1, quiet);
    progress.begin("starting servers");
    let seats = Seats { host: server, agent: server, connections: None, load: generator };
    let offload = |front| Kind::Offload { batch: BATCH, waits: Waits::Asleep, front };
    let mut front = Measured::start(offload(Front::Udp), seats)?;
    let mut grpc = Measured::start(offload(Front::Grpc), seats)?;
    let mut bare = Process::start(launch::own(["udp-echo", &server.to_string()]))?;
    let bare_address = bare.line()?;
    let mut to_front = connect(&front.address, MANY.0)?;
    let mut to_bare = connect(&bare_address, MANY.0)?;
    let mut to_grpc = rpc::closed(&grpc.address, MANY.0, MANY.1 as usize)?;
    let mut one_to_front = connect(&front.address, ONE.0)?;
    let mut one_to_grpc = rpc::closed(&grpc.address, ONE.0, ONE.1 as usize)?;
    progress.end();
    let bursts = Shape::Bursts { burst: BURST, per_second: plan.rate };
    let closed = Shape::Closed { under_way: MANY.1 };
    let one = Shape::Closed { under_way: ONE.1 };
    let mut rows: Rows = Default::default();
    for round in 0..WARM_UP + plan.chunks {
        progress.begin("measuring in turns");
        for row in balanced_order(SEED, round.into(), rows.len()) {
            let chunk = match row {
                FRONT_BURSTS => of_server(&mut front, || run(&mut to_front, bursts, plan)),
                BARE_BURSTS => of_bare(&mut bare, || run(&mut to_bare, bursts, plan)),
                FRONT_CLOSED => of_server(&mut front, || run(&mut to_front, closed, plan)),
                BARE_CLOSED => of_bare(&mut bare, || run(&mut to_bare, closed, plan)),
                GRPC_CLOSED => of_server(&mut grpc, || rpc::run_closed(&mut to_grpc, plan.chunk)),
                FRONT_8X1 => of_server(&mut front, || run(&mut one_to_front, one, plan)),
                _ => of_server(&mut grpc, || rpc::run_closed(&mut one_to_grpc, plan.chunk)),
            }?;
            if round >= WARM_UP {
                rows[row].push(chunk);
            }
        }
        progress.end();
    }
    Ok(report(plan, &rows))
}

fn connect(address: &str, sockets: usize) -> Result<ClosedLoad, String> {
    let load = ClosedLoad::connect(address, sockets, Asked::echo(rpc::PAYLOAD_BYTES), false);
    load.map_err(|error| format!("{address}: {error}"))
}

fn run(load: &mut ClosedLoad, shape: Shape, plan: &Plan) -> Result<u64, String> {
    load.run(shape, plan.chunk).map_err(|error| error.to_string())
}

fn of_server(
    server: &mut Measured,
    load: impl FnOnce() -> Result<u64, String>,
) -> Result<PerRequest, String> {
    let before = server.used()?;
    let requests = load()? as f64;
    let used = server.used()?.since(before);
    Ok(PerRequest {
        front_ns: used.agent_ns as f64 / requests,
        host_ns: used.host_ns as f64 / requests,
    })
}

fn of_bare(
    bare: &mut Process,
    load: impl FnOnce() -> Result<u64, String>,
) -> Result<PerRequest, String> {
    let settle = || std::thread::sleep(Duration::from_millis(2));
    settle();
    let before = bare.cpu_ns("")?;
    let requests = load()? as f64;
    settle();
    Ok(PerRequest { front_ns: (bare.cpu_ns("")? - before) as f64 / requests, host_ns: 0.0 })
}

fn report(plan: &Plan, rows: &Rows) -> Value {
    let front = |row: usize| PerRound::of(&rows[row], |chunk| chunk.front_ns);
    let host = |row: usize| PerRound::of(&rows[row], |chunk| chunk.host_ns);
    let ratio = |ours: usize, theirs: usize| front(ours).over(&front(theirs)).estimate();
    json!({
        "bench": "udp",
        "peer": "an echo by recvmmsg and sendmmsg",
        "chunks": plan.chunks,
        "chunk_seconds": plan.chunk.as_secs_f64(),
        "rate": plan.rate,
        "burst": BURST,
        "payload_bytes": rpc::PAYLOAD_BYTES,
        "front_cpu_ratio_vs_bare_recvmmsg_echo": ratio(FRONT_BURSTS, BARE_BURSTS),
        "front_cpu_ratio_vs_bare_recvmmsg_echo_closed": ratio(FRONT_CLOSED, BARE_CLOSED),
        "front_cpu_ratio_vs_grpc": ratio(FRONT_CLOSED, GRPC_CLOSED),
        "front_cpu_ratio_vs_grpc_8x1": ratio(FRONT_8X1, GRPC_8X1),
        "bursts": {
            "front_ns": front(FRONT_BURSTS).spread(),
            "bare_echo_ns": front(BARE_BURSTS).spread(),
            "host_thread_ns": host(FRONT_BURSTS).spread(),
        },
        "closed": {
            "front_ns": front(FRONT_CLOSED).spread(),
            "bare_echo_ns": front(BARE_CLOSED).spread(),
            "grpc_front_ns": front(GRPC_CLOSED).spread(),
            "host_thread_ns": host(FRONT_CLOSED).spread(),
            "grpc_host_thread_ns": host(GRPC_CLOSED).spread(),
        },
        "closed_8x1": {
            "front_ns": front(FRONT_8X1).spread(),
            "grpc_front_ns": front(GRPC_8X1).spread(),
        },
    })
}

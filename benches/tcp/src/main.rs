//! The program of `wave bench tcp`: an agent's TCP against Linux's, in one run and in separate network namespaces.
//!
//! A program serves in one network namespace, and a client with Linux's sockets sends requests from another; the cable between them
//! is a veth pair with TSO and GRO. The program is the same over Linux's sockets with epoll and over an agent ([`program`]). The
//! namespaces have no names and vanish with their processes.
//!
//! This is a separate binary, because its allocator counts allocations.

#![forbid(unsafe_code)]

mod agent;
mod apps;
mod client;
mod cpu;
mod demoted;
mod echo;
mod idle;
mod loss;
mod network;
mod process;
mod program;
mod relay;
mod stream;

use std::alloc::System;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use serde_json::Value;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use wave_process::{say, tell};
use wave_tcp::datapaths::DatapathKind;

/// The allocator, which counts allocations for [`agent`].
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Measures an agent's TCP against Linux's.
#[derive(Debug, Parser)]
#[command(
    name = "wave bench tcp",
    bin_name = "wave bench tcp",
    after_help = "Program and client are in two network namespaces that the command creates, which needs root. Chunks of all stacks
take turns, in random order; figures are medians over chunks, with p5 and p95. A ratio is the median of ratios within a
round, with its 95% interval (low and high; null with fewer than six chunks). CPU is the machine's busy time, less the time
of foreign processes, divided into program, agent and the rest.
All senders use Reno congestion control.
by_tasks is the time that the scheduler charged to the bench's own processes and ksoftirqd; other users of the machine
disturb it less.

  linux  the program over Linux's sockets with epoll, on a veth pair with TSO and GRO
  veth   the program over an agent, on that pair through AF_PACKET
  tap    the program over an agent, on a TAP device

Examples:
  sudo wave bench tcp echo
  sudo wave bench tcp stream --json | jq .throughput_ratio_vs_linux

Exit codes: 0 measured; 3 this machine cannot run it (the message says why)."
)]
struct Bench {
    #[command(subcommand)]
    which: Which,
}

#[derive(Debug, Subcommand)]
enum Which {
    /// One stream in each direction: throughput, and CPU time per byte.
    #[command(
        after_help = "  throughput_ratio_vs_linux  ours divided by Linux's: in (to the program) and out
  total_cpu_per_byte_ratio   total CPU time per byte, ours divided by Linux's (lower is better)
  app_cpu_per_byte_ratio_64k, app_cpu_per_byte_ratio_64k_in_place
                             the program's CPU time per byte, with reads or writes of 64 KiB: copied, and without a copy in
                             the rings of an agent's connection, against copies by Linux's sockets"
    )]
    Stream(Output),
    /// Requests of 64 bytes: CPU time and packets per request.
    #[command(after_help = "At 16x1, 64x1 and 16x16 (connections x outstanding requests on each):

  app_cpu_ratio_vs_linux     the program's CPU time per request, ours divided by Linux's (lower is better)
  total_cpu_ratio_vs_linux   total CPU time per request
  packets_per_request        packets on the cable in both directions, pure acknowledgements included
  allocations_after_start    allocations of the agent's process after the program has attached")]
    Echo(Output),
    /// Many idle connections besides 100 active ones, and an agent without traffic.
    #[command(
        after_help = "  idle_connections_ratio  requests per second of 100 active connections, with idle ones over without (1: no difference)
  bytes_per_connection    table: bytes of the agent's tables per connection of their capacity; touched: growth of its resident memory
                          per idle connection; shared: the same for memory that it shares with the program
  idle_cpu_percent        share of one CPU that an agent with these connections and no traffic uses; wakeups_per_s: its wake-ups"
    )]
    Idle(IdleArgs),
    /// A lossy cable between TAP devices: our stack to Linux, against Linux to Linux.
    #[command(
        after_help = "A seed decides which segments are dropped, after super-packets are cut. Both stacks have Reno, a minimum RTO of 200 ms,
and buffers of 1 MiB.

  sack_ratio_small  requests per second, ours divided by Linux's: 64 bytes, 8 in flight on each of 100 connections, at 2% loss
  sack_ratio_bulk   bytes per second, ours divided by Linux's: 8 streams from the program, at 1% loss
  gbn_ratio_...     the same, with go-back-N in our stack
With --datapath laminar: laminar_ratio_small, _bulk, _bulk_0_1 (0.1% loss), _bulk_0 (no loss), and for each sender
  laminar_kept_0_1  bytes per second at 0.1% loss, divided by those without loss
Each is the median over the seeds, with its 95% interval."
    )]
    Loss(LossArgs),
    /// Unmodified servers over an agent by `wave tcp run`: an echo, redis, memcached and nginx.
    #[command(
        after_help = "Each server has 64 connections. First, each connection has one request in flight (redis_pipelined: a batch of 16, as
with redis-benchmark -P 16). Then requests arrive as a Poisson process, at half of the lowest rate of all stacks.
Values have 64 bytes; nginx sends a file of 1 KiB.

  app_cpu_ratio_vs_linux     CPU time per request of all the server's processes, ours divided by Linux's (lower is better)
  total_cpu_ratio_vs_linux   total CPU time per request
  rate_ratio_vs_linux        requests per second
  p99_ratio_vs_linux         time from a request's arrival to its answer, at equal rates (lower is better)
  left_out                   servers that are not installed

With --against, an agent of another build serves beside this one, on the same veth pair, and the TAP device is left out:

  base     the program over the other build
  against  this build against the other: the median over rounds of the ratio within a round, inverted where lower is better: above 1
           this build is better

Example:
  sudo wave bench tcp apps --against ../base/target/release --chunks 40 --chunk-seconds 0.2"
    )]
    Apps(AppsArgs),
    /// A demoted connection, beside the same program's others.
    #[command(
        after_help = "One connection at a time: 64-byte requests one after the other, and a stream in each direction. The program runs over an agent by
`wave tcp run`.

  loopback  Linux's sockets within one network namespace
  linux     Linux's sockets on the veth pair
  agent     a connection of the program's own
  demoted   a connection that has become a stream of the kernel's, which the agent feeds

  added_round_trip_us        a round trip less that of `agent`: the median, with its interval
  throughput_ratio_vs_agent  demoted divided by agent: in (to the program) and out"
    )]
    Demoted(Output),
    /// Run the bench's client.
    #[command(hide = true)]
    Client { cpu: usize },
    /// Run the bench's program.
    #[command(hide = true)]
    Program(program::ProgramArgs),
    /// Run the bench's agent.
    #[command(hide = true)]
    Agent(agent::AgentArgs),
    /// Run the parent of an unmodified server.
    #[command(hide = true)]
    Keeper(apps::keeper::KeeperArgs),
    /// Run the lossy cable.
    #[command(hide = true)]
    Relay(relay::RelayArgs),
}

/// Options of the number and length of chunks, and of the output.
#[derive(Args, Clone, Debug)]
pub struct Output {
    /// Print one JSON object instead of lines.
    #[arg(long)]
    json: bool,
    /// Number of chunks per stack, after one for warm-up.
    #[arg(long, value_name = "N", default_value_t = 21, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    chunks: u32,
    /// Length of a chunk.
    #[arg(long, value_name = "SECONDS", default_value = "0.2", value_parser = seconds)]
    chunk_seconds: Duration,
    /// Data path of the agents.
    #[arg(long, value_name = "NAME", default_value = "flextoe")]
    datapath: DatapathKind,
}

#[derive(Args, Clone, Debug)]
struct AppsArgs {
    #[command(flatten)]
    output: Output,
    /// Compare with another build: the folder of its `wave`, `wave-bench-tcp` and `libwave_toe.so`.
    #[arg(long, value_name = "FOLDER")]
    against: Option<PathBuf>,
}

#[derive(Args, Clone, Debug)]
struct IdleArgs {
    #[command(flatten)]
    output: Output,
    /// Number of idle connections.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=12_000))]
    idle: u32,
}

#[derive(Args, Clone, Debug)]
struct LossArgs {
    /// Print one JSON object instead of lines.
    #[arg(long)]
    json: bool,
    /// Length of a chunk, of several retransmission timeouts.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    chunk_seconds: Duration,
    /// Number of loss seeds; each is one chunk of every stack.
    #[arg(long, value_name = "N", default_value_t = 21, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    seeds: u32,
    /// Data path of our stack.
    #[arg(long, value_name = "NAME", default_value = "flextoe")]
    datapath: DatapathKind,
}

/// Seed of the random order of rows within a round.
const SEED: u64 = 1;

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.01..=60.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "expected seconds, 0.01 to 60".to_owned())
}

fn main() -> ExitCode {
    let (result, output) = match Bench::parse().which {
        Which::Stream(output) => (stream::stream(&output), output),
        Which::Echo(output) => (echo::echo(&output), output),
        Which::Idle(IdleArgs { output, idle }) => (idle::idle(&output, idle), output),
        Which::Loss(LossArgs { json, chunk_seconds, seeds, datapath }) => {
            let output = Output { json, chunks: seeds, chunk_seconds, datapath };
            (loss::loss(&output), output)
        }
        Which::Apps(AppsArgs { output, against }) => {
            (apps::apps(&output, against.as_deref()), output)
        }
        Which::Demoted(output) => (demoted::demoted(&output), output),
        Which::Client { cpu } => return ended(client::serve(cpu)),
        Which::Program(args) => return ended(program::run(&args)),
        Which::Agent(args) => return ended(agent::run(&args, ALLOCATOR)),
        Which::Keeper(args) => return ended(apps::keeper::run(&args)),
        Which::Relay(args) => return ended(relay::run(&args)),
    };
    let result = result.map(|mut value| {
        value["congestion"] = network::CONGESTION.into();
        value["datapath"] = output.datapath.name().into();
        value
    });
    match result {
        // JSON may be longer than the limit of a line for users.
        Ok(value) if output.json => return ended(process::answer(&value.to_string())),
        Ok(value) => rows("", &value),
        Err(error) => {
            say!("wave bench tcp: {error}");
            return ExitCode::from(3);
        }
    }
    ExitCode::SUCCESS
}

/// The exit code of a process that a bench has started.
fn ended(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say!("wave bench tcp: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints one line per value, with its path.
fn rows(path: &str, value: &Value) {
    match value {
        // An estimate: a median with its interval.
        Value::Object(of) if of.contains_key("median") => {
            let [median, low, high] = ["median", "low", "high"].map(|key| of[key].as_f64());
            let interval = low.zip(high).map(|(low, high)| format!(" ({low:.3} to {high:.3})"));
            tell!("{path:<60} {:.3}{}", median.unwrap_or(f64::NAN), interval.unwrap_or_default());
        }
        Value::Object(members) => members.iter().for_each(|(name, member)| {
            let path = if path.is_empty() { name.clone() } else { format!("{path} {name}") };
            rows(&path, member);
        }),
        Value::Number(number) if number.is_f64() => {
            tell!("{path:<60} {:.3}", number.as_f64().unwrap_or(f64::NAN));
        }
        value => tell!("{path:<60} {value}"),
    }
}

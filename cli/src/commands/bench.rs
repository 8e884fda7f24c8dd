//! `wave bench`: ratios against named peers, each in one run.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::Value;
use wave_core::clock::Nanos;

use crate::bench;
use crate::terminal::{note, out};
use wave_lab::table;

/// Which bench.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  wave bench queue
  wave bench agent --json
  sudo wave bench kernel --json

Each needs two CPUs and nothing else running: `wave doctor` tells what there is.

Exit codes: 0 it was measured; 3 this machine cannot run it (the message says why).")]
pub struct BenchArgs {
    #[command(subcommand)]
    which: Which,
}

#[derive(Debug, Subcommand)]
enum Which {
    /// The queue between two processes, against rtrb between two threads.
    Queue(Output),
    /// An agent deciding for 15 cores, against a loop over slots as Shinjuku's.
    Agent(Output),
    /// A yield that an agent decides on, against a futex handoff between two threads.
    Switch(Output),
    /// Preemption at safe points and of kernel-level threads, against a signal to its handler.
    #[command(
        after_help = "safe_point_ns, klt_ns: from before the agent asks until the core has the thread back; signal_ns: from
tgkill(2) to the handler. safe_point_vs_signal_ratio is signal over safe point (higher is better),
klt_vs_signal_ratio kernel-level thread over signal (lower is better). range_growth_*: how much more core
time a scan of RocksDB takes that is preempted every 30 us at safe points (ult), or every 100 us on a
kernel-level thread (klt), as a share: 0.01 is 1%. idle_overhead: how much longer a scan takes with a safe
point after each key and nothing to preempt, as a share, and the ends of its 95% interval. p5, p50 and
p95 are over chunks; where they lie far apart, something else used the CPUs: run again."
    )]
    Preempt(Output),
    /// The simulator's event queue, against nexosim.
    Sim(Output),
    /// An iteration of SOL over 100 GiB, against the same written plainly with rand_distr.
    #[command(
        after_help = "Every one of 409,600 batches of 256 KiB is due. Medians over rounds in which all take turns.

  iteration_ms_100gib        on one core, with draws that are about right and fast (fast_ms: p5, p50, p95)
  ratio_vs_rand_distr        a plain loop with rand_distr's Beta over that (higher is better)
  exact_ms, rand_distr_ms    SOL with exact draws; the plain loop
  two_cores                  the strips divided between two threads, from the first start to the last end
  identical_however_divided  whether decisions and beliefs are the same for 1, 2 and 3 parts: checked
  ks_distance                of fast draws from the Beta distribution, at its worst (ks: where; and that of
                             exact draws, which is what so many draws show anyway)
  state_bytes_per_batch      what the policy keeps

Examples:
  wave bench sol
  wave bench sol --json | jq '.iteration_ms_100gib, .ratio_vs_rand_distr, .ks_distance'"
    )]
    Sol(Output),
    /// The host's and the agent's CPU time per gRPC call, against tonic on the host.
    Rpc(RpcArgs),
    /// A good client's latencies with and without attackers, of an agent's front and of tonic.
    Hostile(HostileArgs),
    /// Large messages of RPCs in extents, against the same in entries of a queue.
    Payload(PayloadArgs),
    /// Wake-ups of threads that an agent decides on through sched_ext, against the kernel's EEVDF.
    Kernel(KernelArgs),
}

/// What the real kernel is to be measured with.
#[derive(Args, Debug)]
#[command(
    after_help = "Messengers wake workers, as in schbench, on all CPUs but the last, which is the agent's: once under
an agent with the policy fifo, and once under EEVDF, in turns. Times are in microseconds, medians over
the chunks of each chunk's p50 and p99.

  wakeup_ratio_vs_eevdf    Wave's p50 in those of EEVDF
  wakeup_us                from just before the call that wakes to the thread's first instruction
  message_to_decision_us   from where a thread is enqueued, which sends the message, to where a core
                           switches to it, which commits the decision; a thread alone on all cores

It takes root and Linux 6.13 or later with sched_ext. In a virtual machine without KVM it runs, with
--patience 5000, but times mean nothing.

Examples:
  sudo wave bench kernel
  sudo wave bench kernel --json | jq .wakeup_ratio_vs_eevdf

Exit codes: 0 it was measured; 3 this machine cannot run it (the message says why)."
)]
struct KernelArgs {
    #[command(flatten)]
    output: Output,
    /// How often each is measured; one more warms up.
    #[arg(long, value_name = "N", default_value_t = 11, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    chunks: u32,
    /// How long a thread may wait for a decision beside an idle core before the agent is turned out, and
    /// nothing is measured, in milliseconds [default: 20].
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    patience: Option<u64>,
}

/// How payloads are to be measured.
#[derive(Args, Debug)]
#[command(
    after_help = "A call's message goes from the agent's dispatcher to a worker and back, of 64 bytes to 1 MiB: in entries
of 56 bytes, and in extents that the link's engine copies. Host and agent have a CPU each and take turns; nobody is
charged for waiting. Over shm a cost is time on the clock, and the copying is the sender's. Over mount-evans, queues
homed on the NIC, it is what the modelled link charges the side's CPU, without its software.

  SIZE: host, agent, both      nanoseconds per message there and back, medians over chunks; ratio is entries by extents
                               (above 1: extents are cheaper)
  host_pays_from_bytes         from this size on extents are cheaper for the host; null where they never are

Examples:
  wave bench payload
  wave bench payload --json | jq '.\"mount-evans\".\"65536\".host'

Exit codes: 0 it was measured; 3 this machine cannot run it (the message says why)."
)]
struct PayloadArgs {
    #[command(flatten)]
    output: Output,
    /// How often each is measured; one more warms up.
    #[arg(long, value_name = "N", default_value_t = 11, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    chunks: u32,
}

/// How RPCs are to be measured.
#[derive(Args, Debug)]
#[command(
    after_help = "Calls of an echo of 64 bytes, from one load generator to servers in processes of their own, in turns:
tonic on one single-threaded runtime, and a host whose RPCs an agent's front terminates. Medians over chunks of
each chunk's CPU time by its calls.

  host_cpu_ratio_vs_tonic        CPU time of tonic's thread by that of the worker, at --rate calls a second; batched (replies
                                 are sent when nothing more waits, or after 64) and unbatched (each at once). Of both, what
                                 decoding, echo and encoding take is subtracted (handler_ns). The worker's is the time from
                                 the look that found a call until the one that found no other
  host_cpu_ratio_with_polling    the same with all CPU time of the worker's thread, its looking for work included
  front_ratio_vs_tonic           CPU time of the agent by tonic's: a closed loop of 4 connections with 16 streams; and 8 with 1
  split_front_ratio              CPU time of an agent whose front has a core for connections, both of its cores together, by that of
                                 one without, in the closed loop of 4x16; split_first_core_share is what its first core has of it,
                                 which steers
  total_cpu_ratio                agent and worker together by tonic's, in the closed loop of 4x16
  throughput_ratio_vs_tonic      calls a second in the closed loops, where all of a server has one CPU: agent and worker
                                 share it, as a sidecar would; tonic has it alone. p99_ratio_vs_tonic beside it

Where the worker is measured, it and the agent look for work between two calls and never sleep. Where the agent is,
it sleeps as soon as there is nothing to do, as tonic does: its CPU time has no polling in it.

Two CPUs do, three are better: with two the worker shares the generator's where it is measured, and what it uses to look
for work says little.

Examples:
  wave bench rpc
  wave bench rpc --json | jq '.host_cpu_ratio_vs_tonic, .front_ratio_vs_tonic'

Exit codes: 0 it was measured; 3 this machine cannot run it (the message says why)."
)]
struct RpcArgs {
    #[command(flatten)]
    output: Output,
    /// How often each is measured; one more warms up.
    #[arg(long, value_name = "N", default_value_t = 11, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    chunks: u32,
    /// How long a chunk lasts.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5, value_parser = chunk_seconds)]
    chunk_seconds: f64,
    /// Calls a second where servers are compared at the same rate.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: u32,
}

/// How attackers are to be measured.
#[derive(Args, Debug)]
#[command(
    after_help = "A client connects once an attacker is there, and calls an echo of 64 bytes --rate times a second over 4 connections: to an
agent's front and a host's worker that share a CPU, and to tonic on that CPU. Chunks without and with each attacker take
turns; medians over the chunks of each chunk's p50 and p99, from when a call was due.

  idle_connections       1,000 connections that make no call
  unfinished_handshakes  1,000 sockets that say nothing
  unread_streams         one connection with 100 streams of 16 MiB each that it does not read
  slow_messages          one connection with 100 calls whose messages stay incomplete

  p99_ratio_vs_quiet     the p99 with the attacker by that without
  failed                 calls that did not end with OK within 2 s
  kept_out               chunks in which the client could not connect

Examples:
  wave bench hostile
  wave bench hostile --json | jq '.front_idle_connections, .tonic_idle_connections'

Exit codes: 0 it was measured; 3 this machine cannot run it (the message says why)."
)]
struct HostileArgs {
    #[command(flatten)]
    output: Output,
    /// How often each is measured.
    #[arg(long, value_name = "N", default_value_t = 11, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    chunks: u32,
    /// How long a chunk lasts.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5, value_parser = chunk_seconds)]
    chunk_seconds: f64,
    /// Calls a second.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: u32,
}

fn chunk_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.01..=60.0).contains(seconds));
    seconds.ok_or_else(|| "expected seconds, 0.01 to 60".to_owned())
}

/// What the host's process of a bench of RPCs is told.
#[derive(Args, Debug)]
pub struct RpcHostArgs {
    socket: PathBuf,
    cpu: usize,
    batch: u32,
    #[arg(long)]
    yields: bool,
    #[arg(long)]
    awake: bool,
}

#[derive(Args, Debug)]
struct Output {
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// Where the bench's other process finds the first.
#[derive(Args, Debug)]
pub struct PeerArgs {
    socket: PathBuf,
    cpu: usize,
}

/// Runs it.
pub fn execute(args: &BenchArgs) -> ExitCode {
    let (result, output) = match &args.which {
        Which::Queue(output) => (bench::queue(output.json), output),
        Which::Agent(output) => (bench::agent(output.json), output),
        Which::Switch(output) => (bench::switch(output.json), output),
        Which::Preempt(output) => (bench::preempt(output.json), output),
        Which::Sim(output) => (bench::sim(output.json), output),
        Which::Sol(output) => (bench::sol(output.json), output),
        Which::Rpc(args) => {
            let plan = bench::RpcPlan {
                chunks: args.chunks,
                chunk: Duration::from_secs_f64(args.chunk_seconds),
                rate: args.rate.into(),
            };
            (bench::rpc(&plan, args.output.json), &args.output)
        }
        Which::Hostile(args) => {
            let plan = bench::RpcPlan {
                chunks: args.chunks,
                chunk: Duration::from_secs_f64(args.chunk_seconds),
                rate: args.rate.into(),
            };
            (bench::hostile(&plan, args.output.json), &args.output)
        }
        Which::Payload(args) => (bench::payload(args.chunks, args.output.json), &args.output),
        Which::Kernel(args) => {
            let patience = args.patience.map(Nanos::from_millis);
            (bench::kernel(args.chunks, patience), &args.output)
        }
    };
    match result {
        Ok(value) if output.json => out!("{value}"),
        Ok(value) => out!("{}", pairs(&value)),
        Err(error) => {
            note!("wave bench: {error}");
            return ExitCode::from(3);
        }
    }
    ExitCode::SUCCESS
}

/// The other process of a bench; started by the bench itself.
pub fn execute_peer(args: &PeerArgs) -> ExitCode {
    match bench::peer(&args.socket, args.cpu) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            note!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The host's process; started by the bench itself.
pub fn execute_rpc_host(args: &RpcHostArgs) -> ExitCode {
    match bench::rpc_host(&args.socket, args.cpu, args.batch, args.yields, args.awake) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            note!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// A row per member; members of members with their path.
fn pairs(value: &Value) -> String {
    let mut rows = Vec::new();
    flatten("", value, &mut rows);
    let mut table = table(&["what", "value"]);
    for row in rows {
        table.add_row(row);
    }
    table.to_string()
}

fn flatten(path: &str, value: &Value, rows: &mut Vec<[String; 2]>) {
    let text = match value {
        Value::Object(members) => {
            for (name, member) in members {
                let name = name.replace('_', " ");
                let path = if path.is_empty() { name } else { format!("{path}: {name}") };
                flatten(&path, member, rows);
            }
            return;
        }
        Value::Number(number) if number.is_f64() => {
            let number = number.as_f64().unwrap_or(f64::NAN);
            match number.abs() {
                ..0.1 => format!("{number:.4}"),
                ..100.0 => format!("{number:.2}"),
                _ => format!("{number:.0}"),
            }
        }
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    rows.push([path.to_owned(), text]);
}

#[cfg(test)]
mod tests {
    #[test]
    fn members_of_members_are_rows() {
        let value =
            serde_json::json!({ "ratio": 0.5, "chunks": { "p50_ns": 1234.5, "ks": 0.013 } });
        let text = super::pairs(&value);
        for part in ["ratio", "0.50", "chunks: p50 ns", "1234", "0.0130"] {
            assert!(text.contains(part), "{text}");
        }
    }
}

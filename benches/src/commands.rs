//! `wave bench`: ratios against named peers, each in one run.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};
use serde_json::Value;
use wave_core::clock::Nanos;
use wave_experiments::measure::two_cpus;
use wave_lab::terminal::{note, out};
use wave_lab::{Failure, interrupt, table};

use crate::agent::agent;
use crate::hostile::hostile;
use crate::kernel::kernel;
use crate::line::described;
use crate::payload::{checksums, payload};
use crate::preempt::preempt;
use crate::queue::{peer, queue};
use crate::rpc::{Plan, host as rpc_host, rpc};
use crate::sim::sim;
use crate::sol::sol;
use crate::switch::switch;
use crate::udp::{echo as udp_echo, udp};

/// Measures queues, agent, switches, preemption and policies against their peers.
#[derive(Debug, Parser)]
#[command(name = "wave bench", bin_name = "wave bench", version = wave_apps::machine::version(), after_help = "Examples:
  wave bench queue
  wave bench agent --json
  sudo wave bench kernel --json

In each round every row runs one chunk, in random order. Ratios and overheads are taken within a round: medians over rounds, with
95% intervals (`median`, `low` and `high` in the JSON; no interval below six rounds). Other figures are medians, or p5, p50 and p95.

Each bench needs two CPUs and an otherwise idle machine: `wave doctor` shows what is missing.

Exit codes: 0 measured; 3 this machine cannot run the bench (the message says why).")]
pub struct Bench {
    #[command(subcommand)]
    which: Which,
}

#[derive(Debug, Subcommand)]
enum Which {
    /// The queue between two processes, against rtrb between two threads.
    #[command(after_help = "Entries of 64 bytes in rings of 1,024, unbatched.

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
  wave bench queue --json | jq '.oneway_ratio_vs_line, .oneway_account_ns, .cpus'")]
    Queue(Output),
    /// Decisions of an agent for 15 cores, against a dispatcher's loop over slots, as in Shinjuku.
    Agent(Output),
    /// A yield that an agent decides on, against a futex handoff between two threads.
    Switch(Output),
    /// Preemption at safe points and of kernel-level threads, against the delivery of a signal to its handler.
    #[command(
        after_help = "safe_point_ns, klt_ns: from before the agent's request until the core has the thread back; signal_ns: from
tgkill(2) to the handler. safe_point_vs_signal_ratio is signal over safe point (higher is better),
klt_vs_signal_ratio kernel-level thread over signal (lower is better). range_growth_*: how much more core
time a scan of RocksDB takes that is preempted every 30 us at safe points (ult), or every 100 us on a
kernel-level thread (klt), as a share: 0.01 is 1%. idle_overhead: how much longer a scan takes with a safe
point after each key and nothing to preempt, as a share. If p5 and p95 are far apart, something else used the
CPUs: run again."
    )]
    Preempt(Output),
    /// The simulator's event queue, against nexosim.
    #[command(after_help = "An M/M/c queue at 0.9 of its capacity, two events per job.

  events_per_second              events of the bare queue per second of CPU time, with 16 servers; ratio_vs_nexosim is the ratio to nexosim
  world_events_per_second        tasks resumed per second of CPU time in a simulated host of 16 cores with its agent, queues and
                                 link (the ladder's last rung): the speed of `wave sweep` and `wave fuzz`
  world_ratio_vs_bare_queue      world_events_per_second divided by events_per_second, of medians
  ladder_cpu_seconds_per_second  CPU time of a simulated second of that host
  erlang_c_within_ci             whether the mean wait agrees with Erlang's formula

Examples:
  wave bench sim
  wave bench sim --json | jq '.ratio_vs_nexosim, .world_events_per_second'")]
    Sim(Output),
    /// An iteration of SOL over 100 GiB, against a plain loop with rand_distr.
    #[command(after_help = "Each of 409,600 batches of 256 KiB is due.

  iteration_ms_100gib        on one core, with approximate, fast draws (fast_ms: p5, p50, p95)
  ratio_vs_rand_distr        a plain loop with rand_distr's Beta, divided by that (higher is better)
  exact_ms, rand_distr_ms    SOL with exact draws; the plain loop
  two_cores                  the strips divided between two threads, from the first start to the last end
  identical_however_divided  whether decisions and beliefs are the same for 1, 2 and 3 parts: checked
  ks_distance                largest distance of fast draws from the Beta distribution (ks: where; and that of
                             exact draws, which is the error of this number of draws)
  state_bytes_per_batch      size of the policy's state

Examples:
  wave bench sol
  wave bench sol --json | jq '.iteration_ms_100gib, .ratio_vs_rand_distr, .ks_distance'")]
    Sol(Output),
    /// The host's and the agent's CPU time per gRPC call, against tonic on the host.
    Rpc(RpcArgs),
    /// CPU time per request of the UDP front, against a bare echo and the gRPC front.
    Udp(UdpArgs),
    /// Latencies of a well-behaved client with and without attackers, on an agent's front and on tonic.
    Hostile(HostileArgs),
    /// Large RPC messages in extents, against the same in a queue's entries.
    Payload(PayloadArgs),
    /// RPC messages with checksums, against the same without.
    Checksums(ChecksumsArgs),
    /// Wake-ups of threads that an agent schedules through sched_ext, against the kernel's EEVDF.
    Kernel(KernelArgs),
    /// An agent's TCP against Linux's: streams, requests, unmodified servers, idle connections, loss.
    #[command(disable_help_flag = true)]
    Tcp(TcpArgs),
    /// The peer process of a bench.
    #[command(hide = true)]
    Peer(PeerArgs),
    /// The host's process of an RPC bench.
    #[command(hide = true)]
    RpcHost(RpcHostArgs),
    /// The peer of the datagram bench.
    #[command(hide = true)]
    UdpEcho { cpu: usize },
}

/// Arguments for `wave-bench-tcp`.
#[derive(Args, Debug)]
struct TcpArgs {
    /// A bench and its options; `wave bench tcp --help` lists them.
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// Arguments of the kernel bench.
#[derive(Args, Debug)]
#[command(
    after_help = "Messengers wake workers, as in schbench, on all CPUs except the last, which is the agent's: under
an agent with the policy fifo, and under EEVDF. Times are in microseconds, medians over
the chunks of each chunk's p50 and p99.

  wakeup_ratio_vs_eevdf    Wave's p50 divided by EEVDF's
  wakeup_us                from just before the waking system call to the thread's first instruction
  message_to_decision_us   from a thread's enqueueing, which sends the message, to a core's switch to it,
                           which commits the decision; for a single thread on all cores

The bench needs root and Linux 6.13 or later with sched_ext. In a virtual machine without KVM it runs with
--patience 5000, but the times mean nothing.

Examples:
  sudo wave bench kernel
  sudo wave bench kernel --json | jq .wakeup_ratio_vs_eevdf

Exit codes: 0 it was measured; 3 this machine cannot run it (the message says why)."
)]
struct KernelArgs {
    #[command(flatten)]
    output: Output,
    /// Number of chunks to measure of each; one more warms up.
    #[arg(long, value_name = "N", default_value_t = 21, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    chunks: u32,
    /// Milliseconds that a thread may wait for a decision while a core is idle; then the agent is ejected and
    /// the bench fails [default: 20].
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    patience: Option<u64>,
}

/// Arguments of the payload bench.
#[derive(Args, Debug)]
#[command(
    after_help = "A call's message of 64 bytes to 1 MiB goes from the agent's dispatcher to a worker and back: in entries
of 56 bytes, and in extents that the link's engine copies. Host and agent have a CPU each and take turns; neither is
charged for waiting. Over shm, a cost is time on the clock, and the sender copies. Over mount-evans, with queues
homed on the NIC, a cost is the modelled link's charge to the side's CPU, without the software's time.

  SIZE: host, agent, both      nanoseconds per message, both ways, medians over chunks; ratio is entries divided by extents
                               (above 1: extents are cheaper)
  host_pays_from_bytes         from this size on, extents are cheaper for the host; null if they never are

Examples:
  wave bench payload
  wave bench payload --json | jq '.\"mount-evans\".\"65536\".host'

Exit codes: 0 measured; 3 this machine cannot run the bench (the message says why)."
)]
struct PayloadArgs {
    #[command(flatten)]
    output: Output,
    /// Number of chunks to measure of each; one more warms up.
    #[arg(long, value_name = "N", default_value_t = 21, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    chunks: u32,
}

/// Arguments of the checksum bench.
#[derive(Args, Debug)]
#[command(
    after_help = "Like `wave bench payload`, over shm and with the extents that hosts use: with a checksum on each frame in both directions
(wave serve kv --checksums), and without.

  SIZE: plain_ns, checked_ns   nanoseconds per message, both ways, host and agent together, medians over chunks
  ratio                        checked_ns divided by plain_ns (below 1.1: checksums cost less than a tenth)

Example:
  wave bench checksums

Exit codes: 0 measured; 3 this machine cannot run the bench (the message says why)."
)]
struct ChecksumsArgs {
    #[command(flatten)]
    output: Output,
    /// Number of chunks to measure of each; one more warms up.
    #[arg(long, value_name = "N", default_value_t = 21, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    chunks: u32,
}

/// Benches that measure on one CPU, or on all CPUs.
const ONE_SIDED: [&str; 2] = ["sim", "kernel"];

/// Arguments of the RPC bench.
#[derive(Args, Debug)]
#[command(
    after_help = "Calls of a 64-byte echo, from one load generator to servers in separate processes, in turns:
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

Exit codes: 0 it was measured; 3 this machine cannot run it (the message says why)."
)]
struct RpcArgs {
    #[command(flatten)]
    output: Output,
    /// Number of chunks to measure of each; one more warms up.
    #[arg(long, value_name = "N", default_value_t = 21, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    chunks: u32,
    /// Length of a chunk.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.25, value_parser = chunk_seconds)]
    chunk_seconds: f64,
    /// Calls per second for the comparisons at equal rates.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: u32,
}

/// Arguments of the datagram bench.
#[derive(Args, Debug)]
#[command(
    after_help = "Echoes of 64 bytes over 4 sockets or connections, to servers that share one CPU and sleep when idle.
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

Exit codes: 0 it was measured; 3 this machine cannot run it (the message says why)."
)]
struct UdpArgs {
    #[command(flatten)]
    output: Output,
    /// Number of chunks to measure of each; one more warms up.
    #[arg(long, value_name = "N", default_value_t = 21, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    chunks: u32,
    /// Length of a chunk.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.25, value_parser = chunk_seconds)]
    chunk_seconds: f64,
    /// Datagrams per second for the measurements in bursts.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    rate: u32,
}

/// Arguments of the attacker bench.
#[derive(Args, Debug)]
#[command(
    after_help = "A client connects once an attack has begun, and calls a 64-byte echo --rate times per second over 4 connections: on an
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

Exit codes: 0 it was measured; 3 this machine cannot run it (the message says why)."
)]
struct HostileArgs {
    #[command(flatten)]
    output: Output,
    /// Number of chunks to measure of each.
    #[arg(long, value_name = "N", default_value_t = 21, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    chunks: u32,
    /// Length of a chunk.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5, value_parser = chunk_seconds)]
    chunk_seconds: f64,
    /// Calls per second of the well-behaved client.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: u32,
}

fn chunk_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.01..=60.0).contains(seconds));
    seconds.ok_or_else(|| "expected seconds, 0.01 to 60".to_owned())
}

/// Arguments of the host's process of an RPC bench.
#[derive(Args, Debug)]
struct RpcHostArgs {
    socket: PathBuf,
    cpu: usize,
    batch: u32,
    #[arg(long)]
    yields: bool,
    #[arg(long)]
    awake: bool,
    #[arg(long)]
    agent_awake: bool,
}

#[derive(Args, Debug)]
struct Output {
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// Arguments of the peer process: the first process's socket, and the CPU.
#[derive(Args, Debug)]
struct PeerArgs {
    socket: PathBuf,
    cpu: usize,
}

impl Bench {
    /// Measures, and prints the result.
    pub fn execute(self) -> ExitCode {
        let plan = |chunks, chunk_seconds, rate: u32| Plan {
            chunks,
            chunk: Duration::from_secs_f64(chunk_seconds),
            rate: rate.into(),
        };
        // A bench's child processes print no message: their parent does.
        if !self.which.is_peer()
            && let Err(failure) = say_interrupted()
        {
            note!("wave bench: {failure}");
            return ExitCode::from(failure.exit_code());
        }
        // Asked before the bench, which pins this thread.
        let cpus = two_cpus();
        let (result, output) = match self.which {
            Which::Queue(output) => (queue(), output),
            Which::Agent(output) => (agent(), output),
            Which::Switch(output) => (switch(), output),
            Which::Preempt(output) => (preempt(), output),
            Which::Sim(output) => (sim(), output),
            Which::Sol(output) => (sol(output.json), output),
            Which::Rpc(RpcArgs { output, chunks, chunk_seconds, rate }) => {
                (rpc(&plan(chunks, chunk_seconds, rate), output.json), output)
            }
            Which::Udp(UdpArgs { output, chunks, chunk_seconds, rate }) => {
                (udp(&plan(chunks, chunk_seconds, rate), output.json), output)
            }
            Which::Hostile(HostileArgs { output, chunks, chunk_seconds, rate }) => {
                (hostile(&plan(chunks, chunk_seconds, rate), output.json), output)
            }
            Which::Checksums(args) => (checksums(args.chunks, args.output.json), args.output),
            Which::Payload(args) => (payload(args.chunks, args.output.json), args.output),
            Which::Kernel(args) => {
                let patience = args.patience.map(Nanos::from_millis);
                (kernel(args.chunks, patience), args.output)
            }
            Which::Tcp(TcpArgs { words }) => return tcp(&words),
            Which::Peer(PeerArgs { socket, cpu }) => return ended(peer(&socket, cpu)),
            Which::UdpEcho { cpu } => return ended(udp_echo(cpu)),
            Which::RpcHost(RpcHostArgs { socket, cpu, batch, yields, awake, agent_awake }) => {
                return ended(rpc_host(&socket, cpu, batch, yields, awake, agent_awake));
            }
        };
        match result.map(|result| with_cpus(result, cpus)) {
            Ok(value) if output.json => out!("{value}"),
            Ok(value) => out!("{}", pairs(&value)),
            Err(error) => {
                note!("wave bench: {error}");
                return ExitCode::from(3);
            }
        }
        ExitCode::SUCCESS
    }
}

/// Replaces this process with `wave-bench-tcp`, from this program's folder.
fn tcp(words: &[OsString]) -> ExitCode {
    let program = match std::env::current_exe() {
        Ok(own) => own.with_file_name("wave-bench-tcp"),
        Err(error) => return ended(Err(error.to_string())),
    };
    let error = Command::new(&program).args(words).exec();
    let shown = program.display();
    let profile = if cfg!(debug_assertions) { "" } else { "--release " };
    note!(
        "wave bench: {shown}: {error}; `cargo build {profile}--package wave-bench-tcp` builds it"
    );
    ExitCode::from(3)
}

/// Adds the distance of the two CPUs to the result of a bench that measures between them.
fn with_cpus(mut result: Value, cpus: Result<[usize; 2], String>) -> Value {
    if ONE_SIDED.iter().all(|bench| result["bench"] != *bench) {
        // Without that, the measured result still stands.
        result["cpus"] = cpus.and_then(described).unwrap_or_else(|why| why.into());
    }
    result
}

/// The exit code of a process that a bench has started.
fn ended(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            note!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Says at Ctrl-C how long the bench ran. `wave bench tcp` has its own message.
fn say_interrupted() -> Result<(), Failure> {
    let began = Instant::now();
    interrupt::say(move || {
        let seconds = began.elapsed().as_secs_f64();
        format!(
            "wave bench: interrupted after {seconds:.1} s; no results, because the bench did not finish"
        )
    })
}

impl Which {
    /// Whether this process serves another bench.
    fn is_peer(&self) -> bool {
        matches!(self, Which::Peer(_) | Which::UdpEcho { .. } | Which::RpcHost(_))
    }
}

/// One row per member; nested members have their path.
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
    if let Value::Object(members) = value
        && !members.contains_key("median")
    {
        for (name, member) in members {
            let name = name.replace('_', " ");
            let path = if path.is_empty() { name } else { format!("{path}: {name}") };
            flatten(&path, member, rows);
        }
        return;
    }
    rows.push([path.to_owned(), shown(value)]);
}

/// A value in a cell of a table, with rounded numbers.
fn shown(value: &Value) -> String {
    match value {
        Value::Number(number) if number.is_f64() => {
            let number = number.as_f64().unwrap_or(f64::NAN);
            match number.abs() {
                ..0.1 => format!("{number:.4}"),
                ..100.0 => format!("{number:.2}"),
                _ => format!("{number:.0}"),
            }
        }
        Value::Array(values) => values.iter().map(shown).collect::<Vec<_>>().join(", "),
        Value::String(text) => text.clone(),
        // An estimate: a median with its interval.
        Value::Object(of) => match [&of["median"], &of["low"], &of["high"]] {
            [median, Value::Null, _] => shown(median),
            [median, low, high] => format!("{} ({} to {})", shown(median), shown(low), shown(high)),
        },
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::Bench;

    #[test]
    fn command_line_is_consistent_and_examples_parse() {
        Bench::command().debug_assert();
        for line in [
            "wave-bench queue --json",
            "wave-bench agent",
            "wave-bench switch",
            "wave-bench sim --json",
            "wave-bench sol --json",
            "wave-bench kernel --json --patience 5000",
            "wave-bench rpc --json --chunks 3 --chunk-seconds 0.2 --rate 5000",
            "wave-bench tcp echo --json --chunks 3",
            "wave-bench peer /tmp/x.sock 1",
        ] {
            Bench::try_parse_from(line.split_whitespace())
                .unwrap_or_else(|error| panic!("{line}: {error}"));
        }
        let refusal =
            Bench::try_parse_from(["wave-bench"]).expect_err("a command line without a bench");
        assert!(refusal.to_string().contains("queue"));
    }

    #[test]
    fn nested_members_become_rows() {
        let value =
            serde_json::json!({ "ratio": 0.5, "chunks": { "p50_ns": 1234.5, "ks": 0.013 } });
        let text = super::pairs(&value);
        for part in ["ratio", "0.50", "chunks: p50 ns", "1234", "0.0130"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn an_estimate_is_one_row() {
        let estimate = |low, high| serde_json::json!({ "median": 0.5, "low": low, "high": high });
        let value = serde_json::json!({ "whole": estimate(Some(0.404), Some(0.606)), "few": estimate(None, None) });
        let text = super::pairs(&value);
        assert!(text.contains("0.50 (0.40 to 0.61)") && !text.contains("null"), "{text}");
    }

    #[test]
    fn numbers_in_a_list_are_rounded() {
        let value = serde_json::json!({ "interval": [0.9444444444444444, 17.0 / 16.0] });
        let text = super::pairs(&value);
        assert!(text.contains("0.94, 1.06"), "{text}");
    }

    /// `wave bench --help` lists them where this program has not been built.
    #[test]
    fn benches_are_listed_for_wave() {
        let command = Bench::command();
        let visible = command.get_subcommands().filter(|bench| !bench.is_hide_set());
        let about = |bench: &clap::Command| bench.get_about().map(ToString::to_string);
        let visible: Vec<_> = visible
            .map(|bench| (bench.get_name().to_owned(), about(bench).unwrap_or_default()))
            .collect();
        let listed = wave_apps::launch::BENCHES;
        let listed = listed.map(|(name, about)| (name.to_owned(), about.to_owned()));
        assert_eq!(visible, listed);
    }
}

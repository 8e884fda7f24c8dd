//! The commands, each in a file of its own.

pub mod agent;
pub mod bench;
mod completions;
mod device;
pub mod doctor;
mod fit;
mod fuzz;
#[cfg(test)]
mod guides;
pub mod link;
pub mod linux;
pub mod load;
pub mod memory;
pub mod merge;
#[cfg(test)]
mod outputs;
pub mod record;
mod reference;
pub mod reproduce;
mod rmt;
pub mod run;
mod scenarios;
pub mod serve;
pub mod sweep;
mod tcp;
pub mod validate;

use std::process::{ExitCode, Termination};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use signal_hook::consts::{SIGINT, SIGTERM};
use wave_agent::Registry;
use wave_experiments::kinds::Kinds;
use wave_lab::{policies, replay, trace};
use wave_terminal::{Failure, note};

/// Schedules threads, pages out memory, steers RPCs and speaks TCP with an agent in another process, over the queues of the Wave paper.
#[derive(Debug, Parser)]
#[command(
    name = "wave",
    version = wave_apps::machine::version(),
    after_help = "Examples:
  wave doctor                              what this machine can run, and why it cannot run the rest
  wave run scenarios/rocksdb-fifo.toml     the demonstration, under a minute
  wave agent --attach /tmp/my.sock         an agent for the host that listens there
  wave memory run --pid 1234 --zram 1GiB   page out memory that a running program does not use
  wave serve kv --offload /tmp/kv.sock     gRPC without sockets; docs/guide/rpc.md

Exit codes: 0 success; 1 a check of the run failed; 2 bad arguments or a bad scenario;
3 this machine cannot run it (the message says what to type); 4 no result, for example because the load generator did not keep up."
)]
pub struct Wave {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run an experiment and write its report.
    Run(run::RunArgs),
    /// Run every combination of a scenario's values, or one shard of them.
    Sweep(sweep::SweepArgs),
    /// Write the results of a finished sweep.
    Merge(merge::MergeArgs),
    /// Simulate the papers' experiments, and compare the figures with the printed ones.
    Reproduce(reproduce::ReproduceArgs),
    /// Fit the model of the paper's machine to the printed figures.
    Fit(fit::FitArgs),
    /// Compare the simulator's predictions with native runs that were not used to fit it.
    Validate(validate::ValidateArgs),
    /// Record threads under Linux, as a workload for any policy.
    Record(record::RecordArgs),
    /// Show the threads that Wave schedules on the real kernel.
    Linux(linux::LinuxArgs),
    /// Page out memory that running programs do not use.
    Memory(memory::MemoryArgs),
    /// Serve RocksDB or the interop service by gRPC, or bytes over an agent's TCP.
    Serve(serve::ServeArgs),
    /// Speak TCP at an address that an agent owns, for programs without kernel sockets.
    Tcp(tcp::TcpArgs),
    /// Check pipelines for match-action chips, show what they take, and trace packets through them.
    Rmt(rmt::RmtArgs),
    /// Put a load on a server.
    Load(load::LoadArgs),
    /// Run an agent and attach it to a host.
    Agent(Box<agent::AgentCommand>),
    /// List every policy, with its settings.
    Policies(policies::PoliciesArgs),
    /// List every kind of scenario, with its fields.
    Scenarios(scenarios::ScenariosArgs),
    /// Feed an agent's log to a policy again, and compare the decisions.
    Replay(replay::ReplayArgs),
    /// Convert an agent's log into a trace for Perfetto.
    Trace(trace::TraceArgs),
    /// Run seeded histories of the real code under faults, and check them.
    Fuzz(fuzz::FuzzCommand),
    /// Show what this machine can run, and why it cannot run the rest.
    Doctor(doctor::DoctorArgs),
    /// Measure the costs of this machine's links.
    Link(link::LinkArgs),
    /// Run the benches: queues, agent, switches and others against named peers.
    Bench(bench::BenchArgs),
    /// Print a shell's completions.
    Completions(completions::CompletionsArgs),
    /// Write man pages of every command.
    Man(completions::ManArgs),
    /// Write docs/reference.
    #[command(hide = true)]
    Reference(reference::ReferenceArgs),
    /// Run the RocksDB process of a memory scenario.
    #[command(hide = true)]
    RocksdbProcess,
    /// Run a program whose memory a bake-off measures.
    #[command(hide = true)]
    MemoryProgram {
        /// Order for the program, in JSON.
        order: String,
    },
}

/// The kinds of experiments that `wave run` knows.
fn kinds() -> Kinds {
    Kinds::default().with(&wave_bakeoff::KIND)
}

impl Wave {
    /// Parses the command line. Prints an error and ends the process if it is invalid.
    pub fn read() -> Wave {
        let matches = with_negative_numbers(Wave::command()).get_matches();
        let wave =
            wave_agent::checked(matches).and_then(|matches| Wave::from_arg_matches(&matches));
        wave.unwrap_or_else(|error| error.exit())
    }

    pub fn execute(self) -> ExitCode {
        match self.command {
            Command::Run(args) => ended("run", run::execute(&args)),
            Command::Sweep(args) => ended("sweep", sweep::execute(&args)),
            Command::Merge(args) => ended("merge", merge::execute(&args)),
            Command::Reproduce(args) => ended("reproduce", reproduce::execute(&args)),
            Command::Fit(args) => ended("fit", fit::execute(&args)),
            Command::Validate(args) => ended("validate", validate::execute(&args)),
            Command::Record(args) => ended("record", record::execute(&args)),
            Command::Serve(args) => serve::execute(&args),
            Command::Tcp(args) => tcp::execute(&args),
            Command::Rmt(args) => ended("rmt", rmt::execute(&args)),
            Command::Load(args) => ended("load", load::execute(&args)),
            Command::Agent(args) => agent::execute(*args),
            Command::Policies(args) => policies::execute(&Registry::shipped(), &args),
            Command::Scenarios(args) => scenarios::execute(&args),
            Command::Completions(args) => completions::execute(&args),
            Command::Man(args) => ended("man", completions::execute_man(&args)),
            Command::Reference(args) => ended("reference", reference::execute(&args)),
            Command::Replay(args) => replay::execute(&Registry::shipped(), &args),
            Command::Trace(args) => trace::execute(&Registry::shipped(), &args),
            Command::Fuzz(args) => ended("fuzz", fuzz::execute(&args)),
            Command::Doctor(args) => doctor::execute(&args),
            Command::Linux(args) => ended("linux status", linux::execute(&args)),
            Command::Memory(args) => ended("memory", memory::execute(&args)),
            Command::Link(args) => ended("link measure", link::execute(&args)),
            Command::Bench(args) => ended("bench", bench::execute(&args)),
            Command::RocksdbProcess => wave_experiments::kinds::memory::process::main(),
            Command::MemoryProgram { order } => wave_bakeoff::program::main(&order),
        }
    }
}

/// A flag that Ctrl-C and SIGTERM set.
fn set_by_signals() -> Result<Arc<AtomicBool>, Failure> {
    let flag = Arc::<AtomicBool>::default();
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&flag)).map_err(Failure::cannot)?;
    }
    Ok(flag)
}

/// The exit code of a command. Prints its failure.
fn ended(command: &str, done: Result<impl Termination, Failure>) -> ExitCode {
    match done {
        Ok(done) => done.report(),
        Err(failure) => {
            note!("wave {command}: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Parses a negative number as the value of the option before it, whose parser reports what it expects. Otherwise clap would look
/// for an option of that name.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let options =
        command.mut_args(|arg| match arg.get_long().is_some() && arg.get_action().takes_values() {
            true => arg.allow_negative_numbers(true),
            false => arg,
        });
    options.mut_subcommands(with_negative_numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(line: &str) -> String {
        let command = with_negative_numbers(Wave::command());
        let matches = command.try_get_matches_from(line.split_whitespace());
        let refused = matches.and_then(|matches| Wave::from_arg_matches(&matches));
        refused.expect_err("the line must be refused").to_string()
    }

    /// A new user found that `--tls-cert` beside `--udp` was ignored.
    #[test]
    fn options_of_grpc_are_refused_beside_udp() {
        for more in ["--tls-cert c --tls-key k", "--message-kib 8", "--drain-s 1", "--streams 2"] {
            let line = format!("wave agent --rpc /tmp/kv.sock --udp 127.0.0.1:50052 {more}");
            assert!(refusal(&line).contains("cannot be used with"), "{more}");
        }
        let line = "wave agent --rpc /tmp/kv.sock --listen 127.0.0.1:50051 --udp-public";
        assert!(refusal(line).contains("cannot be used with"));
    }

    #[test]
    fn command_line_passes_claps_assertions() {
        with_negative_numbers(Wave::command()).debug_assert();
    }

    #[test]
    fn example_command_lines_parse() {
        for line in [
            "wave run scenarios/ladder.toml --json",
            "wave run x.toml --out /tmp/results --quiet",
            "wave sweep scenarios/cores.toml --out out/cores --shard 3/16 --jobs 2 --json",
            "wave merge out/cores --json",
            "wave agent --attach /tmp/my.sock --policy fifo --cpu 2 --share-cpu",
            "wave agent replace --attach /tmp/my.sock --cpu 0",
            "wave agent replace --rpc /tmp/kv.sock --listen 127.0.0.1:50052",
            "wave agent --rpc /tmp/kv.sock --udp 127.0.0.1:50052 --udp-public",
            "wave agent --attach /tmp/my.sock --policy shinjuku --rpc /tmp/kv.sock --udp 127.0.0.1:0",
            "wave agent --rpc /tmp/kv.sock --udp 127.0.0.1:11211 --udp-memcached 127.0.0.1,10.1.0.0/16",
            "wave load udp --target 127.0.0.1:50052 --rate 5000 --mix 5us=99.5,100us=0.5",
            "wave load udp --target 127.0.0.1:50052 --rate 5000 --queue-target 16",
            "wave fuzz udp --datagrams 1000000 --seed 7 --json",
            "wave fuzz --seeds 10 --json",
            "wave agent --leave-with-parent --quiet --attach /tmp/my.sock",
            "wave run x.toml --record /tmp/logs",
            "wave agent --attach /tmp/my.sock --record a.wavelog --record-about x",
            "wave replay a.wavelog --policy fifo --json",
            "wave trace a.wavelog --output trace.json --from-ms 10 --for-ms 5 --json",
            "wave reproduce table2 table3 --jobs 2 --json",
            "wave reproduce all --out /tmp/wave --quiet",
            "wave fit --check --json",
            "wave fit --intervals --out /tmp/fit --jobs 2",
            "wave fit --write --root /tmp/wave --quiet",
            "wave validate --json --out /tmp/v --quick",
            "wave doctor --json",
            "wave scenarios udp-preemption --json",
            "wave completions zsh",
            "wave man /tmp/man1",
            "wave link measure --out here.toml",
            "wave link measure --pci /sys/x/resource2 --offset 4096",
            "wave run x.toml --host sim",
            "wave run x.toml --out /tmp/results --resume",
            "wave run --host sim --workload x.workload --policy fifo --policy vm:latency_ms=5 --cores 4",
            "wave record --out x.workload -- make -j4",
            "wave run --host linux --policy shinjuku:slice_us=1000 --cpus 0-3 --patience 50 -- make -j8",
            "wave run --host linux --pid 1234 --record /tmp/logs --json",
            "wave run --host linux --cgroup /sys/fs/cgroup/x",
            "wave run --host linux --all --policy round-robin --cpus 0-2",
            "wave run --host linux scenarios/kernel/two-enclaves.toml",
            "wave linux status --json",
            "wave memory run --pid 1234 --pid 77 --zram 4GiB --refaults 1 --out /tmp/memory",
            "wave memory run --cgroup /sys/fs/cgroup/x --dry-run --json --seconds 60",
            "wave memory run --policy sol:shortest_ms=600 --record x.wavelog -- sleep 60",
            "wave memory explain x.wavelog --address 0x7f12a4000000 --at 60 --svg heat.svg --json",
            "wave linux status --live",
            "wave serve kv --on-host --listen 127.0.0.1:50051",
            "wave serve kv --on-host --listen 0.0.0.0:50051 --cpus 0-3 --keys 1000000",
            "wave serve kv --offload /tmp/kv.sock --cpus 0-1",
            "wave bench rpc --json --chunks 3",
            "wave load grpc --target 127.0.0.1:50051 --rate 20000 --mix get=99.5,range=0.5 --slo get=100,range=10000",
            "wave load grpc --target 127.0.0.1:50051 --closed --connections 4 --streams 16 --mix echo=1 --json",
            "wave record --pid 1234 --seconds 5 --out x.workload --json",
            "wave record --all --seconds 0.5 --out x.workload --quiet",
            "wave rocksdb-process",
            "wave memory-program {}",
            "wave memory draw results.json --out /tmp/results",
        ] {
            with_negative_numbers(Wave::command())
                .try_get_matches_from(line.split_whitespace())
                .and_then(|matches| Wave::from_arg_matches(&matches))
                .unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }

    #[test]
    fn refusals_name_the_missing_or_wrong_argument() {
        assert!(refusal("wave run").contains("SCENARIO.toml"));
        assert!(refusal("wave run x.toml --workload y").contains("--workload"));
        assert!(refusal("wave run x.toml --resume --record /logs").contains("--record"));
        assert!(refusal("wave run --workload y --resume").contains("--resume"));
        assert!(refusal("wave run x.toml --policy fifo").contains("--policy"));
        assert!(refusal("wave run --policy fifo").contains("SCENARIO.toml"));
        for what in ["SCENARIO.toml", "COMMAND", "--pid", "--cgroup", "--workload"] {
            let refusal = refusal("wave run --host linux");
            assert!(refusal.contains(what), "{refusal}");
        }
        assert!(refusal("wave run --host linux --cores 2 -- true").contains("--cores"));
        assert!(refusal("wave run --host linux --out x -- true").contains("--out"));
        assert!(refusal("wave run --host linux --cpus 3-1 -- true").contains("2-3,8"));
        assert!(refusal("wave run --host linux --pid 1 -- true").contains("--pid"));
        assert!(refusal("wave run --host linux --pid 0").contains("--pid"));
        assert!(refusal("wave run --host linux --all -- true").contains("--all"));
        assert!(refusal("wave run --host linux --all --out x").contains("--out"));
        assert!(refusal("wave memory run").contains("--pid"));
        assert!(refusal("wave memory run --pid 0").contains("--pid"));
        assert!(refusal("wave memory run --pid 1 --zram much").contains("512MiB"));
        assert!(refusal("wave memory run --pid 1 --refaults=-1").contains("percent"));
        assert!(refusal("wave memory run --pid 1 --link pigeon").contains("pigeon"));
        assert!(refusal("wave memory explain x --address hot").contains("0x7f12a4000000"));
        assert!(refusal("wave linux status --json --live").contains("--live"));
        assert!(refusal("wave run a.toml -- true").contains("cannot be used with"));
        assert!(refusal("wave run --workload a --cpus 0").contains("--cpus"));
        assert!(refusal("wave run --workload y --cores 0").contains("--cores"));
        assert!(refusal("wave record --out x").contains("--all"));
        assert!(refusal("wave record --all").contains("--out"));
        assert!(refusal("wave record --all --out x -- true").contains("--all"));
        assert!(refusal("wave record --all --out x --seconds 0").contains("--seconds"));
        assert!(refusal("wave sweep x.toml").contains("--out"));
        assert!(refusal("wave sweep x.toml --out o --shard 4/4").contains("expected I below N"));
        assert!(refusal("wave sweep x.toml --out o --shard 4").contains("as 0/4"));
        assert!(refusal("wave sweep x.toml --out o --jobs 0").contains("--jobs"));
        assert!(refusal("wave fit --check --write").contains("cannot be used with"));
        assert!(refusal("wave reproduce").contains("<ID>"));
        assert!(refusal("wave serve kv").contains("--on-host"));
        assert!(refusal("wave load grpc --target x").contains("--closed"));
        assert!(refusal("wave load grpc --target x --rate 0").contains("above 0"));
        assert!(refusal("wave load grpc --target x --rate 9 --mix scan=1").contains("`scan`"));
        assert!(refusal("wave load udp --target x --rate -5").contains("expected a number"));
        assert!(
            refusal("wave load udp --target x --rate 5 --retry-ms -1").contains("-1 is not in")
        );
        assert!(refusal("wave agent --rpc x --udp 127.0.0.1").contains("127.0.0.1:50052"));
        assert!(refusal("wave agent --rpc x --udp-memcached ::1").contains("--udp"));
        assert!(refusal("wave agent --rpc x").contains("--listen"));
        assert!(
            refusal("wave serve kv --on-host --listen localhost:1").contains("127.0.0.1:50051")
        );
        assert!(refusal("wave agent --attach x --cpu one").contains("one"));
        assert!(refusal("wave link measure --pci x").contains("--offset"));
        assert!(refusal("wave replay").contains("LOG"));
        assert!(refusal("wave trace a.wavelog").contains("--output"));
    }
}

//! `wave bench`: ratios against named peers, each in one run.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use clap::{Arg, ArgMatches, Args, FromArgMatches, Subcommand};
use serde_json::{Value, json};
use wave_process::cpus;
use wave_terminal::{Failure, Table, interrupt, note, out};

use crate::BENCHES;
use crate::bench::Bench;
use crate::line::described;
use crate::queue::peer;
use crate::rpc::host as rpc_host;
use crate::udp::echo as udp_echo;

const HELP: &str = "Examples:
  wave bench queue
  wave bench agent --json
  sudo wave bench kernel --json
  wave bench list

In each round every row runs one chunk, in random order. Ratios and overheads are taken within a round: medians over rounds, with
95% intervals (`median`, `low` and `high` in the JSON; no interval below six rounds). Other figures are medians, or p5, p50 and p95.

Each bench needs two CPUs and an otherwise idle machine: `wave doctor` shows what is missing.

Exit codes: 0 measured; 3 this machine cannot run the bench (the message says why).";

/// Processes that a bench starts.
#[derive(Debug, Subcommand)]
enum Helper {
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

/// Arguments of the peer process: the first process's socket, and the CPU.
#[derive(Args, Debug)]
struct PeerArgs {
    socket: PathBuf,
    cpu: usize,
}

pub fn chunk_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.01..=60.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "expected seconds, 0.01 to 60".to_owned())
}

/// The command line.
pub fn command() -> clap::Command {
    let list =
        clap::Command::new("list").about("List the benches and their figures in docs/measured.md");
    let json = Arg::new("json").long("json").action(clap::ArgAction::SetTrue);
    let json = json.help("Print one JSON object, with the figures that commits are compared by");
    let words = Arg::new("words").num_args(0..).trailing_var_arg(true).allow_hyphen_values(true);
    let words = words.value_name("ARGS").value_parser(clap::value_parser!(OsString));
    let tcp = clap::Command::new("tcp")
        .about("An agent's TCP against Linux's: streams, requests, unmodified servers, idle connections, loss")
        .disable_help_flag(true)
        .arg(words.help("A bench and its options; `wave bench tcp --help` lists them"));
    let command = Helper::augment_subcommands(clap::Command::new("wave bench"));
    command
        .bin_name("wave bench")
        .version(wave_apps::machine::version())
        .about("Measures queues, agent, switches, preemption and policies against their peers")
        .after_help(HELP)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands(BENCHES.iter().map(|bench| bench.command()))
        .subcommand(tcp)
        .subcommand(list.arg(json))
}

/// Runs the bench that the command line names, and prints the result.
pub fn execute(matches: &ArgMatches) -> ExitCode {
    // A bench's child processes print no message: their parent does.
    if let Ok(helper) = Helper::from_arg_matches(matches) {
        return ended(match helper {
            Helper::Peer(PeerArgs { socket, cpu }) => self::peer(&socket, cpu),
            Helper::UdpEcho { cpu } => udp_echo(cpu),
            Helper::RpcHost(RpcHostArgs { socket, cpu, batch, yields, awake, agent_awake }) => {
                rpc_host(&socket, cpu, batch, yields, awake, agent_awake)
            }
        });
    }
    let (name, matches) = matches.subcommand().expect("clap requires a bench");
    if name == "tcp" {
        let words = matches.get_many("words").unwrap_or_default().cloned();
        return tcp(&words.collect::<Vec<OsString>>());
    }
    let is_json = matches.get_flag("json");
    let Some(bench) = BENCHES.iter().find(|bench| bench.name == name) else {
        list(is_json);
        return ExitCode::SUCCESS;
    };
    if let Err(failure) = say_interrupted() {
        note!("wave bench: {failure}");
        return ExitCode::from(failure.exit_code());
    }
    match measured(bench, matches, is_json) {
        Ok(value) if is_json => out!("{value}"),
        Ok(value) => out!("{}", pairs(&value)),
        Err(error) => {
            note!("wave bench: {error}");
            return ExitCode::from(3);
        }
    }
    ExitCode::SUCCESS
}

/// The bench's result, with the distance of the two CPUs if it measures between them.
fn measured(bench: &Bench, matches: &ArgMatches, quiet: bool) -> Result<Value, String> {
    // Asked before the bench, which pins this thread.
    let cpus = cpus::two();
    let mut result = (bench.run)(matches, quiet)?;
    if bench.has_two_cpus {
        // Without that, the measured result still stands.
        result["cpus"] = cpus.and_then(described).unwrap_or_else(|why| why.into());
    }
    Ok(result)
}

/// Prints every bench with its figures.
fn list(is_json: bool) {
    if is_json {
        return out!("{}", json!({ "benches": BENCHES }));
    }
    for Bench { name, about, figures, .. } in BENCHES {
        out!("{name}: {about}");
        let labelled = figures.iter().filter_map(|figure| Some((figure.key, figure.label?)));
        labelled.for_each(|(key, label)| out!("    {key}\n        {label}"));
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

/// One row per member; nested members have their path.
fn pairs(value: &Value) -> String {
    let mut rows = Vec::new();
    flatten("", value, &mut rows);
    let mut table = Table::new(2, ["what", "value"]);
    for row in rows {
        table.push(row);
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
    use super::command;

    #[test]
    fn command_line_is_consistent_and_examples_parse() {
        command().debug_assert();
        for line in [
            "wave-bench queue --json",
            "wave-bench agent",
            "wave-bench switch",
            "wave-bench sim --json",
            "wave-bench sol --json",
            "wave-bench kernel --json --patience 5000",
            "wave-bench rpc --json --chunks 3 --chunk-seconds 0.2 --rate 5000",
            "wave-bench tcp echo --json --chunks 3",
            "wave-bench rmt --json",
            "wave-bench list --json",
            "wave-bench peer /tmp/x.sock 1",
        ] {
            command()
                .try_get_matches_from(line.split_whitespace())
                .unwrap_or_else(|error| panic!("{line}: {error}"));
        }
        let refusal = command()
            .try_get_matches_from(["wave-bench"])
            .expect_err("a command line without a bench");
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
}

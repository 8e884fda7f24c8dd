//! `cargo xtask figures`: runs the benches, and writes a table of their figures, docs/measured.md.

use std::fmt::Write as _;
use std::fs;
use std::process::{Command, ExitCode, Stdio};

use serde_json::Value;

use crate::cargo;

pub const USAGE: &str = "usage: cargo xtask figures [RUNS]          run each bench RUNS times (3) on this machine, which \
                         should do nothing else, and write docs/measured.md";

/// Default number of runs of each bench.
const RUNS: usize = 3;
const RUNS_MAX: usize = 100;
const TABLE: &str = "docs/measured.md";

/// A bench, and the figures that the table shows of its JSON object.
struct Bench {
    name: &'static str,
    figures: &'static [Figure],
}

/// A figure's label, and its key in the object.
struct Figure(&'static str, &'static str);

const BENCHES: &[Bench] = &[
    Bench {
        name: "queue",
        figures: &[
            Figure(
                "one way of a 64-byte entry between processes / rtrb between threads",
                "oneway_ratio_vs_rtrb",
            ),
            Figure("the same / one bare line between the same CPUs", "oneway_ratio_vs_line"),
            Figure("one way of an entry, ns", "oneway_ns.p50"),
            Figure("of that: one bare line, ns", "oneway_account_ns.line"),
            Figure(
                "of that: 64 bytes in the next line of a ring instead, ns more",
                "oneway_account_ns.ring_of_entries",
            ),
            Figure("of that: the queue's own, ns", "oneway_account_ns.queue"),
            Figure("entries pushed per second / rtrb's", "throughput_ratio_vs_rtrb"),
        ],
    },
    Bench {
        name: "agent",
        figures: &[
            Figure(
                "decisions per second for 15 emulated cores / a slot loop's",
                "decisions_ratio_vs_slot_loop",
            ),
            Figure("decisions per second", "decisions_per_second.p50"),
            Figure("event to next decision, without / with prestaging", "prestage_latency_ratio"),
        ],
    },
    Bench {
        name: "switch",
        figures: &[
            Figure("futex handoff / a yield that the agent decides", "yield_vs_futex_ratio"),
            Figure("a yield, ns", "yield_ns.p50"),
        ],
    },
    Bench {
        name: "preempt",
        figures: &[
            Figure(
                "signal to its handler / preemption at a safe point",
                "safe_point_vs_signal_ratio",
            ),
            Figure(
                "preemption of a kernel-level thread / signal to its handler",
                "klt_vs_signal_ratio",
            ),
            Figure("a safe point that preempts nothing, of a scan's time", "idle_overhead"),
        ],
    },
    Bench {
        name: "sim",
        figures: &[
            Figure("events per second of the bare queue / nexosim's", "ratio_vs_nexosim"),
            Figure("events per second of the bare queue", "events_per_second"),
            Figure(
                "tasks resumed per second in a simulated host of 16 cores",
                "world_events_per_second",
            ),
            Figure(
                "CPU seconds for a simulated second of that host",
                "ladder_cpu_seconds_per_second",
            ),
        ],
    },
    Bench {
        name: "sol",
        figures: &[
            Figure(
                "a plain loop with rand_distr's Beta / an iteration of SOL",
                "ratio_vs_rand_distr",
            ),
            Figure("the same / SOL with exact draws", "exact_ratio_vs_rand_distr"),
            Figure("an iteration over 100 GiB, ms", "iteration_ms_100gib"),
            Figure("iterations of SOL on two cores / on one, fast draws", "two_cores.fast_speedup"),
        ],
    },
    Bench {
        name: "rpc",
        figures: &[
            Figure(
                "CPU time of worker and agent with default options, polling included / tonic: 1,000 calls/s",
                "total_cpu_with_polling_ratio.1000",
            ),
            Figure("the same: 10,000 calls/s", "total_cpu_with_polling_ratio.10000"),
            Figure("the same: 50,000 calls/s", "total_cpu_with_polling_ratio.50000"),
            Figure(
                "CPU time of the worker, waiting included / tonic: 1,000 calls/s",
                "host_cpu_with_waiting_ratio_vs_tonic.1000",
            ),
            Figure("the same: 10,000 calls/s", "host_cpu_with_waiting_ratio_vs_tonic.10000"),
            Figure("the same: 50,000 calls/s", "host_cpu_with_waiting_ratio_vs_tonic.50000"),
            Figure(
                "p50 / that of a worker that polls (favourable with two CPUs): 1,000 calls/s",
                "p50_ratio_vs_polling.1000",
            ),
            Figure("the same: 10,000 calls/s", "p50_ratio_vs_polling.10000"),
            Figure("the same: 50,000 calls/s", "p50_ratio_vs_polling.50000"),
            Figure("p50 with default options / tonic's: 1,000 calls/s", "p50_ratio_vs_tonic.1000"),
            Figure("the same: 10,000 calls/s", "p50_ratio_vs_tonic.10000"),
            Figure("the same: 50,000 calls/s", "p50_ratio_vs_tonic.50000"),
            Figure(
                "CPU time of a worker that polls / tonic: 10,000 calls/s",
                "host_cpu_with_polling_ratio_vs_tonic.10000",
            ),
            Figure(
                "CPU time of the agent per call / tonic's, 4 connections of 16 streams",
                "front_ratio_vs_tonic",
            ),
            Figure(
                "CPU time of worker and agent per call, polling included / tonic's, the same calls",
                "total_cpu_ratio_with_polling",
            ),
            Figure(
                "calls per second where all of a server has one CPU / tonic",
                "throughput_ratio_vs_tonic",
            ),
        ],
    },
    Bench {
        name: "udp",
        figures: &[
            Figure(
                "CPU time of the front per datagram, in bursts of 32 / a bare echo's by recvmmsg and sendmmsg",
                "front_cpu_ratio_vs_bare_recvmmsg_echo",
            ),
            Figure(
                "the same, with 64 requests under way",
                "front_cpu_ratio_vs_bare_recvmmsg_echo_closed",
            ),
            Figure(
                "CPU time of the front per request / the front for gRPC, 16 under way on each of 4 connections",
                "front_cpu_ratio_vs_grpc",
            ),
            Figure("the same, 1 on each of 8 connections", "front_cpu_ratio_vs_grpc_8x1"),
        ],
    },
];

/// Runs `cargo xtask figures`.
pub fn main(arguments: &[String]) -> ExitCode {
    let runs = match arguments {
        [] => Some(RUNS),
        [runs] => runs.parse().ok().filter(|runs| (1..=RUNS_MAX).contains(runs)),
        _ => None,
    };
    let Some(runs) = runs else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match measured(runs) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("figures: {why}");
            ExitCode::FAILURE
        }
    }
}

fn measured(runs: usize) -> Result<(), String> {
    eprintln!("figures: building wave and wave-bench, optimized");
    let wave = cargo::built("wave", &["build", "--release", "--package", "wave-bench"])?;
    let mut text = String::new();
    let mut lines_ns = Vec::new();
    for Bench { name, figures } in BENCHES {
        let mut found = Vec::new();
        for run in 1..=runs {
            eprintln!("figures: wave bench {name}, {run} of {runs}");
            let object = json_of(&wave, &["bench", name, "--json"])?;
            lines_ns.extend(number(&object, "cpus.line_ping_pong_ns.p50"));
            found.push(object);
        }
        text += &table(name, figures, &found)?;
    }
    let heading = heading(&wave, runs, &lines_ns)?;
    let path = cargo::workspace().join(TABLE);
    fs::write(&path, heading + &text).map_err(|error| format!("{TABLE}: {error}"))?;
    println!("figures: wrote {TABLE}");
    Ok(())
}

fn heading(wave: &str, runs: usize, lines_ns: &[f64]) -> Result<String, String> {
    let say = |program: &str, words: &[&str]| {
        let output = Command::new(program).args(words).current_dir(cargo::workspace()).output();
        let output = output.map_err(|error| format!("{program}: {error}"))?;
        Ok::<_, String>(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let date = say("date", &["-u", "+%Y-%m-%d"])?;
    let commit = say("git", &["describe", "--always", "--dirty=, changed"])?;
    let kernel = say("uname", &["-r"])?;
    let version = say(wave, &["--version"])?;
    let cpus = say("nproc", &[])?;
    let about = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = about.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    let model = model.trim_start_matches([' ', '\t', ':']);
    let [low, middle, high] = spread(lines_ns);
    Ok(format!(
        "# Measured\n\n\
         Written by `cargo xtask figures` on {date}, of commit {commit} ({version}): each bench {runs} times, on {cpus} CPUs \
         ({model}, Linux {kernel}).\n\
         A bare cache line took {} ns one way between the two CPUs ({} to {} over the runs): on our machines, less than \
         about 60 ns means that they share a cache.\n\n\
         A figure is the median of the runs, with its range. `wave bench NAME --help` says what each is; \
         [figures.md](figures.md) has what they are compared with, and what else was measured.\n",
        shown(middle),
        shown(low),
        shown(high)
    ))
}

fn table(name: &str, figures: &[Figure], runs: &[Value]) -> Result<String, String> {
    let mut text = format!("\n## `wave bench {name}`\n\n");
    if let Some(peer) = runs[0]["peer"].as_str() {
        let _ = writeln!(text, "Peer: {peer}.\n");
    }
    text += "| figure | median | range |\n| --- | --- | --- |\n";
    for Figure(what, key) in figures {
        let values: Option<Vec<f64>> = runs.iter().map(|run| number(run, key)).collect();
        let values = values.ok_or_else(|| format!("wave bench {name} has no {key}"))?;
        let [low, middle, high] = spread(&values);
        let _ =
            writeln!(text, "| {what} | {} | {} to {} |", shown(middle), shown(low), shown(high));
    }
    Ok(text)
}

/// Lowest, median and highest value; NaN if there are none.
fn spread(values: &[f64]) -> [f64; 3] {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
    [at(0), at(sorted.len() / 2), at(sorted.len().saturating_sub(1))]
}

/// A number with two to four significant digits.
fn shown(value: f64) -> String {
    match value.abs() {
        1e6.. => format!("{:.1} M", value / 1e6),
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        0.1.. => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

fn number(object: &Value, key: &str) -> Option<f64> {
    let found = key.split('.').try_fold(object, |value, key| value.get(key))?;
    // A ratio is an object: its median, and the ends of its interval.
    found.get("median").unwrap_or(found).as_f64()
}

fn json_of(program: &str, words: &[&str]) -> Result<Value, String> {
    let mut command = Command::new(program);
    let output = command.args(words).stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{program} {} failed ({})", words.join(" "), output.status));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("{program}: {error}"))
}

#[cfg(test)]
mod unit_tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_table_has_the_median_and_the_range_of_the_runs() {
        let runs = [3.0, 1.0, 2.5].map(|ratio| json!({ "peer": "rtrb", "of": { "ratio": ratio } }));
        let text = table("queue", &[Figure("one way", "of.ratio")], &runs).unwrap();
        assert!(text.contains("Peer: rtrb."), "{text}");
        assert!(text.ends_with("| one way | 2.50 | 1.00 to 3.00 |\n"), "{text}");
        let missing = table("queue", &[Figure("one way", "ratio")], &runs).unwrap_err();
        assert_eq!(missing, "wave bench queue has no ratio");
    }

    #[test]
    fn numbers_are_short() {
        let texts = [36_123_456.0, 268.4, 42.31, 0.671, 0.0128].map(shown);
        assert_eq!(texts, ["36.1 M", "268", "42.3", "0.67", "0.0128"]);
    }
}

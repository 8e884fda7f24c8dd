//! `wave fuzz`: seeded histories in the simulator, and floods against a real front.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::json;
use wave_agent::Registry;
use wave_apps::machine;
use wave_fuzz::tcp::{self, DatapathKind, Planted};
use wave_fuzz::udp::{self, Found, Plan};
use wave_lab::fuzz::FuzzArgs;
use wave_report::number::short;
use wave_terminal::{Failure, Table, counted, out};

/// Seeded histories, or the fuzzing of a front or of TCP.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct FuzzCommand {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    histories: FuzzArgs,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Flood a UDP front with valid, mutated and random datagrams, beside a well-behaved client.
    Udp(UdpArgs),
    /// Run seeded histories of two TCP stacks over an adversarial wire, and check the rules that every history keeps.
    Tcp(TcpArgs),
}

#[derive(Args, Debug)]
#[command(
    after_help = "Each history runs in virtual time: up to four connections between two stacks, over a wire that loses, repeats, reorders,
damages and truncates frames, and delivers nothing for seconds. Copies to a host's memory complete late and in any order, hosts
stop reading, sequence numbers wrap, and old SYNs arrive again.

  violations        histories that broke a rule; failures names the rule and the seed
  rtos              retransmission timeouts
  fast_retransmits  losses noticed without a timeout
  sack_recoveries   those found by selective acknowledgements; half of the histories use them on both sides
  zero_windows      advertised windows that closed
  sequence_wraps    streams whose sequence numbers wrapped
  changes           stacks replaced while they had connections, by ones with the other data path (with --datapath laminar)
  trace_hash        hash of every frame, copy and end of a connection: a different hash means changed behaviour
  planted           faults that were planted in the code, one at a time: the seed of the first history that caught each

Planted faults: no-sequencer, no-checksum, ack-before-dma, out-of-order-fin-dropped, window-shrunk, stale-syn-taken,
rto-without-back-off, duplicate-ack-on-data.

Examples:
  wave fuzz tcp
  wave fuzz tcp --seeds 10000 --json
  wave fuzz tcp --datapath laminar
  wave fuzz tcp --seed 83 --seeds 1 --planted none
  wave fuzz tcp --seeds 100 --planted window-shrunk

Exit codes: 0 no violation, and every planted fault caught; 1 otherwise; 2 bad arguments."
)]
struct TcpArgs {
    /// Number of histories.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    seeds: u64,
    /// Seed of the first history.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(..1 << 48))]
    seed: u64,
    /// The data path. With laminar, one side has FlexTOE's in half of the histories, and in a quarter the sides change between the two.
    #[arg(long, value_name = "NAME", default_value = "flextoe")]
    datapath: DatapathKind,
    /// Plant this fault in every history, or `none`. Without it, each fault is planted in histories beside the others.
    #[arg(long, value_name = "NAME", value_parser = planted)]
    planted: Option<Plants>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Show no progress.
    #[arg(long, short)]
    quiet: bool,
}

/// A planted fault, or none.
#[derive(Clone, Copy, Debug)]
struct Plants(Option<Planted>);

fn planted(name: &str) -> Result<Plants, String> {
    let names = || Planted::ALL.map(Planted::name).join(", ");
    match name {
        "none" => Ok(Plants(None)),
        name => match Planted::by_name(name) {
            Some(fault) => Ok(Plants(Some(fault))),
            None => Err(format!("no such fault; give none or one of {}", names())),
        },
    }
}

#[derive(Args, Debug)]
#[command(
    after_help = "Starts a host with one worker and an agent with a front, on one CPU. A client on another CPU sends
1,000 echoes per second, in turns of one second: alone, beside the flood, and beside a flood to a socket that no program reads.
The flood is a quarter valid requests, half valid requests changed in up to four places, and a quarter random bytes.

  crashes           number of times that the agent ended on its own
  rss_growth_bytes  largest growth of its resident memory; rss_growth_bytes_max is the bound
  good_failed       requests of the client without a correct reply
  good_p99_ratio    the client's p99 beside the flood divided by its p99 beside the flood to the other socket, median over rounds.
                    Sending a flood takes time of the client's CPU in both, so the ratio shows the front's part.
                    good_p99_ratio_vs_alone divides by its p99 alone

Examples:
  wave fuzz udp
  wave fuzz udp --datagrams 10000000 --json
  wave fuzz udp --seed 7 --rate 100000

Exit codes: 0 no crash, no failed request, and memory within its bound; 1 otherwise; 2 bad arguments; 3 this machine cannot run it."
)]
struct UdpArgs {
    /// Number of datagrams in the flood.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000_000))]
    datagrams: u64,
    /// Datagrams per second.
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    rate: u32,
    /// Seed of the flood: the same seed gives the same datagrams.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(..1 << 48))]
    seed: u64,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Show no progress.
    #[arg(long, short)]
    quiet: bool,
}

pub fn execute(command: &FuzzCommand) -> Result<ExitCode, Failure> {
    match &command.what {
        None => return Ok(wave_lab::fuzz::execute(&Registry::shipped(), &[], &command.histories)),
        Some(What::Udp(args)) => udp(args)?,
        Some(What::Tcp(args)) => tcp(args)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn udp(args: &UdpArgs) -> Result<(), Failure> {
    let UdpArgs { datagrams, seed, .. } = *args;
    let plan = Plan { datagrams, per_second: args.rate.into(), seed };
    let found = udp::run(&plan, args.quiet || args.json)?;
    match args.json {
        true => out!("{}", json(args, &found)),
        false => out!("{}", text(&found)),
    }
    match &found.failed()[..] {
        [] => Ok(()),
        failed => {
            let rate = args.rate;
            let again =
                format!("again: wave fuzz udp --datagrams {datagrams} --rate {rate} --seed {seed}");
            Err(Failure::Check(failed.join("; ")).and(&again))
        }
    }
}

fn tcp(args: &TcpArgs) -> Result<(), Failure> {
    let fault = args.planted.and_then(|plants| plants.0);
    let plan = tcp::Plan {
        seeds: args.seeds,
        seed: args.seed,
        datapath: args.datapath,
        planted: fault,
        plants_all: args.planted.is_none(),
    };
    let found = tcp::run(&plan, args.quiet || args.json)?;
    if args.json {
        let mut value = json!(found);
        value["fuzz"] = "tcp".into();
        value["version"] = machine::version().into();
        value["seed"] = args.seed.into();
        value["datapath"] = args.datapath.name().into();
        out!("{value}");
    } else {
        out!("{}", tcp_text(&found, args.datapath));
    }
    let mut failed = Vec::new();
    let over = match args.datapath {
        DatapathKind::FlexToe => String::new(),
        other => format!(" --datapath {}", other.name()),
    };
    for tcp::Violation { seed, oracle, what } in &found.failures {
        let name = fault.map_or("none", Planted::name);
        failed.push(format!(
            "seed {seed} breaks {}: {what}\n  again: wave fuzz tcp{over} --seed {seed} --seeds 1 --planted {name}",
            json!(oracle).as_str().unwrap_or_default()
        ));
    }
    let untold = found.violations - found.failures.len() as u64;
    if untold > 0 {
        failed.push(format!("{} not shown", counted(untold, "more violation")));
    }
    for name in found.missed() {
        let (seed, seeds) = (args.seed, tcp::PLANTED_SEEDS_MAX);
        failed.push(format!(
            "no history caught {name}\n  again: wave fuzz tcp{over} --seed {seed} --seeds {seeds} --planted {name}"
        ));
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(Failure::Check(failed.join("\n"))),
    }
}

fn tcp_text(found: &tcp::Found, datapath: DatapathKind) -> String {
    let counts = &found.counts;
    let mut table = Table::new(2, ["what", "found"]);
    table.push(["data path".to_owned(), datapath.name().to_owned()]);
    for (what, count) in [
        ("histories", found.seeds),
        ("violations", found.violations),
        ("retransmission timeouts", counts.rtos),
        ("fast retransmits", counts.fast_retransmits),
        ("recoveries by selective acknowledgements", counts.sack_recoveries),
        ("windows closed to zero", counts.zero_windows),
        ("streams with wrapped sequence numbers", counts.sequence_wraps),
        ("endpoints of connections with ECN", counts.ecn_connections),
        ("data packets with a congestion mark", counts.marks),
        ("segments with ECE", counts.echoes),
        ("segments with CWR", counts.reductions),
        ("dropped SYNs with ECN requested", counts.asking_syns_dropped),
        ("stacks replaced while they had connections", counts.changes),
    ] {
        table.push([what.to_owned(), count.to_string()]);
    }
    for fault in &found.planted {
        let caught = match fault.caught {
            true => format!("caught by seed {}", fault.seed),
            false => "not caught".to_owned(),
        };
        table.push([format!("planted: {}", fault.name), caught]);
    }
    format!("{table}\ntrace hash {}", found.trace_hash)
}

fn json(args: &UdpArgs, found: &Found) -> serde_json::Value {
    let mut value = json!(found);
    value["fuzz"] = "udp".into();
    value["version"] = machine::version().into();
    value["datagrams"] = args.datagrams.into();
    value["rate"] = args.rate.into();
    value["seed"] = args.seed.into();
    value
}

fn text(found: &Found) -> String {
    let Found { sent, .. } = found;
    let p99_us = |value: &serde_json::Value| {
        let median_ns = value["p50"].as_f64().unwrap_or(f64::NAN);
        format!("{} us", short(median_ns / 1e3))
    };
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let mut table = Table::new(2, ["what", "found"]);
    let rows = [
        ("datagrams, rounds", format!("{}, {}", sent.all(), found.rounds)),
        ("valid, mutated, random", format!("{}, {}, {}", sent.valid, sent.mutated, sent.random)),
        ("refused by the kernel", sent.refused_by_the_kernel.to_string()),
        ("crashes of the agent", found.crashes.to_string()),
        (
            "growth of the agent's resident memory",
            format!(
                "{} of at most {}",
                mib(found.rss_growth_bytes),
                mib(found.rss_growth_bytes_max)
            ),
        ),
        (
            "failed requests of the well-behaved client",
            format!("{} of {}", found.good_failed, found.good_sent),
        ),
        ("its p99 alone", p99_us(&found.good_p99_alone_ns)),
        ("its p99 beside a flood to another socket", p99_us(&found.good_p99_flooded_elsewhere_ns)),
        ("its p99 beside the flood", p99_us(&found.good_p99_flooded_ns)),
        ("ratio of the last two, median over rounds", format!("{:.2}", found.good_p99_ratio)),
    ];
    for (what, found) in rows {
        table.push([what.to_owned(), found]);
    }
    let verdict = match found.failed()[..] {
        [] => "Passed: no crash, no failed request, memory within its bound",
        _ => "Failed: see below",
    };
    format!(
        "{table}\n{verdict}. The p99s do not count: with few rounds or a busy machine they are noise"
    )
}

//! `wave load grpc`: puts a load on a gRPC server.

use std::io::Write;
use std::time::{Duration, Instant};

use clap::{ArgGroup, Args};
use serde_json::json;
use wave_report::number::short;
use wave_terminal::{Failure, counted, interrupt};
use wave_workloads::grpc::load::{
    Answers, ByKind, CallSettings, Closed, Error, Generator, Open, Target,
};

use super::{lag, latencies, length, measured, rate, seconds, shown, under_way};

/// Server, rate and kinds of calls.
#[derive(Args, Debug)]
#[command(
    group = ArgGroup::new("loop").required(true).args(["rate", "closed"]),
    after_help = "Calls a server of workloads/proto/kv.proto or echo.proto, such as `wave serve kv`. With --rate the loop is
open: calls are due at random times (Poisson) and are sent on time, independent of earlier ones. Latency counts
from the due time: a server that stops for half a second delays every call of that half second. With --closed
each stream calls again once it has its reply: that measures costs, not latency.

No call is sent twice. Replies are checked. A run in which the generator itself was late is invalid: the
output says so. docs/guide/load.md

Examples:
  wave load grpc --target 127.0.0.1:50051 --rate 10000
  wave load grpc --target 127.0.0.1:50051 --rate 20000 --mix get=99.5,range=0.5 --slo get=100,range=10000
  wave load grpc --target 127.0.0.1:50051 --closed --connections 4 --streams 16 --mix echo=1 --json

Exit codes: 0 measured; 1 the generator fell behind, a reply was wrong, or no call ended with OK; 2 bad
arguments; 3 the server cannot be reached, or the CPU is not available."
)]
pub(super) struct GrpcArgs {
    /// Host and port of the server.
    #[arg(long, value_name = "ADDR")]
    target: String,
    /// Calls per second.
    #[arg(long, value_name = "N", value_parser = rate)]
    rate: Option<f64>,
    /// Keep every stream busy: a new call as soon as a reply arrives.
    #[arg(long)]
    closed: bool,
    /// Duration of the measurement, in seconds.
    #[arg(long, value_name = "N", default_value = "10", value_parser = length)]
    seconds: Duration,
    /// Duration of the warm-up before it, in seconds.
    #[arg(long, value_name = "N", default_value = "1", value_parser = seconds)]
    warm_up: Duration,
    /// Time to wait for replies after the last call, in seconds.
    #[arg(long, value_name = "N", default_value = "5", value_parser = seconds)]
    drain: Duration,
    /// Kinds of calls with their weights: get, put, range, echo.
    #[arg(long, value_name = "KIND=N,..", default_value = "get=1")]
    mix: ByKind,
    /// SLO of each kind in microseconds, sent to the server.
    #[arg(long, value_name = "KIND=US,..")]
    slo: Option<ByKind>,
    /// Deadline of each call in milliseconds, sent to the server.
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(1..=99_999_999))]
    timeout: Option<u32>,
    /// Number of TCP connections.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=4096))]
    connections: u16,
    /// Maximum number of calls in flight per connection; further calls wait.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    streams: u32,
    /// Number of keys to draw from; the server must have them.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    keys: u64,
    /// Number of key-value pairs that a range reads.
    #[arg(long, value_name = "N", default_value_t = 100)]
    range_limit: u32,
    /// Size of echoes and of PUT values, in bytes.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(..=4_000_000))]
    value_bytes: u32,
    /// Seed of times, kinds and keys: the same seed gives the same load.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// CPU of the load generator [default: any].
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
    /// Print one JSON object instead of tables.
    #[arg(long)]
    json: bool,
    /// Show no progress.
    #[arg(long, short)]
    quiet: bool,
}

enum Outcome {
    Open(Open),
    Closed(Closed),
}

pub(super) fn execute(args: &GrpcArgs) -> Result<(), Failure> {
    let outcome = load(args)?;
    shown(show(args, &outcome))?;
    judge(&outcome)
}

fn load(args: &GrpcArgs) -> Result<Outcome, Failure> {
    let target = Target {
        address: args.target.clone(),
        connections: args.connections.into(),
        streams: args.streams as usize,
    };
    let calls = CallSettings {
        mix: args.mix.clone(),
        slo_us: args.slo.clone().unwrap_or(ByKind(Vec::new())),
        timeout_ms: args.timeout,
        keys: args.keys,
        range_limit: args.range_limit,
        value_bytes: args.value_bytes as usize,
    };
    let (rate, times) = (args.rate, [args.warm_up, args.seconds, args.drain]);
    let seed = args.seed;
    let generate = move || -> Result<Outcome, Failure> {
        let mut generator = Generator::connect(&target, &calls, seed).map_err(failed)?;
        let [warm_up, seconds, drain] = times;
        match rate {
            Some(rate) => generator.open(rate, warm_up, seconds, drain).map(Outcome::Open),
            None => {
                generator.closed(warm_up, drain).map_err(failed)?;
                generator.closed(seconds, drain).map(Outcome::Closed)
            }
        }
        .map_err(failed)
    };
    let what = format!("{} calls {}", args.mix, describe(args));
    let (began, whole) = (Instant::now(), args.warm_up + args.seconds);
    interrupt::say(move || {
        let (ran, whole) = (began.elapsed().as_secs_f64(), whole.as_secs_f64());
        format!(
            "wave load grpc: interrupted after {ran:.1} s of {whole:.1} s; nothing was measured"
        )
    })?;
    under_way(&what, whole, args.quiet || args.json, args.cpu, generate)
}

fn describe(args: &GrpcArgs) -> String {
    let how = match args.rate {
        Some(rate) => format!("{}/s, open loop", short(rate)),
        None => format!("closed loop of {}", counted(args.streams, "stream")),
    };
    let connections = counted(args.connections, "connection");
    format!("{} by {connections}, {how}, {} s", args.target, args.seconds.as_secs_f64())
}

fn failed(error: Error) -> Failure {
    match error {
        Error::Target { .. } | Error::Load(_) => Failure::Scenario(error.to_string()),
        Error::Connect { .. } | Error::Runtime(_) => Failure::cannot(error),
    }
}

/// Fails if the outcome is not a measurement.
fn judge(outcome: &Outcome) -> Result<(), Failure> {
    let (answers, done) = match outcome {
        Outcome::Open(open) => (&open.answers, open.point.done),
        Outcome::Closed(closed) => (&closed.answers, closed.done),
    };
    if answers.wrong > 0 {
        return Err(Failure::Check(format!("{} replies were wrong", answers.wrong)));
    }
    if done == 0 {
        return Err(Failure::Check("no call ended with OK".to_owned()));
    }
    match outcome {
        Outcome::Open(Open { point, .. }) => measured(&point.generator),
        Outcome::Closed(_) => Ok(()),
    }
}

fn show(args: &GrpcArgs, outcome: &Outcome) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    if args.json {
        let mut value = match outcome {
            Outcome::Open(open) => json!({ "loop": "open", "result": open }),
            Outcome::Closed(closed) => json!({ "loop": "closed", "result": closed }),
        };
        value["load"] = "grpc".into();
        value["version"] = wave_apps::machine::version().into();
        value["target"] = args.target.clone().into();
        value["mix"] = args.mix.to_string().into();
        value["connections"] = args.connections.into();
        value["streams"] = args.streams.into();
        value["seed"] = args.seed.into();
        return writeln!(out, "{value}");
    }
    writeln!(out, "{}\n", describe(args))?;
    match outcome {
        Outcome::Open(Open { point, answers }) => {
            writeln!(out, "{}\n", latencies(&point.classes))?;
            let achieved = short(point.achieved_per_second);
            writeln!(
                out,
                "Sent {}, {achieved}/s ended with OK; {}",
                point.sent,
                ends(answers, point.refused)
            )?;
            writeln!(out, "{}", lag("a call", &point.generator))?;
        }
        Outcome::Closed(closed) => {
            writeln!(out, "{}\n", latencies(&closed.classes))?;
            let achieved = short(closed.achieved_per_second);
            writeln!(
                out,
                "Sent {}, {achieved}/s ended with OK; {}",
                closed.sent,
                ends(&closed.answers, 0)
            )?;
            writeln!(
                out,
                "Latency counts from when a call was sent: it excludes the time that calls waited to be sent."
            )?;
        }
    }
    Ok(())
}

fn ends(answers: &Answers, refused: u64) -> String {
    let named =
        answers.statuses.iter().chain(&answers.failures).map(|(name, count)| (&**name, *count));
    let others =
        [("unanswered", answers.unanswered), ("never sent", refused), ("wrong", answers.wrong)];
    let all = named.chain(others.into_iter().filter(|(_, count)| *count > 0));
    let all: Vec<String> = all.map(|(name, count)| format!("{name} {count}")).collect();
    all.join(", ")
}

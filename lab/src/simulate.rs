//! `simulate`: policies over a range of loads, in virtual time.

use std::num::NonZeroU16;
use std::process::ExitCode;
use std::str::FromStr;

use clap::Args;
use serde_json::{Value, json};
use wave_agent::Registry;
use wave_core::clock::Nanos;
use wave_sim::agent::PolicyText;
use wave_sim::experiment::{Outcome, serve};
use wave_sim::paper::{Rung, gets_and_ranges, overhead, wave};
use wave_sim::requests::{Class, Load, Service};

use crate::terminal::{note, out};

/// Which policies, and which loads.
#[derive(Args, Debug)]
#[command(
    after_help = "The machine is the paper's: host cores, and an agent behind PCIe on a SmartNIC. Requests come in an open loop, each
served by one of 3,000 workers, which has its class. The real queues, host protocol, agent loop and policy run, in virtual time: the same
arguments give the same result on every machine.

Latencies begin when a request is due. `not done` counts requests that were not done 20 ms after the last arrival; their
classes are not recorded, so each counts as a slowest request of every class. A quantile is left out if it falls on one of
them, or if fewer than ten requests lie beyond it. What the paper's RocksDB takes for a request beside its service is added to each.

Examples:
  wave simulate --policy fifo --load 30000
  wave simulate --policy fifo --policy shinjuku:slice_us=50 --load 10000,30000,50000
  wave simulate --policy fifo --load 80000 --class short=99:10 --class long=1:500 --json

Exit codes: 0 simulated; 1 the agent was turned out; 2 bad arguments."
)]
pub struct SimulateArgs {
    /// A policy with its settings, as NAME:KEY=VALUE,...; once for each.
    #[arg(long = "policy", value_name = "POLICY", required = true)]
    policies: Vec<String>,
    /// Requests a second.
    #[arg(long = "load", value_name = "N,...", required = true, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    loads: Vec<u32>,
    /// Host cores.
    #[arg(long, value_name = "N", default_value = "4", value_parser = cores)]
    cores: NonZeroU16,
    /// A class of requests, by its share of them and its service time; once for each, class 0 first
    /// [default: GET=99.5:10 RANGE=0.5:10000].
    #[arg(long = "class", value_name = "NAME=WEIGHT:MICROSECONDS")]
    classes: Vec<ClassArg>,
    /// Virtual milliseconds that are measured, after 60 of warm-up.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    measure_ms: u64,
    /// Decides when requests come, and of which class.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Classes that policies tell apart.
const CLASSES_MAX: usize = wave_core::settings::CLASSES_MAX;

fn cores(text: &str) -> Result<NonZeroU16, String> {
    let cores = text.parse::<NonZeroU16>().ok().filter(|cores| cores.get() <= 240);
    cores.ok_or_else(|| "1 to 240 cores".to_owned())
}

#[derive(Clone, Debug)]
struct ClassArg(Class);

impl FromStr for ClassArg {
    type Err = String;

    fn from_str(text: &str) -> Result<ClassArg, String> {
        let parse = || {
            let (name, rest) = text.split_once('=')?;
            let (weight, us) = rest.split_once(':')?;
            let number = |text: &str, max: f64| {
                text.parse().ok().filter(|number: &f64| *number > 0.0 && *number <= max)
            };
            let ns = (number(us, 1e6)? * 1e3).round() as u64;
            let service = Service::Fixed(Nanos(ns.max(1)));
            Some(ClassArg(Class { name: name.to_owned(), weight: number(weight, 1e9)?, service }))
        };
        parse().ok_or_else(|| "NAME=WEIGHT:MICROSECONDS, as in GET=99.5:10".to_owned())
    }
}

/// One policy under one load.
struct Point {
    policy: String,
    load: u32,
    outcome: Outcome,
}

/// Simulates them.
pub fn execute(registry: &Registry, args: &SimulateArgs) -> ExitCode {
    match simulate(registry, args) {
        Ok(points) => {
            if args.json {
                out!("{}", to_json(args, &points));
            }
            let lost = points.iter().find(|point| point.outcome.counters.lost_agents > 0);
            if let Some(Point { policy, load, .. }) = lost {
                note!(
                    "{}: the agent was turned out, under {policy} at {load}/s",
                    crate::terminal::program()
                );
                return ExitCode::FAILURE;
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            note!("{} simulate: {error}", crate::terminal::program());
            ExitCode::from(2)
        }
    }
}

fn load_of(args: &SimulateArgs, load: u32, overhead: Nanos) -> Load {
    let mut load = gets_and_ranges(f64::from(load), overhead);
    if !args.classes.is_empty() {
        load.classes = args.classes.iter().map(|class| class.0.clone()).collect();
    }
    load.measure = Nanos::from_millis(args.measure_ms);
    load
}

fn simulate(registry: &Registry, args: &SimulateArgs) -> Result<Vec<Point>, String> {
    if args.classes.len() > CLASSES_MAX {
        return Err(format!("{} classes; policies tell {CLASSES_MAX} apart", args.classes.len()));
    }
    let policies: Vec<PolicyText> = args
        .policies
        .iter()
        .map(|text| crate::scheduling_policy(registry, text))
        .collect::<Result<_, _>>()?;
    let shown = !args.json;
    let width = args.policies.iter().map(String::len).max().unwrap_or(0);
    if shown {
        let head =
            ["load/s", "served/s", "not done", "class", "done", "p50 us", "p99 us", "p99.9 us"];
        let [load, served, not_done, class, done, p50, p99, p999] = head;
        out!(
            "{:width$} {load:>9} {served:>9} {not_done:>9}  {class:10} {done:>8} {p50:>10} {p99:>10} {p999:>10}",
            "policy"
        );
    }
    let mut points = Vec::new();
    for policy in &policies {
        let mut setup = wave(args.cores.get(), Rung::Prestaged, "fifo");
        setup.agent.policy = policy.clone();
        setup.seed = args.seed;
        let overhead = overhead(&setup);
        for &load in &args.loads {
            let outcome = serve(&setup, &load_of(args, load, overhead));
            let outcome = outcome.map_err(|error| error.to_string())?;
            let point = Point { policy: policy.text.clone(), load, outcome };
            if shown {
                lines(args, &point, width).iter().for_each(|line| out!("{line}"));
            }
            points.push(point);
        }
    }
    Ok(points)
}

/// Requests beyond a quantile, at least: with fewer it is chance.
const BEYOND_MIN: u64 = 10;

type OfClass = (String, u64, [Option<f64>; 3]);

/// What came of each class: its name, requests done, and its latencies at three quantiles, in microseconds. A quantile is left
/// out if fewer than [`BEYOND_MIN`] requests lie beyond it.
fn of_classes<'a>(args: &'a SimulateArgs, point: &'a Point) -> impl Iterator<Item = OfClass> + 'a {
    let classes = load_of(args, point.load, Nanos(0)).classes;
    classes.into_iter().zip(&point.outcome.served.latencies).map(|(class, latencies)| {
        let at = |quantile: f64| {
            let (done, all) = (latencies.len(), latencies.len() + not_done(point));
            let rank = (quantile * all as f64).ceil() as u64;
            let is_known = rank <= done && all - rank >= BEYOND_MIN;
            is_known.then(|| latencies.value_at_quantile(rank as f64 / done as f64) as f64 / 1e3)
        };
        (class.name, latencies.len(), [at(0.5), at(0.99), at(0.999)])
    })
}

fn served_per_second(args: &SimulateArgs, point: &Point) -> f64 {
    point.outcome.served.finished_within as f64 * 1e3 / args.measure_ms as f64
}

fn not_done(point: &Point) -> u64 {
    point.outcome.served.sent - point.outcome.served.done
}

fn lines(args: &SimulateArgs, point: &Point, width: usize) -> Vec<String> {
    let line = |(at, (name, done, quantiles)): (usize, OfClass)| {
        let first = match at {
            0 => format!(
                "{:width$} {:>9} {:>9.0} {:>9}",
                point.policy,
                point.load,
                served_per_second(args, point),
                not_done(point)
            ),
            _ => " ".repeat(width + 30),
        };
        let [p50, p99, p999] = quantiles.map(|us| us.map_or("-".into(), |us| format!("{us:.1}")));
        format!("{first}  {name:10} {done:>8} {p50:>10} {p99:>10} {p999:>10}")
    };
    of_classes(args, point).enumerate().map(line).collect()
}

fn to_json(args: &SimulateArgs, points: &[Point]) -> Value {
    let points = points.iter().map(|point| {
        let classes = of_classes(args, point).map(|(name, done, [p50, p99, p999])| {
            json!({ "class": name, "done": done, "p50_us": p50, "p99_us": p99, "p999_us": p999 })
        });
        json!({
            "policy": point.policy,
            "offered_per_second": point.load,
            "served_per_second": served_per_second(args, point),
            "sent": point.outcome.served.sent,
            "not_done": not_done(point),
            "classes": classes.collect::<Vec<_>>(),
            "agent_busy_share": point.outcome.agent_busy(),
            "agents_turned_out": point.outcome.counters.lost_agents,
            "trace_hash": format!("{:016x}", point.outcome.trace_hash),
        })
    });
    json!({
        "host": "sim",
        "cores": args.cores,
        "seed": args.seed,
        "points": points.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(policies: &[&str]) -> SimulateArgs {
        SimulateArgs {
            policies: policies.iter().map(ToString::to_string).collect(),
            loads: vec![20_000],
            cores: NonZeroU16::new(2).unwrap(),
            classes: vec!["a=3:10".parse().unwrap(), "b=1:40".parse().unwrap()],
            measure_ms: 10,
            seed: 1,
            json: true,
        }
    }

    #[test]
    fn each_policy_has_a_point_for_each_load_and_classes_of_its_own() {
        let args = args(&["fifo", "shinjuku:slice_us=20"]);
        let points = simulate(&Registry::shipped(), &args).unwrap();
        let json = to_json(&args, &points);
        assert_eq!(json["points"].as_array().unwrap().len(), 2);
        assert_eq!(json["points"][1]["policy"], "shinjuku:slice_us=20");
        // Each point is of its own policy.
        assert_ne!(json["points"][0]["trace_hash"], json["points"][1]["trace_hash"]);
        let classes = json["points"][0]["classes"].as_array().unwrap();
        assert_eq!([&classes[0]["class"], &classes[1]["class"]], ["a", "b"]);
        assert!(classes[0]["p50_us"].as_f64().unwrap() >= 10.0);
        assert!(classes[1]["p50_us"].as_f64().unwrap() >= 40.0);
        assert!(classes[0]["done"].as_u64() > classes[1]["done"].as_u64());
        let again = to_json(&args, &simulate(&Registry::shipped(), &args).unwrap());
        assert_eq!(json, again);
    }

    #[test]
    fn a_policy_that_schedules_no_threads_is_refused() {
        let refused = |policy| simulate(&Registry::shipped(), &args(&[policy])).err().unwrap();
        assert_eq!(refused("sol"), "`sol` does not schedule threads");
        assert!(refused("nosuch").contains("there is no policy `nosuch`"));
        assert!(refused("shinjuku:slice_us=x").contains("slice_us=N"));
    }

    #[test]
    fn a_class_is_a_name_a_share_and_a_time() {
        let class = "GET=99.5:10".parse::<ClassArg>().unwrap().0;
        assert_eq!((class.name.as_str(), class.weight), ("GET", 99.5));
        assert_eq!(class.service, Service::Fixed(Nanos(10_000)));
        for wrong in ["GET", "GET=1", "GET=0:10", "GET=1:-3", "GET=1:1e9", "GET=x:1"] {
            assert!(wrong.parse::<ClassArg>().is_err(), "{wrong}");
        }
    }
}

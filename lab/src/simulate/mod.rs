//! `simulate`: policies over a range of loads, in virtual time.

mod modelled;

use std::num::NonZeroU16;
use std::process::ExitCode;
use std::str::FromStr;

use clap::Args;
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use wave_agent::Registry;
use wave_agent::panics::caught;
use wave_core::clock::Nanos;
use wave_core::layout::CORES_MAX;
use wave_core::settings::CLASSES_MAX;
use wave_sim::enclave::Setup;
use wave_sim::experiment::{Outcome, serve};
use wave_sim::paper::{Rung, gets_and_ranges, overhead, wave};
use wave_sim::requests::{Class, Load, Service};

use wave_terminal::{Failure, note, out, program};

/// Maximum number of points of one run: a policy under a load is a point.
const POINTS_MAX: usize = 1_000;
/// Maximum number of requests of one point, warm-up included. If a policy serves none of them, all are kept in memory.
const REQUESTS_MAX: u64 = 20_000_000;

/// Arguments of `simulate`.
#[derive(Args, Debug)]
#[command(
    after_help = "The simulated machine is the paper's: host cores, and an agent behind PCIe on a SmartNIC. Requests arrive in an open
loop; 3,000 workers serve them, and a worker has the class of its request. The real queues, host protocol, agent loop and
policy run in virtual time: the same arguments give the same result on every machine.

A latency begins when its request is due. `not done` counts requests that were not done 20 ms after the last arrival. Their
classes are not recorded, so each counts as a slowest request of every class. A quantile is omitted if it falls on one of
them, or if fewer than ten requests lie beyond it. The overhead of the paper's RocksDB per request, beside the service time, is
added to each.

A subsystem with a modelled host is simulated over the same link. --load is then the rate of events that its host generates, such
as requests, as long as there are free ids: `arrived/s` is the actual rate. Latency is the time from a subject's arrival until a
decision for it takes effect. Subjects that still wait at the end count as the longest.

Examples:
  wave simulate --policy fifo --load 30000
  wave simulate --policy fifo --policy shinjuku:slice_us=50 --load 10000,30000,50000
  wave simulate --policy fifo --load 80000 --class short=99:10 --class long=1:500 --json

Exit codes: 0 simulated; 1 an agent was turned out, or a policy panicked (RUST_BACKTRACE=full shows where); 2 bad arguments."
)]
pub struct SimulateArgs {
    /// The subsystem to simulate: `sched`, which runs threads, or one with a modelled host.
    #[arg(long, value_name = "NAME", default_value = wave_sched::SUBSYSTEM.name)]
    subsystem: String,
    /// A policy with its settings, as NAME:KEY=VALUE,...; repeat the option for more policies.
    #[arg(long = "policy", value_name = "POLICY", required = true)]
    policies: Vec<String>,
    /// Loads in requests per second; each policy runs under each load.
    #[arg(long = "load", value_name = "N,...", required = true, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    loads: Vec<u32>,
    /// Number of host cores.
    #[arg(long, value_name = "N", default_value = "4", value_parser = cores)]
    cores: NonZeroU16,
    /// A class of requests, with its weight beside the other classes and its service time; repeat the option for more classes,
    /// class 0 first [default: GET=99.5:10 RANGE=0.5:10000].
    #[arg(long = "class", value_name = "NAME=WEIGHT:MICROSECONDS")]
    classes: Vec<ClassArg>,
    /// Virtual milliseconds to measure, after 60 of warm-up.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    measure_ms: u64,
    /// Seed of all randomness, such as arrivals and classes of requests.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

fn cores(text: &str) -> Result<NonZeroU16, String> {
    let fits = |cores: &NonZeroU16| usize::from(cores.get()) <= CORES_MAX;
    text.parse().ok().filter(fits).ok_or_else(|| format!("1 to {CORES_MAX} cores"))
}

#[derive(Clone, Debug)]
struct ClassArg(Class);

impl FromStr for ClassArg {
    type Err = String;

    fn from_str(text: &str) -> Result<ClassArg, String> {
        let parse = || {
            let (name, rest) = text.split_once('=').filter(|(name, _)| !name.trim().is_empty())?;
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
    served_per_second: f64,
    sent: u64,
    not_done: u64,
    classes: Vec<OfClass>,
    agent_busy: f64,
    agents_turned_out: u64,
    trace_hash: u64,
}

/// The requests of one class at one point.
struct OfClass {
    name: String,
    done: u64,
    /// p50, p99 and p99.9, in microseconds.
    latencies_us: [Option<f64>; 3],
}

/// The parameters that all points share.
struct Plan {
    setups: Vec<Setup>,
    /// The load at one request per second, to be scaled.
    load: Load,
}

/// Runs every policy under every load and returns the exit code.
pub fn execute(registry: &Registry, args: &SimulateArgs) -> ExitCode {
    match crate::simulated(registry, &args.subsystem) {
        Ok(subsystem) if !crate::is_sched(subsystem) => {
            return modelled::execute(registry, subsystem, args);
        }
        Ok(_) => {}
        Err(error) => {
            note!("{} simulate: {error}", program());
            return ExitCode::from(2);
        }
    }
    let planned = caught(|| plan(registry, args)).and_then(|planned| planned);
    let points = planned.map_err(Failure::Scenario).and_then(|plan| {
        let points = simulate(&plan, args)?;
        if args.json {
            out!("{}", to_json(args, &plan.load, &points));
        }
        Ok(points)
    });
    match points {
        Ok(points) => match points.iter().find(|point| point.agents_turned_out > 0) {
            Some(Point { policy, load, .. }) => {
                note!("{}: an agent was turned out, under {policy} at {load}/s", program());
                ExitCode::FAILURE
            }
            None => ExitCode::SUCCESS,
        },
        Err(failure) => {
            note!("{} simulate: {failure}", program());
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Simulates a point. A panic is the policy's, unless it is a bug of ours: the place says which.
fn point<T, E: ToString>(
    setup: &Setup,
    per_second: u32,
    run: impl FnOnce() -> Result<T, E>,
) -> Result<T, Failure> {
    let done = caught(run).map_err(|panic| {
        let policy = setup.agent.policy.text();
        Failure::Check(format!("policy `{policy}` at {per_second}/s: {panic}"))
    })?;
    done.map_err(|error| Failure::Scenario(error.to_string()))
}

/// Checks all arguments before any output.
fn plan(registry: &Registry, args: &SimulateArgs) -> Result<Plan, String> {
    let classes = &args.classes;
    if classes.len() > CLASSES_MAX {
        return Err(format!(
            "{} classes; policies distinguish at most {CLASSES_MAX}",
            classes.len()
        ));
    }
    let names = || classes.iter().map(|class| &class.0.name);
    if let Some((_, name)) =
        names().enumerate().find(|(at, name)| names().take(*at).any(|other| other == *name))
    {
        return Err(format!("two classes are called `{name}`"));
    }
    let mut setups = Vec::new();
    for text in &args.policies {
        let mut setup = wave(args.cores.get(), Rung::Prestaged, "fifo");
        setup.agent.policy = crate::policy_of(registry, &wave_sched::SUBSYSTEM, text)?;
        setup.seed = args.seed;
        setup.check().map_err(|error| error.to_string())?;
        setups.push(setup);
    }
    // A property of the machine, and so the same for every policy.
    let mut load = gets_and_ranges(1.0, overhead(&wave(args.cores.get(), Rung::Prestaged, "fifo")));
    if !classes.is_empty() {
        load.classes = classes.iter().map(|class| class.0.clone()).collect();
    }
    load.measure = Nanos::from_millis(args.measure_ms);
    check_limits(args, load.end())?;
    Ok(Plan { setups, load })
}

/// Refuses runs beyond the limits. `span` is the virtual time of a point, warm-up included.
fn check_limits(args: &SimulateArgs, span: Nanos) -> Result<(), String> {
    let points = args.policies.len() * args.loads.len();
    if points > POINTS_MAX {
        return Err(format!(
            "{points} combinations of policies and loads; the limit is {POINTS_MAX}"
        ));
    }
    let span_ms = span.0 / 1_000_000;
    for per_second in &args.loads {
        let requests = u64::from(*per_second) * span_ms / 1_000;
        if requests > REQUESTS_MAX {
            return Err(format!(
                "--load {per_second} gives {requests} requests in {span_ms} ms, warm-up included; the limit is {REQUESTS_MAX}: \
                 lower --load or --measure-ms"
            ));
        }
    }
    Ok(())
}

/// Simulates every point, and prints a table of them unless `--json` is given.
fn simulate(plan: &Plan, args: &SimulateArgs) -> Result<Vec<Point>, Failure> {
    let width = args.policies.iter().map(String::len).max().unwrap_or(0);
    if !args.json {
        let head =
            ["load/s", "served/s", "not done", "class", "done", "p50 us", "p99 us", "p99.9 us"];
        let [load, served, not_done, class, done, p50, p99, p999] = head;
        out!(
            "{:width$} {load:>9} {served:>9} {not_done:>9}  {class:10} {done:>8} {p50:>10} {p99:>10} {p999:>10}",
            "policy"
        );
    }
    let mut points = Vec::new();
    for setup in &plan.setups {
        for &per_second in &args.loads {
            let load = Load { per_second: f64::from(per_second), ..plan.load.clone() };
            let outcome = point(setup, per_second, || serve(setup, &load))?;
            let point = Point::new(setup, &load, per_second, &outcome);
            if !args.json {
                lines(&point, width).iter().for_each(|line| out!("{line}"));
            }
            points.push(point);
        }
    }
    Ok(points)
}

/// Minimum number of requests beyond a quantile: with fewer it is chance.
const BEYOND_MIN: u64 = 10;

/// p50, p99 and p99.9 in microseconds, of times in nanoseconds. Requests that are not done count as the longest. A quantile is None
/// if it falls on one of them, or if fewer than [`BEYOND_MIN`] requests lie beyond it.
fn quantiles_us(done: &Histogram<u64>, not_done: u64) -> [Option<f64>; 3] {
    [0.5, 0.99, 0.999].map(|quantile: f64| {
        let all = done.len() + not_done;
        let rank = (quantile * all as f64).ceil() as u64;
        let is_known = rank <= done.len() && all - rank >= BEYOND_MIN;
        is_known.then(|| done.value_at_quantile(rank as f64 / done.len() as f64) as f64 / 1e3)
    })
}

impl Point {
    fn new(setup: &Setup, load: &Load, per_second: u32, outcome: &Outcome) -> Point {
        let served = &outcome.served;
        let not_done = served.sent - served.done;
        let classes = load.classes.iter().zip(&served.latencies).map(|(class, latencies)| {
            let latencies_us = quantiles_us(latencies, not_done);
            OfClass { name: class.name.clone(), done: latencies.len(), latencies_us }
        });
        Point {
            policy: setup.agent.policy.text().to_owned(),
            load: per_second,
            served_per_second: served.finished_within as f64 * 1e9 / load.measure.0 as f64,
            sent: served.sent,
            not_done,
            classes: classes.collect(),
            agent_busy: outcome.agent_busy(),
            agents_turned_out: outcome.counters.lost_agents,
            trace_hash: outcome.trace_hash,
        }
    }
}

/// The table's lines for one point, one per class.
fn lines(point: &Point, width: usize) -> Vec<String> {
    let line = |(at, class): (usize, &OfClass)| {
        let Point { policy, load, served_per_second, not_done, .. } = point;
        let first = match at {
            0 => format!("{policy:width$} {load:>9} {served_per_second:>9.0} {not_done:>9}"),
            _ => " ".repeat(width + 30),
        };
        let OfClass { name, done, latencies_us } = class;
        let [p50, p99, p999] =
            latencies_us.map(|us| us.map_or("-".into(), |us| format!("{us:.1}")));
        format!("{first}  {name:10} {done:>8} {p50:>10} {p99:>10} {p999:>10}")
    };
    point.classes.iter().enumerate().map(line).collect()
}

fn to_json(args: &SimulateArgs, load: &Load, points: &[Point]) -> Value {
    let ms = |time: Nanos| time.0 as f64 / 1e6;
    let us = |time: Nanos| time.0 as f64 / 1e3;
    let classes = load.classes.iter().map(|class| {
        json!({ "class": class.name, "weight": class.weight, "service_us": us(class.service.mean()) })
    });
    let points = points.iter().map(|point| {
        let classes = point.classes.iter().map(|OfClass { name, done, latencies_us }| {
            let [p50, p99, p999] = latencies_us;
            json!({ "class": name, "done": done, "p50_us": p50, "p99_us": p99, "p999_us": p999 })
        });
        json!({
            "policy": point.policy,
            "offered_per_second": point.load,
            "served_per_second": point.served_per_second,
            "sent": point.sent,
            "not_done": point.not_done,
            "classes": classes.collect::<Vec<_>>(),
            "agent_busy_share": point.agent_busy,
            "agents_turned_out": point.agents_turned_out,
            "trace_hash": format!("{:016x}", point.trace_hash),
        })
    });
    json!({
        "host": "sim",
        "subsystem": args.subsystem,
        "cores": args.cores,
        "seed": args.seed,
        "classes": classes.collect::<Vec<_>>(),
        "request_overhead_us": us(load.overhead),
        "warmup_ms": ms(load.warmup),
        "measure_ms": ms(load.measure),
        "points": points.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use wave_core::policy::Policy;
    use wave_core::settings::{Known, Policies, SettingError};
    use wave_sched::scheduler::{Run, Scheduled, Scheduler, Thread};

    use super::*;

    fn args(policies: &[&str]) -> SimulateArgs {
        SimulateArgs {
            policies: policies.iter().map(ToString::to_string).collect(),
            loads: vec![20_000],
            cores: NonZeroU16::new(2).unwrap(),
            classes: vec!["a=3:10".parse().unwrap(), "b=1:40".parse().unwrap()],
            subsystem: "sched".to_owned(),
            measure_ms: 10,
            seed: 1,
            json: true,
        }
    }

    fn json(args: &SimulateArgs) -> Value {
        let plan = plan(&Registry::shipped(), args).unwrap();
        to_json(args, &plan.load, &simulate(&plan, args).unwrap())
    }

    fn refused(registry: &Registry, args: &SimulateArgs) -> String {
        plan(registry, args).err().unwrap()
    }

    #[test]
    fn each_policy_has_a_point_per_load_with_every_class() {
        let args = args(&["fifo", "shinjuku:slice_us=20"]);
        let result = json(&args);
        assert_eq!(result["points"].as_array().unwrap().len(), 2);
        assert_eq!(result["points"][1]["policy"], "shinjuku:slice_us=20");
        // The two points have different policies.
        assert_ne!(result["points"][0]["trace_hash"], result["points"][1]["trace_hash"]);
        let classes = result["points"][0]["classes"].as_array().unwrap();
        assert_eq!([&classes[0]["class"], &classes[1]["class"]], ["a", "b"]);
        assert!(classes[0]["p50_us"].as_f64().unwrap() >= 10.0);
        assert!(classes[1]["p50_us"].as_f64().unwrap() >= 40.0);
        assert!(classes[0]["done"].as_u64() > classes[1]["done"].as_u64());
        assert_eq!(result, json(&args));
    }

    #[test]
    fn json_describes_the_simulation() {
        let result = json(&args(&["fifo"]));
        let classes = json!([
            { "class": "a", "weight": 3.0, "service_us": 10.0 },
            { "class": "b", "weight": 1.0, "service_us": 40.0 },
        ]);
        assert_eq!(result["classes"], classes);
        assert_eq!((&result["warmup_ms"], &result["measure_ms"]), (&json!(60.0), &json!(10.0)));
        assert!(result["request_overhead_us"].as_f64().unwrap() > 0.0);
    }

    #[test]
    fn a_policy_that_schedules_no_threads_is_refused() {
        let refused = |policy| refused(&Registry::shipped(), &args(&[policy]));
        assert!(refused("sol").contains("of the subsystem `memory`, not of `sched`"));
        assert!(refused("jbsq").contains("of the subsystem `rpc`"));
        assert!(refused("nosuch").contains("there is no policy `nosuch`"));
        assert!(refused("shinjuku:slice_us=x").contains("slice_us=N"));
    }

    /// A first-in, first-out policy.
    #[derive(Default)]
    struct Line(VecDeque<Thread>);

    impl Scheduler for Line {
        fn ready(&mut self, thread: Thread) {
            self.0.push_back(thread);
        }

        fn pick(&mut self, _core: u16) -> Option<Run> {
            self.0.pop_front().map(Run::to_completion)
        }
    }

    /// A policy that accepts only enclaves of two cores.
    static PAIR: Policies<dyn Policy + Send> =
        Policies(&[(Known { name: "pair", about: "", settings: &[] }, |config, _| {
            match config.cores {
                2 => Ok(Box::new(Scheduled::of(config, Line::default()))),
                cores => Err(SettingError::Beyond {
                    key: "cores",
                    number: cores.into(),
                    most: 2,
                    of: "places",
                }),
            }
        })]);

    #[test]
    fn policy_that_refuses_the_machine_is_an_error_and_one_that_accepts_it_runs() {
        let registry = Registry::shipped().with_policies(&PAIR);
        let mut args = args(&["pair"]);
        assert_eq!(execute(&registry, &args), ExitCode::SUCCESS);
        args.cores = NonZeroU16::new(3).unwrap();
        assert!(refused(&registry, &args).contains("there are only 2 places"));
        assert_eq!(execute(&registry, &args), ExitCode::from(2));
    }

    #[test]
    fn too_many_points_or_requests_and_repeated_class_names_are_refused() {
        let shipped = Registry::shipped();
        let with = |change: &dyn Fn(&mut SimulateArgs)| {
            let mut args = args(&["fifo"]);
            change(&mut args);
            refused(&shipped, &args)
        };
        let too_long = with(&|args| (args.loads, args.measure_ms) = (vec![10_000_000], 100_000));
        assert!(too_long.contains("the limit is 20000000"), "{too_long}");
        let many = with(&|args| args.loads = vec![1; POINTS_MAX + 1]);
        assert!(many.contains("the limit is 1000"), "{many}");
        let twice = with(&|args| args.classes.push("a=1:1".parse().unwrap()));
        assert_eq!(twice, "two classes are called `a`");
    }

    #[test]
    fn class_is_parsed_as_name_weight_and_service_time() {
        let class = "GET=99.5:10".parse::<ClassArg>().unwrap().0;
        assert_eq!((class.name.as_str(), class.weight), ("GET", 99.5));
        assert_eq!(class.service, Service::Fixed(Nanos(10_000)));
        for wrong in
            ["GET", "GET=1", "GET=0:10", "GET=1:-3", "GET=1:1e9", "GET=x:1", "=1:10", " =1:10"]
        {
            assert!(wrong.parse::<ClassArg>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn number_of_cores_is_limited_to_an_enclaves() {
        assert_eq!(cores("240").unwrap().get(), 240);
        assert_eq!(cores("241"), Err("1 to 240 cores".to_owned()));
        assert!(cores("0").is_err());
    }
}

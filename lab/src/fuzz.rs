//! `wave fuzz`: seeded histories of the real code under faults, checked from outside.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::Args;
use serde_json::{Value, json};
use wave_agent::Registry;
use wave_sim::fuzz::{self, FAULTS, Fault, Overrides, Plan, Report};

use crate::progress::Progress;
use crate::table;
use crate::terminal::{note, out, program, started_as};

/// Seeds between two steps of the progress bar.
const BATCH: u64 = 20;
/// Seeds after which every kind of fault must have happened.
const ENOUGH: u64 = 500;
/// Failures that are told in full.
const FAILURES_MAX: usize = 20;

/// Which histories.
#[derive(Args, Debug)]
#[command(
    after_help = "Each seed is a history of its own: cores, queues, link, policy, threads and faults are drawn
from it, and the production queues, host protocol, agent and policies run it in virtual time. At least
10,000 messages and a fault each. Checkers that keep books of their own watch from outside.

Examples:
  wave fuzz                            200 seeds
  wave fuzz --seeds 2000 --json        two thousand, as one object
  wave fuzz --seed 35                  one history again, exactly
  wave fuzz --seed 35 --shrink         the smallest history found that fails alike
  wave fuzz --fault lost-kick,agent-stop --seeds 500
  wave fuzz --policy shinjuku:slice_us=5

Exit codes: 0 no rule was broken; 1 one was (the command that replays it is printed),
or a kind of fault never happened in 500 seeds or more; 2 bad arguments."
)]
pub struct FuzzArgs {
    /// How many seeds.
    #[arg(long, default_value_t = 200, conflicts_with = "seed", value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 0, conflicts_with = "seed", value_parser = clap::value_parser!(u64).range(..1 << 48))]
    from: u64,
    /// Only this seed.
    #[arg(long, value_parser = clap::value_parser!(u64).range(..1 << 48))]
    seed: Option<u64>,
    /// Make each failing history smaller.
    #[arg(long)]
    shrink: bool,
    /// Every history under this policy, as NAME:KEY=VALUE,..., instead of one that is drawn.
    #[arg(long, value_name = "POLICY")]
    policy: Option<String>,
    /// Inject only faults of these kinds (messages are reordered and queues run full by themselves, too).
    #[arg(long = "fault", value_delimiter = ',', value_parser = fault)]
    faults: Vec<Fault>,
    /// Keep only these faults of the history, by number from 0, or none.
    #[arg(long, value_delimiter = ',', requires = "seed")]
    keep_faults: Vec<String>,
    /// So many messages instead of 10,200.
    #[arg(long, requires = "seed")]
    messages: Option<u64>,
    /// So many threads alive at once.
    #[arg(long, requires = "seed")]
    threads: Option<u32>,
    /// Only the first enclave.
    #[arg(long, requires = "seed")]
    alone: bool,
    /// Histories at a time; as many as there are CPUs, unless said.
    #[arg(long)]
    jobs: Option<NonZeroUsize>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// No progress.
    #[arg(long)]
    quiet: bool,
}

fn fault(name: &str) -> Result<Fault, String> {
    let names = || FAULTS.map(Fault::name).join(", ");
    Fault::by_name(name).ok_or_else(|| format!("no such fault; there are {}", names()))
}

impl FuzzArgs {
    fn overrides(&self, registry: &Registry) -> Result<Overrides, String> {
        let policy = self.policy.as_ref();
        let policy = policy.map(|text| crate::scheduling_policy(registry, text)).transpose()?;
        let numbers = self.keep_faults.iter().filter(|text| *text != "none");
        let numbers = numbers.map(|text| {
            text.parse().map_err(|_| format!("--keep-faults takes numbers or `none`, not `{text}`"))
        });
        Ok(Overrides {
            faults: match self.keep_faults.is_empty() {
                true => None,
                false => Some(numbers.collect::<Result<_, String>>()?),
            },
            messages: self.messages,
            threads: self.threads,
            alone: self.alone,
            policy,
        })
    }

    /// The command that runs this seed again.
    fn command(&self, seed: u64, overrides: &Overrides) -> String {
        let mut text = format!("{} fuzz --seed {seed}{}", started_as(), overrides.to_arguments());
        if !self.faults.is_empty() {
            let names: Vec<_> = self.faults.iter().map(|fault| fault.name()).collect();
            text += &format!(" --fault {}", names.join(","));
        }
        text
    }
}

/// All histories together.
#[derive(Default)]
struct Sum {
    seeds: u64,
    messages: u64,
    messages_min: Option<u64>,
    faults: BTreeMap<&'static str, u64>,
    /// Of the history in which least went wrong.
    faults_min: Option<u64>,
    violations: u64,
    failures: Vec<Value>,
    /// Does not depend on the order in which histories ended.
    trace_hash: u64,
}

impl Sum {
    fn add(&mut self, seed: u64, report: &Report) {
        self.seeds += 1;
        self.messages += report.messages;
        self.messages_min =
            Some(self.messages_min.map_or(report.messages, |min| min.min(report.messages)));
        let faults = report.faults.values().sum();
        self.faults_min = Some(self.faults_min.map_or(faults, |min| min.min(faults)));
        for (fault, times) in &report.faults {
            *self.faults.entry(fault.name()).or_default() += times;
        }
        self.violations += u64::from(report.violation.is_some());
        self.trace_hash ^= report.trace_hash.rotate_left((seed % 64) as u32);
    }

    fn to_json(&self) -> Value {
        let times = |fault: Fault| self.faults.get(fault.name()).copied().unwrap_or(0);
        let faults: BTreeMap<_, _> = FAULTS.map(|fault| (fault.name(), times(fault))).into();
        json!({
            "seeds": self.seeds,
            "messages": self.messages,
            "messages_min_per_seed": self.messages_min,
            "faults": faults,
            "faults_min_per_seed": self.faults_min,
            "violations": self.violations,
            "failures": self.failures,
            "trace_hash": format!("{:016x}", self.trace_hash),
        })
    }
}

/// Runs them.
pub fn execute(registry: &Registry, args: &FuzzArgs) -> ExitCode {
    let overrides = match args.overrides(registry) {
        Ok(overrides) => overrides,
        Err(error) => {
            note!("{} fuzz: {error}", program());
            return ExitCode::from(2);
        }
    };
    let (from, count) = args.seed.map_or((args.from, args.seeds), |seed| (seed, 1));
    let sum = run(args, &overrides, from, count);
    if args.json {
        out!("{}", sum.to_json());
    } else {
        print(&sum);
    }
    let never = FAULTS.into_iter().find(|fault| !sum.faults.contains_key(fault.name()));
    if let Some(fault) = never.filter(|_| args.faults.is_empty() && count >= ENOUGH) {
        note!(
            "{} fuzz: {} never happened in {count} seeds: nothing was shown of it",
            program(),
            fault.name()
        );
        return ExitCode::FAILURE;
    }
    ExitCode::from(u8::from(sum.violations > 0))
}

fn run(args: &FuzzArgs, overrides: &Overrides, from: u64, count: u64) -> Sum {
    let progress = Progress::new(count.div_ceil(BATCH), args.quiet || args.json);
    let (next, sum) = (AtomicU64::new(0), Mutex::new(Sum::default()));
    let worker = || {
        loop {
            let first = next.fetch_add(BATCH, Ordering::Relaxed);
            if first >= count {
                return;
            }
            let seeds = from + first..from + count.min(first + BATCH);
            progress.begin(&format!("seeds {} to {}", seeds.start, seeds.end - 1));
            for seed in seeds {
                let report = fuzz::run(&Plan::new(seed, &args.faults).with(overrides));
                let failure = failure(args, overrides, seed, &report);
                let mut sum = sum.lock().expect("nobody panics with it");
                sum.add(seed, &report);
                if let Some(failure) = failure.filter(|_| sum.failures.len() < FAILURES_MAX) {
                    sum.failures.push(failure);
                }
            }
            progress.end();
        }
    };
    let threads = args.jobs.or(std::thread::available_parallelism().ok()).map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(worker);
        }
    });
    let mut sum = sum.into_inner().expect("nobody panics with it");
    sum.failures.sort_by_key(|failure| failure["seed"].as_u64());
    sum
}

fn failure(args: &FuzzArgs, overrides: &Overrides, seed: u64, report: &Report) -> Option<Value> {
    let violation = report.violation.as_ref()?;
    let smaller = if args.shrink {
        fuzz::shrink(seed, &args.faults, overrides, violation.rule)
    } else {
        overrides.clone()
    };
    Some(json!({
        "seed": seed,
        "rule": violation.rule,
        "what": violation.what,
        "enclave": violation.enclave,
        "at_ns": violation.at.0,
        "command": args.command(seed, &smaller),
    }))
}

fn print(sum: &Sum) {
    let mut faults = table(&["fault", "times"]);
    for fault in FAULTS {
        let times = sum.faults.get(fault.name()).copied().unwrap_or(0);
        faults.add_row([fault.name().to_owned(), times.to_string()]);
    }
    out!("{faults}\n");
    out!(
        "{} seeds, {} messages (at least {} each), {} violations, trace hash {:016x}",
        sum.seeds,
        sum.messages,
        sum.messages_min.unwrap_or(0),
        sum.violations,
        sum.trace_hash
    );
    for failure in &sum.failures {
        let text = |key: &str| failure[key].as_str().unwrap_or_default();
        out!(
            "\nseed {} breaks the rule `{}` at {} ns, enclave {}: {}\n  again: {}",
            failure["seed"],
            text("rule"),
            failure["at_ns"],
            failure["enclave"],
            text("what"),
            text("command"),
        );
    }
    if !sum.failures.is_empty() {
        out!("\nThe rules: hosts/sim/src/fuzz/books.rs");
    }
}

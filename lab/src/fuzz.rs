//! `fuzz`: seeded histories of the real code under faults, with independent checkers.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use clap::Args;
use serde_json::{Value, json};
use wave_agent::Registry;
use wave_agent::panics::{self, caught};
use wave_sim::fuzz::{self, FAULTS, Fault, Invariant, Overrides, Plan, RULES, Report};

use wave_terminal::{Failure, Progress, Table, counted, interrupt, note, out, program, started_as};

/// Number of seeds per step of the progress bar.
const BATCH: u64 = 20;
/// Number of seeds from which on every kind of fault must have happened.
const ENOUGH: u64 = 500;
/// Maximum number of failures reported in full; all are counted.
const FAILURES_MAX: usize = 20;
/// Maximum number of seeds of one run.
const SEEDS_MAX: u64 = 1 << 32;
/// Maximum number of messages of one history.
const MESSAGES_MAX: u64 = 10_000_000;
/// Maximum number of threads alive at once.
const THREADS_MAX: i64 = 1 << 16;
/// Seeds are below this, so that no sum of a seed and a count overflows.
const SEED_END: u64 = 1 << 48;

/// Arguments of `fuzz`.
#[derive(Args, Debug)]
#[command(
    after_help = "Each seed gives one history: cores, queues, link, policy, threads and faults are drawn from it. The
production queues, host protocol, agent and policies run it in virtual time, with at least 10,000 messages
and one fault. Independent checkers watch every history.

Examples:
  wave fuzz                            200 seeds
  wave fuzz --seeds 2000 --json        two thousand, as one object
  wave fuzz --seed 35                  one history again, exactly
  wave fuzz --seed 35 --shrink         the smallest history found that breaks the same rule
  wave fuzz --fault lost-kick,agent-stop --seeds 500
  wave fuzz --policy shinjuku:slice_us=5

A policy that lets threads wait beside an idle core on purpose says for how long at most (Scheduler::idles_for). The
rule `progress` then takes the place of `idle`. A laboratory may have rules of its own for its policies.

A subsystem with a modelled host (--subsystem) is fuzzed in the same way. Its subjects take the place of threads: where
`--threads` or a rule says thread, read subject.

Exit codes: 0 no rule was broken; 1 a rule was broken (the command that replays the history is printed),
or a kind of fault never happened in 500 seeds or more; 2 bad arguments, or the policy refuses a
configuration that a seed drew."
)]
pub struct FuzzArgs {
    /// Number of seeds to run.
    #[arg(long, default_value_t = 200, conflicts_with = "seed", value_parser = clap::value_parser!(u64).range(1..=SEEDS_MAX))]
    seeds: u64,
    /// First seed; the following seeds count up by one.
    #[arg(long, default_value_t = 0, conflicts_with = "seed", value_parser = clap::value_parser!(u64).range(..SEED_END))]
    from: u64,
    /// Run this seed only.
    #[arg(long, value_parser = clap::value_parser!(u64).range(..SEED_END))]
    seed: Option<u64>,
    /// Reduce each failing history to a smaller one that breaks the same rule.
    #[arg(long)]
    shrink: bool,
    /// The subsystem to fuzz: `sched`, which runs threads, or one with a modelled host.
    #[arg(long, value_name = "NAME", default_value = wave_sched::SUBSYSTEM.name)]
    subsystem: String,
    /// Run every history under this policy, as NAME:KEY=VALUE,..., instead of a drawn one.
    #[arg(long, value_name = "POLICY")]
    policy: Option<String>,
    /// Inject only faults of these kinds (messages are also reordered and queues also run full without a fault).
    #[arg(long = "fault", value_delimiter = ',', value_parser = fault)]
    faults: Vec<Fault>,
    /// Keep only these faults of the history, by number, counted from 0, or `none`.
    #[arg(long, value_delimiter = ',', requires = "seed")]
    keep_faults: Vec<String>,
    /// Send at least this many messages instead of 10,200.
    #[arg(long, requires = "seed", value_parser = clap::value_parser!(u64).range(1..=MESSAGES_MAX))]
    messages: Option<u64>,
    /// Keep at most this many threads alive at once.
    #[arg(long, requires = "seed", value_parser = clap::value_parser!(u32).range(1..=THREADS_MAX))]
    threads: Option<u32>,
    /// Run only the first enclave.
    #[arg(long, requires = "seed")]
    alone: bool,
    /// Number of histories that run at the same time [default: one per CPU].
    #[arg(long)]
    jobs: Option<NonZeroUsize>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Do not show progress.
    #[arg(long)]
    quiet: bool,
}

fn fault(name: &str) -> Result<Fault, String> {
    let names = || FAULTS.map(Fault::name).join(", ");
    Fault::by_name(name).ok_or_else(|| format!("no such fault; expected one of: {}", names()))
}

impl FuzzArgs {
    fn overrides(
        &self,
        registry: &Registry,
        invariants: &'static [Invariant],
    ) -> Result<Overrides, String> {
        let policy = self.policy.as_ref();
        let subsystem = crate::simulated(registry, &self.subsystem)?;
        let policy = policy.map(|text| crate::policy_of(registry, subsystem, text)).transpose()?;
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
            invariants,
            subsystem: Some(subsystem).filter(|subsystem| !crate::is_sched(subsystem)),
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

/// The sum of all histories.
#[derive(Default)]
struct Sum {
    seeds: u64,
    messages: u64,
    messages_min: Option<u64>,
    faults: BTreeMap<&'static str, u64>,
    /// Number of faults in the history with the fewest.
    faults_min: Option<u64>,
    violations: u64,
    failures: Vec<Value>,
    /// Hash of all histories; independent of the order in which they ended.
    trace_hash: u64,
    /// The first seed found whose history cannot run, and why.
    refused: Option<(u64, String)>,
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

    /// What an interrupted run of `count` seeds has found.
    fn so_far(&self, count: u64) -> String {
        let (seeds, of) = (self.seeds, counted(count, "seed"));
        let violations = counted(self.violations, "violation");
        let failures: String = self.failures.iter().map(describe).collect();
        format!("{seeds} of {of} done, {violations}{failures}")
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

/// Runs the histories, prints their summary, and returns the exit code. Each of `invariants` is checked under its policy.
pub fn execute(registry: &Registry, invariants: &'static [Invariant], args: &FuzzArgs) -> ExitCode {
    let overrides = match caught(|| args.overrides(registry, invariants)).and_then(|made| made) {
        Ok(overrides) => overrides,
        Err(error) => {
            note!("{} fuzz: {error}", program());
            return ExitCode::from(2);
        }
    };
    if let Err(error) = check_kept(args, &overrides) {
        note!("{} fuzz: {error}", program());
        return ExitCode::from(2);
    }
    let (from, count) = args.seed.map_or((args.from, args.seeds), |seed| (seed, 1));
    let sum = match run(args, &overrides, from, count) {
        Ok(sum) => sum,
        Err(failure) => {
            note!("{} fuzz: {failure}", program());
            return ExitCode::from(failure.exit_code());
        }
    };
    // Failures found before the refusal are still reported.
    let refused = sum.refused.as_ref().map(|(seed, why)| format!("seed {seed}: {why}"));
    if let Some(why) = &refused {
        note!("{} fuzz: {why}", program());
        if sum.violations == 0 {
            return ExitCode::from(2);
        }
    }
    if args.json {
        out!("{}", sum.to_json());
    } else {
        print(&sum);
    }
    let never = FAULTS.into_iter().find(|fault| !sum.faults.contains_key(fault.name()));
    if let Some(fault) = never.filter(|_| args.faults.is_empty() && count >= ENOUGH) {
        note!(
            "{} fuzz: the fault {} never happened in {count} seeds, so it was not tested",
            program(),
            fault.name()
        );
        return ExitCode::FAILURE;
    }
    ExitCode::from(u8::from(sum.violations > 0))
}

/// Refuses to keep a fault that the history lacks: a failing history without its faults may look clean.
fn check_kept(args: &FuzzArgs, overrides: &Overrides) -> Result<(), String> {
    let (Some(seed), Some(kept)) = (args.seed, &overrides.faults) else { return Ok(()) };
    let count = Plan::new(seed, &args.faults).enclaves[0].injections.len();
    match kept.iter().find(|fault| **fault >= count) {
        Some(fault) => Err(format!(
            "--keep-faults {fault}: seed {seed} has {}, numbered from 0",
            counted(count, "fault")
        )),
        None => Ok(()),
    }
}

fn run(args: &FuzzArgs, overrides: &Overrides, from: u64, count: u64) -> Result<Sum, Failure> {
    let progress = Progress::new(count.div_ceil(BATCH), args.quiet || args.json);
    let (next, sum) = (AtomicU64::new(0), Arc::new(Mutex::new(Sum::default())));
    let so_far = Arc::clone(&sum);
    interrupt::say(move || {
        let sum = so_far.lock().unwrap_or_else(PoisonError::into_inner);
        format!("{} fuzz: interrupted: {}", program(), sum.so_far(count))
    })?;
    let worker = || {
        loop {
            let first = next.fetch_add(BATCH, Ordering::Relaxed);
            if first >= count {
                return;
            }
            let seeds = from + first..from + count.min(first + BATCH);
            progress.begin(&format!("seeds {} to {}", seeds.start, seeds.end - 1));
            for seed in seeds {
                let plan = caught(|| {
                    let plan = Plan::new(seed, &args.faults).with(overrides);
                    plan.check().map(|()| plan).map_err(|error| error.to_string())
                });
                let plan = plan.and_then(|plan| plan);
                if let Err(error) = &plan {
                    let mut sum = sum.lock().expect("no thread panics while holding it");
                    let is_first = sum.refused.as_ref().is_none_or(|(other, _)| seed < *other);
                    if is_first {
                        sum.refused = Some((seed, error.clone()));
                    }
                }
                let is_refused =
                    sum.lock().expect("no thread panics while holding it").refused.is_some();
                let Some(plan) = plan.ok().filter(|_| !is_refused) else { return };
                let report = run_one(&plan);
                let failure = failure(args, overrides, seed, &report);
                let mut sum = sum.lock().expect("no thread panics while holding it");
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
        for _ in 0..count.div_ceil(BATCH).min(threads as u64) {
            scope.spawn(worker);
        }
    });
    let mut sum = std::mem::take(&mut *sum.lock().expect("no thread panics while holding it"));
    sum.failures.sort_by_key(|failure| failure["seed"].as_u64());
    Ok(sum)
}

/// Runs one history. A violation by a panic names the panic's place.
fn run_one(plan: &Plan) -> Report {
    let mut report = caught(|| fuzz::run(plan)).unwrap_or_else(|panic| panic!("{panic}"));
    let panicked = panics::last();
    if let Some(violation) = report.violation.as_mut().filter(|found| found.rule == PANIC)
        && let Some(panic) = panicked
    {
        violation.what = panic;
    }
    report
}

/// The rule that a panic breaks.
const PANIC: &str = "panic";

fn failure(args: &FuzzArgs, overrides: &Overrides, seed: u64, report: &Report) -> Option<Value> {
    let violation = report.violation.as_ref()?;
    let smaller = if args.shrink {
        let shrink = || fuzz::shrink(seed, &args.faults, overrides, violation.rule);
        caught(shrink).unwrap_or_else(|_| overrides.clone())
    } else {
        overrides.clone()
    };
    Some(json!({
        "seed": seed,
        "rule": violation.rule,
        "rule_says": says(violation.rule, overrides.invariants),
        "what": violation.what,
        "enclave": violation.enclave,
        "at_ns": violation.at.0,
        "command": args.command(seed, &smaller),
    }))
}

fn says(rule: &str, own: &[Invariant]) -> &'static str {
    let own = own.iter().map(|own| (own.name, own.about));
    let mut rules = RULES.into_iter().chain(own);
    rules.find(|(name, _)| *name == rule).map_or("", |(_, says)| says)
}

/// A failure, in lines of its own.
fn describe(failure: &Value) -> String {
    let text = |key: &str| failure[key].as_str().unwrap_or_default();
    format!(
        "\nseed {} breaks the rule `{}` ({}) at {} ns, enclave {}: {}\n  again: {}",
        failure["seed"],
        text("rule"),
        text("rule_says"),
        failure["at_ns"],
        failure["enclave"],
        text("what"),
        text("command"),
    )
}

fn print(sum: &Sum) {
    let mut faults = Table::new(1, ["fault", "times"]);
    for fault in FAULTS {
        let times = sum.faults.get(fault.name()).copied().unwrap_or(0);
        faults.push([fault.name().to_owned(), times.to_string()]);
    }
    out!("{faults}\n");
    out!(
        "{}, {} messages (at least {} each), {}, trace hash {:016x}",
        counted(sum.seeds, "seed"),
        sum.messages,
        sum.messages_min.unwrap_or(0),
        counted(sum.violations, "violation"),
        sum.trace_hash
    );
    for failure in &sum.failures {
        out!("{}", describe(failure));
    }
    let untold = sum.violations - sum.failures.len() as u64;
    if untold > 0 {
        out!("\n{} not shown", counted(untold, "more failure"));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use clap::Parser;
    use wave_core::policy::Policy;
    use wave_core::settings::{Known, Policies, SettingError};
    use wave_sched::scheduler::{Run, Scheduled, Scheduler, Thread};

    use super::*;

    /// A first-in, first-out policy that forgets every hundredth thread.
    #[derive(Default)]
    struct Forgets(VecDeque<Thread>, u32);

    impl Scheduler for Forgets {
        fn ready(&mut self, thread: Thread) {
            self.1 += 1;
            if !self.1.is_multiple_of(100) {
                self.0.push_back(thread);
            }
        }

        fn pick(&mut self, _core: u16) -> Option<Run> {
            self.0.pop_front().map(Run::to_completion)
        }
    }

    /// Panics at its thousandth pick.
    #[derive(Default)]
    struct Bomb(VecDeque<Thread>, u32);

    impl Scheduler for Bomb {
        fn ready(&mut self, thread: Thread) {
            self.0.push_back(thread);
        }

        fn pick(&mut self, _core: u16) -> Option<Run> {
            self.1 += 1;
            assert!(self.1 < 1000, "boom");
            self.0.pop_front().map(Run::to_completion)
        }
    }

    static INVARIANTS: [Invariant; 1] = [Invariant {
        name: "calm-start",
        about: "no thread of class 3 runs",
        policy: "forgets",
        make: |_| {
            Box::new(|host| match host.running().find(|thread| thread.class == 3) {
                Some(thread) => Err(format!("thread {} runs", thread.id)),
                None => Ok(()),
            })
        },
    }];

    const fn own(name: &'static str) -> Known {
        Known { name, about: "", settings: &[] }
    }

    static OWN: Policies<dyn Policy + Send> = Policies(&[
        (own("forgets"), |config, _| Ok(Box::new(Scheduled::of(config, Forgets::default())))),
        (own("bomb"), |config, _| Ok(Box::new(Scheduled::of(config, Bomb::default())))),
        (own("few-cores"), |config, _| match config.cores {
            0..3 => Ok(Box::new(wave_sched::policies::fifo::Fifo::new(config))),
            cores => {
                let number = cores.into();
                Err(SettingError::Beyond { key: "cores", number, most: 2, of: "places" })
            }
        }),
    ]);

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: FuzzArgs,
    }

    fn parse(words: &str) -> FuzzArgs {
        Line::parse_from(["fuzz"].into_iter().chain(words.split_whitespace())).args
    }

    fn registry() -> Registry {
        Registry::shipped().with_policies(&OWN)
    }

    #[test]
    fn printed_command_runs_the_same_history() {
        let words = "--seed 35 --keep-faults 0,2 --messages 100 --threads 3 --alone --fault lost-kick,agent-stop \
                     --policy shinjuku:slice_us=5,timer=core";
        let args = parse(words);
        let overrides = args.overrides(&registry(), &[]).unwrap();
        let command = args.command(35, &overrides);
        let (_, printed) = command.split_once(" fuzz ").unwrap();
        let again = parse(printed);
        let same = again.overrides(&registry(), &[]).unwrap();
        assert_eq!((again.seed, &again.faults), (Some(35), &args.faults));
        assert_eq!(same.policy.as_ref().unwrap().text(), "shinjuku:slice_us=5,timer=core");
        assert_eq!((same.faults, same.alone), (Some(vec![0, 2]), true));
        assert_eq!((same.messages, same.threads), (Some(100), Some(3)));
    }

    #[test]
    fn impossible_history_is_refused() {
        let wrong =
            |words: &str| Line::try_parse_from(["fuzz"].into_iter().chain(words.split(' ')));
        for words in ["--threads 0", "--threads 4294967295", "--messages 0", "--messages 10000001"]
        {
            assert!(wrong(&format!("--seed 1 {words}")).is_err(), "{words}");
        }
        let kept = |words: &str| execute(&registry(), &[], &parse(words));
        assert_eq!(kept("--seed 1 --keep-faults 999 --quiet"), ExitCode::from(2));
        assert_eq!(kept("--seed 1 --keep-faults none --quiet"), ExitCode::SUCCESS);
    }

    #[test]
    fn own_policy_that_forgets_threads_fails_with_the_broken_rule() {
        let args = parse("--seeds 4 --policy forgets --quiet");
        let sum = run(&args, &args.overrides(&registry(), &[]).unwrap(), 0, 4).unwrap();
        assert!(sum.violations >= 3, "{:?}", sum.failures);
        for failure in &sum.failures {
            let command = failure["command"].as_str().unwrap();
            assert!(command.ends_with("--policy forgets"), "{command}");
            assert!(!failure["rule_says"].as_str().unwrap().is_empty(), "{failure}");
        }
    }

    #[test]
    fn own_invariant_is_reported_by_name_with_seed_and_replay_command() {
        let args = parse("--seeds 20 --policy forgets --quiet");
        let sum = run(&args, &args.overrides(&registry(), &INVARIANTS).unwrap(), 0, 20).unwrap();
        // Some histories break another rule first.
        let first = sum.failures.iter().find(|failure| failure["rule"] == "calm-start").unwrap();
        assert_eq!(first["rule_says"], "no thread of class 3 runs");
        let again = format!(" fuzz --seed {} --policy forgets", first["seed"]);
        assert!(first["command"].as_str().unwrap().ends_with(&again), "{first}");
    }

    #[test]
    fn panic_of_a_policy_is_a_violation_with_its_place() {
        let args = parse("--seeds 1 --policy bomb --quiet");
        let sum = run(&args, &args.overrides(&registry(), &[]).unwrap(), 0, 1).unwrap();
        let [failure] = &sum.failures[..] else { panic!("{:?}", sum.failures) };
        let what = failure["what"].as_str().unwrap();
        assert_eq!(failure["rule"], "panic");
        assert!(
            what.starts_with("panic at lab/src/fuzz.rs:") && what.ends_with(": boom"),
            "{what}"
        );
    }

    #[test]
    fn policy_that_refuses_a_drawn_configuration_is_an_error_and_no_violation() {
        let args = parse("--seeds 20 --policy few-cores --quiet");
        let sum = run(&args, &args.overrides(&registry(), &[]).unwrap(), 0, 20).unwrap();
        let (seed, why) = sum.refused.unwrap();
        assert!(seed < 20 && why.contains("there are only 2 places"), "{seed}: {why}");
        assert_eq!(execute(&registry(), &[], &args), ExitCode::from(2));
    }
}

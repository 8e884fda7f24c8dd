//! `wave run`: an experiment, from its file to its report.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use wave_sched::policies;

use crate::live::{Feed, Live};
use crate::report::{self, RunResult};
use crate::run::{self, Failure, Finished};
use crate::scenario;

/// What to run, and how to show it.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  wave run scenarios/rocksdb-fifo.toml
  wave run scenarios/ladder.toml --json > ladder.json
  wave run scenarios/agent-crash.toml --out /tmp/results --quiet
  wave run scenarios/rocksdb-fifo.toml --record /tmp/logs
  wave run scenarios/ladder.toml --host sim

Exit codes: 0 all is well; 1 a check failed (requests lost, say); 2 a bad scenario; 3 this
machine cannot run it (the message says what to type).")]
pub struct RunArgs {
    /// The experiment: a TOML file as in scenarios/.
    #[arg(value_name = "SCENARIO.toml")]
    scenario: PathBuf,
    /// What enforces decisions.
    #[arg(long, value_enum, default_value_t = HostName::User)]
    host: HostName,
    /// Where results go: a directory per scenario is made in it.
    #[arg(long, value_name = "DIR", default_value = "out")]
    out: PathBuf,
    /// Have every agent write a log into this directory, for `wave replay` and `wave trace`: a file
    /// per agent, named after its variant. Some 50 bytes a request.
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,
    /// Print one JSON object instead of tables.
    #[arg(long)]
    json: bool,
    /// No progress.
    #[arg(long, short)]
    quiet: bool,
    /// Watch cores, queues, outcomes and latency on the terminal while it runs.
    #[arg(long, conflicts_with = "json")]
    live: bool,
}

/// What enforces decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum HostName {
    /// A runtime of user-level threads on this machine.
    User,
    /// A simulated machine, in virtual time: the same result wherever and whenever it runs.
    Sim,
}

/// Runs it.
pub fn execute(args: &RunArgs) -> ExitCode {
    match perform(args) {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("wave run: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}

fn perform(args: &RunArgs) -> Result<ExitCode, Failure> {
    let scenario = scenario::load(&args.scenario, policies::NAMES)
        .map_err(|error| Failure::Scenario(error.to_string()))?;
    if args.host == HostName::Sim {
        if args.live {
            let why = "--live watches a native run; a simulated one has no time to watch";
            return Err(Failure::Scenario(why.to_owned()));
        }
        let finished = run::sim::run(&scenario, args.quiet, args.record.as_deref())?;
        return show(args, finished);
    }
    let feed = Feed::default();
    let live = args.live.then(|| Live::start(feed.clone())).transpose();
    let live = live.map_err(Failure::Scenario)?;
    let finished = run::run(&scenario, args.quiet || args.live, feed, args.record.as_deref());
    // The terminal must be as before when the first word is printed.
    drop(live);
    show(args, finished?)
}

/// Writes the report and prints the tables, or the object.
fn show(args: &RunArgs, finished: Finished) -> Result<ExitCode, Failure> {
    let Finished { result, failed } = finished;
    let directory = report::write(&result, &args.out).map_err(Failure::cannot)?;
    if args.json {
        println!("{}", to_json(&result));
    } else {
        println!("{}", report::terminal::summary(&result));
        println!("\n{}", report::terminal::extra(&result));
        println!("Seating: {}", result.seating);
        for (what, how) in &result.facts {
            println!("{what}: {how}");
        }
        println!("Report: {}", directory.join("report.html").display());
    }
    for check in &failed {
        eprintln!("wave run: check failed: {check}");
    }
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// The result as one object: what only this kind of scenario has stands beside the rest; the
/// histograms are left to their files.
fn to_json(result: &RunResult) -> serde_json::Value {
    let mut slim = result.clone();
    for point in slim.variants.iter_mut().flat_map(|variant| &mut variant.points) {
        for class in &mut point.classes {
            class.histogram_base64 = None;
        }
    }
    let mut json = report::to_json(&slim);
    if let Some(object) = json.as_object_mut()
        && let Some(serde_json::Value::Object(extra)) = object.remove("extra")
    {
        object.extend(extra);
    }
    json
}

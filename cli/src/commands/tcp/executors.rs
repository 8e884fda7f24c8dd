//! `wave tcp executors`: compares the executors of the data path.

use clap::Args;
use serde_json::json;
use wave_apps::machine;
use wave_fuzz::executors::{self, Found};
use wave_terminal::{Failure, Table, out};

/// Seeds to compare, and the form of the output.
#[derive(Args, Debug)]
#[command(
    after_help = "Each seed is a history of two TCP stacks over an adversarial wire (as in wave fuzz tcp). The entries of
a data path, in the order of its sequencer, form a log: packets, requests, the scheduler's grants, completed copies, timers, commands.
Each log is replayed through three executors of the same stages:

  inline        all stages on one core, one entry at a time
  threads       a thread for the protocol stage, two each for pre and post, bounded queues between them
  virtual time  four replicas of each stage, with service times drawn from the seed

  flows_equal                every flow has the same segments, copies, notices and final state under all three, byte by byte
  planted_differs            virtual time without sequencing differs, in planted_seeds_that_differ seeds
  streams_agree              when threads or virtual time run both ends freely, histories keep the rules of wave fuzz tcp: data read
                             equals data written, and connections end
  virtual_time_overtaken     entries that left the pre stage after a later one

Examples:
  wave tcp executors
  wave tcp executors --seeds 1000 --json
  wave tcp executors --seed 83 --seeds 1

Exit codes: 0 flows are equal, planted ones differ, and streams agree; 1 otherwise; 2 bad arguments."
)]
pub struct ExecutorsArgs {
    /// Number of seeds.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    seeds: u64,
    /// First seed.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(..1 << 48))]
    seed: u64,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Show no progress.
    #[arg(long, short)]
    quiet: bool,
}

pub fn executors(args: &ExecutorsArgs) -> Result<(), Failure> {
    let found = executors::run(args.seed, args.seeds, args.quiet || args.json)?;
    if args.json {
        let mut value = json!(found);
        value["version"] = machine::version().into();
        value["seed"] = args.seed.into();
        out!("{value}");
    } else {
        out!("{}", text(&found));
    }
    let mut failed = Vec::new();
    for difference in &found.failures {
        let executors::Failed { seed, executor, what } = difference;
        failed.push(format!(
            "seed {seed}, {executor}: {what}\n  again: wave tcp executors --seed {seed} --seeds 1"
        ));
    }
    if !found.planted_differs {
        failed.push("without a sequencer every flow still has the same output, so the comparison finds nothing: use more seeds".to_owned());
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(Failure::Check(failed.join("\n"))),
    }
}

fn text(found: &Found) -> String {
    let mut executors =
        Table::new(1, ["executor", "entries", "segments", "copies", "notices", "most in flight"]);
    for (name, counts) in
        [("inline", found.inline), ("threads", found.threads), ("virtual time", found.virtual_time)]
    {
        let counts =
            [counts.entries, counts.segments, counts.writes, counts.notices, counts.in_flight_max];
        executors.push([name.to_owned()].into_iter().chain(counts.map(|count| count.to_string())));
    }
    let kinds = found.entries_by_kind;
    let verdict = |is_so| if is_so { "yes" } else { "no" };
    format!(
        "{executors}
{} flows of {} seeds; {} packets, {} requests, {} grants, {} copies done, {} timers, {} commands
Every flow has the same output: {}
Without a sequencer output differs: {} ({} of {} seeds)
Streams agree where executors run freely: {} ({} histories)",
        found.flows,
        found.seeds,
        kinds.packets,
        kinds.requests,
        kinds.grants,
        kinds.completions,
        kinds.timers,
        kinds.commands,
        verdict(found.flows_equal),
        verdict(found.planted_differs),
        found.planted_seeds_that_differ,
        found.seeds,
        verdict(found.streams_agree),
        found.free_runs,
    )
}

//! `wave sweep`: runs every combination of a scenario's values, or one shard of them.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::run::program;
use wave_apps::machine;
use wave_experiments::kinds::{Host, OwnAgent};
use wave_experiments::sweep::{self, Plan, Ran, Shard, Store, ThisMachine, Work, run_shard};
use wave_terminal::{Failure, counted, interrupt, note, out};

#[derive(Args, Debug)]
#[command(after_help = "The scenario's table [sweep] lists values for fields of the file:
  [sweep]
  \"host.cores\" = [16, 32, 64]
  \"variant.prestage\" = [0, 2]                 # in every [[variant]]
  \"variant[over PCIe].prefetch\" = [true, false]  # in the variant of this name
Of kind = \"load\" and \"ladder\", every combination with every variant and every load is a point. Of
all other kinds, every combination is one: it runs as with `wave run`, whose files are in DIR/runs/.
Points are simulated if the kind has a simulation. Otherwise they run on this machine, one after the
other. Each is written to DIR/points/ under the hash of its inputs. Finished points are kept: a
killed sweep resumes with the same command.

Examples:
  wave sweep scenarios/cores.toml --out out/cores
  wave sweep scenarios/cores.toml --out /shared/cores --shard 3/16
  wave merge out/cores
  wave sweep my-rpc.toml --out out/my-rpc
  wave sweep my-scenario.toml --agent target/release/my-policy --out out/mine

Exit codes: 0 all points of the shard are done; 1 some could not be run; 2 a bad scenario, or
DIR holds another sweep; 3 DIR cannot be written.")]
pub struct SweepArgs {
    /// Scenario to run, with or without a table `[sweep]`.
    #[arg(value_name = "SCENARIO.toml")]
    scenario: PathBuf,
    /// Directory for points, shared by all shards of a sweep and used for nothing else.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Your own agent program, whose policies decide instead of Wave's; its `main` calls wave_agent::main_with. A laboratory
    /// will do.
    #[arg(long, value_name = "PROGRAM", value_parser = program)]
    agent: Option<PathBuf>,
    /// Run only the points whose number modulo N is I; numbers count from 0.
    #[arg(long, value_name = "I/N", default_value_t = Shard::WHOLE)]
    shard: Shard,
    /// Number of simulated points to run at the same time [default: one per CPU].
    #[arg(long, short, value_name = "J", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
    /// Show no progress.
    #[arg(long, short)]
    quiet: bool,
}

pub fn execute(args: &SweepArgs) -> Result<ExitCode, Failure> {
    let own = args.agent.as_deref().map(OwnAgent::new).transpose()?;
    let Plan { manifest, jobs } =
        Plan::load(&super::kinds(), &args.scenario, own.as_ref(), machine::version())?;
    let store = Store::open(&args.out, &manifest)?;
    store.mark(args.shard, &args.scenario, args.agent.as_deref())?;
    let (kept, of) = (store.clone(), args.shard);
    let numbered = manifest.points.iter().enumerate().filter(|(number, _)| of.has(*number));
    let points: Vec<String> = numbered.map(|(_, id)| id.clone()).collect();
    let root = args.out.display().to_string();
    interrupt::say(move || {
        let done = points.iter().filter(|id| kept.point_file(id).exists()).count();
        format!(
            "wave sweep: interrupted: {done} of {} done and kept in {root}. To resume:\n  {}\n",
            counted(points.len(), "point"),
            interrupt::same_command()
        )
    })?;
    let is_native = |work: &Work| matches!(work, Work::Run(run) if run.host == Host::User);
    // Runs on this machine would take each other's CPUs.
    let threads = match jobs.iter().any(|job| is_native(&job.work)) {
        true => 1,
        false => args.jobs.map_or_else(cpus, usize::from),
    };
    let runner = ThisMachine { runs: args.out.join(sweep::RUNS) };
    let quiet = args.quiet || args.json;
    let ran = run_shard(&jobs, args.shard, &store, &runner, threads, quiet)?;
    let Ran { kept, ran, failed } = ran;
    if args.json {
        let failed: Vec<_> =
            failed.iter().map(|(point, why)| json!({ "point": point, "why": why })).collect();
        let summary = json!({
            "scenario": manifest.scenario,
            "version": manifest.version,
            "directory": args.out,
            "shard": { "index": args.shard.index, "count": args.shard.count },
            "points": jobs.len(),
            "kept": kept,
            "ran": ran,
            "failed": failed,
        });
        out!("{summary}");
    } else {
        if let Some(table) = sweep::table(&args.out)? {
            out!("{table}\n");
        }
        out!(
            "{}: shard {} of {}: {ran} run, {kept} already done, {} failed",
            manifest.scenario,
            args.shard,
            counted(jobs.len(), "point"),
            failed.len()
        );
        if failed.is_empty() {
            let once =
                if args.shard == Shard::WHOLE { "For" } else { "Once every shard is done, for" };
            let out = args.out.display();
            out!("{once} results.csv, results.json and report.html: wave merge {out}");
        }
    }
    for (point, why) in &failed {
        note!("wave sweep: {point}: {why}");
    }
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Number of CPUs that this process may use: in a batch system or a container perhaps fewer than the machine has.
pub(super) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

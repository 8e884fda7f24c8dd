//! `wave merge`: writes the results of a complete sweep.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use wave_experiments::sweep::{Merged, Missing, RESULT_FILES, merge};
use wave_terminal::{Failure, Table, counted, note, out};

/// Number of shards to print at most: the commands of the rest follow the same pattern.
const SHARDS_SHOWN: usize = 20;

#[derive(Args, Debug)]
#[command(
    after_help = "Writes DIR/results.csv (a row for each combination), DIR/results.json (with whole
latency distributions) and DIR/report.html. They are identical byte by byte, however the points were
divided into shards.

Example:
  wave merge out/cores

Exit codes: 0 written; 1 points are missing (the commands that make them are printed); 2 DIR holds
no sweep; 3 DIR cannot be read or written."
)]
pub struct MergeArgs {
    /// Directory of the sweep, as given to `wave sweep --out`.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

pub fn execute(args: &MergeArgs) -> Result<ExitCode, Failure> {
    Ok(match merge(&args.directory)? {
        Ok(merged) => {
            written(args, &merged);
            ExitCode::SUCCESS
        }
        Err(missing) => {
            refuse(args, &missing);
            ExitCode::from(1)
        }
    })
}

fn written(args: &MergeArgs, merged: &Merged) {
    let files = RESULT_FILES.map(|file| args.directory.join(file));
    if args.json {
        let Merged { scenario, version, points, rows, .. } = merged;
        let summary = json!({
            "scenario": scenario,
            "version": version,
            "points": points,
            "rows": rows,
            "files": files,
        });
        out!("{summary}");
    } else {
        let Merged { scenario, points, rows, table, .. } = merged;
        out!("{table}\n\n{scenario}: {}, {}", counted(*points, "point"), counted(*rows, "row"));
        for file in files {
            out!("{}", file.display());
        }
    }
}

fn refuse(args: &MergeArgs, missing: &Missing) {
    if args.json {
        let Missing { scenario, points, missing, damaged, commands } = missing;
        let commands: Vec<_> = commands
            .iter()
            .map(|(shard, lacks, command)| {
                json!({ "shard": shard, "missing": lacks, "command": command })
            })
            .collect();
        let summary = json!({
            "scenario": scenario,
            "points": points,
            "missing": missing,
            "damaged": damaged,
            "commands": commands,
        });
        out!("{summary}");
        return;
    }
    note!(
        "wave merge: {}: {} of {} missing ({} damaged). These commands run them:",
        missing.scenario,
        missing.missing.len(),
        counted(missing.points, "point"),
        missing.damaged.len()
    );
    let mut table = Table::new(3, ["shard", "missing", "command"]);
    for (shard, lacks, command) in missing.commands.iter().take(SHARDS_SHOWN) {
        table.push([shard.clone(), lacks.to_string(), command.clone()]);
    }
    note!("{table}");
    if let Some(more) = missing.commands.len().checked_sub(SHARDS_SHOWN).filter(|more| *more > 0) {
        note!("and {} more; `wave merge --json` lists them all", counted(more, "shard"));
    }
}

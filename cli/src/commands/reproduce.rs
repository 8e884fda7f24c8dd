//! `wave reproduce`: the paper's results in the simulator, beside what it prints.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use wave_experiments::reproduce::{IDS, Reproduction, run, words};
use wave_lab::Failure;
use wave_lab::table;
use wave_lab::terminal::{note, out};

/// Everything.
const ALL: &str = "all";

/// What to reproduce, and where results go.
#[derive(Args, Debug)]
#[command(after_help = help())]
pub struct ReproduceArgs {
    /// Tables, figures or sections of the paper (see below), or `all`.
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
    /// Where the report goes. What is finished is kept there, too, in parts/.
    #[arg(long, value_name = "DIR", default_value = "out/reproduce")]
    out: PathBuf,
    /// Simulations to run at once [default: as many as there are CPUs].
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
    /// No progress.
    #[arg(long, short)]
    quiet: bool,
}

fn help() -> String {
    format!(
        "IDs:
{}  {ALL:<11} all of these

Everything is simulated in virtual time, with one seed: this machine's speed changes how long it
takes, not what comes out. Only how long an iteration of `sol` takes is measured. Writes DIR/report.html (one file: tables, plots, and what we think of
each difference), DIR/rows.csv, DIR/reproduce.json and DIR/figures/ID.svg. An
interrupted run resumes with the same command.

Each figure of ours is fitted (`wave fit` chose parameters to come near the printed one), predicted (it
follows from parameters fitted to others), compatible (it does, too, but its interval is wider than half of the
effect, or unknown), measured, extrapolated (from measured ones, by a rule that
was not tested), by construction (what was modelled contains it), or assumed (it went in as it is). A
difference is in percent of the printed figure, in percentage points where percent are printed, and `within`
if the paper prints a range that ours is in. `interval` is the least and the most that a row comes to under
parameter sets that meet every fitted row (`wave fit --intervals`), or under the stated uncertainty of Figure 5's
inputs; `inside` says whether the printed figure is within.

Examples:
  wave reproduce table2 table3             seconds
  wave reproduce fig4a ladder --jobs 2
  wave reproduce sol                       under two minutes
  wave reproduce all --out /tmp/wave
  wave reproduce upi --json | jq '.rows[] | [.id, .paper, .ours]'

Exit codes: 0 done, whatever the differences; 2 an unknown ID; 3 DIR cannot be written.",
        list()
    )
}

/// A line per id.
fn list() -> String {
    IDS.iter().map(|(id, what)| format!("  {id:<11} {what}\n")).collect()
}

/// Reproduces, and prints what came out.
pub fn execute(args: &ReproduceArgs) -> ExitCode {
    match perform(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            note!("wave reproduce: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}

fn perform(args: &ReproduceArgs) -> Result<(), Failure> {
    let ids = chosen(&args.ids)?;
    let threads = args.jobs.map_or_else(super::sweep::cpus, usize::from);
    let (reproduction, report) = run(&ids, &args.out, threads, args.quiet || args.json)?;
    if args.json {
        let json = serde_json::to_string(&reproduction).map_err(Failure::cannot)?;
        out!("{json}");
    } else {
        wave_lab::terminal::print(format_args!("{}", terminal(&reproduction)));
        out!("{}", report.display());
    }
    Ok(())
}

/// The groups that are meant, each once, in the paper's order.
fn chosen(ids: &[String]) -> Result<Vec<&'static str>, Failure> {
    let known = |id: &String| id == ALL || IDS.iter().any(|(known, _)| known == id);
    if let Some(unknown) = ids.iter().find(|id| !known(id)) {
        let list = list();
        return Err(Failure::Scenario(format!(
            "no `{unknown}` to reproduce. There are:\n{list}  {ALL:<8} all of these"
        )));
    }
    let meant = |id: &str| ids.iter().any(|asked| asked == id || asked == ALL);
    Ok(IDS.into_iter().map(|(id, _)| id).filter(|id| meant(id)).collect())
}

/// A row per printed figure, then a line per group; nothing if no figure is printed.
fn terminal(reproduction: &Reproduction) -> String {
    let rows = &reproduction.rows;
    if rows.is_empty() {
        return String::new();
    }
    let mut shown = table(&[
        "group",
        "figure",
        "paper",
        "ours",
        "difference",
        "kind",
        "interval",
        "width",
        "inside",
    ]);
    for column in [2, 3, 4, 6, 7] {
        if let Some(column) = shown.column_mut(column) {
            column.set_cell_alignment(comfy_table::CellAlignment::Right);
        }
    }
    let mut lines = String::new();
    for of_group in rows.chunk_by(|one, next| one.group == next.group) {
        let group = of_group[0].group.as_str();
        let mut name = words::title(group);
        for row in of_group {
            let figure = row.id.strip_prefix(group).unwrap_or(&row.id).trim_start_matches('-');
            shown.add_row([
                std::mem::take(&mut name),
                figure,
                &words::printed(row),
                &words::ours(row),
                &words::difference(row),
                row.kind.name(),
                &words::interval(row),
                &words::width(row),
                words::inside(row),
            ]);
        }
        lines.push_str(&words::summary(group, &of_group.iter().collect::<Vec<_>>()));
        lines.push('\n');
    }
    format!("{shown}\n\n{lines}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(line: &str) -> Result<Vec<&'static str>, Failure> {
        chosen(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn what_is_meant_is_done_once_and_in_order() {
        assert_eq!(ids("table3 fig4a table2 table3").unwrap(), ["table2", "table3", "fig4a"]);
        assert_eq!(ids("upi all").unwrap().len(), IDS.len());
    }

    #[test]
    fn what_is_unknown_is_named_beside_all_that_is_known() {
        let failure = ids("table3 fig6").unwrap_err();
        assert_eq!(failure.exit_code(), 2);
        let message = failure.to_string();
        assert!(message.contains("`fig6`"));
        for (id, what) in IDS {
            assert!(
                message.contains(id) && message.contains(what) && help().contains(what),
                "{id}"
            );
        }
    }
}

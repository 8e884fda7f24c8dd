//! `wave reproduce`: simulates the papers' experiments and compares with the printed figures.

use std::path::PathBuf;

use clap::Args;

use wave_paper::reproduce::group::GROUPS;
use wave_paper::reproduce::{Kind, Reproduction, Row, Snapshot, run, words};
use wave_terminal::{Failure, out};

const ALL: &str = "all";

#[derive(Args, Debug)]
#[command(after_help = help())]
pub struct ReproduceArgs {
    /// Tables, figures or sections of the papers, by the IDs below.
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
    /// Number of seeds under which rows with random arrivals are simulated; medians are shown.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    seeds: u64,
    /// Directory for the report. Finished parts are kept there, in parts/.
    #[arg(long, value_name = "DIR", default_value = "out/reproduce")]
    out: PathBuf,
    /// Number of simulations to run at the same time [default: one per CPU].
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Compare simulated rows with the rows.csv of an earlier run, and name those that moved.
    #[arg(long, value_name = "FILE")]
    check: Option<PathBuf>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
    /// Show no progress.
    #[arg(long, short)]
    quiet: bool,
}

fn help() -> String {
    format!(
        "IDs:
{}  {ALL:<11} all of these

Everything is simulated in virtual time, under the seeds 1 to N: the results do not depend on this machine's speed.
Only the length of an iteration of `sol` is measured. Writes DIR/report.html (one file: tables, plots, and an
explanation of each difference), DIR/rows.csv, DIR/reproduce.json and DIR/figures/ID.svg. An interrupted run resumes
with the same command.

Each figure of ours is fitted (`wave fit` chose parameters to come near the printed one), predicted (it
follows from parameters fitted to others), compatible (as predicted, but with an interval wider than half of the
effect, or unknown), measured, extrapolated (from measured ones, by an untested rule), by construction (the model
contains it), or assumed (an input). A
difference is in percent of the printed figure, in percentage points where percent are printed, and `within`
if the paper prints a range that contains ours. `interval` is the smallest and the largest value of a row under
parameter sets that meet every fitted row (`wave fit --intervals`; for Mind the Gap, under the ends of its one fitted
value), or under the stated uncertainty of the inputs of Figures 5 and 6b; `inside` says whether the printed figure is
within. `above 0` stands for a paper's statement that one system does better than the other. `spread` is the range over all seeds,
and not part of the interval. Inputs have a separate table.

Examples:
  wave reproduce table2 table3             seconds
  wave reproduce fig4a ladder --jobs 2
  wave reproduce sol                       under two minutes
  wave reproduce mtg3 mtg6                 two minutes
  wave reproduce all --out /tmp/wave       40 minutes of CPU time
  wave reproduce ladder --seeds 1 --check docs/reproduced.csv
  wave reproduce upi --json | jq '.rows[] | [.id, .paper, .ours]'

--check compares each simulated figure, under each seed that both runs have: it has moved if it differs by more than 0.5%,
or by more than 0.2 points where percent are printed.

Exit codes: 0 done, however far from the paper; 1 with --check: a row moved; 2 an unknown ID, or no rows.csv; 3 DIR cannot
be written.",
        list()
    )
}

/// The list of IDs, one per line.
fn list() -> String {
    GROUPS.iter().map(|group| format!("  {:<11} {}\n", group.id, group.about)).collect()
}

/// Reproduces the chosen results and prints them.
pub fn execute(args: &ReproduceArgs) -> Result<(), Failure> {
    let ids = chosen(&args.ids)?;
    let earlier = args.check.as_deref().map(Snapshot::read).transpose()?;
    let threads = args.jobs.map_or_else(super::sweep::cpus, usize::from);
    let (reproduction, report) =
        run(&ids, args.seeds, &args.out, threads, args.quiet || args.json)?;
    if args.json {
        let json = serde_json::to_string(&reproduction).map_err(Failure::cannot)?;
        out!("{json}");
    } else {
        wave_terminal::print(format_args!("{}", terminal(&reproduction)));
        out!("{}", report.display());
    }
    let moved = earlier.map(|earlier| earlier.moved(&reproduction.rows)).unwrap_or_default();
    if !moved.is_empty() {
        return Err(Failure::Check(format!("rows moved:\n  {}", moved.join("\n  "))));
    }
    Ok(())
}

/// The chosen groups, each once, in the paper's order.
fn chosen(ids: &[String]) -> Result<Vec<&'static str>, Failure> {
    let known = |id: &String| id == ALL || GROUPS.iter().any(|known| known.id == *id);
    if let Some(unknown) = ids.iter().find(|id| !known(id)) {
        let list = list();
        return Err(Failure::Scenario(format!(
            "unknown ID `{unknown}`. Known IDs:\n{list}  {ALL:<8} all of these"
        )));
    }
    let meant = |id: &str| ids.iter().any(|asked| asked == id || asked == ALL);
    Ok(GROUPS.iter().map(|group| group.id).filter(|id| meant(id)).collect())
}

/// Columns that a terminal has no room for.
const ON_PAGE_ONLY: [&str; 3] = ["what it is", "in the paper", "name"];

/// Columns that inputs of the model do not have.
const OF_RESULTS: [&str; 5] = ["spread", "kind", "interval", "width", "inside"];

/// A table with a row per printed figure, then a line per group; empty if the papers print no figure.
fn terminal(reproduction: &Reproduction) -> String {
    let rows = &reproduction.rows;
    if rows.is_empty() {
        return String::new();
    }
    let (inputs, results): (Vec<&Row>, Vec<&Row>) =
        rows.iter().partition(|row| row.kind == Kind::Assumed);
    let mut lines = String::new();
    for of_group in rows.chunk_by(|one, next| one.group == next.group) {
        let group = of_group[0].group.as_str();
        lines.push_str(&words::summary(group, &of_group.iter().collect::<Vec<_>>()));
        lines.push('\n');
    }
    let mut text = String::new();
    if !results.is_empty() {
        text.push_str(&format!("{}\n\n", words::table(&results).without(&ON_PAGE_ONLY)));
    }
    if !inputs.is_empty() {
        text.push_str(&format!(
            "Inputs of the model, taken from the papers: their agreement shows nothing.\n{}\n\n",
            words::table(&inputs).without(&ON_PAGE_ONLY).without(&OF_RESULTS)
        ));
    }
    text.push_str(&lines);
    for line in [words::missed(rows), words::resumed(reproduction)] {
        if !line.is_empty() {
            text.push_str(&format!("{line}\n"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(line: &str) -> Result<Vec<&'static str>, Failure> {
        chosen(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn repeated_ids_are_reproduced_once_in_the_papers_order() {
        assert_eq!(ids("table3 fig4a table2 table3").unwrap(), ["table2", "table3", "fig4a"]);
        assert_eq!(ids("upi all").unwrap().len(), GROUPS.len());
    }

    #[test]
    fn refusal_of_an_unknown_id_lists_all_known_ids() {
        let failure = ids("table3 fig6").unwrap_err();
        assert_eq!(failure.exit_code(), 2);
        let message = failure.to_string();
        assert!(message.contains("`fig6`"));
        for group in &GROUPS {
            let is_listed = |text: &str| text.contains(group.id) && text.contains(group.about);
            assert!(is_listed(&message) && is_listed(&help()), "{}", group.id);
        }
    }
}

//! `wave fit`: fits the model of the paper's machine to the printed figures.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use clap::Args;
use serde_json::{Value, json};
use wave_process::outputs::Output;
use wave_sim::fit::intervals::{self, Intervals};
use wave_sim::fit::offload::{self, Offload};
use wave_sim::fit::{Difference, File, Fit, Found, Step};
use wave_terminal::{Failure, Progress, Table, counted, interrupt, note, out};

/// The description of the fit, as a path in the repository.
const DESCRIPTION: &str = "hosts/sim/data/fit.toml";

#[derive(Args, Debug)]
#[command(
    after_help = "Fits the values that hosts/sim/data/fit.toml names to rows of the Wave paper's Tables 2 and 3 and of its
ladder (section 7.2.2), and to nothing else. That file states each value's range, each row's rounding and the
objective. A fitted value is a cost that the paper does not print. The search begins at the middles of the ranges, reads
no fitted value, and is the same on every machine.
It takes about a minute of CPU time.

One value of the machine shinjuku-offload (Mind the Gap's prototype) is fitted to one row of its Figure 3, by
hosts/sim/data/fit-offload.toml. hosts/sim/data/open-offload.toml keeps the smallest and the largest value that meet the row.

A residual is the simulated figure less the printed one, or less the middle of the printed range, in units of the
printed rounding, or of half of the range: from -1 to 1 the figure is within.

Examples:
  wave fit                      values with their ranges, and rows with their residuals
  wave fit --check              compare the committed files with these values
  wave fit --write              write them into the files, then build again
  wave fit --json | jq '.rows[] | [.id, .fitted, .residual]'
  wave fit --intervals          write hosts/sim/data/intervals.toml anew, then build again

--intervals searches five other parameter sets that meet every fitted row within its rounding, simulates the rows of Figure 4
and of the UPI section under each, and keeps the smallest and the largest value of each row: what the fit leaves open. That takes
about a minute of CPU time for each set. Finished sets are kept in DIR; an interrupted run resumes with the same command.

Exit codes: 0 done, and with --check every file has the fit's values; 1 with --check: a file differs, and each difference
is named; 2 bad arguments; 3 the files cannot be read or written, or differ from the ones this program was built with."
)]
pub struct FitArgs {
    /// Compare the files with the fit and change nothing.
    #[arg(long, conflicts_with = "write")]
    check: bool,
    /// Write the values and their sources into the files.
    #[arg(long)]
    write: bool,
    /// Find the interval of each row that follows from the fit, and write the file.
    #[arg(long, conflicts_with_all = ["write", "check", "json"])]
    intervals: bool,
    /// Directory for finished sets.
    #[arg(long, value_name = "DIR", default_value = "out/fit")]
    out: PathBuf,
    /// Number of simulations to run at the same time, for --intervals [default: one per CPU].
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Folder of the repository [default: this folder; outside a repository, --check compares the files of the build].
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
    /// Show no progress.
    #[arg(long, short)]
    quiet: bool,
}

pub fn execute(args: &FitArgs) -> Result<(), Failure> {
    let root = root(args)?;
    let fit = Fit::builtin();
    if args.intervals {
        let root = root.ok_or_else(|| Failure::Cannot(NO_REPOSITORY.to_owned()))?;
        let path = root.join(intervals::PATH);
        let output = Output::named(&path)?;
        let found = find_intervals(&fit, args)?;
        output.write(found.to_toml())?;
        out!("{}", path.display());
        return Ok(());
    }
    let progress = Progress::new(Fit::ROUNDS as u64, args.quiet || args.json);
    interrupt::say_steps("wave fit", &progress, "round")?;
    let found = fit.search(|step| match step {
        Step::Round(round) => progress.begin(&format!("round {}", round + 1)),
        Step::Ended => progress.end(),
    });
    drop(progress);
    let prototype = Offload::builtin();
    let found_offload = prototype.search(args.jobs.map_or_else(super::sweep::cpus, usize::from));
    let texts = texts(root.as_deref())?;
    let read = |file: &File| {
        let known = texts.iter().find(|(path, _)| *path == file.path);
        known.expect("every file was read").1.clone()
    };
    let mut differences = fit.differences(&found.values, &read);
    let [machine, open] = texts_of_offload(root.as_deref())?;
    differences.extend(prototype.differences(&found_offload, &machine, &open));
    if args.json {
        let mut json = to_json(&fit, &found, &differences);
        json["offload"] = offload_to_json(&prototype, &found_offload);
        out!("{json}");
    } else {
        wave_terminal::print(format_args!("{}", terminal(&fit, &found)));
        wave_terminal::print(format_args!("{}", offload_terminal(&prototype, &found_offload)));
    }
    if let (true, Some(root)) = (args.write, &root) {
        let mut texts = texts.clone();
        let mut written = fit.written(&found.values, &read);
        written.push(prototype.written(found_offload.value, &machine));
        written.push(found_offload.open.to_toml());
        texts.extend([(offload::MACHINE_PATH, machine), (offload::OPEN_PATH, open)]);
        for ((path, old), new) in texts.iter().zip(written) {
            if *old != new {
                let path = root.join(path);
                Output::named(&path)?.write(new)?;
                if !args.json {
                    out!("{}", path.display());
                }
            }
        }
    } else if args.check && !differences.is_empty() {
        let named: Vec<String> = differences.iter().map(words).collect();
        return Err(Failure::Check(format!(
            "{}\nto accept the fitted values: wave fit --write",
            named.join("\n")
        )));
    }
    Ok(())
}

const NO_REPOSITORY: &str =
    "--intervals writes into the repository: run it there, or pass --root DIR";

/// Number of parameter sets for --intervals, beside the fit's own.
const SETS: usize = 5;

/// The smallest and the largest value of each row under the fitted values and [`SETS`] other parameter sets. Makes at
/// most ten tries per set, so that fewer sets may be found.
fn find_intervals(fit: &Fit, args: &FitArgs) -> Result<Intervals, Failure> {
    let (committed, digest) = (fit.committed(), intervals::digest());
    let threads = args.jobs.map_or_else(super::sweep::cpus, usize::from);
    let wanted = SETS + 1;
    fs::create_dir_all(&args.out).map_err(|error| failed(&args.out, "create", &error))?;
    let progress = Progress::new(wanted as u64, args.quiet);
    let (ended, kept) = (progress.ended(), args.out.display().to_string());
    interrupt::say(move || {
        let (ended, of) = (ended.load(Ordering::Relaxed), counted(wanted, "parameter set"));
        let again = interrupt::same_command();
        format!(
            "wave fit: interrupted: {ended} of {of} done and kept in {kept}. To resume:\n  {again}"
        )
    })?;
    let mut source = None;
    let mut found = Vec::new();
    for number in 0..=10 * SETS as u64 {
        let file = args.out.join(format!("{digest}-{number}.json"));
        let kept = fs::read(&file).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let rows: BTreeMap<String, f64> = match kept {
            Some(rows) => rows,
            None => {
                progress.begin(&format!("parameter set {number}"));
                let values = match number {
                    0 => Some(committed.clone()),
                    _ => source.get_or_insert_with(|| fit.sets(&committed)).set(number),
                };
                let simulate = |values: Vec<f64>| intervals::predict(&fit.model(&values), threads);
                let rows = values.map(simulate).unwrap_or_default();
                let text = serde_json::to_vec(&rows).map_err(Failure::cannot)?;
                Output::below_a_folder(&file)?.write(text)?;
                rows
            }
        };
        // A try that finds no parameter set leaves no rows.
        if !rows.is_empty() {
            found.push(rows);
            progress.end();
        }
        if found.len() == wanted {
            break;
        }
    }
    if found.len() < wanted {
        note!("wave fit: found only {} of {wanted} parameter sets", found.len());
    }
    Ok(Intervals::of(&found))
}

fn failed(path: &Path, what: &str, error: &std::io::Error) -> Failure {
    Failure::Cannot(format!("{}: cannot {what}: {error}", path.display()))
}

/// The repository; `None` outside a repository, where the files of the build are used.
fn root(args: &FitArgs) -> Result<Option<PathBuf>, Failure> {
    let root = args.root.clone().unwrap_or_else(|| PathBuf::from("."));
    let description = root.join(DESCRIPTION);
    match fs::read_to_string(&description) {
        Ok(text) if text == Fit::text() => Ok(Some(root)),
        Ok(_) => Err(Failure::Cannot(format!(
            "{}: this program was built with another version of it; build again: cargo build --release --package wave",
            description.display()
        ))),
        Err(_) if args.root.is_none() && !args.write => Ok(None),
        Err(error) => Err(failed(&description, "read", &error)),
    }
}

/// The text of each file with fitted values, by its path in the repository.
fn texts(root: Option<&Path>) -> Result<Vec<(&'static str, String)>, Failure> {
    let read = |file: &File| {
        let Some(root) = root else { return Ok((file.path, file.builtin().to_owned())) };
        let path = root.join(file.path);
        let text = fs::read_to_string(&path).map_err(|error| failed(&path, "read", &error))?;
        Ok((file.path, text))
    };
    wave_sim::fit::FILES.iter().map(read).collect()
}

/// The texts of the files that the prototype's fit writes.
fn texts_of_offload(root: Option<&Path>) -> Result<[String; 2], Failure> {
    let Some(root) = root else { return Ok(Offload::builtin_texts().map(str::to_owned)) };
    let read = |path: &str| {
        let path = root.join(path);
        fs::read_to_string(&path).map_err(|error| failed(&path, "read", &error))
    };
    Ok([read(offload::MACHINE_PATH)?, read(offload::OPEN_PATH)?])
}

fn words(difference: &Difference) -> String {
    let Difference { path, key, stated, fitted, .. } = difference;
    match stated {
        None => format!("{path}: {key} is missing; the fit gives {fitted}"),
        Some(stated) if stated == fitted => format!("{path}: {key} names a different source"),
        Some(stated) => format!("{path}: {key} is {stated}; the fit gives {fitted}"),
    }
}

fn terminal(fit: &Fit, found: &Found) -> String {
    let mut values =
        Table::new(1, ["value", "fitted", "range", "source"]).with_text_in(&["range", "source"]);
    for (value, x) in fit.values.iter().zip(&found.values) {
        let range = format!("{} to {}", value.low, value.high);
        values.push([value.name(), x.to_string(), range, value.source.clone()]);
    }
    let mut rows = Table::new(1, ["row", "printed", "fitted", "residual"]);
    for (row, ours) in fit.rows.iter().zip(&found.rows) {
        let printed = match row.printed.low == row.printed.high {
            true => row.printed.low.to_string(),
            false => format!("{} to {}", row.printed.low, row.printed.high),
        };
        let residual = format!("{:+.2}", row.residual(*ours));
        rows.push([row.printed.id.clone(), printed, format!("{ours:.0}"), residual]);
    }
    let ruled = fit.values.iter().filter(|value| value.rule.is_some()).count();
    format!(
        "{values}\n\n{rows}\n\n{} values ({ruled} by a rule) against {} rows; objective {:.3}\n",
        fit.values.len(),
        fit.rows.len(),
        found.objective
    )
}

fn offload_terminal(fit: &Offload, found: &offload::Found) -> String {
    let (value, row) = (&fit.value, &fit.row);
    let mut shown =
        Table::new(8, ["value", "fitted", "open", "range", "row", "printed", "fitted", "residual"]);
    shown.push([
        value.name(),
        found.value.to_string(),
        format!("{} to {}", found.open.least, found.open.most),
        format!("{} to {}", value.low, value.high),
        row.printed.id.clone(),
        row.printed.low.to_string(),
        format!("{:.1}", found.row),
        format!("{:+.2}", row.residual(found.row)),
    ]);
    format!("\n{shown}\n")
}

fn offload_to_json(fit: &Offload, found: &offload::Found) -> Value {
    let (value, row) = (&fit.value, &fit.row);
    let residual = row.residual(found.row);
    json!({
        "value": {
            "file": value.file, "key": value.key, "fitted": found.value, "range": [value.low, value.high],
            "open": [found.open.least, found.open.most], "source": value.source,
        },
        "row": {
            "id": row.printed.id, "printed": [row.printed.low, row.printed.high], "half": row.half,
            "fitted": found.row, "residual": residual, "inside": residual.abs() <= 1.0,
        },
    })
}

fn to_json(fit: &Fit, found: &Found, differences: &[Difference]) -> Value {
    let values = fit.values.iter().zip(&found.values).map(|(value, x)| {
        json!({
            "file": value.file, "key": value.key, "fitted": x, "range": [value.low, value.high],
            "by_rule": value.rule.is_some(), "source": value.source,
        })
    });
    let rows = fit.rows.iter().zip(&found.rows).map(|(row, ours)| {
        let residual = row.residual(*ours);
        json!({
            "id": row.printed.id, "printed": [row.printed.low, row.printed.high], "half": row.half,
            "fitted": ours, "residual": residual, "inside": residual.abs() <= 1.0,
        })
    });
    let differences = differences.iter().map(|difference| {
        json!({
            "file": difference.path, "key": difference.key, "stated": difference.stated,
            "fitted": difference.fitted, "source_differs": difference.source_differs,
        })
    });
    json!({
        "values": values.collect::<Vec<_>>(),
        "rows": rows.collect::<Vec<_>>(),
        "objective": found.objective,
        "differences": differences.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(root: &Path, check: bool) -> FitArgs {
        let root = Some(root.to_owned());
        FitArgs {
            check,
            write: !check,
            intervals: false,
            out: root.clone().unwrap_or_default(),
            jobs: None,
            root,
            json: false,
            quiet: true,
        }
    }

    #[test]
    fn folders_that_are_no_repository_or_differ_from_the_build_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let failure = root(&args(folder.path(), true)).unwrap_err();
        assert_eq!(failure.exit_code(), 3);
        assert!(failure.to_string().contains(DESCRIPTION), "{failure}");
        let file = folder.path().join(DESCRIPTION);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "prefer = 1").unwrap();
        let failure = root(&args(folder.path(), false)).unwrap_err();
        assert!(failure.exit_code() == 3 && failure.to_string().contains("build again"));
        fs::write(&file, Fit::text()).unwrap();
        assert_eq!(root(&args(folder.path(), true)).unwrap().as_deref(), Some(folder.path()));
    }

    #[test]
    fn a_difference_names_the_file_the_key_and_both_values() {
        let difference = |stated, source_differs| Difference {
            path: "a.toml",
            key: "b".into(),
            stated,
            fitted: 3.5,
            source_differs,
        };
        assert_eq!(words(&difference(Some(3.0), false)), "a.toml: b is 3; the fit gives 3.5");
        assert_eq!(words(&difference(None, false)), "a.toml: b is missing; the fit gives 3.5");
        assert_eq!(words(&difference(Some(3.5), true)), "a.toml: b names a different source");
    }
}

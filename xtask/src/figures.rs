//! `cargo xtask figures`: runs the benches, and writes a table of their figures, docs/measured.md.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use serde_json::Value;

use crate::bench::figures::{self, Figure};
use crate::cargo;

pub const USAGE: &str = "usage: cargo xtask figures [RUNS]          run each bench RUNS times (3) on this machine, which \
                         should do nothing else, and write docs/measured.md";

/// Default number of runs of each bench.
const RUNS: usize = 3;
const RUNS_MAX: usize = 100;
const TABLE: &str = "docs/measured.md";

/// Runs `cargo xtask figures`.
pub fn main(arguments: &[String]) -> ExitCode {
    let runs = match arguments {
        [] => Some(RUNS),
        [runs] => runs.parse().ok().filter(|runs| (1..=RUNS_MAX).contains(runs)),
        _ => None,
    };
    let Some(runs) = runs else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match measured(runs) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("figures: {why}");
            ExitCode::FAILURE
        }
    }
}

fn measured(runs: usize) -> Result<(), String> {
    eprintln!("figures: building wave and wave-bench, optimized");
    let wave = cargo::built("wave", &["build", "--release", "--package", "wave-bench"])?;
    let mut text = String::new();
    let mut lines_ns = Vec::new();
    for bench in figures::of_program(Path::new(&wave))? {
        let labelled = |figure: &Figure| Some((figure.label.clone()?, figure.key.clone()));
        let figures: Vec<_> = bench.figures.iter().filter_map(labelled).collect();
        if figures.is_empty() {
            continue;
        }
        let name = &bench.name;
        let mut found = Vec::new();
        for run in 1..=runs {
            eprintln!("figures: wave bench {name}, {run} of {runs}");
            let object = json_of(&wave, &["bench", name, "--json"])?;
            lines_ns.extend(number(&object, "cpus.line_ping_pong_ns.p50"));
            found.push(object);
        }
        text += &table(name, &figures, &found)?;
    }
    let heading = heading(&wave, runs, &lines_ns)?;
    let path = cargo::workspace().join(TABLE);
    fs::write(&path, heading + &text).map_err(|error| format!("{TABLE}: {error}"))?;
    println!("figures: wrote {TABLE}");
    Ok(())
}

fn heading(wave: &str, runs: usize, lines_ns: &[f64]) -> Result<String, String> {
    let say = |program: &str, words: &[&str]| {
        let output = Command::new(program).args(words).current_dir(cargo::workspace()).output();
        let output = output.map_err(|error| format!("{program}: {error}"))?;
        Ok::<_, String>(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let date = say("date", &["-u", "+%Y-%m-%d"])?;
    let commit = say("git", &["describe", "--always", "--dirty=, changed"])?;
    let kernel = say("uname", &["-r"])?;
    let version = say(wave, &["--version"])?;
    let cpus = say("nproc", &[])?;
    let about = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = about.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    let model = model.trim_start_matches([' ', '\t', ':']);
    let [low, middle, high] = spread(lines_ns);
    Ok(format!(
        "# Measured\n\n\
         Written by `cargo xtask figures` on {date}, of commit {commit} ({version}): each bench {runs} times, on {cpus} CPUs \
         ({model}, Linux {kernel}).\n\
         A bare cache line took {} ns one way between the two CPUs ({} to {} over the runs): on our machines, less than \
         about 60 ns means that they share a cache.\n\n\
         A figure is the median of the runs, with its range. `wave bench NAME --help` says what each is; \
         [figures.md](figures.md) has what they are compared with, and what else was measured.\n",
        shown(middle),
        shown(low),
        shown(high)
    ))
}

fn table(name: &str, figures: &[(String, String)], runs: &[Value]) -> Result<String, String> {
    let mut text = format!("\n## `wave bench {name}`\n\n");
    if let Some(peer) = runs[0]["peer"].as_str() {
        let _ = writeln!(text, "Peer: {peer}.\n");
    }
    text += "| figure | median | range |\n| --- | --- | --- |\n";
    for (what, key) in figures {
        let values: Option<Vec<f64>> = runs.iter().map(|run| number(run, key)).collect();
        let values = values.ok_or_else(|| format!("wave bench {name} has no {key}"))?;
        let [low, middle, high] = spread(&values);
        let _ =
            writeln!(text, "| {what} | {} | {} to {} |", shown(middle), shown(low), shown(high));
    }
    Ok(text)
}

/// Lowest, median and highest value; NaN if there are none.
fn spread(values: &[f64]) -> [f64; 3] {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
    [at(0), at(sorted.len() / 2), at(sorted.len().saturating_sub(1))]
}

/// A number with two to four significant digits.
fn shown(value: f64) -> String {
    match value.abs() {
        1e6.. => format!("{:.1} M", value / 1e6),
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        0.1.. => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

fn number(object: &Value, key: &str) -> Option<f64> {
    let found = key.split('.').try_fold(object, |value, key| value.get(key))?;
    // A ratio is an object: its median, and the ends of its interval.
    found.get("median").unwrap_or(found).as_f64()
}

fn json_of(program: &str, words: &[&str]) -> Result<Value, String> {
    let mut command = Command::new(program);
    let output = command.args(words).stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{program} {} failed ({})", words.join(" "), output.status));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("{program}: {error}"))
}

#[cfg(test)]
mod unit_tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_table_has_the_median_and_the_range_of_the_runs() {
        let runs = [3.0, 1.0, 2.5].map(|ratio| json!({ "peer": "rtrb", "of": { "ratio": ratio } }));
        let text = table("queue", &[("one way".into(), "of.ratio".into())], &runs).unwrap();
        assert!(text.contains("Peer: rtrb."), "{text}");
        assert!(text.ends_with("| one way | 2.50 | 1.00 to 3.00 |\n"), "{text}");
        let missing = table("queue", &[("one way".into(), "ratio".into())], &runs).unwrap_err();
        assert_eq!(missing, "wave bench queue has no ratio");
    }

    #[test]
    fn numbers_are_short() {
        let texts = [36_123_456.0, 268.4, 42.31, 0.671, 0.0128].map(shown);
        assert_eq!(texts, ["36.1 M", "268", "42.3", "0.67", "0.0128"]);
    }
}

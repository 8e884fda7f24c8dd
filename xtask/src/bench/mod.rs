//! `cargo xtask bench compare`: finds whether this tree is slower than a commit, by pairs of runs of `wave bench`.

mod arguments;
mod builds;
mod counter;
pub mod figures;
mod pairs;
mod report;
mod run;
mod verdict;

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use serde_json::{Value, json};

use arguments::{Request, Wanted};
use builds::{Place, Side, Tree};
use figures::Bench;
use pairs::Programs;
use report::Row;
use run::{Failure, Stop};

pub const USAGE: &str = arguments::USAGE;

/// Nothing could be compared: no such commit, or a failed build.
const EXIT_CANNOT: u8 = 3;

/// Runs what follows `cargo xtask bench`.
pub fn main(arguments: &[String]) -> ExitCode {
    match arguments::parse(arguments) {
        Ok(Request::Help) => {
            println!("{USAGE}\n{}", arguments::DETAILS);
            ExitCode::SUCCESS
        }
        Ok(Request::Compare(wanted)) => match compare(&wanted) {
            Ok(code) => ExitCode::from(code),
            Err(why) => {
                eprintln!("bench: {why}");
                ExitCode::from(EXIT_CANNOT)
            }
        },
        Err(why) => {
            eprintln!("bench: {why}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// Builds both sides, compares them, and returns the exit code.
fn compare(wanted: &Wanted) -> Result<u8, String> {
    let place = Place::take()?;
    let (base, tip) = (Tree::of_commit(&wanted.base)?, Tree::here()?);
    let programs = Programs {
        base: place.build(Side::Base, &base)?,
        tip: place.build(Side::Tip, &tip)?,
        no_counters: counter::unavailable(),
    };
    let benches = chosen(figures::of_program(&programs.tip)?, &wanted.benches)?;
    // Only now: during a build a signal must end this process and cargo at once.
    let stop = Stop::on_signals()?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let name = format!("{}-{}-{}", base.name(), tip.name(), now.as_secs());
    let kept = Kept::new(place.results(&name)?)?;
    eprintln!(
        "bench: {} against {}; runs are kept in {}",
        tip.name(),
        base.name(),
        kept.folder.display()
    );
    if let Some(why) = &programs.no_counters {
        eprintln!("bench: instructions per switch are not counted: {why}");
    }
    let compared = json!({
        "base": { "typed": wanted.base, "commit": base.commit },
        "tip": { "commit": tip.commit, "changed": tip.is_changed },
        "pairs": wanted.pairs,
        "cpus": allowed_cpus(),
        "no_counters": programs.no_counters,
    });
    measure((wanted, &benches), &programs, compared, kept, &stop, &mut std::io::stdout())
}

/// The benches of these names, in this order; all that have compared figures if there are none.
fn chosen(mut known: Vec<Bench>, names: &[String]) -> Result<Vec<Bench>, String> {
    known.retain(|bench| bench.compared().next().is_some());
    if names.is_empty() {
        return Ok(known);
    }
    let bench = |name: &String| match known.iter().find(|bench| bench.name == *name) {
        Some(bench) => Ok(bench.clone()),
        None => {
            let known: Vec<&str> = known.iter().map(|bench| bench.name.as_str()).collect();
            let known = known.join(", ");
            Err(format!("there is no bench `{name}` to compare; choose from: {known}"))
        }
    };
    names.iter().map(bench).collect()
}

/// Runs the pairs of all benches, and returns the exit code. `compared` describes the two sides for the summary.
fn measure(
    (wanted, benches): (&Wanted, &[Bench]),
    programs: &Programs,
    mut compared: Value,
    mut kept: Kept,
    stop: &Stop,
    out: &mut impl Write,
) -> Result<u8, String> {
    let mut print =
        |line: &str| writeln!(out, "{line}").map_err(|error| format!("standard output: {error}"));
    if !wanted.json {
        print(&report::heading())?;
    }
    let (mut rows, mut failed) = (Vec::<Row>::new(), Vec::<Value>::new());
    for bench in benches {
        let keep = |pair, side, result: &_| kept.run(&bench.name, pair, side, result);
        let pairs = programs.pairs(bench, wanted.pairs, stop, keep)?;
        for (side, why) in &pairs.failed {
            let (name, side) = (&bench.name, side.name());
            eprintln!("bench: {name}: a pair is discarded because the {side} failed: {why}");
            failed.push(json!({ "bench": name, "side": side, "why": why }));
        }
        compared["failed"] = failed.clone().into();
        let new = report::rows(bench, &pairs, programs.no_counters.as_deref());
        let lines: Vec<String> = new.iter().map(Row::line).collect();
        rows.extend(new);
        kept.summary(&report::summary(&compared, &rows, stop.signal()))?;
        if !wanted.json {
            lines.iter().try_for_each(|line| print(line))?;
        }
        if pairs.is_interrupted {
            eprintln!("bench: interrupted in {} after {} pairs", bench.name, pairs.whole.len());
            break;
        }
    }
    // A signal may come at any time: the saved summary, the printed one and the exit code all follow from one look.
    let signal = stop.signal();
    let summary = report::summary(&compared, &rows, signal);
    kept.summary(&summary)?;
    print(&if wanted.json { summary.to_string() } else { report::counts(&rows) })?;
    Ok(report::exit_code(&rows, signal))
}

/// The files of a comparison, written as results come.
struct Kept {
    folder: PathBuf,
    runs: File,
}

impl Kept {
    fn new(folder: PathBuf) -> Result<Self, String> {
        let runs = File::create(folder.join("runs.jsonl"));
        let runs = runs.map_err(|error| format!("{}: {error}", folder.display()))?;
        Ok(Self { folder, runs })
    }

    /// Adds a line to `runs.jsonl`.
    fn run(
        &mut self,
        bench: &str,
        pair: usize,
        side: Side,
        result: &Result<Value, Failure>,
    ) -> Result<(), String> {
        let mut line = json!({ "bench": bench, "pair": pair, "side": side.name() });
        match result {
            Ok(printed) => line["printed"] = printed.clone(),
            Err(failure) => line["failure"] = format!("{failure:?}").into(),
        }
        let written = writeln!(self.runs, "{line}");
        written.map_err(|error| format!("{}: {error}", self.folder.display()))
    }

    /// Writes all rows so far. The file is always complete: the old version or the new one.
    fn summary(&self, summary: &Value) -> Result<(), String> {
        let new = self.folder.join("summary.json.new");
        let written = fs::write(&new, format!("{summary:#}\n"));
        written
            .and_then(|()| fs::rename(&new, self.folder.join("summary.json")))
            .map_err(|error| format!("{}: {error}", self.folder.display()))
    }
}

/// The CPUs that runs may use; benches pin their threads to the first of them.
fn allowed_cpus() -> Option<String> {
    let status = fs::read_to_string(Path::new("/proc/self/status")).ok()?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    Some(list.trim().to_owned())
}

#[cfg(test)]
mod unit_tests {
    use std::process::Command;

    use super::*;

    const PRINTS: &str = r#"echo '{"yield_ns":{"p50":100},"futex_handoff_ns":{"p50":1}}'"#;

    /// A folder of one test, removed when dropped.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let folder = format!("xtask-bench-{name}-{}", std::process::id());
            let folder = std::env::temp_dir().join(folder);
            fs::create_dir_all(&folder).unwrap();
            Self(folder)
        }

        /// A script in place of `wave`. Another process writes it: a program that a process has open for writing cannot be
        /// executed, and a child of another test may briefly inherit this process's open files.
        fn program(&self, name: &str, script: &str) -> PathBuf {
            let path = self.0.join(name);
            let mut writer = Command::new("sh");
            writer.args(["-c", "printf '#!/bin/sh\n%s\n' \"$1\" > \"$0\" && chmod +x \"$0\""]);
            assert!(writer.arg(&path).arg(script).status().unwrap().success());
            path
        }

        /// The exit code of a comparison, and the summary that it saves.
        fn measured(
            &self,
            [base, tip]: [&str; 2],
            wanted: &Wanted,
            stop: &Stop,
            out: &mut impl Write,
        ) -> (u8, Value) {
            let programs = Programs {
                base: self.program("base", base),
                tip: self.program("tip", tip),
                no_counters: Some("no counters here".into()),
            };
            let kept = Kept::new(self.0.clone()).unwrap();
            let code = measure((wanted, &[Bench::switch()]), &programs, json!({}), kept, stop, out)
                .unwrap();
            let summary = fs::read(self.0.join("summary.json")).unwrap();
            (code, serde_json::from_slice(&summary).unwrap())
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn wanted(pairs: usize, json: bool) -> Wanted {
        Wanted { base: "main".into(), pairs, json, benches: vec!["switch".into()] }
    }

    #[test]
    fn named_benches_are_compared_in_their_order_and_others_are_refused() {
        let known = || {
            let mut list = Bench::switch();
            (list.name, list.figures) = ("kernel".into(), Vec::new());
            vec![list, Bench::switch()]
        };
        let names = |wanted: &[&str]| {
            let wanted: Vec<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
            let found = chosen(known(), &wanted)?;
            Ok::<_, String>(found.into_iter().map(|bench| bench.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&[]).unwrap(), ["switch"]);
        assert_eq!(names(&["switch", "switch"]).unwrap(), ["switch", "switch"]);
        let refused = names(&["kernel"]).unwrap_err();
        assert_eq!(refused, "there is no bench `kernel` to compare; choose from: switch");
    }

    #[test]
    fn a_tip_that_crashes_sometimes_does_not_hold() {
        let folder = Folder::new("crash");
        let runs = folder.0.join("runs");
        let runs = runs.display();
        let crashes = format!(
            "echo >> {runs}; case $(wc -l < {runs}) in 3|6) echo crash >&2; exit 101;; esac; {PRINTS}"
        );
        let mut out = Vec::new();
        let stop = Stop::default();
        let (code, summary) =
            folder.measured([PRINTS, &crashes], &wanted(8, true), &stop, &mut out);
        assert_eq!(code, 4);
        assert_eq!(summary["figures"][0]["pairs"], json!(6));
        assert_eq!(summary["figures"][0]["verdict"], json!("not measured"));
        assert_eq!(summary["failed"].as_array().unwrap().len(), 2);
        assert_eq!(serde_json::from_slice::<Value>(&out).unwrap(), summary);
        let _ = fs::remove_file(folder.0.join("runs"));
        let (code, _) = folder.measured([PRINTS, PRINTS], &wanted(8, true), &stop, &mut Vec::new());
        assert_eq!(code, 0);
    }

    /// Standard output that raises a signal while the rows are printed.
    struct Interrupts<'a>(&'a Stop);

    impl Write for Interrupts<'_> {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            if String::from_utf8_lossy(bytes).contains("yield_ns") {
                self.0.come(2);
            }
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_signal_after_the_last_pair_sets_exit_code_and_summary() {
        let folder = Folder::new("signal");
        let stop = Stop::default();
        let (code, summary) =
            folder.measured([PRINTS; 2], &wanted(6, false), &stop, &mut Interrupts(&stop));
        assert_eq!(code, 130);
        assert_eq!((&summary["interrupted"], &summary["exit_code"]), (&json!(true), &json!(130)));
    }
}

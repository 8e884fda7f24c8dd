//! `cargo xtask bench compare`: whether this tree is slower than a commit, by pairs of runs of `wave bench`.

mod arguments;
mod builds;
mod counter;
mod figures;
mod pairs;
mod report;
mod run;
mod statistics;

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use serde_json::{Value, json};

use arguments::{Request, Wanted};
use builds::{Place, Side, Tree};
use pairs::Programs;
use report::{Row, Whole};
use run::{Failure, Stop};

/// What to type.
pub const USAGE: &str = arguments::USAGE;

/// There is nothing to compare: no such commit, or a build that fails.
const EXIT_CANNOT: u8 = 3;
/// A signal ended it: this and the signal's number.
const EXIT_SIGNAL: u8 = 128;

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

/// The exit code.
fn compare(wanted: &Wanted) -> Result<u8, String> {
    let place = Place::take()?;
    let (base, tip) = (Tree::of_commit(&wanted.base)?, Tree::here()?);
    let no_counters = counter::unavailable();
    let programs = Programs {
        base: place.build(Side::Base, &base)?,
        tip: place.build(Side::Tip, &tip)?,
        counts: no_counters.is_none(),
    };
    // Not before: a signal during a build ends this process and cargo at once.
    let stop = Stop::on_signals()?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let name = format!("{}-{}-{}", base.name(), tip.name(), now.as_secs());
    let mut kept = Kept::new(place.results(&name)?)?;
    eprintln!(
        "bench: {} against {}; runs are kept in {}",
        tip.name(),
        base.name(),
        kept.folder.display()
    );
    if let Some(why) = &no_counters {
        eprintln!("bench: instructions per switch are not counted: {why}");
    }
    if !wanted.json {
        println!("{}", report::heading());
    }

    let mut compared = json!({
        "base": { "typed": wanted.base, "commit": base.commit },
        "tip": { "commit": tip.commit, "changed": tip.is_changed },
        "pairs": wanted.pairs,
        "cpus": allowed_cpus(),
        "no_counters": no_counters,
    });
    let (mut rows, mut failed) = (Vec::<Row>::new(), Vec::<Value>::new());
    for bench in &wanted.benches {
        let keep = |pair, side, result: &_| kept.run(bench.name, pair, side, result);
        let pairs = programs.pairs(bench, wanted.pairs, &stop, keep)?;
        for (side, why) in &pairs.failed {
            let (name, side) = (bench.name, side.name());
            eprintln!("bench: {name}: a pair is left out: the {side} failed: {why}");
            failed.push(json!({ "bench": name, "side": side, "why": why }));
        }
        compared["failed"] = failed.clone().into();
        let new = report::rows(bench, &pairs, no_counters.as_deref());
        if !wanted.json {
            new.iter().for_each(|row| println!("{}", row.line()));
        }
        rows.extend(new);
        kept.summary(&report::summary(&compared, &rows, pairs.is_interrupted))?;
        if pairs.is_interrupted {
            eprintln!("bench: interrupted in {} after {} pairs", bench.name, pairs.whole.len());
            break;
        }
    }
    let signal = stop.signal();
    if wanted.json {
        println!("{}", report::summary(&compared, &rows, signal.is_some()));
    } else {
        println!("{}", report::counts(&rows));
    }
    Ok(signal.map_or(Whole::of(&rows).exit_code(), |signal| EXIT_SIGNAL + signal))
}

/// What a comparison leaves, as it comes.
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

    /// A line.
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

    /// All rows that there are. It is there whole, or as it was.
    fn summary(&self, summary: &Value) -> Result<(), String> {
        let new = self.folder.join("summary.json.new");
        let written = fs::write(&new, format!("{summary:#}\n"));
        written
            .and_then(|()| fs::rename(&new, self.folder.join("summary.json")))
            .map_err(|error| format!("{}: {error}", self.folder.display()))
    }
}

/// The CPUs that every run may use; benches pin their threads to the first of them.
fn allowed_cpus() -> Option<String> {
    let status = fs::read_to_string(Path::new("/proc/self/status")).ok()?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    Some(list.trim().to_owned())
}

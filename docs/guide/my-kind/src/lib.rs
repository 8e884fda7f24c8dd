//! A kind of experiment of one's own: round trips through a socket pair, for several message sizes.

#![forbid(unsafe_code)]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use maud::html;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;
use wave_experiments::ground::fields::{Name, ascending};
use wave_experiments::ground::rounds::over_rounds;
use wave_experiments::ground::{Journal, planned};
use wave_experiments::kinds::{Experiment, Kind, Wanted, digest, keep_when_interrupted};
use wave_report::model::Figure;
use wave_report::number::thousands;
use wave_report::{Directory, Report, csv, document, folder};
use wave_scenario::reference::fields_of;
use wave_scenario::{ScenarioError, Source};
use wave_terminal::{Failure, Progress, Table};

/// What a program registers by `Kinds::with`.
pub static KIND: Kind = Kind {
    names: &["pipe"],
    about: "Round trips through a socket pair by the size of the message.",
    commands: "`cargo run -p my-kind -- FILE`",
    examples: &[include_str!("pipe.toml")],
    fields: fields_of::<Pipe>,
    takes_agent: false,
    read: |wished| Ok(Box::new(read(wished.source)?)),
};

/// The fields of a file.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pipe {
    name: Name,
    /// One paragraph for the reader of the results.
    #[serde(default)]
    description: String,
    /// Kind of the scenario.
    kind: String,
    /// Measurements.
    #[serde(default)]
    #[schemars(extend("x-required" = true))]
    run: Run,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(deny_unknown_fields, default)]
struct Run {
    /// Sizes of the messages, in ascending order.
    #[schemars(inner(range(min = 1, max = 65_536)), extend("x-required" = true))]
    bytes: Vec<u32>,
    /// Length of a measurement.
    #[default(0.02)]
    #[schemars(range(min = 0.001, max = 10))]
    seconds: f64,
    /// Rounds in which each size is measured once, in random order.
    #[default(10)]
    #[schemars(range(min = 6, max = 1_000))]
    rounds: u32,
}

/// Reads a file, and checks what the types cannot.
fn read(source: &Source<'_>) -> Result<Pipe, ScenarioError> {
    let pipe: Pipe = source.read()?;
    ascending(source, "run.bytes", &pipe.run.bytes, 100)?;
    Ok(pipe)
}

impl Experiment for Pipe {
    fn name(&self) -> &str {
        &self.name
    }

    fn digest(&self) -> Result<String, Failure> {
        digest(self, [])
    }

    fn run(&self, wanted: &Wanted<'_>, journal: &Arc<Journal>) -> Result<Box<dyn Report>, Failure> {
        keep_when_interrupted(journal)?;
        let Run { bytes, seconds, rounds } = &self.run;
        let steps = bytes.len() as u64 * u64::from(*rounds);
        let progress = Progress::new(steps, wanted.quiet);
        journal.follow(&progress);
        progress.say(&planned(steps, *seconds));
        let mut measured: Vec<Vec<f64>> = vec![Vec::new(); bytes.len()];
        for round in 0..u64::from(*rounds) {
            for at in wave_compare::order(0, round, bytes.len()) {
                progress.begin(&format!("round {} of {rounds}: {} bytes", round + 1, bytes[at]));
                let length = Duration::from_secs_f64(*seconds);
                // A finished measurement of an interrupted run comes from the journal.
                let key = format!("{} bytes, {round}", bytes[at]);
                measured[at].push(journal.point(&key, || round_trips(bytes[at] as usize, length))?);
                progress.end();
            }
        }
        let rows = bytes.iter().zip(&measured);
        let rows = rows.map(|(&bytes, rounds)| Row { bytes, per_second: over_rounds(rounds) });
        let (scenario, description) = (self.name.to_string(), self.description.clone());
        Ok(Box::new(Trips { scenario, host: "user", description, rows: rows.collect() }))
    }
}

/// Round trips a second of a message of this size.
fn round_trips(bytes: usize, length: Duration) -> Result<f64, Failure> {
    let (mut here, mut there) = UnixStream::pair().map_err(Failure::cannot)?;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut message = vec![0; bytes];
            while there.read_exact(&mut message).is_ok() && there.write_all(&message).is_ok() {}
        });
        let (mut message, mut count, start) = (vec![1; bytes], 0_u32, Instant::now());
        while start.elapsed() < length {
            here.write_all(&message).map_err(Failure::cannot)?;
            here.read_exact(&mut message).map_err(Failure::cannot)?;
            count += 1;
        }
        let per_second = f64::from(count) / start.elapsed().as_secs_f64();
        // Ends the other thread.
        drop(here);
        Ok(per_second)
    })
}

#[derive(Clone, Debug, Serialize)]
struct Row {
    bytes: u32,
    /// Round trips a second: median over rounds, with its interval.
    per_second: Figure,
}

#[derive(Clone, Debug, Serialize)]
struct Trips {
    scenario: String,
    host: &'static str,
    description: String,
    rows: Vec<Row>,
}

impl Trips {
    fn table(&self) -> Table {
        let cells = |row: &Row| vec![row.bytes.to_string(), row.per_second.words(thousands)];
        Table::new(0, ["bytes", "k round trips/s"]).with(self.rows.iter().map(cells))
    }
}

impl Report for Trips {
    fn text(&self) -> String {
        self.table().to_string()
    }

    fn json(&self) -> Result<String, Failure> {
        serde_json::to_string(self).map_err(Failure::cannot)
    }

    fn write(&self, out: &Path) -> Result<PathBuf, Failure> {
        let directory = Directory::create(folder(out, &self.scenario, self.host))?;
        let rows = self.rows.iter();
        let rows = rows.map(|row| [row.bytes.to_string(), row.per_second.value.to_string()]);
        directory.write("rows.csv", &csv(["bytes", "per_second"], rows))?;
        directory.write("results.json", self.json()?.as_bytes())?;
        let page = document(
            &self.scenario,
            &html! { p { (self.description) } (wave_report::table(&self.table())) },
        );
        directory.write("report.html", page.as_bytes())?;
        Ok(directory.into_path())
    }
}

//! `wave rmt explore`: every order of packets through Laminar's reassembly.

use std::process::ExitCode;

use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use wave_tcp::laminar::explore::{Explored, Settings, WORD, explore};
use wave_tcp::laminar::planted::{PLANTED, Planted};
use wave_terminal::{Progress, Table, out};

use super::trace::Laminar;

/// First bytes of the stream: with words of five bits, sequence numbers go around at 32 and change their sign at 16.
const FIRST: [(u32, &str); 3] = [(0, "from 0"), (28, "around 32"), (13, "across the sign")];

#[derive(Args, Debug)]
#[command(
    after_help = "The pipeline itself runs, with words of five bits. A peer sends any bytes of an eight-byte stream, within its window of seven
and beyond; up to two pseudo segments are on their way, late or lost; grants come at any time. Checked after each packet: nothing is
acknowledged that did not come, the interval has only bytes that came, the granted edge stays. From every state a peer that sends
the missing bytes comes to the end and hears of it.

Examples:
  wave rmt explore laminar
  wave rmt explore laminar --plant jump     a fault, and the shortest way to it
  wave rmt explore laminar --json | jq .violations

Exit codes: 0 nothing is violated; 1 something is; 2 bad arguments."
)]
pub struct ExploreArgs {
    /// The pipeline.
    #[arg(value_name = "PIPELINE")]
    pipeline: Laminar,
    /// A fault to plant.
    #[arg(long, value_name = "FAULT")]
    plant: Option<Fault>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// A planted fault.
#[derive(Clone, Copy, Debug)]
struct Fault(&'static Planted);

static PLANTS: &[Planted] = PLANTED;

static FAULTS: [Fault; PLANTED.len()] = {
    let mut faults = [Fault(&PLANTS[0]); PLANTED.len()];
    let mut index = 0;
    while index < faults.len() {
        faults[index] = Fault(&PLANTS[index]);
        index += 1;
    }
    faults
};

impl ValueEnum for Fault {
    fn value_variants<'a>() -> &'a [Fault] {
        &FAULTS
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.0.name).help(self.0.about))
    }
}

pub fn run(args: &ExploreArgs) -> ExitCode {
    let pipeline = match args.plant {
        Some(fault) => &fault.0.pipeline,
        None => args.pipeline.pipeline(),
    };
    let progress = Progress::new(FIRST.len() as u64, args.json);
    let mut rows = vec![];
    for (first, name) in FIRST {
        progress.begin(&format!("sequence numbers {name}"));
        rows.push((name, explore(pipeline, Settings { first, ..Settings::default() })));
        progress.end();
    }
    drop(progress);
    let violations = rows.iter().filter(|(_, explored)| explored.counterexample.is_some()).count();
    if args.json {
        out!("{}", object(pipeline.name, &rows, violations));
    } else {
        show(&rows);
        out!("\n{violations} of {} searches found a violation", rows.len());
    }
    ExitCode::from(u8::from(violations > 0))
}

type Found = (&'static str, Explored);

fn show(rows: &[Found]) {
    let mut table = Table::new(1, ["sequence numbers", "states", "packets", "actions not run"]);
    for (name, explored) in rows {
        let numbers = [
            explored.states.to_string(),
            explored.passes.to_string(),
            explored.uncovered.len().to_string(),
        ];
        table.push([(*name).to_owned()].into_iter().chain(numbers));
    }
    out!("{}", table.fitted());
    for (name, explored) in rows {
        if let Some(counterexample) = &explored.counterexample {
            out!("\nsequence numbers {name}: {}", counterexample.what);
            counterexample.steps.iter().for_each(|step| out!("    {step}"));
        }
    }
}

fn object(pipeline: &str, rows: &[Found], violations: usize) -> Value {
    let searches: Vec<_> = rows
        .iter()
        .map(|(name, explored)| {
            json!({
                "sequence_numbers": name,
                "states": explored.states,
                "packets": explored.passes,
                "actions_uncovered": explored.uncovered,
                "violation": explored.counterexample.as_ref().map(|found| &found.what),
                "steps": explored.counterexample.as_ref().map(|found| &found.steps),
            })
        })
        .collect();
    // An action counts as covered if any search ran it.
    let everywhere =
        |action: &&String| rows.iter().all(|(_, explored)| explored.uncovered.contains(action));
    let uncovered = rows[0].1.uncovered.iter().filter(everywhere).count();
    json!({
        "pipeline": pipeline,
        "word_bits": WORD,
        "violations": violations,
        "actions_uncovered": uncovered,
        "searches": searches,
    })
}

//! `wave rmt explore`: every order of packets through Laminar.

use std::collections::BTreeSet;
use std::process::ExitCode;

use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use wave_rmt::Pipeline;
use wave_tcp::laminar::explore::{Explored, WORD, receive, transmit};
use wave_tcp::laminar::planted::{PLANTED, Planted};
use wave_terminal::{Failure, Progress, Table, out};

use super::trace::Laminar;

/// First bytes of the stream: with words of five bits, sequence numbers go around at 32 and change their sign at 16.
const FIRST: [(u32, &str); 3] = [(0, "from 0"), (28, "around 32"), (13, "across the sign")];

#[derive(Args, Debug)]
#[command(after_help = "The pipeline itself runs, with words of five bits.

Receiving: a peer sends any bytes of an eight-byte stream, within its window of seven and beyond; one copy to the host is under way, and up to
two pseudo segments are, late or lost; grants come at any time. Only copied bytes are acknowledged and may be read, none of them is copied
again, the interval out of order has only received bytes, and the window's edge stays where grants put it.

Sending: a host offers any bytes of a five-byte stream; acknowledgements come with any window that does not shrink, of bytes that were sent and
of others, in segments at rx_next and out of order. Nothing is sent that is acknowledged already, beyond the peer's window, or without
credits.

From every state a well-behaved peer and host finish the stream. It takes about a minute.

For laminar-thesis a violation is expected: the thesis' rule for segments beyond the window acknowledges bytes that never came.

Examples:
  wave rmt explore laminar
  wave rmt explore laminar --plant jump     a fault, and the shortest way to it
  wave rmt explore laminar --json | jq .violations

Exit codes: 0 nothing is violated; 1 something is; 2 bad arguments.")]
pub struct ExploreArgs {
    /// The pipeline.
    #[arg(value_name = "PIPELINE")]
    pipeline: Laminar,
    /// A fault to plant in laminar's reassembly.
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

pub fn run(args: &ExploreArgs) -> Result<ExitCode, Failure> {
    if args.plant.is_some() && args.pipeline == Laminar::LaminarThesis {
        let message = "--plant changes laminar: type `wave rmt explore laminar --plant FAULT`";
        return Err(Failure::Scenario(message.to_owned()));
    }
    let pipeline = match args.plant {
        Some(fault) => &fault.0.pipeline,
        None => args.pipeline.pipeline(),
    };
    // All planted faults are faults of reassembly.
    let sides: &[(_, fn(_, _) -> _)] = match args.plant {
        Some(_) => &[("receiving", receives)],
        None => &[("receiving", receives), ("sending", sends)],
    };
    let progress = Progress::new((sides.len() * FIRST.len()) as u64, args.json);
    let mut rows = vec![];
    for (side, run) in sides.iter().copied() {
        for (first, name) in FIRST {
            progress.begin(&format!("{side}, sequence numbers {name}"));
            rows.push(Found { side, name, explored: run(pipeline, first) });
            progress.end();
        }
    }
    drop(progress);
    let violations = rows.iter().filter(|found| found.explored.counterexample.is_some()).count();
    if args.json {
        let fault = args.plant.map(|fault| fault.0.name);
        out!("{}", object(pipeline.name, fault, &rows, violations));
    } else {
        show(&rows);
        out!("\n{violations} of {} searches found a violation", rows.len());
    }
    Ok(ExitCode::from(u8::from(violations > 0)))
}

/// A search, and what it found.
struct Found {
    side: &'static str,
    name: &'static str,
    explored: Explored,
}

fn receives(pipeline: &Pipeline<'_>, first: u32) -> Explored {
    receive::explore(pipeline, receive::Settings { first, ..receive::Settings::default() })
}

fn sends(pipeline: &Pipeline<'_>, first: u32) -> Explored {
    transmit::explore(pipeline, transmit::Settings { first, ..transmit::Settings::default() })
}

fn show(rows: &[Found]) {
    let mut table =
        Table::new(2, ["side", "sequence numbers", "states", "packets", "actions not run"]);
    for Found { side, name, explored } in rows {
        let numbers = [
            explored.states.to_string(),
            explored.passes.to_string(),
            explored.uncovered.len().to_string(),
        ];
        table.push([*side, *name].map(str::to_owned).into_iter().chain(numbers));
    }
    out!("{}", table.fitted());
    for Found { side, name, explored } in rows {
        if let Some(counterexample) = &explored.counterexample {
            out!("\n{side}, sequence numbers {name}: {}", counterexample.what);
            counterexample.steps.iter().for_each(|step| out!("    {step}"));
        }
    }
}

fn object(pipeline: &str, fault: Option<&str>, rows: &[Found], violations: usize) -> Value {
    let searches: Vec<_> = rows
        .iter()
        .map(|Found { side, name, explored }| {
            json!({
                "side": side,
                "sequence_numbers": name,
                "states": explored.states,
                "packets": explored.passes,
                "actions_uncovered": explored.uncovered,
                "violation": explored.counterexample.as_ref().map(|found| &found.what),
                "steps": explored.counterexample.as_ref().map(|found| &found.steps),
            })
        })
        .collect();
    // An action counts as covered if any search of its side ran it.
    let mut uncovered = BTreeSet::new();
    for row in rows {
        let same_side = || rows.iter().filter(|other| other.side == row.side);
        let everywhere =
            |action: &&String| same_side().all(|other| other.explored.uncovered.contains(action));
        uncovered.extend(row.explored.uncovered.iter().filter(everywhere));
    }
    json!({
        "pipeline": pipeline,
        "fault": fault,
        "word_bits": WORD,
        "violations": violations,
        "actions_uncovered": uncovered.len(),
        "searches": searches,
    })
}

//! `wave rmt trace`: Laminar's registers of reassembly after each segment.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use wave_rmt::Pipeline;
use wave_tcp::laminar::trace::{Script, Step, TABLE_5_1_REGISTERS, table_5_1};
use wave_terminal::{Failure, Table, out};

#[derive(Args, Debug)]
#[command(
    after_help = "Give either --table or --segments. A file of segments has one packet on a line; a word `#` begins a comment:

    start 1000 10000    rx_next and rx_avail (0 and 65535 without this line)
    1500 500            a segment: sequence number and bytes
    P#1                 the pseudo segment that the first segment made
    lost P#2            that pseudo segment is lost

A segment with payload makes a pseudo segment, a copy of fields that enters the pipeline again, when the file says so; it acknowledges,
and merges an interval that has been reached. Columns: rx_next is the next sequence number in order, rx_avail the room behind it;
rx_ooo_head and rx_ooo_tail are start and end of the interval out of order, as offsets from rx_next. Payload of a segment is placed into
the host's memory, or dropped. The length of a pseudo segment is what it merges.

Examples:
  wave rmt trace laminar --table 5.1
  wave rmt trace laminar --segments mine.txt
  wave rmt trace laminar --table 5.1 --json | jq .rows_equal

Exit codes: 0 done, and with --table all rows equal the printed ones; 1 a row differs; 2 bad arguments, or a bad file."
)]
pub struct TraceArgs {
    /// The pipeline.
    #[arg(value_name = "PIPELINE")]
    pipeline: Laminar,
    /// A table of the thesis.
    #[arg(long, value_name = "TABLE", value_parser = PossibleValuesParser::new(["5.1"]), required_unless_present = "segments")]
    table: Option<String>,
    /// A file of segments.
    #[arg(long, value_name = "FILE", conflicts_with = "table")]
    segments: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// A pipeline of Laminar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Laminar {
    /// Safe against peers that send beyond the window.
    Laminar,
    /// As chapter 5 of the thesis describes it.
    LaminarThesis,
}

impl Laminar {
    pub(super) fn pipeline(self) -> &'static Pipeline<'static> {
        match self {
            Laminar::Laminar => &super::LAMINAR,
            Laminar::LaminarThesis => &super::THESIS,
        }
    }
}

pub fn trace(args: &TraceArgs) -> Result<ExitCode, Failure> {
    let script = match &args.segments {
        None => table_5_1(),
        Some(path) => {
            let bad = |error: &dyn std::fmt::Display| {
                Failure::Scenario(format!("{}: {error}", path.display()))
            };
            let text = std::fs::read_to_string(path).map_err(|error| bad(&error))?;
            Script::read(&text).map_err(|error| bad(&error))?
        }
    };
    let pipeline = args.pipeline.pipeline();
    let steps = script.run(pipeline).map_err(|error| {
        let file = args.segments.as_ref().map(|path| format!("{}: ", path.display()));
        Failure::Scenario(format!("{}{error}", file.unwrap_or_default()))
    })?;
    let printed = args.table.is_some().then_some(&TABLE_5_1_REGISTERS);
    let rows = steps.iter().filter(|step| step.registers.is_some()).count();
    let equal = printed.map(|printed| {
        let pairs = steps.iter().zip(printed);
        pairs.filter(|(step, printed)| printed.is_some() && step.registers == **printed).count()
    });
    if args.json {
        let steps: Vec<_> = steps.iter().map(object).collect();
        let mut object = json!({ "pipeline": pipeline.name, "rows": rows, "steps": steps });
        if let Some(equal) = equal {
            object["rows_equal"] = equal.into();
        }
        out!("{object}");
    } else {
        let mut table = Table::new(
            1,
            [
                "packet",
                "seq",
                "length",
                "rx_next",
                "rx_avail",
                "rx_ooo_tail",
                "rx_ooo_head",
                "payload",
            ],
        )
        .with_text_in(&["payload"]);
        for step in &steps {
            let payload = match (step.registers, step.name.starts_with('#'), step.is_placed) {
                (None, ..) => "lost",
                (_, false, _) => "",
                (_, _, true) => "placed",
                (_, _, false) => "dropped",
            };
            let registers = step.registers.map(|registers| registers.map(|word| word.to_string()));
            let cells = [step.name.clone(), step.seq.to_string(), step.length.to_string()];
            table.push(
                cells.into_iter().chain(registers.unwrap_or_default()).chain([payload.to_owned()]),
            );
        }
        out!("{}", table.fitted());
        if let Some(equal) = equal {
            out!(
                "\n{equal} of {rows} rows equal the thesis' Table 5.1, which has none for a lost packet"
            );
        }
    }
    Ok(ExitCode::from(u8::from(equal.is_some_and(|equal| equal != rows))))
}

fn object(step: &Step) -> Value {
    let registers = step.registers.map(|[next, avail, tail, head]| {
        json!({ "rx_next": next, "rx_avail": avail, "rx_ooo_tail": tail, "rx_ooo_head": head })
    });
    json!({
        "packet": step.name,
        "seq": step.seq,
        "length": step.length,
        "is_placed": step.is_placed,
        "registers": registers,
    })
}

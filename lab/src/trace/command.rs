//! `trace`: writes a log as a trace for Perfetto's UI.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use wave_agent::{OutputFile, Registry};
use wave_core::clock::Nanos;
use wave_core::log::{Ended, LogReader};
use wave_core::subsystem::Show;

use super::{Span, Trace};
use wave_terminal::{Failure, counted, note, out, program};

/// Arguments of `trace`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  wave run scenarios/rocksdb-fifo.toml --record /tmp/logs
  wave trace /tmp/logs/offload-pcie-like-link.wavelog --output trace.json
  wave trace /tmp/logs/offload-pcie-like-link.wavelog --output trace.json --from-ms 1500 --for-ms 500

Open the trace at https://ui.perfetto.dev, or in chrome://tracing. The track of a host core shows the threads
that ran there, with messages, outcomes (of a failure: the reason), preemptions and kicks. The policy's
track has its decisions; below it, a row per core has the decisions that are on their way. The argument
`txn` links a decision and its outcome. Times are the agent's, from its start.

Exit codes: 0 written; 2 a bad log (the trace ends at the damage); 3 the trace cannot be written.")]
pub struct TraceArgs {
    /// Log written by an agent (`--record`).
    #[arg(value_name = "LOG")]
    log: PathBuf,
    /// File for the trace; an existing file is replaced once the trace is whole.
    #[arg(long, short, value_name = "FILE.json")]
    output: OutputFile,
    /// Begin at this time on the agent's clock, in milliseconds.
    #[arg(long, value_name = "N", default_value_t = 0)]
    from_ms: u64,
    /// Show only this many milliseconds. The UI can open a few hundred megabytes: a few seconds under
    /// full load.
    #[arg(long, value_name = "N")]
    for_ms: Option<u64>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Writes the trace and returns the exit code.
pub fn execute(registry: &Registry, args: &TraceArgs) -> ExitCode {
    match perform(registry, args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            note!("{} trace: {failure}", program());
            ExitCode::from(failure.exit_code())
        }
    }
}

fn perform(registry: &Registry, args: &TraceArgs) -> Result<(), Failure> {
    let bad = |error: &dyn std::fmt::Display| {
        Failure::Scenario(format!("{}: {error}", args.log.display()))
    };
    let cannot = |error: std::io::Error| {
        Failure::Cannot(format!("cannot write the trace {}: {error}", args.output.path().display()))
    };
    let bytes = std::fs::read(&args.log).map_err(|error| bad(&error))?;
    let mut reader = LogReader::new(&bytes).map_err(|error| bad(&error))?;
    let mut file = args.output.find()?.whole()?;
    let nanos = |ms: u64| Nanos(ms.saturating_mul(1_000_000));
    let from = nanos(args.from_ms);
    let span = Span { from, until: args.for_ms.map_or(Nanos::MAX, |ms| from + nanos(ms)) };
    let subsystem = registry.subsystem(reader.header().config.subsystem);
    let show = subsystem.map_or(Show::PLAIN, |subsystem| subsystem.show);
    let mut trace = Trace::new(reader.header(), show, span, &mut file).map_err(cannot)?;
    let mut damage = None;
    for record in reader.by_ref() {
        match record {
            Ok(record) if !trace.feed(&record).map_err(cannot)? => break,
            Ok(_) => {}
            Err(error) => damage = Some(error),
        }
    }
    let events = trace.finish().map_err(cannot)?;
    file.finish()?;
    if let Some(error) = damage {
        return Err(bad(&error));
    }
    let truncated = matches!(reader.ended(), Some(Ended::Truncated { .. }));
    if args.json {
        let result = json!({
            "log": args.log,
            "trace": args.output.path(),
            "records": reader.records(),
            "events": events,
            "truncated": truncated,
        });
        out!("{result}");
    } else {
        let (events, records) = (counted(events, "event"), counted(reader.records(), "record"));
        out!("{events} of {records}: {}", args.output.path().display());
        out!("Open it at https://ui.perfetto.dev");
        if truncated {
            out!("The log's last record is cut off: its agent was killed.");
        }
    }
    Ok(())
}

//! `wave bench`: ratios against named peers, each in one run.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::Value;

use super::table;
use crate::bench;

/// Which bench.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  wave bench queue
  wave bench agent --json

Each needs two CPUs and nothing else running: `wave doctor` tells what there is.")]
pub struct BenchArgs {
    #[command(subcommand)]
    which: Which,
}

#[derive(Debug, Subcommand)]
enum Which {
    /// The queue between two processes, against rtrb between two threads.
    Queue(Output),
    /// An agent deciding for 15 cores, against a loop over slots as Shinjuku's.
    Agent(Output),
    /// A yield that an agent decides on, against a futex handoff between two threads.
    Switch(Output),
    /// Preemption at a safe point, against a signal to its handler.
    Preempt(Output),
    /// The simulator's event queue, against nexosim.
    Sim(Output),
}

#[derive(Args, Debug)]
struct Output {
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// Where the bench's other process finds the first.
#[derive(Args, Debug)]
pub struct PeerArgs {
    socket: PathBuf,
    cpu: usize,
}

/// Runs it.
pub fn execute(args: &BenchArgs) -> ExitCode {
    let (result, output) = match &args.which {
        Which::Queue(output) => (bench::queue(output.json), output),
        Which::Agent(output) => (bench::agent(output.json), output),
        Which::Switch(output) => (bench::switch(output.json), output),
        Which::Preempt(output) => (bench::preempt(output.json), output),
        Which::Sim(output) => (bench::sim(output.json), output),
    };
    match result {
        Ok(value) if output.json => println!("{value}"),
        Ok(value) => println!("{}", pairs(&value)),
        Err(error) => {
            eprintln!("wave bench: {error}");
            return ExitCode::from(3);
        }
    }
    ExitCode::SUCCESS
}

/// The other process of a bench; started by the bench itself.
pub fn execute_peer(args: &PeerArgs) -> ExitCode {
    match bench::peer(&args.socket, args.cpu) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// A row per member; members of members with their path.
fn pairs(value: &Value) -> String {
    let mut rows = Vec::new();
    flatten("", value, &mut rows);
    let mut table = table(&["what", "value"]);
    for row in rows {
        table.add_row(row);
    }
    table.to_string()
}

fn flatten(path: &str, value: &Value, rows: &mut Vec<[String; 2]>) {
    let text = match value {
        Value::Object(members) => {
            for (name, member) in members {
                let name = name.replace('_', " ");
                let path = if path.is_empty() { name } else { format!("{path}: {name}") };
                flatten(&path, member, rows);
            }
            return;
        }
        Value::Number(number) if number.is_f64() => {
            let number = number.as_f64().unwrap_or(f64::NAN);
            if number.abs() < 100.0 { format!("{number:.2}") } else { format!("{number:.0}") }
        }
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    rows.push([path.to_owned(), text]);
}

#[cfg(test)]
mod tests {
    #[test]
    fn members_of_members_are_rows() {
        let value = serde_json::json!({ "ratio": 0.5, "chunks": { "p50_ns": 1234.5, "count": 3 } });
        let text = super::pairs(&value);
        for part in ["ratio", "0.50", "chunks: p50 ns", "1234", "chunks: count"] {
            assert!(text.contains(part), "{text}");
        }
    }
}

//! `wave link measure`: costs of this machine's memory and doorbells, or of a PCI device.

use std::io::ErrorKind;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use wave_agent::OutputFile;
use wave_links::measure::{self, Effort, Measured};

use wave_terminal::{Failure, Table, note, out};

#[derive(Args, Debug)]
pub struct LinkArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Measure window operations and doorbells: the rows of Wave's Table 2.
    Measure(MeasureArgs),
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  wave link measure
  wave link measure --out here.toml       then, in a scenario: link = \"model:here.toml\"
  wave link measure --pci /sys/bus/pci/devices/0000:03:00.0/resource2 --offset 4096

Root is needed to open a PCI BAR; any other file is refused. Even a read of a device's registers can have
effects: name an offset in the device's memory.")]
struct MeasureArgs {
    /// Write the figures as a cost file, with the source `measured`.
    #[arg(long, value_name = "FILE.toml")]
    out: Option<OutputFile>,
    /// Measure the PCI BAR with this resource file in sysfs, instead of shared memory.
    #[arg(long, value_name = "BAR", requires = "offset")]
    pci: Option<PathBuf>,
    /// Offset in bytes of a 64-byte line of the BAR that may be read.
    #[arg(long, value_name = "N", requires = "pci")]
    offset: Option<u64>,
    /// Offset in bytes of a line of the BAR that may be written; without it nothing is written.
    #[arg(long, value_name = "N", requires = "pci")]
    write_offset: Option<u64>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// Wave's Table 2, in nanoseconds, beside our rows.
const PAPER_NS: [(&str, f64); 6] = [
    ("64-bit read", 750.0),
    ("64-bit write", 50.0),
    ("line read after flush", 750.0),
    ("doorbell send", 340.0),
    ("doorbell receive", 350.0),
    ("doorbell end to end", 1600.0),
];

fn paper_ns(row: &str) -> Option<f64> {
    PAPER_NS.iter().find(|(name, _)| *name == row).map(|(_, ns)| *ns)
}

pub fn execute(args: &LinkArgs) -> Result<(), Failure> {
    let What::Measure(args) = &args.what;
    let effort = Effort::default();
    let measured = match (&args.pci, args.offset) {
        (Some(bar), Some(offset)) => measure::pci_bar(bar, offset, args.write_offset, effort)
            .map_err(|error| match error.kind() {
                // Not a BAR, or an offset outside it.
                ErrorKind::InvalidInput => Failure::Scenario(format!("{}: {error}", bar.display())),
                _ => Failure::Cannot(format!(
                    "{}: {error}; as root, with the device's memory switched on: \
                     `setpci -s DEVICE COMMAND=2:2`",
                    bar.display()
                )),
            }),
        _ => measure::shared_memory(effort).map_err(Failure::cannot),
    }?;
    for warning in &measured.warnings {
        note!("wave link measure: {warning}");
    }
    if let Some(file) = &args.out {
        let stem = file.path().file_stem();
        let name = stem.map_or("measured".into(), |stem| stem.to_string_lossy());
        file.find()?.write(measured.costs(&name).to_toml())?;
    }
    if args.json {
        out!("{}", to_json(&measured));
    } else {
        out!("{}\n{}", measured.subject, to_table(&measured));
        out!("The paper's column is Wave's Table 2: host MMIO and MSI-X of its SmartNIC.");
        if let Some(file) = &args.out {
            let file = file.path().display();
            out!("Cost file: {file}; in a scenario: link = \"model:{file}\"");
        }
    }
    Ok(())
}

fn to_table(measured: &Measured) -> String {
    let header = ["operation", "p5\nns", "median\nns", "p95\nns", "paper\nns", "ours / paper"];
    let mut table = Table::new(1, header);
    for (name, row) in measured.rows() {
        let number = |number: f64| format!("{number:.1}");
        let of = |which: fn(&measure::Spread) -> f64| {
            row.as_ref().map_or_else(|| "-".into(), |row| number(which(row)))
        };
        let paper = paper_ns(name);
        let ratio = row.zip(paper).map(|(row, paper)| format!("{:.2}", row.median_ns / paper));
        table.push([
            name.to_owned(),
            of(|row| row.p5_ns),
            of(|row| row.median_ns),
            of(|row| row.p95_ns),
            paper.map_or_else(String::new, |paper| format!("{paper:.0}")),
            ratio.unwrap_or_default(),
        ]);
    }
    table.to_string()
}

fn to_json(measured: &Measured) -> Value {
    let mut rows = Map::new();
    for (name, row) in measured.rows() {
        let row = row.map(|row| {
            json!({
                "p5_ns": row.p5_ns,
                "median_ns": row.median_ns,
                "p95_ns": row.p95_ns,
                "paper_ns": paper_ns(name),
                "how": "measured",
            })
        });
        rows.insert(name.replace(['-', ' '], "_"), json!(row));
    }
    json!({ "subject": measured.subject, "warnings": measured.warnings, "rows": rows })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_paper_is_a_row_of_ours() {
        let ours = Measured::default();
        let names: Vec<&str> = ours.rows().iter().map(|(name, _)| *name).collect();
        for (name, _) in PAPER_NS {
            assert!(names.contains(&name), "{name}");
        }
    }
}

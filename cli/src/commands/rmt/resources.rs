//! `wave rmt resources`: what a pipeline takes of a chip.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Map, Value, json};
use wave_rmt::check::{Placement, place};
use wave_rmt::{Device, Pipeline};
use wave_rmt_json::Arena;
use wave_tcp::laminar::{LAMINAR, TABLE_5_2, THESIS};
use wave_terminal::{Failure, Table, out};

use super::Chosen;

#[derive(Args, Debug)]
#[command(
    after_help = "Ingress and egress share the stages. What a table takes follows the public compiler's estimates; that compiler
may pack more tightly. For laminar, the thesis' Table 5.2 stands beside ours, in whole units: each printed percentage has one number
of units nearest to it.

Examples:
  wave rmt resources laminar
  wave rmt resources laminar --json | jq .total
  wave rmt resources heavy-hitters --device tofino2m
  wave rmt resources mine.json              a file: docs/guide/pipeline.md

Exit codes: 0 done, whether the pipeline fits or not (`wave rmt check` says that); 2 bad arguments, or a file that is no
pipeline."
)]
pub struct ResourcesArgs {
    #[command(flatten)]
    chosen: Chosen,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

pub fn resources(args: &ResourcesArgs) -> Result<ExitCode, Failure> {
    let arena = Arena::new();
    let (pipeline, device) = (args.chosen.pipeline.load(&arena)?, args.chosen.device.0);
    let placement = place(pipeline, device);
    let is_laminar = [LAMINAR, THESIS].contains(pipeline);
    if args.json {
        out!("{}", object(pipeline, device, &placement, is_laminar));
        return Ok(ExitCode::SUCCESS);
    }
    out!("{}\n", stages(pipeline, &placement).fitted());
    let mut table = Table::new(1, ["of all stages", "units", "there are", "%"]);
    if is_laminar {
        table =
            Table::new(1, ["of all stages", "units", "there are", "%", "thesis", "ours / thesis"]);
    }
    for (name, units, limit) in placement.total().named(device) {
        let all = limit.most * device.stages.most;
        let mut cells = vec![
            name.to_owned(),
            units.to_string(),
            all.to_string(),
            format!("{:.1}", 100.0 * f64::from(units) / f64::from(all)),
        ];
        if let Some((_, thesis)) =
            is_laminar.then(|| TABLE_5_2.iter().find(|(of, _)| *of == name)).flatten()
        {
            cells.push(thesis.to_string());
            cells.push(format!("{:.2}", f64::from(units) / f64::from(*thesis)));
        }
        table.push(cells);
    }
    out!("{}", table.fitted());
    Ok(ExitCode::SUCCESS)
}

/// A row for each stage.
fn stages(pipeline: &Pipeline<'_>, placement: &Placement<'_>) -> Table {
    let mut table = Table::new(
        2,
        ["stage", "tables", "ALUs", "SRAM", "map RAM", "TCAM", "gateways", "actions"],
    );
    for (stage, units) in placement.stages.iter().enumerate() {
        let here = placement.tables.iter().filter(|placed| placed.stage == stage);
        let names: Vec<_> =
            here.map(|placed| pipeline.tables(placed.gress)[placed.table].name).collect();
        let numbers = [
            units.stateful_alus,
            units.srams,
            units.map_rams,
            units.tcams,
            units.gateways,
            units.vliw,
        ];
        let cells = [stage.to_string(), names.join(", ")];
        table.push(cells.into_iter().chain(numbers.iter().map(u32::to_string)));
    }
    table
}

fn object(
    pipeline: &Pipeline<'_>,
    device: &Device,
    placement: &Placement<'_>,
    is_laminar: bool,
) -> Value {
    let units = |units: &wave_rmt::check::Units| -> Map<String, Value> {
        units
            .named(device)
            .into_iter()
            .map(|(name, units, _)| (name.replace(' ', "_"), units.into()))
            .collect()
    };
    let stages: Vec<_> = placement.stages.iter().map(units).collect();
    let tables: Vec<_> = placement
        .tables
        .iter()
        .map(|placed| {
            json!({
                "name": pipeline.tables(placed.gress)[placed.table].name,
                "gress": placed.gress.name(),
                "stage": placed.stage,
                "units": units(&placed.units),
            })
        })
        .collect();
    let mut object = json!({
        "pipeline": pipeline.name,
        "device": device.name,
        "total": units(&placement.total()),
        "stages": stages,
        "tables": tables,
    });
    if is_laminar {
        object["thesis"] = TABLE_5_2
            .iter()
            .map(|(name, units)| (name.replace(' ', "_"), Value::from(*units)))
            .collect::<Map<_, _>>()
            .into();
    }
    object
}

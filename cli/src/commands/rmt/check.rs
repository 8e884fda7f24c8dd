//! `wave rmt check`: the limits of a chip that a pipeline breaks.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use wave_rmt::check::{Violation, place};
use wave_rmt_json::Arena;
use wave_terminal::{Failure, counted, out};

use super::Chosen;

#[derive(Args, Debug)]
#[command(
    after_help = "A violation names the place, what was found, the chip's limit, the rule with the place where the limit is
published (files of p4lang/p4c at commit 34b86e9, below backends/tofino), and what to change. A pipeline of your own is a
file in JSON (`wave rmt export` prints one to start from; its path ends in .json or has a slash), or a Rust constant, which
the compiler checks: docs/guide/pipeline.md.

Examples:
  wave rmt check laminar
  wave rmt check laminar --device tofino1
  wave rmt check mine.json
  wave rmt check sketch --json | jq .stages

Exit codes: 0 the pipeline fits; 1 it does not; 2 bad arguments, or a file that is no pipeline."
)]
pub struct CheckArgs {
    #[command(flatten)]
    chosen: Chosen,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

pub fn check(args: &CheckArgs) -> Result<ExitCode, Failure> {
    let arena = Arena::new();
    let (pipeline, device) = (args.chosen.pipeline.load(&arena)?, args.chosen.device.0);
    let shape = pipeline.check(device);
    let placement = place(pipeline, device);
    let count = shape.count() + placement.violations.len();
    let violations: Vec<_> = shape.iter().chain(&placement.violations).collect();
    let stages = placement.stages.len();
    if args.json {
        let violations: Vec<_> = violations.iter().map(|violation| object(violation)).collect();
        out!(
            "{}",
            json!({
                "pipeline": pipeline.name,
                "device": device.name,
                "violations": count,
                "stages": stages,
                "found": violations,
            })
        );
    } else if count == 0 {
        out!("{} fits {}: {stages} of {} stages", pipeline.name, device.name, device.stages.most);
    } else {
        for violation in &violations {
            out!("{violation}");
        }
        if count > violations.len() {
            out!("... and {} more", count - violations.len());
        }
        let violations = counted(count as u64, "violation");
        out!("\n{} does not fit {}: {violations}", pipeline.name, device.name);
    }
    Ok(ExitCode::from(u8::from(count > 0)))
}

fn object(violation: &Violation<'_>) -> Value {
    json!({
        "rule": violation.rule.name(),
        "place": violation.place.to_string(),
        "found": violation.found,
        "limit": violation.limit,
        "detail": violation.detail,
        "source": violation.source,
        "hint": violation.rule.hint(),
    })
}

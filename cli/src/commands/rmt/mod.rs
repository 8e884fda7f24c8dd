//! `wave rmt`: pipelines for match-action chips, without such a chip or its compiler.

mod check;
mod explore;
mod export;
mod named;
mod resources;
mod trace;

use std::process::ExitCode;

use clap::builder::PossibleValue;
use clap::{Args, Subcommand, ValueEnum};
use wave_rmt::devices::{DEVICES, Device, TOFINO2};
use wave_terminal::Failure;

use named::{LAMINAR, Named, NamedParser, THESIS};

#[derive(Args, Debug)]
#[command(
    after_help = "The commands know the pipelines that ship with Wave; check, resources and export also take a file in JSON. A pipeline of
your own may be such a file, or a Rust constant, which the compiler checks: docs/guide/pipeline.md.

Examples:
  wave rmt check laminar --device tofino1
  wave rmt resources laminar
  wave rmt export sketch > mine.json        a file to start from
  wave rmt check mine.json
  wave rmt explore laminar
  wave rmt trace laminar --table 5.1"
)]
pub struct RmtArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Check a pipeline against a chip's limits.
    Check(check::CheckArgs),
    /// Show the resources that each pipeline stage uses.
    Resources(resources::ResourcesArgs),
    /// Print a pipeline as JSON.
    Export(export::ExportArgs),
    /// Search every order of packets through Laminar, with words of five bits.
    Explore(explore::ExploreArgs),
    /// Trace Laminar's registers of reassembly, segment by segment.
    Trace(trace::TraceArgs),
}

pub fn execute(args: &RmtArgs) -> Result<ExitCode, Failure> {
    match &args.what {
        What::Check(args) => check::check(args),
        What::Resources(args) => resources::resources(args),
        What::Export(args) => export::export(args).map(|()| ExitCode::SUCCESS),
        What::Explore(args) => explore::run(args),
        What::Trace(args) => trace::trace(args),
    }
}

/// A chip that `wave` knows.
#[derive(Clone, Copy, Debug)]
struct Chip(&'static Device);

static CHIPS: [Chip; DEVICES.len()] = {
    let mut chips = [Chip(&DEVICES[0]); DEVICES.len()];
    let mut index = 0;
    while index < chips.len() {
        chips[index] = Chip(&DEVICES[index]);
        index += 1;
    }
    chips
};

impl ValueEnum for Chip {
    fn value_variants<'a>() -> &'a [Chip] {
        &CHIPS
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.0.name))
    }
}

/// The pipeline and the chip of a command.
#[derive(Args, Debug)]
struct Chosen {
    /// The pipeline, or the path of one in JSON.
    #[arg(value_name = "PIPELINE", value_parser = NamedParser)]
    pipeline: Named,
    /// The chip.
    #[arg(long, value_name = "NAME", default_value = TOFINO2.name)]
    device: Chip,
}

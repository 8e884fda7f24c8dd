//! `wave rmt`: pipelines for match-action chips, without such a chip or its compiler.

mod check;
mod explore;
mod resources;
mod trace;

use std::process::ExitCode;

use clap::builder::PossibleValue;
use clap::{Args, Subcommand, ValueEnum};
use wave_rmt::Pipeline;
use wave_rmt::devices::{DEVICES, Device, TOFINO2};
use wave_rmt::examples::EXAMPLES;
use wave_tcp::laminar;
use wave_terminal::Failure;

#[derive(Args, Debug)]
#[command(
    after_help = "The commands know the pipelines that ship with Wave. One of your own is a Rust constant, which the compiler checks:
docs/guide/pipeline.md.

Examples:
  wave rmt check laminar --device tofino1
  wave rmt resources laminar
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
    /// Search every order of packets through Laminar, with words of five bits.
    Explore(explore::ExploreArgs),
    /// Trace Laminar's registers of reassembly, segment by segment.
    Trace(trace::TraceArgs),
}

pub fn execute(args: &RmtArgs) -> Result<ExitCode, Failure> {
    match &args.what {
        What::Check(args) => Ok(check::check(args)),
        What::Resources(args) => Ok(resources::resources(args)),
        What::Explore(args) => explore::run(args),
        What::Trace(args) => trace::trace(args),
    }
}

/// A pipeline that `wave` knows.
#[derive(Clone, Copy, Debug)]
struct Known {
    pipeline: &'static Pipeline<'static>,
    about: &'static str,
}

static LAMINAR: Pipeline<'static> = laminar::LAMINAR;
static THESIS: Pipeline<'static> = laminar::THESIS;

static PIPELINES: [Known; 2 + EXAMPLES.len()] = {
    let laminar =
        Known { pipeline: &LAMINAR, about: "TCP, safe against peers that send beyond the window" };
    let mut pipelines = [laminar; 2 + EXAMPLES.len()];
    pipelines[1] =
        Known { pipeline: &THESIS, about: "TCP, as chapter 5 of the thesis describes it" };
    let mut index = 0;
    while index < EXAMPLES.len() {
        let (pipeline, about) = EXAMPLES[index];
        pipelines[2 + index] = Known { pipeline, about };
        index += 1;
    }
    pipelines
};

impl ValueEnum for Known {
    fn value_variants<'a>() -> &'a [Known] {
        &PIPELINES
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.pipeline.name).help(self.about))
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
    /// The pipeline.
    #[arg(value_name = "PIPELINE")]
    pipeline: Known,
    /// The chip.
    #[arg(long, value_name = "NAME", default_value = TOFINO2.name)]
    device: Chip,
}

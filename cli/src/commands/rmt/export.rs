//! `wave rmt export`: a pipeline as a file.

use clap::{Args, ValueEnum};
use wave_rmt_json::{Arena, write};
use wave_terminal::{Failure, out};

use super::named::{Named, NamedParser};

#[derive(Args, Debug)]
#[command(
    after_help = "The text has the whole pipeline: fields, registers with their instructions, parser, tables, mirror sessions. `wave rmt check`
and `resources` take such a file in place of a name. A path ends in .json or has a slash; a file may have 1 MiB. What its parts are, and
how a program reads and runs it: docs/guide/pipeline.md.

Examples:
  wave rmt export sketch > mine.json
  wave rmt check mine.json
  wave rmt export mine.json                 the same pipeline, in the usual order and lines
  wave rmt export laminar | jq '.registers[].name'

Exit codes: 0 done; 2 bad arguments, or a file that is no pipeline."
)]
pub struct ExportArgs {
    /// The pipeline, or the path of one in JSON.
    #[arg(value_name = "PIPELINE", value_parser = NamedParser)]
    pipeline: Named,
    /// The form.
    #[arg(long, value_name = "FORM", default_value = "json")]
    to: Form,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Form {
    /// JSON, which Wave reads again.
    Json,
}

pub fn export(args: &ExportArgs) -> Result<(), Failure> {
    let arena = Arena::new();
    let pipeline = args.pipeline.load(&arena)?;
    match args.to {
        Form::Json => {
            let text = write(pipeline).map_err(|error| Failure::Scenario(error.to_string()))?;
            out!("{}", text.trim_end());
        }
    }
    Ok(())
}

//! The pipeline that a command names: one that ships with Wave, or one in a file.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Error, Read};
use std::path::{Path, PathBuf};

use clap::builder::{EnumValueParser, PossibleValue, TypedValueParser};
use clap::{Arg, Command, ValueEnum};
use wave_process::words::plain;
use wave_rmt::Pipeline;
use wave_rmt::examples::EXAMPLES;
use wave_rmt_json::{Arena, TEXT_BYTES_MAX, read};
use wave_tcp::laminar;
use wave_terminal::Failure;

pub(super) static LAMINAR: Pipeline<'static> = laminar::LAMINAR;
pub(super) static THESIS: Pipeline<'static> = laminar::THESIS;

/// A pipeline that ships with Wave.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shipped {
    pipeline: &'static Pipeline<'static>,
    about: &'static str,
}

static PIPELINES: [Shipped; 2 + EXAMPLES.len()] = {
    let laminar = Shipped {
        pipeline: &LAMINAR,
        about: "TCP, safe against peers that send beyond the window",
    };
    let mut pipelines = [laminar; 2 + EXAMPLES.len()];
    pipelines[1] =
        Shipped { pipeline: &THESIS, about: "TCP, as chapter 5 of the thesis describes it" };
    let mut index = 0;
    while index < EXAMPLES.len() {
        let (pipeline, about) = EXAMPLES[index];
        pipelines[2 + index] = Shipped { pipeline, about };
        index += 1;
    }
    pipelines
};

impl ValueEnum for Shipped {
    fn value_variants<'a>() -> &'a [Shipped] {
        &PIPELINES
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.pipeline.name).help(self.about))
    }
}

/// A pipeline that a command names.
#[derive(Clone, Debug)]
pub(super) enum Named {
    Shipped(Shipped),
    File(PathBuf),
}

impl Named {
    /// The pipeline. One in a file is read into the arena.
    pub(super) fn load<'a>(&self, arena: &'a Arena) -> Result<&'a Pipeline<'a>, Failure> {
        match self {
            Named::Shipped(shipped) => Ok(shipped.pipeline),
            Named::File(path) => {
                let bad = |error: &dyn std::fmt::Display| {
                    let why = plain(&error.to_string(), "an object");
                    Failure::Scenario(format!("{}: {why}", path.display()))
                };
                let text = text(path).map_err(|error| bad(&error))?;
                Ok(arena.alloc(read(&text, arena).map_err(|error| bad(&error))?))
            }
        }
    }
}

/// A file's text, as far as a pipeline may be long: the reader refuses a longer one.
fn text(path: &Path) -> Result<String, Error> {
    let mut text = String::new();
    File::open(path)?.take(TEXT_BYTES_MAX as u64 + 1).read_to_string(&mut text)?;
    Ok(text)
}

/// Parses a name, or a path: it ends in `.json`, or has a slash.
#[derive(Clone)]
pub(super) struct NamedParser;

impl TypedValueParser for NamedParser {
    type Value = Named;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<Named, clap::Error> {
        let bytes = value.as_encoded_bytes();
        if bytes.contains(&b'/') || bytes.ends_with(b".json") {
            return Ok(Named::File(value.into()));
        }
        EnumValueParser::new().parse_ref(command, arg, value).map(Named::Shipped)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue>>> {
        Some(Box::new(PIPELINES.iter().filter_map(Shipped::to_possible_value)))
    }
}

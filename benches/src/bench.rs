//! A bench's declaration: its name, its help, its figures, and how it runs. A bench is a file with one, and a line in
//! [`crate::BENCHES`].

use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches};
use serde::Serialize;
use serde_json::Value;

#[derive(Serialize)]
pub struct Bench {
    pub name: &'static str,
    /// What it measures, and against what.
    pub about: &'static str,
    /// Figures, examples and exit codes, for `--help`.
    #[serde(skip)]
    pub help: &'static str,
    /// Figures for docs/measured.md and for comparisons between commits. Tails (p99) are not compared: a run of a few seconds does
    /// not measure them as closely as a verdict needs (`WIDTH_MAX` of xtask's bench).
    pub figures: &'static [Figure],
    /// Arguments that make a run short.
    pub short: &'static [&'static str],
    /// Whether it measures between two CPUs: the result then has their distance.
    #[serde(skip)]
    pub has_two_cpus: bool,
    /// Adds its arguments.
    #[serde(skip)]
    pub arguments: fn(Command) -> Command,
    /// Measures, without progress if the flag is set.
    #[serde(skip)]
    pub run: fn(&ArgMatches, bool) -> Result<Value, String>,
}

/// A figure of a bench's JSON object.
#[derive(Clone, Copy, Serialize)]
pub struct Figure {
    /// Dots separate the keys of nested objects.
    pub key: &'static str,
    /// Name in docs/measured.md, if it is there.
    pub label: Option<&'static str>,
    /// Which is better; None if commits are not compared by it. Wave's own figures are compared as absolute numbers, the tip's with the
    /// base's: a ratio to the peer would add the peer's noise.
    pub better: Option<Better>,
    /// Whether it is a peer's: then a comparison shows it and does not judge it. The peer's code is the same in both binaries, so if its
    /// ratio is not 1, the machine or the layout of the binary caused the difference.
    pub is_peer: bool,
}

#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    Higher,
    Lower,
}

impl Figure {
    pub const fn of(key: &'static str) -> Figure {
        Figure { key, label: None, better: None, is_peer: false }
    }

    pub const fn peer(key: &'static str) -> Figure {
        Figure { is_peer: true, ..Figure::of(key) }
    }

    pub const fn compared(self, better: Better) -> Figure {
        Figure { better: Some(better), ..self }
    }

    pub const fn measured(self, label: &'static str) -> Figure {
        Figure { label: Some(label), ..self }
    }
}

impl Bench {
    pub fn command(&self) -> Command {
        let command = Command::new(self.name).about(self.about).after_help(self.help);
        let json = "Print one JSON object instead of a table";
        (self.arguments)(command)
            .arg(Arg::new("json").long("json").help(json).action(ArgAction::SetTrue))
    }
}

/// A bench without arguments of its own.
pub fn without_arguments(command: Command) -> Command {
    command
}

/// The arguments of a bench.
pub fn arguments<T: FromArgMatches>(matches: &ArgMatches) -> Result<T, String> {
    T::from_arg_matches(matches).map_err(|error| error.to_string())
}

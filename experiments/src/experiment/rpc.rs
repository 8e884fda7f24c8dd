//! Experiments on RPCs: where gRPC is terminated, and what schedules its calls.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use wave_lab::Failure;

use super::{Experiment, Host, Kind, Report, Source, Wanted, digest, without_live};
use crate::run::{Finished, Journal, rpc};
use wave_lab::interrupt;
use wave_scenario::{Rpc, ScenarioError, parse_rpc};

pub(super) const KIND: Kind = Kind { names: &["rpc"], takes_agent: false, read };

fn read(source: &Source<'_>) -> Result<Box<dyn Experiment>, ScenarioError> {
    Ok(Box::new(parse_rpc(source.path, source.text)?))
}

impl Experiment for Rpc {
    fn name(&self) -> &str {
        &self.name
    }

    fn digest(&self) -> Result<String, Failure> {
        digest(self, self.variants.iter().filter_map(|stack| stack.link.file()))
    }

    fn check(&self, wanted: &Wanted<'_>) -> Result<(), Failure> {
        without_live("rpc", &self.name, wanted)
    }

    fn run(&self, wanted: &Wanted<'_>, journal: &Arc<Journal>) -> Result<Box<dyn Report>, Failure> {
        let say = Arc::clone(journal);
        interrupt::say(move || say.last_words())?;
        let ran = match wanted.host {
            Host::Sim => rpc::sim::run(self, wanted.quiet, wanted.record, journal),
            Host::User => rpc::run(self, wanted.quiet, wanted.record, journal),
        };
        Ok(Box::new(Compared(ran?)))
    }
}

/// A run of RPCs, with its own table before the table of all runs.
struct Compared(Finished);

impl Report for Compared {
    fn text(&self) -> String {
        format!("{}\n\n{}", rpc::table(&self.0.result), self.0.text())
    }

    fn json(&self) -> Result<String, Failure> {
        self.0.json()
    }

    fn write(&self, out: &Path) -> Result<PathBuf, Failure> {
        self.0.write(out)
    }

    fn failed(&self) -> Vec<String> {
        self.0.failed()
    }

    fn is_measured(&self) -> bool {
        self.0.is_measured()
    }
}

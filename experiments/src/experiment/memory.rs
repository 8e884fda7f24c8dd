//! The memory of a process, or of a modelled one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use wave_lab::Failure;

use super::{Experiment, Host, Kind, Report, Source, Wanted, digest, without_live};
use crate::run::Journal;
use crate::run::memory::{self, MemoryResult};
use wave_lab::interrupt;
use wave_scenario::{Memory, ScenarioError, parse_memory};

pub(super) const KIND: Kind = Kind { names: &["memory"], takes_agent: false, read };

fn read(source: &Source<'_>) -> Result<Box<dyn Experiment>, ScenarioError> {
    Ok(Box::new(parse_memory(source.path, source.text)?))
}

impl Experiment for Memory {
    fn name(&self) -> &str {
        &self.name
    }

    fn digest(&self) -> Result<String, Failure> {
        digest(self, [])
    }

    fn check(&self, wanted: &Wanted<'_>) -> Result<(), Failure> {
        without_live("memory", &self.name, wanted)
    }

    fn run(&self, wanted: &Wanted<'_>, journal: &Arc<Journal>) -> Result<Box<dyn Report>, Failure> {
        let ran = match wanted.host {
            Host::Sim => {
                let say = Arc::clone(journal);
                interrupt::say(move || say.last_words())?;
                memory::sim::run(self, wanted.quiet, wanted.record, journal)
            }
            // When interrupted, it undoes its changes to the machine.
            Host::User => memory::run(self, wanted.quiet, wanted.record, journal),
        };
        Ok(Box::new(ran?))
    }
}

impl Report for MemoryResult {
    fn text(&self) -> String {
        self.text()
    }

    fn json(&self) -> Result<String, Failure> {
        serde_json::to_string(self).map_err(Failure::cannot)
    }

    fn write(&self, out: &Path) -> Result<PathBuf, Failure> {
        self.write(out)
    }

    fn failed(&self) -> Vec<String> {
        self.failed()
    }
}

//! A comparison of memory tools on the real kernel.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use wave_lab::Failure;

use super::{Experiment, Host, Kind, Report, Source, Wanted, digest};
use crate::bakeoff::report::Results;
use crate::bakeoff::{self, Plan};
use crate::run::Journal;
use wave_scenario::ScenarioError;

pub(super) const KIND: Kind = Kind { names: &[bakeoff::KIND], takes_agent: false, read };

/// A bake-off, and its file.
struct BakeOff {
    plan: Plan,
    file: PathBuf,
}

fn read(source: &Source<'_>) -> Result<Box<dyn Experiment>, ScenarioError> {
    let plan = bakeoff::parse(source.path, source.text)?;
    Ok(Box::new(BakeOff { plan, file: source.path.to_path_buf() }))
}

impl Experiment for BakeOff {
    fn name(&self) -> &str {
        &self.plan.name
    }

    fn digest(&self) -> Result<String, Failure> {
        digest(&self.plan, [])
    }

    fn check(&self, wanted: &Wanted<'_>) -> Result<(), Failure> {
        if wanted.host != Host::User || wanted.live || wanted.record.is_some() {
            let why = "a bake-off runs on the real kernel: it takes no --host, --live or --record";
            return Err(Failure::Scenario(format!("{}: {why}", self.plan.name)));
        }
        Ok(())
    }

    fn run(&self, wanted: &Wanted<'_>, journal: &Arc<Journal>) -> Result<Box<dyn Report>, Failure> {
        // When interrupted, it undoes its changes to the machine.
        let results = bakeoff::run(&self.plan, &self.file, wanted.quiet, journal)?;
        Ok(Box::new(results))
    }
}

impl Report for Results {
    fn text(&self) -> String {
        self.text()
    }

    fn json(&self) -> Result<String, Failure> {
        serde_json::to_string(self).map_err(Failure::cannot)
    }

    fn write(&self, out: &Path) -> Result<PathBuf, Failure> {
        self.write(out)
    }
}

//! Points on this machine: simulated ones here, whole experiments in processes of their own.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;
use wave_report::Directory;
use wave_workloads::point::Point;

use super::{ExperimentRun, RunError, Runner};
use crate::ground::journal;
use crate::kinds::requests::scenario::Scenario;
use crate::kinds::requests::sim::Simulated;

/// Simulates points, each in a world of its own whose time is virtual. Runs an experiment as `wave run` does, with its
/// files in a directory of the store.
#[derive(Clone, Debug)]
pub struct ThisMachine {
    /// Directory for the files of experiments, one below it for each.
    pub runs: PathBuf,
}

impl Runner for ThisMachine {
    fn point(
        &self,
        scenario: &Scenario,
        variant: usize,
        load_per_second: f64,
        seed: u64,
    ) -> Result<Point, RunError> {
        let mut simulated = Simulated::new(scenario, &scenario.variants[variant])?;
        simulated.setup.seed = seed;
        Ok(simulated.run(load_per_second, None)?.point.measured)
    }

    fn run_experiment(&self, id: &str, run: &ExperimentRun) -> Result<Value, RunError> {
        let folder = self.runs.join(id);
        Directory::create(folder.clone())?.write(SCENARIO, run.text.as_bytes())?;
        // Not by its path, at which another build may be by now.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("wave").args(["run", "--json", "--quiet", "--host", run.host.name(), "--out"]);
        command.arg(&folder).arg(folder.join(SCENARIO));
        if let Some(agent) = &run.agent {
            command.arg("--agent").arg(agent);
        }
        // An interrupted run has kept its finished points.
        let results = wave_report::folder(&folder, &run.name, run.host.name());
        if results.join(journal::FILE).exists() {
            command.arg("--resume");
        }
        let output = command.stdin(Stdio::null()).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().last().unwrap_or("no reason given");
        let last = last.strip_prefix("wave run: ").unwrap_or(last);
        match output.status.code() {
            Some(0) => Ok(run.result(serde_json::from_slice(&output.stdout)?)),
            Some(NOT_MEASURED) => {
                Err("the run has no result: sweep again on a quiet machine, or with other loads"
                    .into())
            }
            Some(_) => Err(last.into()),
            None => Err(format!("its process was killed: {}", output.status).into()),
        }
    }
}

/// Name of an experiment's scenario in its directory.
const SCENARIO: &str = "scenario.toml";
/// Exit code of a run without a result.
const NOT_MEASURED: i32 = 4;

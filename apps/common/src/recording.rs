//! Names of the agents' logs: a file per agent, named after its variant.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use wave_report::slug;
use wave_terminal::{Failure, counted};

/// Logs that this process's runs could not write whole.
static CUT_OFF: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Notes that a log could not be written whole, for [`check`].
pub fn note_cut_off(log: &Path) {
    CUT_OFF.lock().unwrap_or_else(PoisonError::into_inner).push(log.to_owned());
}

/// Whether every log of this process's runs could be written.
///
/// # Errors
/// Names those that could not.
pub fn check() -> Result<(), Failure> {
    let cut_off = CUT_OFF.lock().unwrap_or_else(PoisonError::into_inner);
    let names: Vec<_> = cut_off.iter().map(|log| log.display().to_string()).collect();
    match names.is_empty() {
        true => Ok(()),
        false => Err(Failure::Cannot(format!("these logs are incomplete: {}", names.join(", ")))),
    }
}

#[derive(Debug)]
pub struct Recording {
    directory: PathBuf,
    about: String,
    /// Number of agents so far, by name.
    agents: Mutex<BTreeMap<String, u32>>,
}

/// The logs of one enclave's agents.
#[derive(Clone, Debug)]
pub struct Logs {
    recording: Arc<Recording>,
    of: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    pub path: PathBuf,
    /// Text in the log's header.
    pub about: String,
}

impl Recording {
    /// A recording of a run of `scenario` under `seed` into `directory`, which is created if needed.
    pub fn start(directory: &Path, scenario: &str, seed: u64) -> Result<Arc<Recording>, Failure> {
        std::fs::create_dir_all(directory).map_err(|error| {
            Failure::Cannot(format!("cannot make {} for logs: {error}", directory.display()))
        })?;
        Ok(Arc::new(Recording {
            directory: directory.to_owned(),
            about: format!("scenario {scenario}, seed {seed}"),
            agents: Mutex::new(BTreeMap::new()),
        }))
    }

    /// The logs of the agents that decide for `of`: a variant, or an enclave of one.
    pub fn logs(self: &Arc<Recording>, of: &str) -> Logs {
        Logs { recording: Arc::clone(self), of: of.to_owned() }
    }

    /// A fact for the report.
    pub fn fact(&self) -> (String, String) {
        let agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        let count: u32 = agents.values().sum();
        let how = format!("{}/*.wavelog; it took some of their time", self.directory.display());
        (format!("{} recorded", counted(count, "agent")), how)
    }
}

impl Logs {
    /// Description of the logs.
    pub fn about(&self) -> String {
        format!("{}, {}", self.recording.about, self.of)
    }

    /// The log of the enclave's next agent; the first agent's file has the bare name.
    pub fn next(&self) -> Log {
        let Recording { directory, about, agents } = &*self.recording;
        let name = slug(&self.of);
        let mut agents = agents.lock().unwrap_or_else(PoisonError::into_inner);
        let number = agents.entry(name.clone()).or_default();
        *number += 1;
        let file = match *number {
            1 => format!("{name}.wavelog"),
            number => format!("{name}-{number}.wavelog"),
        };
        Log { path: directory.join(file), about: format!("{about}, {} {number}", self.of) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_agent_has_a_file_of_its_own() {
        let recording = Arc::new(Recording {
            directory: "/logs".into(),
            about: "scenario x, seed 1".into(),
            agents: Mutex::default(),
        });
        let (first, other) = (recording.logs("On host, shm"), recording.logs("offload"));
        let paths: Vec<PathBuf> =
            [&first, &other, &first].iter().map(|logs| logs.next().path).collect();
        let expected = ["on-host-shm.wavelog", "offload.wavelog", "on-host-shm-2.wavelog"];
        assert_eq!(paths, expected.map(|file| Path::new("/logs").join(file)));
        assert_eq!(other.next().about, "scenario x, seed 1, offload 2");
        assert_eq!(recording.fact().0, "4 agents recorded");
    }
}

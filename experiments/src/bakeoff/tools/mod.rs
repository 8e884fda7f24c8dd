//! What finds cold pages and pages them out: ours, DAMON, MGLRU.

mod damon;
mod mglru;
mod ours;

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use damon::{Damon, Statistics};
pub use mglru::Mglru;

use super::cgroup::Cgroup;
use super::places::Places;
use wave_lab::Failure;

/// A tool, and how eager it is.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Setting {
    /// A policy of ours.
    Wave(String),
    /// DAMON's scheme that pages out.
    Damon(Damon),
    /// Aging and eviction of generations.
    Mglru(Mglru),
}

impl Setting {
    /// The curve that it is a point of.
    pub fn tool(&self) -> &str {
        match self {
            Setting::Wave(policy) => policy.split(':').next().unwrap_or(policy),
            Setting::Damon(_) => "damon",
            Setting::Mglru(_) => "mglru",
        }
    }

    /// What is set.
    pub fn describe(&self) -> String {
        match self {
            Setting::Wave(policy) => policy.clone(),
            Setting::Damon(damon) => damon.describe(),
            Setting::Mglru(mglru) => mglru.describe(),
        }
    }

    /// Lets it work on a program.
    pub fn start(&self, pid: i32, cgroup: &Cgroup, places: Places) -> Result<Running, Failure> {
        Ok(match self {
            Setting::Wave(policy) => {
                Running::Ours(Box::new(ours::Ours::start(policy, pid, places)?))
            }
            Setting::Damon(damon) => Running::Damon(damon.start(pid, places)?),
            Setting::Mglru(mglru) => Running::Mglru(mglru.start(cgroup)?),
        })
    }
}

/// A tool at work. Gone when it is dropped.
pub enum Running {
    /// A host and an agent.
    Ours(Box<ours::Ours>),
    /// A kernel thread.
    Damon(damon::Kdamond),
    /// A thread that tells the kernel when to age and to evict.
    Mglru(mglru::Evictor),
}

impl Running {
    /// The CPU time that it has taken, page-outs included.
    pub fn cpu(&self) -> Duration {
        match self {
            Running::Ours(ours) => ours.cpu(),
            Running::Damon(kdamond) => kdamond.cpu(),
            Running::Mglru(evictor) => evictor.cpu(),
        }
    }

    /// Whether it works still, or why not.
    pub fn check(&mut self) -> Result<(), Failure> {
        match self {
            Running::Ours(ours) => ours.check(),
            Running::Damon(kdamond) => kdamond.check(),
            Running::Mglru(evictor) => evictor.check(),
        }
    }
}

/// What of the tools this kernel lacks, in words.
pub fn missing() -> Vec<String> {
    [damon::missing(), mglru::missing()].into_iter().flatten().collect()
}

/// What a thread has spent, as `/proc/PID/schedstat` has it.
fn cpu_of(schedstat: &Path) -> Duration {
    let text = std::fs::read_to_string(schedstat).unwrap_or_default();
    let first = text.split_whitespace().next().and_then(|number| number.parse().ok());
    Duration::from_nanos(first.unwrap_or(0))
}

//! Tools that find cold pages and page them out: ours, DAMON, MGLRU, `memory.reclaim`.

mod damon;
mod mglru;
mod ours;
mod periodic;
mod reclaim;

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use damon::{Damon, Statistics};
pub use mglru::Mglru;
pub use ours::Ours;
pub use reclaim::Reclaim;

use super::cgroup::Cgroup;
use super::places::Places;
use wave_app_memory::overhead::{Before, slab_bytes};
use wave_terminal::Failure;

/// SOL: its savings are compared with those of [`RIVALS`].
pub const SOL: &str = "sol";
/// Tools that SOL is compared with.
pub const RIVALS: [&str; 3] = ["damon", "mglru", "reclaim"];

/// A tool with one of its settings.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Setting {
    Wave(Ours),
    /// DAMON's scheme that pages out.
    Damon(Damon),
    /// Aging and eviction of generations.
    Mglru(Mglru),
    /// A cgroup's `memory.reclaim`.
    Reclaim(Reclaim),
}

impl Setting {
    /// Name of the tool: one curve.
    pub fn tool(&self) -> &str {
        match self {
            Setting::Wave(ours) => ours.name(),
            Setting::Damon(_) => RIVALS[0],
            Setting::Mglru(_) => RIVALS[1],
            Setting::Reclaim(_) => RIVALS[2],
        }
    }

    pub fn describe(&self) -> String {
        match self {
            Setting::Wave(ours) => ours.describe(),
            Setting::Damon(damon) => damon.describe(),
            Setting::Mglru(mglru) => mglru.describe(),
            Setting::Reclaim(reclaim) => reclaim.describe(),
        }
    }

    /// Whether the setting needs longer to settle.
    pub fn is_slow(&self) -> bool {
        match self {
            Setting::Wave(ours) => ours.slow,
            Setting::Damon(damon) => damon.slow,
            Setting::Mglru(mglru) => mglru.slow,
            Setting::Reclaim(reclaim) => reclaim.slow,
        }
    }

    /// Whether this is ours, as it ships.
    pub fn is_shipped(&self) -> bool {
        matches!(self, Setting::Wave(ours) if ours.is_shipped())
    }

    /// Starts the tool on a program.
    pub fn start(&self, pid: i32, cgroup: &Cgroup, places: Places) -> Result<Running, Failure> {
        let before = Before::now();
        let tool = match self {
            Setting::Wave(ours) => Tool::Ours(Box::new(ours.start(pid, places)?)),
            Setting::Damon(damon) => Tool::Damon(damon.start(pid, places)?),
            Setting::Mglru(mglru) => Tool::Thread(mglru.start(cgroup)?),
            Setting::Reclaim(reclaim) => Tool::Thread(reclaim.start(cgroup)?),
        };
        Ok(Running { tool, before })
    }
}

/// A running tool. Stopped on drop.
pub struct Running {
    tool: Tool,
    before: Before,
}

enum Tool {
    Ours(Box<ours::HostAndAgent>),
    Damon(damon::Kdamond),
    /// A thread that tells the kernel when to reclaim.
    Thread(periodic::Periodic),
}

impl Running {
    /// CPU time so far, page-outs included.
    pub fn cpu(&self) -> Duration {
        match &self.tool {
            Tool::Ours(ours) => ours.cpu(),
            Tool::Damon(kdamond) => kdamond.cpu(),
            Tool::Thread(thread) => thread.cpu(),
        }
    }

    /// Memory that the tool takes now: its processes, and the kernel's objects for it. Measured alike for every tool.
    pub fn memory_bytes(&self) -> u64 {
        let agent = match &self.tool {
            Tool::Ours(ours) => Some(ours.agent()),
            _ => None,
        };
        // No other DAMON runs meanwhile: all regions are this tool's.
        self.before.grown(agent.as_slice()) + slab_bytes(damon::REGIONS)
    }

    /// The value that a self-tuning tool has reached.
    pub fn tuned(&self) -> Option<String> {
        match &self.tool {
            Tool::Damon(kdamond) => kdamond.tuned(),
            _ => None,
        }
    }

    /// Fails if the tool has stopped, and says why.
    pub fn check(&mut self) -> Result<(), Failure> {
        match &mut self.tool {
            Tool::Ours(ours) => ours.check(),
            Tool::Damon(kdamond) => kdamond.check(),
            Tool::Thread(thread) => thread.check(),
        }
    }
}

/// What this kernel lacks for these settings, in words.
pub fn missing(settings: &[Setting]) -> Vec<String> {
    let of = |setting: &Setting| match setting {
        Setting::Wave(_) => Vec::new(),
        Setting::Damon(damon) => damon.missing(),
        Setting::Mglru(_) => mglru::missing().into_iter().collect(),
        Setting::Reclaim(_) => reclaim::missing().into_iter().collect(),
    };
    let mut missing: Vec<String> = settings.iter().flat_map(of).collect();
    missing.sort();
    missing.dedup();
    missing
}

/// CPU time of a thread, from `/proc/PID/schedstat`.
fn cpu_of(schedstat: &Path) -> Duration {
    let text = std::fs::read_to_string(schedstat).unwrap_or_default();
    let first = text.split_whitespace().next().and_then(|number| number.parse().ok());
    Duration::from_nanos(first.unwrap_or(0))
}

//! `memory.reclaim` of a cgroup: reclaims a share of the group's memory at an interval, less as the group's stall time comes
//! near a limit. This is what Senpai does (TMO, ASPLOS 2022, section 3.3); the kernel chooses the pages, here by MGLRU.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::cgroup::Cgroup;
use super::periodic::Periodic;
use wave_linux::memory::Pressure;
use wave_terminal::Failure;

/// The kernel's option for anonymous memory only, as in the other tools.
const ANONYMOUS: &str = "swappiness=max";
const PRESSURE: &str = "/proc/pressure/memory";

/// One setting of `memory.reclaim`.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reclaim {
    /// Interval of reclaiming.
    #[schemars(range(min = 1))]
    pub every_ms: u64,
    /// Share of the group's memory reclaimed each time, without stalls.
    #[schemars(extend("x-range" = "above 0, 100 at most"))]
    pub share_percent: f64,
    /// Share of stalled time at which nothing is reclaimed.
    #[schemars(extend("x-range" = "above 0, 100 at most"))]
    pub stall_percent: f64,
    /// Whether the setting gets the times of `slow`.
    #[serde(default)]
    pub slow: bool,
}

impl Reclaim {
    /// # Errors
    /// Says which setting is out of range.
    pub fn check(&self) -> Result<(), String> {
        for (name, value) in
            [("share_percent", self.share_percent), ("stall_percent", self.stall_percent)]
        {
            if !(value > 0.0 && value <= 100.0) {
                return Err(format!("`{name}` is {value}, expected above 0 and at most 100"));
            }
        }
        Ok(())
    }

    pub fn describe(&self) -> String {
        let Reclaim { every_ms, share_percent, stall_percent, .. } = self;
        format!("{share_percent}% every {every_ms} ms, less up to {stall_percent}% of stalls")
    }

    pub fn start(&self, cgroup: &Cgroup) -> Result<Periodic, Failure> {
        let (settings, folder) = (self.clone(), cgroup.folder().to_owned());
        let mut before: Option<(Instant, u64)> = None;
        let step = move || {
            let stalled_us = stalled_us(&folder)?;
            let now = Instant::now();
            let (then, before_us) = before.replace((now, stalled_us)).unwrap_or((now, stalled_us));
            let share = match now.duration_since(then).as_secs_f64() {
                0.0 => 0.0,
                seconds => (stalled_us - before_us) as f64 / 1e6 / seconds,
            };
            reclaim(&folder, settings.bytes(current(&folder)?, share))
        };
        Periodic::start("wave-reclaim", Duration::from_millis(self.every_ms), step)
    }

    /// Bytes to reclaim of `current`, if some task stalled for this share of the time.
    fn bytes(&self, current: u64, stalled: f64) -> u64 {
        let left = (1.0 - stalled / (self.stall_percent / 100.0)).max(0.0);
        (current as f64 * self.share_percent / 100.0 * left) as u64
    }
}

fn stalled_us(folder: &Path) -> Result<u64, String> {
    let pressure = Pressure::of_cgroup(folder);
    let pressure = pressure.ok_or_else(|| format!("{} has no memory.pressure", folder.display()));
    Ok(pressure?.some.total_us)
}

fn current(folder: &Path) -> Result<u64, String> {
    let file = folder.join("memory.current");
    let text = std::fs::read_to_string(&file);
    let text = text.map_err(|error| format!("{}: {error}", file.display()))?;
    text.trim().parse().map_err(|error| format!("{}: {error}", file.display()))
}

fn reclaim(folder: &Path, bytes: u64) -> Result<(), String> {
    let file: PathBuf = folder.join("memory.reclaim");
    match std::fs::write(&file, format!("{bytes} {ANONYMOUS}")) {
        // The kernel found fewer pages than that: no failure of the tool.
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            Ok(())
        }
        Err(error) if error.kind() == ErrorKind::InvalidInput => Err(format!(
            "{}: this kernel's memory.reclaim has no `{ANONYMOUS}` (needs Linux 6.16)",
            file.display()
        )),
        result => result.map_err(|error| format!("{}: {error}", file.display())),
    }
}

/// What this kernel lacks for `memory.reclaim`, if anything.
pub fn missing() -> Option<String> {
    let stalls = std::fs::read_to_string(PRESSURE).is_ok_and(|text| !text.is_empty());
    (!stalls).then(|| format!("stall times (no {PRESSURE}: CONFIG_PSI, psi=1)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reclaim_shrinks_as_stalls_approach_the_limit() {
        let settings =
            Reclaim { every_ms: 1_000, share_percent: 2.0, stall_percent: 10.0, slow: false };
        let bytes = |stalled| settings.bytes(1_000_000, stalled);
        assert_eq!([bytes(0.0), bytes(0.05), bytes(0.1), bytes(0.5)], [20_000, 10_000, 0, 0]);
    }
}

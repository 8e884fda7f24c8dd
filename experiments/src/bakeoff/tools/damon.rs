//! DAMON's proactive reclaim of one process: a scheme that pages out what was not accessed for an age
//! (Documentation/admin-guide/mm/damon/usage.rst).

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::places::Places;
use super::super::put;
use wave_lab::Failure;

const ADMIN: &str = "/sys/kernel/mm/damon/admin/kdamonds";
/// The part of DAMON that watches all of the machine's memory by itself, clearing accessed bits: nobody else may then.
const STATISTICS: &str = "/sys/module/damon_stat/parameters/enabled";

/// Its settings.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Damon {
    /// How often a page of each region is looked at.
    #[serde(default = "Damon::sample_us")]
    pub sample_us: u64,
    /// How often that is summed up: regions are split and merged, and the scheme is applied.
    #[serde(default = "Damon::aggregate_us")]
    pub aggregate_us: u64,
    /// How often it is looked what is mapped.
    #[serde(default = "Damon::update_us")]
    pub update_us: u64,
    /// The fewest regions, and the most.
    #[serde(default = "Damon::regions")]
    pub regions: [u64; 2],
    /// Paged out is what was not accessed for so long.
    pub age_ms: u64,
    /// What counts as not accessed: up to so many of the looks in an aggregation saw an access.
    #[serde(default)]
    pub accesses_max: u64,
}

impl Damon {
    // The kernel's defaults.
    fn sample_us() -> u64 {
        5_000
    }

    fn aggregate_us() -> u64 {
        100_000
    }

    fn update_us() -> u64 {
        1_000_000
    }

    fn regions() -> [u64; 2] {
        [10, 1000]
    }

    pub fn check(&self) -> Result<(), String> {
        let Damon { sample_us, aggregate_us, update_us, regions: [min, max], age_ms, .. } = *self;
        if sample_us == 0 || aggregate_us < sample_us || update_us < sample_us {
            return Err("`sample_us` is above 0, and at most `aggregate_us` and `update_us`".into());
        }
        if min < 3 || max < min {
            return Err("`regions` is the fewest, 3 or more, and the most".into());
        }
        if age_ms == 0 {
            return Err("`age_ms` is 0, expected 1 or more".into());
        }
        Ok(())
    }

    pub fn describe(&self) -> String {
        let Damon { sample_us, aggregate_us, regions: [min, max], age_ms, accesses_max, .. } = self;
        let (sample, aggregate) = (*sample_us as f64 / 1e3, *aggregate_us as f64 / 1e3);
        format!(
            "at most {accesses_max} accesses for {age_ms} ms, looks every {sample} ms, summed up every {aggregate} ms, \
             {min} to {max} regions"
        )
    }

    pub fn start(&self, pid: i32, places: Places) -> Result<Kdamond, Failure> {
        put(&Path::new(ADMIN).join("nr_kdamonds"), "1")?;
        let kdamond = Kdamond { folder: Path::new(ADMIN).join("0") };
        let set = |name: &str, value: &str| put(&kdamond.folder.join(name), value);
        set("contexts/nr_contexts", "1")?;
        set("contexts/0/operations", "vaddr")?;
        set("contexts/0/targets/nr_targets", "1")?;
        set("contexts/0/targets/0/pid_target", &pid.to_string())?;
        let attributes = "contexts/0/monitoring_attrs";
        for (name, value) in [
            ("intervals/sample_us", self.sample_us),
            ("intervals/aggr_us", self.aggregate_us),
            ("intervals/update_us", self.update_us),
            // The most first: the fewest may not pass it.
            ("nr_regions/max", self.regions[1]),
            ("nr_regions/min", self.regions[0]),
        ] {
            set(&format!("{attributes}/{name}"), &value.to_string())?;
        }
        set("contexts/0/schemes/nr_schemes", "1")?;
        set("contexts/0/schemes/0/action", "pageout")?;
        let age = (self.age_ms * 1_000).div_ceil(self.aggregate_us);
        for (name, [min, max]) in [
            ("sz", [4096, u64::MAX]),
            ("nr_accesses", [0, self.accesses_max]),
            ("age", [age, u64::from(u32::MAX)]),
        ] {
            let folder = format!("contexts/0/schemes/0/access_pattern/{name}");
            set(&format!("{folder}/max"), &max.to_string())?;
            set(&format!("{folder}/min"), &min.to_string())?;
        }
        set("state", "on")?;
        if let Ok(thread) = kdamond.read("pid").parse() {
            places.share(thread)?;
        }
        Ok(kdamond)
    }
}

/// A kernel thread of DAMON's. Off when it is dropped.
pub struct Kdamond {
    folder: PathBuf,
}

impl Kdamond {
    fn read(&self, name: &str) -> String {
        let text = std::fs::read_to_string(self.folder.join(name)).unwrap_or_default();
        text.trim().to_owned()
    }

    pub fn cpu(&self) -> Duration {
        super::cpu_of(&Path::new("/proc").join(self.read("pid")).join("schedstat"))
    }

    pub fn check(&mut self) -> Result<(), Failure> {
        match self.read("state").as_str() {
            "on" => Ok(()),
            state => Err(Failure::Cannot(format!("DAMON stopped by itself: its state is {state}"))),
        }
    }
}

impl Drop for Kdamond {
    fn drop(&mut self) {
        let _ = put(&self.folder.join("state"), "off");
        let _ = put(&Path::new(ADMIN).join("nr_kdamonds"), "0");
    }
}

/// DAMON's own statistics, which are off as long as this lives: for all tools alike.
pub struct Statistics {
    were_on: bool,
}

impl Statistics {
    pub fn pause() -> Result<Statistics, Failure> {
        let text = std::fs::read_to_string(STATISTICS).unwrap_or_default();
        let were_on = text.trim() == "Y";
        if were_on {
            put(Path::new(STATISTICS), "N")?;
        }
        Ok(Statistics { were_on })
    }

    /// For the report.
    pub fn were_on(&self) -> bool {
        self.were_on
    }
}

impl Drop for Statistics {
    fn drop(&mut self) {
        if self.were_on {
            let _ = put(Path::new(STATISTICS), "Y");
        }
    }
}

/// What the kernel lacks, or who has it already. Nothing is changed to find out.
pub fn missing() -> Option<String> {
    let Ok(number) = std::fs::read_to_string(Path::new(ADMIN).join("nr_kdamonds")) else {
        return Some("DAMON (no /sys/kernel/mm/damon/admin: CONFIG_DAMON_SYSFS)".to_owned());
    };
    for at in 0..number.trim().parse().unwrap_or(0) {
        let state = std::fs::read_to_string(format!("{ADMIN}/{at}/state")).unwrap_or_default();
        if state.trim() == "on" {
            return Some(format!("DAMON for us ({ADMIN}/{at} is on: somebody uses it)"));
        }
    }
    // What it can watch is told only by a context, which would have to be made.
    let names = std::fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    let has_vaddr = names.is_empty() || names.contains(" damon_va_");
    (!has_vaddr).then(|| "DAMON of virtual addresses (CONFIG_DAMON_VADDR)".to_owned())
}

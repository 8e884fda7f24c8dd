//! DAMON's proactive reclaim of one process: a scheme that pages out regions not accessed for a given time
//! (Documentation/admin-guide/mm/damon/usage.rst).

use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::places::Places;
use super::super::put;
use wave_terminal::Failure;

const ADMIN: &str = "/sys/kernel/mm/damon/admin/kdamonds";
/// DAMON's statistics of all memory: it clears accessed bits, and keeps other tools from using DAMON.
const STATISTICS: &str = "/sys/module/damon_stat/parameters/enabled";

/// DAMON's kernel objects whose number grows with the watched memory, as /proc/slabinfo names them.
pub const REGIONS: &str = "damon_region";
/// Period of a quota, as in `DAMON_RECLAIM`.
const QUOTA_MS: u64 = 1_000;
/// File that a goal of stall times needs.
const PRESSURE: &str = "/proc/pressure/memory";

/// DAMON tunes its own intervals until it observes this share of the accesses that it could observe at most
/// (Documentation/mm/damon/design.rst, "Monitoring Intervals Auto-tuning").
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IntervalsGoal {
    /// Share of the observable accesses that DAMON should observe.
    #[schemars(range(min = 0.01, max = 100))]
    pub accesses_percent: f64,
    /// Aggregations over which that share is taken.
    #[schemars(range(min = 1))]
    pub aggregations: u64,
    /// Shortest and longest sampling interval, with `damon.sample_us` between them.
    #[schemars(inner(range(min = 1)))]
    pub sample_us: [u64; 2],
}

/// DAMON with one setting.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Damon {
    /// Sampling interval.
    #[schemars(extend("x-range" = "above 0"))]
    #[serde(default = "Damon::sample_us")]
    pub sample_us: u64,
    /// Aggregation interval.
    #[schemars(extend("x-range" = "`damon.sample_us` or more"))]
    #[serde(default = "Damon::aggregate_us")]
    pub aggregate_us: u64,
    /// Interval between searches for new mappings.
    #[schemars(extend("x-range" = "`damon.sample_us` or more"))]
    #[serde(default = "Damon::update_us")]
    pub update_us: u64,
    /// Fewest and most regions.
    #[schemars(extend("x-range" = "3 or more"))]
    #[serde(default = "Damon::regions")]
    pub regions: [u64; 2],
    /// Age without accesses at which memory is paged out.
    #[schemars(range(min = 1))]
    pub age_ms: u64,
    /// Accesses in an aggregation up to which a region counts as not accessed.
    #[serde(default)]
    pub accesses_max: u64,
    /// Makes DAMON tune its intervals.
    // It starts from those above; `age_ms` counts aggregations of the initial length.
    #[schemars(extend("x-default" = ""))]
    pub intervals_goal: Option<IntervalsGoal>,
    /// Makes DAMON page out, oldest first, until some task stalls on memory for this long in a second.
    // Documentation/mm/damon/design.rst, "Aim-oriented Feedback-driven Auto-tuning".
    #[schemars(range(min = 1, max = 1_000_000), extend("x-default" = "none"))]
    pub stall_us_per_second: Option<u64>,
    /// Whether the setting gets the times of `slow`.
    #[serde(default)]
    pub slow: bool,
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
        let Damon { sample_us, aggregate_us, update_us, regions: [min, max], .. } = *self;
        if sample_us == 0 || aggregate_us < sample_us || update_us < sample_us {
            return Err(
                "expected `sample_us` above 0 and at most `aggregate_us` and `update_us`".into()
            );
        }
        if min < 3 || max < min {
            return Err("expected `regions` to be the minimum, 3 or more, and the maximum".into());
        }
        if let Some(IntervalsGoal { accesses_percent, aggregations, sample_us: [min, max] }) =
            self.intervals_goal
            && !((0.01..=100.0).contains(&accesses_percent)
                && aggregations > 0
                && (1..=max).contains(&min)
                && (min..=max).contains(&sample_us))
        {
            return Err("`intervals_goal` is `accesses_percent` of 0.01 to 100, `aggregations` of 1 or more, and \
                        `sample_us`, the shortest and the longest, with the setting's own between them"
                .into());
        }
        Ok(())
    }

    pub fn describe(&self) -> String {
        let Damon { sample_us, aggregate_us, regions: [min, max], age_ms, accesses_max, .. } = self;
        let (sample, aggregate) = (*sample_us as f64 / 1e3, *aggregate_us as f64 / 1e3);
        let mut text = format!(
            "at most {accesses_max} accesses for {age_ms} ms, looks every {sample} ms, summed up every {aggregate} ms, \
             {min} to {max} regions"
        );
        if let Some(IntervalsGoal { accesses_percent, aggregations, sample_us: [min, max] }) =
            &self.intervals_goal
        {
            let (min, max) = (*min as f64 / 1e3, *max as f64 / 1e3);
            text += &format!(
                "; intervals tuned to {accesses_percent}% of the accesses in {aggregations} aggregations, {min} to {max} ms"
            );
        }
        if let Some(us) = self.stall_us_per_second {
            text += &format!("; a quota tuned to stalls of {us} us a second, the oldest first");
        }
        text
    }

    pub fn start(&self, pid: i32, places: Places) -> Result<Kdamond, Failure> {
        put(&Path::new(ADMIN).join("nr_kdamonds"), "1")?;
        let tunes = [self.intervals_goal.is_some(), self.stall_us_per_second.is_some()];
        let kdamond = Kdamond { folder: Path::new(ADMIN).join("0"), tunes };
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
            // The maximum first: the minimum may not exceed it.
            ("nr_regions/max", self.regions[1]),
            ("nr_regions/min", self.regions[0]),
        ] {
            set(&format!("{attributes}/{name}"), &value.to_string())?;
        }
        if let Some(IntervalsGoal { accesses_percent, aggregations, sample_us: [min, max] }) =
            self.intervals_goal
        {
            for (name, value) in [
                ("access_bp", (accesses_percent * 100.0).round() as u64),
                ("aggrs", aggregations),
                ("min_sample_us", min),
                ("max_sample_us", max),
            ] {
                set(&format!("{attributes}/intervals/intervals_goal/{name}"), &value.to_string())?;
            }
        }
        set("contexts/0/schemes/nr_schemes", "1")?;
        set("contexts/0/schemes/0/action", "pageout")?;
        if let Some(us) = self.stall_us_per_second {
            let quotas = "contexts/0/schemes/0/quotas";
            set(&format!("{quotas}/reset_interval_ms"), &QUOTA_MS.to_string())?;
            for (name, weight) in [("sz", 0), ("nr_accesses", 0), ("age", 1_000)] {
                set(&format!("{quotas}/weights/{name}_permil"), &weight.to_string())?;
            }
            set(&format!("{quotas}/goals/nr_goals"), "1")?;
            set(&format!("{quotas}/goals/0/target_metric"), "some_mem_psi_us")?;
            let target = us * QUOTA_MS / 1_000;
            set(&format!("{quotas}/goals/0/target_value"), &target.to_string())?;
        }
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

/// One of DAMON's kernel threads. Switched off on drop.
pub struct Kdamond {
    folder: PathBuf,
    /// Whether it tunes its intervals, and its quota.
    tunes: [bool; 2],
}

impl Kdamond {
    fn read(&self, name: &str) -> String {
        let text = std::fs::read_to_string(self.folder.join(name)).unwrap_or_default();
        text.trim().to_owned()
    }

    pub fn cpu(&self) -> Duration {
        super::cpu_of(&Path::new("/proc").join(self.read("pid")).join("schedstat"))
    }

    /// The intervals and the quota that it has tuned so far.
    pub fn tuned(&self) -> Option<String> {
        let [intervals, quota] = self.tunes;
        let read = |order: &str, names: &[&str]| -> Option<Vec<String>> {
            put(&self.folder.join("state"), order).ok()?;
            Some(names.iter().map(|name| self.read(&format!("contexts/0/{name}"))).collect())
        };
        let folder = "monitoring_attrs/intervals";
        let names = [format!("{folder}/sample_us"), format!("{folder}/aggr_us")];
        let intervals = intervals.then(|| {
            let found = read("update_tuned_intervals", &names.each_ref().map(String::as_str))?;
            Some(format!("looks every {} us, summed up every {} us", found[0], found[1]))
        });
        let quota = quota.then(|| {
            let name = "schemes/0/quotas/effective_bytes";
            let found = read("update_schemes_effective_quotas", &[name])?;
            Some(format!("{} bytes a second", found[0]))
        });
        let parts: Vec<String> = [intervals, quota].into_iter().flatten().flatten().collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }

    pub fn check(&mut self) -> Result<(), Failure> {
        match self.read("state").as_str() {
            "on" => Ok(()),
            state => {
                Err(Failure::Cannot(format!("DAMON stopped unexpectedly: its state is {state}")))
            }
        }
    }
}

impl Drop for Kdamond {
    fn drop(&mut self) {
        let _ = put(&self.folder.join("state"), "off");
        let _ = put(&Path::new(ADMIN).join("nr_kdamonds"), "0");
    }
}

/// DAMON's own statistics, switched off while this value lives: for all tools alike.
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

    /// Whether the statistics were on before, for the report.
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

impl Damon {
    /// Reasons why DAMON cannot run: missing kernel features, or another user of it. Changes nothing.
    pub fn missing(&self) -> Vec<String> {
        let Ok(number) = std::fs::read_to_string(Path::new(ADMIN).join("nr_kdamonds")) else {
            return vec!["DAMON (no /sys/kernel/mm/damon/admin: CONFIG_DAMON_SYSFS)".to_owned()];
        };
        let mut missing = Vec::new();
        for at in 0..number.trim().parse().unwrap_or(0) {
            let state = std::fs::read_to_string(format!("{ADMIN}/{at}/state")).unwrap_or_default();
            if state.trim() == "on" {
                missing.push(format!(
                    "DAMON free for use ({ADMIN}/{at} is on: another program uses it)"
                ));
            }
        }
        // Only a context would tell its features, and that would have to be created.
        let names = std::fs::read_to_string("/proc/kallsyms").unwrap_or_default();
        let has = |symbol: &str| names.is_empty() || names.contains(symbol);
        if !has(" damon_va_") {
            missing.push("DAMON of virtual addresses (CONFIG_DAMON_VADDR)".to_owned());
        }
        if self.intervals_goal.is_some() && !has(" damon_sysfs_intervals_goal_") {
            missing.push("DAMON's `intervals_goal` (needs Linux 6.15)".to_owned());
        }
        if self.stall_us_per_second.is_some() {
            if !has(" damos_sysfs_quota_goal_") {
                missing.push("DAMON's quota goals (needs Linux 6.9)".to_owned());
            }
            if std::fs::read_to_string(PRESSURE).is_ok_and(|text| !text.is_empty()) {
                return missing;
            }
            missing.push(format!("stall times (no {PRESSURE}: CONFIG_PSI, psi=1)"));
        }
        missing
    }
}

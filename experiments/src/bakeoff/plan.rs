//! The file of a bake-off: programs, and tools with their settings.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::pattern::Pattern;
use super::tools::{Damon, Mglru, Ours, Reclaim, Setting};
use crate::memory::size;
use crate::memory::swap::SwapOn;
use wave_lab::Failure;
use wave_report::slug;

/// `kind` of a scenario of this sort.
pub const KIND: &str = "memory-bakeoff";

/// A bake-off's scenario, checked.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Names the output directory.
    pub name: String,
    pub kind: String,
    /// One paragraph for the reader; may be empty.
    #[serde(default)]
    pub description: String,
    /// Of every program's accesses.
    pub seed: u64,
    /// From when a tool begins until its figures count.
    pub warmup_seconds: f64,
    /// Seconds of measuring, after the warm-up.
    pub seconds: f64,
    /// The same times of settings that are `slow`: of every tool alike.
    pub slow: Slow,
    /// Size of the swap that is set up for the run.
    pub swap: String,
    /// Where it is: everything is run with each of these.
    #[serde(default = "Plan::swap_on")]
    pub swap_on: Vec<SwapOn>,
    /// Programs whose memory is managed.
    pub program: Vec<Program>,
    /// Wave's policies, with their settings.
    pub wave: Vec<Ours>,
    pub damon: Vec<Damon>,
    pub mglru: Vec<Mglru>,
    /// Settings of reclaim by `memory.reclaim`.
    pub reclaim: Vec<Reclaim>,
}

/// Longer times, for settings that need them to settle.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Slow {
    /// From when a tool begins until its figures count.
    pub warmup_seconds: f64,
    /// For how long they do, at least.
    pub seconds: f64,
}

/// A program, and how it uses its memory.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// Name of the tool in tables.
    pub name: String,
    pub pattern: Pattern,
    /// Whether it judges: no setting of ours was chosen in sight of its results.
    #[serde(default)]
    pub judge: bool,
    /// Size of the memory, with its unit.
    pub memory: String,
    /// How often it touches a page; of redis, GETs; of Python's dict, lookups.
    pub accesses_per_second: f64,
    /// Of patterns with phases: how long one lasts.
    #[serde(default = "Program::phase_seconds")]
    pub phase_seconds: f64,
    /// For how long it is measured, where that is not the usual time: whole phases, say.
    pub seconds: Option<f64>,
}

impl Program {
    fn phase_seconds() -> f64 {
        4.0
    }
}

/// Checks the plan in `text`; `path` is where it came from.
pub fn parse(path: &Path, text: &str) -> Result<Plan, Failure> {
    let bad = |why: String| Failure::Scenario(format!("{}: {why}", path.display()));
    let plan: Plan = toml::from_str(text).map_err(|error| bad(error.to_string()))?;
    plan.check().map_err(bad)?;
    Ok(plan)
}

impl Plan {
    fn swap_on() -> Vec<SwapOn> {
        vec![SwapOn::Zram]
    }

    /// For how many seconds a setting settles on a program, and is measured.
    pub fn times(&self, program: &Program, setting: &Setting) -> [f64; 2] {
        let seconds = program.seconds.unwrap_or(self.seconds);
        match setting.is_slow() {
            true => [self.slow.warmup_seconds, self.slow.seconds.max(seconds)],
            false => [self.warmup_seconds, seconds],
        }
    }

    fn check(&self) -> Result<(), String> {
        if self.name.is_empty() || slug(&self.name) != self.name {
            return Err(format!(
                "`name` is \"{}\", expected small letters, digits and single hyphens",
                self.name
            ));
        }
        let of_programs = self.program.iter().flat_map(|program| {
            let seconds = program.seconds.map(|seconds| ("program.seconds", seconds));
            [("program.phase_seconds", program.phase_seconds)].into_iter().chain(seconds)
        });
        let of_all = [
            ("warmup_seconds", self.warmup_seconds),
            ("seconds", self.seconds),
            ("slow.warmup_seconds", self.slow.warmup_seconds),
            ("slow.seconds", self.slow.seconds),
        ];
        for (field, value) in of_all.into_iter().chain(of_programs) {
            if !(0.1..=3600.0).contains(&value) {
                return Err(format!("`{field}` is {value}, expected 0.1 to 3600"));
            }
        }
        size::parse(&self.swap).map_err(|why| format!("`swap`: {why}"))?;
        if self.swap_on.is_empty()
            || (1..self.swap_on.len()).any(|at| self.swap_on[..at].contains(&self.swap_on[at]))
        {
            return Err("`swap_on` is \"zram\", \"file\" or both, each once".to_owned());
        }
        if self.program.is_empty() {
            return Err("expected a [[program]] or more".to_owned());
        }
        for (at, program) in self.program.iter().enumerate() {
            let Program { name, memory, accesses_per_second, .. } = program;
            if slug(name).is_empty()
                || self.program[..at].iter().any(|other| slug(&other.name) == slug(name))
            {
                return Err(format!(
                    "`program.name` is \"{name}\", expected letters or digits, and other ones than every other's"
                ));
            }
            size::parse(memory).map_err(|why| format!("`program.memory` of {name}: {why}"))?;
            if !(1.0..=1e8).contains(accesses_per_second) {
                return Err(format!(
                    "`program.accesses_per_second` of {name} is {accesses_per_second}, expected 1 to 100000000"
                ));
            }
        }
        for ours in &self.wave {
            ours.check().map_err(|why| format!("[[wave]]: {why}"))?;
        }
        for damon in &self.damon {
            damon.check().map_err(|why| format!("[[damon]]: {why}"))?;
        }
        for mglru in &self.mglru {
            mglru.check().map_err(|why| format!("[[mglru]]: {why}"))?;
        }
        for reclaim in &self.reclaim {
            reclaim.check().map_err(|why| format!("[[reclaim]]: {why}"))?;
        }
        if [self.wave.len(), self.damon.len(), self.mglru.len(), self.reclaim.len()].contains(&0) {
            return Err(
                "expected a [[wave]], a [[damon]], a [[mglru]] and a [[reclaim]], or more of each"
                    .to_owned(),
            );
        }
        // A partial phase would be no fair sample of the program.
        for program in self.program.iter().filter(|program| program.pattern.has_phases()) {
            for setting in self.settings() {
                let [_, seconds] = self.times(program, &setting);
                let phases = seconds / program.phase_seconds;
                if (phases - phases.round()).abs() > 1e-6 {
                    return Err(format!(
                        "{} is measured for {seconds} s with {}, expected whole phases of {} s",
                        program.name,
                        setting.describe(),
                        program.phase_seconds
                    ));
                }
            }
        }
        Ok(())
    }

    /// Every setting of every tool.
    pub fn settings(&self) -> Vec<Setting> {
        let ours = self.wave.iter().cloned().map(Setting::Wave);
        let damon = self.damon.iter().cloned().map(Setting::Damon);
        let mglru = self.mglru.iter().cloned().map(Setting::Mglru);
        let reclaim = self.reclaim.iter().cloned().map(Setting::Reclaim);
        ours.chain(damon).chain(mglru).chain(reclaim).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shipped() -> String {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios/memory-bakeoff.toml");
        std::fs::read_to_string(file).unwrap()
    }

    fn refusal(from: &str, to: &str) -> String {
        let text = shipped();
        assert!(text.contains(from), "{from} is not in the scenario");
        let text = text.replacen(from, to, 1);
        let error = parse(Path::new("x.toml"), &text).expect_err("this is to be refused");
        assert_eq!(error.exit_code(), 2);
        error.to_string()
    }

    #[test]
    fn the_shipped_scenario_is_right_and_what_is_wrong_is_named() {
        let plan: Plan = toml::from_str(&shipped()).unwrap();
        plan.check().unwrap();
        assert!(plan.settings().len() >= 9, "a curve has three points or more");
        assert!(refusal("seed = 1", "speed = 1").contains("speed"));
        assert!(refusal("policy = \"sol:", "policy = \"sol:color=red,").contains("color"));
        assert!(refusal("\nseconds = ", "\nseconds = -").contains("`seconds` is -"));
        assert!(refusal("swap = \"", "swap = \"x").contains("512MiB"));
        assert!(refusal("name = \"memory", "name = \"Memory").contains("small letters"));
        assert!(refusal("pattern = \"zipf\"", "pattern = \"zap\"").contains("zap"));
        assert!(refusal("age_ms = ", "age_ms = 0 # ").contains("`age_ms` is 0"));
    }
}

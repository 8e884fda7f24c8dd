//! The file of a bake-off: programs, and tools with their settings.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::pattern::Pattern;
use super::tools::{Damon, Mglru, Ours, Reclaim, Setting};
use wave_experiments::ground::fields::Name;
use wave_report::slug;
use wave_scenario::size::Size;
use wave_scenario::{ScenarioError, Source, SwapOn};

/// A bake-off's scenario, checked.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    pub name: Name,
    /// Kind of the scenario.
    kind: String,
    /// One paragraph for the reader of the results.
    #[serde(default)]
    pub description: String,
    /// Seed of every program's accesses.
    pub seed: u64,
    /// Time from the start of a tool until its figures count.
    #[schemars(range(min = 0.1, max = 3600))]
    pub warmup_seconds: f64,
    /// Time of measurement, after the warm-up.
    #[schemars(range(min = 0.1, max = 3600))]
    pub seconds: f64,
    /// Times of settings with `slow = true`.
    pub slow: Slow,
    /// Size of the swap that is set up for the run, as `512MiB`.
    pub swap: Size,
    /// Places of that swap, each once; everything is run with each.
    #[serde(default = "Plan::swap_on")]
    pub swap_on: Vec<SwapOn>,
    /// Programs whose memory is managed, at least one.
    pub program: Vec<Program>,
    /// Settings of our policies, at least one.
    pub wave: Vec<Ours>,
    /// Settings of DAMON's proactive reclaim, at least one.
    pub damon: Vec<Damon>,
    /// Settings of MGLRU's aging and eviction, at least one.
    pub mglru: Vec<Mglru>,
    /// Settings of reclaim by a cgroup's `memory.reclaim`, at least one.
    pub reclaim: Vec<Reclaim>,
}

/// Longer times, for settings that need longer to settle.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Slow {
    /// `warmup_seconds` of slow settings.
    #[schemars(range(min = 0.1, max = 3600))]
    pub warmup_seconds: f64,
    /// `seconds` of slow settings, at least.
    #[schemars(range(min = 0.1, max = 3600))]
    pub seconds: f64,
}

/// A program and its access pattern.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// Name in tables, distinct for each program.
    pub name: String,
    /// Accesses of the program (docs/guide/memory-bakeoff.md).
    pub pattern: Pattern,
    /// Whether the program is a judge: no setting of ours was chosen in view of its results.
    #[serde(default)]
    pub judge: bool,
    /// Size of its memory, as `128MiB`.
    pub memory: Size,
    /// Touches of pages; GETs of redis; lookups in Python's dict.
    #[schemars(range(min = 1, max = 1e8))]
    pub accesses_per_second: f64,
    /// Length of a phase, for patterns that have phases.
    #[serde(default = "Program::phase_seconds")]
    #[schemars(range(min = 0.1, max = 3600))]
    pub phase_seconds: f64,
    /// `seconds` of this program; whole phases.
    #[schemars(range(min = 0.1, max = 3600), extend("x-default" = "`seconds`"))]
    pub seconds: Option<f64>,
}

impl Program {
    fn phase_seconds() -> f64 {
        4.0
    }
}

pub(super) fn read(source: &Source<'_>) -> Result<Plan, ScenarioError> {
    let plan: Plan = source.read()?;
    plan.check().map_err(|Wrong { at, why }| source.refuse(&at, why))?;
    Ok(plan)
}

/// An error in the plan.
#[derive(Debug)]
struct Wrong {
    /// The field or table at fault, as `program[0].memory`.
    at: String,
    why: String,
}

fn wrong<T>(at: impl Into<String>, why: impl Into<String>) -> Result<T, Wrong> {
    Err(Wrong { at: at.into(), why: why.into() })
}

impl Plan {
    fn swap_on() -> Vec<SwapOn> {
        vec![SwapOn::Zram]
    }

    /// Seconds of warm-up and of measurement for this program and setting.
    pub fn times(&self, program: &Program, setting: &Setting) -> [f64; 2] {
        let seconds = program.seconds.unwrap_or(self.seconds);
        match setting.is_slow() {
            true => [self.slow.warmup_seconds, self.slow.seconds.max(seconds)],
            false => [self.warmup_seconds, seconds],
        }
    }

    fn check(&self) -> Result<(), Wrong> {
        if self.swap_on.is_empty()
            || (1..self.swap_on.len()).any(|at| self.swap_on[..at].contains(&self.swap_on[at]))
        {
            return wrong("swap_on", "`swap_on` is \"zram\", \"file\" or both, each once");
        }
        if self.program.is_empty() {
            return wrong("program", "expected at least one [[program]]");
        }
        for (at, program) in self.program.iter().enumerate() {
            let name = &program.name;
            if slug(name).is_empty()
                || self.program[..at].iter().any(|other| slug(&other.name) == slug(name))
            {
                return wrong(
                    format!("program[{at}].name"),
                    format!(
                        "`program.name` is \"{name}\", expected letters or digits, different from those of every other program"
                    ),
                );
            }
        }
        each("wave", &self.wave, Ours::check)?;
        each("damon", &self.damon, Damon::check)?;
        each("reclaim", &self.reclaim, Reclaim::check)?;
        if [self.wave.len(), self.damon.len(), self.mglru.len(), self.reclaim.len()].contains(&0) {
            return wrong(
                "kind",
                "expected at least one each of [[wave]], [[damon]], [[mglru]] and [[reclaim]]",
            );
        }
        // A partial phase would not be a fair sample of the program.
        let with_phases =
            self.program.iter().enumerate().filter(|(_, program)| program.pattern.has_phases());
        for (at, program) in with_phases {
            for setting in self.settings() {
                let [_, seconds] = self.times(program, &setting);
                let phases = seconds / program.phase_seconds;
                if (phases - phases.round()).abs() > 1e-6 {
                    let why = format!(
                        "{} is measured for {seconds} s with {}, expected a whole number of phases of {} s",
                        program.name,
                        setting.describe(),
                        program.phase_seconds
                    );
                    return wrong(format!("program[{at}]"), why);
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

/// Checks every setting of one tool.
fn each<T>(
    tool: &str,
    settings: &[T],
    check: impl Fn(&T) -> Result<(), String>,
) -> Result<(), Wrong> {
    settings.iter().enumerate().try_for_each(|(at, setting)| {
        check(setting).or_else(|why| wrong(format!("{tool}[{at}]"), format!("[[{tool}]]: {why}")))
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn shipped() -> String {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios/memory-bakeoff.toml");
        std::fs::read_to_string(file).unwrap()
    }

    fn refusal(from: &str, to: &str) -> String {
        let text = shipped();
        assert!(text.contains(from), "{from} is not in the scenario");
        let text = text.replacen(from, to, 1);
        let error =
            read(&Source::new(Path::new("x.toml"), &text)).expect_err("the plan is refused");
        error.to_string()
    }

    #[test]
    fn shipped_scenario_is_accepted_and_errors_name_their_field() {
        let plan: Plan = toml::from_str(&shipped()).unwrap();
        plan.check().unwrap();
        assert!(plan.settings().len() >= 9, "a curve needs three points");
        assert!(refusal("seed = 1", "speed = 1").starts_with("x.toml:8: unknown field `speed`"));
        let memory = refusal("memory = \"64MiB\"", "memory = \"much\"");
        let line = 1 + shipped().lines().position(|line| line == "memory = \"64MiB\"").unwrap();
        assert!(memory.starts_with(&format!("x.toml:{line}: `program[")), "{memory}");
        assert!(memory.contains("].memory`: `much` is not a size"), "{memory}");
        assert!(refusal("policy = \"sol:", "policy = \"sol:color=red,").contains("color"));
        assert!(refusal("\nseconds = ", "\nseconds = -").contains("`seconds` is -"));
        assert!(refusal("swap = \"", "swap = \"x").contains("512MiB"));
        assert!(refusal("name = \"memory", "name = \"Memory").contains("lowercase letters"));
        assert!(refusal("pattern = \"zipf\"", "pattern = \"zap\"").contains("zap"));
        assert!(
            refusal("age_ms = ", "age_ms = 0 # ").contains(".age_ms` is 0, expected 1 or more")
        );
    }
}

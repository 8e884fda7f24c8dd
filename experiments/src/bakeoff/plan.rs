//! The file of a bake-off: programs, and tools with their settings.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::pattern::Pattern;
use super::tools::{Damon, Mglru, Ours, Reclaim, Setting};
use wave_report::slug;
use wave_scenario::error::line_at;
use wave_scenario::{ScenarioError, SwapOn, file, size};

/// The `kind` of these scenarios.
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
    /// Seed of every program's accesses.
    pub seed: u64,
    /// Seconds from a tool's start until its figures count.
    pub warmup_seconds: f64,
    /// Seconds of measurement, after the warm-up.
    pub seconds: f64,
    /// Both times for settings marked `slow`, of any tool.
    pub slow: Slow,
    /// Size of the swap that is set up for the run.
    pub swap: String,
    /// Kinds of swap: everything runs once with each.
    #[serde(default = "Plan::swap_on")]
    pub swap_on: Vec<SwapOn>,
    /// Programs whose memory is managed.
    pub program: Vec<Program>,
    /// Wave's policies, with their settings.
    pub wave: Vec<Ours>,
    pub damon: Vec<Damon>,
    pub mglru: Vec<Mglru>,
    /// Settings of `memory.reclaim`.
    pub reclaim: Vec<Reclaim>,
}

/// Longer times, for settings that need longer to settle.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Slow {
    /// Seconds from a tool's start until its figures count.
    pub warmup_seconds: f64,
    /// Seconds of measurement, at least.
    pub seconds: f64,
}

/// A program and its access pattern.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// Name of the program in tables.
    pub name: String,
    pub pattern: Pattern,
    /// Whether the program is a judge: no setting of ours was chosen with its results in view.
    #[serde(default)]
    pub judge: bool,
    /// Size of the memory, with a unit.
    pub memory: String,
    /// Page accesses per second; GETs for redis, lookups for Python's dict.
    pub accesses_per_second: f64,
    /// Length of a phase, for patterns that have phases.
    #[serde(default = "Program::phase_seconds")]
    pub phase_seconds: f64,
    /// Seconds of measurement, if not the plan's: whole phases, for example.
    pub seconds: Option<f64>,
}

impl Program {
    fn phase_seconds() -> f64 {
        4.0
    }
}

/// Checks the plan in `text`; `path` is where it came from.
pub fn parse(path: &Path, text: &str) -> Result<Plan, ScenarioError> {
    let plan: Plan = file::parse(path, text)?;
    plan.check()
        .map_err(|Wrong { at, why }| ScenarioError::meaning(path, line_at(text, &at), why))?;
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
        if self.name.is_empty() || slug(&self.name) != self.name {
            let name = &self.name;
            return wrong(
                "name",
                format!(
                    "`name` is \"{name}\", expected lowercase letters, digits and single hyphens"
                ),
            );
        }
        let of_programs = self.program.iter().enumerate().flat_map(|(at, program)| {
            let seconds =
                program.seconds.map(|seconds| (format!("program[{at}].seconds"), seconds));
            let phase = (format!("program[{at}].phase_seconds"), program.phase_seconds);
            [phase].into_iter().chain(seconds)
        });
        let of_all = [
            ("warmup_seconds", self.warmup_seconds),
            ("seconds", self.seconds),
            ("slow.warmup_seconds", self.slow.warmup_seconds),
            ("slow.seconds", self.slow.seconds),
        ];
        let of_all = of_all.into_iter().map(|(field, value)| (field.to_owned(), value));
        for (field, value) in of_all.chain(of_programs) {
            if !(0.1..=3600.0).contains(&value) {
                let why = format!("`{field}` is {value}, expected 0.1 to 3600");
                return wrong(field, why);
            }
        }
        size::parse(&self.swap).or_else(|why| wrong("swap", format!("`swap`: {why}")))?;
        if self.swap_on.is_empty()
            || (1..self.swap_on.len()).any(|at| self.swap_on[..at].contains(&self.swap_on[at]))
        {
            return wrong("swap_on", "`swap_on` is \"zram\", \"file\" or both, each once");
        }
        if self.program.is_empty() {
            return wrong("program", "expected at least one [[program]]");
        }
        for (at, program) in self.program.iter().enumerate() {
            let Program { name, memory, accesses_per_second, .. } = program;
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
            size::parse(memory).or_else(|why| {
                let why = format!("`program.memory` of {name}: {why}");
                wrong(format!("program[{at}].memory"), why)
            })?;
            if !(1.0..=1e8).contains(accesses_per_second) {
                let field = "accesses_per_second";
                return wrong(
                    format!("program[{at}].{field}"),
                    format!(
                        "`program.{field}` of {name} is {accesses_per_second}, expected 1 to 100000000"
                    ),
                );
            }
        }
        each("wave", &self.wave, Ours::check)?;
        each("damon", &self.damon, Damon::check)?;
        each("mglru", &self.mglru, Mglru::check)?;
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
    use super::*;

    fn shipped() -> String {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios/memory-bakeoff.toml");
        std::fs::read_to_string(file).unwrap()
    }

    fn refusal(from: &str, to: &str) -> String {
        let text = shipped();
        assert!(text.contains(from), "{from} is not in the scenario");
        let text = text.replacen(from, to, 1);
        let error = parse(Path::new("x.toml"), &text).expect_err("the plan is refused");
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
        assert!(memory.starts_with(&format!("x.toml:{line}: `program.memory` of ")), "{memory}");
        assert!(refusal("policy = \"sol:", "policy = \"sol:color=red,").contains("color"));
        assert!(refusal("\nseconds = ", "\nseconds = -").contains("`seconds` is -"));
        assert!(refusal("swap = \"", "swap = \"x").contains("512MiB"));
        assert!(refusal("name = \"memory", "name = \"Memory").contains("lowercase letters"));
        assert!(refusal("pattern = \"zipf\"", "pattern = \"zap\"").contains("zap"));
        assert!(refusal("age_ms = ", "age_ms = 0 # ").contains("`age_ms` is 0"));
    }
}

//! `wave validate`: does the simulator predict native runs that it was not fitted to?
//!
//! Micro-benchmarks give a profile of this machine ([`calibration`]). With it, the simulator serves loads ([`held_out`]) that native
//! runs, of the same code as `wave run`, serve too: in rounds with the same arrivals on both sides, compared as the rows of a
//! scenario are (docs/adr/0106). Machines change during a validation: two virtual CPUs may be moved closer together or further
//! apart. Native rounds are therefore compared with a prediction for the state of the machine at that time, and there is a
//! calibration for each state that occurs.
//!
//! Recordings are validated as well ([`makespan`]): they need no calibration.

mod calibration;
mod held_out;
mod makespan;
mod model;

use wave_workloads::arrivals::{Load, Mix};

pub use calibration::Measured;
pub use held_out::Compared;
pub use makespan::Makespan;
pub use model::Model;

use calibration::Subjects;
use held_out::HeldOut;
use wave_experiments::ground::rounds::Machine;
use wave_experiments::kinds::requests::probe::Native;
use wave_experiments::kinds::requests::scenario::Scenario;
use wave_terminal::{Failure, Progress, interrupt};

/// Seed of every random stream.
const SEED: u64 = 1;
/// A machine is in another state than when it was calibrated if the transfer time of a line differs by more than this factor.
const SAME_STATE: f64 = 1.35;
/// Maximum number of states for which there is time.
const STATES_MAX: usize = 3;
/// Maximum number of tries for rounds in which the machine's state does not change.
const TRIES: usize = 3;

/// Extent of a validation.
#[derive(Clone, Debug)]
pub struct Effort {
    /// Whether to measure fewer systems.
    pub quick: bool,
    /// Only systems whose names contain this.
    pub only: String,
    /// Rounds of each system, and native runs of each recorded program.
    pub rounds: u64,
    /// Measurements of each micro-benchmark.
    pub calibrations: usize,
}

impl Effort {
    /// The usual effort, or a quick one.
    pub fn new(quick: bool, only: &str) -> Effort {
        let (calibrations, rounds) = if quick { (7, 8) } else { (11, 20) };
        Effort { quick, only: only.to_owned(), rounds, calibrations }
    }
}

/// A state of the machine, and the model fitted to it.
#[derive(Debug)]
pub struct State {
    pub measured: Measured,
    /// The model for which the simulator gives these results.
    pub model: Model,
}

#[derive(Debug)]
pub struct Validation {
    pub points: Vec<Compared>,
    /// Makespans of recorded programs; empty if this machine or this user cannot record.
    pub makespans: Vec<Makespan>,
    /// The machine's states, in the order of their first occurrence.
    pub states: Vec<State>,
    /// Facts about the run.
    pub facts: Vec<(String, String)>,
    /// Reasons not to trust the result, if any.
    pub doubts: Vec<String>,
}

impl Validation {
    /// The largest error of a saturation, or of a p99; under one policy if one is named. `None` without such a point.
    pub fn error_max(&self, of_saturation: bool, policy: Option<&str>) -> Option<f64> {
        let under = |point: &&Compared| policy.is_none_or(|policy| point.policy == policy);
        let points = self.points.iter().filter(under);
        let points = points.filter(|point| point.is_saturation == of_saturation);
        largest(points.map(Compared::error))
    }

    /// The largest error of a makespan; `None` without one.
    pub fn makespan_error_max(&self) -> Option<f64> {
        largest(self.makespans.iter().map(|makespan| makespan.rel_error.value))
    }
}

/// The largest absolute value. NaN counts as a large error.
fn largest(errors: impl Iterator<Item = f64>) -> Option<f64> {
    errors
        .map(f64::abs)
        .reduce(|max, error| if error.is_nan() || error > max { error } else { max })
}

/// Native runs on the calling thread.
struct Runner {
    native: Native,
    subjects: Subjects,
    effort: Effort,
}

/// Calibrates, predicts and measures, on the calling thread.
pub fn run(effort: Effort, quiet: bool) -> Result<Validation, Failure> {
    let progress = Progress::new(0, quiet);
    let services_us = [held_out::SHORT_US, calibration::SERVICE_US, 10.0, 20.0, held_out::LONG_US];
    let native = Native::open(&services_us, held_out::RANGE_US, &progress)?;
    drop(progress);
    let subjects = Subjects::new(&native, SEED);
    let mut systems = held_out::all(&native, effort.quick, SEED);
    systems.retain(|system| system.name.contains(&effort.only));
    let mut makespans = makespan::all();
    makespans.retain(|row| row.name.contains(&effort.only));
    if systems.is_empty() && makespans.is_empty() {
        let (only, all) = (&effort.only, held_out::all(&native, effort.quick, SEED));
        let makespans = makespan::all();
        let names = all.iter().map(|system| system.name.as_str());
        let names: Vec<&str> = names.chain(makespans.iter().map(|row| row.name.as_str())).collect();
        let text = format!("no system's name contains `{only}`; there are: {}", names.join("; "));
        return Err(Failure::Scenario(text));
    }
    let runner = Runner { native, subjects, effort };
    let (native, rounds) = (&runner.native, runner.effort.rounds);
    let mut facts = native.facts();
    makespans.retain(|row| {
        let cpus = native.cpus().len();
        if row.cores() > cpus {
            let why = format!("left out, as this process may use {cpus} CPU");
            facts.push((row.name.clone(), why));
        }
        row.cores() <= cpus
    });
    let steps = rounds as usize * (systems.len() + makespan::steps(&makespans)) + 1;
    let progress = Progress::new(steps as u64, quiet);
    interrupt::say_steps("wave validate", &progress, "step")?;
    let watch = native.watch();
    progress.begin("calibrating");
    let mut states = vec![State::calibrate(&runner)?];
    progress.end();
    let (mut points, mut doubts) = (Vec::new(), Vec::new());
    for system in &systems {
        let (compared, stayed) = one(&runner, &mut states, system, &progress)?;
        points.extend(compared);
        if !stayed {
            let text = format!("the machine's state changed at every try of {}", system.name);
            doubts.push(text);
        }
    }
    for _ in 0..rounds {
        if makespans.is_empty() {
            break;
        }
        if let Err(why) = makespan::ask(&runner, &mut makespans, &progress)? {
            facts.push(("makespans of recorded programs".to_owned(), format!("left out: {why}")));
            break;
        }
    }
    doubts.extend(Machine::since(watch, native.cpus()).too_busy());
    let makespans: Vec<Makespan> = makespans.iter().filter_map(makespan::Row::compare).collect();
    facts.push(("seating".into(), native.seating().to_string()));
    facts.push((format!("{} states of the machine", states.len()), "by a line's time".into()));
    facts.push((
        format!("{rounds} rounds of each system, with the same arrivals on both sides"),
        "latencies are those of quiet rounds: the lower quartile, on both sides".into(),
    ));
    Ok(Validation { points, makespans, states, facts, doubts })
}

impl State {
    fn calibrate(runner: &Runner) -> Result<State, Failure> {
        let Runner { native, subjects, effort, .. } = runner;
        let measured = calibration::measure(native, subjects, effort.calibrations)?;
        let model = calibration::fit(subjects, &measured)?;
        Ok(State { measured, model })
    }
}

/// The rows of one system, and whether the machine's state stayed the same in its native rounds. If it did not, they are run again.
fn one(
    runner: &Runner,
    states: &mut Vec<State>,
    system: &HeldOut,
    progress: &Progress,
) -> Result<(Vec<Compared>, bool), Failure> {
    let (native, rounds) = (&runner.native, runner.effort.rounds);
    let mut tries = 0;
    loop {
        tries += 1;
        let before = state(runner, states)?;
        let model = &states[before].model;
        let saturation = system.saturation(model)?;
        let measured = system.measure(native, saturation, rounds, |round, ends| match ends {
            _ if tries > 1 => {}
            false => progress.begin(&format!("{}: round {} of {rounds}", system.name, round + 1)),
            true => progress.end(),
        })?;
        let (after, off) = nearest(states, calibration::line_transfer(native)?);
        let stayed = after == before && (off < SAME_STATE || states.len() == STATES_MAX);
        if stayed || tries == TRIES {
            let predicted = system.predict(model, saturation, rounds)?;
            return Ok((system.compare(saturation, &predicted, &measured), stayed));
        }
    }
}

/// The machine's current state, calibrated if it is new.
fn state(runner: &Runner, states: &mut Vec<State>) -> Result<usize, Failure> {
    let (index, off) = nearest(states, calibration::line_transfer(&runner.native)?);
    if off < SAME_STATE || states.len() == STATES_MAX {
        return Ok(index);
    }
    states.push(State::calibrate(runner)?);
    Ok(states.len() - 1)
}

/// The state with the nearest transfer time of a line, and the remaining factor.
fn nearest(states: &[State], line_ns: f64) -> (usize, f64) {
    let off = |state: &State| (line_ns / state.measured.line_transfer_ns).ln().abs().exp();
    let all = states.iter().map(off).enumerate();
    all.min_by(|a, b| a.1.total_cmp(&b.1)).expect("there is always one")
}

fn load(scenario: &Scenario, per_second: f64, seed: u64) -> Result<Load, Failure> {
    let classes = &scenario.workload.classes;
    let classes: Vec<(&str, f64)> =
        classes.iter().map(|class| (class.name.as_str(), class.weight)).collect();
    let mix = Mix::new(&classes).map_err(Failure::cannot)?;
    Load::new(per_second, mix, scenario.workload.keys, seed).map_err(Failure::cannot)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(policy: &str, is_saturation: bool, rel_error: f64) -> Compared {
        Compared {
            name: String::new(),
            policy: policy.into(),
            load_per_second: 1.0,
            predicted: 1.0,
            measured: 1.0,
            rel_error,
            low: Some(rel_error),
            high: Some(rel_error),
            p50_ns: None,
            is_saturation,
        }
    }

    #[test]
    fn largest_error_is_that_of_the_selected_points() {
        let points = vec![
            point("fifo", true, 0.02),
            point("fifo", false, -0.3),
            point("shinjuku", true, -0.04),
        ];
        let (states, facts, doubts) = (Vec::new(), Vec::new(), Vec::new());
        let makespans = Vec::new();
        let mut validation = Validation { points, makespans, states, facts, doubts };
        assert_eq!(validation.error_max(true, None), Some(0.04));
        assert_eq!(validation.error_max(false, None), Some(0.3));
        assert_eq!(validation.error_max(true, Some("fifo")), Some(0.02));
        // A missing point is not a small error, nor is one that was not measured.
        assert_eq!(validation.error_max(false, Some("shinjuku")), None);
        validation.points.insert(0, point("shinjuku", false, f64::NAN));
        assert!(validation.error_max(false, None).unwrap().is_nan());
    }
}

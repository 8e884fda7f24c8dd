//! `wave validate`: does the simulator predict native runs that it was not fitted to?
//!
//! Micro-benchmarks give a profile of this machine ([`calibration`]). With it, the simulator answers questions ([`held_out`])
//! that native runs, of the same code as `wave run`, answer too. Machines change during a validation: two virtual CPUs may be
//! moved closer together or further apart. Each native answer is therefore compared with a prediction for the state of the
//! machine at that time, and there is a calibration for each state that occurs.
//!
//! Recordings are validated as well ([`makespan`]): they need no calibration.

mod calibration;
mod held_out;
mod makespan;
mod model;

use std::cell::Cell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde::Serialize;
use wave_workloads::arrivals::{Load, Mix};

pub use calibration::Measured;
pub use held_out::{Answer, Question};
pub use makespan::Makespan;
pub use model::Model;

use crate::run::probe::Native;
use crate::scenario::Scenario;
use calibration::{Subjects, median};
use held_out::HeldOut;
use wave_lab::progress::Progress;
use wave_lab::{Failure, interrupt};

/// Seed of every random stream.
const SEED: u64 = 1;
/// A machine is in another state than when it was calibrated if the transfer time of a line differs by more than this factor.
const SAME_STATE: f64 = 1.35;
/// Maximum number of states for which there is time.
const STATES_MAX: usize = 3;
/// Maximum number of tries for an answer that is disturbed.
const TRIES: usize = 3;
/// Time for which neighbours are observed.
const LOOK: Duration = Duration::from_millis(250);
/// CPUs that others may use during a measurement: a tick or two.
const NEIGHBOURS_MAX: f64 = 0.09;

/// Extent of a validation.
#[derive(Clone, Debug)]
pub struct Effort {
    /// Whether to measure fewer points.
    pub quick: bool,
    /// Only points whose names contain this.
    pub only: String,
    /// Native answers to each question.
    pub repeats: usize,
    /// Measurements of each micro-benchmark.
    pub calibrations: usize,
    /// Time for everything: repeats are left out beyond it.
    pub limit: Duration,
    /// Share of it that may be spent on waiting for others to leave the machine alone.
    pub patience: Duration,
}

impl Effort {
    /// The usual effort, or a quick one.
    pub fn new(quick: bool, only: &str, patience: Duration) -> Effort {
        let (calibrations, seconds) = if quick { (7, 90) } else { (11, 300) };
        let limit = Duration::from_secs(seconds) + patience;
        Effort { quick, only: only.to_owned(), repeats: 3, calibrations, limit, patience }
    }
}

/// A state of the machine, and the model fitted to it.
#[derive(Debug)]
pub struct State {
    pub measured: Measured,
    /// The model for which the simulator gives these results.
    pub model: Model,
    /// Predicted saturation, by system.
    saturations: HashMap<usize, f64>,
}

/// The answers to one held-out point.
#[derive(Clone, Debug, Serialize)]
pub struct Compared {
    pub name: String,
    pub policy: String,
    /// The load, or the measured saturation.
    pub load_per_second: f64,
    /// The simulator's answer: the median over the states of the native answers.
    pub predicted: Answer,
    /// The median of the native answers.
    pub measured: Answer,
    /// Lowest and highest native answer: saturation, or p99.
    pub measured_range: [f64; 2],
    /// Number of native answers that count.
    pub repeats: usize,
    /// Whether all of them were disturbed.
    pub disturbed: bool,
    /// Relative error of the saturation, or of the p99: predicted over measured, minus 1.
    pub rel_error: f64,
    /// Relative error of the median latency.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_rel_error: Option<f64>,
    #[serde(skip)]
    pub is_saturation: bool,
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
        largest(points.map(|point| point.rel_error))
    }

    /// The largest error of a makespan; `None` without one.
    pub fn makespan_error_max(&self) -> Option<f64> {
        largest(self.makespans.iter().map(|makespan| makespan.rel_error))
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
    /// Time left for waiting.
    patience: Cell<Duration>,
    /// Whether a calibration was disturbed at every try.
    disturbed: Cell<bool>,
}

impl Runner {
    /// Waits until others leave the machine alone, while time for it is left.
    fn wait_for_quiet(&self) {
        while !self.patience.get().is_zero() && self.native.neighbours(LOOK) > NEIGHBOURS_MAX {
            self.patience.set(self.patience.get().saturating_sub(LOOK));
        }
    }

    /// Measures, again a few times if others disturb it. Also returns whether every try was disturbed.
    fn undisturbed<R>(&self, mut measure: impl FnMut() -> R) -> (R, bool) {
        let mut tries = 0;
        loop {
            tries += 1;
            self.wait_for_quiet();
            let (measured, used) = self.native.neighbours_during(&mut measure);
            let disturbed = used >= NEIGHBOURS_MAX;
            if !disturbed || tries == TRIES {
                return (measured, disturbed);
            }
        }
    }
}

/// Calibrates, predicts and measures, on the calling thread.
pub fn run(effort: Effort, quiet: bool) -> Result<Validation, Failure> {
    let start = Instant::now();
    let progress = Progress::new(0, quiet);
    let services_us = [held_out::SHORT_US, calibration::SERVICE_US, 10.0, 20.0, held_out::LONG_US];
    let native = Native::open(&services_us, held_out::RANGE_US, &progress)?;
    drop(progress);
    let subjects = Subjects::new(&native, SEED);
    let mut points = held_out::all(&native, effort.quick, SEED);
    points.retain(|point| point.name.contains(&effort.only));
    let mut makespans = makespan::all();
    makespans.retain(|row| row.name.contains(&effort.only));
    if points.is_empty() && makespans.is_empty() {
        let (only, all) = (&effort.only, held_out::all(&native, effort.quick, SEED));
        let makespans = makespan::all();
        let names = all.iter().map(|point| point.name.as_str());
        let names: Vec<&str> = names.chain(makespans.iter().map(|row| row.name.as_str())).collect();
        let text = format!("no point's name contains `{only}`; there are: {}", names.join("; "));
        return Err(Failure::Scenario(text));
    }
    let runner = Runner {
        native,
        subjects,
        patience: Cell::new(effort.patience),
        effort,
        disturbed: Cell::new(false),
    };
    let effort = &runner.effort;
    let mut facts = runner.native.facts();
    makespans.retain(|row| {
        let cpus = runner.native.cpus();
        if row.cores() > cpus {
            let why = format!("left out, as this process may use {cpus} CPU");
            facts.push((row.name.clone(), why));
        }
        row.cores() <= cpus
    });
    let steps = effort.repeats * (points.len() + makespan::steps(&makespans)) + 1;
    let progress = Progress::new(steps as u64, quiet);
    interrupt::say_steps("wave validate", &progress, "step")?;
    progress.begin("calibrating");
    let mut states = vec![State::calibrate(&runner)?];
    progress.end();
    let mut answers: Vec<Vec<(Answer, Answer, bool)>> = vec![Vec::new(); points.len()];
    'repeats: for repeat in 1..=effort.repeats {
        for (point, answers) in points.iter().zip(&mut answers) {
            if start.elapsed() > effort.limit && repeat > 1 {
                break 'repeats;
            }
            progress.begin(&format!("{}, {repeat} of {}", point.name, effort.repeats));
            answers.push(one(&runner, &mut states, point)?);
            progress.end();
        }
    }
    for repeat in 1..=effort.repeats {
        if makespans.is_empty() || (start.elapsed() > effort.limit && repeat > 1) {
            break;
        }
        if let Err(why) = makespan::ask(&runner, &mut makespans, &progress)? {
            facts.push(("makespans of recorded programs".to_owned(), format!("left out: {why}")));
            break;
        }
    }
    let makespans: Vec<Makespan> = makespans.iter().filter_map(makespan::Row::compare).collect();
    let points: Vec<Compared> =
        points.iter().zip(&answers).map(|(point, answers)| compare(point, answers)).collect();
    let mut doubts = Vec::new();
    let disturbed = points.iter().map(|point| point.disturbed);
    let disturbed = disturbed.chain(makespans.iter().map(|makespan| makespan.disturbed));
    let (disturbed, of) = disturbed.fold((0, 0), |(count, of), is| (count + u32::from(is), of + 1));
    if disturbed > 0 {
        doubts.push(format!("{disturbed} of {of} points were disturbed at every try"));
    }
    if runner.disturbed.get() {
        doubts.push("other processes disturbed a calibration at every try".to_owned());
    }
    facts.push(("seating".into(), runner.native.seating().to_string()));
    facts.push((format!("{} states of the machine", states.len()), "by a line's time".into()));
    Ok(Validation { points, makespans, states, facts, doubts })
}

impl State {
    fn calibrate(runner: &Runner) -> Result<State, Failure> {
        let Runner { native, subjects, effort, .. } = runner;
        let measure = || calibration::measure(native, subjects, effort.calibrations);
        let (measured, disturbed) = runner.undisturbed(measure);
        runner.disturbed.set(runner.disturbed.get() | disturbed);
        let measured = measured?;
        let model = calibration::fit(subjects, &measured)?;
        Ok(State { measured, model, saturations: HashMap::new() })
    }

    fn predict(&mut self, point: &HeldOut) -> Result<(Answer, f64), Failure> {
        let saturation = match self.saturations.get(&point.system) {
            Some(known) => *known,
            None => {
                let asked = HeldOut { question: Question::Saturation, ..point.clone() };
                let found = asked.predict(&self.model, None)?.per_second;
                if !found.is_finite() {
                    let (name, measured) = (&point.name, &self.measured);
                    let text = format!("{name}: no saturation is predicted; measured {measured:?}");
                    return Err(Failure::Check(text));
                }
                self.saturations.insert(point.system, found);
                found
            }
        };
        let answer = match point.question {
            Question::Saturation => Answer { per_second: saturation, ..Answer::default() },
            Question::Latency(_) => point.predict(&self.model, Some(saturation))?,
        };
        Ok((answer, saturation))
    }
}

/// One answer from each side, and whether the native one was disturbed at every try.
fn one(
    runner: &Runner,
    states: &mut Vec<State>,
    point: &HeldOut,
) -> Result<(Answer, Answer, bool), Failure> {
    let native = &runner.native;
    let mut tries = 0;
    loop {
        tries += 1;
        let before = state(runner, states)?;
        let (predicted, saturation) = states[before].predict(point)?;
        runner.wait_for_quiet();
        let (measured, disturbed) = point.measure(native, saturation)?;
        let stayed = nearest(states, calibration::line_transfer(native)?).0 == before;
        if (!disturbed && stayed) || tries == TRIES {
            return Ok((predicted, measured, disturbed || !stayed));
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

fn compare(point: &HeldOut, answers: &[(Answer, Answer, bool)]) -> Compared {
    let disturbed = answers.iter().all(|(_, _, disturbed)| *disturbed);
    let counts = || answers.iter().filter(move |answer| disturbed || !answer.2);
    let middle = |of: &dyn Fn(&(Answer, Answer, bool)) -> f64| {
        median(&mut counts().map(of).collect::<Vec<f64>>())
    };
    let is_saturation = point.question == Question::Saturation;
    let of = |side: &dyn Fn(&(Answer, Answer, bool)) -> Answer| Answer {
        per_second: middle(&|answer| side(answer).per_second),
        p50_ns: (!is_saturation).then(|| middle(&|all| side(all).p50_ns.unwrap_or(f64::NAN))),
        p99_ns: (!is_saturation).then(|| middle(&|all| side(all).p99_ns.unwrap_or(f64::NAN))),
    };
    let (predicted, measured) = (of(&|answer| answer.0), of(&|answer| answer.1));
    let headline = |answer: &Answer| answer.p99_ns.unwrap_or(answer.per_second);
    let all = || counts().map(|(_, measured, _)| headline(measured));
    let p50 = predicted.p50_ns.zip(measured.p50_ns);
    Compared {
        name: point.name.clone(),
        policy: point.policy().to_owned(),
        load_per_second: measured.per_second,
        measured_range: [all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max)],
        repeats: counts().count(),
        disturbed,
        rel_error: headline(&predicted) / headline(&measured) - 1.0,
        p50_rel_error: p50.map(|(predicted, measured)| predicted / measured - 1.0),
        predicted,
        measured,
        is_saturation,
    }
}

fn load(scenario: &Scenario, per_second: f64) -> Result<Load, Failure> {
    let classes = &scenario.workload.classes;
    let classes: Vec<(&str, f64)> =
        classes.iter().map(|class| (class.name.as_str(), class.weight)).collect();
    let mix = Mix::new(&classes).map_err(Failure::cannot)?;
    Load::new(per_second, mix, scenario.workload.keys, scenario.run.seed).map_err(Failure::cannot)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(policy: &str, is_saturation: bool, rel_error: f64) -> Compared {
        Compared {
            name: String::new(),
            policy: policy.into(),
            load_per_second: 1.0,
            predicted: Answer::default(),
            measured: Answer::default(),
            measured_range: [1.0, 1.0],
            repeats: 1,
            disturbed: false,
            rel_error,
            p50_rel_error: None,
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

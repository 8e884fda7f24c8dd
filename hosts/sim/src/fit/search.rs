//! The search for the values of least objective.
//!
//! In rounds: simulate the rows, linearise them there, and solve the linear problem within the ranges and within reach
//! of the best values so far, once for each combination of counts. A round that lowers the objective doubles the
//! reach, any other divides it by four. Tables 2 and 3 are linearised by differences of simulations. A rung of the ladder
//! is linearised by a closed form (a core's time is the request's, its overhead and its context switches; on the first rung
//! the agent's time is two messages and a decision) that is shifted to meet the simulated saturation, so that it only gives
//! the direction; where the agent's work delays switches, that too comes from differences of simulations.

use std::thread::ScopedJoinHandle;

use super::linear::{Term, least_squares};
use super::rows::{self, Tables};
use super::{Fit, Value};
use crate::paper::{Model, Rung};

/// The most rounds of a search.
const ROUNDS: usize = 16;
/// Rounds before the ladder is simulated: until then the closed form alone leads near the result.
const COARSE: usize = 2;
/// Half of the first reach once the ladder is simulated, as a share of a value's range.
const REACH: f64 = 0.1;

/// The search ends when the reach is less than this share of the ranges.
const REACH_MIN: f64 = 0.01;

/// Result of a search over the values' ranges.
#[derive(Clone, Debug)]
pub struct Found {
    /// The values, in the order of [`Fit::values`], rounded as in files.
    pub values: Vec<f64>,
    /// The model's result for each of [`Fit::rows`].
    pub rows: Vec<f64>,
    /// Value of the objective.
    pub objective: f64,
}

/// A step of the search, to show progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A round of this number begins.
    Round(usize),
    /// The round has ended.
    Ended,
}

/// The target of a solution of the linear rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Aim<'a> {
    pub rows: &'a [f64],
    /// The preferred value of each variable, where the rows leave it open.
    pub values: &'a [f64],
    /// Weight of the preferred values in the objective.
    pub prefer: f64,
    /// Whether values with a rule follow it, instead of being solved for.
    pub rules: bool,
}

/// Rows linearised around `at`: for the ladder, times of a request.
#[derive(Debug)]
pub(super) struct Linear {
    at: Vec<f64>,
    rows: Vec<f64>,
    /// For each row, by value.
    slopes: Vec<Vec<f64>>,
    /// By how much the closed form of each rung was shifted.
    shifts: [f64; 4],
}

impl Fit {
    /// The most rounds that a search takes.
    pub const ROUNDS: usize = ROUNDS;

    /// The sum that the fit minimises.
    pub fn objective(&self, values: &[f64], rows: &[f64]) -> f64 {
        let residuals = self.rows.iter().zip(rows).map(|(row, ours)| row.residual(*ours).powi(2));
        residuals.sum::<f64>() + self.preference(values)
    }

    fn preference(&self, values: &[f64]) -> f64 {
        let off = |(value, x): (&Value, &f64)| {
            (2.0 * (x - value.middle()) / (value.high - value.low)).powi(2)
        };
        let searched = self.values.iter().zip(values).filter(|(value, _)| value.rule.is_none());
        self.prefer * searched.map(off).sum::<f64>()
    }

    /// Searches for the values, from the middles of their ranges.
    pub fn search(&self, mut tell: impl FnMut(Step)) -> Found {
        let middles: Vec<f64> = self.values.iter().map(Value::middle).collect();
        let targets: Vec<f64> = self.rows.iter().map(|row| row.middle).collect();
        let aim = Aim { rows: &targets, values: &middles, prefer: self.prefer, rules: true };
        let mut values = self.rounded(&middles);
        for round in 0..COARSE {
            tell(Step::Round(round));
            values = self.rounded(&self.solved(&self.linear(&values), 1.0, &aim));
            tell(Step::Ended);
        }
        let mut best: Option<(Found, Linear)> = None;
        let mut reach = REACH;
        for round in COARSE..ROUNDS {
            tell(Step::Round(round));
            let mut linear = self.linear(&values);
            let rows = self.simulated(&mut linear, best.as_ref().map(|(_, there)| there));
            let objective = self.objective(&values, &rows);
            if best.as_ref().is_none_or(|(best, _)| objective < best.objective) {
                self.slopes_of_agent(&mut linear);
                best = Some((Found { values, rows, objective }, linear));
                reach = (2.0 * reach).min(1.0);
            } else {
                reach /= 4.0;
            }
            let (found, linear) = best.as_ref().expect("the first is the best so far");
            values = self.rounded(&self.solved(linear, reach, &aim));
            tell(Step::Ended);
            if values == found.values || reach < REACH_MIN {
                break;
            }
        }
        best.expect("there are more rounds than coarse ones").0
    }

    /// Simulates the ladder at the values of `linear`, and shifts its closed form to meet the simulation. Returns the rows
    /// there. `known` rows of another place tell where to begin the search.
    fn simulated(&self, linear: &mut Linear, known: Option<&Linear>) -> Vec<f64> {
        let model = self.model(&linear.at);
        let mut rows = linear.rows.clone();
        let found: Vec<(usize, Rung, f64)> = std::thread::scope(|scope| {
            let search = |(at, rung)| {
                let shift = known.map_or(0.0, |there| there.shifts[rung as usize]);
                let expected = rows::per_second(rung, linear.rows[at] + shift);
                let model = &model;
                (at, rung, scope.spawn(move || rows::saturation(model, rung, expected)))
            };
            let searches: Vec<_> = self.rungs().map(search).collect();
            let ended = |(at, rung, search): (usize, Rung, ScopedJoinHandle<'_, f64>)| {
                (at, rung, search.join().expect("a simulation ends"))
            };
            searches.into_iter().map(ended).collect()
        });
        for (at, rung, saturation) in found {
            let time = rows::time(rung, saturation);
            linear.shifts[rung as usize] = time - linear.rows[at];
            linear.rows[at] = time;
            rows[at] = saturation;
        }
        rows
    }

    fn rungs(&self) -> impl Iterator<Item = (usize, Rung)> {
        let rung = |(at, row): (usize, &super::Row)| Some((at, rows::rung(&row.printed.id)?));
        self.rows.iter().enumerate().filter_map(rung)
    }

    /// The rows linearised around `values`, the ladder by its closed form.
    fn linear(&self, values: &[f64]) -> Linear {
        let here = Tables::of(&self.model(values));
        let table = |tables: &Tables, row: &super::Row| tables.row(&row.printed.id).unwrap_or(0.0);
        let mut rows: Vec<f64> = self.rows.iter().map(|row| table(&here, row)).collect();
        let mut slopes = vec![vec![0.0; self.values.len()]; rows.len()];
        // The time of a context switch of each rung, by value.
        let mut switches = vec![[0.0; 4]; self.values.len()];
        for at in 0..self.values.len() {
            let step = self.far(at, values[at]);
            let mut moved = values.to_vec();
            moved[at] += step;
            let there = Tables::of(&self.model(&moved));
            for (row, slopes) in self.rows.iter().zip(&mut slopes) {
                slopes[at] = (table(&there, row) - table(&here, row)) / step;
            }
            for rung in Rung::ALL {
                switches[at][rung as usize] = (there.switch(rung) - here.switch(rung)) / step;
            }
        }
        let [message, decision, access, written, words] = [
            "ghost.agent_message",
            "ghost.agent_decision",
            "mount-evans.agent_access_uncached",
            "ghost.decision_words_written_more",
            "ghost.message_words_more",
        ]
        .map(|name| self.index(name));
        let crossings = self.index("ghost.crossings_per_request");
        let overhead = self.index("ghost.request_overhead");
        for (at, rung) in self.rungs() {
            if rung == Rung::Baseline {
                // A context switch waits for one message and one decision; a request takes two messages and a decision.
                let in_switch = switches[access][0];
                let in_decision = OUR_WORDS + values[written];
                let accesses = 2.0 * in_switch - in_decision;
                let uncached = values[access];
                slopes[at][message] = 2.0;
                slopes[at][decision] = 1.0;
                slopes[at][access] = accesses;
                slopes[at][written] = uncached;
                slopes[at][words] = 2.0 * uncached;
                rows[at] = 2.0 * values[message] + values[decision] + accesses * uncached;
            } else {
                let switch = here.switch(rung);
                for (slope, of) in slopes[at].iter_mut().zip(&switches) {
                    *slope = values[crossings] * of[rung as usize];
                }
                slopes[at][crossings] += switch;
                slopes[at][overhead] += 1.0;
                rows[at] = GET_NS + values[overhead] + values[crossings] * switch;
            }
        }
        Linear { at: values.to_vec(), rows, slopes, shifts: [0.0; 4] }
    }

    /// The effect of the agent's work on the rungs above the first, where switches wait for the agent, by differences
    /// of simulations.
    fn slopes_of_agent(&self, linear: &mut Linear) {
        let here = self.model(&linear.at);
        for (row, rung) in self.rungs().filter(|(_, rung)| *rung != Rung::Baseline) {
            let expected = rows::per_second(rung, linear.rows[row]);
            let time = |model: &Model| rows::time(rung, rows::saturation(model, rung, expected));
            let time_here = time(&here);
            for at in ["ghost.agent_message", "ghost.agent_decision"].map(|name| self.index(name)) {
                let step = self.far(at, linear.at[at]);
                let mut moved = linear.at.clone();
                moved[at] += step;
                linear.slopes[row][at] = (time(&self.model(&moved)) - time_here) / step;
            }
        }
    }

    /// How far a value is moved to find a slope: far enough that rounding to nanoseconds does not matter, and within the range.
    fn far(&self, at: usize, from: f64) -> f64 {
        let value = &self.values[at];
        let far = if value.whole { 1.0 } else { (value.high - value.low) / 20.0 };
        if from + far <= value.high { far } else { -far }
    }

    /// The values of least objective of the linear rows, none farther from that of `linear` than the share `reach` of its
    /// range; a count may always move by one.
    pub(super) fn solved(&self, linear: &Linear, reach: f64, aim: &Aim<'_>) -> Vec<f64> {
        let mut counts = vec![linear.at.clone()];
        for (at, value) in self.values.iter().enumerate() {
            if value.whole {
                let far = (reach * (value.high - value.low)).max(1.0);
                let low = (linear.at[at] - far).ceil().max(value.low);
                let all = low as u32..=(linear.at[at] + far).min(value.high) as u32;
                let with = |count: u32| {
                    let set = move |mut values: Vec<f64>| {
                        values[at] = f64::from(count);
                        values
                    };
                    counts.iter().cloned().map(set).collect::<Vec<_>>()
                };
                counts = all.flat_map(with).collect();
            }
        }
        let solutions = counts.iter().map(|counts| self.solved_with(linear, counts, reach, aim));
        let best = solutions.min_by(|a, b| a.1.total_cmp(&b.1));
        best.expect("there is a combination").0
    }

    /// As [`Fit::solved`], for these counts. Also returns the objective.
    fn solved_with(
        &self,
        linear: &Linear,
        counts: &[f64],
        reach: f64,
        aim: &Aim<'_>,
    ) -> (Vec<f64>, f64) {
        let follows_rule = |at: usize| aim.rules && self.values[at].rule.is_some();
        let free: Vec<usize> = (0..self.values.len())
            .filter(|at| !self.values[*at].whole && !follows_rule(*at))
            .collect();
        let mut terms = Vec::new();
        for row in 0..self.rows.len() {
            let (mut weights, mut base) = self.plane(linear, row, counts);
            for (at, value) in self.values.iter().enumerate() {
                if let Some(rule) = value.rule.as_ref().filter(|_| aim.rules) {
                    weights[self.index(&rule.of)] += weights[at] * rule.times;
                    base += weights[at] * rule.plus;
                }
            }
            let (goal, half) = self.goal(row, aim.rows[row]);
            let weights = free.iter().map(|at| weights[*at] / half).collect();
            terms.push(Term { weights, aim: (goal - base) / half });
        }
        for (place, at) in free.iter().enumerate() {
            let value = &self.values[*at];
            let mut weights = vec![0.0; free.len()];
            weights[place] = aim.prefer.sqrt() * 2.0 / (value.high - value.low);
            let aim = weights[place] * aim.values[*at];
            terms.push(Term { weights, aim });
        }
        let bounds = |at: &usize| {
            let (value, from) = (&self.values[*at], linear.at[*at]);
            let far = reach * (value.high - value.low);
            ((from - far).max(value.low), (from + far).min(value.high))
        };
        let bounds: Vec<_> = free.iter().map(bounds).collect();
        let solution = least_squares(&terms, &bounds);
        let mut values = counts.to_vec();
        for (at, x) in free.iter().zip(&solution) {
            values[*at] = *x;
        }
        let off = |(at, value): (usize, &Value)| {
            (2.0 * (values[at] - aim.values[at]) / (value.high - value.low)).powi(2)
        };
        let whole = self.values.iter().enumerate().filter(|(_, value)| value.whole);
        let sum: f64 = terms.iter().map(|term| term.square(&solution)).sum();
        let objective = sum + aim.prefer * whole.map(off).sum::<f64>();
        (values, objective)
    }

    /// A linear row with these counts: the weight of each other value, and the rest.
    fn plane(&self, linear: &Linear, row: usize, counts: &[f64]) -> (Vec<f64>, f64) {
        let access = self.index("mount-evans.agent_access_uncached");
        let slopes = &linear.slopes[row];
        let mut weights = slopes.clone();
        let there: f64 = slopes.iter().zip(&linear.at).map(|(slope, x)| slope * x).sum();
        let mut base = linear.rows[row] - there;
        for (at, value) in self.values.iter().enumerate().filter(|(_, value)| value.whole) {
            let uncached = linear.at[access];
            if value.key == "decision_words_read_more" || uncached == 0.0 {
                base += slopes[at] * counts[at];
            } else {
                // An uncached word costs one access, so the row has a product of two values.
                base += slopes[at] * linear.at[at];
                weights[access] += slopes[at] / uncached * (counts[at] - linear.at[at]);
            }
            weights[at] = 0.0;
        }
        (weights, base)
    }

    /// A figure of a row and its rounding, in the terms in which the row is linear.
    fn goal(&self, row: usize, figure: f64) -> (f64, f64) {
        let row = &self.rows[row];
        match rows::rung(&row.printed.id) {
            Some(rung) => {
                let time = rows::time(rung, figure);
                (time, row.half * time / figure)
            }
            None => (figure, row.half),
        }
    }

    /// The distance of the linear rows from the printed figures, in roundings.
    pub(super) fn residuals(&self, linear: &Linear, values: &[f64]) -> Vec<f64> {
        let residual = |row: usize| {
            let (weights, base) = self.plane(linear, row, values);
            let ours: f64 = weights.iter().zip(values).map(|(weight, x)| weight * x).sum();
            let (goal, half) = self.goal(row, self.rows[row].middle);
            (ours + base - goal) / half
        };
        (0..self.rows.len()).map(residual).collect()
    }

    /// Simulates the rows at `values`, and linearises them there.
    pub(super) fn around(&self, values: &[f64], known: Option<&Linear>) -> (Vec<f64>, Linear) {
        let mut linear = self.linear(values);
        let rows = self.simulated(&mut linear, known);
        self.slopes_of_agent(&mut linear);
        (rows, linear)
    }
}

/// Words that the agent writes for a decision of Wave.
const OUR_WORDS: f64 = 4.0;
/// Service time of a GET, in nanoseconds.
const GET_NS: f64 = 10_000.0;

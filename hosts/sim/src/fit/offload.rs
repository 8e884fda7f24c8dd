//! The fit of Mind the Gap's prototype: one value of the machine `shinjuku-offload`, to one row.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::{Deserialize, Serialize};

use super::files::{get, set};
use super::{Difference, Follower, Row, Target, Value};
use crate::machine::Machine;
use crate::mind_the_gap::{self, Model};
use crate::paper;

const FIT: &str = include_str!("../../data/fit-offload.toml");
const OPEN: &str = include_str!("../../data/open-offload.toml");
const OPEN_HEAD: &str = "\
# What the fit of the machine `shinjuku-offload` leaves open, written by `wave fit --write`: the least and the most of its
# value, in ns, under which the fitted row is within its rounding (data/fit-offload.toml, docs/adr/0053).
";
/// The file of the machine, as a path in the repository.
pub const MACHINE_PATH: &str = "hosts/sim/machines/shinjuku-offload.toml";
/// The file of the interval that the fit leaves open, as a path in the repository.
pub const OPEN_PATH: &str = "hosts/sim/data/open-offload.toml";
const MACHINE: &str = "shinjuku-offload";
/// Steps of the first scan of the range.
const GRID: u64 = 32;

/// The interval of values that meet the row.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Open {
    /// Smallest value that meets the row.
    pub least: f64,
    /// Largest value that meets the row.
    pub most: f64,
}

impl Open {
    /// The committed interval.
    pub fn builtin() -> Open {
        toml::from_str(OPEN).expect("the file is tested")
    }

    /// The text of the file with this interval.
    pub fn to_toml(self) -> String {
        let text = toml::to_string(&self).expect("numbers have a TOML form");
        format!("{OPEN_HEAD}\n{text}")
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Stated {
    value: Value,
    follows: Vec<Follower>,
    row: Target,
}

/// The description of the fit.
#[derive(Clone, Debug)]
pub struct Offload {
    /// The value that is fitted.
    pub value: Value,
    /// Values that follow from it.
    pub follows: Vec<Follower>,
    /// The row that it is fitted to.
    pub row: Row,
}

/// Result of the fit of this one value.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// The value, as the file states it.
    pub value: f64,
    /// The model's result for the row.
    pub row: f64,
    /// Interval that the fit leaves open.
    pub open: Open,
}

impl Offload {
    /// The description in `data/fit-offload.toml`.
    pub fn builtin() -> Offload {
        let Stated { value, follows, row } = toml::from_str(FIT).expect("the file is tested");
        Offload { value, follows, row: Row::new(row, &paper::printed()) }
    }

    /// The built-in machine with this value, and the values that follow from it.
    pub fn model(&self, value: f64) -> Model {
        let text = self.written(value, Machine::builtin_text(MACHINE).expect("built in"));
        let offload = Machine::parse(&text).expect("only figures were changed");
        Model { offload, ..Model::builtin() }
    }

    /// Searches for the value, on `threads` threads.
    pub fn search(&self, threads: usize) -> Found {
        let Value { low, high, step, .. } = self.value;
        let last = ((high - low) / step).round() as u64;
        let value_of = |number: u64| self.value.rounded(low + number as f64 * step);
        let grid: Vec<u64> = (0..=GRID).map(|at| last * at / GRID).collect();
        let values: Vec<f64> = grid.iter().map(|number| value_of(*number)).collect();
        let rows = self.simulated(&values, threads);
        let mut known: BTreeMap<u64, f64> = grid.iter().copied().zip(rows).collect();
        let mut row_at = |number: u64| {
            let simulate = || mind_the_gap::gain_of_five(&self.model(value_of(number)));
            *known.entry(number).or_insert_with(simulate)
        };
        let off = |row: f64| self.row.residual(row).abs();
        let mut found = grid[0];
        for pair in grid.windows(2) {
            let nearest = self.crossing([pair[0], pair[1]], &mut row_at);
            if off(row_at(nearest)) < off(row_at(found)) {
                found = nearest;
            }
        }
        let mut end = |toward: i64| {
            let next =
                |number: &u64| number.checked_add_signed(toward).filter(|next| *next <= last);
            let meets = |number: &u64| off(row_at(*number)) <= 1.0;
            let met = std::iter::successors(Some(found), next).take_while(meets).last();
            value_of(met.unwrap_or(found))
        };
        let open = Open { least: end(-1), most: end(1) };
        Found { value: value_of(found), row: row_at(found), open }
    }

    /// The number from `from` to `to` whose row is nearest to the printed figure, if the row is monotonic between them.
    fn crossing(&self, [mut from, mut to]: [u64; 2], row_at: &mut impl FnMut(u64) -> f64) -> u64 {
        let is_above = |row: f64| row > self.row.middle;
        let first = is_above(row_at(from));
        while first != is_above(row_at(to)) && to - from > 1 {
            let middle = u64::midpoint(from, to);
            if is_above(row_at(middle)) == first { from = middle } else { to = middle }
        }
        let off = |row: f64| self.row.residual(row).abs();
        if off(row_at(from)) <= off(row_at(to)) { from } else { to }
    }

    fn simulated(&self, values: &[f64], threads: usize) -> Vec<f64> {
        let next = AtomicUsize::new(0);
        let rows = Mutex::new(vec![0.0; values.len()]);
        std::thread::scope(|scope| {
            let worker = || {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(value) = values.get(at) else { return };
                    let row = mind_the_gap::gain_of_five(&self.model(*value));
                    rows.lock().expect("no thread panics while holding it")[at] = row;
                }
            };
            for _ in 0..threads.max(1) {
                scope.spawn(worker);
            }
        });
        rows.into_inner().expect("no thread panics while holding it")
    }

    /// Each figure of the fit: its key, value and source.
    fn figures(&self, value: f64) -> Vec<(&str, f64, String)> {
        let source = |source: &str| format!("fitted: wave fit: {source}");
        let fitted = (self.value.key.as_str(), value, source(&self.value.source));
        let follows = self.follows.iter().map(|follower| {
            let why = follower.source.as_deref().unwrap_or_default();
            (follower.key.as_str(), follower.value(value).round(), source(why))
        });
        std::iter::once(fitted).chain(follows).collect()
    }

    /// The text of the machine's file with this value.
    ///
    /// # Panics
    ///
    /// If the file lacks a figure.
    pub fn written(&self, value: f64, text: &str) -> String {
        self.figures(value).iter().fold(text.to_owned(), |text, (key, value, source)| {
            set(&text, key, *value, Some(source))
                .unwrap_or_else(|| panic!("{MACHINE_PATH} lacks the figure {key}"))
        })
    }

    /// The figures in the texts of the machine's file and of the interval's file that differ from the result.
    pub fn differences(&self, found: &Found, machine: &str, open: &str) -> Vec<Difference> {
        let mut differences = Vec::new();
        for (key, fitted, source) in self.figures(found.value) {
            let stated = get(machine, key);
            let source_differs = stated.as_ref().is_some_and(|(_, stated)| *stated != source);
            let stated = stated.map(|(value, _)| value);
            if stated != Some(fitted) || source_differs {
                let (path, key) = (MACHINE_PATH, key.to_owned());
                differences.push(Difference { path, key, stated, fitted, source_differs });
            }
        }
        let stated: Option<Open> = toml::from_str(open).ok();
        let ends = [
            ("least", stated.map(|open| open.least), found.open.least),
            ("most", stated.map(|open| open.most), found.open.most),
        ];
        for (key, stated, fitted) in ends {
            if stated != Some(fitted) {
                let (path, key) = (OPEN_PATH, key.to_owned());
                differences.push(Difference { path, key, stated, fitted, source_differs: false });
            }
        }
        differences
    }

    /// The texts of the machine's file and of the interval's file that were compiled in.
    pub fn builtin_texts() -> [&'static str; 2] {
        [Machine::builtin_text(MACHINE).expect("built in"), OPEN]
    }
}

//! The fit of the paper's machine: values of cost files derived from the paper's printed figures.
//!
//! `data/fit.toml` names the fitted values, their ranges, the printed rows and the objective. [`Fit::search`] begins at
//! the middles of the ranges and reads no fitted value; [`Fit::differences`] compares files with the result, and
//! [`Fit::written`] writes it into them. Mind the Gap's prototype has a fit of its own, of one value ([`offload`]).

mod files;
pub mod intervals;
mod linear;
pub mod offload;
mod rows;
mod search;
mod sets;

use serde::Deserialize;

use crate::paper::{self, Model, Printed};

pub use files::{Difference, FILES, File};
pub use search::{Found, Step};
pub use sets::Sets;

const FIT: &str = include_str!("../../data/fit.toml");

/// A value to be fitted, with its range and source.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Value {
    /// Its file: a name of [`FILES`].
    pub file: String,
    /// Its key there, with the table's name and a dot before it if it is in a table.
    pub key: String,
    /// Lower end of the range.
    pub low: f64,
    /// Upper end of the range.
    pub high: f64,
    /// The step to which the file rounds it.
    pub step: f64,
    /// Whether it is a count, which is searched exhaustively.
    #[serde(default)]
    pub whole: bool,
    /// Reason for the range.
    pub range: String,
    /// The rows that determine it: the source that the file states.
    pub source: String,
    /// A rule by which it follows from another value instead of being searched, because the rows determine only its sum with
    /// others.
    pub rule: Option<Rule>,
}

impl Value {
    /// Its file and key, as rules name it.
    pub fn name(&self) -> String {
        format!("{}.{}", self.file, self.key)
    }

    /// The middle of its range.
    pub fn middle(&self) -> f64 {
        f64::midpoint(self.low, self.high)
    }

    /// The value, rounded as in its file.
    fn rounded(&self, value: f64) -> f64 {
        let steps = 1.0 / self.step;
        ((value * steps).round() / steps).clamp(self.low, self.high)
    }
}

/// `of` times a factor, plus a summand.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Name of a fitted value.
    pub of: String,
    /// Factor that multiplies the value.
    pub times: f64,
    /// Summand, added after the factor.
    pub plus: f64,
}

/// A value of a file that follows from a fitted one.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Follower {
    /// File that states the figure.
    pub file: String,
    /// Key of the figure in its file.
    pub key: String,
    /// Name of the fitted value.
    pub of: String,
    /// Factor that multiplies the value.
    #[serde(default = "one")]
    pub times: f64,
    /// Summand, added after the factor.
    #[serde(default)]
    pub plus: f64,
    /// The source that the file states, unless it keeps its own.
    pub source: Option<String>,
}

fn one() -> f64 {
    1.0
}

impl Follower {
    /// The value that follows from the fitted one.
    fn value(&self, fitted: f64) -> f64 {
        self.times * fitted + self.plus
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Target {
    id: String,
    half: Option<f64>,
    #[allow(dead_code, reason = "for readers of the file")]
    why: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Stated {
    prefer: f64,
    value: Vec<Value>,
    follows: Vec<Follower>,
    row: Vec<Target>,
}

/// A printed row that is fitted.
#[derive(Clone, Debug)]
pub struct Row {
    /// Value that the paper prints.
    pub printed: Printed,
    /// The printed figure, or the middle of the printed range.
    pub middle: f64,
    /// Half of the range, or of a unit of the last printed digit.
    pub half: f64,
}

impl Row {
    fn new(target: Target, printed: &[Printed]) -> Row {
        let printed = printed.iter().find(|row| row.id == target.id);
        let printed = printed.expect("the file is tested").clone();
        let half = target.half.unwrap_or((printed.high - printed.low) / 2.0);
        assert!(half > 0.0, "{}: a row needs a range or a rounding", printed.id);
        Row { middle: f64::midpoint(printed.low, printed.high), half, printed }
    }

    /// The distance of `simulated` from the printed figure, in units of [`Row::half`]: at most 1 within the printed rounding.
    pub fn residual(&self, simulated: f64) -> f64 {
        (simulated - self.middle) / self.half
    }
}

/// The description of the fit.
#[derive(Clone, Debug)]
pub struct Fit {
    /// The fitted values, in the order of the file.
    pub values: Vec<Value>,
    /// Values that follow from them.
    pub follows: Vec<Follower>,
    /// The rows that they are fitted to.
    pub rows: Vec<Row>,
    /// Weight of the middles of the ranges.
    pub prefer: f64,
}

impl Fit {
    /// The description in `data/fit.toml`.
    ///
    /// # Panics
    ///
    /// If the file names values or rows that do not exist; a test checks it.
    pub fn builtin() -> Fit {
        let stated: Stated = toml::from_str(FIT).expect("the file is tested");
        let printed = paper::printed();
        Fit {
            values: stated.value,
            follows: stated.follows,
            rows: stated.row.into_iter().map(|target| Row::new(target, &printed)).collect(),
            prefer: stated.prefer,
        }
    }

    /// The text of `data/fit.toml`.
    pub fn text() -> &'static str {
        FIT
    }

    /// Index of the value of that name.
    fn index(&self, name: &str) -> usize {
        let at = self.values.iter().position(|value| value.name() == name);
        at.unwrap_or_else(|| panic!("there is no fitted value {name}"))
    }

    /// The values as in files: in steps and within their ranges.
    fn stated(&self, values: &[f64]) -> Vec<f64> {
        let round = |(value, x): (&Value, &f64)| value.rounded(*x);
        self.values.iter().zip(values).map(round).collect()
    }

    /// As [`Fit::stated`], with the values that have a rule set by their rules.
    fn rounded(&self, values: &[f64]) -> Vec<f64> {
        let mut rounded = self.stated(values);
        for (at, value) in self.values.iter().enumerate() {
            if let Some(rule) = &value.rule {
                rounded[at] = value.rounded(rule.times * rounded[self.index(&rule.of)] + rule.plus);
            }
        }
        rounded
    }

    /// The values that the built-in files state.
    pub fn committed(&self) -> Vec<f64> {
        let stated =
            |value: &Value| files::stated(value).expect("a test compares them with the fit");
        self.values.iter().map(stated).collect()
    }

    /// The model with these values, and the values that follow from them. Their present figures in the files are not read.
    pub fn model(&self, values: &[f64]) -> Model {
        let texts = self.written(values, &|file| file.builtin().to_owned());
        files::parse(&texts)
    }
}

//! Parameter sets that meet the fitted rows: they show what the fit leaves open.
//!
//! Each set begins with a target: a random corner of the ranges. The solution of the linear rows that is nearest to the
//! target, with every row within its rounding, is simulated; if a row of the simulation is outside, the rows are
//! linearised there and must stay within a smaller share of their rounding. A value with a rule is open, too: rules choose
//! between sets that the rows cannot tell apart.

use rand::Rng;

use super::search::{Aim, Linear};
use super::{Fit, Row};
use crate::random;

/// Weights of the target, from strong to weak: the first that leaves every row within its rounding is used.
const PULLS: [f64; 10] = [10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003];
/// The share of a rounding that the linear rows may use at first, because they are not exact.
const MARGIN: f64 = 0.8;
/// The most simulations for one target.
const TRIES: usize = 4;
/// The seed, which makes the sets the same in every run.
const SEED: u64 = 1;

/// A source of parameter sets.
#[derive(Debug)]
pub struct Sets<'a> {
    fit: &'a Fit,
    linear: Linear,
    /// The most that a row may be off: its rounding, or the fit's own residual if that is larger.
    allowed: Vec<f64>,
}

impl Fit {
    /// The sets around these values, which are the result of the fit.
    pub fn sets(&self, values: &[f64]) -> Sets<'_> {
        let (rows, linear) = self.around(values, None);
        let off = |(row, ours): (&Row, &f64)| row.residual(*ours).abs().max(1.0);
        Sets { fit: self, linear, allowed: self.rows.iter().zip(&rows).map(off).collect() }
    }
}

impl Sets<'_> {
    /// The set with this number; `None` if no set is found for its target.
    pub fn set(&self, number: u64) -> Option<Vec<f64>> {
        let fit = self.fit;
        let mut random = random::stream(SEED, "fitted sets", number);
        let mut end = |value: &super::Value| if random.random() { value.high } else { value.low };
        let wish: Vec<f64> = fit.values.iter().map(&mut end).collect();
        let mut margin = MARGIN;
        let mut near: Option<Linear> = None;
        for _ in 0..TRIES {
            let linear = near.as_ref().unwrap_or(&self.linear);
            let values = self.nearest(linear, &wish, margin)?;
            let (rows, there) = fit.around(&values, Some(linear));
            let off = fit.rows.iter().zip(&rows).map(|(row, ours)| row.residual(*ours).abs());
            if off.zip(&self.allowed).all(|(off, allowed)| off <= *allowed) {
                return Some(values);
            }
            near = Some(there);
            margin *= 0.7;
        }
        None
    }

    /// The solution of the linear rows nearest to `wish`, with each row within the share `margin` of what is allowed.
    fn nearest(&self, linear: &Linear, wish: &[f64], margin: f64) -> Option<Vec<f64>> {
        let fit = self.fit;
        let middles: Vec<f64> = fit.rows.iter().map(|row| row.middle).collect();
        PULLS.into_iter().find_map(|prefer| {
            let aim = Aim { rows: &middles, values: wish, prefer, rules: false };
            let values = fit.stated(&fit.solved(linear, 1.0, &aim));
            let off = fit.residuals(linear, &values);
            let inside =
                off.iter().zip(&self.allowed).all(|(off, allowed)| off.abs() <= margin * allowed);
            inside.then_some(values)
        })
    }
}

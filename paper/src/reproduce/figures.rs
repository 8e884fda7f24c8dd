//! The curves: ours, and the paper's printed points.

use serde::Serialize;

use super::group;
use super::jobs::ByName;

/// One curve, or a set of points.
#[derive(Clone, Debug, Serialize)]
pub struct Curve {
    /// Name in the legend.
    pub name: String,
    /// Points of the curve: x and y.
    pub points: Vec<[f64; 2]>,
    /// Lowest and highest possible y for each point; empty if unknown.
    pub band: Vec<[f64; 2]>,
    /// Whether these are the paper's printed points: drawn as markers, not as a line.
    pub paper: bool,
}

impl Curve {
    pub(super) fn ours(name: &str, points: Vec<[f64; 2]>) -> Curve {
        Curve { name: name.to_owned(), points, band: Vec::new(), paper: false }
    }

    pub(super) fn paper(name: &str, points: Vec<[f64; 2]>) -> Curve {
        Curve { name: name.to_owned(), points, band: Vec::new(), paper: true }
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// Name of the figure and of its file.
    pub id: String,
    /// Group of the figure.
    pub group: String,
    pub title: String,
    /// Label of the x axis, with its unit.
    pub x: String,
    /// Label of the y axis, with its unit.
    pub y: String,
    /// Whether x is drawn on a logarithmic axis.
    pub log_x: bool,
    /// Largest y that is drawn; None for no limit.
    pub y_max: Option<f64>,
    /// What the figure shows, in a sentence or two.
    pub text: String,
    pub curves: Vec<Curve>,
}

/// The figures of these groups.
pub fn of(ids: &[&str], done: &ByName<'_>) -> Vec<Figure> {
    group::of(ids).flat_map(|group| (group.figures)(done)).collect()
}

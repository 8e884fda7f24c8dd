//! Groups of rows: tables and figures of the papers. A group is a constant in a file of this folder, and a line in [`GROUPS`].

use wave_sim::paper::Model;

use super::figures::Figure;
use super::jobs::{ByName, Job};
use super::rows::Kind;
use super::{beyond, mind_the_gap, placements, scheduling, sol, vms};

/// All groups, in the order of the report.
pub static GROUPS: [Group; 17] = [
    scheduling::TABLE_2,
    scheduling::TABLE_3,
    scheduling::LADDER,
    scheduling::FIGURE_4A,
    scheduling::FIGURE_4B,
    vms::FIGURE_5A,
    vms::FIGURE_5B,
    placements::FIGURE_6A,
    placements::FIGURE_6B,
    scheduling::UPI,
    mind_the_gap::FIGURE_2,
    mind_the_gap::FIGURE_3,
    mind_the_gap::FIGURE_4,
    mind_the_gap::FIGURE_5,
    mind_the_gap::FIGURE_6,
    sol::SOL_GROUP,
    beyond::BEYOND,
];

/// A table or figure.
pub struct Group {
    pub id: &'static str,
    /// Name for readers.
    pub title: &'static str,
    pub about: &'static str,
    /// Whether its rows depend on random arrivals: then they are medians over seeds.
    pub is_seeded: bool,
    /// The jobs of its rows and figures, with the model's seed. Groups may share jobs, by their names.
    pub jobs: fn(&Model) -> Vec<Job>,
    pub figures: fn(&ByName<'_>) -> Vec<Figure>,
    /// Our values for its printed ones (hosts/sim/data/paper.toml).
    pub rows: &'static [Ours],
}

/// Computes a value from the jobs of one seed.
pub type Value = fn(&ByName<'_>) -> Option<f64>;
/// Computes the lowest and highest possible value from the jobs of one seed.
pub type Interval = fn(&ByName<'_>) -> Option<[f64; 2]>;

/// Our value for a printed one.
pub struct Ours {
    pub id: &'static str,
    /// How it comes about; `Fitted` if the fit used it.
    pub kind: Kind,
    pub of: Value,
    /// Its lowest and highest value under one seed, where they come from the uncertainty of inputs instead of the fit's intervals.
    pub interval: Option<Interval>,
    /// Explanation of the difference.
    pub why: Option<&'static str>,
}

impl Ours {
    pub const fn new(id: &'static str, kind: Kind, of: Value) -> Ours {
        Ours { id, kind, of, interval: None, why: None }
    }

    pub const fn within(self, interval: Interval) -> Ours {
        Ours { interval: Some(interval), ..self }
    }

    pub const fn why(self, why: &'static str) -> Ours {
        Ours { why: Some(why), ..self }
    }
}

/// The groups of these ids, in the order of the report.
pub fn of(ids: &[&str]) -> impl Iterator<Item = &'static Group> {
    GROUPS.iter().filter(move |group| ids.contains(&group.id))
}

/// A group's name for readers; its id if it is unknown.
pub fn title(id: &str) -> &str {
    of(&[id]).next().map_or(id, |group| group.title)
}

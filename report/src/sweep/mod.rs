//! The results of a sweep: a table, a page, and a plot of each metric against each axis.
//!
//! The output has no times, hosts or durations: the same [`Sheet`] gives the same bytes.

mod csv;
mod figures;
mod page;
mod plot;
mod table;

pub use csv::csv;
pub use page::page;
pub use table::text;

use wave_workloads::point::{ClassLatency, Point, SearchResult};

#[derive(Debug, Clone)]
pub struct Sheet<'a> {
    pub scenario: &'a str,
    pub description: &'a str,
    /// Version of the program that ran the points.
    pub version: &'a str,
    /// Whether points are simulated; otherwise they ran on a machine.
    pub is_simulated: bool,
    /// Number of points that were run; rows may share a point.
    pub points: usize,
    pub axes: Vec<Axis>,
    /// Every combination of values, and of variant and load if rows have them.
    pub rows: Vec<Row<'a>>,
}

#[derive(Debug, Clone)]
pub struct Axis {
    /// Path into the scenario file.
    pub name: String,
    /// Values as text, in the file's order.
    pub values: Vec<String>,
}

/// One combination of values, variant and load, with its result.
#[derive(Debug, Clone)]
pub struct Row<'a> {
    pub id: &'a str,
    /// Index of the value on each axis, from 0.
    pub at: &'a [usize],
    /// None if the row is a whole experiment; no row of a sheet has one then.
    pub one: Option<OneVariant<'a>>,
    pub search: Option<&'a SearchResult>,
    /// The point. For a search the point at saturation, if it found any.
    pub point: Option<&'a Point>,
    /// Figures of a whole experiment, by their paths in its result.
    pub figures: &'a [(String, f64)],
}

/// A variant under a load.
#[derive(Debug, Clone)]
pub struct OneVariant<'a> {
    pub variant: &'a str,
    /// `linux`, `onhost` or `offload`.
    pub placement: &'a str,
    /// Link of the point; empty without an agent.
    pub link: &'a str,
    /// Policy of the point; empty without an agent.
    pub policy: &'a str,
    pub workers: u32,
    /// Seed of every random stream.
    pub seed: u64,
    /// Offered load; None for a search for saturation.
    pub load_per_second: Option<f64>,
}

impl Row<'_> {
    fn variant(&self) -> &str {
        self.one.as_ref().map_or("", |one| one.variant)
    }

    fn load_per_second(&self) -> Option<f64> {
        self.one.as_ref()?.load_per_second
    }

    /// A figure of a whole experiment.
    fn figure(&self, path: &str) -> Option<f64> {
        self.figures.iter().find(|(other, _)| other == path).map(|(_, value)| *value)
    }

    /// The class that limits apply to: GET, or the first.
    fn headline(&self) -> Option<&ClassLatency> {
        self.point?.headline()
    }

    /// Whether its point is valid.
    fn valid(&self) -> bool {
        self.point.is_none_or(|point| point.generator.valid)
    }
}

/// Notice above the results of simulated points.
const SIMULATED: &str = "SIMULATED in virtual time: no figure was measured.";

impl Sheet<'_> {
    /// Notice that the results are simulated, if they are.
    fn notice(&self) -> Option<&'static str> {
        self.is_simulated.then_some(SIMULATED)
    }

    /// Whether rows are whole experiments.
    fn is_of_runs(&self) -> bool {
        self.rows.iter().all(|row| row.one.is_none())
    }

    /// Name of the class whose latencies are shown.
    fn headline(&self) -> &str {
        let class = self.rows.iter().find_map(Row::headline);
        class.map_or("request", |class| class.name.as_str())
    }
}

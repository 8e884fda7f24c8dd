//! A row per printed figure: the paper's, ours, the difference, and the kind of our figure.

use serde::Serialize;
use wave_sim::fit::Fit;
use wave_sim::fit::intervals::Intervals;
use wave_sim::fit::offload::Offload;
use wave_sim::paper::{self, Printed};

use super::group::{self, Group, Ours};
use super::jobs::ByName;
use super::words::close;

/// How one of our figures came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Parameters were chosen so that it comes near the printed figure.
    Fitted,
    /// It follows from parameters that were fitted to other figures.
    Predicted,
    /// As predicted, but its interval is wider than half of the effect and contains the printed figure, or it has none.
    Compatible,
    /// It was measured on this machine.
    Measured,
    /// It follows from measured figures by a rule that was not tested here.
    Extrapolated,
    /// The model contains the result: the figure only says that it was found.
    ByConstruction,
    /// An input of the model: a condition of the experiment, or a cost that the paper prints.
    Assumed,
}

impl Kind {
    pub const ALL: [Kind; 7] = [
        Kind::Fitted,
        Kind::Predicted,
        Kind::Compatible,
        Kind::Measured,
        Kind::Extrapolated,
        Kind::ByConstruction,
        Kind::Assumed,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Fitted => "fitted",
            Kind::Predicted => "predicted",
            Kind::Compatible => "compatible",
            Kind::Measured => "measured",
            Kind::Extrapolated => "extrapolated",
            Kind::ByConstruction => "by construction",
            Kind::Assumed => "assumed",
        }
    }
}

/// One printed figure, and ours.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub id: String,
    pub group: String,
    pub text: String,
    pub unit: String,
    /// The printed figure; of a printed range, the end nearer to ours. One end may be infinite.
    pub paper: f64,
    /// Lowest and highest value that the paper's rounding allows.
    pub paper_range: [f64; 2],
    /// Ours, the median over the seeds; None if nothing here corresponds to it.
    pub ours: Option<f64>,
    /// Ours under each seed; empty if nothing is random.
    pub by_seed: Vec<f64>,
    /// (ours - paper) / paper, zero within the printed range; None for rows in percent, where the difference in percentage
    /// points says more.
    pub rel_diff: Option<f64>,
    /// ours - paper, zero within the printed range, in the row's unit.
    pub diff: Option<f64>,
    /// How our figure came about.
    pub kind: Kind,
    /// Lowest and highest possible value of ours, given what the fit and other inputs leave open; None if not determined.
    pub interval: Option<[f64; 2]>,
    /// Width of the interval, in the row's unit.
    pub width: Option<f64>,
    /// Whether the printed figure, or its range, overlaps the interval.
    pub inside: Option<bool>,
    /// A model gave the row, and the printed figure is outside of its interval; without one, farther away than
    /// [`words::close`](super::words::close) allows.
    pub is_missed: bool,
    /// Place in the paper.
    pub place: String,
    /// Explanation of the difference.
    pub why: Option<&'static str>,
}

impl Row {
    /// What can be said of the row: its kind, or that its figure was missed, however it was made.
    pub fn label(&self) -> String {
        let kind = self.kind.name();
        let is_open = self.paper_range.iter().any(|end| end.is_infinite());
        match (self.is_missed, self.kind) {
            (true, _) => format!("missed ({kind})"),
            (false, Kind::Predicted | Kind::Compatible) if is_open => {
                format!("{kind}, its sign only")
            }
            _ => kind.to_owned(),
        }
    }
}

/// The rows of these groups.
pub fn of(ids: &[&str], by_seed: &[ByName<'_>]) -> Vec<Row> {
    let fit = Fit::builtin();
    let intervals = Intervals::builtin();
    let printed = paper::printed().into_iter().filter(|row| ids.contains(&row.group.as_str()));
    let rows = printed.filter_map(|printed| {
        let group = group::of(&[&printed.group]).next()?;
        let ours = group.rows.iter().find(|ours| ours.id == printed.id)?;
        Some(row(printed, (group, ours), &fit, &intervals, by_seed))
    });
    rows.collect()
}

fn row(
    printed: Printed,
    (group, declared): (&Group, &Ours),
    fit: &Fit,
    intervals: &Intervals,
    by_seed: &[ByName<'_>],
) -> Row {
    let finite = |done: &ByName<'_>| (declared.of)(done).filter(|ours| ours.is_finite());
    let values: Vec<f64> = by_seed.iter().filter_map(finite).collect();
    // As the interval was computed: the search for a saturation of a figure's curve is coarser.
    let of_fit = intervals.of_row(&printed.id).map(|row| row.value);
    let ours = median(&values).map(|median| of_fit.unwrap_or(median));
    // The end of the printed range that is nearer to ours.
    let nearer = |ours: f64| match ours - printed.low < printed.high - ours {
        true => printed.low,
        false => printed.high,
    };
    let paper = ours.map_or(printed.low, nearer);
    let diff = ours.map(|ours| ours - ours.clamp(printed.low, printed.high));
    let relative = printed.unit != "%" && paper != 0.0;
    let of_seed = |done: &ByName<'_>| match declared.interval {
        Some(interval) => interval(done),
        None => intervals.of_row(&printed.id).map(|row| [row.low, row.high]),
    };
    let of_seeds = by_seed.iter().filter_map(of_seed);
    let interval =
        of_seeds.reduce(|all, [low, high]| [f64::min(all[0], low), f64::max(all[1], high)]);
    let width = interval.map(|[low, high]| high - low);
    let inside = interval.map(|[low, high]| low <= printed.high && printed.low <= high);
    let kind = if is_fitted(&printed.id, fit) { Kind::Fitted } else { declared.kind };
    let kind = match (kind, width, ours) {
        // The interval is wider than half of the effect.
        (Kind::Predicted, Some(width), Some(ours))
            if width > ours.abs() / 2.0 && inside == Some(true) =>
        {
            Kind::Compatible
        }
        // Outside of its interval, a row is not compatible.
        (Kind::Compatible, ..) if inside == Some(false) => Kind::Predicted,
        (kind, ..) => kind,
    };
    let mut row = Row {
        kind,
        width,
        inside,
        is_missed: false,
        interval,
        rel_diff: diff.filter(|_| relative).map(|diff| diff / paper),
        why: declared.why,
        paper_range: [printed.low, printed.high],
        id: printed.id,
        text: printed.text,
        unit: printed.unit,
        place: printed.place,
        paper,
        by_seed: if group.is_seeded { values } else { Vec::new() },
        group: printed.group,
        ours,
        diff,
    };
    let is_modelled = matches!(kind, Kind::Fitted | Kind::Predicted | Kind::Compatible);
    row.is_missed = is_modelled && !inside.or_else(|| close(&row)).unwrap_or(true);
    row
}

/// The middle value, or the mean of the two in the middle.
fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (low, high) =
        (sorted.get(sorted.len().checked_sub(1)? / 2)?, sorted.get(sorted.len() / 2)?);
    Some((low + high) / 2.0)
}

/// Whether the row's parameters were chosen by it.
fn is_fitted(id: &str, fit: &Fit) -> bool {
    fit.rows.iter().any(|row| row.printed.id == id) || Offload::builtin().row.printed.id == id
}

pub(super) fn percent(of: f64, to: f64) -> f64 {
    100.0 * (of / to - 1.0)
}

/// The gain in saturation of one job over another, in percent.
pub(super) fn against(done: &ByName<'_>, of: &str, to: &str) -> Option<f64> {
    Some(percent(done.value(of, "saturation")?, done.value(to, "saturation")?))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::reproduce::jobs::Done;
    use crate::reproduce::placements;
    use crate::reproduce::scheduling::single_accesses;

    #[test]
    fn table_2_is_reproduced_by_its_own_inputs() {
        let done = single_accesses();
        let rows = of(&["table2"], &[ByName::from_iter([("table2", &done)])]);
        assert_eq!(rows.len(), 6);
        for row in rows.iter().filter(|row| row.id != "table2-msix-send") {
            let ours = row.ours.unwrap();
            match row.kind {
                // The caption prints one or two significant digits.
                Kind::Fitted => assert!((ours - row.paper).abs() <= 50.0, "{row:?}"),
                _ => assert_eq!(row.rel_diff, Some(0.0), "{row:?}"),
            }
        }
    }

    #[test]
    fn interval_wider_than_half_of_the_effect_makes_a_row_compatible() {
        let done = |low: f64, high: f64| {
            Done::of([("gain", 10.0), ("gain_low", low), ("gain_high", high)])
        };
        let row = |low, high| {
            let done = done(low, high);
            let done = ByName::from_iter([("fig5-1", &done)]);
            of(&["fig5b"], &[done]).into_iter().find(|row| row.id == "fig5b-gain-1").unwrap()
        };
        let narrow = row(8.0, 12.0);
        assert_eq!(
            (narrow.kind, narrow.width, narrow.inside),
            (Kind::Predicted, Some(4.0), Some(true))
        );
        assert_eq!((narrow.label().as_str(), narrow.interval), ("predicted", Some([8.0, 12.0])));
        let wide = row(4.0, 12.0);
        assert_eq!((wide.kind, wide.inside), (Kind::Compatible, Some(true)));
        assert_eq!(wide.label(), "compatible");
        // It is not stretched to contain ours.
        let outside = row(4.0, 9.0);
        assert_eq!((outside.interval, outside.inside), (Some([4.0, 9.0]), Some(false)));
        assert_eq!(outside.label(), "missed (predicted)");
    }

    #[test]
    fn row_whose_printed_range_is_open_predicts_a_sign() {
        let mut row = crate::reproduce::tests::row("sol", "ms", Some(1.0));
        row.paper_range = [0.0, f64::INFINITY];
        assert_eq!(row.label(), "predicted, its sign only");
        row.kind = Kind::Measured;
        assert_eq!(row.label(), "measured");
    }

    #[test]
    fn row_with_random_arrivals_is_the_median_over_seeds() {
        let saturations = [900.0, 920.0, 890.0].map(|of| Done::of([("saturation", of)]));
        let by_seed: Vec<_> =
            saturations.iter().map(|done| ByName::from_iter([("ladder-3", done)])).collect();
        let row = |by_seed: &[ByName<'_>]| {
            of(&["ladder"], by_seed).into_iter().find(|row| row.id == "ladder-prestage").unwrap()
        };
        let three = row(&by_seed);
        assert_eq!((three.ours, three.by_seed), (Some(900.0), vec![900.0, 920.0, 890.0]));
        assert_eq!(row(&by_seed[..2]).ours, Some(910.0));
    }

    #[test]
    fn gain_of_6b_has_an_interval_over_threads_and_lengths() {
        let jobs = placements::gains(&paper::Model::builtin());
        let names: Vec<String> = jobs.into_iter().map(|job| job.name).collect();
        let own = ["fig6a-offload-all-16", "fig6b-offload-all-16"].map(str::to_owned);
        let saturation = |name: &String| match name {
            name if name.starts_with("fig6a") => 100.0,
            name if name.contains("-60-threads-4-times") => 105.0,
            name if name.contains("threads") => 110.0,
            _ => 120.0,
        };
        let found = names
            .iter()
            .chain(&own)
            .map(|name| (name, Done::of([("saturation", saturation(name))])));
        let found: Vec<_> = found.collect();
        let named = || found.iter().map(|(name, done)| (name.as_str(), done));
        let done: ByName<'_> = named().collect();
        let row = |done: &ByName<'_>| {
            let rows = of(&["fig6b"], std::slice::from_ref(done));
            rows.into_iter().find(|row| row.id == "fig6b-gain").unwrap()
        };
        let [low, high] = row(&done).interval.unwrap();
        assert!((low - 5.0).abs() < 1e-9 && (high - 20.0).abs() < 1e-9, "{low} to {high}");
        assert_eq!(row(&done).inside, Some(false), "the paper has 20.8%");
        let but_one =
            named().filter(|(name, _)| *name != "fig6a-offload-all-16-60-threads-4-times");
        assert_eq!(row(&but_one.collect()).interval, None, "one is missing");
    }

    #[test]
    fn every_printed_figure_has_a_row_of_its_group_and_every_row_a_printed_figure() {
        let printed = paper::printed().into_iter().map(|row| (row.group, row.id));
        let ours = group::GROUPS.iter().flat_map(|group| {
            group.rows.iter().map(|ours| (group.id.to_owned(), ours.id.to_owned()))
        });
        let (printed, ours): (Vec<_>, Vec<_>) = (printed.collect(), ours.collect());
        let distinct: BTreeSet<_> = ours.iter().collect();
        assert_eq!(distinct, printed.iter().collect());
        assert_eq!(distinct.len(), ours.len(), "a row twice");
    }

    /// The kinds follow from the rows that the fit names.
    #[test]
    fn rows_named_by_the_fit_are_fitted_and_rows_of_figures_are_not() {
        let fit = Fit::builtin();
        let rows = of(&group::GROUPS.each_ref().map(|group| group.id), &[ByName::default()]);
        for row in &rows {
            let named = fit.rows.iter().any(|fitted| fitted.printed.id == row.id);
            assert!(!named || row.kind == Kind::Fitted, "{}", row.id);
            assert!(!row.group.starts_with("fig") || row.kind != Kind::Fitted, "{}", row.id);
        }
        let has = |wanted: fn(&Row) -> bool| rows.iter().any(wanted);
        assert!(has(|row| row.kind == Kind::Fitted) && has(|row| row.group.starts_with("fig")));
    }

    #[test]
    fn figure_within_the_printed_range_has_no_difference() {
        let done = Done::of([("switch_ns", 6500.0)]);
        let done = ByName::from_iter([("table3-2", &done)]);
        let rows = of(&["table3"], &[done]);
        let row = rows.iter().find(|row| row.id == "table3-host-wc-wt").unwrap();
        assert_eq!((row.rel_diff, row.diff, row.paper), (Some(0.0), Some(0.0), 6100.0));
        let missing = rows.iter().find(|row| row.id == "table3-host-nic-wb").unwrap();
        assert_eq!((missing.ours, missing.rel_diff), (None, None));
    }
}

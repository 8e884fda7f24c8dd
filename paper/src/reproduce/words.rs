//! Wording of rows: groups' names, figures with their units, differences, and a line per group.

use super::Reproduction;
pub use super::group::title;
use super::rows::{Kind, Row};
use wave_report::plot::style::axis_number;
use wave_terminal::Table;

/// Differences up to this are called close, in percent of the printed figure; for figures in percent see [`CLOSE_POINTS`].
pub const CLOSE_PERCENT: f64 = 3.0;
/// The same limit for figures in percent, in percentage points.
pub const CLOSE_POINTS: f64 = 1.0;

/// The printed figure or range, with its unit.
fn printed(row: &Row) -> String {
    let [low, high] = row.paper_range;
    let unit = &row.unit;
    if high.is_infinite() {
        format!("above {} {unit}", axis_number(low))
    } else if low.is_infinite() {
        format!("below {} {unit}", axis_number(high))
    } else if low == high {
        format!("{} {unit}", axis_number(low))
    } else if low < 0.0 {
        format!("{} to {} {unit}", axis_number(low), axis_number(high))
    } else {
        format!("{}-{} {unit}", axis_number(low), axis_number(high))
    }
}

/// Our figure with its unit.
fn ours(row: &Row) -> String {
    row.ours.map_or_else(|| "-".to_owned(), |ours| format!("{} {}", axis_number(ours), row.unit))
}

/// Our figure minus the paper's: in percent of the paper's, or in percentage points for figures in percent.
pub fn difference(row: &Row) -> String {
    let [low, high] = row.paper_range;
    match (row.rel_diff, row.diff) {
        (_, Some(0.0)) if low < high => "within".to_owned(),
        (Some(relative), _) => format!("{}%", signed(100.0 * relative)),
        (None, Some(points)) => format!("{} points", signed(points)),
        (None, None) => "-".to_owned(),
    }
}

/// Lowest and highest possible value of ours, given what the fit leaves open.
fn interval(row: &Row) -> String {
    let [low, high] = match row.interval {
        Some(interval) => interval,
        None => return "-".to_owned(),
    };
    format!("{} to {}", signed(low), signed(high))
}

/// Lowest and highest value under any seed.
fn spread(row: &Row) -> String {
    let (least, most) = (
        row.by_seed.iter().copied().reduce(f64::min),
        row.by_seed.iter().copied().reduce(f64::max),
    );
    match (least, most) {
        (Some(least), Some(most)) if row.by_seed.len() > 1 => {
            format!("{} to {}", axis_number(least), axis_number(most))
        }
        _ => "-".to_owned(),
    }
}

/// The rows whose printed figure was missed; empty if none was.
pub fn missed(rows: &[Row]) -> String {
    let missed: Vec<&str> =
        rows.iter().filter(|row| row.is_missed).map(|row| row.id.as_str()).collect();
    let modelled =
        |row: &&Row| matches!(row.kind, Kind::Fitted | Kind::Predicted | Kind::Compatible);
    match missed.len() {
        0 => String::new(),
        count => format!(
            "Missed: {count} of {} modelled rows: {}.",
            rows.iter().filter(modelled).count(),
            missed.join(", ")
        ),
    }
}

/// How many parts come from an earlier run; empty if none do.
pub fn resumed(reproduction: &Reproduction) -> String {
    let Reproduction { parts, resumed, .. } = reproduction;
    if resumed.is_empty() {
        return String::new();
    }
    format!(
        "{} of {parts} parts are results of an earlier run of the same build, which this run did not repeat.",
        resumed.len()
    )
}

/// Width of the interval.
fn width(row: &Row) -> String {
    row.width.map_or_else(|| "-".to_owned(), |width| format!("{width:.1}"))
}

/// Whether the printed figure lies in the interval.
fn inside(row: &Row) -> &'static str {
    row.inside.map_or("-", |inside| if inside { "yes" } else { "no" })
}

/// Formats with a sign, except for what rounds to zero.
fn signed(number: f64) -> String {
    if number.abs() < 0.05 { "0.0".to_owned() } else { format!("{number:+.1}") }
}

/// Whether our figure is close enough; `None` without a figure of ours.
pub fn close(row: &Row) -> Option<bool> {
    match (row.rel_diff, row.diff) {
        (Some(relative), _) => Some(100.0 * relative.abs() <= CLOSE_PERCENT),
        (None, Some(points)) => Some(points.abs() <= CLOSE_POINTS),
        (None, None) => None,
    }
}

/// A row per printed figure. A group's name stands in its first row, and "figure" is a row's name within its group.
pub fn table(rows: &[&Row]) -> Table {
    let head = [
        "group",
        "figure",
        "what it is",
        "paper",
        "ours",
        "spread",
        "difference",
        "kind",
        "interval",
        "width",
        "inside",
        "in the paper",
        "name",
    ];
    let mut table = Table::new(3, head).with_text_in(&["kind", "inside", "in the paper", "name"]);
    for of_group in rows.chunk_by(|one, next| one.group == next.group) {
        let mut group = title(&of_group[0].group);
        for row in of_group {
            let figure = row.id.strip_prefix(&row.group).unwrap_or(&row.id);
            table.push([
                std::mem::take(&mut group),
                figure.trim_start_matches('-'),
                &row.text,
                &printed(row),
                &ours(row),
                &spread(row),
                &difference(row),
                &row.label(),
                &interval(row),
                &width(row),
                inside(row),
                &row.place,
                &row.id,
            ]);
        }
    }
    table
}

/// How many of a group's rows are close, in a line. Kinds are counted separately: agreement of an input says nothing.
pub fn summary(group: &str, rows: &[&Row]) -> String {
    let mut counts = Vec::new();
    for kind in Kind::ALL {
        let of_kind = rows.iter().filter(|row| row.kind == kind);
        let known: Vec<bool> = of_kind.filter_map(|row| close(row)).collect();
        if !known.is_empty() {
            let near = known.iter().filter(|near| **near).count();
            counts.push(format!("{near} of {} {}", known.len(), kind.name()));
        }
    }
    let title = title(group);
    if counts.is_empty() {
        return format!("{title}: nothing simulated");
    }
    let counts = counts.join(", ");
    let points = if rows.iter().any(|row| row.rel_diff.is_none() && row.diff.is_some()) {
        format!(", or {CLOSE_POINTS} point where percent are printed")
    } else {
        String::new()
    };
    let missing = match rows.iter().filter(|row| close(row).is_none()).count() {
        0 => String::new(),
        missing => format!("; {missing} not simulated"),
    };
    format!("{title}: {counts} within the printed range or {CLOSE_PERCENT}% of it{points}{missing}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::tests::row;

    #[test]
    fn difference_is_in_percent_or_percentage_points() {
        let ns = row("table3", "ns", Some(1030.0));
        assert_eq!((printed(&ns).as_str(), ours(&ns).as_str()), ("1,000 ns", "1,030 ns"));
        assert_eq!(difference(&ns), "+3.0%");
        let percent = row("fig4a", "%", Some(999.98));
        assert_eq!(difference(&percent), "0.0 points");
        let missing = row("fig4a", "%", None);
        assert_eq!((ours(&missing).as_str(), difference(&missing).as_str()), ("-", "-"));
        let range = Row { paper_range: [900.0, 1100.0], diff: Some(0.0), ..ns };
        assert_eq!(
            (printed(&range).as_str(), difference(&range).as_str()),
            ("900-1,100 ns", "within")
        );
    }

    #[test]
    fn missed_rows_are_named() {
        let mut rows = [1.0, 2.0, 3.0].map(|ours| row("fig4a", "%", Some(ours)));
        rows[2].kind = Kind::Assumed;
        assert_eq!(missed(&rows), "");
        (rows[1].is_missed, rows[1].id) = (true, "fig4a-far".to_owned());
        assert_eq!(missed(&rows), "Missed: 1 of 2 modelled rows: fig4a-far.");
    }

    #[test]
    fn readme_names_every_missed_row() {
        let file = include_str!("../../../docs/reproduced.csv");
        let mut rows = csv::Reader::from_reader(file.as_bytes());
        let rows = rows.deserialize::<std::collections::HashMap<String, String>>();
        let rows: Vec<_> = rows.map(Result::unwrap).collect();
        let missed: Vec<&str> = rows
            .iter()
            .filter(|row| row["label"].starts_with("missed"))
            .map(|row| row["id"].as_str())
            .collect();
        let readme = include_str!("../../../README.md");
        let unnamed: Vec<_> =
            missed.iter().filter(|id| !readme.contains(&format!("`{id}`"))).collect();
        assert!(!missed.is_empty() && unnamed.is_empty(), "{unnamed:?}");
        assert!(readme.contains(&format!("{} of ", missed.len())), "{}", missed.len());
    }

    #[test]
    fn spread_is_over_several_seeds() {
        let mut row = row("fig4a", "%", Some(2.0));
        row.by_seed = vec![2.0];
        assert_eq!(spread(&row), "-");
        row.by_seed = vec![2.0, 3.5, 1.0];
        assert_eq!(spread(&row), "1 to 3.5");
    }

    #[test]
    fn summary_counts_close_rows_by_kind() {
        let mut rows =
            [Some(1029.0), Some(1031.0), Some(1000.0), None].map(|ours| row("table3", "ns", ours));
        rows[2].kind = Kind::Assumed;
        let line = summary("table3", &rows.iter().collect::<Vec<_>>());
        assert_eq!(
            line,
            "Table 3: 1 of 2 predicted, 1 of 1 assumed within the printed range or 3% of it; 1 not simulated"
        );
        let percent = row("fig4a", "%", Some(1000.9));
        assert!(summary("fig4a", &[&percent]).contains("1 of 1 predicted within"));
        assert_eq!(summary("fig4a", &[&rows[3]]), "Figure 4a: nothing simulated");
    }
}

//! The rows.csv of an earlier run, for comparison.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use super::rows::{Kind, Row};
use wave_terminal::Failure;

/// A row has moved if it differs by more than this share of the earlier figure. A simulation repeats exactly, but another
/// compiler or mathematics library may round differently.
const TOLERANCE: f64 = 0.005;
/// Tolerance for rows in percent, in percentage points.
const TOLERANCE_POINTS: f64 = 0.2;

/// Columns of rows.csv that are compared.
#[derive(Deserialize)]
struct Record {
    id: String,
    ours: Option<f64>,
    by_seed: String,
}

/// Earlier figures, by row.
pub struct Snapshot(BTreeMap<String, Vec<f64>>);

impl Snapshot {
    /// Reads a rows.csv.
    ///
    /// # Errors
    /// The file cannot be read, or is not a rows.csv.
    pub fn read(path: &Path) -> Result<Snapshot, Failure> {
        let failed = |why: String| Failure::Scenario(format!("{}: {why}", path.display()));
        let text = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
        Snapshot::parse(&text).map_err(|error| {
            failed(format!("{error}; expected the rows.csv of an earlier `wave reproduce`"))
        })
    }

    fn parse(text: &[u8]) -> Result<Snapshot, String> {
        let mut rows = BTreeMap::new();
        for record in csv::Reader::from_reader(text).deserialize() {
            let Record { id, ours, by_seed } = record.map_err(|error| error.to_string())?;
            let by_seed: Result<Vec<f64>, _> =
                by_seed.split(' ').filter(|of| !of.is_empty()).map(str::parse).collect();
            let by_seed = by_seed.map_err(|error| format!("`by_seed` of {id}: {error}"))?;
            // Without seeds there is a single figure.
            rows.insert(id, if by_seed.is_empty() { Vec::from_iter(ours) } else { by_seed });
        }
        Ok(Snapshot(rows))
    }

    /// Describes every simulated row that differs from the earlier run. With several seeds, those present in both runs are
    /// compared.
    pub fn moved(&self, rows: &[Row]) -> Vec<String> {
        let simulated = |row: &&Row| !matches!(row.kind, Kind::Measured | Kind::Extrapolated);
        rows.iter().filter(simulated).filter_map(|row| self.moved_row(row)).collect()
    }

    fn moved_row(&self, row: &Row) -> Option<String> {
        let Some(before) = self.0.get(&row.id) else {
            return Some(format!("{}: missing in the earlier run", row.id));
        };
        let now =
            if row.by_seed.is_empty() { Vec::from_iter(row.ours) } else { row.by_seed.clone() };
        if before.is_empty() != now.is_empty() {
            let has = |of: &[f64]| if of.is_empty() { "nothing" } else { "a figure" };
            return Some(format!("{}: {} now, {} before", row.id, has(&now), has(before)));
        }
        let differs = |(now, before): &(&f64, &f64)| {
            let limit = if row.unit == "%" { TOLERANCE_POINTS } else { TOLERANCE * before.abs() };
            (*now - *before).abs() > limit
        };
        let (at, (now, before)) =
            now.iter().zip(before).enumerate().find(|(_, pair)| differs(pair))?;
        let seed =
            if row.by_seed.is_empty() { String::new() } else { format!(" under seed {}", at + 1) };
        Some(format!("{}{seed}: {now} {} now, {before} before", row.id, row.unit))
    }
}

#[cfg(test)]
mod tests {
    use super::super::page::csv;
    use super::*;
    use crate::reproduce::tests::row;

    fn sample() -> Vec<Row> {
        let mut rows = vec![
            row("table3", "ns", Some(1000.0)),
            row("fig4a", "%", Some(4.0)),
            row("upi", "%", None),
            row("sol", "ms", Some(30.0)),
        ];
        rows[1].by_seed = vec![4.0, 3.0, 5.0];
        rows[3].kind = Kind::Measured;
        rows
    }

    #[test]
    fn snapshot_round_trips_without_moved_rows() {
        let rows = sample();
        let snapshot = Snapshot::parse(&csv(&rows, "0.2.0")).unwrap();
        assert_eq!(snapshot.0["fig4a-sample"], [4.0, 3.0, 5.0]);
        assert!(snapshot.moved(&rows).is_empty());
    }

    #[test]
    fn moved_row_is_named() {
        let snapshot = Snapshot::parse(&csv(&sample(), "0.2.0")).unwrap();
        let mut rows = sample();
        rows[0].ours = Some(1004.9);
        rows[1].by_seed = vec![4.0, 3.19];
        rows[3].ours = Some(300.0);
        assert!(snapshot.moved(&rows).is_empty(), "within the tolerance, and measured ones differ");
        rows[0].ours = Some(1005.1);
        rows[1].by_seed = vec![4.0, 3.21];
        rows[2].ours = Some(1.0);
        let moved = snapshot.moved(&rows);
        assert_eq!(moved.len(), 3, "{moved:?}");
        assert!(moved[0].contains("table3-sample: 1005.1 ns now, 1000 before"), "{moved:?}");
        assert!(moved[1].contains("fig4a-sample under seed 2"), "{moved:?}");
        assert!(moved[2].contains("a figure now, nothing before"), "{moved:?}");
    }

    #[test]
    fn row_missing_in_the_earlier_run_is_named() {
        let snapshot = Snapshot::parse(&csv(&[], "0.2.0")).unwrap();
        assert_eq!(snapshot.moved(&sample()).len(), 3);
    }

    #[test]
    fn snapshot_of_another_format_is_refused() {
        assert!(Snapshot::parse(b"a,b\n1,2\n").is_err());
    }
}

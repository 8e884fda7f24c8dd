//! A row per combination, as CSV.

use super::{Row, Sheet, figures, table::end};
use crate::points::{LATENCY, latency};

const HEAD: [&str; 7] =
    ["variant", "placement", "link", "policy", "workers", "seed", "load_per_second"];

const POINT: [&str; 8] = [
    "saturation_per_second",
    "search_end",
    "achieved_per_second",
    "served",
    "sent",
    "done",
    "refused",
    "duration_s",
];

const TAIL: [&str; 2] = ["valid", "why_invalid"];

/// A header and a row per combination: id, the axes by their paths, then the metrics, empty where there are none.
pub fn csv(sheet: &Sheet<'_>) -> Vec<u8> {
    if sheet.is_of_runs() {
        return figures::csv(sheet);
    }
    let mut classes: Vec<&str> = Vec::new();
    for class in sheet.rows.iter().filter_map(|row| row.point).flat_map(|point| &point.classes) {
        if !classes.contains(&class.name.as_str()) {
            classes.push(&class.name);
        }
    }
    let mut header = vec!["id".to_owned()];
    header.extend(sheet.axes.iter().map(|axis| axis.name.clone()));
    header.extend(HEAD.iter().chain(&POINT).map(|name| (*name).to_owned()));
    header
        .extend(classes.iter().flat_map(|class| LATENCY.map(|column| format!("{class}_{column}"))));
    header.extend(TAIL.map(str::to_owned));

    crate::csv(header, sheet.rows.iter().map(|row| record(sheet, row, &classes)))
}

/// The fields of a row. Numbers have the shortest form that reads back to the same bits.
fn record(sheet: &Sheet<'_>, row: &Row<'_>, classes: &[&str]) -> Vec<String> {
    let optional = |number: Option<f64>| number.map_or_else(String::new, |n| n.to_string());
    let mut record = vec![row.id.to_owned()];
    record.extend(sheet.axes.iter().zip(row.at).map(|(axis, at)| axis.values[*at].clone()));
    let Some(one) = &row.one else { return record };
    record.extend([
        one.variant.to_owned(),
        one.placement.to_owned(),
        one.link.to_owned(),
        one.policy.to_owned(),
        one.workers.to_string(),
        one.seed.to_string(),
        optional(one.load_per_second),
        optional(row.search.and_then(|search| search.saturation_per_second)),
        row.search.map_or_else(String::new, |search| end(search.end)),
    ]);
    let Some(point) = row.point else {
        let rest = POINT.len() - 2 + LATENCY.len() * classes.len() + TAIL.len();
        record.extend(std::iter::repeat_n(String::new(), rest));
        return record;
    };
    record.extend([
        point.achieved_per_second.to_string(),
        point.served().to_string(),
        point.sent.to_string(),
        point.done.to_string(),
        point.refused.to_string(),
        point.duration_s.to_string(),
    ]);
    for name in classes {
        match point.latency(name) {
            Some(of_class) => record.extend(latency(of_class)),
            None => record.extend(LATENCY.map(|_| String::new())),
        }
    }
    record.push(point.generator.valid.to_string());
    record.push(point.generator.why_invalid.clone().unwrap_or_default());
    record
}

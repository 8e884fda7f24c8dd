//! The table that compares variants under one load with scheduling without overhead, for every form of
//! the report.

use super::model::{Compared, Figure, RunResult, VariantResult};
use super::number::{micros, short};
use wave_terminal::Table;

/// The table of `result` with its notes, if its variants were compared. Columns without any figure are omitted.
pub fn table(result: &RunResult) -> Option<(Table, Vec<String>)> {
    let variants: Vec<&VariantResult> =
        result.variants.iter().filter(|variant| variant.compared.is_some()).collect();
    let load = variants.first()?.compared.as_ref()?.offered_per_second;
    let class =
        variants.iter().flat_map(|variant| &variant.points).find_map(|point| point.headline());
    let class = class.map_or("request", |class| class.name.as_str());
    let percent = |share: f64| format!("{:+.1}%", share * 100.0);
    let mut head = vec!["variant".to_owned()];
    let mut rows: Vec<Vec<String>> =
        variants.iter().map(|variant| vec![variant.name.clone()]).collect();
    let mut column = |name: &str, cell: &dyn Fn(&VariantResult) -> Option<String>| {
        let cells: Vec<Option<String>> = variants.iter().map(|variant| cell(variant)).collect();
        if cells.iter().any(Option::is_some) {
            head.push(name.to_owned());
            for (row, cell) in rows.iter_mut().zip(cells) {
                row.push(cell.unwrap_or_default());
            }
        }
    };
    let of = |variant: &VariantResult| variant.compared.clone().unwrap_or_default();
    let range = |variant: &VariantResult| variant.compared.as_ref()?.range;
    column(&format!("{class} p99\nus"), &|variant| of(variant).p99_ns.map(micros));
    column("/ that of\nthe reference", &|variant| of(variant).p99_ratio.map(times));
    let p99_us = |compared: &Compared, slowdown: Option<f64>| {
        Some(short(slowdown? / compared.slowdown? * compared.p99_ns? as f64 / 1e3))
    };
    column("ideal\nsharing", &|variant| p99_us(&of(variant), of(variant).oracle_slowdown));
    column("/ ideal\nsharing", &|variant| of(variant).slowdown_vs_oracle.map(times));
    column("ideal\nslices", &|variant| {
        let compared = of(variant);
        let p99_us = p99_us(&compared, compared.sliced_slowdown)?;
        Some(format!("{p99_us}\n({} us)", short(compared.slice_us?)))
    });
    column("/ ideal\nslices", &|variant| of(variant).slowdown_vs_sliced.map(times));
    column("RANGE\ntime", &|variant| range(variant)?.service_growth.map(percent));
    column("with\nswitches", &|variant| range(variant)?.core_growth.map(percent));
    let has = |name: &str| head.iter().any(|column| column == name);
    let mut notes = vec![format!(
        "Compared at {load:.0}/s; in brackets: 95% intervals, and lengths of slices."
    )];
    if has("ideal\nsharing") {
        notes.push(
            "Ideal: the p99 in us of the same arrivals on as many cores if scheduling cost nothing, by processor \
             sharing or in slices of the policy's length. The distance between these two is due to \
             the policy, the rest to our overhead."
                .to_owned(),
        );
    }
    if has("RANGE\ntime") {
        let whole =
            variants.iter().find(|each| range(each).is_some_and(|cost| cost.preempted == 0));
        let whole = whole.map_or("", |variant| variant.name.as_str());
        notes.push(format!(
            "RANGE time: cost of each key that a RANGE reads, against \"{whole}\", where nothing was \
             preempted: in the RANGE itself, and with switches (all time of the cores in threads and \
             between them, less the other requests' service times)."
        ));
    }
    Some((Table::new(1, head).with(rows), notes))
}

/// A ratio, with its interval on a line of its own.
fn times(figure: Figure) -> String {
    figure.words(short).replacen(" (", "\n(", 1)
}

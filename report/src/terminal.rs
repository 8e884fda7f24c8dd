//! The results as tables, and as text for a terminal, at most [`WIDTH`] columns wide.

use std::fmt;

use wave_terminal::{Table, WIDTH, counted};
use wave_workloads::recorder::Latency;

use super::model::{RunResult, VariantResult};
use super::number::{difference, micros, short, thousands};

/// Maximum number of lines of notes below a table.
const NOTES_MAX: usize = 5;

/// A table, or lines of figures, with notes below.
#[derive(Debug, Default)]
pub struct Section {
    pub table: String,
    /// Each a sentence or more, in the order of their importance.
    pub notes: Vec<String>,
}

impl Section {
    pub fn new(table: &Table, notes: Vec<String>) -> Section {
        Section { table: table.fitted(), notes }
    }
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.table)?;
        let line = if self.table.is_empty() || self.notes.is_empty() { "" } else { "\n" };
        write!(f, "{line}{}", notes(&self.notes))
    }
}

/// Notes on five lines at most. The others are counted: the report has them.
fn notes(notes: &[String]) -> String {
    let all: Vec<String> = notes.iter().map(|note| wrapped(note)).collect();
    let lines = |notes: &[String]| notes.iter().map(|note| note.lines().count()).sum::<usize>();
    if lines(&all) <= NOTES_MAX {
        return all.join("\n");
    }
    let fit = (0..all.len()).rfind(|fit| lines(&all[..*fit]) < NOTES_MAX).unwrap_or(0);
    let more = format!("The report has {}.", counted(all.len() - fit, "more note"));
    all[..fit].iter().cloned().chain([more]).collect::<Vec<_>>().join("\n")
}

/// The banner about invalid points, then every point, then every variant's saturation, if any was searched for, and the conclusion.
pub fn summary(result: &RunResult) -> String {
    whole(result, Vec::new())
}

/// The same with these `facts` among the last notes.
pub fn whole(result: &RunResult, facts: Vec<String>) -> String {
    // Kinds of scenarios without loads have no points.
    let has_points = result.variants.iter().any(|variant| !variant.points.is_empty());
    let mut text = result.banner().map_or_else(String::new, |banner| {
        let rule = "═".repeat(usize::from(WIDTH));
        format!("{rule}\n{}\n{rule}\n\n", wrapped(&banner))
    });
    if let Some(simulated) = result.simulated() {
        text.push_str(&format!("{}\n\n", wrapped(&simulated)));
    }
    let mut sections = Vec::new();
    if let Some(paired) = &result.paired {
        let notes = super::paired::notes(paired).into();
        sections.push(Section::new(&super::paired::latencies(result, paired), notes));
    } else if let Some(ladder) = &result.ladder {
        let notes = super::ladder::notes(ladder);
        sections.push(Section::new(&super::ladder::table(ladder), notes));
    } else if has_points {
        let (table, notes) = points(result);
        let mut table = table.without(&ON_PAGE_ONLY);
        let points = || result.variants.iter().flat_map(|variant| &variant.points);
        if points().all(|point| point.classes.len() <= 1) {
            table = table.without(&["class"]);
        }
        sections.push(Section::new(&table, notes));
    }
    if result.ladder.is_none() {
        sections.extend(saturation(result).map(|(table, notes)| Section::new(&table, notes)));
    }
    let compared = super::compared::table(result);
    sections.extend(compared.map(|(table, notes)| Section::new(&table, notes)));
    // The tables of rounds have these figures.
    let extra = if result.paired.is_some() { String::new() } else { extra(result) };
    if !extra.is_empty() {
        sections.push(Section { table: extra.trim_end().to_owned(), notes: Vec::new() });
    }
    if sections.is_empty() {
        sections.push(Section::default());
    }
    sections.last_mut().expect("there is one").notes.extend(facts);
    let mut parts: Vec<String> = sections.iter().map(Section::to_string).collect();
    parts.extend(super::conclusion::of(result).map(|conclusion| wrapped(&conclusion)));
    parts.retain(|part| !part.is_empty());
    text + &parts.join("\n\n")
}

/// Columns of points that a terminal has no room for.
const ON_PAGE_ONLY: [&str; 4] = ["max\nus", "useful\n%", "poll\n%", "agent\n%"];

/// A row per point and class, and the reasons of invalid points, whose latencies are in brackets.
pub fn points(result: &RunResult) -> (Table, Vec<String>) {
    let head = [
        "variant",
        "workers",
        "offered\nk/s",
        "achieved\nk/s",
        "class",
        "p50\nus",
        "p99\nus",
        "p99.9\nus",
    ];
    let head = head.into_iter().chain(ON_PAGE_ONLY).chain(["note"]);
    let mut table = Table::new(1, head).with_text_in(&["class", "note"]);
    let mut invalid = Vec::new();
    for variant in &result.variants {
        let mut first = vec![variant.name.clone(), variant.workers.to_string()];
        for point in &variant.points {
            let valid = point.generator.valid;
            if let Some(why) = point.why_invalid() {
                let load = thousands(point.offered_per_second);
                invalid.push(format!("Invalid, {} at {load} k/s: {why}", variant.name));
            }
            let cpu = &point.cpu;
            let [useful, poll, agent] =
                [cpu.host_useful_percent, cpu.host_poll_percent, cpu.agent_percent].map(short);
            let mut before = std::mem::replace(&mut first, vec![String::new(); 2]);
            before.extend([point.offered_per_second, point.achieved_per_second].map(thousands));
            let mut after = vec![useful, poll, agent, point.note()];
            let none = ("", Latency::default());
            let classes = point.classes.iter().map(|class| (class.name.as_str(), class.latency));
            let count = point.classes.len().max(1);
            for (class, latency) in classes.chain([none]).take(count) {
                let times = [latency.p50_ns, latency.p99_ns, latency.p999_ns, latency.max_ns];
                let time = |ns| match latency.count {
                    0 => "-".to_owned(),
                    _ => marked(micros(ns), valid),
                };
                let mut row = before.clone();
                row.push(class.to_owned());
                row.extend(times.map(time));
                row.append(&mut after.clone());
                match valid {
                    true => table.push(row),
                    false => table.push_as("invalid", row),
                }
                before.fill(String::new());
                after.fill(String::new());
            }
        }
    }
    (table, invalid)
}

/// A figure, in brackets if its point is invalid.
pub fn marked(figure: String, valid: bool) -> String {
    if valid { figure } else { format!("({figure})") }
}

/// A row per variant: its saturation, the difference from the first variant's, and the saturation under other limits; with
/// notes. None if no saturation was searched for.
pub fn saturation(result: &RunResult) -> Option<(Table, Vec<String>)> {
    if !has_saturations(result) {
        return None;
    }
    let limits = limits(result);
    let head = ["variant", "workers", "saturation\nk/s", "vs first"].map(str::to_owned);
    let mut table =
        Table::new(1, head.into_iter().chain(limits.iter().map(|limit| format!("at {limit} us"))));
    let reference = result.variants.first().and_then(|variant| variant.saturation_per_second);
    for (index, variant) in result.variants.iter().enumerate() {
        let rate = variant.saturation_per_second;
        let against = match (rate, reference) {
            (Some(rate), Some(reference)) if index > 0 => difference(rate, reference),
            _ => String::new(),
        };
        let mut row = vec![
            variant.name.clone(),
            variant.workers.to_string(),
            saturation_cell(rate, variant.not_measurable.as_deref()),
            against,
        ];
        row.extend(limits.iter().map(|limit| at_limit(variant, *limit)));
        table.push(row);
    }
    let mut notes = vec![format!("Saturation: {}", definition(result))];
    if result.variants.iter().any(|variant| !variant.limits_not_measurable.is_empty()) {
        notes.push("?: not measurable within that limit.".to_owned());
    }
    notes.extend(lower_bounds(result));
    for variant in &result.variants {
        if let Some(why) = &variant.not_measurable {
            notes.push(format!("Not measurable: {}: {why}", variant.name));
        }
    }
    Some((table, notes))
}

/// Whether any variant has a saturation, or one that could not be measured.
fn has_saturations(result: &RunResult) -> bool {
    let looked_for = |variant: &VariantResult| {
        variant.saturation_per_second.is_some() || variant.not_measurable.is_some()
    };
    result.variants.iter().any(looked_for)
}

/// A sentence that names the saturations that are lower bounds; None if there are none.
pub(crate) fn lower_bounds(result: &RunResult) -> Option<String> {
    let served_all = result.variants.iter().filter(|variant| variant.served_all());
    let names: Vec<&str> = served_all.map(|variant| variant.name.as_str()).collect();
    (!names.is_empty()).then(|| {
        let names = names.join("; ");
        format!("Lower bounds, as the highest load offered was served: {names}.")
    })
}

/// The text of a saturation in a table.
pub fn saturation_cell(rate: Option<f64>, not_measurable: Option<&str>) -> String {
    match (rate, not_measurable) {
        (_, Some(_)) => "unknown".to_owned(),
        (Some(rate), None) => thousands(rate),
        (None, None) => "none".to_owned(),
    }
}

/// The words of `text` in lines of at most [`WIDTH`] columns.
pub fn wrapped(text: &str) -> String {
    let (mut lines, mut columns) = (String::new(), 0);
    for word in text.split(' ') {
        let width = word.chars().count();
        if columns > 0 && columns + 1 + width > usize::from(WIDTH) {
            lines.push('\n');
            columns = 0;
        } else if columns > 0 {
            lines.push(' ');
            columns += 1;
        }
        lines.push_str(word);
        columns += width;
    }
    lines
}

/// The sentence that defines saturation.
pub fn definition(result: &RunResult) -> String {
    format!(
        "the highest offered load with at least 99% served and a {} p99 of at most {} us.",
        result.headline(),
        result.limit_us
    )
}

/// The limits, in microseconds, that any variant's saturation was also computed for; ascending.
fn limits(result: &RunResult) -> Vec<u32> {
    let mut limits: Vec<u32> = result
        .variants
        .iter()
        .flat_map(|variant| {
            let known = variant.saturation_by_limit.iter().map(|(limit, _)| *limit);
            known.chain(variant.limits_not_measurable.iter().copied())
        })
        .collect();
    limits.sort_unstable();
    limits.dedup();
    limits
}

/// The saturation of `variant` for a limit in microseconds; empty if it was not computed, a question mark if it could
/// not be measured.
fn at_limit(variant: &VariantResult, limit: u32) -> String {
    if variant.limits_not_measurable.contains(&limit) {
        return "?".to_owned();
    }
    if variant.saturation_by_limit.is_empty() {
        return String::new();
    }
    let rate = variant.saturation_by_limit.iter().find(|(other, _)| *other == limit);
    rate.map_or_else(|| "none".to_owned(), |(_, rate)| thousands(*rate))
}

/// Results of this kind of scenario only, a line per number or text; empty if there are none.
fn extra(result: &RunResult) -> String {
    let Some(extra) = result.extra.as_object() else { return String::new() };
    let mut text = String::new();
    for (name, value) in extra.iter().filter(|(_, value)| !value.is_object() && !value.is_array()) {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        text.push_str(&format!("{}: {value}\n", name.replace('_', " ")));
    }
    text
}

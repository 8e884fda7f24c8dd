//! The results as tables for a terminal, at most [`WIDTH`] columns wide.

use std::fmt;

use comfy_table::{
    CellAlignment, ColumnConstraint, ContentArrangement, Table, TableComponent, Width, presets,
};

use wave_lab::terminal::counted;

use super::model::{RunResult, VariantResult};
use super::number::{difference, micros, thousands};

/// Maximum width of a table, in columns of the terminal.
pub const WIDTH: u16 = 100;

/// Width up to which a variant's name is not broken, padding included.
const NAME_WIDTH_MAX: u16 = 34;

/// Minimum width of the notes, padding included, so that no word is broken.
const NOTE_WIDTH_MIN: u16 = 10;

/// Maximum number of lines of notes below a table.
const NOTES_MAX: usize = 5;

/// A table, or lines of figures, with notes below.
#[derive(Debug, Default)]
pub struct Section {
    pub table: String,
    /// Each a sentence or more, in the order of their importance.
    pub notes: Vec<String>,
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
        sections.push(drawn(result, &super::paired::latencies(result, paired), notes));
    } else if let Some(ladder) = &result.ladder {
        let notes = super::ladder::notes(ladder);
        sections.push(drawn(result, &super::ladder::table(ladder), notes));
    } else if has_points {
        sections.push(points(result));
    }
    if result.ladder.is_none() {
        sections.extend(saturation(result));
    }
    sections.extend(compared(result));
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

/// A row per variant run under the load of the comparison; None if there was no comparison.
pub fn compared(result: &RunResult) -> Option<Section> {
    let (table, notes) = super::compared::table(result)?;
    Some(drawn(result, &table, notes))
}

/// A table whose first column is the variant, with its notes.
fn drawn(result: &RunResult, table: &super::table::Table, notes: Vec<String>) -> Section {
    let head: Vec<&str> = table.head().iter().map(String::as_str).collect();
    let mut drawn = self::table(result, &head, 1..head.len());
    drawn.add_rows(table.rows());
    keep_words(&mut drawn, 1..head.len());
    Section { table: drawn.to_string(), notes }
}

/// A row per point and class. Latencies of an invalid point are in brackets, and the reason follows the table.
pub fn points(result: &RunResult) -> Section {
    let all = || result.variants.iter().flat_map(|variant| &variant.points);
    let several_classes = all().any(|point| point.classes.len() > 1);
    let mut header = vec!["variant", "workers", "offered\nk/s", "achieved\nk/s"];
    if several_classes {
        header.push("class");
    }
    header.extend(["p50\nus", "p99\nus", "p99.9\nus", "note"]);
    let mut table = table(result, &header, if several_classes { 5..8 } else { 4..7 });
    for (column, name) in table.column_iter_mut().zip(&header) {
        match *name {
            // It gets the width that the other columns leave.
            "variant" => column.remove_constraint(),
            "note" => {
                let width = Width::Fixed(NOTE_WIDTH_MIN);
                column.set_constraint(ColumnConstraint::LowerBoundary(width))
            }
            _ => column.set_constraint(ColumnConstraint::ContentWidth),
        };
    }
    let mut invalid = Vec::new();
    for variant in &result.variants {
        let mut name = variant.name.as_str();
        let mut workers = variant.workers.to_string();
        for point in &variant.points {
            let mut before = vec![
                std::mem::take(&mut name).to_owned(),
                std::mem::take(&mut workers),
                thousands(point.offered_per_second),
                thousands(point.achieved_per_second),
            ];
            let mut note = point.short_note();
            if let Some(why) = point.why_invalid() {
                let load = thousands(point.offered_per_second);
                invalid.push(format!("Invalid, {} at {load} k/s: {why}", variant.name));
            }
            if point.classes.is_empty() {
                let empty =
                    std::iter::repeat_n("-".to_owned(), if several_classes { 4 } else { 3 });
                table.add_row(before.iter().cloned().chain(empty).chain([note.clone()]));
            }
            for class in &point.classes {
                let latency = &class.latency;
                let mut row = before.clone();
                if several_classes {
                    row.push(class.name.clone());
                }
                let known = |ns| {
                    let time = if latency.count > 0 { micros(ns) } else { "-".to_owned() };
                    marked(time, point.generator.valid)
                };
                row.extend([known(latency.p50_ns), known(latency.p99_ns), known(latency.p999_ns)]);
                row.push(std::mem::take(&mut note));
                table.add_row(row);
                before.fill(String::new());
            }
        }
    }
    Section { table: table.to_string(), notes: invalid }
}

/// A figure, in brackets if its point is invalid.
pub fn marked(figure: String, valid: bool) -> String {
    if valid { figure } else { format!("({figure})") }
}

/// A row per variant: its saturation, the difference from the first variant's, and the saturation under other limits.
pub fn saturation(result: &RunResult) -> Option<Section> {
    if !has_saturations(result) {
        return None;
    }
    let limits = limits(result);
    let mut header = vec![
        "variant".to_owned(),
        "workers".to_owned(),
        "saturation\nk/s".to_owned(),
        "vs first".to_owned(),
    ];
    header.extend(limits.iter().map(|limit| format!("at {limit} us")));
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let mut table = table(result, &header, 2..header.len());
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
        table.add_row(row);
    }
    keep_words(&mut table, 1..header.len());
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
    Some(Section { table: table.to_string(), notes })
}

/// Whether any variant has a saturation, or one that could not be measured.
pub fn has_saturations(result: &RunResult) -> bool {
    let looked_for = |variant: &VariantResult| {
        variant.saturation_per_second.is_some() || variant.not_measurable.is_some()
    };
    result.variants.iter().any(looked_for)
}

/// A sentence that names the saturations that are lower bounds; None if there are none.
pub fn lower_bounds(result: &RunResult) -> Option<String> {
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
pub fn limits(result: &RunResult) -> Vec<u32> {
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
pub fn at_limit(variant: &VariantResult, limit: u32) -> String {
    if variant.limits_not_measurable.contains(&limit) {
        return "?".to_owned();
    }
    if variant.saturation_by_limit.is_empty() {
        return String::new();
    }
    let rate = variant.saturation_by_limit.iter().find(|(other, _)| *other == limit);
    rate.map_or_else(|| "none".to_owned(), |(_, rate)| thousands(*rate))
}

/// A table whose first columns are the variant and three numbers, and whose columns in `numbers` are numbers too.
fn table(result: &RunResult, header: &[&str], numbers: std::ops::Range<usize>) -> Table {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_style(TableComponent::HeaderLines, '─')
        .set_style(TableComponent::MiddleHeaderIntersections, '─')
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(WIDTH)
        .set_header(header.to_vec());
    let name_width =
        result.variants.iter().map(|variant| variant.name.chars().count() as u16 + 2).max();
    for (index, column) in table.column_iter_mut().enumerate() {
        if numbers.contains(&index) || (1..4).contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        if index == 0 {
            let width = Width::Fixed(name_width.unwrap_or(0).min(NAME_WIDTH_MAX));
            column.set_constraint(ColumnConstraint::LowerBoundary(width));
        }
    }
    table
}

/// Makes these columns wide enough that no word or number is broken.
fn keep_words(table: &mut Table, columns: std::ops::Range<usize>) {
    let longest = |text: String| text.split_whitespace().map(|word| word.chars().count()).max();
    for index in columns {
        let rows = table.row_iter().filter_map(|row| row.cell_iter().nth(index));
        let head = table.header().and_then(|head| head.cell_iter().nth(index));
        let words = rows.chain(head).filter_map(|cell| longest(cell.content()));
        let width = words.max().unwrap_or(0) as u16 + PADDING;
        if let Some(column) = table.column_mut(index) {
            column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(width)));
        }
    }
}

/// Number of spaces beside the content of a cell.
const PADDING: u16 = 2;

/// Results of this kind of scenario only, a line per number or text; empty if there are none.
pub fn extra(result: &RunResult) -> String {
    let Some(extra) = result.extra.as_object() else { return String::new() };
    let mut text = String::new();
    for (name, value) in extra.iter().filter(|(_, value)| !value.is_object() && !value.is_array()) {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        text.push_str(&format!("{}: {value}\n", name.replace('_', " ")));
    }
    text
}

//! Many scenarios from one file, by its `[sweep]` table.
//!
//! ```toml
//! [sweep]
//! "host.cores" = [16, 32, 64]
//! "run.seed" = [1, 2, 3]
//! "variant.prestage" = [0, 2]                     # in every [[variant]]
//! "variant[offload, PCIe-like].prefetch" = [true] # in the one of that name
//! ```
//!
//! An *axis* is a path into the file and the values that it takes there, in the file's order; the last axis varies fastest. At
//! a list of tables, a path goes into all of them, or into the one named in brackets. Each combination of values is put into
//! the file, and the result is checked like any other scenario.

use std::ops::Range;
use std::path::Path;

use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

use wave_scenario::ScenarioError;
use wave_scenario::error::line_of;

/// Maximum number of scenarios of one file; ten thousand take seconds to check.
pub const EXPANSIONS_MAX: usize = 10_000;

/// A file and the expansions of its `[sweep]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Sweep<S> {
    /// In the file's order; empty if the file has no `[sweep]`.
    pub axes: Vec<SweepAxis>,
    /// Every combination of values, in order; the last axis varies fastest. At least one.
    pub expansions: Vec<Expansion<S>>,
}

/// A path into the file, and its values.
#[derive(Debug, Clone, PartialEq)]
pub struct SweepAxis {
    /// The path as written, without quotes: `host.cores`.
    pub path: String,
    /// At least one, all different.
    pub values: Vec<Value>,
    /// Line in the file, from 1.
    pub line: usize,
}

/// One combination of values.
#[derive(Debug, Clone, PartialEq)]
pub struct Expansion<S> {
    /// Index of each axis' value, in the axes' order.
    pub at: Vec<usize>,
    /// The scenario with these values.
    pub scenario: S,
}

/// The source of a sweep, and the parser of its scenarios.
struct Source<'a, S> {
    path: &'a Path,
    text: &'a str,
    read: &'a dyn Fn(&str) -> Result<S, ScenarioError>,
}

/// Expands the scenario in `text`; `path` is its source, for messages. `read` parses a scenario of any kind.
///
/// # Errors
/// Those of `read`. If the value of an axis is at fault, the message names both.
pub fn parse_sweep<S>(
    path: &Path,
    text: &str,
    read: &dyn Fn(&str) -> Result<S, ScenarioError>,
) -> Result<Sweep<S>, ScenarioError> {
    let source = &Source { path, text, read };
    let mut base: Table = match toml::from_str(text) {
        Ok(base) => base,
        // Parsing it as an ordinary scenario gives a better message.
        Err(error) => {
            let line = error.span().map_or(1, |span| line_of(text, span.start));
            let form = || ScenarioError::form(path, line, error.message().to_owned());
            return Err(read(text).err().unwrap_or_else(form));
        }
    };
    let written = base.remove("sweep");
    let axes = written.map_or(Ok(Vec::new()), |written| axes(&written, path, text))?;
    let sizes: Vec<usize> = axes.iter().map(|axis| axis.values.len()).collect();
    let count = sizes.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
    if count.is_none_or(|count| count > EXPANSIONS_MAX) {
        let sizes: Vec<String> = sizes.iter().map(ToString::to_string).collect();
        let message = format!(
            "[sweep] makes {} scenarios, expected {EXPANSIONS_MAX} at most",
            sizes.join(" x ")
        );
        return Err(ScenarioError::meaning(path, axes[0].line, message));
    }
    let expansions = combinations(&sizes)
        .map(|at| match expand(&base, &axes, &at, source) {
            Ok(scenario) => Ok(Expansion { at, scenario }),
            Err(error) => Err(blame(error, &base, &axes, &at, source)),
        })
        .collect::<Result<_, _>>()?;
    Ok(Sweep { axes, expansions })
}

/// Refuses a file with a `[sweep]`, where a single scenario is expected.
pub fn refuse_sweep(path: &Path, text: &str) -> Result<(), ScenarioError> {
    let Some(at) = written(text).map(|(key, _)| key.start) else { return Ok(()) };
    let message =
        "[sweep] makes many scenarios of this one: run them with `wave sweep`, or remove the table";
    Err(ScenarioError::meaning(path, line_of(text, at), message.to_owned()))
}

/// Ranges of the key `sweep` in `text`, and of all keys and values below it. None if there is no such key.
fn written(text: &str) -> Option<(Range<usize>, Vec<Range<usize>>)> {
    let table = DeTable::parse(text).ok()?;
    let (key, value) = table.get_ref().iter().find(|(key, _)| key.get_ref() == "sweep")?;
    let (mut below, mut left) = (Vec::new(), vec![value.get_ref()]);
    while let Some(value) = left.pop() {
        let DeValue::Table(table) = value else { continue };
        for (key, value) in table {
            below.extend([key.span(), value.span()]);
            left.push(value.get_ref());
        }
    }
    Some((key.span(), below))
}

/// The text with empty lines in place of its `[sweep]`.
fn without_sweep(text: &str) -> String {
    let Some((key, below)) = written(text) else { return text.to_owned() };
    let spans = below.into_iter().chain([key]);
    let lines: Vec<_> = spans
        .map(|span| line_of(text, span.start)..=line_of(text, span.end.saturating_sub(1)))
        .collect();
    let is_swept = |line: usize| lines.iter().any(|lines| lines.contains(&line));
    let kept = text.lines().enumerate();
    kept.map(|(at, line)| if is_swept(at + 1) { "\n".to_owned() } else { format!("{line}\n") })
        .collect()
}

/// Every combination of indices into lists of these `sizes`; the last varies fastest.
fn combinations(sizes: &[usize]) -> impl Iterator<Item = Vec<usize>> {
    (0..sizes.iter().product()).map(move |mut number: usize| {
        let mut at = vec![0; sizes.len()];
        for (position, size) in at.iter_mut().zip(sizes).rev() {
            *position = number % size;
            number /= size;
        }
        at
    })
}

/// The scenario with each axis at its index in `at`. Lines in error messages refer to the changed text.
fn expand<S>(
    base: &Table,
    axes: &[SweepAxis],
    at: &[usize],
    source: &Source<'_, S>,
) -> Result<S, ScenarioError> {
    let mut table = Value::Table(base.clone());
    for (axis, &position) in axes.iter().zip(at) {
        let refuse = |why| ScenarioError::meaning(source.path, axis.line, why);
        let steps = steps(&axis.path).map_err(refuse)?;
        put(&mut table, &steps, "", &axis.values[position]).map_err(refuse)?;
    }
    let text = toml::to_string(&table)
        .map_err(|error| ScenarioError::form(source.path, 1, error.to_string()))?;
    (source.read)(&text)
}

/// Converts `error`, from the values `at`, to one that the author of the file can use: with the line and the field at fault.
fn blame<S>(
    error: ScenarioError,
    base: &Table,
    axes: &[SweepAxis],
    at: &[usize],
    source: &Source<'_, S>,
) -> ScenarioError {
    let same = |other: &ScenarioError| other.message() == error.message();
    // The file would be refused without the sweep as well: that error has the right line.
    if let Err(unswept) = (source.read)(&without_sweep(source.text))
        && same(&unswept)
    {
        return unswept;
    }
    let told: Vec<usize> = (0..axes.len())
        .filter(|&index| {
            let alone = expand(base, &axes[index..=index], &at[index..=index], source);
            alone.is_err_and(|alone| same(&alone))
        })
        .collect();
    let told = if told.len() == 1 { told } else { (0..axes.len()).collect() };
    let Some(&first) = told.first() else {
        return error;
    };
    let values: Vec<String> = told
        .iter()
        .map(|&index| format!("\"{}\" = {}", axes[index].path, axes[index].values[at[index]]))
        .collect();
    let message = format!("[sweep] with {}: {}", values.join(", "), error.message());
    ScenarioError::meaning(source.path, axes[first].line, message)
}

fn axes(written: &Value, path: &Path, text: &str) -> Result<Vec<SweepAxis>, ScenarioError> {
    let (file, spans) = (path, DeTable::parse(text).expect("this text was parsed before"));
    let mut keys = spans.get_ref().iter().filter(|(key, _)| key.get_ref() == "sweep");
    let (key, value) = keys.next().expect("the same text has the same keys");
    let sweep_line = line_of(text, key.span().start);
    let mut found = Vec::new();
    flatten("", key.span().start, value.get_ref(), written, &mut found);
    // A table's entries are sorted by name; restores the file's order.
    found.sort_by_key(|(start, ..)| *start);
    if found.is_empty() {
        let message = "[sweep] is empty: a sweep over nothing, expected lists of values, as `\"host.cores\" = [1, 2]`";
        return Err(ScenarioError::meaning(file, sweep_line, message.to_owned()));
    }
    let paths: Vec<String> = found.iter().map(|(_, path, _)| path.clone()).collect();
    let axis = |(start, path, written): (usize, String, &Value)| {
        let line = line_of(text, start);
        let refuse = |why: String| {
            Err(ScenarioError::meaning(file, line, format!("[sweep] \"{path}\" {why}")))
        };
        let Value::Array(values) = written else {
            return refuse(format!("is {written}, expected a list of values, as [{written}]"));
        };
        if values.is_empty() {
            return refuse("is []: a sweep over nothing, expected at least one value".to_owned());
        }
        if let Some(twice) = (1..values.len()).find(|&at| values[..at].contains(&values[at])) {
            return refuse(format!("has {} twice, expected each value once", values[twice]));
        }
        if matches!(path.as_str(), "name" | "description" | "variant.name") {
            return refuse(
                "changes nothing but a name, expected a field that a run depends on".to_owned(),
            );
        }
        if paths.iter().filter(|other| **other == path).count() > 1 {
            return refuse("is there twice, expected one list of values".to_owned());
        }
        if path == "kind" {
            return refuse("cannot be swept: a sweep is of one kind".to_owned());
        }
        if let Err(why) = steps(&path) {
            return refuse(why);
        }
        Ok(SweepAxis { path, values: values.clone(), line })
    };
    found.into_iter().map(axis).collect()
}

/// The axes below `path`, each with the start of its key. `host.cores = []` without quotes is a table in a table.
fn flatten<'a>(
    path: &str,
    start: usize,
    spans: &DeValue<'_>,
    value: &'a Value,
    found: &mut Vec<(usize, String, &'a Value)>,
) {
    let (DeValue::Table(spans), Value::Table(table)) = (spans, value) else {
        found.push((start, path.to_owned(), value));
        return;
    };
    for (key, spans) in spans {
        let name: &str = key.get_ref();
        let path = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        flatten(&path, key.span().start, spans.get_ref(), &table[name], found);
    }
}

/// A step of a path: into a field and, if that is a list of tables, into the one with a name.
#[derive(Debug, PartialEq, Eq)]
struct Step<'a> {
    field: &'a str,
    named: Option<&'a str>,
}

/// Splits `variant[a].prestage` into steps.
fn steps(path: &str) -> Result<Vec<Step<'_>>, String> {
    let wrong = || {
        "is no path, expected fields with dots between, as host.cores, variant.prestage or \
         variant[name of one].prestage"
            .to_owned()
    };
    let mut steps = Vec::new();
    let mut rest = path;
    loop {
        let end = rest.find(['.', '[']).unwrap_or(rest.len());
        let (field, after) = rest.split_at(end);
        if field.is_empty() {
            return Err(wrong());
        }
        let (named, after) = match after.strip_prefix('[') {
            Some(after) => {
                let (named, after) = after.split_once(']').ok_or_else(wrong)?;
                (Some(named), after)
            }
            None => (None, after),
        };
        steps.push(Step { field, named });
        if after.is_empty() {
            return Ok(steps);
        }
        rest = after.strip_prefix('.').ok_or_else(wrong)?;
    }
}

/// Puts `value` at a path, as an axis with this path does.
///
/// # Errors
/// No such path leads into the file.
pub fn put_at(into: &mut Value, path: &str, value: &Value) -> Result<(), String> {
    put(into, &steps(path)?, "", value)
}

/// Puts `value` where `steps` lead from `into`, which is at `path`; creates missing tables on the way.
fn put(into: &mut Value, steps: &[Step<'_>], path: &str, value: &Value) -> Result<(), String> {
    let Some((step, rest)) = steps.split_first() else {
        *into = value.clone();
        return Ok(());
    };
    let Value::Table(table) = into else {
        return Err(format!("`{path}` is {into}, expected a table with `{}` in it", step.field));
    };
    let path =
        if path.is_empty() { step.field.to_owned() } else { format!("{path}.{}", step.field) };
    let empty = || Value::Table(Table::new());
    let next = table.entry(step.field.to_owned()).or_insert_with(empty);
    let Value::Array(list) = next else {
        return match step.named {
            Some(name) => Err(format!("`{path}[{name}]`, but `{path}` is not a list of tables")),
            None => put(next, rest, &path, value),
        };
    };
    if rest.is_empty() && step.named.is_none() {
        *next = value.clone();
        return Ok(());
    }
    let name_of = |item: &Value| item.get("name").and_then(Value::as_str).map(str::to_owned);
    let names: Vec<String> = list.iter().filter_map(name_of).collect();
    let mut any = false;
    for item in list {
        if step.named.is_none_or(|named| name_of(item).as_deref() == Some(named)) {
            any = true;
            put(item, rest, &path, value)?;
        }
    }
    match step.named {
        Some(named) if !any => Err(format!(
            "no `{path}` is named \"{named}\", expected one of \"{}\"",
            names.join("\", \"")
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;

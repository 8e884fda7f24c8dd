use std::collections::BTreeSet;
use std::path::Path;

use toml::{Table, Value};
use wave_sched::policies;

use super::*;
use wave_scenario::{ScenarioError, Source};

/// Fails if a parser has a field that the reference lacks.
#[test]
fn every_parsed_field_is_described() {
    for written in written() {
        let parsed: BTreeSet<String> = (written.fields)().into_keys().collect();
        let described: BTreeSet<String> =
            written.rows.iter().map(|row| row.path.to_owned()).collect();
        assert_eq!(
            parsed, described,
            "{:?}: parsed on the left, described on the right",
            written.kinds
        );
        assert_eq!(described.len(), written.rows.len(), "{:?}: a field twice", written.kinds);
    }
}

#[test]
fn every_runnable_kind_is_described() {
    let described: Vec<&str> = written().flat_map(|form| form.kinds).copied().collect();
    let run = crate::experiment::kinds();
    assert_eq!(described.iter().collect::<BTreeSet<_>>(), run.iter().collect());
}

#[test]
fn every_field_has_a_default_or_is_required_and_every_number_has_a_range() {
    for form in forms() {
        for field in form.fields {
            let at = format!("{:?} {}", form.kinds, field.path);
            let is_table = ["table", "tables"].contains(&field.kind.as_str());
            assert!(is_table || field.default != Some(String::new()), "{at} has no default");
            let is_number = field.kind.contains("number");
            assert!(!is_number || !field.range.is_empty(), "{at} has no range");
            assert!(field.meaning.ends_with('.'), "{at}: the meaning is not a sentence");
        }
    }
}

/// A TOML value that the example may have at a field, from `text`.
fn value(text: &str) -> Option<Value> {
    toml::from_str::<Table>(&format!("value = {text}")).ok()?.remove("value")
}

/// Results of parsing each example with `value` at the field.
fn with(written: &Written, field: &Field, value: &Value) -> Vec<Result<(), ScenarioError>> {
    let put = |example: &str| {
        let mut table = Value::Table(toml::from_str(example).unwrap());
        wave_scenario::put_at(&mut table, field.path, value).unwrap();
        let text = toml::to_string(&table).unwrap();
        (written.check)(Source::new(Path::new("x.toml"), &text, policies::NAMES))
    };
    written.files().map(put).collect()
}

#[test]
fn every_default_of_the_reference_is_accepted() {
    let mut count = 0;
    for written in written() {
        for field in written.form().fields {
            let Some(value) = field.default.as_deref().and_then(value) else { continue };
            // `run.refine`, for example, has no meaning with some kinds.
            let taken = with(written, &field, &value);
            let told = || format!("{:?} {} = {value}: {taken:?}", written.kinds, field.path);
            assert!(taken.iter().any(Result::is_ok), "{}", told());
            count += 1;
        }
    }
    assert!(count > 50, "{count} defaults");
}

#[test]
fn values_outside_a_range_of_the_reference_are_refused() {
    let mut count = 0;
    for written in written() {
        for field in written.form().fields {
            let Some((least, most)) = field.range.split_once(" to ") else { continue };
            let (Ok(least), Ok(most)) = (least.parse::<f64>(), most.parse::<f64>()) else {
                continue;
            };
            let is_whole = field.kind.contains("whole");
            let number = |number: f64| match is_whole {
                true => Value::Integer(number as i64),
                false => Value::Float(number),
            };
            let below = if least > 0.0 && !is_whole { least / 2.0 } else { least - 1.0 };
            for outside in [below, most + most.max(1.0)] {
                let outside = match field.kind.starts_with("list of") {
                    true => Value::Array(vec![number(outside)]),
                    false => number(outside),
                };
                let taken = with(written, &field, &outside);
                let at = format!("{:?} {} = {outside}", written.kinds, field.path);
                assert!(taken.iter().all(Result::is_err), "{at} is accepted");
                count += 1;
            }
        }
    }
    assert!(count > 100, "{count} values");
}

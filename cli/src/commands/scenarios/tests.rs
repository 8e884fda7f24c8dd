use std::collections::BTreeSet;
use std::path::Path;

use toml::{Table, Value};

use super::*;
use crate::commands::kinds;
use wave_experiments::kinds::{Host, Wanted};
use wave_experiments::sweep::put_at;
use wave_scenario::ScenarioError;

#[test]
fn an_unknown_kind_is_refused() {
    let args = ScenariosArgs { kind: Some("lod".to_owned()), json: true };
    assert_eq!(execute(&args), ExitCode::from(2));
}

#[test]
fn shipped_experiments_are_accepted_and_named_after_their_files() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut count = 0;
    for file in files.filter(|file| file.extension().is_some_and(|end| end == "toml")) {
        // Scenarios that schedule requests may have a [sweep]: a test of wave-experiments reads those.
        if std::fs::read_to_string(&file).unwrap().contains("\n[sweep]") {
            continue;
        }
        let experiment = kinds().load(&file, None).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(Some(experiment.name()), file.file_stem().and_then(|stem| stem.to_str()));
        count += 1;
    }
    assert!(count >= 6, "only {count} experiments");
}

#[test]
fn a_kind_that_schedules_no_threads_takes_no_agent_and_runs_where_its_form_says() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios");
    let file = folder.join("memory-bakeoff.toml");
    let refusal = kinds().load(&file, Some(Path::new("x"))).err().expect("it is refused");
    let expected = "--agent is for scenarios that schedule threads";
    assert!(refusal.to_string().ends_with(expected), "{refusal}");
    let wanted = Wanted { host: Host::Sim, quiet: true, live: false, record: None };
    assert!(kinds().load(&file, None).unwrap().check(&wanted).is_err());
}

#[test]
fn every_kind_and_field_is_described_once() {
    let names: Vec<&str> = forms().iter().flat_map(|form| form.kinds).copied().collect();
    let distinct: BTreeSet<&str> = names.iter().copied().collect();
    assert_eq!(names.len(), distinct.len(), "{names:?}");
    for form in forms() {
        assert_eq!(form.examples.len(), form.kinds.len().max(1), "{:?}", form.kinds);
        let paths: BTreeSet<&str> = form.fields.iter().map(|field| &*field.path).collect();
        assert_eq!(paths.len(), form.fields.len(), "{:?}: a field twice", form.kinds);
    }
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

/// Results of reading each example of the form with `value` at the field.
fn with(form: &Form, field: &Field, value: &Value) -> Vec<Result<(), ScenarioError>> {
    let put = |example: &&str| {
        let mut table = Value::Table(toml::from_str(example).unwrap());
        put_at(&mut table, &field.path, value).unwrap();
        let text = toml::to_string(&table).unwrap();
        let path = Path::new("x.toml");
        match form.kinds {
            [] => enclaves::parse(path, &text).map(drop),
            _ => kinds().read(path, &text, None).map(drop),
        }
    };
    form.examples.iter().chain(form.kinds.contains(&"load").then_some(&SEARCH)).map(put).collect()
}

/// Its fields are in no example.
const SEARCH: &str =
    include_str!("../../../../experiments/src/kinds/requests/examples/search.toml");

#[test]
fn every_default_of_the_reference_is_accepted() {
    let mut count = 0;
    for form in forms() {
        for field in &form.fields {
            let Some(value) = field.default.as_deref().and_then(value) else { continue };
            // `run.refine`, for example, has no meaning with some kinds.
            let taken = with(&form, field, &value);
            let told = || format!("{:?} {} = {value}: {taken:?}", form.kinds, field.path);
            assert!(taken.iter().any(Result::is_ok), "{}", told());
            count += 1;
        }
    }
    assert!(count > 50, "{count} defaults");
}

#[test]
fn values_outside_a_range_of_the_reference_are_refused() {
    let mut count = 0;
    for form in forms() {
        for field in &form.fields {
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
                let taken = with(&form, field, &outside);
                let at = format!("{:?} {} = {outside}", form.kinds, field.path);
                assert!(taken.iter().all(Result::is_err), "{at} is accepted");
                count += 1;
            }
        }
    }
    assert!(count > 100, "{count} values");
}

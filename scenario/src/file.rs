//! Reads files: fields and their types, then the range of each number.
//!
//! A type that derives `Deserialize` and [`JsonSchema`] declares a file's fields once (docs/adr/0108): its names, types, defaults
//! and `#[schemars(range(...))]` are what is read, what is refused, and what the reference says ([`crate::reference`]).

use std::any::TypeId;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use schemars::{JsonSchema, generate::SchemaSettings};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value as Json};
use serde_path_to_error::{Path as FieldPath, Segment};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use wave_process::words::plain;

use super::error::{ScenarioError, line_of};

/// Maximum number of digits of a value shown.
const DIGITS_MAX: usize = 24;

/// Text of a file, parsed once, and its path.
#[derive(Debug)]
pub struct Source<'a> {
    pub path: &'a Path,
    pub text: &'a str,
    table: Result<Spanned<DeTable<'a>>, toml::de::Error>,
}

impl<'a> Source<'a> {
    pub fn new(path: &'a Path, text: &'a str) -> Self {
        Source { path, text, table: DeTable::parse(text) }
    }

    /// Reads all fields, and checks the ranges of numbers.
    ///
    /// # Errors
    /// An unknown or missing field, a value of another type or out of its range.
    pub fn read<T: DeserializeOwned + JsonSchema + 'static>(&self) -> Result<T, ScenarioError> {
        let refuse = |error: &toml::de::Error, field: String| {
            let line = error.span().map_or(1, |span| line_of(self.text, span.start));
            let message = error.message();
            // The message itself names an unknown field, but not the field of a bad value.
            let message = match field.as_str() {
                "" => plain(message, "a table"),
                _ if message.starts_with("unknown field") => plain(message, "a table"),
                _ => format!("`{field}`: {}", plain(message, "a table")),
            };
            ScenarioError::form(self.path, line, message)
        };
        let table = self.table.as_ref().map_err(|error| refuse(error, String::new()))?;
        let read = serde_path_to_error::deserialize(toml::Deserializer::from(table.clone()))
            .map_err(|error| refuse(error.inner(), field_name(error.path())))?;
        self.in_ranges(&schema_of::<T>(), table.get_ref(), "")?;
        Ok(read)
    }

    /// Refuses the value at `at`, such as `variant[1].cores`.
    pub fn refuse(&self, at: &str, message: impl Into<String>) -> ScenarioError {
        let start = self.span_at(at).1.start;
        ScenarioError::meaning(self.path, line_of(self.text, start), message.into())
    }

    /// Refuses the first of these fields that the file has; `why` follows its name.
    pub fn without(&self, fields: &[&str], why: &str) -> Result<(), ScenarioError> {
        match fields.iter().find(|field| self.has(field)) {
            Some(field) => {
                let name: String = outside_brackets(field);
                Err(self.refuse(field, format!("`{name}` {why}")))
            }
            None => Ok(()),
        }
    }

    /// Whether the file has a value at this path.
    pub fn has(&self, at: &str) -> bool {
        self.span_at(at).0
    }

    /// Whether there is a value at the path, and the range of the last part of the path that exists.
    fn span_at(&self, path: &str) -> (bool, Range<usize>) {
        let Ok(table) = &self.table else { return (false, 0..0) };
        let (mut span, mut value): (_, Option<&DeValue<'_>>) = (0..0, None);
        for step in path.split(['.', '[']) {
            let next = match (value, step.strip_suffix(']')) {
                (None, _) => table.get_ref().get(step),
                (Some(DeValue::Table(table)), None) => table.get(step),
                (Some(DeValue::Array(list)), Some(index)) => {
                    index.parse().ok().and_then(|index: usize| list.get(index))
                }
                _ => None,
            };
            let Some(next) = next else { return (false, span) };
            (span, value) = (next.span(), Some(next.get_ref()));
        }
        (true, span)
    }

    /// Checks the numbers in `table`, which is called `name` in messages.
    fn in_ranges(
        &self,
        schema: &Map<String, Json>,
        table: &DeTable<'_>,
        name: &str,
    ) -> Result<(), ScenarioError> {
        table.iter().try_for_each(|(field, value)| {
            let field: &str = field.get_ref();
            let Some(schema) = property(schema, field) else { return Ok(()) };
            let name = if name.is_empty() { field.to_owned() } else { format!("{name}.{field}") };
            self.in_range(schema, value, &name)
        })
    }

    /// The same of one value.
    fn in_range(
        &self,
        schema: &Map<String, Json>,
        value: &Spanned<DeValue<'_>>,
        name: &str,
    ) -> Result<(), ScenarioError> {
        let refuse = |why: String| {
            let line = line_of(self.text, value.span().start);
            Err(ScenarioError::meaning(self.path, line, why))
        };
        let (number, mut written) = match value.get_ref() {
            // serde takes a list of values for a table's fields, and a table for an enumeration's name: nobody means these.
            DeValue::Array(_) if schema.contains_key("properties") => {
                return refuse(format!("`{name}` is a list, expected a table [{name}]"));
            }
            DeValue::Table(_) if !schema.contains_key("properties") => {
                return refuse(format!("`{name}` is a table, expected a value"));
            }
            DeValue::Table(table) => return self.in_ranges(schema, table, name),
            DeValue::Array(list) => {
                let most = schema.get("maxItems").and_then(Json::as_u64);
                if let Some(most) = most.filter(|most| list.len() as u64 > *most) {
                    let count = list.len();
                    return refuse(format!("`{name}` has {count} values, expected {most}"));
                }
                let Some(of) = schema.get("items").and_then(Json::as_object) else { return Ok(()) };
                return list.iter().try_for_each(|item| self.in_range(of, item, name));
            }
            DeValue::Integer(digits) => {
                let whole = i128::from_str_radix(digits.as_str(), digits.radix());
                let whole = whole.unwrap_or(i128::MAX);
                (whole as f64, whole.to_string())
            }
            DeValue::Float(digits) => {
                let number = digits.as_str().parse().unwrap_or(f64::NAN);
                (number, number.to_string())
            }
            _ => return Ok(()),
        };
        let limit = |name: &str| schema.get(name).and_then(Json::as_f64);
        let [least, most] = [limit("minimum"), limit("maximum")];
        let is_within =
            least.is_none_or(|least| number >= least) && most.is_none_or(|most| number <= most);
        if is_within && !number.is_nan() {
            return Ok(());
        }
        if written.len() > DIGITS_MAX {
            written.truncate(DIGITS_MAX);
            written.push_str("...");
        }
        let range = range(schema);
        let expected = if range.is_empty() { "a number" } else { &range };
        refuse(format!("`{name}` is {written}, expected {expected}"))
    }
}

/// `variant[1].cores` without the index.
fn outside_brackets(path: &str) -> String {
    path.split('[').map(|part| part.split_once(']').map_or(part, |(_, after)| after)).collect()
}

/// A schema, as an object of JSON.
type Schema = Arc<Map<String, Json>>;

/// The schema of a type, without references to others.
pub(crate) fn schema_of<T: JsonSchema + 'static>() -> Schema {
    static KNOWN: Mutex<BTreeMap<TypeId, Schema>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let make = || {
        let settings =
            SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
        let schema = settings.into_generator().into_root_schema_for::<T>();
        Arc::new(schema.as_object().cloned().unwrap_or_default())
    };
    Arc::clone(known.entry(TypeId::of::<T>()).or_insert_with(make))
}

/// The schema of a field of a table; of an optional one, that of its value.
fn property<'a>(schema: &'a Map<String, Json>, field: &str) -> Option<&'a Map<String, Json>> {
    Some(of_value(schema.get("properties")?.get(field)?.as_object()?))
}

/// The schema of the value, if there is one.
pub(crate) fn of_value(schema: &Map<String, Json>) -> &Map<String, Json> {
    let any = schema.get("anyOf").and_then(Json::as_array);
    any.and_then(|any| any.first()).and_then(Json::as_object).unwrap_or(schema)
}

/// The range of a number, in words; empty without one. A limit that only its Rust type sets is none.
pub(crate) fn range(schema: &Map<String, Json>) -> String {
    let limit = |name: &str| schema.get(name).and_then(Json::as_f64);
    match (limit("minimum"), limit("maximum")) {
        (Some(least), Some(most)) => format!("{least} to {most}"),
        (Some(least), None) if least > 0.0 => format!("{least} or more"),
        _ => String::new(),
    }
}

/// Path of a field in the file, like `variant[1].cores`.
fn field_name(path: &FieldPath) -> String {
    let mut name = String::new();
    for segment in path {
        match segment {
            Segment::Seq { index } => name.push_str(&format!("[{index}]")),
            Segment::Map { key } | Segment::Enum { variant: key } => {
                if !name.is_empty() {
                    name.push('.');
                }
                name.push_str(key);
            }
            Segment::Unknown => {}
        }
    }
    name
}

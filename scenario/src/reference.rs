//! Every field of a file: type, default, range and meaning, from the type that reads it (docs/adr/0108).
//!
//! Three of a schema's keys are our own: `x-default` and `x-range` state in words what depends on other fields, and `x-required`
//! marks a field that only a check requires.

use schemars::JsonSchema;
use serde_json::{Map, Value};

use super::file::{of_value, range, schema_of};

/// A field of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its path: `run.seconds`; `variant.cores` in each table of a list `[[variant]]`.
    pub path: String,
    /// Type, in words.
    pub kind: String,
    /// None where the field is required; empty where an optional field has none.
    pub default: Option<String>,
    /// Values allowed, in words; empty where the type says it all.
    pub range: String,
    pub meaning: String,
}

/// The fields of a file that `T` reads, in the order of their declaration.
pub fn fields_of<T: JsonSchema + 'static>() -> Vec<Field> {
    let mut fields = Vec::new();
    add(&schema_of::<T>(), "", &mut fields);
    fields
}

/// Adds the fields of a table, which is at `path`.
fn add(table: &Map<String, Value>, path: &str, fields: &mut Vec<Field>) {
    let required = table.get("required").and_then(Value::as_array);
    let properties = table.get("properties").and_then(Value::as_object).into_iter().flatten();
    for (name, schema) in properties {
        let Some(schema) = schema.as_object() else { continue };
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let value = of_value(schema);
        let words = |key: &str| schema.get(key).and_then(Value::as_str).map(str::to_owned);
        let is_required = schema.contains_key("x-required")
            || required.is_some_and(|names| names.iter().any(|other| other == name));
        let item = value.get("items").and_then(Value::as_object);
        let default = || words("x-default").or_else(|| default(schema)).unwrap_or_default();
        let of_type = || range(item.unwrap_or(value));
        let any = if is_number(value) { "any" } else { "" };
        let range = words("x-range").unwrap_or_else(of_type);
        fields.push(Field {
            path: path.clone(),
            kind: kind(value),
            default: (!is_required).then(default),
            range: if range.is_empty() { any.to_owned() } else { range },
            meaning: meaning(schema, value),
        });
        add(item.unwrap_or(value), &path, fields);
    }
}

fn is_number(schema: &Map<String, Value>) -> bool {
    ["integer", "number"].iter().any(|name| is(schema, name))
}

/// Whether the value has this type, which may be one of two where it is optional.
fn is(schema: &Map<String, Value>, name: &str) -> bool {
    match schema.get("type") {
        Some(Value::Array(names)) => names.iter().any(|other| other == name),
        Some(other) => other == name,
        None => false,
    }
}

/// Names of an enumeration, each with its meaning, which may be empty.
fn names(schema: &Map<String, Value>) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    let variants = schema.get("oneOf").and_then(Value::as_array);
    let own = std::iter::once(schema);
    for schema in own.chain(variants.into_iter().flatten().filter_map(Value::as_object)) {
        let meaning = schema.get("description").and_then(Value::as_str).unwrap_or_default();
        if let Some(name) = schema.get("const").and_then(Value::as_str) {
            found.push((name, meaning));
        }
        let names = schema.get("enum").and_then(Value::as_array).into_iter().flatten();
        found.extend(names.filter_map(Value::as_str).map(|name| (name, "")));
    }
    found
}

/// The type in words.
fn kind(schema: &Map<String, Value>) -> String {
    let names: Vec<String> = names(schema).iter().map(|(name, _)| format!("`{name}`")).collect();
    if !names.is_empty() {
        return format!("one of {}", names.join(", "));
    }
    if let Some(item) = schema.get("items").and_then(Value::as_object) {
        let count = schema.get("minItems").filter(|count| schema.get("maxItems") == Some(count));
        let count = count.map_or_else(String::new, |count| format!("{count} "));
        return match kind(item).as_str() {
            "table" => format!("{count}tables"),
            item @ ("text" | "whole number" | "number") => format!("list of {count}{item}s"),
            item => format!("list of {item}"),
        };
    }
    let known = [
        ("object", "table"),
        ("boolean", "true or false"),
        ("integer", "whole number"),
        ("number", "number"),
    ];
    let found = known.into_iter().find(|(name, _)| is(schema, name));
    found.map_or("text", |(_, words)| words).to_owned()
}

/// The default as a value of TOML; None for null, a table or an empty list.
fn default(schema: &Map<String, Value>) -> Option<String> {
    match schema.get("default")? {
        Value::Null | Value::Object(_) => None,
        Value::Array(items) if items.is_empty() => None,
        // As the author of a file would write it: 1, not 1.0.
        Value::Number(number) => number.as_f64().map(|number| number.to_string()),
        other => Some(other.to_string()),
    }
}

/// The comment of a field or, without one, of its type; then the meaning of each name of an enumeration.
fn meaning(field: &Map<String, Value>, value: &Map<String, Value>) -> String {
    let comment = field.get("description").and_then(Value::as_str).unwrap_or_default();
    let names = names(value).into_iter().filter(|(_, meaning)| !meaning.is_empty());
    let names: Vec<String> = names
        .map(|(name, meaning)| {
            let meaning = meaning.trim_end_matches('.');
            let mut letters = meaning.chars();
            // A sentence's first letter, unless the word is a name.
            let is_name = meaning.chars().nth(1).is_some_and(char::is_uppercase);
            let first = letters.next().map(|letter| match is_name {
                true => letter.to_string(),
                false => letter.to_lowercase().to_string(),
            });
            format!("`{name}`: {}{}", first.unwrap_or_default(), letters.as_str())
        })
        .collect();
    let comment = comment.replace('\n', " ");
    match names.is_empty() {
        true => comment,
        false => format!("{comment} {}.", names.join("; ")).trim_start().to_owned(),
    }
}

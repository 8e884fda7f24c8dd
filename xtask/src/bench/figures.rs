//! The benches of `wave bench`, and their figures, as they declare them (`wave bench list --json`).

use std::path::Path;
use std::process::{Command, Stdio};

use serde::Deserialize;
use serde_json::Value;

use wave_compare::Better::{self, Higher, Lower};

/// The figure that is counted from outside, if the machine has counters.
pub const COUNTED: &str = "instructions_per_switch";

/// A bench of `wave bench`.
#[derive(Clone, Debug, Deserialize)]
pub struct Bench {
    pub name: String,
    /// Arguments that make a run short, if the bench has any.
    pub short: Vec<String>,
    pub figures: Vec<Figure>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Figure {
    /// Key in the bench's JSON object; dots separate the keys of nested objects.
    pub key: String,
    /// Name in docs/measured.md, if it is there.
    pub label: Option<String>,
    /// Whether higher or lower is better, if commits are compared by it.
    #[serde(deserialize_with = "better")]
    pub better: Option<Better>,
    /// Whether it is a peer's figure, which is not judged.
    pub is_peer: bool,
}

fn better<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Better>, D::Error> {
    let name: Option<String> = Deserialize::deserialize(deserializer)?;
    match name.as_deref() {
        None => Ok(None),
        Some("higher") => Ok(Some(Higher)),
        Some("lower") => Ok(Some(Lower)),
        Some(other) => Err(serde::de::Error::custom(format!("`{other}` is not better or worse"))),
    }
}

/// The benches of the program `wave`.
pub fn of_program(wave: &Path) -> Result<Vec<Bench>, String> {
    #[derive(Deserialize)]
    struct List {
        benches: Vec<Bench>,
    }
    let mut command = Command::new(wave);
    let output = command.args(["bench", "list", "--json"]).stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("{}: {error}", wave.display()))?;
    if !output.status.success() {
        return Err(format!("{} bench list failed ({})", wave.display(), output.status));
    }
    let list: Result<List, _> = serde_json::from_slice(&output.stdout);
    list.map(|list| list.benches).map_err(|error| format!("{} bench list: {error}", wave.display()))
}

impl Bench {
    /// The figures by which commits are compared.
    pub fn compared(&self) -> impl Iterator<Item = (&Figure, Better)> {
        self.figures.iter().filter_map(|figure| Some((figure, figure.better?)))
    }

    /// Whether instructions are counted during a run.
    pub fn is_counted(&self) -> bool {
        self.figures.iter().any(|figure| figure.key == COUNTED)
    }

    #[cfg(test)]
    pub fn switch() -> Bench {
        let list = r#"{ "name": "switch", "short": [], "figures": [
            { "key": "yield_ns.p50", "label": "a yield", "better": "lower", "is_peer": false },
            { "key": "instructions_per_switch", "label": null, "better": "lower", "is_peer": false },
            { "key": "futex_handoff_ns.p50", "label": null, "better": "lower", "is_peer": true }
        ] }"#;
        serde_json::from_str(list).unwrap()
    }
}

impl Figure {
    /// The figure's number, if the bench prints one; 0 counts as a number.
    pub fn of(&self, printed: &Value) -> Option<f64> {
        let found = self.key.split('.').try_fold(printed, |value, key| value.get(key));
        found?.as_f64().filter(|number| number.is_finite() && *number >= 0.0)
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn a_figure_is_found_by_its_path() {
        let printed =
            serde_json::json!({ "a": { "p50": 2.5 }, "b": "text", "c": 0, "d": 7, "e": -1 });
        for (key, expected) in [
            ("a.p50", Some(2.5)),
            ("d", Some(7.0)),
            ("a", None),
            ("b", None),
            ("c", Some(0.0)),
            ("e", None),
            ("a.p5", None),
        ] {
            let figure = Figure { key: key.to_owned(), label: None, better: None, is_peer: false };
            assert_eq!(figure.of(&printed), expected, "{key}");
        }
    }
}

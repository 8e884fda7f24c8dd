//! Points that are whole experiments.

use std::path::{Path, PathBuf};

use serde_json::Value;
use wave_terminal::Failure;

use crate::kinds::{Host, Kinds, OwnAgent, Wanted};
use wave_apps::machine::hash;
use wave_scenario::ScenarioError;
use wave_scenario::error::absolute_files;

/// A whole experiment with one combination of values.
#[derive(Debug, Clone, PartialEq)]
pub struct ExperimentRun {
    /// Name of the scenario.
    pub name: String,
    pub description: String,
    /// The simulator if the kind has a simulation, else this machine.
    pub host: Host,
    /// The scenario. Paths of files in it are absolute.
    pub text: String,
    /// A user's program, in place of every agent.
    pub agent: Option<PathBuf>,
    /// Hash of the scenario and of the files that it names, the agent's program included.
    digest: String,
}

impl ExperimentRun {
    /// Reads the scenario in `text`, whose file is `path`.
    pub(super) fn read(
        kinds: &Kinds,
        path: &Path,
        text: &str,
        agent: Option<&OwnAgent>,
    ) -> Result<ExperimentRun, ScenarioError> {
        let experiment = kinds.read(path, text, agent)?;
        let refuse = |failure: Failure| ScenarioError::meaning(path, 1, failure.to_string());
        let wanted = |host| Wanted { host, quiet: true, live: false, record: None };
        let is_simulated = experiment.check(&wanted(Host::Sim)).is_ok();
        let host = if is_simulated { Host::Sim } else { Host::User };
        experiment.check(&wanted(host)).map_err(refuse)?;
        let mut table: toml::Table = toml::from_str(text)
            .map_err(|error| ScenarioError::form(path, 1, error.message().to_owned()))?;
        let description = table.get("description").and_then(toml::Value::as_str);
        let description = description.unwrap_or_default().to_owned();
        absolute_files(path, &mut table);
        Ok(ExperimentRun {
            name: experiment.name().to_owned(),
            description,
            host,
            text: table.to_string(),
            agent: agent.map(|own| own.program().to_owned()),
            digest: experiment.digest().map_err(refuse)?,
        })
    }

    /// Hash of what the result depends on, in 16 hexadecimal digits.
    pub(super) fn id(&self, version: &str) -> String {
        hash(format!("{} {} {version}", self.digest, self.host.name()).as_bytes())
    }

    /// The object that a run has printed, without the parts that tell when and where something was simulated.
    pub(super) fn result(&self, mut printed: Value) -> Value {
        if let (Host::Sim, Some(object)) = (self.host, printed.as_object_mut()) {
            object.retain(|name, _| !["started", "machine"].contains(&name.as_str()));
        }
        printed
    }
}

/// The numbers in an object, by their paths, without those in lists: `resident_reduction`, `variants[agent].saturation_per_second`.
/// Only tables with a name are followed into lists.
pub(super) fn figures(result: &Value) -> Vec<(String, f64)> {
    let mut found = Vec::new();
    let mut later = Vec::new();
    collect("", result, &mut found, &mut later);
    // An experiment's own figures come before those of its variants.
    found.append(&mut later);
    found
}

fn collect(
    path: &str,
    value: &Value,
    found: &mut Vec<(String, f64)>,
    later: &mut Vec<(String, f64)>,
) {
    match value {
        Value::Number(number) => {
            found.extend(number.as_f64().map(|number| (path.to_owned(), number)))
        }
        Value::Object(fields) => {
            for (key, value) in fields {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                collect(&path, value, found, later);
            }
        }
        Value::Array(items) => {
            let named = items.iter().map(|item| Some((item.get("name")?.as_str()?, item)));
            for (name, item) in named.collect::<Option<Vec<_>>>().into_iter().flatten() {
                let mut of_item = Vec::new();
                collect(&format!("{path}[{name}]"), item, &mut of_item, later);
                later.append(&mut of_item);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn figures_have_their_paths_and_an_experiments_own_come_first() {
        let result = json!({
            "variants": [{ "name": "agent", "p50_ns": 7, "points": [{ "p50_ns": 1 }], "cpu": { "host": 0.5 } }],
            "text": "3", "none": null, "ratio": 2.5, "list": [1, 2],
        });
        let expected =
            [("ratio", 2.5), ("variants[agent].cpu.host", 0.5), ("variants[agent].p50_ns", 7.0)];
        let mut found = figures(&result);
        assert_eq!(found[0].0, "ratio");
        found.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(found, expected.map(|(path, value)| (path.to_owned(), value)));
    }

    #[test]
    fn every_kind_but_those_of_real_processes_is_simulated() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios");
        let host = |file: &str| {
            let file = folder.join(file);
            let text = std::fs::read_to_string(&file).unwrap();
            ExperimentRun::read(&Kinds::default(), &file, &text, None)
                .unwrap_or_else(|error| panic!("{error}"))
                .host
        };
        for file in ["rocksdb-sol.toml", "rpc-rocksdb.toml", "agent-crash.toml", "enclaves.toml"] {
            assert_eq!(host(file), Host::Sim, "{file}");
        }
        for file in ["udp-outstanding.toml", "mtg-fig2.toml", "preempt-chaos.toml"] {
            assert_eq!(host(file), Host::User, "{file}");
        }
    }
}

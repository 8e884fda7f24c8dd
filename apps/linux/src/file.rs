//! A file of several enclaves.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use wave_core::clock::Nanos;
use wave_linux::sched::Group;
use wave_process::cpus::Cpus;
use wave_sched::policies;

use super::{Part, Work};
use wave_scenario::{ScenarioError, Source};
use wave_terminal::Failure;

/// An example with two enclaves.
pub const EXAMPLE: &str = include_str!("example.toml");

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// Enclaves, each with one of `command`, `pid` and `cgroup`.
    enclave: Vec<Enclave>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Enclave {
    /// Name in results: letters, digits, `-` and `_`, distinct for each enclave.
    name: String,
    /// CPUs of its threads, as `0-3,8`.
    cpus: String,
    /// Policy of its agent, one of `wave policies`.
    #[schemars(extend("x-default" = "\"fifo\""))]
    policy: Option<String>,
    /// Time for which a thread may wait while a core is idle before the host turns the agent out.
    #[schemars(range(min = 1, max = 60_000), extend("x-default" = "20"))]
    patience_ms: Option<u64>,
    /// Program to start, with its arguments.
    #[schemars(extend("x-default" = "none"))]
    command: Option<Vec<String>>,
    /// Running process to schedule, with its children.
    #[schemars(extend("x-default" = "none", "x-range" = "above 0"))]
    pid: Option<i32>,
    /// Folder of a cgroup (v2) whose processes to schedule.
    #[schemars(extend("x-default" = "none"))]
    cgroup: Option<PathBuf>,
}

/// Reads the enclaves that a file describes.
pub fn load(path: &Path) -> Result<Vec<Part>, Failure> {
    let read = std::fs::read_to_string(path);
    let read = read.map_err(|source| ScenarioError::Read { file: path.to_path_buf(), source });
    let parts = read.and_then(|text| parse(path, &text));
    parts.map_err(|error| match error {
        ScenarioError::Form { .. } => Failure::Scenario(format!(
            "{error}; for --host linux a file has a table [[enclave]] for each enclave, as \
             scenarios/kernel/two-enclaves.toml"
        )),
        error => Failure::Scenario(error.to_string()),
    })
}

/// Parses the enclaves in `text`; `path` is its source.
pub fn parse(path: &Path, text: &str) -> Result<Vec<Part>, ScenarioError> {
    let source = Source::new(path, text);
    let file: File = source.read()?;
    let mut parts: Vec<Part> = Vec::new();
    for (at, enclave) in file.enclave.into_iter().enumerate() {
        let name = enclave.name.clone();
        let refuse =
            |field: &str, why: String| source.refuse(&format!("enclave[{at}].{field}"), why);
        let part = enclave.part();
        let part =
            part.map_err(|(field, why)| refuse(field, format!("enclave {name:?}: {why}")))?;
        if parts.iter().any(|other| other.name == part.name) {
            return Err(refuse("name", format!("two enclaves are named {name:?}")));
        }
        parts.push(part);
    }
    Ok(parts)
}

impl Enclave {
    /// An error names the field at fault, and the reason.
    fn part(self) -> Result<Part, (&'static str, String)> {
        let letter = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
        if self.name.is_empty() || !self.name.chars().all(letter) {
            let why =
                "a name may have only letters, digits, - and _, because files are named after it";
            return Err(("name", why.into()));
        }
        let work = match (self.command, self.pid, self.cgroup) {
            (Some(words), None, None) if !words.is_empty() => Work::Command(words),
            (None, Some(pid), None) => Work::Group(Group::Process(pid)),
            (None, None, Some(cgroup)) => Work::Group(Group::Cgroup(cgroup)),
            _ => {
                let why = "expected exactly one of command = [\"PROGRAM\", ...], pid and cgroup";
                return Err(("command", why.into()));
            }
        };
        let policy = self.policy.unwrap_or_else(|| "fifo".to_owned());
        policies::check(&policy).map_err(|error| ("policy", error.to_string()))?;
        let cpus: Cpus = self.cpus.parse().map_err(|why| ("cpus", format!("cpus: {why}")))?;
        let patience = self.patience_ms.map(Nanos::from_millis);
        Ok(Part {
            name: Some(self.name),
            work,
            program: None,
            policy,
            device: None,
            cpus: Some(cpus.to_vec()),
            patience,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn example_file_is_accepted() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/kernel/two-enclaves.toml");
        let parts = load(Path::new(file)).unwrap();
        assert_eq!(parts.len(), 2);
        assert!(parts.iter().all(|part| part.cpus.is_some()));
    }

    #[test]
    fn errors_in_an_enclave_file_are_named() {
        let enclave = |rest: &str| format!("[[enclave]]\nname = \"a\"\ncpus = \"0\"\n{rest}\n");
        let good = enclave("pid = 1");
        for (text, why) in [
            (String::new(), "missing field `enclave`"),
            ("name = 1".to_owned(), "unknown field `name`"),
            (enclave("pid = 1\ncommand = [\"true\"]"), "one of command"),
            (enclave("command = []"), "one of command"),
            (enclave("pid = 1\npolicy = \"no\""), "enclave \"a\""),
            (enclave("pid = 1\npatience_ms = 0"), "1 to 60000"),
            (good.replace("\"0\"", "\"x\""), "such as 2-3,8"),
            (good.replace("\"a\"", "\"a/b\""), "letters"),
            (format!("{good}{good}"), "two enclaves are named \"a\""),
        ] {
            let refusal = parse(Path::new("e.toml"), &text).unwrap_err().to_string();
            assert!(refusal.starts_with("e.toml:") && refusal.contains(why), "{text}: {refusal}");
        }
        let second =
            format!("{good}{}", enclave("pid = 2\npolicy = \"no\"").replace("\"a\"", "\"b\""));
        let refusal = parse(Path::new("e.toml"), &second).unwrap_err().to_string();
        assert!(refusal.starts_with("e.toml:9: enclave \"b\": "), "{refusal}");
    }
}

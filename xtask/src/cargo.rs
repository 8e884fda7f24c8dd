//! Runs cargo, and finds the programs that it builds.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// The workspace's folder.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in a workspace")
}

/// Cargo's target folder, by default `target`.
pub fn target_folder() -> PathBuf {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    workspace().join(target)
}

/// A program that `cargo test` builds as well.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// `--workspace`, or another manifest and its target folder; and, for a `bin`, also an example: cargo enables the features
    /// that tests need of other crates only when it builds a test or an example.
    pub flags: &'static [&'static str],
    pub package: &'static str,
    /// `bin`, `example` or `test`.
    pub kind: &'static str,
    pub name: &'static str,
}

/// Builds a program from artifacts that `cargo test` shares, and returns its path.
pub fn built_as_tested(program: Program) -> Result<String, String> {
    let Program { flags, package, kind, name } = program;
    let mut cargo = cargo();
    cargo.args(["build", "--locked"]).args(flags).args([&format!("--{kind}"), name]);
    let is_it = |artifact: &Value| {
        let id = artifact["package_id"].as_str().unwrap_or_default();
        let target = &artifact["target"];
        name_of_package(id) == Some(package) && target["name"] == name && target["kind"][0] == kind
    };
    executable(cargo.stderr(Stdio::piped()), is_it)
}

/// The package's name from its id in cargo's messages: PATH#NAME@VERSION, without NAME if the folder has the same name.
pub fn name_of_package(id: &str) -> Option<&str> {
    let (path, version) = id.rsplit_once('#')?;
    version.split_once('@').map_or_else(|| path.rsplit('/').next(), |(name, _)| Some(name))
}

/// Builds a package's program with the package's own features, and returns its path.
pub fn built(package: &str, arguments: &[&str]) -> Result<String, String> {
    let mut cargo = cargo();
    cargo.args(arguments).args(["--locked", "--package", package]);
    executable(cargo.stderr(Stdio::piped()), |_| true)
}

/// Builds a program of the workspace in `folder`, with cargo's progress on standard error, and returns its path.
pub fn built_in(folder: &Path, package: &str, arguments: &[&str]) -> Result<String, String> {
    let mut cargo = cargo();
    cargo.args(arguments).args(["--locked", "--package", package]).current_dir(folder);
    executable(&mut cargo, |_| true)
}

/// Cargo, without the variables that an outer cargo set for this program.
pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // These variables describe this package: build scripts that read them would run again.
    let of_us = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(of_us) {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// Runs cargo, and returns the path of the last program that it reports and `is_it` accepts.
fn executable(cargo: &mut Command, is_it: impl Fn(&Value) -> bool) -> Result<String, String> {
    let messages = messages(cargo)?;
    let mut programs =
        messages.iter().rev().filter(|message| message["executable"].is_string() && is_it(message));
    let program = programs.next().ok_or("cargo built no such program")?;
    Ok(program["executable"].as_str().unwrap_or_default().to_owned())
}

/// Runs cargo, and returns its messages about what it built.
pub fn messages(cargo: &mut Command) -> Result<Vec<Value>, String> {
    cargo.arg("--message-format=json-render-diagnostics").stdout(Stdio::piped());
    let output = cargo.spawn().and_then(std::process::Child::wait_with_output);
    let output = output.map_err(|error| format!("cargo: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("cargo failed ({}): {}", output.status, said.trim()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

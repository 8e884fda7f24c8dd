//! Programs that cargo builds, and where its output is.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// The folder of the workspace.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in a workspace")
}

/// `target`, wherever cargo's target folder is.
pub fn target_folder() -> PathBuf {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    workspace().join(target)
}

/// A program that `cargo test` builds as well.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// `--workspace`, or another manifest and its target folder; and, for a `bin`, also an example: cargo takes the
    /// features that tests want of other crates only where it builds a test or an example.
    pub flags: &'static [&'static str],
    pub package: &'static str,
    /// `bin`, `example` or `test`.
    pub kind: &'static str,
    pub name: &'static str,
}

/// Builds a program of the parts that `cargo test` has built or will build, and returns its path.
pub fn built_as_tested(program: Program) -> Result<String, String> {
    let Program { flags, package, kind, name } = program;
    let mut cargo = cargo();
    cargo.args(["build", "--locked"]).args(flags).args([&format!("--{kind}"), name]);
    let is_it = |artifact: &Value| {
        // PATH#NAME@VERSION, without the name where the folder has it.
        let id = artifact["package_id"].as_str().unwrap_or_default();
        let (path, version) = id.rsplit_once('#').unwrap_or_default();
        let name_of_package =
            version.split_once('@').map_or_else(|| path.rsplit('/').next(), |(name, _)| Some(name));
        let target = &artifact["target"];
        name_of_package == Some(package) && target["name"] == name && target["kind"][0] == kind
    };
    executable(cargo.stderr(Stdio::piped()), is_it)
}

/// Builds a package's program with its own features, and returns its path.
pub fn built(package: &str, arguments: &[&str]) -> Result<String, String> {
    let mut cargo = cargo();
    cargo.args(arguments).args(["--locked", "--package", package]);
    executable(cargo.stderr(Stdio::piped()), |_| true)
}

/// Builds a program of the workspace in `folder`, while cargo shows on standard error how far it is.
pub fn built_in(folder: &Path, package: &str, arguments: &[&str]) -> Result<String, String> {
    let mut cargo = cargo();
    cargo.args(arguments).args(["--locked", "--package", package]).current_dir(folder);
    executable(&mut cargo, |_| true)
}

/// Cargo, without what an outer cargo told this program.
pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // What the outer cargo tells this program of itself would have build scripts that look at it run again.
    let of_us = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(of_us) {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// Runs cargo, and returns the path of the last program it names that `is_it`.
fn executable(cargo: &mut Command, is_it: impl Fn(&Value) -> bool) -> Result<String, String> {
    cargo.arg("--message-format=json-render-diagnostics").stdout(Stdio::piped());
    let output = cargo.spawn().and_then(std::process::Child::wait_with_output);
    let output = output.map_err(|error| format!("cargo: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("cargo failed ({}): {}", output.status, said.trim()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let messages = text.lines().rev().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut programs =
        messages.filter(|message| message["executable"].is_string() && is_it(message));
    let program = programs.next().ok_or("cargo names no such program")?;
    Ok(program["executable"].as_str().unwrap_or_default().to_owned())
}

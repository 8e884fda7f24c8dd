//! Programs that cargo builds, and where its output is.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

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

/// Builds a program of this workspace, and says where it is.
pub fn built(package: &str, arguments: &[&str]) -> Result<String, String> {
    executable(cargo(package, arguments).stderr(Stdio::piped()))
}

/// Builds a program of the workspace in `folder`, while cargo shows on standard error how far it is.
pub fn built_in(folder: &Path, package: &str, arguments: &[&str]) -> Result<String, String> {
    executable(cargo(package, arguments).current_dir(folder))
}

fn cargo(package: &str, arguments: &[&str]) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(arguments).args(["--locked", "--package", package]);
    cargo.arg("--message-format=json-render-diagnostics").stdout(Stdio::piped());
    // What the outer cargo tells this program of itself would have build scripts that look at it run again.
    let of_us = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(of_us) {
            cargo.env_remove(name);
        }
    }
    cargo
}

fn executable(cargo: &mut Command) -> Result<String, String> {
    let output = cargo.spawn().and_then(std::process::Child::wait_with_output);
    let output = output.map_err(|error| format!("cargo: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("cargo failed ({}): {}", output.status, said.trim()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let path = text.lines().rev().find_map(|line| line.split("\"executable\":\"").nth(1));
    let path = path.and_then(|rest| rest.split('"').next());
    path.map(str::to_owned).ok_or_else(|| "cargo names no program".to_owned())
}

//! `cargo xtask vm`: runs a command as root under a kernel with sched_ext, in a virtual machine
//! that shares this machine's files. Changes to them are discarded.
//!
//! ```text
//! cargo xtask vm fetch [--update]
//! cargo xtask vm run [OPTION]... -- COMMAND [ARGUMENT]...
//! cargo xtask vm test
//! cargo xtask vm icount [--json]
//! ```

mod apt;
mod arguments;
mod commands;
mod guest;
mod icount;
mod initramfs;
mod kernel;
mod logs;
mod machine;
mod modules;
mod nic;
mod outside;
mod relay;
mod scenarios;
mod session;
mod share;
mod shared_boot;
mod sources;
mod suite;
mod tools;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};

use crate::cargo::{Program, built, built_as_tested, target_folder};
use arguments::Request;

pub const USAGE: &str = arguments::USAGE;

/// The exit code after a timeout, as timeout(1) has it.
const EXIT_TIMED_OUT: u8 = 124;
/// The exit code if the machine failed, and not the command in it.
const EXIT_MACHINE: u8 = 125;

/// The program, built as for the workspace's tests.
const WAVE: Program = Program {
    flags: &["--workspace", "--example", "measure"],
    package: "wave",
    kind: "bin",
    name: "wave",
};

/// The program of `wave bench`, which must be beside [`WAVE`].
const WAVE_BENCH: Program = Program { package: "wave-bench", name: "wave-bench", ..WAVE };

/// Why a command has no result.
#[derive(Debug)]
pub enum Error {
    /// The arguments are wrong.
    Usage(String),
    /// This machine lacks something that is needed to boot a virtual one, and it cannot be
    /// installed.
    Unavailable(String),
    /// The virtual machine failed: it panicked, or did not start.
    Machine(String),
    /// The command, or the boot, took longer than its time limit.
    TimedOut(String),
}

impl std::fmt::Display for Error {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Usage(what)
            | Self::Unavailable(what)
            | Self::Machine(what)
            | Self::TimedOut(what) => out.write_str(what),
        }
    }
}

/// Runs `cargo xtask vm`.
pub fn main(arguments: &[String]) -> ExitCode {
    let result = match arguments::parse(arguments) {
        Ok(Request::Fetch { update }) => fetch(update),
        Ok(Request::Run(wanted)) => run(&wanted),
        Ok(Request::Test { part }) => Ok(suite::run(part.as_deref())),
        Ok(Request::Icount { json }) => icount::run(json),
        Err(error) => Err(error),
    };
    result.unwrap_or_else(|error| {
        eprintln!("vm: {error}");
        match error {
            Error::Usage(_) => {
                eprintln!("{USAGE}");
                ExitCode::from(2)
            }
            Error::TimedOut(_) => ExitCode::from(EXIT_TIMED_OUT),
            Error::Unavailable(_) | Error::Machine(_) => ExitCode::from(EXIT_MACHINE),
        }
    })
}

/// Fetches and installs what [`suite`] needs besides programs of the workspace.
pub fn prepare() -> Result<(), Error> {
    suite::kernel().map(drop)
}

fn fetch(update: bool) -> Result<ExitCode, Error> {
    tools::install()?;
    let kernel = if update { kernel::fetch()? } else { kernel::cached_or_fetched()? };
    println!("kernel {}: {}", kernel.version, kernel.vmlinux.display());
    Ok(ExitCode::SUCCESS)
}

fn run(wanted: &machine::Wanted) -> Result<ExitCode, Error> {
    tools::install()?;
    let kernel = kernel::cached_or_fetched()?;
    let outcome = session::run(&kernel, wanted, &mut std::io::stdout(), &mut std::io::stderr())?;
    Ok(ExitCode::from(outcome.exit_code))
}

/// The folder `vm` in cargo's target folder.
fn folder() -> PathBuf {
    target_folder().join("vm")
}

/// Removes folders of killed processes: their names are the prefix, the number of the process, and
/// perhaps more after a hyphen. Another user's folders stay.
fn remove_abandoned(within: &Path, prefix: &str) {
    let Ok(entries) = std::fs::read_dir(within) else { return };
    let Ok(user) = std::fs::metadata("/proc/self").map(|own| own.uid()) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(rest) = name.strip_prefix(prefix) else { continue };
        let process = rest.split('-').next().unwrap_or_default();
        let ours = entry.metadata().is_ok_and(|found| found.uid() == user);
        let is_gone = !Path::new("/proc").join(process).exists();
        if ours && process.parse::<u32>().is_ok() && is_gone {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// The output of a command, or why it failed.
fn output_of(command: &mut Command) -> Result<Output, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{name}: {error}"))?;
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{name} failed ({}): {}", output.status, said.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removes_only_folders_of_dead_processes() {
        let within = std::env::temp_dir().join(format!("wave-abandoned-{}", std::process::id()));
        let own = format!("run-{}-x", std::process::id());
        // No process has this number: it is above Linux's limit.
        for name in ["run-4194305", "run-4194305-x", &own, "run-x", "other-4194305"] {
            std::fs::create_dir_all(within.join(name)).unwrap();
        }
        remove_abandoned(&within, "run-");
        let mut left: Vec<_> = std::fs::read_dir(&within)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        std::fs::remove_dir_all(&within).unwrap();
        assert_eq!(left, ["other-4194305", &own, "run-x"]);
    }
}

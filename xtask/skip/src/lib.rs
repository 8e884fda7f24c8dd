//! Lets a test report that it is skipped because this machine lacks something that the test needs, and lets tests take turns at
//! what the machine has only once.
//!
//! `make test` names a file in [`LIST`], and prints it at the end. A test asks the machine what it lacks, and never infers that
//! from a failure of the tested command. Load is no reason to skip a test.

#![forbid(unsafe_code)]

mod turns;

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;

pub use turns::{Turn, turn};

/// Environment variable with the path of the file that collects skipped tests, a line each: package, program, test, a tab, the
/// reason.
pub const LIST: &str = "WAVE_LEFT_OUT";

/// Reports that the calling test, or a part of it, is skipped. The test must then return, so that it passes.
///
/// CI permits a test to be left out for one reason (`.ci/left-out.txt`), so a reason has no figures that change
/// between runs.
///
/// # Panics
///
/// If the list cannot be written: a test that is skipped without a report passes for one that ran.
pub fn skip(reason: impl Display) {
    let reason = reason.to_string().replace('\n', " ");
    println!("skipped: {reason}");
    let Some(list) = std::env::var_os(LIST) else { return };
    let line = format!("{} {} {}\t{reason}\n", package(), program(), test());
    let file = OpenOptions::new().create(true).append(true).open(&list);
    let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
    written.unwrap_or_else(|error| panic!("{}: {error}", list.display()));
}

fn package() -> String {
    std::env::var("CARGO_PKG_NAME").unwrap_or_else(|_| "-".to_owned())
}

/// The test program, without the hash that cargo appends to its name.
fn program() -> String {
    let program = std::env::current_exe().unwrap_or_default();
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    name.rsplit_once('-').map_or_else(|| name.to_string(), |(name, _)| name.to_owned())
}

/// The test's name: each test runs in a thread that has it.
fn test() -> String {
    std::thread::current().name().unwrap_or("-").to_owned()
}

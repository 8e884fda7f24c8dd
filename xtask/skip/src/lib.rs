//! How a test says that it is left out on this machine, which lacks something that the test needs.
//!
//! `make test` names a file in [`LIST`], and prints it at its end. What a machine lacks is asked of the machine, never
//! read from how the tested command failed. Load is no reason to leave a test out.

#![forbid(unsafe_code)]

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;

/// Names the file that collects left-out tests, a line each: package, program, test, a tab, the reason.
pub const LIST: &str = "WAVE_LEFT_OUT";

/// Says that the calling test is left out, or a part of it. The test has to return, as a test that passes.
///
/// # Panics
///
/// If the list cannot be written: a test that is left out without a word passes for one that ran.
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

/// The test program, without the hash that cargo puts behind its name.
fn program() -> String {
    let program = std::env::current_exe().unwrap_or_default();
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    name.rsplit_once('-').map_or_else(|| name.to_string(), |(name, _)| name.to_owned())
}

/// Tests run in threads that have their names.
fn test() -> String {
    std::thread::current().name().unwrap_or("-").to_owned()
}

//! Turns at what a machine has only once, such as Wave's swap: tests take it in turns, also those of other programs and of
//! another run of the tests.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::process::geteuid;

/// A test's turn. It ends when this is dropped, or when the process ends in any other way.
#[derive(Debug)]
#[must_use]
pub struct Turn {
    _locked: Option<File>,
}

/// Waits for this test's turn at the machine's only `thing`. Without root, every test has its turn at once: only root's tests
/// use such things.
///
/// # Panics
///
/// If the lock cannot be opened.
pub fn turn(thing: &str) -> Turn {
    if !geteuid().is_root() {
        return Turn { _locked: None };
    }
    let path = format!("/run/wave-tests-{thing}.lock");
    let mut options = OpenOptions::new();
    options.write(true).create(true).mode(0o600).custom_flags(OFlags::NOFOLLOW.bits() as i32);
    let file = options.open(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    flock(&file, FlockOperation::LockExclusive).unwrap_or_else(|error| panic!("{path}: {error}"));
    Turn { _locked: Some(file) }
}

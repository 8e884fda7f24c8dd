//! What commands print, where nobody may read it.
//!
//! `println!` and `eprintln!` panic when a pipe is closed or a disk is full. A command whose output nobody reads any more ends
//! as others do (`wave doctor | head -1`): by SIGPIPE. Errors of standard error are passed over. Both wait for a slow reader;
//! what serves uses `wave_links::tell` and `wave_links::say` instead, which do not wait.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::process::exit;

use signal_hook::consts::SIGPIPE;
use signal_hook::low_level::emulate_default_handler;

use crate::Failure;

/// `println!` for a command.
#[macro_export]
#[doc(hidden)]
macro_rules! out {
    ($($arg:tt)*) => {
        $crate::terminal::print(format_args!("{}\n", format_args!($($arg)*)))
    };
}

/// `eprintln!` for a command.
#[macro_export]
#[doc(hidden)]
macro_rules! note {
    ($($arg:tt)*) => {
        $crate::terminal::remark(format_args!("{}\n", format_args!($($arg)*)))
    };
}

pub use crate::{note, out};

/// The name that the program was started by, without its folders.
pub fn program() -> String {
    let first = std::env::args_os().next().map(std::path::PathBuf::from).unwrap_or_default();
    first.file_name().map_or_else(|| "wave".into(), |name| name.to_string_lossy().into_owned())
}

/// What the program was started by, to be typed again.
pub fn started_as() -> String {
    std::env::args_os().next().map_or_else(|| "wave".into(), |name| name.to_string_lossy().into())
}

/// Writes text to standard output.
pub fn print(text: fmt::Arguments<'_>) {
    let mut out = io::stdout().lock();
    let Err(error) = out.write_fmt(text).and_then(|()| out.flush()) else { return };
    if error.kind() == ErrorKind::BrokenPipe {
        // Where the signal cannot be had, its exit code can.
        let _ = emulate_default_handler(SIGPIPE);
        exit(128 + SIGPIPE);
    }
    let failure = Failure::Cannot(format!("standard output cannot be written: {error}"));
    note!("{}: {failure}", program());
    exit(failure.exit_code().into())
}

/// Writes text to standard error.
pub fn remark(text: fmt::Arguments<'_>) {
    let _ = io::stderr().write_fmt(text);
}

//! Output of commands that survives a closed pipe.
//!
//! `println!` and `eprintln!` panic when a pipe is closed or a disk is full. When the reader of a command's output has closed the pipe
//! (`wave doctor | head -1`), the command ends by SIGPIPE, as other programs do. Errors of standard error are ignored. [`print()`] and
//! [`remark`] wait for a slow reader; serving processes use `wave_process::tell` and `wave_process::say` instead, which do not wait.

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
        $crate::print(format_args!("{}\n", format_args!($($arg)*)))
    };
}

/// `eprintln!` for a command.
#[macro_export]
#[doc(hidden)]
macro_rules! note {
    ($($arg:tt)*) => {
        $crate::remark(format_args!("{}\n", format_args!($($arg)*)))
    };
}

pub use wave_process::words::counted;

/// The name by which the program was started, without folders, for use in messages.
pub fn program() -> String {
    let first = std::env::args_os().next().map(std::path::PathBuf::from).unwrap_or_default();
    first.file_name().map_or_else(|| "wave".into(), |name| name.to_string_lossy().into_owned())
}

/// The path by which the program was started, for use in commands to type.
pub fn started_as() -> String {
    std::env::args_os().next().map_or_else(|| "wave".into(), |name| name.to_string_lossy().into())
}

/// Writes text to standard output.
pub fn print(text: fmt::Arguments<'_>) {
    let mut out = io::stdout().lock();
    let Err(error) = out.write_fmt(text).and_then(|()| out.flush()) else { return };
    if error.kind() == ErrorKind::BrokenPipe {
        // If the signal does not end the process, exit with its code.
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

//! Wave's command line.
#![forbid(unsafe_code)]

mod commands;
mod interop;

use clap::Parser;

fn main() -> std::process::ExitCode {
    commands::Wave::parse().execute()
}

//! Wave's command line.
#![forbid(unsafe_code)]

mod bench;
mod commands;
mod live;
mod report;
mod run;
mod scenario;

use clap::Parser;

fn main() -> std::process::ExitCode {
    commands::Wave::parse().execute()
}

//! Wave's command line.
#![forbid(unsafe_code)]

mod bench;
mod commands;
mod live;
mod report;
mod run;
mod scenario;
mod sweep;
mod trace;

use clap::Parser;

fn main() -> std::process::ExitCode {
    commands::Wave::parse().execute()
}

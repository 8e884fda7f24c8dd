//! Wave's command line.
#![forbid(unsafe_code)]

mod bench;
mod commands;
mod live;
mod report;
mod reproduce;
mod run;
mod scenario;
mod sweep;
mod trace;
mod validate;

use clap::Parser;

fn main() -> std::process::ExitCode {
    commands::Wave::parse().execute()
}

//! Wave's command line.
#![forbid(unsafe_code)]

mod bakeoff;
mod bench;
mod commands;
mod cpu_time;
mod interop;
mod interrupt;
mod live;
mod memory;
mod record;
mod report;
mod reproduce;
mod run;
#[cfg(test)]
#[path = "../tests/same_keys/mod.rs"]
mod same_keys;
mod scenario;
mod store;
mod sweep;
mod terminal;
mod validate;
mod workload;

use clap::Parser;

fn main() -> std::process::ExitCode {
    commands::Wave::parse().execute()
}

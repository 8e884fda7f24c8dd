//! The program of `wave bench`: ratios against named peers in the same run, medians of interleaved chunks.
//!
//! Benches need two CPUs and pin their threads: the host's side to the first allowed one, the agent's to the
//! second; [`mod@kernel`] takes all CPUs. Each bench's module describes its chunks and its measure.
#![forbid(unsafe_code)]

mod agent;
mod commands;
mod hostile;
mod kernel;
mod line;
mod payload;
mod preempt;
mod queue;
mod rpc;
mod sim;
mod sol;
mod switch;
mod udp;

use clap::Parser;

fn main() -> std::process::ExitCode {
    commands::Bench::parse().execute()
}

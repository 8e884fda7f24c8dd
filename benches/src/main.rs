//! The program of `wave bench`: ratios against named peers in the same run, medians of interleaved chunks.
//!
//! Two CPUs are needed and pinned: the host's side on the first allowed one, the agent's on the
//! second; [`mod@kernel`] takes all CPUs. What a chunk is, and what counts, stands with each bench.
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

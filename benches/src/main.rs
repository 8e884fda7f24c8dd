//! The program of `wave bench`: ratios to named peers, which run in turns: the median over rounds of the ratio within a round, with
//! its 95% interval (docs/adr/0106).
//!
//! Benches need two CPUs and pin their threads: the host's side to the first allowed one, the agent's to the
//! second; [`mod@kernel`] takes all CPUs. Each bench's module describes its chunks and its measure.
#![forbid(unsafe_code)]

mod agent;
mod bench;
mod commands;
mod hostile;
mod kernel;
mod line;
mod payload;
mod preempt;
mod queue;
mod rmt;
mod rpc;
mod sim;
mod sol;
mod switch;
mod udp;

use bench::Bench;

/// Seed of loads, of models, and of the random order of rows within a round.
const SEED: u64 = 1;

/// All benches, in the order of `wave bench --help`.
const BENCHES: &[&Bench] = &[
    &queue::BENCH,
    &agent::BENCH,
    &switch::BENCH,
    &preempt::BENCH,
    &sim::BENCH,
    &sol::BENCH,
    &rpc::BENCH,
    &udp::BENCH,
    &hostile::BENCH,
    &payload::BENCH,
    &payload::CHECKSUMS,
    &rmt::BENCH,
    &kernel::BENCH,
];

fn main() -> std::process::ExitCode {
    commands::execute(&commands::command().get_matches())
}

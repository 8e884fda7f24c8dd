//! What the tests of the core share: a link for one thread that is as nasty as the contract of
//! `wave_core::link` allows, and the ways in which real layouts use a link.

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "for the project's own tests")]

pub mod loom;
pub mod nasty;
pub mod queue_model;

use rand::SeedableRng;
use rand_pcg::Pcg32;
use wave_core::layout::{Config, QueueConfig};
use wave_core::link::{Home, Mapping, Transport};

/// A generator that is reproducible from its seed.
pub fn rng(seed: u64) -> Pcg32 {
    Pcg32::seed_from_u64(seed)
}

/// Prints the command that replays the test, if the test fails while this value lives.
pub struct Replay(pub u64, pub &'static str);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay: WAVE_SEED={} cargo test {}", self.0, self.1);
        }
    }
}

/// The seeds to run: the one in WAVE_SEED, or the first `count` (WAVE_SEEDS overrides it).
pub fn seeds(count: u64) -> std::ops::Range<u64> {
    let number = |name| {
        let text = std::env::var(name).ok()?;
        Some(text.parse::<u64>().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
    };
    match number("WAVE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("WAVE_SEEDS").unwrap_or(count),
    }
}

/// The ways in which queues are laid out, by name; the first is coherent.
pub const SHAPES: [&str; 9] = [
    "coherent",
    "pcie",
    "uncached",
    "all-uncached",
    "pushed",
    "dma-async",
    "dma-sync",
    "dma-messages",
    "dma-decisions",
];

/// Queues of a shape, with the given number of entries in each direction.
pub fn shape(name: &str, messages: u32, decisions: u32) -> (QueueConfig, QueueConfig) {
    let config = if name == "coherent" { Config::coherent(1) } else { Config::pcie(1) };
    let (mut up, mut down) = (config.messages, config.decisions);
    (up.entries, down.entries) = (messages, decisions);
    match name {
        "coherent" | "pcie" => {}
        "uncached" => (up.host, down.host) = (Mapping::Uncached, Mapping::Uncached),
        "all-uncached" => {
            (up.host, down.host) = (Mapping::Uncached, Mapping::Uncached);
            (up.agent, down.agent) = (Mapping::Uncached, Mapping::Uncached);
        }
        "pushed" => {
            (down.home, down.host) = (Home::Host, Mapping::WriteBack);
        }
        "dma-async" => (up.transport, down.transport) = (Transport::DmaAsync, Transport::DmaAsync),
        "dma-sync" => (up.transport, down.transport) = (Transport::DmaSync, Transport::DmaSync),
        "dma-messages" => up.transport = Transport::DmaAsync,
        "dma-decisions" => down.transport = Transport::DmaAsync,
        other => panic!("there is no shape {other}"),
    }
    (up, down)
}

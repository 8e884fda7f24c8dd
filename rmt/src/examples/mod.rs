//! Small pipelines that show what a pipeline is: each counts, spreads or limits packets of IPv4.

pub mod flowlet;
pub mod headers;
pub mod heavy_hitters;
pub mod rate_limiter;
pub mod sketch;

use crate::pipeline::Pipeline;

/// The examples, with a sentence each.
pub const EXAMPLES: &[(&Pipeline<'static>, &str)] = &[
    (&sketch::SKETCH, "counts the packets of each flow, in a count-min sketch"),
    (
        &heavy_hitters::HEAVY_HITTERS,
        "reports flows with many packets, once each while they keep their slot",
    ),
    (&flowlet::FLOWLET, "spreads flows over paths, without reordering their packets"),
    (&rate_limiter::RATE_LIMITER, "drops packets that exceed their destination's rate"),
];

#[cfg(test)]
mod tests;

//! The benches whose figures are compared, and whether higher or lower is better.
//!
//! Wave's own figures are compared as absolute numbers, not as ratios to a peer: the base's run, beside the tip's, replaces the
//! peer, and a ratio would add the peer's noise.
//!
//! Peers' figures are shown as well, but never judged. Their code is the same in both binaries, so if a peer's ratio is not 1,
//! the machine or the layout of the binary caused the difference.
//!
//! Tails (p99) are left out: a run of a few seconds does not measure them to 3%.

use serde_json::Value;

use wave_compare::Better::{self, Higher, Lower};

/// The figure that is counted from outside, if the machine has counters.
pub const COUNTED: &str = "instructions_per_switch";

/// A bench of `wave bench`.
#[derive(Debug)]
pub struct Bench {
    pub name: &'static str,
    /// Arguments that make a run short, if the bench has any.
    pub arguments: &'static [&'static str],
    /// The compared figures of its JSON object.
    pub figures: &'static [Figure],
}

impl Bench {
    /// Whether instructions are counted during a run.
    pub fn is_counted(&self) -> bool {
        self.figures.iter().any(|figure| figure.key == COUNTED)
    }
}

#[derive(Debug)]
pub struct Figure {
    /// Key in the bench's JSON object; dots separate the keys of nested objects.
    pub key: &'static str,
    /// Whether higher or lower is better.
    pub better: Better,
    /// Whether it is a peer's figure, which is not judged.
    pub is_peer: bool,
}

impl Figure {
    /// The figure's number, if the bench prints one; 0 counts as a number.
    pub fn of(&self, printed: &Value) -> Option<f64> {
        let found = self.key.split('.').try_fold(printed, |value, key| value.get(key));
        found?.as_f64().filter(|number| number.is_finite() && *number >= 0.0)
    }
}

const fn ours(key: &'static str, better: Better) -> Figure {
    Figure { key, better, is_peer: false }
}

const fn peer(key: &'static str, better: Better) -> Figure {
    Figure { key, better, is_peer: true }
}

/// All benches, in the order in which they run.
pub const BENCHES: &[Bench] = &[
    Bench {
        name: "queue",
        arguments: &[],
        figures: &[
            ours("oneway_ns.p50", Lower),
            ours("pushes_per_second.p50", Higher),
            peer("rtrb_oneway_ns.p50", Lower),
            peer("rtrb_pushes_per_second.p50", Higher),
        ],
    },
    Bench {
        name: "agent",
        arguments: &[],
        figures: &[
            ours("decisions_per_second.p50", Higher),
            ours("event_to_decision_prestaged_ns.p50", Lower),
            ours("event_to_decision_unstaged_ns.p50", Lower),
            peer("slot_loop_per_second.p50", Higher),
        ],
    },
    Bench {
        name: "switch",
        arguments: &[],
        figures: &[
            ours("yield_ns.p50", Lower),
            ours(COUNTED, Lower),
            peer("futex_handoff_ns.p50", Lower),
        ],
    },
    Bench {
        name: "sim",
        arguments: &[],
        figures: &[
            ours("events_per_second_c16.p50", Higher),
            ours("events_per_second_c1024.p50", Higher),
            ours("ladder_cpu_seconds_per_second", Lower),
            peer("nexosim_events_per_second_c16.p50", Higher),
            peer("nexosim_events_per_second_c1024.p50", Higher),
        ],
    },
    Bench {
        name: "sol",
        arguments: &[],
        figures: &[
            ours("fast_ms.p50", Lower),
            ours("exact_ms.p50", Lower),
            ours("two_cores.fast_ms.p50", Lower),
            ours("two_cores.exact_ms.p50", Lower),
            ours("state_bytes_per_batch", Lower),
            ours("ks_distance", Lower),
            peer("rand_distr_ms.p50", Lower),
        ],
    },
    Bench {
        name: "rpc",
        arguments: &["--chunks", "3", "--chunk-seconds", "0.1"],
        figures: &[
            // All CPU time of the worker's thread. The part other than polling would shrink if a worker polled where it could
            // sleep.
            ours("batched_at_rate.host_thread_ns.p50", Lower),
            ours("unbatched_at_rate.host_thread_ns.p50", Lower),
            ours("batched_at_rate.worker_busy_ns.p50", Lower),
            ours("unbatched_at_rate.worker_busy_ns.p50", Lower),
            ours("front_4x16.agent_ns.p50", Lower),
            ours("front_8x1.agent_ns.p50", Lower),
            ours("split_front_4x16.agent_ns.p50", Lower),
            ours("front_4x16.calls_per_second.p50", Higher),
            ours("front_8x1.calls_per_second.p50", Higher),
            peer("tonic_4x16.host_thread_ns.p50", Lower),
            peer("tonic_4x16.calls_per_second.p50", Higher),
        ],
    },
];

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn a_figure_is_found_by_its_path() {
        let printed =
            serde_json::json!({ "a": { "p50": 2.5 }, "b": "text", "c": 0, "d": 7, "e": -1 });
        for (key, expected) in [
            ("a.p50", Some(2.5)),
            ("d", Some(7.0)),
            ("a", None),
            ("b", None),
            ("c", Some(0.0)),
            ("e", None),
            ("a.p5", None),
        ] {
            assert_eq!(ours(key, Lower).of(&printed), expected, "{key}");
        }
    }
}

//! Each thread in turn for a quantum, after which it goes to the end of the queue if another thread waits.
//!
//! Source: the textbook, and Wave 7.2.3 ("Shinjuku is a round-robin policy with time-based preemption"): the mechanism and the
//! queue are [`super::shinjuku`]'s. Here the quantum suits threads that compute for milliseconds, as in an ordinary
//! time-sharing system.

use wave_core::layout::Config;

use super::common::{Preemptive, Setting, Settings, Slice, Timer};
use super::shinjuku::OneQueue;

/// Settings of round-robin: the quantum, and the timer that ends it.
pub static SETTINGS: [Setting; 2] = [
    Setting::number(
        "quantum_us",
        "1000",
        1..=1_000_000,
        "how long each thread's turn lasts, in microseconds, while others wait",
    ),
    Timer::SETTING,
];

/// One queue, preempted at the end of slices.
pub type RoundRobin = Preemptive<OneQueue>;

/// For an enclave of this configuration.
pub fn new(config: &Config, quantum: Slice) -> RoundRobin {
    Preemptive::with(config, OneQueue::new("round-robin", config, quantum))
}

/// The policy with settings from [`SETTINGS`].
pub fn from_settings(config: &Config, settings: &Settings<'_>) -> RoundRobin {
    new(config, Slice::from_settings(settings, "quantum_us"))
}

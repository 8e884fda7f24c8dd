//! The same time slice for every run, and the timer that ends it.

use wave_core::clock::Nanos;

use super::{Runs, Setting, Settings};

/// The side that ends a run whose slice is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timer {
    /// The agent preempts it, if a thread waits.
    Agent,
    /// The core's own timer, whether or not anybody waits: each decision carries the slice
    /// ([`crate::wire`]).
    Core,
}

impl Timer {
    /// The setting: for every policy with slices.
    pub const SETTING: Setting = Setting::one_of(
        "timer",
        &["agent", "core"],
        "what ends a slice: the agent, if a thread waits, or the core's own timer in any case",
    );

    /// The timer that [`Timer::SETTING`] names.
    pub fn from_settings(settings: &Settings<'_>) -> Timer {
        match settings.choice(Timer::SETTING.key) {
            "core" => Timer::Core,
            _ => Timer::Agent,
        }
    }
}

/// How long a run lasts at least, while others wait. The rank of a run must be its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Length of a slice; not zero.
    pub length: Nanos,
    /// Side that ends the slice.
    pub timer: Timer,
}

impl Slice {
    /// A slice of `key` microseconds, ended as [`Timer::SETTING`] says.
    pub fn from_settings(settings: &Settings<'_>, key: &str) -> Slice {
        let length = Nanos::from_micros(settings.number(key));
        Slice { length, timer: Timer::from_settings(settings) }
    }

    /// The core whose run has exceeded its slice by most.
    pub fn exceeded(self, now: Nanos, runs: &Runs) -> Option<u16> {
        let (core, run) = runs.first()?;
        (self.end(run.start) <= now).then_some(core)
    }

    /// When the first slice of a run that has not been asked to end is over.
    pub fn first_end(self, runs: &Runs) -> Option<Nanos> {
        runs.first().map(|(_, run)| self.end(run.start))
    }

    /// When the slice of a run is over that began at `start`.
    pub fn end(self, start: Nanos) -> Nanos {
        start + self.length
    }

    /// Length that decisions carry: zero if the agent ends slices.
    pub fn in_decisions(self) -> Nanos {
        match self.timer {
            Timer::Agent => Nanos(0),
            Timer::Core => self.length,
        }
    }
}

//! The same time slice for every run, and the timer that ends it.

use wave_core::clock::Nanos;

use super::{Runs, Setting, Settings};

/// The side that ends a run when its slice is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timer {
    /// The agent preempts the run, if a thread waits.
    Agent,
    /// The core's own timer ends the run, whether or not a thread waits: each decision carries the
    /// slice ([`crate::wire`]).
    Core,
}

impl Timer {
    /// The setting, shared by all policies with slices.
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

/// The shortest duration of a run while other threads wait. The rank of a run must be its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Length of a slice; not zero.
    pub length: Nanos,
    /// The side that ends the slice.
    pub timer: Timer,
}

impl Slice {
    /// A slice of `key` microseconds, ended as [`Timer::SETTING`] says.
    pub fn from_settings(settings: &Settings<'_>, key: &str) -> Slice {
        let length = Nanos::from_micros(settings.number(key));
        Slice { length, timer: Timer::from_settings(settings) }
    }

    /// The core whose run has exceeded its slice the most.
    pub fn exceeded(self, now: Nanos, runs: &Runs) -> Option<u16> {
        let (core, run) = runs.first()?;
        (self.end(run.start) <= now).then_some(core)
    }

    /// The earliest end of a slice among runs that have not been asked to end.
    pub fn first_end(self, runs: &Runs) -> Option<Nanos> {
        runs.first().map(|(_, run)| self.end(run.start))
    }

    /// The end of the slice of a run that began at `start`.
    pub fn end(self, start: Nanos) -> Nanos {
        start + self.length
    }

    /// The slice that decisions carry: zero if the agent ends slices.
    pub fn in_decisions(self) -> Nanos {
        match self.timer {
            Timer::Agent => Nanos(0),
            Timer::Core => self.length,
        }
    }
}

//! The same time slice for every run.

use wave_core::clock::Nanos;

use super::Runs;

/// How long a run lasts at least, while others wait. The rank of a run must be its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice(pub Nanos);

impl Slice {
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
        start + self.0
    }
}

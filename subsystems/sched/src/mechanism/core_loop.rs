//! The logic of a host core's loop, without its waiting and context switches.

use wave_core::clock::Nanos;
use wave_core::host::HostCore;
use wave_core::message::{Decision, TxnId};
use wave_core::outcome::Code;
use wave_core::planted::{Planted, is_planted};
use wave_core::snapshot::CoreRecord;

use super::table::Table;
use crate::wire::DECISION_RUN;

/// One run of a thread on a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Id of the thread in the table.
    pub id: u32,
    /// The longest duration of the run, counted from when the thread is on the core. Zero: the core does not end the run.
    pub slice: Nanos,
}

impl Run {
    /// The run that a decision asks for. Fails with `UnsupportedVersion` if this host does not know the decision's kind.
    #[inline]
    pub fn of(decision: &Decision) -> Result<Run, Code> {
        match decision.kind {
            DECISION_RUN => Ok(Run { id: decision.subject.id, slice: Nanos(decision.argument) }),
            _ => Err(Code::UnsupportedVersion),
        }
    }

    /// A run that the fallback chose, without a slice.
    pub fn of_fallback(id: u32) -> Run {
        Run { id, slice: Nanos(0) }
    }

    /// Commits the run for `core`. Fails as [`Table::commit`] does.
    #[inline]
    pub fn commit<T>(self, table: &Table<T>, core: u16, decision: &Decision) -> Result<Run, Code> {
        table.commit(core, decision.subject, decision.sequence).map(|_| self)
    }

    /// The time at which the core's own timer ends a run that began at `began`. [`Nanos::MAX`] without a slice.
    #[inline]
    pub fn end(self, began: Nanos) -> Nanos {
        if self.slice == Nanos(0) || is_planted(Planted::SliceForgotten) {
            return Nanos::MAX;
        }
        match is_planted(Planted::SliceCutShort) {
            true => began,
            false => began + self.slice,
        }
    }
}

/// The state that a core keeps from one run to the next, and across a change of window.
#[derive(Clone, Copy, Debug, Default)]
pub struct Runs {
    /// The number of the last run.
    run: u32,
    /// When the core first found no thread in the fallback since the last run.
    idle_since: Option<Nanos>,
}

impl Runs {
    /// The number of the last run, which the next window continues from.
    pub fn run(&self) -> u32 {
        self.run
    }

    /// Records that the core has polled an agent's window, and that its record is now `record`.
    #[inline]
    pub fn by_agent(&mut self, record: CoreRecord) {
        *self = Runs { run: record.run, idle_since: None };
    }

    /// Counts a run that the fallback chose, in the window's own count if the core has a window. Returns the core's new record.
    pub fn by_fallback(&mut self, protocol: Option<&mut HostCore>) -> CoreRecord {
        self.idle_since = None;
        if let Some(protocol) = protocol {
            self.run = protocol.count_run();
            protocol.runs_already();
            return protocol.record();
        }
        self.run = self.run.wrapping_add(1);
        // An agent that attaches now must not believe that this core waits for it.
        CoreRecord { run: self.run, txn: TxnId::new(0), asks: false }
    }

    /// The fallback has no thread for the core. Returns whether the core has spun for at least `spin`, and so may sleep; the
    /// next spin then starts from zero.
    pub fn may_sleep(&mut self, now: Nanos, spin: Nanos) -> bool {
        let may = now.since(*self.idle_since.get_or_insert(now)) >= spin;
        if may {
            self.idle_since = None;
        }
        may
    }
}

/// Whether a core that has adopted the window of epoch `own` must adopt the one of epoch `current`. An epoch in which no agent
/// decides has no window; `has_window` tells whether `own`'s has one, and is called only when the epochs differ.
#[inline]
pub fn must_adopt(own: u64, current: u64, has_window: impl FnOnce() -> bool) -> bool {
    own != current && !(is_planted(Planted::RevokedHeard) && has_window())
}

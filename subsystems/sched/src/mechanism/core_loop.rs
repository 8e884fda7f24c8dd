//! The logic of a host core's loop, without its waits and switches.

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
    /// The longest that it lasts, from when the thread is on the core. Zero: the core does not end it.
    pub slice: Nanos,
}

impl Run {
    /// The run that a decision asks for. `UnsupportedVersion` for a kind that this host does not know.
    #[inline]
    pub fn of(decision: &Decision) -> Result<Run, Code> {
        match decision.kind {
            DECISION_RUN => Ok(Run { id: decision.subject.id, slice: Nanos(decision.argument) }),
            _ => Err(Code::UnsupportedVersion),
        }
    }

    /// A run that the fallback decided, without a slice.
    pub fn of_fallback(id: u32) -> Run {
        Run { id, slice: Nanos(0) }
    }

    /// Commits the run for `core` ([`Table::commit`]), with that function's errors.
    #[inline]
    pub fn commit<T>(self, table: &Table<T>, core: u16, decision: &Decision) -> Result<Run, Code> {
        table.commit(core, decision.subject, decision.sequence).map(|_| self)
    }

    /// The time at which the core's own timer ends the run that began at `began`. [`Nanos::MAX`] without a slice.
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

/// The state that a core keeps from one run to the next, and from one window to the next.
#[derive(Clone, Copy, Debug, Default)]
pub struct Runs {
    /// The number of the last run.
    run: u32,
    /// When the fallback first had nothing for the core, since the last run.
    idle_since: Option<Nanos>,
}

impl Runs {
    /// The number of the last run, for the next window.
    pub fn run(&self) -> u32 {
        self.run
    }

    /// The core has polled an agent's window, and shows `record` from now on.
    #[inline]
    pub fn by_agent(&mut self, record: CoreRecord) {
        *self = Runs { run: record.run, idle_since: None };
    }

    /// Counts a run that the fallback decided, in the window's own count if the core has one. Returns the record that the core
    /// shows from now on.
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

    /// The fallback has nothing for the core. Returns whether the core has looked for `spin` by now, and may sleep. After that it
    /// looks for as long again.
    pub fn may_sleep(&mut self, now: Nanos, spin: Nanos) -> bool {
        let may = now.since(*self.idle_since.get_or_insert(now)) >= spin;
        if may {
            self.idle_since = None;
        }
        may
    }
}

/// Whether a core that has adopted the window of epoch `own` must adopt the one of epoch `current`. An epoch in which no agent
/// decides has no window; `has_window` tells whether `own` has one, and is asked only when the epochs differ.
#[inline]
pub fn must_adopt(own: u64, current: u64, has_window: impl FnOnce() -> bool) -> bool {
    own != current && !(is_planted(Planted::RevokedHeard) && has_window())
}

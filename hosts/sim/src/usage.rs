//! How the cores of an enclave spent their time.

use std::cell::{Cell, RefCell};

use wave_core::clock::Nanos;
use wave_core::outcome::Counts;
use wave_links::model::Charges;

/// The time of an enclave's cores and its agent, from the start of the world.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    /// Time for which cores ran threads: the sum over all cores.
    pub busy: Nanos,
    /// Time for which cores slept: the sum over all cores.
    pub parked: Nanos,
    /// Time for which agents were busy.
    pub agent: Nanos,
    /// Number of runs that began.
    pub switches: u64,
    /// Costs that the link charged the cores.
    pub charges: Charges,
    /// Outcomes of decisions, by code.
    pub outcomes: Counts,
}

/// One core's part. The counts of its link are copied at every switch, because the core owns its link.
#[derive(Debug, Default)]
pub(crate) struct CoreUsage {
    busy: Cell<Nanos>,
    parked: Cell<Nanos>,
    running_since: Cell<Option<Nanos>>,
    parked_since: Cell<Option<Nanos>>,
    /// Counts of the current incarnation's link, and of all links before it.
    link: RefCell<(Charges, Counts)>,
    past: RefCell<(Charges, Counts)>,
}

impl CoreUsage {
    pub(crate) fn runs(&self, now: Nanos) {
        self.running_since.set(Some(now));
    }

    pub(crate) fn stops(&self, now: Nanos) {
        if let Some(since) = self.running_since.take() {
            self.busy.set(self.busy.get() + now.since(since));
        }
    }

    pub(crate) fn parks(&self, now: Nanos) {
        self.parked_since.set(Some(now));
    }

    pub(crate) fn wakes(&self, now: Nanos) {
        if let Some(since) = self.parked_since.take() {
            self.parked.set(self.parked.get() + now.since(since));
        }
    }

    /// Updates the counts of the present link.
    pub(crate) fn link(&self, charges: Charges, outcomes: &Counts) {
        *self.link.borrow_mut() = (charges, outcomes.clone());
    }

    /// Adds the link's counts to those of past links, because the core has dropped the link.
    pub(crate) fn unlink(&self) {
        let (charges, outcomes) = std::mem::take(&mut *self.link.borrow_mut());
        let mut past = self.past.borrow_mut();
        past.0 += charges;
        past.1.merge(&outcomes);
    }

    /// Adds this core's part, including a run or sleep that has not ended yet.
    pub(crate) fn add_to(&self, usage: &mut Usage, now: Nanos) {
        let begun = |since: &Cell<Option<Nanos>>| since.get().map_or(Nanos(0), |at| now.since(at));
        usage.busy = usage.busy + self.busy.get() + begun(&self.running_since);
        usage.parked = usage.parked + self.parked.get() + begun(&self.parked_since);
        for part in [&self.link, &self.past] {
            let (charges, outcomes) = &*part.borrow();
            usage.charges += *charges;
            usage.outcomes.merge(outcomes);
        }
    }
}

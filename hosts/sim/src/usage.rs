//! Where the time of an enclave's cores went.

use std::cell::{Cell, RefCell};

use wave_core::clock::Nanos;
use wave_core::outcome::Counts;
use wave_links::model::Charges;

/// What the cores of an enclave and its agent did, from the start of the world on.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    /// Cores ran threads: the sum over all cores.
    pub busy: Nanos,
    /// Cores slept: the sum over all cores.
    pub parked: Nanos,
    /// Time for which agents were busy.
    pub agent: Nanos,
    /// Number of runs that began.
    pub switches: u64,
    /// What the link charged the cores.
    pub charges: Charges,
    /// Outcomes of decisions, by code.
    pub outcomes: Counts,
}

/// One core's part. What its link did is noted at every switch, as the link is the core's own.
#[derive(Debug, Default)]
pub(crate) struct CoreUsage {
    busy: Cell<Nanos>,
    parked: Cell<Nanos>,
    running_since: Cell<Option<Nanos>>,
    parked_since: Cell<Option<Nanos>>,
    /// Over the current incarnation's link, and over all before it.
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

    /// The link's counts, as of now.
    pub(crate) fn link(&self, charges: Charges, outcomes: &Counts) {
        *self.link.borrow_mut() = (charges, outcomes.clone());
    }

    /// Adds the link's counts to those of past links: the core has given it up.
    pub(crate) fn unlink(&self) {
        let (charges, outcomes) = std::mem::take(&mut *self.link.borrow_mut());
        let mut past = self.past.borrow_mut();
        past.0 += charges;
        past.1.merge(&outcomes);
    }

    /// Adds this core's part, with what has begun and not ended yet.
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

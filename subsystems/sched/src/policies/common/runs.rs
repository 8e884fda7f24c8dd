//! The run on each core, its start, and whether it has been asked to end.

use alloc::vec::Vec;

use wave_core::clock::Nanos;

use super::Heap;

/// A run of a thread on a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Id of the running thread.
    pub thread: u32,
    /// When the agent learned that the run began.
    pub start: Nanos,
    /// Whether the core's own timer ends the run, so that no preemption is needed.
    pub has_slice: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    run: Option<Run>,
    rank: u64,
    /// The run number of the request to end this run.
    ending: Option<u32>,
    /// No thread was staged for the core then, so the core has a claim on a waiting thread.
    claims: bool,
    /// The core is in `Runs::bound`.
    listed: bool,
}

/// The runs of all cores, and the requests to end them.
#[derive(Debug)]
pub struct Runs {
    slots: Vec<Slot>,
    /// Cores whose runs have neither been asked to end nor end by the core's own timer, by rank.
    by_rank: Heap,
    claims: usize,
    /// Cores whose runs have been asked to end, and some whose runs have since ended.
    asked: Vec<u16>,
    /// Cores that decisions may be staged for.
    bound: Vec<u16>,
}

impl Runs {
    pub(super) fn new(cores: u16) -> Runs {
        Runs {
            slots: alloc::vec![Slot::default(); usize::from(cores)],
            by_rank: Heap::new(cores.into()),
            claims: 0,
            asked: Vec::with_capacity(cores.into()),
            bound: Vec::with_capacity(cores.into()),
        }
    }

    /// Number of cores of the enclave.
    pub fn cores(&self) -> usize {
        self.slots.len()
    }

    /// Number of cores that were asked to end their runs and will ask for a waiting thread.
    pub fn claims(&self) -> usize {
        self.claims
    }

    /// The run of this core, unless it has been asked to end or ends by the core's own timer.
    pub fn get(&self, core: u16) -> Option<Run> {
        let slot = self.slots.get(usize::from(core))?;
        slot.run.filter(|run| slot.ending.is_none() && !run.has_slice)
    }

    /// The core and run of the lowest rank among those that [`Runs::get`] returns.
    pub fn first(&self) -> Option<(u16, Run)> {
        let (_, core) = self.by_rank.first()?;
        self.get(core as u16).map(|run| (core as u16, run))
    }

    /// All cores and runs that [`Runs::get`] returns, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (u16, Run)> + '_ {
        self.by_rank.ids().filter_map(|core| Some((core as u16, self.get(core as u16)?)))
    }

    /// A run begins on this core; a run that was believed to be there has ended.
    pub(super) fn begin(&mut self, core: u16, run: Run, rank: u64) {
        self.end(core);
        let Some(slot) = self.slots.get_mut(usize::from(core)) else { return };
        (slot.run, slot.rank) = (Some(run), rank);
        if !run.has_slice {
            self.by_rank.push(core.into(), rank);
        }
    }

    /// Records that the run on this core has ended, if there was one.
    pub(super) fn end(&mut self, core: u16) -> Option<Run> {
        let slot = self.slots.get_mut(usize::from(core))?;
        self.claims -= usize::from(core::mem::take(&mut slot.claims));
        slot.ending = None;
        self.by_rank.remove(core.into());
        slot.run.take()
    }

    /// The run on this core has ended, if it is a run of `thread`.
    pub(super) fn end_of(&mut self, core: u16, thread: u32) -> Option<Run> {
        let run = self.slots.get(usize::from(core))?.run?;
        if run.thread == thread { self.end(core) } else { None }
    }

    /// The run of this core has been asked to end, by run number `number`.
    pub(super) fn ending(&mut self, core: u16, number: u32, claims: bool) {
        let slot = &mut self.slots[usize::from(core)];
        slot.ending = Some(number);
        slot.claims = claims;
        self.claims += usize::from(claims);
        self.by_rank.remove(core.into());
        if !self.asked.contains(&core) {
            self.asked.push(core);
        }
    }

    /// Forgets requests to end a run if the core's run number is not the requested one (the parts of a snapshot may be of
    /// different moments).
    pub(super) fn check_asked(&mut self, number: impl Fn(u16) -> u32) {
        let mut at = 0;
        while let Some(&core) = self.asked.get(at) {
            let slot = &mut self.slots[usize::from(core)];
            if slot.ending == Some(number(core)) {
                at += 1;
                continue;
            }
            self.asked.swap_remove(at);
            if slot.ending.take().is_some() {
                self.claims -= usize::from(core::mem::take(&mut slot.claims));
                self.by_rank.push(core.into(), slot.rank);
            }
        }
    }

    /// A decision may be staged for this core.
    pub(super) fn bind(&mut self, core: u16) {
        let slot = &mut self.slots[usize::from(core)];
        if !core::mem::replace(&mut slot.listed, true) {
            self.bound.push(core);
        }
    }

    /// The core at `at` in the list of cores that decisions may be staged for. Cores that have none (`is_bound` is false) are
    /// removed from the list on the way.
    pub(super) fn next_bound(&mut self, at: usize, is_bound: impl Fn(u16) -> bool) -> Option<u16> {
        loop {
            let core = *self.bound.get(at)?;
            if is_bound(core) {
                return Some(core);
            }
            self.bound.swap_remove(at);
            self.slots[usize::from(core)].listed = false;
        }
    }

    /// Forgets all runs. Earlier decisions may still be staged for any core.
    pub(super) fn clear(&mut self) {
        self.slots.fill(Slot::default());
        self.by_rank.clear();
        self.claims = 0;
        self.asked.clear();
        self.bound.clear();
        for core in 0..self.slots.len() as u16 {
            self.bind(core);
        }
    }
}

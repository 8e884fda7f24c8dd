//! Brings back what a strided access will reach, before it does: Wave 5.4 has memory's agent detect one and prestage
//! what the host will need.
//!
//! **What is looked at** are batches of the slow tier that are touched, as [`Strides`] finds them. A batch that is
//! scanned every 9.6 s says too late and too roughly when that was. So where one is touched, its strip and the two
//! beside it in the address space are *watched* for a horizon: those of their batches that are away are
//! scanned at the shortest period. Reading absent pages costs little, and there is nothing to clear. Only
//! what was touched within [`FRESH_PERIODS`] counts. A program that is faster than a strip in a period is not followed.
//!
//! A batch is *away* when it was paged out and then read without a page that is present: what comes back page by page
//! because it is in use says nothing of the order in which a program goes.
//!
//! What is brought back remains one that belongs in the slow tier, so that it goes out again when it rests at the end
//! of an epoch, or of the next one where it was not touched yet.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::strides::Strides;
use crate::wire::{Place, STRIP_BATCHES, STRIP_BYTES};

/// Strips that are watched at once: of more, the one in which nothing was touched for longest is given up.
const WATCHED_MAX: usize = 16;
/// How long one is watched, in ticks.
const WATCH_TICKS: u64 = 32;
/// What was cleared longer ago than so many of the shortest periods was touched at no known time.
pub const FRESH_PERIODS: u64 = 2;

/// What is kept of a strip.
#[derive(Clone, Copy, Debug, Default)]
struct Strip {
    place: Place,
    away: u64,
    /// Batches that are to be brought back, a bit each.
    coming: u64,
    /// Brought back since the end of an epoch.
    came: u64,
}

/// Follows strided access over paged-out memory.
#[derive(Debug)]
pub struct Prefetch {
    strides: Strides,
    /// Up to the highest that was heard of.
    strips: Vec<Strip>,
    ids: BTreeMap<Place, u32>,
    /// Strips, and until which tick each is watched.
    watched: Vec<(u32, u64)>,
}

impl Prefetch {
    /// Creates the policy for at most `strips` strips.
    pub fn new(strips: usize) -> Prefetch {
        Prefetch {
            strides: Strides::new(),
            strips: Vec::with_capacity(strips),
            ids: BTreeMap::new(),
            watched: Vec::with_capacity(WATCHED_MAX),
        }
    }

    /// Bytes that are kept for each strip.
    pub fn bytes_per_strip(&self) -> usize {
        size_of::<Strip>() + size_of::<(Place, u32)>()
    }

    /// A strip is in this place, and only these batches are what they were.
    pub fn on_strip(&mut self, id: u32, place: Place, same: u64) {
        let count = self.strips.len().max(id as usize + 1);
        self.strips.resize(count, Strip::default());
        let strip = &mut self.strips[id as usize];
        if strip.place != place && self.ids.get(&strip.place) == Some(&id) {
            self.ids.remove(&strip.place);
        }
        strip.place = place;
        strip.away &= same;
        strip.coming &= same;
        strip.came &= same;
        self.ids.insert(place, id);
    }

    /// These batches of the slow tier were read: in `absent` nothing is present, and `fresh` says whether it is known in
    /// which tick those in `touched` were.
    pub fn on_reading(&mut self, id: u32, absent: u64, touched: u64, fresh: bool, tick: u64) {
        let strip = &mut self.strips[id as usize];
        let came = touched & strip.away;
        strip.away = strip.away & !touched | absent;
        if came == 0 {
            return;
        }
        let Place { space, address } = strip.place;
        if fresh {
            let first = address / STRIP_BYTES * u64::from(STRIP_BATCHES);
            crate::wire::bits(came).for_each(|at| self.strides.touch(space, first + u64::from(at)));
        }
        let beside = [address.checked_sub(STRIP_BYTES), address.checked_add(STRIP_BYTES)];
        for address in [Some(address)].into_iter().chain(beside).flatten() {
            if let Some(&id) = self.ids.get(&Place { space, address }) {
                self.watch(id, tick + WATCH_TICKS);
            }
        }
    }

    /// These batches were paged out: whether they stay is to be seen.
    pub fn on_page_out(&mut self, id: u32, batches: u64) {
        self.strips[id as usize].away &= !batches;
    }

    fn watch(&mut self, id: u32, until: u64) {
        if let Some(watched) = self.watched.iter_mut().find(|watched| watched.0 == id) {
            watched.1 = until;
            return;
        }
        if self.watched.len() == WATCHED_MAX {
            let first = (0..WATCHED_MAX).min_by_key(|at| self.watched[*at].1).unwrap_or(0);
            self.watched.swap_remove(first);
        }
        self.watched.push((id, until));
    }

    /// A tick begins: what was touched in the last one tells what to bring back.
    pub fn turn(&mut self, tick: u64) {
        self.watched.retain(|(_, until)| *until >= tick);
        let Prefetch { strides, strips, ids, .. } = self;
        strides.turn(tick, |space, batch| {
            let address = batch / u64::from(STRIP_BATCHES) * STRIP_BYTES;
            if let Some(&id) = ids.get(&Place { space, address }) {
                let strip = &mut strips[id as usize];
                strip.coming |= strip.away & 1 << (batch % u64::from(STRIP_BATCHES));
            }
        });
    }

    /// What to scan of a strip at the shortest period.
    pub fn watched(&self, id: u32) -> u64 {
        let is_watched = self.watched.iter().any(|(watched, _)| *watched == id);
        if is_watched { self.strips[id as usize].away } else { 0 }
    }

    /// What to bring back of a strip, once.
    pub fn take_coming(&mut self, id: u32) -> u64 {
        let strip = &mut self.strips[id as usize];
        strip.came |= strip.coming;
        core::mem::take(&mut strip.coming)
    }

    /// An epoch ends: what came in this one and was not touched yet is not to go out again, once.
    pub fn take_early(&mut self, id: u32) -> u64 {
        let strip = &mut self.strips[id as usize];
        core::mem::take(&mut strip.came) & strip.away
    }
}

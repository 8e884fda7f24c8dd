//! Brings paged-out memory back before strided access reaches it. Wave 5.4 has memory's agent detect such access and prestage
//! what the host will need.
//!
//! **The input** is touches of batches of the slow tier; [`Strides`] finds the strides. A scan period of 9.6 s would report a
//! touch too late and too roughly. So when such a batch is touched, its strip and the two beside it in the address space are
//! *watched* for a horizon: their batches that are away are scanned at the shortest period. Reading absent pages costs little,
//! and there is nothing to clear. Only touches within [`FRESH_PERIODS`] count. A program that is faster than a strip in a
//! period is not followed.
//!
//! A batch is *away* when it was paged out and then read without a page that is present: pages that come back one by one
//! because they are in use say nothing about the order of a program's accesses.
//!
//! A batch that is brought back still belongs in the slow tier, so that it is paged out again when it rests at the end of an
//! epoch, or of the next one if it was not touched yet.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::strides::Strides;
use crate::wire::{Place, STRIP_BATCHES, STRIP_BYTES};

/// The most strips watched at once. Beyond that, the strip that was touched longest ago is dropped.
const WATCHED_MAX: usize = 16;
/// How long a strip is watched, in ticks.
const WATCH_TICKS: u64 = 32;
/// The longest interval of a reading, in shortest periods, for which the time of a touch counts as known.
pub const FRESH_PERIODS: u64 = 2;

/// The state of a strip.
#[derive(Clone, Copy, Debug, Default)]
struct Strip {
    place: Place,
    away: u64,
    /// Batches to bring back, a bit each.
    coming: u64,
    /// Batches brought back since the end of the last epoch.
    came: u64,
}

/// Follows strided access over paged-out memory.
#[derive(Debug)]
pub struct Prefetch {
    strides: Strides,
    /// Up to the highest known strip.
    strips: Vec<Strip>,
    ids: BTreeMap<Place, u32>,
    /// Watched strips, each with the last tick for which it is watched.
    watched: Vec<(u32, u64)>,
}

impl Prefetch {
    /// A prefetcher for at most `strips` strips.
    pub fn new(strips: usize) -> Prefetch {
        Prefetch {
            strides: Strides::new(),
            strips: Vec::with_capacity(strips),
            ids: BTreeMap::new(),
            watched: Vec::with_capacity(WATCHED_MAX),
        }
    }

    /// Bytes of state for each strip.
    pub fn bytes_per_strip(&self) -> usize {
        size_of::<Strip>() + size_of::<(Place, u32)>()
    }

    /// The strip is at this place, and only the batches in `same` have kept their history.
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

    /// These batches of the slow tier were read. Those in `absent` have no page present; `fresh` says whether the tick of the
    /// touches in `touched` is known.
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

    /// These batches were paged out. Whether they are away is known only from the next reading.
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

    /// A tick begins: the touches of the last one decide what to bring back.
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

    /// Batches of a strip to scan at the shortest period.
    pub fn watched(&self, id: u32) -> u64 {
        let is_watched = self.watched.iter().any(|(watched, _)| *watched == id);
        if is_watched { self.strips[id as usize].away } else { 0 }
    }

    /// Batches of a strip to bring back, reported once.
    pub fn take_coming(&mut self, id: u32) -> u64 {
        let strip = &mut self.strips[id as usize];
        strip.came |= strip.coming;
        core::mem::take(&mut strip.coming)
    }

    /// An epoch ends. Returns the batches that were brought back in it and not touched yet: they must not be paged out this
    /// time.
    pub fn take_early(&mut self, id: u32) -> u64 {
        let strip = &mut self.strips[id as usize];
        core::mem::take(&mut strip.came) & strip.away
    }
}

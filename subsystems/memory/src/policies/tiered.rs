//! The common part of policies with two tiers: strips and their mappings, when to scan which batch, and which batches are to be
//! moved and have been.
//!
//! ```text
//!            judged cold            PAGE_OUT made           COMPLETE
//!   fast ──────────────> wanted ───────────────> moving ─────────────> slow
//!     ^                     ^        refused: try again, or leave it      │ judged hot: BRING_BACK,
//!     └─────────────────────┴────────────────────────────────────────────┘ the same way back
//! ```
//!
//! A batch that comes back and rests again, as after a sweep over everything, is paged out again at the next reading, if it is
//! still judged cold. A batch of which a page-out leaves a part behind (PARTIAL: memory that a fork shares, say) is still
//! wanted; the policy asks for it again after two ticks, then four, and so on up to an epoch.
//!
//! Time is cut into ticks of the shortest period. A batch of level *n* is due at every 2^n-th tick, the same for its whole
//! strip, so that neighbours share a decision and a reading. Strips are staggered, so that each tick has about the same work.
//! Random numbers are a function of the seed, the strip and the number of earlier uses there: it does not matter how strips are
//! divided among agents.

use alloc::vec::Vec;

use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;
use wave_core::clock::Nanos;
use wave_core::message::{Decision, Message, Sequence, Subject};
use wave_core::outcome::{Code, Outcome};
use wave_core::policy::{BadBulk, Choice, Desk, Policy, Progress};
use wave_core::snapshot::Snapshot;

use super::prefetch::{FRESH_PERIODS, Prefetch};
use super::{Explanation, Tiering};
use crate::wire::{self, Action, BATCH_PAGES, Reading, Readings};

pub use super::classifier::{
    Classifier, LANES, LEVELS_MAX, Opinion, Paces, Schedule, Sights, Verdicts,
};

/// A strip. Masks have a bit for each batch; of a huge unit only the first bit is ever set.
#[derive(Clone, Copy, Debug, Default)]
struct Strip {
    generation: u32,
    sequence: Sequence,
    /// Number of uses of random numbers in this strip.
    turn: u32,
    huge: u8,
    /// Batches that are scanned, by level. Together they are the managed batches.
    levels: [u64; LEVELS_MAX],
    /// Batches whose last reading showed pages that are present and were not touched.
    resting: u64,
    /// Batches that should be in the slow tier.
    wanted: u64,
    /// Batches in the slow tier, a bit each.
    slow: u64,
    /// Batches of unanswered decisions.
    moving: u64,
    /// Batches that stayed when they were to be paged out, until the next attempt.
    stayed: u64,
    /// The tick from which on they may be tried again.
    retry: u32,
    /// Number of page-outs in a row that left something behind.
    failures: u8,
    /// Batches that the host cannot move.
    fixed: u64,
}

impl Strip {
    fn managed(&self) -> u64 {
        self.levels.iter().fold(0, |all, level| all | level)
    }

    fn forget(&mut self, batches: u64) {
        let masks = [
            &mut self.resting,
            &mut self.wanted,
            &mut self.slow,
            &mut self.moving,
            &mut self.stayed,
            &mut self.fixed,
        ];
        for mask in self.levels.iter_mut().chain(masks) {
            *mask &= !batches;
        }
    }

    /// The mask as decisions name it: huge units whole.
    fn named(&self, batches: u64) -> u64 {
        let first = wire::firsts(self.huge);
        (batches & !first) | ((batches & first) * 0xff)
    }

    fn subject(&self, id: usize) -> Subject {
        Subject { id: id as u32, generation: self.generation }
    }

    /// The next move at this tick, if any.
    fn next_move(&self, tick: u32) -> Option<(Action, u64)> {
        let wrong = (self.wanted ^ self.slow) & !(self.moving | self.fixed);
        let waits = if tick < self.retry { self.stayed } else { 0 };
        let (out, back) = (wrong & self.wanted & !waits, wrong & self.slow);
        if out != 0 {
            Some((Action::PageOut, out))
        } else {
            (back != 0).then_some((Action::BringBack, back))
        }
    }
}

/// The remaining work of this tick for a strip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Before batches are scanned: a page-out leaves the pages that were touched since the last scan, and a scan forgets those
    /// touches.
    Move,
    Scan,
    Rest,
}

/// A policy that keeps hot batches in the fast tier and cold ones in the slow tier.
#[derive(Debug)]
pub struct Tiered<C: Classifier> {
    classifier: C,
    schedule: Schedule,
    seed: u64,
    /// Up to the highest known strip. Space for all is reserved from the start, and reserved space that was never written costs
    /// no memory.
    strips: Vec<Strip>,
    batches: Vec<[C::Batch; LANES]>,
    /// The most pages that each batch ever had.
    pages: Vec<[u8; LANES]>,
    strips_max: usize,
    start: Option<Nanos>,
    tick: u64,
    previous_tick: u64,
    stage: Stage,
    cursor: usize,
    /// Whether the strip at the cursor has been judged in this tick.
    judged: bool,
    prefetch: Option<Prefetch>,
}

impl<C: Classifier> Tiered<C> {
    /// Creates the policy for at most `strips` strips. Panics if the classifier's schedule has no level or too many, or an
    /// epoch that is not a power of two.
    pub fn new(classifier: C, strips: u32, seed: u64) -> Tiered<C> {
        let schedule = classifier.schedule();
        assert!(schedule.shortest.0 > 0 && schedule.epoch_periods.is_power_of_two());
        assert!((1..=LEVELS_MAX).contains(&(schedule.levels as usize)), "{schedule:?}");
        let strips = strips as usize;
        Tiered {
            classifier,
            schedule,
            seed,
            strips: Vec::with_capacity(strips),
            batches: Vec::with_capacity(strips),
            pages: Vec::with_capacity(strips),
            strips_max: strips,
            start: None,
            tick: 0,
            previous_tick: 0,
            stage: Stage::Rest,
            cursor: 0,
            judged: false,
            prefetch: None,
        }
    }

    /// Adds prefetching: brings memory back ahead of strided access.
    pub fn with_prefetch(self) -> Tiered<C> {
        Tiered { prefetch: Some(Prefetch::new(self.strips_max)), ..self }
    }

    /// Number of batches scanned at each period, the shortest first.
    pub fn batches_per_level(&self) -> [u64; LEVELS_MAX] {
        let count = |level: usize| {
            let ones = |strip: &Strip| u64::from(strip.levels[level].count_ones());
            self.strips.iter().map(ones).sum()
        };
        core::array::from_fn(count)
    }

    fn rng(seed: u64, id: usize, strip: &mut Strip) -> Pcg64Mcg {
        strip.turn = strip.turn.wrapping_add(1);
        Pcg64Mcg::seed_from_u64(seed ^ ((id as u64) << 32 | u64::from(strip.turn)))
    }

    fn on_strip(&mut self, told: &wire::Strip) {
        let id = told.strip.id as usize;
        if id >= self.strips_max {
            return;
        }
        if id >= self.strips.len() {
            self.strips.resize(id + 1, Strip::default());
            self.batches.resize(id + 1, [C::Batch::default(); LANES]);
            self.pages.resize(id + 1, [0; LANES]);
        }
        let strip = &mut self.strips[id];
        // A unit that is only mapped in part is not one page.
        let huge = (0..u8::BITS).filter(|unit| {
            let whole = wire::whole(1 << unit);
            told.huge >> unit & 1 != 0 && told.mapped & whole == whole
        });
        let huge = huge.fold(0, |units: u8, unit| units | 1 << unit);
        let managed = told.mapped & !wire::whole(huge) | wire::firsts(huge);

        let mut void = told.void | wire::whole(strip.huge ^ huge);
        if told.strip.generation != strip.generation {
            void = u64::MAX;
        }
        strip.generation = told.strip.generation;
        strip.sequence = told.sequence;
        strip.huge = huge;
        strip.forget(void | !managed);
        if let Some(prefetch) = &mut self.prefetch {
            prefetch.on_strip(told.strip.id, told.place, managed & !void);
        }
        let fresh = managed & !strip.managed();
        strip.levels[0] |= fresh;
        for batch in wire::bits(fresh) {
            self.batches[id][batch as usize] = C::Batch::default();
            self.pages[id][batch as usize] = 0;
        }
    }

    /// Takes a reading. Returns false if the enclave cannot have such a strip.
    fn on_reading(&mut self, reading: &Reading<'_>) -> bool {
        let id = reading.strip.id as usize;
        let Some(strip) = self.strips.get_mut(id) else { return id < self.strips_max };
        // The reading is of an earlier life, or the message about the change is still to come: ignore it.
        if strip.generation != reading.strip.generation || strip.sequence != reading.sequence {
            return true;
        }
        let managed = strip.managed();
        let most = &mut self.pages[id];
        let mut sights = Sights::new(reading.interval_us);
        let (mut resting, mut seen, mut count) = (0, 0, 0);
        // Batches that were or are being paged out, and those of them of which a good part is present and rests.
        let paged_out = strip.wanted & (strip.slow | strip.moving);
        let mut at_rest = 0;
        // Mapped batches without a page so far.
        let mut empty = 0;
        for (batch, [young, present]) in wire::bits(reading.batches).zip(reading.words) {
            if managed >> batch & 1 == 0 {
                continue;
            }
            let pages = &mut most[batch as usize];
            if u32::from(*pages) < BATCH_PAGES {
                *pages = (*pages).max(present.count_ones() as u8);
            }
            if *pages == 0 {
                empty |= 1 << batch;
                continue;
            }
            resting |= u64::from(present != young) << batch;
            let rests = present & !young;
            // Counting is a good part of this loop's time, so that it is done for few batches.
            if rests != 0 && paged_out >> batch & 1 != 0 {
                at_rest |= u64::from(wire::is_good_part(rests, (*pages).into())) << batch;
            }
            seen |= 1 << batch;
            (sights.lanes[count], sights.young[count], sights.pages[count]) =
                (batch as u8, *young, *pages);
            count += 1;
        }
        (sights.batches, sights.count) = (seen, count);
        strip.resting = strip.resting & !reading.batches | resting;
        if reading.interval_us == 0 {
            // The result of a page-out, which comes before or after its outcome: which of the batches stayed.
            let moved = reading.batches & paged_out;
            strip.stayed = strip.stayed & !moved | at_rest & moved;
            strip.slow &= !strip.stayed;
            return true;
        }
        if let Some(prefetch) = &mut self.prefetch {
            let fresh_us = self.schedule.shortest.0 / 1_000 * FRESH_PERIODS;
            let fresh = u64::from(reading.interval_us) <= fresh_us;
            let touched = sights.iter().filter(|(_, young, _)| *young != 0);
            let touched = touched.fold(0, |all: u64, (batch, ..)| all | 1 << batch);
            let absent = seen & !resting & !touched;
            let [absent, touched] = [absent, touched].map(|batches| batches & strip.slow);
            prefetch.on_reading(reading.strip.id, absent, touched, fresh, self.tick);
        }
        let mut rng = Self::rng(self.seed, id, strip);
        let Paces { faster, slower } =
            self.classifier.observe(&mut self.batches[id], &sights, &mut rng);
        if self.prefetch.is_none() && reading.interval_us >= self.schedule.rest_us() {
            // A paged-out batch came back and rests again, as after a sweep: do not wait for the epoch's end.
            let rested = at_rest & seen & strip.slow & strip.wanted;
            if rested != 0 {
                let verdicts = self.classifier.judge(&self.batches[id], rested, &mut rng);
                strip.slow &= !(rested & verdicts.cold);
            }
        }
        let slower = slower | empty;
        let levels = &mut strip.levels[..self.schedule.levels as usize];
        for level in 1..levels.len() {
            let moved = levels[level] & faster;
            levels[level] ^= moved;
            levels[level - 1] |= moved;
        }
        for level in (1..levels.len()).rev() {
            let moved = levels[level - 1] & slower;
            levels[level - 1] ^= moved;
            levels[level] |= moved;
        }
        true
    }

    /// Whether a multiple of `ticks`, a power of two, has come for this strip since the previous tick.
    fn has_come(&self, id: usize, ticks: u32) -> bool {
        let turns = |tick: u64| (tick + id as u64) / u64::from(ticks);
        turns(self.tick) != turns(self.previous_tick)
    }

    fn judge(&mut self, id: usize) {
        let strip = &mut self.strips[id];
        let mut rng = Self::rng(self.seed, id, strip);
        let Verdicts { hot, cold } =
            self.classifier.judge(&self.batches[id], strip.managed(), &mut rng);
        strip.wanted = strip.wanted & !hot | cold;
        let early = self.prefetch.as_mut().map_or(0, |prefetch| prefetch.take_early(id as u32));
        // Batches that came back page by page and rest again, or were left behind, are paged out again.
        strip.slow &= !(cold & strip.resting & !early);
    }

    /// The decision to scan the batches that are due in a strip.
    fn scan(&mut self, id: usize) -> Option<Choice> {
        let due = (0..self.schedule.levels).filter(|level| self.has_come(id, 1 << level));
        let strip = &self.strips[id];
        let due = due.fold(0, |due, level| due | strip.levels[level as usize]);
        let watched = self.prefetch.as_ref().map_or(0, |prefetch| prefetch.watched(id as u32));
        let due = due | watched & strip.slow;
        let named = strip.named(due);
        (due != 0).then(|| Action::Scan.choice(strip.subject(id), strip.sequence, named))
    }

    /// The decision to move batches of a strip, if any.
    fn displace(&mut self, id: usize) -> Option<Choice> {
        let strip = &mut self.strips[id];
        let coming = self.prefetch.as_mut().map_or(0, |prefetch| prefetch.take_coming(id as u32));
        let coming = coming & strip.slow & strip.wanted & !(strip.moving | strip.fixed);
        let (action, batches) = if coming != 0 {
            (Action::BringBack, coming)
        } else {
            strip.next_move(self.tick as u32)?
        };
        strip.moving |= batches;
        strip.stayed &= !batches;
        let named = strip.named(batches);
        Some(action.choice(strip.subject(id), strip.sequence, named))
    }

    /// Begins a tick, if it is due and the last one is done.
    fn begin_tick(&mut self, now: Nanos) {
        let start = *self.start.get_or_insert(now);
        let tick = now.since(start).0 / self.schedule.shortest.0 + 1;
        if self.stage == Stage::Rest && tick > self.tick {
            self.previous_tick = core::mem::replace(&mut self.tick, tick);
            (self.stage, self.cursor, self.judged) = (Stage::Move, 0, false);
            if let Some(prefetch) = &mut self.prefetch {
                prefetch.turn(tick);
            }
        }
    }
}

impl<C: Classifier> Tiering for Tiered<C> {
    fn next(&mut self, now: Nanos) -> Option<Choice> {
        self.begin_tick(now);
        while self.stage == Stage::Move {
            if self.cursor == self.strips.len() {
                (self.stage, self.cursor) = (Stage::Scan, 0);
                break;
            }
            if !self.judged && self.has_come(self.cursor, self.schedule.epoch_periods) {
                self.judge(self.cursor);
            }
            self.judged = true;
            if let Some(choice) = self.displace(self.cursor) {
                return Some(choice);
            }
            (self.cursor, self.judged) = (self.cursor + 1, false);
        }
        while self.stage == Stage::Scan {
            if self.cursor == self.strips.len() {
                self.stage = Stage::Rest;
                break;
            }
            self.cursor += 1;
            if let Some(choice) = self.scan(self.cursor - 1) {
                return Some(choice);
            }
        }
        None
    }

    fn explain(&self, strip: u32, batch: u32) -> Option<Explanation> {
        let record = self.strips.get(strip as usize)?;
        let bit = 1_u64.checked_shl(batch)?;
        let level = record.levels.iter().position(|level| level & bit != 0)?;
        let (strip, batch) = (strip as usize, batch as usize);
        let Opinion { warmth, limit, weight } =
            self.classifier.opinion(&self.batches[strip][batch]);
        let ticks = |ticks: u64| Nanos(self.schedule.shortest.0.saturating_mul(ticks));
        let epoch = u64::from(self.schedule.epoch_periods);
        let stays = record.stayed & record.wanted & bit != 0;
        Some(Explanation {
            pages: self.pages[strip][batch].into(),
            period: Nanos(self.schedule.shortest.0 << level),
            slow: record.slow & bit != 0,
            cold: record.wanted & bit != 0,
            warmth,
            limit,
            weight,
            judged_in: ticks(epoch - (self.tick + strip as u64) % epoch),
            retry_in: stays.then(|| ticks(u64::from(record.retry).saturating_sub(self.tick))),
        })
    }

    fn state_bytes_per_batch(&self) -> usize {
        let prefetch = self.prefetch.as_ref().map_or(0, Prefetch::bytes_per_strip);
        let shared = (size_of::<Strip>() + prefetch).div_ceil(LANES);
        size_of::<C::Batch>() + size_of::<u8>() + shared
    }

    fn longest_period(&self) -> Nanos {
        Nanos(self.schedule.shortest.0 << (self.schedule.levels - 1))
    }

    fn epoch(&self) -> Nanos {
        Nanos(self.schedule.shortest.0 * u64::from(self.schedule.epoch_periods))
    }
}

impl<C: Classifier> Policy for Tiered<C> {
    fn name(&self) -> &'static str {
        self.classifier.name()
    }

    fn on_message(&mut self, now: Nanos, message: &Message) {
        self.start.get_or_insert(now);
        if let Some(told) = wire::Strip::from_message(message) {
            self.on_strip(&told);
        }
    }

    fn on_outcome(&mut self, _now: Nanos, _core: u16, decision: &Decision, outcome: Outcome) {
        let Some(strip) = self.strips.get_mut(decision.subject.id as usize) else { return };
        let action = Action::from_number(decision.kind);
        let Some(action @ (Action::PageOut | Action::BringBack)) = action else { return };
        if strip.generation != decision.subject.generation {
            return;
        }
        let batches = decision.argument & strip.moving;
        strip.moving &= !batches;
        match outcome.code {
            Code::Complete | Code::Partial if action == Action::PageOut => {
                // A reading before or after this outcome shows the batches that stayed.
                strip.slow |= batches & !strip.stayed;
                strip.failures = match outcome.code {
                    Code::Partial => {
                        (strip.failures + 1).min(self.schedule.epoch_periods.ilog2() as u8)
                    }
                    _ => 0,
                };
                if strip.failures > 0 {
                    strip.retry = (self.tick as u32).saturating_add(1 << strip.failures);
                }
                if let Some(prefetch) = &mut self.prefetch {
                    prefetch.on_page_out(decision.subject.id, batches);
                }
            }
            // A batch that was brought back ahead of an access still belongs in the slow tier.
            Code::Complete => strip.slow &= !batches | strip.wanted,
            Code::Unsupported | Code::InvalidTarget | Code::NotPermitted => strip.fixed |= batches,
            // A message will explain, or the next tick tries again.
            _ => {}
        }
    }

    fn on_bulk(&mut self, _now: Nanos, words: &[u64]) -> Result<(), BadBulk> {
        let mut readings = Readings::new(words);
        let mut at = 0;
        while let Some(reading) = readings.next() {
            if !self.on_reading(&reading?) {
                let what = "a reading of a strip that the enclave does not have";
                return Err(BadBulk { words: words.len(), at, what });
            }
            at = readings.at();
        }
        Ok(())
    }

    fn decide(&mut self, now: Nanos, desk: &mut Desk<'_>) -> Progress {
        loop {
            let Some(core) = desk.asking().or_else(|| desk.open()) else {
                return if desk.is_full() { Progress::More } else { Progress::Done };
            };
            match self.next(now) {
                Some(choice) => {
                    desk.stage(core, choice);
                }
                None => return Progress::Done,
            }
        }
    }

    fn next_deadline(&self) -> Option<Nanos> {
        let start = self.start.filter(|_| !self.strips.is_empty())?;
        let ticks = if self.stage == Stage::Rest { self.tick } else { 0 };
        Some(start + Nanos(self.schedule.shortest.0.saturating_mul(ticks)))
    }

    fn resync(&mut self, _now: Nanos, _snapshot: &Snapshot) {
        self.strips.clear();
        self.batches.clear();
        self.pages.clear();
        self.prefetch = self.prefetch.take().map(|_| Prefetch::new(self.strips_max));
        (self.stage, self.cursor) = (Stage::Rest, 0);
    }
}

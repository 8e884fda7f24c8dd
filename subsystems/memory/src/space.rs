//! A modelled address space: patterns of access, and a mechanism that keeps the contract.
//!
//! A Poisson process, whose rate the [`Pattern`] sets, touches the pages. It is evaluated only when a page is scanned or moved:
//! the work follows the scans, not the size of the space. The same seed and the same decisions give the same accesses.

use alloc::vec::Vec;

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use wave_core::clock::Nanos;
use wave_core::message::{Decision, Message, Sequence, Subject, TxnId};
use wave_core::outcome::{Code, Outcome};
use wave_core::policy::{Choice, Policy};

use crate::policies::Tiering;
use crate::table::Bits;
use crate::wire::{self, Action, BATCH_PAGES, Reading, STRIP_BATCHES};

/// The pages that are touched, and their rates.
#[derive(Clone, Debug)]
pub enum Pattern {
    /// Every page with the same probability.
    Uniform {
        /// Touches of a page in a second.
        per_second: f64,
    },
    /// A range of pages, and nothing else.
    HotSet {
        /// Index of the first page.
        first: u64,
        /// Number of pages in the range.
        pages: u64,
        /// Touches of a page in a second.
        per_second: f64,
    },
    /// The first few pages of each batch: allocators and lists keep their own data there.
    Heads {
        /// Number of pages of each batch.
        pages: u32,
        /// Touches of a page in a second.
        per_second: f64,
    },
    /// Page *n* gets its share 1 / (*n* + 1)^`exponent` of all touches.
    Zipf {
        /// Exponent of the distribution: 0 is uniform.
        exponent: f64,
        /// Touches of page 0 in a second.
        first_per_second: f64,
    },
    /// One page after the other, repeatedly.
    Sweep {
        /// Number of pages in a round.
        pages: u64,
        /// Pages touched per second.
        per_second: f64,
    },
    /// Every `stride`-th batch, page after page, repeatedly.
    Strides {
        /// Distance in batches from one to the next; a negative stride goes downwards from the end. Not 0.
        stride: i64,
        /// Number of batches in a round, those that are skipped included.
        batches: u64,
        /// Pages touched per second.
        per_second: f64,
    },
    /// One pattern until a time, then another.
    Change {
        /// Time at which the pattern changes.
        at: Nanos,
        /// The pattern before, and the pattern after.
        patterns: [alloc::boxed::Box<Pattern>; 2],
    },
    /// Several patterns at once.
    Sum(Vec<Pattern>),
}

impl Pattern {
    /// The expected number of touches of `page` between two times; infinite if a touch is certain.
    pub fn touches(&self, page: u64, from: Nanos, to: Nanos) -> f64 {
        let seconds = |time: Nanos| time.0 as f64 / 1e9;
        let span = seconds(to.since(from));
        match self {
            Pattern::Uniform { per_second } => per_second * span,
            Pattern::HotSet { first, pages, per_second } => {
                let is_hot = page.checked_sub(*first).is_some_and(|offset| offset < *pages);
                if is_hot { per_second * span } else { 0.0 }
            }
            Pattern::Heads { pages, per_second } => {
                let is_head = page % u64::from(BATCH_PAGES) < u64::from(*pages);
                if is_head { per_second * span } else { 0.0 }
            }
            Pattern::Zipf { exponent, first_per_second } => {
                first_per_second * span * libm::pow((page + 1) as f64, -exponent)
            }
            Pattern::Sweep { pages, per_second } => {
                // Number of times that the sweep has reached the page.
                let rounds =
                    |time| libm::ceil((seconds(time) * per_second - page as f64) / *pages as f64);
                if rounds(to) > rounds(from) { f64::INFINITY } else { 0.0 }
            }
            Pattern::Strides { stride, batches, per_second } => {
                let size = u64::from(BATCH_PAGES);
                let (batch, steps) = (page / size, stride.unsigned_abs());
                let rounds = batches.div_ceil(steps);
                if batch >= *batches || batch % steps != 0 {
                    return 0.0;
                }
                let turn = batch / steps;
                let turn = if *stride < 0 { rounds - 1 - turn } else { turn };
                let sweep = Pattern::Sweep { pages: rounds * size, per_second: *per_second };
                sweep.touches(turn * size + page % size, from, to)
            }
            Pattern::Change { at, patterns: [before, after] } => {
                before.touches(page, from.min(*at), to.min(*at))
                    + after.touches(page, from.max(*at), to.max(*at))
            }
            Pattern::Sum(patterns) => {
                patterns.iter().map(|pattern| pattern.touches(page, from, to)).sum()
            }
        }
    }
}

impl Pattern {
    /// Number of pages from `page` on that certainly have the same rate: at least one.
    fn alike(&self, page: u64) -> u64 {
        match self {
            Pattern::Uniform { .. } => u64::MAX,
            Pattern::HotSet { first, pages, .. } => {
                let bounds = [*first, first.saturating_add(*pages)];
                bounds.into_iter().find(|bound| page < *bound).map_or(u64::MAX, |end| end - page)
            }
            Pattern::Heads { pages, .. } => {
                let (batch, heads) = (u64::from(BATCH_PAGES), u64::from(*pages));
                let within = page % batch;
                if within < heads { heads.min(batch) - within } else { batch - within }
            }
            Pattern::Zipf { .. } | Pattern::Sweep { .. } | Pattern::Strides { .. } => 1,
            Pattern::Change { patterns, .. } => {
                let [before, after] = patterns.each_ref().map(|pattern| pattern.alike(page));
                before.min(after)
            }
            Pattern::Sum(patterns) => {
                patterns.iter().map(|pattern| pattern.alike(page)).min().unwrap_or(u64::MAX)
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Batch {
    young: u64,
    present: u64,
    /// The time up to which the pattern was evaluated.
    seen: Nanos,
    cleared: Option<Nanos>,
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Batches that were scanned.
    pub scans: u64,
    /// Pages that were paged out.
    pub paged_out: u64,
    /// Pages that were brought back before they were touched.
    pub brought_back: u64,
    /// Pages that were touched while they were in the slow tier.
    pub refaults: u64,
}

/// The address space of one program, and the mechanism that scans and moves it.
#[derive(Clone, Debug)]
pub struct Space {
    pattern: Pattern,
    batches: Vec<Batch>,
    sequences: Vec<Sequence>,
    rng: Pcg64Mcg,
    counts: Counts,
    readings: Vec<u64>,
}

impl Space {
    /// A space of `strips` strips, all mapped and present.
    pub fn new(strips: u32, pattern: Pattern, seed: u64) -> Space {
        let batch = Batch { young: 0, present: u64::MAX, seen: Nanos(0), cleared: None };
        Space {
            pattern,
            batches: alloc::vec![batch; strips as usize * STRIP_BATCHES as usize],
            sequences: alloc::vec![Sequence(1); strips as usize],
            rng: Pcg64Mcg::seed_from_u64(seed),
            counts: Counts::default(),
            readings: Vec::new(),
        }
    }

    /// The first messages to a policy: one for each strip.
    pub fn messages(&self) -> impl Iterator<Item = Message> + '_ {
        (0..self.sequences.len()).map(|id| self.message(id, u64::MAX))
    }

    /// The program unmaps these batches and maps them anew; nothing has been touched since. Returns the message.
    pub fn remap(&mut self, now: Nanos, strip: u32, batches: u64) -> Message {
        let id = strip as usize;
        for at in wire::bits(batches) {
            let at = id * STRIP_BATCHES as usize + at as usize;
            self.batches[at] = Batch { young: 0, present: u64::MAX, seen: now, cleared: None };
        }
        self.sequences[id] = self.sequences[id].next();
        self.message(id, batches)
    }

    fn message(&self, id: usize, void: u64) -> Message {
        let strip = Subject { id: id as u32, generation: 1 };
        let place = wire::Place { space: 1, address: id as u64 * wire::STRIP_BYTES };
        let sequence = self.sequences[id];
        wire::Strip { strip, sequence, mapped: u64::MAX, void, huge: 0, place }.to_message()
    }

    /// Counts since the start.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Pages in the fast tier now.
    pub fn resident_pages(&mut self, now: Nanos) -> u64 {
        (0..self.batches.len()).map(|at| u64::from(self.batch(now, at).present.count_ones())).sum()
    }

    /// Pages that were in the fast tier when their batch was last evaluated. Unlike [`resident_pages`](Space::resident_pages),
    /// this changes nothing.
    pub fn present_pages(&self) -> u64 {
        self.batches.iter().map(|batch| u64::from(batch.present.count_ones())).sum()
    }

    /// Carries out a decision.
    pub fn apply(&mut self, now: Nanos, choice: &Choice) -> Code {
        let id = choice.subject.id as usize;
        let Some(&sequence) = self.sequences.get(id) else { return Code::TargetNotFound };
        if choice.subject.generation != 1 {
            return Code::TargetNotFound;
        }
        let action = match Action::from_number(choice.kind) {
            None => return Code::UnsupportedVersion,
            Some(Action::Scan) => {
                self.scan(now, id, choice.argument);
                return Code::Complete;
            }
            Some(action) => action,
        };
        if choice.sequence != sequence {
            return Code::TargetStale;
        }
        match action {
            Action::PageOut => {
                let keep = self.read(now, choice.subject.id).unwrap_or_default().young;
                self.page_out(now, choice.subject.id, choice.argument, &keep)
            }
            _ => self.bring_back(now, choice.subject.id, choice.argument),
        };
        Code::Complete
    }

    /// The access bits of a strip, as a page table has them; `None` if there is no such strip.
    pub fn read(&mut self, now: Nanos, strip: u32) -> Option<Bits> {
        self.sequences.get(strip as usize)?;
        let mut bits = Bits::default();
        for (at, (young, present)) in bits.young.iter_mut().zip(&mut bits.present).enumerate() {
            let batch = self.batch(now, strip as usize * STRIP_BATCHES as usize + at);
            (*young, *present) = (batch.young, batch.present);
        }
        Some(bits)
    }

    /// Clears the access bits of batches of a strip.
    pub fn clear(&mut self, now: Nanos, strip: u32, batches: u64) {
        self.counts.scans += u64::from(batches.count_ones());
        for batch in wire::bits(batches) {
            let batch = self.batch(now, strip as usize * STRIP_BATCHES as usize + batch as usize);
            (batch.young, batch.cleared) = (0, Some(now));
        }
    }

    /// Moves batches of a strip to the slow tier, except the pages in `keep`, a mask for each batch. Returns the number of
    /// pages moved.
    pub fn page_out(&mut self, now: Nanos, strip: u32, batches: u64, keep: &[u64; 64]) -> u64 {
        let mut moved = 0;
        for batch in wire::bits(batches) {
            let keep = keep[batch as usize];
            let batch = self.batch(now, strip as usize * STRIP_BATCHES as usize + batch as usize);
            moved += u64::from((batch.present & !keep).count_ones());
            (batch.young, batch.present) = (batch.young & keep, batch.present & keep);
        }
        self.counts.paged_out += moved;
        moved
    }

    /// Moves batches of a strip to the fast tier. Returns the number of pages moved.
    pub fn bring_back(&mut self, now: Nanos, strip: u32, batches: u64) -> u64 {
        let mut moved = 0;
        for batch in wire::bits(batches) {
            let batch = self.batch(now, strip as usize * STRIP_BATCHES as usize + batch as usize);
            moved += u64::from(batch.present.count_zeros());
            batch.present = u64::MAX;
        }
        self.counts.brought_back += moved;
        moved
    }

    /// The readings since the last call, as an extent's words.
    pub fn take_readings(&mut self) -> Vec<u64> {
        core::mem::take(&mut self.readings)
    }

    fn scan(&mut self, now: Nanos, id: usize, batches: u64) {
        self.counts.scans += u64::from(batches.count_ones());
        let first = id * STRIP_BATCHES as usize;
        let mut rest = batches;
        while rest != 0 {
            let cleared = self.batches[first + rest.trailing_zeros() as usize].cleared;
            let alike = |batch: &u32| self.batches[first + *batch as usize].cleared == cleared;
            let together = wire::bits(rest).filter(alike).fold(0, |mask, batch| mask | 1 << batch);
            rest &= !together;
            let words: Vec<_> = wire::bits(together)
                .map(|batch| {
                    let batch = self.batch(now, first + batch as usize);
                    let words = [batch.young, batch.present];
                    (batch.young, batch.cleared) = (0, Some(now));
                    words
                })
                .collect();
            let interval_us = cleared.map_or(0, |cleared| (now.since(cleared).0 / 1_000) as u32);
            let reading = Reading {
                strip: Subject { id: id as u32, generation: 1 },
                sequence: self.sequences[id],
                interval_us,
                batches: together,
                words: &words,
            };
            reading.write(&mut self.readings);
        }
    }

    /// A batch, with all touches until now applied.
    fn batch(&mut self, now: Nanos, at: usize) -> &mut Batch {
        let batch = &mut self.batches[at];
        let mut touched = 0;
        let (mut page, end) = (0, u64::from(BATCH_PAGES));
        while page < end {
            let number = at as u64 * u64::from(BATCH_PAGES) + page;
            let alike = page..page.saturating_add(self.pattern.alike(number)).min(end);
            page = alike.end;
            let expected = self.pattern.touches(number, batch.seen, now);
            if expected > 0.0 {
                let chance = 1.0 - libm::exp(-expected);
                for page in alike {
                    touched |= u64::from(self.rng.random::<f64>() < chance) << page;
                }
            }
        }
        self.counts.refaults += u64::from((touched & !batch.present).count_ones());
        batch.young |= touched;
        batch.present |= touched;
        batch.seen = now;
        batch
    }
}

/// Number of decisions after which readings are taken, to bound their memory.
const TAKEN_AFTER: usize = 1_024;

/// Carries out every decision that a policy has at this time, and gives it the readings; `made` is called with each decision.
///
/// # Panics
/// If the policy rejects a reading as invalid.
pub fn settle(
    policy: &mut (impl Tiering + ?Sized),
    space: &mut Space,
    now: Nanos,
    mut made: impl FnMut(&Choice),
) {
    for count in 1.. {
        let choice = policy.next(now);
        if let Some(choice) = &choice {
            let code = space.apply(now, choice);
            answer(policy, now, choice, code);
            made(choice);
        }
        if choice.is_none() || count % TAKEN_AFTER == 0 {
            let readings = space.take_readings();
            policy.on_bulk(now, &readings).expect("a modelled space sends valid readings");
        }
        if choice.is_none() {
            return;
        }
    }
}

/// Reports the outcome of a decision to a policy.
pub fn answer(policy: &mut (impl Policy + ?Sized), now: Nanos, choice: &Choice, code: Code) {
    let Choice { kind, subject, sequence, argument } = *choice;
    let txn = TxnId::new(0);
    let decision = Decision { kind, subject, sequence, txn, flags: 0, argument };
    policy.on_outcome(now, 0, &decision, Outcome { txn, code, run: 0 });
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::boxed::Box;

    const fn at(seconds: u64) -> Nanos {
        Nanos::from_millis(seconds * 1_000)
    }

    #[test]
    fn patterns_touch_the_pages_they_describe() {
        let hot = Pattern::HotSet { first: 10, pages: 5, per_second: 2.0 };
        assert_eq!([9, 10, 14, 15].map(|page| hot.touches(page, at(1), at(4))), [0., 6., 6., 0.]);
        let sweep = Pattern::Sweep { pages: 100, per_second: 10.0 };
        let swept = |from, to| -> Vec<u64> {
            (0..100).filter(|page| sweep.touches(*page, at(from), at(to)) > 0.0).collect()
        };
        assert!(swept(2, 4).into_iter().eq(20..40));
        assert!(swept(9, 11).into_iter().eq((0..10).chain(90..100)));
        assert_eq!(swept(3, 13).len(), 100);
        let strided = |stride, page| {
            let strides = Pattern::Strides { stride, batches: 9, per_second: 64.0 };
            strides.touches(page, at(1), at(2)) > 0.0
        };
        let second = |stride| (0..700).filter(move |page| strided(stride, *page));
        assert!(second(4).eq(256..320), "the second batch visited of 0, 4 and 8");
        assert!(second(-2).eq(384..448), "the second batch visited of 8, 6, ... 0");
        let zipf = Pattern::Zipf { exponent: 1.0, first_per_second: 8.0 };
        assert_eq!([0, 1, 3].map(|page| zipf.touches(page, at(0), at(1))), [8., 4., 2.]);
        let other = Pattern::Uniform { per_second: 1.0 };
        let change = Pattern::Change { at: at(3), patterns: [Box::new(hot), Box::new(other)] };
        assert_eq!(change.touches(10, at(1), at(5)), 6.0);
        assert_eq!(change.touches(10, at(4), at(5)), 1.0);
    }

    #[test]
    fn alike_pages_have_equal_rates() {
        let hot = Pattern::HotSet { first: 70, pages: 100, per_second: 2.0 };
        let heads = Pattern::Heads { pages: 3, per_second: 1.0 };
        let sweep = Pattern::Sweep { pages: 50, per_second: 10.0 };
        let change = Pattern::Change { at: at(3), patterns: [hot.clone(), sweep].map(Box::new) };
        let uniform = Pattern::Uniform { per_second: 3.0 };
        for pattern in [
            Pattern::Sum([hot, heads.clone()].into()),
            heads,
            change,
            uniform,
            Pattern::Sum([].into()),
        ] {
            for page in 0..300_u64 {
                let touches = |page| pattern.touches(page, at(2), at(5));
                let alike = page..page.saturating_add(pattern.alike(page)).min(300);
                assert!(!alike.is_empty());
                assert!(alike.into_iter().all(|other| touches(other) == touches(page)), "{page}");
            }
        }
    }

    #[test]
    fn paged_out_memory_comes_back_when_it_is_touched() {
        let pattern = Pattern::HotSet { first: 0, pages: 32, per_second: 1e6 };
        let mut space = Space::new(1, pattern, 1);
        let strip = Subject { id: 0, generation: 1 };
        let out = Action::PageOut.choice(strip, Sequence(1), 0b11);
        assert_eq!(space.apply(at(1), &out), Code::Complete);
        assert_eq!(space.resident_pages(at(1)), 62 * 64 + 32, "touched pages stay");
        assert_eq!(space.page_out(at(1), 0, 0b11, &[0; 64]), 32);
        assert_eq!(space.resident_pages(at(1)), 62 * 64);
        assert_eq!(space.resident_pages(at(2)), 62 * 64 + 32);
        assert_eq!(space.counts().refaults, 32);
        let back = Action::BringBack.choice(strip, Sequence(1), 0b11);
        assert_eq!(space.apply(at(2), &back), Code::Complete);
        assert_eq!(space.counts().brought_back, 96);

        let scan = Action::Scan.choice(strip, Sequence(9), 0b11);
        assert_eq!(space.apply(at(3), &scan), Code::Complete);
        assert_eq!(space.apply(at(4), &scan), Code::Complete);
        let words = space.take_readings();
        let young = u64::from(u32::MAX);
        let read = wire::Readings::new(&words).map(|reading| {
            let reading = reading.unwrap();
            (reading.interval_us, reading.batches, reading.words.to_vec())
        });
        let expected = [[young, u64::MAX], [0, u64::MAX]].to_vec();
        assert!(read.eq([(0, 0b11, expected.clone()), (1_000_000, 0b11, expected)]));

        space.remap(at(4), 0, 1);
        assert_eq!(space.apply(at(4), &out), Code::TargetStale);
    }
}

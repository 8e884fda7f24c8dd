//! Finds strided access in the order in which batches are touched, and predicts the next batches.
//!
//! Batches are numbered within their address space. A touch is known only by its tick, without an order within the tick, so
//! that a direction shows only between ticks:
//!
//! ```text
//!   tick 1   40 41 42            a run: 1 apart, in some direction
//!   tick 2            43 44 45   it goes on above: upwards, once
//!   tick 3                     46 47 48   twice
//!   tick 4                              49 50   a stream: 51, 52, ... come next
//! ```
//!
//! A run that continues `CONFIRMED` times at the same stride, in the same direction, is a stream, unless as many other batches
//! are touched around it: among many touches in no order some are always in line. The prediction is what the stream will reach
//! in the next `LEAD_TICKS`. It is limited to a few batches at first, and the limit doubles with each tick in which the stream
//! continues. A stream that has not continued for `PATIENCE` ticks is forgotten.

use alloc::vec::Vec;

/// The largest distance, in batches, between touches that may belong together.
const STRIDE_MAX: u64 = 64;
/// The most streams and runs. Beyond that, the one that has not continued for longest is forgotten, runs first.
const TRAILS_MAX: usize = 32;
/// How often a run must continue before it is a stream.
const CONFIRMED: u32 = 3;
/// Batches of a stream that may be missing in a row: touches in the fast tier are not reported.
const MISSING_MAX: u64 = 3;
/// How far ahead to predict, in ticks: a touch is reported up to two ticks late, and a decision takes time.
const LEAD_TICKS: f32 = 4.0;
/// The most batches predicted ahead of a stream: 32 MiB with pages of 4 KiB.
pub const AHEAD_MAX: u64 = 128;
/// How many ticks a stream may pause.
const PATIENCE: u64 = 32;

/// Batches that were touched at a stride.
#[derive(Clone, Copy, Debug)]
struct Trail {
    space: u32,
    /// The lowest and the highest batch of the last tick in which it continued.
    low: u64,
    high: u64,
    /// The distance between its batches; 0 until it has two.
    gap: u64,
    /// Whether it goes upwards; `None` until it has continued.
    up: Option<bool>,
    /// How often it has continued.
    moves: u32,
    tick: u64,
    /// Strides per tick, as observed.
    speed: f32,
    /// Predicted batches end this many strides ahead of its head.
    said: u64,
}

impl Trail {
    /// The batch `strides` strides beyond its last one, in this direction.
    fn after(&self, up: bool, strides: u64) -> Option<u64> {
        let distance = strides * self.gap;
        if up { self.high.checked_add(distance) } else { self.low.checked_sub(distance) }
    }
}

/// Batches that were touched in a tick.
#[derive(Clone, Debug, Default)]
struct Touched {
    /// Space and batch, in ascending order, without duplicates.
    batches: Vec<(u32, u64)>,
    /// Whether each belongs to a trail.
    taken: Vec<bool>,
}

impl Touched {
    fn sort(&mut self) {
        self.batches.sort_unstable();
        self.batches.dedup();
        self.taken.clear();
        self.taken.resize(self.batches.len(), false);
    }

    /// Takes a batch for a trail. Returns whether it was touched and not taken yet.
    fn take(&mut self, space: u32, batch: u64) -> bool {
        let found = self.batches.binary_search(&(space, batch));
        found.is_ok_and(|at| !core::mem::replace(&mut self.taken[at], true))
    }

    /// Distance from the batch at `at` to the next that no trail has taken; 0 if that is too far.
    fn to_next(&self, at: usize) -> u64 {
        let (space, low) = self.batches[at];
        let above = self.batches.iter().zip(&self.taken).skip(at + 1);
        let next = above
            .take_while(|((other, batch), _)| *other == space && batch - low <= STRIDE_MAX)
            .find(|(_, taken)| !**taken);
        next.map_or(0, |((_, batch), _)| batch - low)
    }

    /// Batches from `low` to `high`, taken or not.
    fn between(&self, space: u32, low: u64, high: u64) -> &[(u32, u64)] {
        let first = self.batches.partition_point(|touched| *touched < (space, low));
        let end = self.batches.partition_point(|touched| *touched <= (space, high));
        &self.batches[first..end]
    }
}

/// The batches touched in this tick, and the trails that they may continue.
#[derive(Clone, Debug, Default)]
pub struct Strides {
    trails: Vec<Trail>,
    touched: Touched,
}

impl Strides {
    /// No trails and no touches.
    pub fn new() -> Strides {
        Strides { trails: Vec::with_capacity(TRAILS_MAX), touched: Touched::default() }
    }

    /// A batch of this space was touched in this tick.
    pub fn touch(&mut self, space: u32, batch: u64) {
        self.touched.batches.push((space, batch));
    }

    /// The tick is over: calls `next` once for each batch that a stream is predicted to reach.
    pub fn turn(&mut self, tick: u64, mut next: impl FnMut(u32, u64)) {
        self.touched.sort();
        self.trails.retain(|trail| tick.saturating_sub(trail.tick) <= PATIENCE);
        // Streams first, so that no run takes their batches.
        self.trails.sort_by_key(|trail| core::cmp::Reverse(trail.moves));
        for trail in &mut self.trails {
            let ways =
                trail.up.map_or(&[true, false][..], |up| if up { &[true] } else { &[false] });
            let went = ways.iter().any(|up| go_on(trail, *up, tick, &mut self.touched));
            if went && trail.moves >= CONFIRMED {
                report_predictions(trail, &mut next);
            }
        }
        self.begin(tick);
        self.touched.batches.clear();
    }

    /// The remaining batches begin new trails.
    fn begin(&mut self, tick: u64) {
        for at in 0..self.touched.batches.len() {
            let (space, low) = self.touched.batches[at];
            if !self.touched.take(space, low) {
                continue;
            }
            let gap = self.touched.to_next(at);
            let mut high = low;
            while gap > 0 && self.touched.take(space, high + gap) {
                high += gap;
            }
            if self.trails.len() == TRAILS_MAX {
                let worth = |at: &usize| {
                    let trail = &self.trails[*at];
                    (trail.moves >= CONFIRMED, trail.tick)
                };
                self.trails.swap_remove((0..TRAILS_MAX).min_by_key(worth).unwrap_or(0));
            }
            let speed = 0.0;
            let (up, moves, said) = (None, 0, 0);
            self.trails.push(Trail { space, low, high, gap, up, moves, tick, speed, said });
        }
    }
}

/// Continues a trail in one direction with batches taken from `touched`. Returns whether it continues.
fn go_on(trail: &mut Trail, up: bool, tick: u64, touched: &mut Touched) -> bool {
    let Trail { space, low, high, .. } = *trail;
    let (least, most) = (low.saturating_sub(STRIDE_MAX), high.saturating_add(STRIDE_MAX));
    let mut head = *trail;
    if head.gap == 0 {
        // The nearest batch gives the stride.
        let near = if up {
            touched.between(space, high + 1, most).first()
        } else {
            touched.between(space, least, low).iter().rfind(|(_, batch)| *batch < low)
        };
        let Some((_, near)) = near else { return false };
        head.gap = near.abs_diff(low);
    }
    let (mut own, mut strides, mut first) = (0, 0, None);
    while let Some((batch, more)) = (1..=MISSING_MAX + 1).find_map(|more| {
        let batch = head.after(up, more)?;
        touched.take(space, batch).then_some((batch, more))
    }) {
        (own, strides) = (own + 1, strides + more);
        first = first.or(Some(batch));
        (head.low, head.high) = (batch, batch);
    }
    let Some(first) = first else { return false };
    let last = head.low;
    (head.low, head.high) = (first.min(last), first.max(last));
    // A program that passes through memory touches little else there: among many touches some are always in line.
    let (least, most) = (least.min(head.low), most.max(head.high));
    if 2 * own <= touched.between(space, least, most).len() {
        (head.moves, head.up) = (0, None);
    } else {
        let ticks = tick.saturating_sub(trail.tick).max(1);
        let speed = strides as f32 / ticks as f32;
        head.speed = if trail.moves == 0 { speed } else { (trail.speed + speed) / 2.0 };
        (head.moves, head.up) = (trail.moves + 1, Some(up));
    }
    (head.tick, head.said) = (tick, trail.said.saturating_sub(strides));
    *trail = head;
    true
}

/// Reports the batches that a stream will reach, each once.
fn report_predictions(trail: &mut Trail, next: &mut impl FnMut(u32, u64)) {
    let ramp = 1_u64.checked_shl(trail.moves).unwrap_or(AHEAD_MAX);
    let lead = libm::ceilf(trail.speed * LEAD_TICKS) as u64 + 1;
    let ahead = lead.min(ramp).min(AHEAD_MAX);
    let up = trail.up.unwrap_or_default();
    for strides in trail.said + 1..=ahead {
        if let Some(batch) = trail.after(up, strides) {
            next(trail.space, batch);
        }
    }
    trail.said = trail.said.max(ahead);
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use rand::{Rng, SeedableRng};
    use rand_pcg::Pcg64Mcg;

    /// The predictions, tick by tick.
    fn predictions(ticks: &[&[u64]]) -> Vec<Vec<u64>> {
        let mut strides = Strides::new();
        let mut all = Vec::new();
        for (tick, touched) in (0..).zip(ticks) {
            touched.iter().for_each(|batch| strides.touch(1, *batch));
            let mut next = Vec::new();
            strides.turn(tick, |space, batch| {
                assert_eq!(space, 1);
                next.push(batch);
            });
            all.push(next);
        }
        all
    }

    #[test]
    fn a_run_that_continues_becomes_a_stream() {
        let up =
            predictions(&[&[40, 41], &[42, 43], &[44, 45], &[46, 47], &[], &[48], &[49, 50, 51]]);
        assert_eq!(up[..3], [[0; 0]; 3]);
        assert_eq!(up[3..5], [(48..56).collect(), vec![]]);
        let more = up[5..].concat();
        assert!(
            !more.is_empty() && more.iter().copied().eq(56..56 + more.len() as u64),
            "{more:?}"
        );
        let down = predictions(&[&[40, 41, 42], &[37, 38, 39], &[34, 35, 36], &[33]]);
        assert_eq!(down[3], (25..=32).rev().collect::<Vec<_>>());
        let strided = predictions(&[&[40], &[45], &[50], &[55]]);
        assert_eq!(strided, [vec![], vec![], vec![], vec![60, 65, 70, 75, 80]]);
        let to_zero = predictions(&[&[27], &[20], &[13], &[6]]);
        assert_eq!(to_zero[3], [0; 0]);
        assert_eq!(
            predictions(&[&[0], &[0], &[0], &[0], &[0]]).concat(),
            [0; 0],
            "the run does not continue"
        );
    }

    #[test]
    fn a_stream_continues_over_gaps_and_beside_other_streams() {
        let missing = predictions(&[&[10, 11], &[12, 13], &[16, 17], &[18, 20]]);
        assert_eq!(missing[3].first(), Some(&21));
        let two = predictions(&[&[10, 500], &[11, 498], &[12, 496], &[13, 494]]);
        assert!(two[3].contains(&14) && two[3].contains(&492), "{two:?}");
        let crowded = predictions(&[&[10, 13, 17], &[11, 30, 34], &[12, 19, 28], &[13, 25, 31]]);
        assert_eq!(crowded.concat(), [0; 0]);
    }

    #[test]
    fn a_stream_that_pauses_too_long_is_forgotten() {
        let go = |rest: u64| {
            let mut strides = Strides::new();
            let mut next = 0;
            for (tick, batch) in [(0, 7), (1, 8), (2, 9), (3 + rest, 10)] {
                strides.touch(1, batch);
                strides.turn(tick, |_, _| next += 1);
            }
            next
        };
        assert!(go(PATIENCE - 1) > 0);
        assert_eq!(go(PATIENCE), 0);
    }

    /// Random order rarely looks like a stream, and the predictions from it are bounded.
    #[test]
    fn random_touches_are_rarely_a_stream() {
        let mut rng = Pcg64Mcg::seed_from_u64(1);
        let mut strides = Strides::new();
        let (mut touched, mut next) = (0, 0);
        for tick in 0..10_000 {
            for _ in 0..rng.random_range(0..4) {
                strides.touch(1, rng.random_range(0..4_096));
                touched += 1;
            }
            strides.turn(tick, |_, _| next += 1);
            assert!(strides.trails.len() <= TRAILS_MAX);
        }
        std::println!("{next} batches predicted, {touched} touched");
        assert!(next * 100 < touched, "{next} of {touched}");
    }
}

//! Finds strided access in the order in which batches are touched, and says which batches come next.
//!
//! Batches go by their number in their address space. What is known is only in which tick a batch was touched, not
//! in which order within it, so that a direction shows between ticks and not within one:
//!
//! ```text
//!   tick 1   40 41 42            a run: 1 apart, in some direction
//!   tick 2            43 44 45   it goes on above: upwards, once
//!   tick 3   .        .       46 47 48   twice: a stream; 49, 50, ... come next
//! ```
//!
//! A run that goes on twice at the same stride, in the same direction, is a stream. What is said to come next is what
//! the stream will reach in the next [`LEAD_TICKS`], at first no more than a few batches, and twice as many with each
//! tick in which it does go on. A stream that has not gone on for [`PATIENCE`] ticks is forgotten.

use alloc::vec::Vec;

/// Further apart than this, in batches, nothing is taken to belong together.
const STRIDE_MAX: u64 = 64;
/// Streams and runs that may become some: of more, the one that has not gone on for longest is forgotten, runs first.
const TRAILS_MAX: usize = 32;
/// How often a run has to go on until it is a stream.
const CONFIRMED: u32 = 2;
/// Batches of a stream that may be missing in a row: what is in the fast tier is not heard of.
const MISSING_MAX: u64 = 3;
/// How far ahead to look: a touch is heard of up to two ticks late, and what is decided takes time.
const LEAD_TICKS: f32 = 4.0;
/// How many batches are ahead of a stream at most: 32 MiB where a page has 4 KiB.
pub const AHEAD_MAX: u64 = 128;
/// How many ticks a stream may rest.
const PATIENCE: u64 = 32;

/// Batches that were touched at a stride.
#[derive(Clone, Copy, Debug)]
struct Trail {
    space: u32,
    /// The lowest and the highest of those of the tick in which it last went on.
    low: u64,
    high: u64,
    /// How far they are apart; 0 until there are two.
    gap: u64,
    /// Whether it goes up; not known until it went on.
    up: Option<bool>,
    /// How often it went on.
    moves: u32,
    tick: u64,
    /// Strides in a tick.
    speed: f32,
    /// What was said to come next ends before this many strides from the head.
    said: u64,
}

impl Trail {
    /// So many strides from where it was last, in this direction.
    fn after(&self, up: bool, strides: u64) -> Option<u64> {
        let distance = strides * self.gap;
        if up { self.high.checked_add(distance) } else { self.low.checked_sub(distance) }
    }
}

/// What was touched in this tick, and what it goes on from.
#[derive(Clone, Debug, Default)]
pub struct Strides {
    trails: Vec<Trail>,
    touched: Vec<(u32, u64)>,
}

impl Strides {
    /// That knows nothing.
    pub fn new() -> Strides {
        Strides { trails: Vec::with_capacity(TRAILS_MAX), touched: Vec::new() }
    }

    /// A batch of this space was touched in this tick.
    pub fn touch(&mut self, space: u32, batch: u64) {
        self.touched.push((space, batch));
    }

    /// The tick is over: `next` hears of each batch that a stream will reach, once.
    pub fn turn(&mut self, tick: u64, mut next: impl FnMut(u32, u64)) {
        self.touched.sort_unstable();
        self.touched.dedup();
        self.trails.retain(|trail| tick.saturating_sub(trail.tick) <= PATIENCE);
        // Streams first, so that no run takes what is theirs.
        self.trails.sort_by_key(|trail| core::cmp::Reverse(trail.moves));
        for trail in &mut self.trails {
            let ways =
                trail.up.map_or(&[true, false][..], |up| if up { &[true] } else { &[false] });
            let went = ways.iter().any(|up| go_on(trail, *up, tick, &mut self.touched));
            if went && trail.moves >= CONFIRMED {
                say(trail, &mut next);
            }
        }
        self.begin(tick);
    }

    /// What is left may be the beginning of something.
    fn begin(&mut self, tick: u64) {
        while let Some(&(space, first)) = self.touched.first() {
            let second = self.touched.get(1).filter(|(other, _)| *other == space);
            let gap = second.map_or(0, |(_, second)| second - first);
            let gap = if gap > STRIDE_MAX { 0 } else { gap };
            let mut high = first;
            remove(&mut self.touched, space, first);
            while gap > 0 && remove(&mut self.touched, space, high + gap) {
                high += gap;
            }
            if self.trails.len() == TRAILS_MAX {
                let worth = |at: &usize| {
                    let trail = &self.trails[*at];
                    (trail.moves >= CONFIRMED, trail.tick)
                };
                self.trails.swap_remove((0..TRAILS_MAX).min_by_key(worth).unwrap_or(0));
            }
            let (low, speed) = (first, 0.0);
            self.trails.push(Trail {
                space,
                low,
                high,
                gap,
                up: None,
                moves: 0,
                tick,
                speed,
                said: 0,
            });
        }
    }
}

fn remove(touched: &mut Vec<(u32, u64)>, space: u32, batch: u64) -> bool {
    let found = touched.binary_search(&(space, batch));
    found.map(|at| touched.remove(at)).is_ok()
}

/// Takes from `touched` what goes on from a trail in one direction. Returns whether anything does.
fn go_on(trail: &mut Trail, up: bool, tick: u64, touched: &mut Vec<(u32, u64)>) -> bool {
    if trail.gap == 0 {
        // The nearest one gives the stride.
        let reach = if up {
            trail.high + 1..trail.high.saturating_add(STRIDE_MAX + 1)
        } else {
            trail.low.saturating_sub(STRIDE_MAX)..trail.low
        };
        let mut near =
            touched.iter().filter(|(space, batch)| *space == trail.space && reach.contains(batch));
        let nearest = if up { near.next() } else { near.next_back() };
        let Some((_, nearest)) = nearest else { return false };
        trail.gap = nearest.abs_diff(trail.low);
    }
    let first = (1..=MISSING_MAX + 1).find_map(|strides| {
        let batch = trail.after(up, strides)?;
        remove(touched, trail.space, batch).then_some((batch, strides))
    });
    let Some((mut last, mut strides)) = first else { return false };
    let first = last;
    loop {
        let head = Trail { low: last, high: last, ..*trail };
        let found = (1..=MISSING_MAX + 1).find_map(|more| {
            let batch = head.after(up, more)?;
            remove(touched, trail.space, batch).then_some((batch, more))
        });
        let Some((batch, more)) = found else { break };
        (last, strides) = (batch, strides + more);
    }
    let ticks = tick.saturating_sub(trail.tick).max(1);
    let speed = strides as f32 / ticks as f32;
    trail.speed = if trail.moves == 0 { speed } else { (trail.speed + speed) / 2.0 };
    (trail.low, trail.high) = (first.min(last), first.max(last));
    (trail.up, trail.tick, trail.moves) = (Some(up), tick, trail.moves + 1);
    trail.said = trail.said.saturating_sub(strides);
    true
}

/// Tells what a stream will reach.
fn say(trail: &mut Trail, next: &mut impl FnMut(u32, u64)) {
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

    /// What is said to come next, tick by tick.
    fn said(ticks: &[&[u64]]) -> Vec<Vec<u64>> {
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
    fn a_run_that_goes_on_twice_is_a_stream() {
        let up = said(&[&[40, 41, 42], &[43, 44, 45], &[46, 47, 48], &[], &[49], &[50, 51]]);
        assert_eq!(up[..2], [[0; 0]; 2]);
        assert_eq!(up[2..4], [vec![49, 50, 51, 52], vec![]]);
        assert!(up[4..].concat().into_iter().eq(53..53 + up[4..].concat().len() as u64));
        let down = said(&[&[40, 41, 42], &[37, 38, 39], &[34, 35, 36]]);
        assert_eq!(down[2], [33, 32, 31, 30]);
        let strided = said(&[&[40], &[45], &[50, 55]]);
        assert_eq!(strided, [vec![], vec![], vec![60, 65, 70, 75]]);
        let to_zero = said(&[&[20], &[13], &[6]]);
        assert_eq!(to_zero[2], [0; 0]);
    }

    #[test]
    fn a_stream_goes_on_over_what_is_missing_and_beside_others() {
        let missing = said(&[&[10, 11], &[12, 13], &[16, 17], &[18, 20]]);
        assert_eq!((missing[2][0], missing[3][0] > missing[2][0]), (18, true));
        let two = said(&[&[10, 500], &[11, 498], &[12, 496], &[13, 494]]);
        assert!(two[2].contains(&13) && two[2].contains(&494), "{two:?}");
    }

    #[test]
    fn a_stream_that_rests_too_long_is_forgotten() {
        let go = |rest: u64| {
            let mut strides = Strides::new();
            let mut next = 0;
            for (tick, batch) in [(0, 7), (1, 8), (2 + rest, 9)] {
                strides.touch(1, batch);
                strides.turn(tick, |_, _| next += 1);
            }
            next
        };
        assert!(go(PATIENCE - 1) > 0);
        assert_eq!(go(PATIENCE), 0);
    }

    /// Without order there is little to see, and it is bounded what is made of that.
    #[test]
    fn touches_at_random_are_seldom_a_stream() {
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
        std::println!("{next} batches said to come next, {touched} touched");
        assert!(next * 5 < touched, "{next} of {touched}");
    }
}

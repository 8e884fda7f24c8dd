//! Iterations of SOL over 100 GiB, on one core and on two.
//!
//! An iteration decides what to scan and what to move, and takes in the readings; every one of the 409,600 batches is due. Fast
//! draws, exact draws, a peer, and both draws with the strips divided between two threads take turns; the first turns warm up.

use std::ops::Range;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use wave_core::clock::Nanos;
use wave_core::message::{Sequence, Subject};
use wave_core::policy::{Choice, Policy};
use wave_memory::beta::Sampling;
use wave_memory::policies::sol::{Settings, Sol};
use wave_memory::policies::{Explanation, Tiered, Tiering};
use wave_memory::wire::{Reading, STRIP_BATCHES, Strip};
use wave_process::cpus;

use wave_compare::{PerRound, in_turns};

use super::pin;

/// 100 GiB in strips of 16 MiB.
pub const STRIPS: u32 = 6_400;
pub const BATCHES: usize = STRIPS as usize * STRIP_BATCHES as usize;
/// Number of measured turns.
pub const ROUNDS: usize = 31;
const WARM_UP: usize = 2;
/// Seed of the access words and of the policies' draws.
pub const SEED: u64 = 1;
/// The only period: every batch is due each time.
pub const PERIOD: Nanos = Nanos::from_millis(300);

/// Access words of every batch: a fifth is hot, the others have a few young pages.
pub fn access_words() -> Vec<[u64; 2]> {
    let mut rng = Pcg64Mcg::seed_from_u64(SEED);
    let mut word = || rng.random::<u64>();
    let young = |at: usize| {
        if at.is_multiple_of(5) { word() | word() } else { word() & word() & word() }
    };
    (0..BATCHES).map(young).map(|young| [young, u64::MAX]).collect()
}

/// The access words of these strips as readings, as they cross the link.
pub fn readings(words: &[[u64; 2]], strips: Range<u32>, interval: Nanos) -> Vec<u64> {
    let mut extent = Vec::new();
    for id in strips {
        let first = id as usize * STRIP_BATCHES as usize;
        let reading = Reading {
            strip: Subject { id, generation: 1 },
            sequence: Sequence(1),
            interval_us: (interval.0 / 1_000) as u32,
            batches: u64::MAX,
            words: &words[first..first + STRIP_BATCHES as usize],
        };
        reading.write(&mut extent);
    }
    extent
}

/// A policy that manages some strips, and its counters.
pub struct Agent {
    policy: Tiered<Sol>,
    readings: Vec<u64>,
    now: Nanos,
}

impl Agent {
    /// Creates an agent that manages these strips, and takes in `readings` at each iteration.
    pub fn new(settings: Settings, strips: Range<u32>, readings: Vec<u64>) -> Agent {
        let mut policy = Tiered::new(Sol::new(settings), strips.end, SEED);
        for id in strips {
            let strip = Subject { id, generation: 1 };
            let all = u64::MAX;
            let told = Strip {
                strip,
                sequence: Sequence(1),
                mapped: all,
                void: all,
                huge: 0,
                place: Default::default(),
            };
            policy.on_message(Nanos(0), &told.to_message());
        }
        Agent { policy, readings, now: Nanos(0) }
    }

    /// An agent for which every batch is always due.
    fn busy(sampling: Sampling, words: &[[u64; 2]], strips: Range<u32>) -> Agent {
        let settings = Settings { shortest: PERIOD, levels: 1, sampling, ..Settings::default() };
        Agent::new(settings, strips.clone(), readings(words, strips, PERIOD))
    }

    /// Runs an iteration, then moves the time on by `period`. Calls `made` with each decision.
    pub fn iterate(&mut self, period: Nanos, mut made: impl FnMut(Choice)) {
        while let Some(choice) = self.policy.next(self.now) {
            made(choice);
        }
        self.policy.on_bulk(self.now, &self.readings).expect("the readings are well-formed");
        self.now = self.now + period;
    }

    /// The policy's belief about a batch, if it manages the strip.
    pub fn explain(&self, strip: u32, batch: u32) -> Option<Explanation> {
        self.policy.explain(strip, batch)
    }

    /// Runs an iteration, which must decide on every strip. Returns its start and its end.
    fn timed(&mut self, strips: u32) -> [Instant; 2] {
        let start = Instant::now();
        let mut decisions = 0;
        self.iterate(PERIOD, |_| decisions += 1);
        let end = Instant::now();
        assert!(decisions >= strips, "only {decisions} decisions, although every batch was due");
        [start, end]
    }
}

/// Divides the strips into `count` ranges.
pub fn parts(count: u32) -> impl Iterator<Item = Range<u32>> {
    (0..count).map(move |part| STRIPS * part / count..STRIPS * (part + 1) / count)
}

/// Runs two halves at once, each on its own CPU. Returns the time from the first start to the last end.
fn on_two_cores(halves: &mut [Agent], cpus: [usize; 2]) -> Result<Duration, String> {
    let ready = Barrier::new(halves.len());
    let run = |(half, cpu): (&mut Agent, usize)| {
        let pinned = pin(cpu);
        ready.wait();
        pinned.map(|()| half.timed(STRIPS / 2))
    };
    let times = std::thread::scope(|scope| {
        let mut halves = halves.iter_mut().zip(cpus);
        let own = halves.next();
        let others: Vec<_> = halves.map(|other| scope.spawn(|| run(other))).collect();
        let own = own.map(run);
        let others =
            others.into_iter().map(|other| other.join().expect("an iteration does not panic"));
        own.into_iter().chain(others).collect::<Result<Vec<_>, _>>()
    })?;
    let start = times.iter().map(|[start, _]| *start).min();
    let end = times.iter().map(|[_, end]| *end).max();
    Ok(start.zip(end).map_or(Duration::ZERO, |(start, end)| end - start))
}

/// Durations of iterations, in milliseconds.
pub struct Iterations {
    pub fast: PerRound,
    pub exact: PerRound,
    pub peer: PerRound,
    /// With fast draws, the strips divided between two threads.
    pub fast_on_two: PerRound,
    /// The same with exact draws.
    pub exact_on_two: PerRound,
    /// Final warmth of the first batch, by the policy with fast draws.
    pub warmth: f64,
}

/// Times iterations of SOL and of `peer`, which gets the round and the access words. Needs two CPUs.
pub fn iterations(mut peer: impl FnMut(usize, &[[u64; 2]])) -> Result<Iterations, String> {
    let cpus = cpus::two()?;
    pin(cpus[0])?;
    let words = access_words();
    let agents = |sampling: Sampling, count: u32| {
        parts(count).map(|part| Agent::busy(sampling, &words, part)).collect::<Vec<_>>()
    };
    let mut whole = [Sampling::Fast, Sampling::Exact].map(|sampling| agents(sampling, 1).remove(0));
    let mut halves = [Sampling::Fast, Sampling::Exact].map(|sampling| agents(sampling, 2));
    let mut peer_round = 0;
    let measured: [Vec<f64>; 5] = in_turns(SEED, WARM_UP, ROUNDS, |row| {
        let took = match row {
            0 | 1 => {
                let [start, end] = whole[row].timed(STRIPS);
                end - start
            }
            2 => {
                let start = Instant::now();
                peer(peer_round, &words);
                peer_round += 1;
                start.elapsed()
            }
            _ => on_two_cores(&mut halves[row - 3], cpus)?,
        };
        Ok::<_, String>(took.as_secs_f64() * 1e3)
    })?;
    let warmth = whole[0].explain(0, 0).map_or(f64::NAN, |batch| batch.warmth.into());
    let [fast, exact, peer, fast_on_two, exact_on_two] = measured.map(PerRound::from_iter);
    Ok(Iterations { fast, exact, peer, fast_on_two, exact_on_two, warmth })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_every_strip_once() {
        for count in [1, 2, 3, 7] {
            assert!(parts(count).flatten().eq(0..STRIPS));
        }
    }
}

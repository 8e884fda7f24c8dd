//! Access patterns: which page of its memory one of our programs uses next.

use std::time::Duration;

use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Normal, Zipf};
use rand_pcg::Pcg64Mcg;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::program::paced;

const PAGE: usize = 4096;
const PAGE_WORDS: usize = PAGE / 8;
/// Words of a batch of 256 KiB.
const BATCH_WORDS: usize = 64 * PAGE_WORDS;
/// Share of the accesses that go to the hot fifth.
const HOT_ACCESSES: f64 = 0.999;
/// Number of parts of the memory; one of them is hot.
const PARTS: usize = 5;
/// Pages of every batch that are always in use, like an allocator's free lists, and the share of accesses to them.
const BUSY: [usize; 3] = [0, 21, 42];
const BUSY_ACCESSES: f64 = 0.25;
/// Share of the accesses that scan the cold part, page by page.
const SCAN_ACCESSES: f64 = 0.05;
/// Hot share of a growing working set, at the start and at the end of a phase.
const GROWING: [f64; 2] = [0.1, 0.5];
/// Bursts: the part of each phase that has a burst, and the burst's share of the accesses.
const BURST_TIME: f64 = 0.25;
const BURST_ACCESSES: f64 = 0.5;
/// Walks over linked nodes: nodes per walk, and the standard deviation of the walks' starts as a share of all nodes.
const WALK_NODES: usize = 16;
const WALK_DEVIATION: f64 = 0.05;

/// Which pages the program uses, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// 99.9% of the accesses go to the first fifth of the memory, the rest to the rest.
    HotSet,
    /// As `hot-set`, but a quarter of the accesses goes to three pages of every 256 KiB.
    Metadata,
    /// A Zipf distribution with exponent 0.99 over pages in the order of their addresses.
    Zipf,
    /// A hot fifth; each phase moves it to the next fifth.
    Phases,
    /// A redis server, with GETs of the first half of its keys.
    Redis,
    /// A hot fifth, and a scan that loops over the rest page by page.
    ScanLoop,
    /// A hot set that grows from a tenth to half of the memory during each phase.
    Growing,
    /// A hot fifth, and in the first quarter of each phase a second one.
    Bursts,
    /// Walks along a list whose nodes are scattered over the memory; the starts are normally distributed.
    LinkedNodes,
    /// A Python dict; most lookups go to its newest fifth.
    PythonDict,
}

impl Pattern {
    /// The pattern as a phrase for the report.
    pub fn describe(self) -> &'static str {
        match self {
            Pattern::HotSet => {
                "99.9% of the accesses go to the first fifth of the pages, the others to the rest"
            }
            Pattern::Metadata => {
                "as the hot set, and a quarter of the accesses goes to three pages in every 256 KiB"
            }
            Pattern::Zipf => "Zipf of 0.99 over pages in the order of their addresses",
            Pattern::Phases => "a hot fifth of the pages, and after each phase the next one",
            Pattern::Redis => "GETs of the first half of redis's keys, which were set in order",
            Pattern::ScanLoop => {
                "95% of the accesses go to the first fifth of the pages, the others go through the rest in order, \
                 again and again"
            }
            Pattern::Growing => {
                "uniform over the first pages: a tenth of all, growing to half of all in each phase"
            }
            Pattern::Bursts => {
                "a hot fifth of the pages, and in the first quarter of each phase half of the accesses go to the \
                 next fifth"
            }
            Pattern::LinkedNodes => {
                "walks over 16 pages each of a list that is scattered at random over all pages; they begin around \
                 the list's middle, with a standard deviation of a twentieth of it"
            }
            Pattern::PythonDict => {
                "lookups in a Python dict with values of 256 bytes: 95% of the newest fifth of its keys, the others \
                 of the rest"
            }
        }
    }

    /// Whether the pages in use depend on the time within a phase.
    pub fn has_phases(self) -> bool {
        matches!(self, Pattern::Phases | Pattern::Growing | Pattern::Bursts)
    }
}

/// Memory of this process, and the state of its access pattern.
pub struct Memory {
    pattern: Pattern,
    phase: Duration,
    words: Vec<u64>,
    /// Index of the first word on a batch boundary.
    first: usize,
    pages: usize,
    rng: Pcg64Mcg,
    zipf: Zipf<f64>,
    /// The page that a scan visits next.
    scan: usize,
    /// Pages in the order of the list's nodes, the next node to visit, and the number of nodes left in this walk.
    nodes: Vec<u32>,
    node: usize,
    nodes_left: usize,
    walk_begins: Normal<f64>,
}

impl Memory {
    /// Allocates the memory and fills it.
    pub fn new(pattern: Pattern, phase: Duration, bytes: u64, seed: u64) -> Memory {
        let pages = (bytes as usize / PAGE).max(PARTS * 64);
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let mut words = vec![0_u64; pages * PAGE_WORDS + BATCH_WORDS];
        let first = words.as_ptr().align_offset(BATCH_WORDS * 8);
        // Half of each page can be compressed.
        for page in words[first..].chunks_mut(PAGE_WORDS).take(pages) {
            page[..PAGE_WORDS / 2].fill_with(|| rng.random());
            page[PAGE_WORDS / 2..].fill(1);
        }
        let zipf = Zipf::new(pages as f64, 0.99).expect("at least one page, and a valid exponent");
        let mut nodes = Vec::new();
        if pattern == Pattern::LinkedNodes {
            nodes.extend(0..pages as u32);
            nodes.shuffle(&mut rng);
        }
        let walk_begins = Normal::new(pages as f64 / 2.0, pages as f64 * WALK_DEVIATION);
        let walk_begins = walk_begins.expect("the deviation is a number");
        let (scan, node, nodes_left) = (pages / PARTS, 0, 0);
        Memory {
            pattern,
            phase,
            words,
            first,
            pages,
            rng,
            zipf,
            scan,
            nodes,
            node,
            nodes_left,
            walk_begins,
        }
    }

    fn page(&mut self, time: Duration) -> usize {
        let part = self.pages / PARTS;
        let phases = time.as_secs_f64() / self.phase.as_secs_f64();
        let rng = &mut self.rng;
        match self.pattern {
            Pattern::Zipf => return (self.zipf.sample(rng) as usize - 1).min(self.pages - 1),
            Pattern::Metadata if rng.random_bool(BUSY_ACCESSES) => {
                let batch = rng.random_range(0..self.pages / 64);
                return batch * 64 + BUSY[rng.random_range(0..BUSY.len())];
            }
            Pattern::ScanLoop => {
                if !rng.random_bool(SCAN_ACCESSES) {
                    return rng.random_range(0..part);
                }
                let page = self.scan;
                self.scan = if page + 1 < self.pages { page + 1 } else { part };
                return page;
            }
            Pattern::Growing => {
                let [from, to] = GROWING;
                let share = from + (to - from) * phases.fract();
                return rng.random_range(0..(share * self.pages as f64) as usize);
            }
            Pattern::Bursts if phases.fract() < BURST_TIME && rng.random_bool(BURST_ACCESSES) => {
                return rng.random_range(part..2 * part);
            }
            Pattern::LinkedNodes => {
                if self.nodes_left == 0 {
                    let last = (self.pages - WALK_NODES) as f64;
                    self.node = self.walk_begins.sample(rng).clamp(0.0, last) as usize;
                    self.nodes_left = WALK_NODES;
                }
                let page = self.nodes[self.node] as usize;
                (self.node, self.nodes_left) = (self.node + 1, self.nodes_left - 1);
                return page;
            }
            _ => {}
        }
        let begin = match self.pattern {
            Pattern::Phases => phases as usize % PARTS * part,
            _ => 0,
        };
        let offset = match rng.random_bool(HOT_ACCESSES) {
            true => rng.random_range(0..part),
            false => rng.random_range(part..self.pages),
        };
        (begin + offset) % self.pages
    }

    /// Accesses the memory at `rate` accesses per second, for ever.
    pub fn use_at(mut self, rate: f64) -> std::io::Result<()> {
        paced(rate, |time, count| {
            for _ in 0..count {
                let page = self.page(time);
                let at = self.first + page * PAGE_WORDS + self.rng.random_range(0..PAGE_WORDS);
                // Half of the accesses are writes.
                let word = std::hint::black_box(self.words[at]);
                if self.rng.random() {
                    self.words[at] = std::hint::black_box(word);
                }
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PHASE: Duration = Duration::from_secs(3);

    fn shares(pattern: Pattern, time: Duration) -> Vec<f64> {
        let mut memory = Memory::new(pattern, PHASE, 4 << 20, 7);
        let (pages, count) = (memory.pages, 200_000);
        let mut shares = vec![0.0; pages];
        (0..count).for_each(|_| shares[memory.page(time)] += 1.0 / f64::from(count));
        shares
    }

    fn part(shares: &[f64], at: usize) -> f64 {
        let pages = shares.len() / PARTS;
        shares[at * pages..(at + 1) * pages].iter().sum()
    }

    #[test]
    fn patterns_access_the_pages_in_their_description() {
        let hot = shares(Pattern::HotSet, PHASE);
        assert!((part(&hot, 0) - HOT_ACCESSES).abs() < 0.001, "{}", part(&hot, 0));
        let phases = shares(Pattern::Phases, PHASE);
        assert!(part(&phases, 1) > 0.99 && part(&phases, 0) < 0.01);
        let busy = shares(Pattern::Metadata, PHASE);
        let of_busy: f64 = (0..busy.len() / 64)
            .filter(|batch| *batch > busy.len() / 64 / PARTS)
            .flat_map(|batch| BUSY.map(|page| busy[batch * 64 + page]))
            .sum();
        assert!(of_busy > 0.15, "{of_busy}");
        let zipf = shares(Pattern::Zipf, PHASE);
        assert!(zipf[0] > 0.1 && zipf[0] > 1.8 * zipf[1] && part(&zipf, 4) > 0.01);
    }

    #[test]
    fn scan_visits_every_cold_page_equally() {
        let scanned = shares(Pattern::ScanLoop, PHASE);
        assert!((part(&scanned, 0) - (1.0 - SCAN_ACCESSES)).abs() < 0.005);
        let rest = &scanned[scanned.len() / PARTS..];
        let [least, most] = [f64::min, f64::max].map(|of| rest.iter().copied().reduce(of).unwrap());
        // Each loop visits each page once: they differ by one visit at most.
        assert!(least > 0.0 && most - least < 1.5 / 200_000.0, "{least} {most}");
    }

    #[test]
    fn working_set_grows_within_a_phase() {
        let used = |share: f64| {
            let shares = shares(Pattern::Growing, PHASE.mul_f64(share));
            shares.iter().filter(|share| **share > 0.0).count() as f64 / shares.len() as f64
        };
        for (time, share) in [(0.0, 0.1), (0.5, 0.3), (0.999, 0.5), (1.0, 0.1)] {
            assert!((used(time) - share).abs() < 0.01, "{time}: {}", used(time));
        }
    }

    #[test]
    fn burst_uses_another_fifth_for_a_quarter_of_a_phase() {
        for (time, second_part) in [(0.1, BURST_ACCESSES), (0.3, 0.0), (1.2, BURST_ACCESSES)] {
            let shares = shares(Pattern::Bursts, PHASE.mul_f64(time));
            assert!((part(&shares, 1) - second_part).abs() < 0.01, "{time}: {}", part(&shares, 1));
        }
    }

    #[test]
    fn linked_nodes_are_scattered_and_a_fifth_is_hot() {
        let shares = shares(Pattern::LinkedNodes, PHASE);
        // No part of the addresses is preferred ...
        for at in 0..PARTS {
            assert!((part(&shares, at) - 0.2).abs() < 0.1, "{at}: {}", part(&shares, at));
        }
        // ... but most accesses go to nodes within two standard deviations of the middle.
        let mut sorted = shares.clone();
        sorted.sort_by(|a, b| b.total_cmp(a));
        let hot: f64 = sorted[..shares.len() / PARTS].iter().sum();
        assert!((0.9..0.99).contains(&hot), "{hot}");
    }
}

//! Measures the time of a refault on pages of this process: from touching a paged-out page until it is back.

use std::io;
use std::time::Instant;

use wave_core::clock::Nanos;

use super::pattern::Mapping;

const PAGE: usize = 4096;
/// Number of pages that are paged out. Some stay: the kernel holds back up to 31 new pages per CPU.
const PAGES: usize = 256;
/// Fewest pages that must leave for a valid measurement.
const PAGES_LEAST: usize = 64;
/// Step through all pages: not 1, as the kernel would read the next page ahead.
const STEP: usize = 37;
/// Most attempts to make the pages leave. To a disk, the first one only starts to write them.
const TRIES: u32 = 8;

/// Medians over the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Times {
    /// Of a page that is read from swap.
    pub from_swap: Nanos,
    /// Of a page that is still in memory, in the kernel's swap cache. Zero where swap keeps none.
    pub from_cache: Nanos,
}

impl Times {
    /// The mean time of `refaults`, for `reads` of which a program waited for swap.
    pub(super) fn mean(self, refaults: u64, reads: u64) -> Nanos {
        let reads = reads.min(refaults);
        match refaults {
            0 => self.from_swap,
            _ => {
                let sum = reads * self.from_swap.0 + (refaults - reads) * self.from_cache.0;
                Nanos(sum / refaults)
            }
        }
    }
}

/// A measurement, which may take several attempts: a page that goes to a disk leaves only once it is written.
#[derive(Debug)]
pub(super) struct Probe {
    pages: Pages,
    from_cache: Vec<Nanos>,
    tries: u32,
}

/// The state of a measurement.
#[derive(Debug)]
pub(super) enum Probed {
    Done(Times),
    /// Try again in a moment.
    NotYet(Probe),
    /// Too few pages leave.
    Failed,
}

impl Probe {
    pub(super) fn new() -> Result<Probe, String> {
        Ok(Probe { pages: Pages::new()?, from_cache: Vec::new(), tries: 0 })
    }

    /// Pages the memory out, and touches it if it has left. It waits for no write.
    pub(super) fn attempt(mut self) -> Probed {
        if self.tries > 0 {
            // Still in the swap cache, where no advice reaches it.
            let touched = (0..PAGES).map(|page| self.pages.touch(page));
            self.from_cache = touched.collect();
        }
        let away = match self.pages.page_out() {
            Ok(()) => self.pages.away(),
            Err(_) => return Probed::Failed,
        };
        self.tries += 1;
        if away.len() >= PAGES_LEAST {
            let (from_swap, from_cache) = (self.pages.read_back(&away), median(self.from_cache));
            return match median(from_swap) {
                Some(from_swap) => {
                    let from_cache = from_cache.unwrap_or(Nanos(0)).min(from_swap);
                    Probed::Done(Times { from_swap, from_cache })
                }
                None => Probed::Failed,
            };
        }
        match self.tries < TRIES {
            true => Probed::NotYet(self),
            false => Probed::Failed,
        }
    }
}

/// The median: in some measurements this thread waits for a CPU.
fn median(mut times: Vec<Nanos>) -> Option<Nanos> {
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}

#[derive(Debug)]
struct Pages(Mapping);

impl Pages {
    fn new() -> Result<Pages, String> {
        let pages = Pages(Mapping::new(PAGES * PAGE)?);
        // SAFETY: advice on memory of ours.
        unsafe { libc::madvise(pages.start().cast(), PAGES * PAGE, libc::MADV_NOHUGEPAGE) };
        pages.fill();
        Ok(pages)
    }

    fn start(&self) -> *mut u8 {
        self.0.at.as_ptr()
    }

    fn word(&self, page: usize, word: usize) -> *mut u64 {
        debug_assert!(page < PAGES && word < PAGE / 8);
        // SAFETY: within the mapping.
        unsafe { self.start().add(page * PAGE + word * 8).cast() }
    }

    /// Fills the pages with contents that compress to about half.
    fn fill(&self) {
        for page in 0..PAGES {
            for word in 0..PAGE / 8 {
                let mixed = ((page * PAGE + word) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let value = if word % 2 == 0 { page as u64 } else { mixed ^ mixed >> 29 };
                // SAFETY: ours, and aligned.
                unsafe { self.word(page, word).write_volatile(value) };
            }
        }
    }

    fn page_out(&self) -> io::Result<()> {
        // SAFETY: advice on memory of ours.
        match unsafe { libc::madvise(self.start().cast(), PAGES * PAGE, libc::MADV_PAGEOUT) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Pages that are not in memory, in an order in which no page follows its neighbour.
    fn away(&self) -> Vec<usize> {
        let mut there = [1_u8; PAGES];
        // SAFETY: the answer has a byte for each page of the mapping.
        unsafe { libc::mincore(self.start().cast(), PAGES * PAGE, there.as_mut_ptr()) };
        let is_away = |page: &usize| there[*page] & 1 == 0;
        (0..PAGES).map(|at| at * STEP % PAGES).filter(is_away).collect()
    }

    /// Touches these pages. Returns the times of those that the kernel had not read ahead by then.
    fn read_back(&self, away: &[usize]) -> Vec<Nanos> {
        let is_away = |page: usize| {
            let mut there = 1_u8;
            // SAFETY: the page is ours, and the answer has one byte.
            unsafe { libc::mincore(self.word(page, 0).cast(), PAGE, &mut there) };
            there & 1 == 0
        };
        away.iter().filter(|page| is_away(**page)).map(|page| self.touch(*page)).collect()
    }

    fn touch(&self, page: usize) -> Nanos {
        let began = Instant::now();
        // SAFETY: ours, and aligned.
        std::hint::black_box(unsafe { self.word(page, 0).read_volatile() });
        Nanos(began.elapsed().as_nanos() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refault_from_the_swap_cache_costs_a_minor_fault() {
        let times = Times { from_swap: Nanos(80_000), from_cache: Nanos(1_000) };
        assert_eq!(times.mean(0, 0), Nanos(80_000), "the worst is assumed before the first");
        assert_eq!(times.mean(100, 0), Nanos(1_000));
        assert_eq!(times.mean(100, 25), Nanos(20_750));
        assert_eq!(times.mean(100, 500), Nanos(80_000), "other reads count for nothing");
    }
}

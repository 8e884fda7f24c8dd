//! Measures the time of a refault on pages of this process: from touching a paged-out page until it is back.

use std::io;
use std::ptr::NonNull;
use std::time::Instant;

use wave_core::clock::Nanos;

const PAGE: usize = 4096;
/// Number of pages that are paged out. Some stay: the kernel holds back up to 31 new pages per CPU.
const PAGES: usize = 256;
/// Fewest pages that must leave for a valid measurement.
const PAGES_LEAST: usize = 64;
/// Number of pages timed together, as the kernel may read some ahead. The result is the median of all groups, because in some
/// this thread waits for a CPU.
const GROUP: usize = 16;
const ROUNDS: usize = 3;
/// Step through all pages: not 1, as the kernel would read the next page ahead.
const STEP: usize = 37;

/// Pages out some pages of this process and touches them. `None` if too few leave.
pub(super) fn measure() -> Option<Nanos> {
    let pages = Pages::new().ok()?;
    let mut groups: Vec<Nanos> = (0..ROUNDS).flat_map(|_| pages.round()).collect();
    groups.sort_unstable();
    groups.get(groups.len() / 2).copied()
}

struct Pages(NonNull<u8>);

impl Pages {
    fn new() -> io::Result<Pages> {
        let (access, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: asks for a new mapping, and gives advice on it.
        let at = unsafe {
            let at = libc::mmap(std::ptr::null_mut(), PAGES * PAGE, access, flags, -1, 0);
            if at != libc::MAP_FAILED {
                libc::madvise(at, PAGES * PAGE, libc::MADV_NOHUGEPAGE);
            }
            at
        };
        match NonNull::new(at.cast()) {
            Some(start) if at != libc::MAP_FAILED => {
                let pages = Pages(start);
                pages.fill();
                Ok(pages)
            }
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn word(&self, page: usize, word: usize) -> *mut u64 {
        debug_assert!(page < PAGES && word < PAGE / 8);
        // SAFETY: within the mapping.
        unsafe { self.0.as_ptr().add(page * PAGE + word * 8).cast() }
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

    /// Pages out the memory once. Returns the time per page of each group.
    fn round(&self) -> Vec<Nanos> {
        let mut there = [0_u8; PAGES];
        let start = self.0.as_ptr().cast();
        // SAFETY: advice on memory of ours, and an answer with a byte for each of its pages.
        let asked = unsafe {
            libc::madvise(start, PAGES * PAGE, libc::MADV_PAGEOUT) == 0
                && libc::mincore(start, PAGES * PAGE, there.as_mut_ptr()) == 0
        };
        let is_away = |page: &usize| there[*page] & 1 == 0;
        let away: Vec<usize> = (0..PAGES).map(|at| at * STEP % PAGES).filter(is_away).collect();
        if !asked || away.len() < PAGES_LEAST {
            return Vec::new();
        }
        let groups = away.chunks_exact(GROUP).map(|group| {
            let began = Instant::now();
            for &page in group {
                // SAFETY: ours, and aligned.
                std::hint::black_box(unsafe { self.word(page, 0).read_volatile() });
            }
            Nanos(began.elapsed().as_nanos() as u64 / GROUP as u64)
        });
        groups.collect()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this size, and not used any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), PAGES * PAGE) };
    }
}

//! What it takes until a page that was paged out is there again when it is touched: measured on pages of this process.

use std::io;
use std::ptr::NonNull;
use std::time::Instant;

use wave_core::clock::Nanos;

const PAGE: usize = 4096;
/// Some of them stay: the kernel holds up to 31 new pages per CPU.
const PAGES: usize = 256;
/// As few as these tell nothing.
const PAGES_LEAST: usize = 64;
/// Pages that are timed together, as the kernel may read some ahead. The median of all groups counts: in some this thread
/// waited for a CPU.
const GROUP: usize = 16;
const ROUNDS: usize = 3;
/// A step through all pages that is not the next one, which the kernel would read ahead.
const STEP: usize = 37;

/// Pages out some pages of our own and touches them. None where too few leave.
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

    /// About half of each can be compressed away.
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

    /// What a page took, in each group.
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

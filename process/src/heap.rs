//! The heap's free memory.

use std::fs::File;
use std::os::unix::fs::FileExt;

use wave_core::clock::Nanos;

/// Shortest interval between polls of a process's memory.
const POLL_EVERY: Nanos = Nanos::from_millis(500);
/// Consecutive polls that find free memory before it is returned. Memory that is soon used again is in use at one of them.
const POLLS_BEFORE_TRIM: u32 = 4;
/// Smaller amounts are not worth returning.
const RELEASE_BYTES: usize = 4 << 20;

/// Returns whole free pages of the heap to the kernel, including those between pages in use: glibc by itself returns only pages
/// at the heap's end. It takes milliseconds for each 10 MiB, in which other threads may wait for memory. Does nothing with
/// other C libraries.
pub fn release() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it touches free memory only, and takes the allocator's own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Bytes of the heap in use. `None` with C libraries other than glibc.
fn in_use() -> Option<usize> {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: it reads the allocator's own records under their locks.
        let info = unsafe { libc::mallinfo2() };
        Some(info.uordblks + info.hblkhd)
    }
    #[cfg(not(target_env = "gnu"))]
    None
}

/// Returns free memory of the heap once a flood is over (docs/adr/0089).
#[derive(Debug)]
pub struct Spare {
    /// `/proc/self/statm`; without it nothing is returned.
    statm: Option<File>,
    watch: Watch,
    /// The process has worked since the last poll, so its memory may have changed.
    has_worked: bool,
    polled_at: Nanos,
}

impl Default for Spare {
    fn default() -> Spare {
        Spare::new()
    }
}

impl Spare {
    /// Watches this process's memory from now on.
    pub fn new() -> Spare {
        let statm = File::open("/proc/self/statm").ok();
        let mut spare =
            Spare { statm, watch: Watch::default(), has_worked: true, polled_at: Nanos(0) };
        spare.watch = spare.resident().map_or(Watch::default(), |bytes| Watch::new(bytes, in_use));
        spare
    }

    /// Returns memory if much is free. Call it often, best while there is nothing else to do; `has_worked` says whether the
    /// process has done something since the last call.
    pub fn trim(&mut self, now: Nanos, has_worked: bool) {
        self.has_worked |= has_worked;
        let may_be_due = self.has_worked || self.watch.polls > 0;
        if !may_be_due || now.since(self.polled_at) < POLL_EVERY {
            return;
        }
        (self.polled_at, self.has_worked) = (now, false);
        let Some(resident) = self.resident() else { return };
        if self.watch.is_due(resident, in_use) {
            release();
            if let Some(resident) = self.resident() {
                self.watch.released(resident, in_use);
            }
        }
    }

    fn resident(&self) -> Option<usize> {
        let mut text = [0; 128];
        let bytes = self.statm.as_ref()?.read_at(&mut text, 0).ok()?;
        let pages = std::str::from_utf8(&text[..bytes]).ok()?.split(' ').nth(1)?;
        Some(pages.parse::<usize>().ok()? * page_bytes())
    }
}

/// Bytes in a page of this kernel. Not from rustix, which reads the program's auxiliary vector itself and crashes under valgrind.
pub fn page_bytes() -> usize {
    // SAFETY: sysconf takes no pointers.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// Decides when memory is returned. Resident memory beyond the heap's memory in use is free memory, code, stacks and
/// windows. Of these, only free memory grows in a flood and stays.
#[derive(Debug, Default)]
struct Watch {
    /// The least resident memory so far. While little more is resident, a poll of the heap is not worth its cost.
    least: usize,
    /// The least resident memory without the heap's memory in use since memory was last returned.
    apart: isize,
    /// Consecutive polls that found free memory.
    polls: u32,
}

impl Watch {
    fn new(resident: usize, in_use: impl Fn() -> Option<usize>) -> Watch {
        Watch { least: resident, apart: apart(resident, in_use()).unwrap_or(0), polls: 0 }
    }

    fn is_due(&mut self, resident: usize, in_use: impl Fn() -> Option<usize>) -> bool {
        self.polls = if self.is_much_free(resident, in_use) { self.polls + 1 } else { 0 };
        self.polls >= POLLS_BEFORE_TRIM
    }

    fn is_much_free(&mut self, resident: usize, in_use: impl Fn() -> Option<usize>) -> bool {
        self.least = self.least.min(resident);
        if resident - self.least < RELEASE_BYTES {
            return false;
        }
        let Some(apart) = apart(resident, in_use()) else { return false };
        self.apart = self.apart.min(apart);
        apart - self.apart >= RELEASE_BYTES as isize
    }

    /// Memory was returned: what is left apart from the heap's memory in use is not free.
    fn released(&mut self, resident: usize, in_use: impl Fn() -> Option<usize>) {
        self.least = self.least.min(resident);
        self.apart = apart(resident, in_use()).unwrap_or(self.apart);
        self.polls = 0;
    }
}

fn apart(resident: usize, in_use: Option<usize>) -> Option<isize> {
    Some(resident as isize - in_use? as isize)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    impl Watch {
        /// Polls until memory is due. Returns the number of polls, at most [`POLLS_BEFORE_TRIM`] and one.
        fn polls_until_due(&mut self, resident: usize, in_use: usize) -> u32 {
            (1..=POLLS_BEFORE_TRIM)
                .find(|_| self.is_due(resident, || Some(in_use)))
                .unwrap_or(POLLS_BEFORE_TRIM + 1)
        }
    }

    const NEVER: u32 = POLLS_BEFORE_TRIM + 1;

    #[test]
    fn memory_is_returned_once_after_a_flood() {
        let mut watch = Watch::new(10 * MIB, || Some(MIB));
        // A flood takes memory, and all of it is in use.
        assert_eq!(watch.polls_until_due(110 * MIB, 101 * MIB), NEVER);
        // It is over, and nothing has gone back.
        assert_eq!(watch.polls_until_due(110 * MIB, 2 * MIB), POLLS_BEFORE_TRIM);
        watch.released(12 * MIB, || Some(2 * MIB));
        assert_eq!(watch.polls_until_due(12 * MIB, 2 * MIB), NEVER);
        // Less than the amount that is worth it.
        assert_eq!(watch.polls_until_due(11 * MIB + RELEASE_BYTES, 2 * MIB), NEVER);
    }

    #[test]
    fn memory_that_is_soon_used_again_stays() {
        let mut watch = Watch::new(10 * MIB, || Some(MIB));
        for _ in 0..10 {
            assert!((1..POLLS_BEFORE_TRIM).all(|_| !watch.is_due(50 * MIB, || Some(MIB))));
            assert!(!watch.is_due(50 * MIB, || Some(41 * MIB)));
        }
    }

    #[test]
    fn memory_that_is_not_the_heaps_is_tried_once() {
        let mut watch = Watch::new(10 * MIB, || Some(MIB));
        assert_eq!(watch.polls_until_due(50 * MIB, MIB), POLLS_BEFORE_TRIM);
        watch.released(50 * MIB, || Some(MIB));
        assert_eq!(watch.polls_until_due(50 * MIB, MIB), NEVER);
        // A flood during which memory was returned is over.
        watch.released(150 * MIB, || Some(101 * MIB));
        assert_eq!(watch.polls_until_due(150 * MIB, MIB), POLLS_BEFORE_TRIM);
    }
}

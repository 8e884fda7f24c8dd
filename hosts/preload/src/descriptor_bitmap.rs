//! A bitmap of descriptors that are ours. Every call checks it first, without a lock and without allocation.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

/// Descriptors from this number on stay the kernel's. It is the default of Linux's `fs.nr_open`.
const DESCRIPTORS_MAX: usize = 1 << 20;
const WORDS: usize = DESCRIPTORS_MAX / 64;

/// A bit for each descriptor.
pub struct DescriptorBitmap {
    words: [AtomicU64; WORDS],
}

impl DescriptorBitmap {
    /// Creates a bitmap without marks.
    pub const fn new() -> DescriptorBitmap {
        DescriptorBitmap { words: [const { AtomicU64::new(0) }; WORDS] }
    }

    /// Whether this descriptor can be marked.
    pub fn fits(fd: c_int) -> bool {
        usize::try_from(fd).is_ok_and(|fd| fd < DESCRIPTORS_MAX)
    }

    fn place(&self, fd: c_int) -> Option<(&AtomicU64, u64)> {
        let fd = usize::try_from(fd).ok()?;
        Some((self.words.get(fd / 64)?, 1 << (fd % 64)))
    }

    pub fn has(&self, fd: c_int) -> bool {
        self.place(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    pub fn set(&self, fd: c_int) {
        if let Some((word, bit)) = self.place(fd) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    pub fn clear(&self, fd: c_int) {
        if let Some((word, bit)) = self.place(fd) {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// The highest marked descriptor, or 0.
    pub fn highest(&self) -> c_int {
        let last = self.words.iter().rposition(|word| word.load(Ordering::Relaxed) != 0);
        let bits = |at: usize| 63 - self.words[at].load(Ordering::Relaxed).leading_zeros().min(63);
        last.map_or(0, |at| (at * 64) as c_int + bits(at) as c_int)
    }

    /// Clears every mark, and calls `each` with each descriptor that had one.
    pub fn drain(&self, mut each: impl FnMut(c_int)) {
        for (at, word) in self.words.iter().enumerate() {
            let mut left = match word.load(Ordering::Relaxed) {
                0 => continue,
                _ => word.swap(0, Ordering::Relaxed),
            };
            while left != 0 {
                each((at * 64) as c_int + left.trailing_zeros() as c_int);
                left &= left - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_descriptors_are_independent() {
        let marks = Box::new(DescriptorBitmap::new());
        for fd in [0, 63, 64, 1_000_000] {
            assert!(!marks.has(fd));
            marks.set(fd);
            assert!(marks.has(fd) && !marks.has(fd + 1));
        }
        marks.set(-1);
        marks.set(c_int::MAX);
        assert!(!marks.has(-1) && !marks.has(c_int::MAX));
        marks.clear(63);
        let mut left = Vec::new();
        marks.drain(|fd| left.push(fd));
        assert_eq!(left, [0, 64, 1_000_000]);
        assert!(!marks.has(0));
    }
}

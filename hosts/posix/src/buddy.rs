//! A buddy allocator for the rings in payload memory.
//!
//! Ring sizes are powers of two, and so are blocks: nothing is lost to rounding, and neighbours merge when both are free. The lowest
//! free block is allocated first, so that memory that was never needed is never touched.

use std::collections::BTreeSet;

/// Order of the smallest block: a page.
const ORDER_MIN: u32 = 12;
/// Order of the largest block: 16 MiB.
const ORDER_MAX: u32 = 24;

/// Bytes of the smallest ring.
pub const RING_BYTES_MIN: u32 = 1 << ORDER_MIN;
/// Bytes of the largest ring.
pub const RING_BYTES_MAX: u32 = 1 << ORDER_MAX;

/// Whether `bytes` is a valid ring size: a power of two from [`RING_BYTES_MIN`] to [`RING_BYTES_MAX`].
pub const fn is_ring_size(bytes: u32) -> bool {
    bytes.is_power_of_two() && bytes >= RING_BYTES_MIN && bytes <= RING_BYTES_MAX
}

/// The free blocks of a payload memory.
#[derive(Debug)]
pub struct Buddy {
    /// Offsets of free blocks, by order from [`ORDER_MIN`] on.
    free: [BTreeSet<u64>; (ORDER_MAX - ORDER_MIN + 1) as usize],
}

impl Buddy {
    /// A memory of `bytes` bytes, all free. A remainder of less than a page is not used.
    pub fn new(bytes: u64) -> Buddy {
        let mut buddy = Buddy { free: Default::default() };
        let mut at = 0;
        for order in (ORDER_MIN..=ORDER_MAX).rev() {
            while bytes - at >= 1 << order {
                buddy.free_of(order).insert(at);
                at += 1 << order;
            }
        }
        buddy
    }

    /// Takes a block of `bytes` bytes ([`is_ring_size`]), and returns its offset; `None` if there is none.
    pub fn allocate(&mut self, bytes: u32) -> Option<u64> {
        assert!(is_ring_size(bytes), "{bytes} bytes is not a valid ring size");
        let order = bytes.trailing_zeros();
        let mut found = (order..=ORDER_MAX).find(|&order| !self.free_of(order).is_empty())?;
        let at = self.free_of(found).pop_first()?;
        while found > order {
            found -= 1;
            self.free_of(found).insert(at + (1 << found));
        }
        Some(at)
    }

    /// Frees a block that [`Buddy::allocate`] returned for `bytes` bytes.
    pub fn free(&mut self, mut at: u64, bytes: u32) {
        let mut order = bytes.trailing_zeros();
        // Blocks of an order are at multiples of their size, so two buddies differ in one bit.
        while order < ORDER_MAX && self.free_of(order).remove(&(at ^ 1 << order)) {
            at &= !(1 << order);
            order += 1;
        }
        let is_new = self.free_of(order).insert(at);
        debug_assert!(is_new, "the block at {at} was already free");
    }

    fn free_of(&mut self, order: u32) -> &mut BTreeSet<u64> {
        &mut self.free[(order - ORDER_MIN) as usize]
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn blocks_never_overlap_and_freed_memory_merges_completely(
            pages in 1_u64..9_000,
            rest in 0_u64..4096,
            steps in vec((any::<bool>(), ORDER_MIN..=ORDER_MAX, any::<prop::sample::Index>()), 0..300),
        ) {
            let bytes = pages << ORDER_MIN | rest;
            let mut buddy = Buddy::new(bytes);
            let whole = format!("{buddy:?}");
            let mut taken: Vec<(u64, u32)> = Vec::new();
            for (is_free, order, which) in steps {
                if is_free && !taken.is_empty() {
                    let (at, size) = taken.swap_remove(which.index(taken.len()));
                    buddy.free(at, size);
                } else if let Some(at) = buddy.allocate(1 << order) {
                    let end = at + (1 << order);
                    prop_assert!(end <= bytes && at % (1 << order) == 0);
                    let apart = |&(other, size): &(u64, u32)| end <= other || other + u64::from(size) <= at;
                    prop_assert!(taken.iter().all(apart), "{at} of {taken:?}");
                    taken.push((at, 1 << order));
                }
            }
            taken.into_iter().for_each(|(at, size)| buddy.free(at, size));
            prop_assert_eq!(format!("{buddy:?}"), whole);
        }
    }

    #[test]
    fn lowest_block_is_allocated_first_until_memory_is_exhausted() {
        let mut buddy = Buddy::new(3 << ORDER_MIN);
        let blocks: Vec<_> = (0..4).map(|_| buddy.allocate(RING_BYTES_MIN)).collect();
        assert_eq!(blocks, [Some(2 << ORDER_MIN), Some(0), Some(1 << ORDER_MIN), None]);
        assert_eq!(Buddy::new(100).allocate(RING_BYTES_MIN), None);
        assert!(!is_ring_size(1 << 25) && !is_ring_size(1 << 11) && !is_ring_size(5_000));
    }
}

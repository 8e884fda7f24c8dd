//! The program's arrays, which program and process read and write at the same time.

use std::marker::PhantomData;
use std::ops::Deref;
use std::os::fd::BorrowedFd;

use wave_core::link::{Home, LINE_BYTES};
use wave_links::memory::{MapError, Memory};
use zerocopy::{FromBytes, IntoBytes};

use super::shared::{Control, Core, Thread};

/// A value that may change at any time.
///
/// # Safety
///
/// All fields must be atomics.
pub(super) unsafe trait Shared: FromBytes + IntoBytes {}

// SAFETY: all fields are atomics.
unsafe impl Shared for Control {}
// SAFETY: all fields are atomics.
unsafe impl Shared for Thread {}
// SAFETY: all fields are atomics.
unsafe impl Shared for Core {}

/// A mapped array of the program.
pub(super) struct Table<T> {
    memory: Memory,
    values: PhantomData<T>,
}

impl<T: Shared> Table<T> {
    /// Number of lines in a value.
    const LINES: u32 = {
        assert!(size_of::<T>().is_multiple_of(LINE_BYTES) && align_of::<T>() <= LINE_BYTES);
        (size_of::<T>() / LINE_BYTES) as u32
    };

    /// Maps an array of `count` values.
    pub(super) fn map(array: BorrowedFd<'_>, count: u32) -> Result<Table<T>, MapError> {
        let memory = Memory::map(array, count * Self::LINES, 0, 0)?;
        Ok(Table { memory, values: PhantomData })
    }
}

impl<T: Shared> Deref for Table<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        let words = self.memory.region(Home::Nic);
        let count = size_of_val(words) / (Self::LINES as usize * LINE_BYTES);
        // SAFETY: lines are aligned as `LINES` asserts, `T` consists of atomics and is valid for all values, and the
        // memory is mapped for as long as this value lives. Nothing else in this process accesses it.
        unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), count) }
    }
}

//! The heap's free memory.

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

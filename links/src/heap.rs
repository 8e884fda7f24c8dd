//! The heap's free memory.

/// Returns whole free pages of the heap to the kernel, also those between pages that are in use: glibc returns by itself only what
/// is at the heap's end. It takes milliseconds for each 10 MiB, in which other threads may wait for memory. Other C libraries'
/// allocators are left alone.
pub fn release() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it touches free memory only, and takes the allocator's own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

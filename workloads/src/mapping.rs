//! Maps, touches and unmaps memory, to notice when this process's address space is locked for long.

use std::io;

use crate::cpu::monotonic_ns;

/// Maps this many bytes, touches the first, and unmaps them. Returns the duration in nanoseconds.
pub fn map_touch_unmap(bytes: usize) -> io::Result<u64> {
    let start_ns = monotonic_ns();
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: asks for a new mapping.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping is new, ours, and not empty: the kernel refuses to map nothing.
    unsafe { at.cast::<u8>().write_volatile(1) };
    // SAFETY: mapped above with this size, and not used elsewhere.
    let status = unsafe { libc::munmap(at, bytes) };
    match status {
        0 => Ok(monotonic_ns() - start_ns),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::map_touch_unmap;

    #[test]
    fn mapping_takes_time_and_a_size_of_zero_is_refused() {
        assert!(map_touch_unmap(1 << 16).unwrap() > 0);
        assert!(map_touch_unmap(0).is_err());
    }
}

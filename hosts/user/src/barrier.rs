//! A full memory barrier on every thread of the process. Only the caller, the rare side, pays for it.

use std::io;

fn membarrier(command: libc::c_int) -> io::Result<()> {
    // SAFETY: the call takes numbers and touches no memory of ours.
    match unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Call once before [`for_all_threads`]. Fails where the kernel has no membarrier(2) (before Linux 4.14,
/// or forbidden by a sandbox).
pub(crate) fn register() -> io::Result<()> {
    membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
}

/// Returns when every thread of this process has executed a full barrier since the call.
pub(crate) fn for_all_threads() {
    membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED).expect("registered at the enclave's start");
}

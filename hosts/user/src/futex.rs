//! Waiting for a word to change, and waking the waiters. Safe in a signal handler.

use std::sync::atomic::AtomicU32;

/// Sleeps while `word` is `value`. May wake spuriously: check the word again.
pub(crate) fn wait(word: &AtomicU32, value: u32) {
    let none = std::ptr::null::<libc::timespec>();
    let how = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word is alive for the call, and there is no timeout to read.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), how, value, none) };
}

/// Wakes one waiter of `word`.
pub(crate) fn wake(word: &AtomicU32) {
    let how = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel takes the address as a name only.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), how, 1) };
}

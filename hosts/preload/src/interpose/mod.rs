//! Replacements for symbols of the C library, as thin as possible: pointers become slices, errors become errno, and calls on
//! descriptors that are not ours go to the next library's symbol of the same name.
//!
//! A program's pointers are trusted as far as the C library trusts them: where the kernel would return EFAULT, the process faults.

mod ancillary;
mod bypass;
mod data;
mod exec;
mod exec_target;
mod files;
mod identity;
mod memory;
mod next;
mod process;
mod signals;
mod sockets;
mod wait;

use std::ffi::{c_int, c_void};

use rustix::io::Errno;

use crate::address::Encoded;
use crate::signals::RESTART;
use crate::sockets::Verdict;
use next::{next, next_point};

/// Memory of the library's own. A handler that has interrupted malloc(3) may call any function of the library, which must not wait for
/// malloc's lock.
#[global_allocator]
static MEMORY: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// Sets errno, and returns -1.
fn fail(error: Errno) -> c_int {
    // A handler that `signals` does not call has interrupted a wait, and waits itself: its call is not made again.
    let error = if error == RESTART { Errno::INTR } else { error };
    // SAFETY: the calling thread's own errno.
    unsafe { *libc::__errno_location() = error.raw_os_error() };
    -1
}

fn size(result: Result<usize, Errno>) -> isize {
    match result {
        Ok(count) => count as isize,
        Err(error) => fail(error) as isize,
    }
}

fn done(result: Result<(), Errno>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => fail(error),
    }
}

/// Returns an address as accept(2), getsockname(2) and similar calls do: as many bytes as fit, and the full length.
///
/// # Safety
/// `into` is null, or `length` is valid and `into` is valid for `*length` bytes.
unsafe fn give_address(address: &Encoded, into: *mut c_void, length: *mut libc::socklen_t) {
    if into.is_null() || length.is_null() {
        return;
    }
    let bytes = address.bytes();
    // SAFETY: by the contract.
    unsafe {
        let room = bytes.len().min(*length as usize);
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), into.cast(), room);
        *length = bytes.len() as libc::socklen_t;
    }
}

/// A slice of a program's memory; empty for a null pointer.
///
/// # Safety
/// `at` is null or valid for reads of `bytes` bytes.
unsafe fn bytes<'a>(at: *const c_void, bytes: usize) -> &'a [u8] {
    if at.is_null() || bytes == 0 {
        return &[];
    }
    // SAFETY: by the contract. A caller of the C library does not change the bytes during the call.
    unsafe { std::slice::from_raw_parts(at.cast(), bytes) }
}

/// As [`bytes`], for writing.
///
/// # Safety
/// `at` is null or valid for writes of `bytes` bytes, and nobody else uses them during the call.
unsafe fn bytes_mut<'a>(at: *mut c_void, bytes: usize) -> &'a mut [u8] {
    if at.is_null() || bytes == 0 {
        return &mut [];
    }
    // SAFETY: by the contract. The bytes are written to and not read.
    unsafe { std::slice::from_raw_parts_mut(at.cast(), bytes) }
}

//! Calls on all memory of the process.

use std::ffi::c_int;

use super::next;
use super::process::{is_vfork_child, with};

/// Payload memory stays out of it: its pages are resident as streams need them.
#[unsafe(no_mangle)]
extern "C-unwind" fn mlockall(flags: c_int) -> c_int {
    let call = || next!(mlockall(flags => c_int) -> c_int);
    if is_vfork_child() {
        return call();
    }
    match with(|sockets| sockets.without_payload(call)) {
        Some(Ok(locked)) => locked,
        Some(Err(error)) => super::fail(error),
        None => call(),
    }
}

//! Calls on all memory of the process.

use std::ffi::c_int;

use super::next;
use super::process::{is_vfork_child, sockets};

/// Payload memory stays out of it: its pages are resident as streams need them.
#[unsafe(no_mangle)]
extern "C" fn mlockall(flags: c_int) -> c_int {
    let call = || next!(mlockall(flags => c_int) -> c_int);
    match sockets() {
        Some(sockets) if !is_vfork_child() => match sockets.without_payload(call) {
            Ok(locked) => locked,
            Err(error) => super::fail(error),
        },
        _ => call(),
    }
}

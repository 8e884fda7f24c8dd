//! Calls after which a process may be unable to reach the agent's socket, so it attaches before them.

use std::ffi::{c_char, c_int};

use libc::uid_t;

use super::next;
use super::process::{is_vfork_child, with_or_new};
use crate::sockets::Sockets;

/// Attaches, unless this is a child of vfork(2), which shares its parent's memory.
fn attach() {
    if !is_vfork_child() {
        with_or_new(Sockets::attach);
    }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn setuid(user: uid_t) -> c_int {
    attach();
    next!(setuid(user => uid_t) -> c_int)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn setreuid(real: uid_t, effective: uid_t) -> c_int {
    attach();
    next!(setreuid(real => uid_t, effective => uid_t) -> c_int)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn setresuid(real: uid_t, effective: uid_t, saved: uid_t) -> c_int {
    attach();
    next!(setresuid(real => uid_t, effective => uid_t, saved => uid_t) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn chroot(path: *const c_char) -> c_int {
    attach();
    next!(chroot(path => *const c_char) -> c_int)
}

//! Calls after which a process may be unable to reach the agent's socket, or to create descriptors: it attaches before them.

use std::ffi::{c_char, c_int, c_ulong};

use libc::uid_t;

use super::next;
use super::process::{is_vfork_child, with_or_new};
use crate::sockets::Sockets;

/// Attaches, unless this is a child of vfork(2), which shares its parent's memory.
pub fn attach() {
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

// The unused arguments are passed on in their registers.
#[unsafe(no_mangle)]
extern "C-unwind" fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
    if option == libc::PR_SET_SECCOMP {
        attach();
    }
    super::bypass::before_filter(libc::SYS_prctl, option as usize);
    next!(prctl(
        option => c_int,
        a => c_ulong,
        b => c_ulong,
        c => c_ulong,
        d => c_ulong,
    ) -> c_int)
}

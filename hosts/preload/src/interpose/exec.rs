//! Calls that execute another program, which inherits descriptors.

use std::cell::LazyCell;
use std::ffi::{c_char, c_int, c_void};

use wave_posix::demotion::Cause;

use super::exec_target::{Named, has_library};
use super::next;
use super::process::{is_ours, is_vfork_child, with};
use crate::descriptor_bitmap::DescriptorBitmap;

pub type Words = *const *const c_char;

unsafe extern "C" {
    pub static environ: Words;
}

/// Descriptors that are named in file actions of posix_spawn(3).
static SPAWNED: DescriptorBitmap = DescriptorBitmap::new();

/// Passes the sockets on to the program and runs `call`, a variant of exec(2), which returns only if it fails.
///
/// # Safety
/// As for [`has_library`].
unsafe fn replace(program: Named, environment: Words, call: impl FnOnce() -> c_int) -> c_int {
    let lines = with(|sockets| {
        // SAFETY: as for this function.
        let has_library = || unsafe { has_library(program, environment) };
        sockets.pass_over_exec(is_vfork_child(), has_library)
    });
    let failed = call();
    // SAFETY: the calling thread's own errno.
    let errno = unsafe { *libc::__errno_location() };
    if let Some(lines) = lines {
        with(move |sockets| {
            sockets.was_not_replaced(&lines);
            drop(lines);
        });
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    failed
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn execve(path: *const c_char, words: Words, environment: Words) -> c_int {
    let call =
        || next!(execve(path => *const c_char, words => Words, environment => Words) -> c_int);
    // SAFETY: execve(2)'s contract.
    unsafe { replace(Named::File(path), environment, call) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn execv(path: *const c_char, words: Words) -> c_int {
    let call = || next!(execv(path => *const c_char, words => Words) -> c_int);
    // SAFETY: execv(3)'s contract; nothing changes the environment meanwhile.
    unsafe { replace(Named::File(path), environ, call) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn execvp(file: *const c_char, words: Words) -> c_int {
    let call = || next!(execvp(file => *const c_char, words => Words) -> c_int);
    // SAFETY: execvp(3)'s contract; nothing changes the environment meanwhile.
    unsafe { replace(Named::Command(file), environ, call) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn execvpe(
    file: *const c_char,
    words: Words,
    environment: Words,
) -> c_int {
    let call =
        || next!(execvpe(file => *const c_char, words => Words, environment => Words) -> c_int);
    // SAFETY: execvpe(3)'s contract.
    unsafe { replace(Named::Command(file), environment, call) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fexecve(fd: c_int, words: Words, environment: Words) -> c_int {
    let call = || next!(fexecve(fd => c_int, words => Words, environment => Words) -> c_int);
    // SAFETY: fexecve(3)'s contract.
    unsafe { replace(Named::Descriptor(fd), environment, call) }
}

/// Called before posix_spawn(3): the child gets the descriptors without FD_CLOEXEC, and those that the file actions duplicate.
///
/// # Safety
/// As for [`has_library`].
unsafe fn spawn(program: Named, environment: Words) {
    with(|sockets| {
        // SAFETY: as for this function.
        let has_library = LazyCell::new(|| unsafe { has_library(program, environment) });
        let mut named = Vec::new();
        SPAWNED.drain(|fd| named.push(fd));
        named.retain(|fd| is_ours(*fd));
        // The program may use the file actions again.
        named.iter().for_each(|fd| SPAWNED.set(*fd));
        if !named.is_empty() && !*has_library {
            named.iter().for_each(|fd| sockets.demote(*fd, Cause::NoLibrary));
        }
        sockets.pass(&named);
        sockets.pass_over_exec(true, || *has_library);
    });
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn posix_spawn_file_actions_adddup2(
    actions: *mut c_void,
    old: c_int,
    new: c_int,
) -> c_int {
    if is_ours(old) {
        SPAWNED.set(old);
    }
    next!(posix_spawn_file_actions_adddup2(
        actions => *mut c_void,
        old => c_int,
        new => c_int,
    ) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn posix_spawn(
    pid: *mut libc::pid_t,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    words: Words,
    environment: Words,
) -> c_int {
    // SAFETY: posix_spawn(3)'s contract.
    unsafe { spawn(Named::File(path), environment) };
    next!(posix_spawn(
        pid => *mut libc::pid_t,
        path => *const c_char,
        actions => *const c_void,
        attributes => *const c_void,
        words => Words,
        environment => Words,
    ) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn posix_spawnp(
    pid: *mut libc::pid_t,
    file: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    words: Words,
    environment: Words,
) -> c_int {
    // SAFETY: posix_spawnp(3)'s contract.
    unsafe { spawn(Named::Command(file), environment) };
    next!(posix_spawnp(
        pid => *mut libc::pid_t,
        file => *const c_char,
        actions => *const c_void,
        attributes => *const c_void,
        words => Words,
        environment => Words,
    ) -> c_int)
}

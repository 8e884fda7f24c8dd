//! Calls that execute another program, which inherits descriptors.

use std::ffi::{c_char, c_int, c_void};

use super::next;
use super::process::{is_ours, is_vfork_child, with};
use crate::marks::Marks;

type Words = *const *const c_char;

/// Descriptors that are named in file actions of posix_spawn(3).
static SPAWNED: Marks = Marks::new();

/// Passes the sockets on and runs `call`, a variant of exec(2), which returns only if it fails.
fn replace(call: impl FnOnce() -> c_int) -> c_int {
    let lines = with(|sockets| sockets.pass_over_exec(is_vfork_child()));
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
    replace(|| next!(execve(path => *const c_char, words => Words, environment => Words) -> c_int))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn execv(path: *const c_char, words: Words) -> c_int {
    replace(|| next!(execv(path => *const c_char, words => Words) -> c_int))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn execvp(file: *const c_char, words: Words) -> c_int {
    replace(|| next!(execvp(file => *const c_char, words => Words) -> c_int))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn execvpe(
    file: *const c_char,
    words: Words,
    environment: Words,
) -> c_int {
    replace(|| next!(execvpe(file => *const c_char, words => Words, environment => Words) -> c_int))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fexecve(fd: c_int, words: Words, environment: Words) -> c_int {
    replace(|| next!(fexecve(fd => c_int, words => Words, environment => Words) -> c_int))
}

/// Called before posix_spawn(3): the child gets the descriptors without FD_CLOEXEC, and those that the file actions duplicate.
fn spawn() {
    with(|sockets| {
        let mut named = Vec::new();
        SPAWNED.drain(|fd| named.push(fd));
        named.retain(|fd| is_ours(*fd));
        // The program may use the file actions again.
        named.iter().for_each(|fd| SPAWNED.set(*fd));
        sockets.pass(&named);
        sockets.pass_over_exec(true);
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
    spawn();
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
    spawn();
    next!(posix_spawnp(
        pid => *mut libc::pid_t,
        file => *const c_char,
        actions => *const c_void,
        attributes => *const c_void,
        words => Words,
        environment => Words,
    ) -> c_int)
}

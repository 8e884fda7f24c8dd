//! Calls that close and duplicate descriptors, and calls for their flags.

use std::ffi::{c_int, c_long, c_uint, c_ulong, c_void};

use rustix::io::Errno;
use wave_posix::demotion::Cause;

use super::process::{is_ours, is_private, is_vfork_child, with, with_or_new};
use super::{Verdict, fail, next, next_point};
use crate::sockets::Sockets;

#[unsafe(no_mangle)]
extern "C-unwind" fn close(fd: c_int) -> c_int {
    // A child of vfork(2) needs them to pass sockets on to the program that it executes.
    if is_private(fd) {
        return fail(Errno::BADF);
    }
    if is_ours(fd)
        && !is_vfork_child()
        && let Some(closed) = with(|sockets| close_ours(sockets, fd))
    {
        return closed;
    }
    next_point!(close(fd => c_int) -> c_int)
}

/// Closes one of the agent's sockets. The kernel's part is inside the library as well: no handler and no cancellation finds a descriptor
/// that is closed in part.
fn close_ours(sockets: &Sockets, fd: c_int) -> c_int {
    let Ok(is_shared) = sockets.close(fd) else { return fail(Errno::INTR) };
    let closed = next_point!(close(fd => c_int) -> c_int);
    if is_shared {
        sockets.closed();
    }
    closed
}

#[unsafe(no_mangle)]
extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // With a flag, the call may close nothing, or unshare the descriptor table first: then our descriptors are treated like the program's.
    if flags != 0 {
        return next!(close_range(first => c_uint, last => c_uint, flags => c_int) -> c_int);
    }
    // Skips hidden descriptors, and closes ours one by one.
    let most = last.min(super::process::highest() as c_uint);
    let mut start = first;
    for fd in first..=most {
        let number = fd as c_int;
        if is_ours(number) {
            close(number);
        } else if is_private(number) {
            if start < fd {
                next!(close_range(start => c_uint, fd - 1 => c_uint, flags => c_int) -> c_int);
            }
            start = fd + 1;
        }
    }
    if start <= last {
        return next!(close_range(start => c_uint, last => c_uint, flags => c_int) -> c_int);
    }
    0
}

#[unsafe(no_mangle)]
extern "C-unwind" fn closefrom(first: c_int) {
    close_range(first.max(0) as c_uint, c_uint::MAX, 0);
}

#[unsafe(no_mangle)]
extern "C-unwind" fn dup(old: c_int) -> c_int {
    pass_on(old);
    let new = next!(dup(old => c_int) -> c_int);
    duplicated(old, new)
}

/// Records a duplicate of a descriptor that may be ours.
fn duplicated(old: c_int, new: c_int) -> c_int {
    if new >= 0 && !is_vfork_child() {
        with_or_new(|sockets| sockets.duplicated(old, new));
    }
    new
}

/// Makes a connection a stream of the kernel's, since what follows bypasses the library: standard streams are for programs that know
/// nothing of sockets, and calls inside the C library do not come here.
pub fn demote(fd: c_int, cause: Cause) {
    if is_ours(fd) {
        with(|sockets| sockets.demote(fd, cause));
    }
}

/// Called when a child of vfork(2) duplicates a descriptor, for the program that it is about to execute.
fn pass_on(old: c_int) {
    if is_ours(old) && is_vfork_child() {
        with(|sockets| sockets.pass(&[old]));
    }
}

/// Closes the descriptor that dup2(2) is about to overwrite. Returns false if it must stay open.
fn close_overwritten(old: c_int, new: c_int) -> bool {
    if old == new {
        return true;
    }
    if is_private(new) {
        return false;
    }
    if is_vfork_child() {
        return true;
    }
    let is_open = next!(fcntl(old => c_int, libc::F_GETFD => c_int) -> c_int) >= 0;
    if !is_open || !is_ours(new) {
        return true;
    }
    with(|sockets| sockets.close(new).is_ok()).unwrap_or(true)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn dup2(old: c_int, new: c_int) -> c_int {
    if !close_overwritten(old, new) {
        return fail(Errno::BUSY);
    }
    if (0..=2).contains(&new) && old != new {
        demote(old, Cause::StandardStream);
    }
    pass_on(old);
    let made = next!(dup2(old => c_int, new => c_int) -> c_int);
    if old == new { made } else { duplicated(old, made) }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    if !close_overwritten(old, new) {
        return fail(Errno::BUSY);
    }
    if (0..=2).contains(&new) {
        demote(old, Cause::StandardStream);
    }
    pass_on(old);
    let made = next!(dup3(old => c_int, new => c_int, flags => c_int) -> c_int);
    duplicated(old, made)
}

/// Our fcntl(2). `call` is the next library's.
fn control(
    fd: c_int,
    command: c_int,
    argument: *mut c_void,
    call: impl Fn(*mut c_void) -> c_int,
) -> c_int {
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
        return duplicated(fd, call(argument));
    }
    if !is_ours(fd) {
        return call(argument);
    }
    match command {
        libc::F_GETFL => {
            let flags = call(argument);
            match with(|sockets| sockets.is_nonblocking(fd)) {
                Some(Verdict::Ours(Ok(true))) => flags | libc::O_NONBLOCK,
                Some(Verdict::Ours(Ok(false))) => flags & !libc::O_NONBLOCK,
                _ => flags,
            }
        }
        libc::F_SETFL => {
            let flags = argument as usize as c_int;
            let set = match with(|sockets| sockets.set_flags(fd, flags)) {
                // The placeholder of a shared listener stays nonblocking.
                Some(Verdict::Ours(_)) => call((flags | libc::O_NONBLOCK) as usize as *mut c_void),
                _ => call(argument),
            };
            if flags & libc::O_ASYNC != 0 {
                with(Sockets::watch);
            }
            set
        }
        _ => call(argument),
    }
}

// The argument is an `int` or a pointer; either is passed on unchanged, in its register.
#[unsafe(no_mangle)]
extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    control(
        fd,
        command,
        argument,
        |argument| next!(fcntl(fd => c_int, command => c_int, argument => *mut c_void) -> c_int),
    )
}

#[unsafe(no_mangle)]
extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    control(
        fd,
        command,
        argument,
        |argument| next!(fcntl64(fd => c_int, command => c_int, argument => *mut c_void) -> c_int),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if is_ours(fd) {
        if request == libc::FIONBIO && !argument.is_null() {
            // SAFETY: FIONBIO takes a pointer to an `int`.
            let is_nonblocking = unsafe { *argument.cast::<c_int>() } != 0;
            let set = with(|sockets| sockets.set_nonblocking(fd, is_nonblocking));
            if let Some(Verdict::Ours(set)) = set {
                return super::done(set);
            }
        } else if request == libc::FIOASYNC && !argument.is_null() {
            // SAFETY: FIOASYNC takes a pointer to an `int`.
            let is_on = unsafe { *argument.cast::<c_int>() } != 0;
            with(|sockets| {
                let _ = sockets.set_signalling(fd, is_on);
                sockets.watch();
            });
        } else if let Some(Verdict::Ours(answer)) = with(|sockets| sockets.ioctl(fd, request)) {
            return match answer {
                // SAFETY: these requests take a pointer to an `int`.
                Ok(value) => unsafe {
                    *argument.cast::<c_int>() = value;
                    0
                },
                Err(error) => fail(error),
            };
        }
    }
    next!(ioctl(fd => c_int, request => c_ulong, argument => *mut c_void) -> c_int)
}

/// syscall(2): jemalloc and libuv read, write and close with it.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let fd = a as c_int;
    super::bypass::before_filter(number, a);
    // The second descriptor of a call that has two.
    let other = match number {
        libc::SYS_dup3 => b as c_int,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_dup2 => b as c_int,
        libc::SYS_epoll_ctl => c as c_int,
        _ => fd,
    };
    let is_any = |is_it: fn(c_int) -> bool| is_it(fd) || is_it(other);
    if number == libc::SYS_seccomp {
        super::identity::attach();
    } else if number == libc::SYS_close_range {
        return close_range(a as c_uint, b as c_uint, c as c_int).into();
    } else if is_any(is_ours) || is_any(is_private) {
        use super::{data, sockets as names, wait};
        let at = |word: usize| word as *mut c_void;
        // SAFETY: the calls' own contracts; arguments are words, as the kernel takes them.
        let answer = unsafe {
            match number {
                libc::SYS_close => Some(close(fd) as c_long),
                libc::SYS_read => Some(data::call_read(fd, at(b), c)),
                libc::SYS_write => Some(data::call_write(fd, at(b), c)),
                libc::SYS_accept4 => Some(names::call_accept4(fd, at(b), at(c), d as c_int)),
                libc::SYS_dup => Some(dup(fd) as c_long),
                libc::SYS_dup3 => Some(dup3(fd, b as c_int, c as c_int) as c_long),
                #[cfg(target_arch = "x86_64")]
                libc::SYS_dup2 => Some(dup2(fd, b as c_int) as c_long),
                libc::SYS_epoll_ctl => {
                    Some(wait::call_epoll_ctl(fd, b as c_int, c as c_int, at(d)))
                }
                libc::SYS_epoll_pwait => {
                    Some(wait::call_epoll_pwait(fd, at(b), c as c_int, d as c_int, at(e)))
                }
                libc::SYS_fcntl => Some(fcntl(fd, b as c_int, at(c)) as c_long),
                libc::SYS_ioctl => Some(ioctl(fd, b as c_ulong, at(c)) as c_long),
                _ => None,
            }
        };
        if let Some(answer) = answer {
            return answer;
        }
    }
    let call = || {
        next!(syscall(
            number => c_long,
            a => usize,
            b => usize,
            c => usize,
            d => usize,
            e => usize,
            f => usize,
        ) -> c_long)
    };
    match number {
        // A child with its own memory, in other namespaces for example.
        libc::SYS_clone if a & libc::CLONE_VM as usize == 0 => super::process::fork_by(call),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork => super::process::fork_by(call),
        _ => call(),
    }
}

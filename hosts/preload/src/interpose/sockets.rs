//! Calls for addresses, options and shutdown of sockets.

use std::ffi::{c_int, c_void};

use super::process::{is_ours, sockets, sockets_or_new, with, with_or_new};
use super::{bytes, done, fail, give_address, next, next_point};
use crate::address::{Encoded, encode};
use crate::names::{family_of, kernels_name};
use crate::passing::names_of;
use crate::signals;
use crate::sockets::{Sockets, Verdict};

type Length = libc::socklen_t;

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn bind(fd: c_int, address: *const c_void, length: Length) -> c_int {
    if fd >= 0 {
        // SAFETY: bind(2)'s contract.
        let address = unsafe { bytes(address, length as usize) };
        if let Some(Verdict::Ours(bound)) = with_or_new(|sockets| sockets.bind(fd, address)) {
            with(Sockets::watch);
            return done(bound);
        }
    }
    next!(bind(fd => c_int, address => *const c_void, length => Length) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn connect(fd: c_int, address: *const c_void, length: Length) -> c_int {
    if let Some(sockets) = sockets_or_new()
        && fd >= 0
    {
        // SAFETY: connect(2)'s contract.
        let name = unsafe { bytes(address, length as usize) };
        if let Verdict::Ours(connected) = sockets.connect(fd, name) {
            with(Sockets::watch);
            return done(connected);
        }
    }
    next_point!(connect(fd => c_int, address => *const c_void, length => Length) -> c_int)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn listen(fd: c_int, backlog: c_int) -> c_int {
    if fd >= 0
        && let Some(Verdict::Ours(listening)) = with_or_new(|sockets| sockets.listen(fd, backlog))
    {
        with(Sockets::watch);
        return done(listening);
    }
    next!(listen(fd => c_int, backlog => c_int) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn accept4(
    fd: c_int,
    address: *mut c_void,
    length: *mut Length,
    flags: c_int,
) -> c_int {
    if is_ours(fd)
        && let Some(sockets) = sockets()
        && let Verdict::Ours(accepted) = sockets.accept(fd, flags)
    {
        return match accepted {
            Ok(accepted) => {
                if let Some(peer) = &accepted.peer {
                    // SAFETY: accept(2)'s contract.
                    unsafe { give_address(peer, address, length) };
                }
                accepted.fd
            }
            Err(error) => fail(error),
        };
    }
    next_point!(accept4(fd => c_int, address => *mut c_void, length => *mut Length, flags => c_int) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn accept(fd: c_int, address: *mut c_void, length: *mut Length) -> c_int {
    if is_ours(fd) {
        // SAFETY: the same contract.
        return unsafe { accept4(fd, address, length, 0) };
    }
    next_point!(accept(fd => c_int, address => *mut c_void, length => *mut Length) -> c_int)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn shutdown(fd: c_int, how: c_int) -> c_int {
    if is_ours(fd)
        && let Some(Verdict::Ours(shut)) = with(|sockets| sockets.shutdown(fd, how))
    {
        return done(shut);
    }
    next!(shutdown(fd => c_int, how => c_int) -> c_int)
}

/// The own address (0) or the peer's (1) of a connection that has become a stream of the kernel's.
fn name_of_stream(fd: c_int, which: usize) -> Option<Encoded> {
    kernels_name(fd).filter(|name| name.ip().is_loopback())?;
    signals::enter(|| Some(encode(names_of(fd)?[which], family_of(fd)?)))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn getsockname(
    fd: c_int,
    address: *mut c_void,
    length: *mut Length,
) -> c_int {
    if is_ours(fd)
        && let Some(Verdict::Ours(name)) = with(|sockets| sockets.local_name(fd))
    {
        // SAFETY: getsockname(2)'s contract.
        return done(name.map(|name| unsafe { give_address(&name, address, length) }));
    }
    let answer =
        next!(getsockname(fd => c_int, address => *mut c_void, length => *mut Length) -> c_int);
    if answer == 0
        && let Some(name) = name_of_stream(fd, 0)
    {
        // SAFETY: getsockname(2)'s contract.
        unsafe { give_address(&name, address, length) };
    }
    answer
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn getpeername(
    fd: c_int,
    address: *mut c_void,
    length: *mut Length,
) -> c_int {
    if is_ours(fd)
        && let Some(Verdict::Ours(name)) = with(|sockets| sockets.peer_name(fd))
    {
        // SAFETY: getpeername(2)'s contract.
        return done(name.map(|name| unsafe { give_address(&name, address, length) }));
    }
    let answer =
        next!(getpeername(fd => c_int, address => *mut c_void, length => *mut Length) -> c_int);
    if answer == 0
        && let Some(name) = name_of_stream(fd, 1)
    {
        // SAFETY: getpeername(2)'s contract.
        unsafe { give_address(&name, address, length) };
    }
    answer
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut Length,
) -> c_int {
    // The value is dropped inside the library, whose memory has a lock.
    let give = |option: Vec<u8>| {
        if value.is_null() || length.is_null() {
            return Err(rustix::io::Errno::FAULT);
        }
        // SAFETY: getsockopt(2)'s contract: `value` is valid for `*length` bytes.
        unsafe {
            let count = option.len().min(*length as usize);
            std::ptr::copy_nonoverlapping(option.as_ptr(), value.cast(), count);
            *length = count as Length;
        }
        Ok(())
    };
    let ask = |sockets: &Sockets| match sockets.option(fd, level, name) {
        Verdict::Ours(option) => Verdict::Ours(option.and_then(give)),
        Verdict::Kernels => Verdict::Kernels,
    };
    if is_ours(fd)
        && let Some(Verdict::Ours(given)) = with(ask)
    {
        return done(given);
    }
    next!(getsockopt(
        fd => c_int,
        level => c_int,
        name => c_int,
        value => *mut c_void,
        length => *mut Length,
    ) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: Length,
) -> c_int {
    let is_ours = is_ours(fd);
    if is_ours && (level, name) == (libc::SOL_SOCKET, libc::SO_ZEROCOPY) {
        // The completion notifications that it enables would never arrive.
        return fail(rustix::io::Errno::OPNOTSUPP);
    }
    let set = next!(setsockopt(
        fd => c_int,
        level => c_int,
        name => c_int,
        value => *const c_void,
        length => Length,
    ) -> c_int);
    if is_ours && set == 0 {
        with(|sockets| match (level, name) {
            (libc::IPPROTO_TCP, libc::TCP_CORK) => sockets.cork_was_set(fd),
            (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => sockets.low_water_was_set(fd),
            _ => sockets.option_was_set(fd),
        });
    }
    set
}

/// accept4(2) through syscall(2).
///
/// # Safety
/// accept4(2)'s.
pub unsafe fn call_accept4(
    fd: c_int,
    address: *mut c_void,
    length: *mut c_void,
    flags: c_int,
) -> std::ffi::c_long {
    // SAFETY: the same contract.
    unsafe { accept4(fd, address, length.cast(), flags).into() }
}

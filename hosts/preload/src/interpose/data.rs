//! Calls that transfer bytes.

use std::ffi::{c_int, c_uint, c_void};
use std::io::{IoSlice, IoSliceMut};

use libc::{iovec, mmsghdr, msghdr, off_t, size_t, ssize_t};
use rustix::io::Errno;
use smallvec::SmallVec;
use wave_posix::demotion::Cause;

use super::files::demote;
use super::process::{is_ours, sockets};
use super::{Verdict, ancillary, bytes, bytes_mut, fail, next, next_point, size};
use crate::signals::waits;

/// A vector of this many entries needs no allocation.
const FEW: usize = 8;
/// Most entries of a readv(2) vector: UIO_MAXIOV.
const PARTS_MAX: usize = 1024;

/// The answer of a call that is ours.
fn answered(verdict: Verdict<usize>) -> Option<ssize_t> {
    match verdict {
        Verdict::Ours(moved) => Some(size(moved)),
        Verdict::Kernels => None,
    }
}

/// recv(2) with MSG_TRUNC: no memory is needed for the bytes.
fn discard(fd: c_int, count: size_t, flags: c_int) -> Option<ssize_t> {
    answered(sockets()?.discard(fd, count, flags))
}

/// recv(2) to a null pointer: fails with EFAULT once there are bytes, and leaves them.
fn receive_nowhere(fd: c_int, flags: c_int) -> Option<ssize_t> {
    let flags = flags & !libc::MSG_WAITALL | libc::MSG_PEEK;
    Some(match discard(fd, 1, flags)? {
        1.. => fail(Errno::FAULT) as ssize_t,
        other => other,
    })
}

/// # Safety
/// recv(2)'s: `into` is valid for writes of `count` bytes, or null.
unsafe fn receive_one(
    fd: c_int,
    into: *mut c_void,
    count: size_t,
    flags: c_int,
) -> Option<ssize_t> {
    if !is_ours(fd) {
        return None;
    }
    if flags & libc::MSG_TRUNC != 0 {
        return discard(fd, count, flags);
    }
    if into.is_null() && count > 0 {
        return receive_nowhere(fd, flags);
    }
    // SAFETY: by the contract.
    let into = unsafe { bytes_mut(into, count) };
    answered(sockets()?.receive(fd, &mut [IoSliceMut::new(into)], flags))
}

/// # Safety
/// send(2)'s: `from` is valid for reads of `count` bytes, or null.
unsafe fn send_one(fd: c_int, from: *const c_void, count: size_t, flags: c_int) -> Option<ssize_t> {
    if !is_ours(fd) {
        return None;
    }
    // SAFETY: by the contract.
    let from_program = unsafe { bytes(from, count) };
    let sent = answered(sockets()?.send(fd, &[IoSlice::new(from_program)], flags));
    match sent {
        // The socket would have taken the bytes.
        Some(0) if from.is_null() && count > 0 => Some(fail(Errno::FAULT) as ssize_t),
        sent => sent,
    }
}

/// The entries of a readv(2).
///
/// # Safety
/// `parts` is valid for `count` entries.
unsafe fn vector<'a>(parts: *const iovec, count: usize) -> &'a [iovec] {
    if count == 0 {
        return &[];
    }
    // SAFETY: by the contract.
    unsafe { std::slice::from_raw_parts(parts, count) }
}

/// Bytes of a vector.
fn total(parts: &[iovec]) -> usize {
    parts.iter().fold(0, |all: usize, part| all.saturating_add(part.iov_len))
}

/// # Safety
/// readv(2)'s: `parts` is valid for `count` entries, each valid for writes.
unsafe fn receive_parts(
    fd: c_int,
    parts: *const iovec,
    count: usize,
    flags: c_int,
) -> Option<ssize_t> {
    if !is_ours(fd) {
        return None;
    }
    if count > PARTS_MAX {
        return Some(fail(Errno::INVAL) as ssize_t);
    }
    // SAFETY: by the contract.
    let parts = unsafe { vector(parts, count) };
    if flags & libc::MSG_TRUNC != 0 {
        return discard(fd, total(parts), flags);
    }
    let sockets = sockets()?;
    answered(waits(|| {
        let mut slices: SmallVec<[IoSliceMut<'_>; FEW]> = parts
            .iter()
            // SAFETY: by the contract.
            .map(|part| IoSliceMut::new(unsafe { bytes_mut(part.iov_base, part.iov_len) }))
            .collect();
        sockets.receive(fd, &mut slices, flags)
    }))
}

/// # Safety
/// writev(2)'s: `parts` is valid for `count` entries, each valid for reads.
unsafe fn send_parts(
    fd: c_int,
    parts: *const iovec,
    count: usize,
    flags: c_int,
) -> Option<ssize_t> {
    if !is_ours(fd) {
        return None;
    }
    if count > PARTS_MAX {
        return Some(fail(Errno::INVAL) as ssize_t);
    }
    // SAFETY: by the contract.
    let parts = unsafe { vector(parts, count) };
    let sockets = sockets()?;
    answered(waits(|| {
        let slices: SmallVec<[IoSlice<'_>; FEW]> = parts
            .iter()
            // SAFETY: by the contract.
            .map(|part| IoSlice::new(unsafe { bytes(part.iov_base, part.iov_len) }))
            .collect();
        sockets.send(fd, &slices, flags)
    }))
}

/// # Safety
/// sendmsg(2)'s.
unsafe fn send_message(fd: c_int, message: *const msghdr, flags: c_int) -> Option<ssize_t> {
    // SAFETY: by the contract.
    let message = unsafe { &*message };
    // SAFETY: by the contract.
    unsafe { send_parts(fd, message.msg_iov, message.msg_iovlen, flags) }
}

/// # Safety
/// recvmsg(2)'s.
unsafe fn receive_message(fd: c_int, message: *mut msghdr, flags: c_int) -> Option<ssize_t> {
    // SAFETY: by the contract.
    let message = unsafe { &mut *message };
    // SAFETY: by the contract.
    let received = unsafe { receive_parts(fd, message.msg_iov, message.msg_iovlen, flags) }?;
    if received >= 0 {
        if !message.msg_name.is_null() {
            // On a connection, no source address is returned.
            message.msg_namelen = 0;
        }
        message.msg_controllen = 0;
        message.msg_flags = 0;
    }
    Some(received)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn read(fd: c_int, into: *mut c_void, count: size_t) -> ssize_t {
    if is_ours(fd) && count == 0 {
        return 0;
    }
    // SAFETY: the same contract.
    if let Some(received) = unsafe { receive_one(fd, into, count, 0) } {
        return received;
    }
    next_point!(read(fd => c_int, into => *mut c_void, count => size_t) -> ssize_t)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __read_chk(
    fd: c_int,
    into: *mut c_void,
    count: size_t,
    room: size_t,
) -> ssize_t {
    if is_ours(fd) && count <= room {
        // SAFETY: the same contract.
        return unsafe { read(fd, into, count) };
    }
    next!(__read_chk(fd => c_int, into => *mut c_void, count => size_t, room => size_t) -> ssize_t)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recv(
    fd: c_int,
    into: *mut c_void,
    count: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the same contract.
    if let Some(received) = unsafe { receive_one(fd, into, count, flags) } {
        return received;
    }
    next_point!(recv(fd => c_int, into => *mut c_void, count => size_t, flags => c_int) -> ssize_t)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __recv_chk(
    fd: c_int,
    into: *mut c_void,
    count: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    if is_ours(fd) && count <= room {
        // SAFETY: the same contract.
        return unsafe { recv(fd, into, count, flags) };
    }
    next!(__recv_chk(
        fd => c_int,
        into => *mut c_void,
        count => size_t,
        room => size_t,
        flags => c_int,
    ) -> ssize_t)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recvfrom(
    fd: c_int,
    into: *mut c_void,
    count: size_t,
    flags: c_int,
    address: *mut c_void,
    length: *mut libc::socklen_t,
) -> ssize_t {
    // SAFETY: the same contract.
    if let Some(received) = unsafe { receive_one(fd, into, count, flags) } {
        if received >= 0 && !address.is_null() && !length.is_null() {
            // On a connection, no source address is returned.
            // SAFETY: recvfrom(2)'s contract.
            unsafe { *length = 0 };
        }
        return received;
    }
    next_point!(recvfrom(
        fd => c_int,
        into => *mut c_void,
        count => size_t,
        flags => c_int,
        address => *mut c_void,
        length => *mut libc::socklen_t,
    ) -> ssize_t)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    into: *mut c_void,
    count: size_t,
    room: size_t,
    flags: c_int,
    address: *mut c_void,
    length: *mut libc::socklen_t,
) -> ssize_t {
    if is_ours(fd) && count <= room {
        // SAFETY: the same contract.
        return unsafe { recvfrom(fd, into, count, flags, address, length) };
    }
    next!(__recvfrom_chk(
        fd => c_int,
        into => *mut c_void,
        count => size_t,
        room => size_t,
        flags => c_int,
        address => *mut c_void,
        length => *mut libc::socklen_t,
    ) -> ssize_t)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    if is_ours(fd) {
        // SAFETY: the same contract.
        if let Some(received) = unsafe { receive_message(fd, message, flags) } {
            return received;
        }
    }
    let received =
        next_point!(recvmsg(fd => c_int, message => *mut msghdr, flags => c_int) -> ssize_t);
    if received >= 0 {
        // SAFETY: the kernel has filled it in.
        unsafe { ancillary::after_receive(message) };
    }
    received
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut libc::timespec,
) -> c_int {
    if !is_ours(fd) {
        let received = next!(recvmmsg(
            fd => c_int,
            messages => *mut mmsghdr,
            count => c_uint,
            flags => c_int,
            timeout => *mut libc::timespec,
        ) -> c_int);
        for at in 0..received.max(0) as usize {
            // SAFETY: the kernel has filled in this many messages.
            unsafe { ancillary::after_receive(&raw const (*messages.add(at)).msg_hdr) };
        }
        return received;
    }
    // SAFETY: recvmmsg(2)'s contract: null or valid.
    let mut timeout = unsafe { timeout.as_mut() };
    let start = std::time::Instant::now();
    let total = timeout.as_deref().map(|time| {
        std::time::Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec.max(0) as u32)
    });
    let mut taken = 0;
    while taken < count {
        // With MSG_WAITFORONE only the first message may wait.
        let waits = taken == 0 || flags & libc::MSG_WAITFORONE == 0;
        let flags = if waits { flags } else { flags | libc::MSG_DONTWAIT };
        // SAFETY: recvmmsg(2)'s contract.
        let message = unsafe { &mut *messages.add(taken as usize) };
        // SAFETY: as above.
        let received = unsafe { recvmsg(fd, &mut message.msg_hdr, flags & !libc::MSG_WAITFORONE) };
        if received < 0 {
            return if taken == 0 { -1 } else { taken as c_int };
        }
        message.msg_len = received as c_uint;
        taken += 1;
        // As in the kernel, the time is checked after each message only.
        if let (Some(time), Some(total)) = (timeout.as_deref_mut(), total) {
            let left = total.saturating_sub(start.elapsed());
            (time.tv_sec, time.tv_nsec) = (left.as_secs() as i64, left.subsec_nanos().into());
            if left.is_zero() {
                break;
            }
        }
    }
    taken as c_int
}

/// Whether a vector has no bytes: readv(2) and writev(2) then return without asking the socket.
///
/// # Safety
/// readv(2)'s.
unsafe fn is_empty(fd: c_int, parts: *const iovec, count: c_int) -> bool {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    if !is_ours(fd) || count > PARTS_MAX {
        return false;
    }
    // SAFETY: by the contract.
    (0..count).all(|at| unsafe { (*parts.add(at)).iov_len == 0 })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the same contract.
    if unsafe { is_empty(fd, parts, count) } {
        return 0;
    }
    // SAFETY: the same contract.
    if let Some(received) = unsafe { receive_parts(fd, parts, count as usize, 0) } {
        return received;
    }
    next_point!(readv(fd => c_int, parts => *const iovec, count => c_int) -> ssize_t)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn write(fd: c_int, from: *const c_void, count: size_t) -> ssize_t {
    // SAFETY: the same contract.
    if let Some(sent) = unsafe { send_one(fd, from, count, 0) } {
        return sent;
    }
    next_point!(write(fd => c_int, from => *const c_void, count => size_t) -> ssize_t)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn send(
    fd: c_int,
    from: *const c_void,
    count: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the same contract.
    if let Some(sent) = unsafe { send_one(fd, from, count, flags) } {
        return sent;
    }
    next_point!(send(fd => c_int, from => *const c_void, count => size_t, flags => c_int) -> ssize_t)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    from: *const c_void,
    count: size_t,
    flags: c_int,
    address: *const c_void,
    length: libc::socklen_t,
) -> ssize_t {
    // The connection's own peer is used, not `address`, as in the kernel.
    // SAFETY: the same contract.
    if let Some(sent) = unsafe { send_one(fd, from, count, flags) } {
        return sent;
    }
    next_point!(sendto(
        fd => c_int,
        from => *const c_void,
        count => size_t,
        flags => c_int,
        address => *const c_void,
        length => libc::socklen_t,
    ) -> ssize_t)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    if is_ours(fd) {
        // SAFETY: the same contract.
        if let Some(sent) = unsafe { send_message(fd, message, flags) } {
            return sent;
        }
    }
    // SAFETY: the same contract.
    unsafe { ancillary::before_send(message) };
    next_point!(sendmsg(fd => c_int, message => *const msghdr, flags => c_int) -> ssize_t)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    if !is_ours(fd) {
        for at in 0..count as usize {
            // SAFETY: sendmmsg(2)'s contract.
            unsafe { ancillary::before_send(&raw const (*messages.add(at)).msg_hdr) };
        }
        return next!(sendmmsg(
            fd => c_int,
            messages => *mut mmsghdr,
            count => c_uint,
            flags => c_int,
        ) -> c_int);
    }
    let mut taken = 0;
    while taken < count {
        // SAFETY: sendmmsg(2)'s contract.
        let message = unsafe { &mut *messages.add(taken as usize) };
        // SAFETY: as above.
        let sent = unsafe { sendmsg(fd, &message.msg_hdr, flags) };
        if sent < 0 {
            return if taken == 0 { -1 } else { taken as c_int };
        }
        message.msg_len = sent as c_uint;
        taken += 1;
        // SAFETY: as above.
        let parts = unsafe { vector(message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) };
        if (sent as usize) < total(parts) {
            break;
        }
    }
    taken as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the same contract.
    if unsafe { is_empty(fd, parts, count) } {
        return 0;
    }
    // SAFETY: the same contract.
    if let Some(sent) = unsafe { send_parts(fd, parts, count as usize, 0) } {
        return sent;
    }
    next_point!(writev(fd => c_int, parts => *const iovec, count => c_int) -> ssize_t)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendfile64(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    if is_ours(to)
        && let Some(sockets) = sockets()
    {
        // SAFETY: sendfile(2)'s contract: null or valid.
        let place = unsafe { offset.as_mut() };
        let mut position = place.as_ref().map(|offset| **offset as u64);
        if let Verdict::Ours(sent) = sockets.send_file(to, from, position.as_mut(), count) {
            if let (Some(place), Some(position)) = (place, position) {
                *place = position as off_t;
            }
            return size(sent);
        }
    }
    next!(sendfile64(
        to => c_int,
        from => c_int,
        offset => *mut off_t,
        count => size_t,
    ) -> ssize_t)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendfile(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    if is_ours(to) {
        // SAFETY: the same contract; `off_t` has 64 bits.
        return unsafe { sendfile64(to, from, offset, count) };
    }
    next!(sendfile(to => c_int, from => c_int, offset => *mut off_t, count => size_t) -> ssize_t)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn splice(
    from: c_int,
    from_offset: *mut off_t,
    to: c_int,
    to_offset: *mut off_t,
    count: size_t,
    flags: c_uint,
) -> ssize_t {
    demote(from, Cause::Splice);
    demote(to, Cause::Splice);
    next!(splice(
        from => c_int,
        from_offset => *mut off_t,
        to => c_int,
        to_offset => *mut off_t,
        count => size_t,
        flags => c_uint,
    ) -> ssize_t)
}

/// read(2) through syscall(2).
///
/// # Safety
/// read(2)'s.
pub unsafe fn call_read(fd: c_int, into: *mut c_void, count: size_t) -> std::ffi::c_long {
    // SAFETY: the same contract.
    unsafe { read(fd, into, count) as std::ffi::c_long }
}

/// write(2) through syscall(2).
///
/// # Safety
/// write(2)'s.
pub unsafe fn call_write(fd: c_int, from: *const c_void, count: size_t) -> std::ffi::c_long {
    // SAFETY: the same contract.
    unsafe { write(fd, from, count) as std::ffi::c_long }
}

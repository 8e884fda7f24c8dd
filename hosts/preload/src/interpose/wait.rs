//! Calls that wait for several descriptors.

use std::ffi::{c_int, c_long, c_ulong, c_void};
use std::time::Duration;

use libc::{nfds_t, pollfd, sigset_t, timespec, timeval};
use rustix::io::Errno;
use wave_readiness::Event;

use super::process::{is_ours, sockets, sockets_or_new, with_or_new};
use super::{Verdict, done, fail, next, next_point};
use crate::sockets::Sockets;
use crate::sys::SignalMask;

/// The process's sockets and `fds` as a slice, if one of the descriptors is ours.
///
/// # Safety
/// poll(2)'s: `fds` is valid for `count` entries.
unsafe fn involved<'a>(
    fds: *mut pollfd,
    count: nfds_t,
) -> Option<(&'static Sockets, &'a mut [pollfd])> {
    if fds.is_null() || count == 0 {
        return None;
    }
    // SAFETY: by the contract.
    let fds = unsafe { std::slice::from_raw_parts_mut(fds, count as usize) };
    let is_any = fds.iter().any(|entry| is_ours(entry.fd));
    sockets().filter(|_| is_any).map(|sockets| (sockets, fds))
}

fn answer(found: Result<usize, Errno>) -> c_int {
    match found {
        Ok(count) => count as c_int,
        Err(error) => fail(error),
    }
}

/// A timeout in milliseconds; a negative one is infinite (`None`).
fn milliseconds(timeout: c_int) -> Option<Duration> {
    u64::try_from(timeout).ok().map(Duration::from_millis)
}

/// # Safety
/// `timeout` is null or valid.
unsafe fn time(timeout: *const timespec) -> Result<Option<Duration>, Errno> {
    // SAFETY: by the contract.
    let Some(timeout) = (unsafe { timeout.as_ref() }) else { return Ok(None) };
    let seconds = u64::try_from(timeout.tv_sec).map_err(|_| Errno::INVAL)?;
    let nanos = u32::try_from(timeout.tv_nsec).map_err(|_| Errno::INVAL)?;
    if nanos >= 1_000_000_000 {
        return Err(Errno::INVAL);
    }
    Ok(Some(Duration::new(seconds, nanos)))
}

/// The kernel's part of a `sigset_t`.
///
/// # Safety
/// `mask` is null or valid.
unsafe fn signals(mask: *const sigset_t) -> Option<SignalMask> {
    // SAFETY: by the contract; a `sigset_t` is longer than the kernel's set.
    (!mask.is_null()).then(|| unsafe { *mask.cast::<SignalMask>() })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: poll(2)'s contract.
    if let Some((sockets, fds)) = unsafe { involved(fds, count) } {
        return answer(sockets.poll(fds, milliseconds(timeout), None));
    }
    next_point!(poll(fds => *mut pollfd, count => nfds_t, timeout => c_int) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    room: usize,
) -> c_int {
    if room / size_of::<pollfd>() >= count as usize {
        // SAFETY: poll(2)'s contract.
        return unsafe { poll(fds, count, timeout) };
    }
    next!(__poll_chk(
        fds => *mut pollfd,
        count => nfds_t,
        timeout => c_int,
        room => usize,
    ) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: ppoll(2)'s contract.
    if let Some((sockets, fds)) = unsafe { involved(fds, count) } {
        // SAFETY: as above.
        let found =
            unsafe { time(timeout).and_then(|time| sockets.poll(fds, time, signals(mask))) };
        return answer(found);
    }
    next_point!(ppoll(
        fds => *mut pollfd,
        count => nfds_t,
        timeout => *const timespec,
        mask => *const sigset_t,
    ) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: usize,
) -> c_int {
    if room / size_of::<pollfd>() >= count as usize {
        // SAFETY: ppoll(2)'s contract.
        return unsafe { ppoll(fds, count, timeout, mask) };
    }
    next!(__ppoll_chk(
        fds => *mut pollfd,
        count => nfds_t,
        timeout => *const timespec,
        mask => *const sigset_t,
        room => usize,
    ) -> c_int)
}

/// The words of an `fd_set` that hold the first `count` descriptors.
///
/// # Safety
/// select(2)'s: `set` is null or valid for them.
unsafe fn words<'a>(set: *mut c_ulong, count: usize) -> Option<&'a mut [u64]> {
    // SAFETY: by the contract.
    (!set.is_null()).then(|| unsafe { std::slice::from_raw_parts_mut(set, count.div_ceil(64)) })
}

/// # Safety
/// select(2)'s.
unsafe fn select_ours(
    count: c_int,
    sets: [*mut c_ulong; 3],
    timeout: Result<Option<Duration>, Errno>,
    mask: Option<SignalMask>,
) -> Option<c_int> {
    let count = usize::try_from(count).ok()?;
    let sockets = sockets()?;
    // SAFETY: by the contract.
    let sets = sets.map(|set| unsafe { words(set, count) });
    let is_named = |fd: usize| sets.iter().flatten().any(|set| set[fd / 64] & 1 << (fd % 64) != 0);
    if !(0..count).any(|fd| is_named(fd) && is_ours(fd as c_int)) {
        return None;
    }
    Some(answer(timeout.and_then(|timeout| sockets.select(count, sets, timeout, mask))))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn select(
    count: c_int,
    reads: *mut c_ulong,
    writes: *mut c_ulong,
    exceptions: *mut c_ulong,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: select(2)'s contract.
    let patience = match unsafe { timeout.as_ref() } {
        None => Ok(None),
        Some(time) => match (u64::try_from(time.tv_sec), u64::try_from(time.tv_usec)) {
            (Ok(seconds), Ok(micros)) => {
                Ok(Some(Duration::from_secs(seconds) + Duration::from_micros(micros)))
            }
            _ => Err(Errno::INVAL),
        },
    };
    let start = std::time::Instant::now();
    // SAFETY: as above.
    let found = unsafe { select_ours(count, [reads, writes, exceptions], patience, None) };
    if let Some(found) = found {
        if let (Ok(Some(patience)), false) = (patience, timeout.is_null()) {
            // Linux returns the remaining time.
            let left = patience.saturating_sub(start.elapsed());
            // SAFETY: as above.
            unsafe {
                (*timeout).tv_sec = left.as_secs() as libc::time_t;
                (*timeout).tv_usec = left.subsec_micros() as libc::suseconds_t;
            }
        }
        return found;
    }
    next!(select(
        count => c_int,
        reads => *mut c_ulong,
        writes => *mut c_ulong,
        exceptions => *mut c_ulong,
        timeout => *mut timeval,
    ) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pselect(
    count: c_int,
    reads: *mut c_ulong,
    writes: *mut c_ulong,
    exceptions: *mut c_ulong,
    timeout: *const timespec,
    mask: *const c_void,
) -> c_int {
    // SAFETY: pselect(2)'s contract.
    let found = unsafe {
        select_ours(count, [reads, writes, exceptions], time(timeout), signals(mask.cast()))
    };
    if let Some(found) = found {
        return found;
    }
    next!(pselect(
        count => c_int,
        reads => *mut c_ulong,
        writes => *mut c_ulong,
        exceptions => *mut c_ulong,
        timeout => *const timespec,
        mask => *const c_void,
    ) -> c_int)
}

/// epoll_pwait(2); without a `timeout` waits for ever. `None` if the kernel answers: the set has no sockets of ours, and gets none while the
/// call waits.
///
/// # Safety
/// epoll_wait(2)'s: `events` is valid for `count` entries.
unsafe fn wait(
    set: c_int,
    events: *mut Event,
    count: c_int,
    timeout: Option<Duration>,
    mask: Option<SignalMask>,
) -> Option<c_int> {
    let is_known = is_ours(set);
    if !is_known && (set < 0 || count <= 0) {
        return None;
    }
    let never_waits = timeout == Some(Duration::ZERO);
    let sockets = if is_known || never_waits { sockets()? } else { sockets_or_new()? };
    if count <= 0 {
        return Some(fail(Errno::INVAL));
    }
    // SAFETY: by the contract. An `Event` is a `struct epoll_event`, and any bytes are one.
    let events = unsafe { std::slice::from_raw_parts_mut(events, count as usize) };
    match sockets.epoll_wait(set, events, timeout, mask) {
        Verdict::Ours(found) => Some(answer(found)),
        Verdict::Kernels => None,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_ctl(
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut Event,
) -> c_int {
    if set >= 0 && fd >= 0 {
        // SAFETY: epoll_ctl(2)'s contract.
        let interest = unsafe { event.as_ref() }.copied();
        let changed = with_or_new(|sockets| sockets.epoll_control(set, operation, fd, interest));
        if let Some(Verdict::Ours(changed)) = changed {
            return done(changed);
        }
    }
    next!(epoll_ctl(
        set => c_int,
        operation => c_int,
        fd => c_int,
        event => *mut Event,
    ) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_wait(
    set: c_int,
    events: *mut Event,
    count: c_int,
    timeout: c_int,
) -> c_int {
    // SAFETY: the same contract.
    if let Some(found) = unsafe { wait(set, events, count, milliseconds(timeout), None) } {
        return found;
    }
    next!(epoll_wait(
        set => c_int,
        events => *mut Event,
        count => c_int,
        timeout => c_int,
    ) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_pwait(
    set: c_int,
    events: *mut Event,
    count: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the same contract.
    let found = unsafe { wait(set, events, count, milliseconds(timeout), signals(mask)) };
    if let Some(found) = found {
        return found;
    }
    next!(epoll_pwait(
        set => c_int,
        events => *mut Event,
        count => c_int,
        timeout => c_int,
        mask => *const sigset_t,
    ) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_pwait2(
    set: c_int,
    events: *mut Event,
    count: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the same contract.
    match unsafe { time(timeout) } {
        Ok(patience) => {
            // SAFETY: as above.
            if let Some(found) = unsafe { wait(set, events, count, patience, signals(mask)) } {
                return found;
            }
        }
        Err(error) if is_ours(set) => return fail(error),
        Err(_) => {}
    }
    next!(epoll_pwait2(
        set => c_int,
        events => *mut Event,
        count => c_int,
        timeout => *const timespec,
        mask => *const sigset_t,
    ) -> c_int)
}

/// epoll_ctl(2) through syscall(2).
///
/// # Safety
/// epoll_ctl(2)'s.
pub unsafe fn call_epoll_ctl(
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut c_void,
) -> c_long {
    // SAFETY: the same contract.
    unsafe { epoll_ctl(set, operation, fd, event.cast()).into() }
}

/// epoll_pwait(2) through syscall(2).
///
/// # Safety
/// epoll_pwait(2)'s.
pub unsafe fn call_epoll_pwait(
    set: c_int,
    events: *mut c_void,
    count: c_int,
    timeout: c_int,
    mask: *mut c_void,
) -> c_long {
    // SAFETY: the same contract; the kernel's mask is the start of a `sigset_t`, and nothing reads its rest.
    unsafe { epoll_pwait(set, events.cast(), count, timeout, mask.cast()).into() }
}

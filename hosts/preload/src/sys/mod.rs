//! System calls for which rustix has no safe form. None goes through a symbol that `interpose` replaces.

mod signals;

use std::ffi::{c_int, c_long};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::PollFd;
use rustix::fs::OFlags;
use rustix::io::{Errno, fcntl_dupfd_cloexec};

use crate::sigio::Cause;
pub use signals::*;

/// A descriptor that a child of fork(2) has from its parent, whose owner there is never dropped in the child.
pub fn inherited(fd: c_int) -> OwnedFd {
    // SAFETY: by the contract, nothing else owns the child's copy.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// A program's descriptor, by its number.
pub fn fd(number: c_int) -> BorrowedFd<'static> {
    assert!(number >= 0, "{number} is not a descriptor");
    // SAFETY: it is not -1. The descriptor is the program's, not ours to close: a call on one that the program has closed fails, or
    // reaches the next file with that number, as the program's own calls would.
    unsafe { BorrowedFd::borrow_raw(number) }
}

/// Least numbers of the library's own descriptors, of which the first that RLIMIT_NOFILE allows is taken. Programs count on low numbers:
/// they get the lowest free one, choose some for dup2(2), and close all of them. Higher ones would make fork(2) slower, which copies the
/// table up to the highest.
const OWN_FROM: [c_int; 6] = [960, 448, 192, 96, 32, 0];

/// Duplicates a descriptor for the library's own use.
pub fn own_duplicate(fd: impl AsFd) -> Result<OwnedFd, Errno> {
    let mut made = Err(Errno::MFILE);
    for least in OWN_FROM {
        made = fcntl_dupfd_cloexec(&fd, least);
        if made.is_ok() {
            break;
        }
    }
    made
}

/// Moves a new descriptor of the library to the numbers of [`own_duplicate`], if one of them is free.
pub fn move_away(fd: OwnedFd) -> OwnedFd {
    own_duplicate(&fd).unwrap_or(fd)
}

/// Closes one of the program's descriptors.
#[cfg_attr(test, allow(dead_code))]
pub fn close(number: c_int) {
    // SAFETY: the program, or the child after a fork, gives it up.
    unsafe { rustix::io::close(number) };
}

/// An unguessable number.
pub fn random() -> Result<u128, Errno> {
    let mut bytes = [0_u8; 16];
    // The C library's own would be a cancellation point.
    // SAFETY: `bytes` is valid for writes of its length.
    let count = unsafe { libc::syscall(libc::SYS_getrandom, bytes.as_mut_ptr(), bytes.len(), 0) };
    match count {
        16 => Ok(u128::from_ne_bytes(bytes)),
        _ => Err(last_error()),
    }
}

/// Attaches words to a socket, which any holder of one of its descriptors can read. They are stored as constants of a socket filter,
/// whose only other instruction lets every packet through.
pub fn attach(number: c_int, words: &[u64]) -> Result<(), Errno> {
    let load = |k| libc::sock_filter { code: FILTER_LOAD, jt: 0, jf: 0, k };
    let halves = words.iter().flat_map(|word| [*word as u32, (*word >> 32) as u32]);
    let mut filter: Vec<libc::sock_filter> = halves.map(load).collect();
    filter.push(libc::sock_filter { code: FILTER_RETURN, jt: 0, jf: 0, k: u32::MAX });
    let length = u16::try_from(filter.len()).map_err(|_| Errno::INVAL)?;
    let program = libc::sock_fprog { len: length, filter: filter.as_mut_ptr() };
    let bytes = size_of::<libc::sock_fprog>() as libc::socklen_t;
    // SAFETY: `program` and the instructions that it names are valid for reads.
    let done = unsafe {
        let at = &raw const program;
        libc::syscall(
            libc::SYS_setsockopt,
            number,
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            at,
            bytes,
        )
    };
    if done == 0 { Ok(()) } else { Err(last_error()) }
}

/// Removes a socket's filter.
pub fn detach(number: c_int) {
    let none: c_int = 0;
    let bytes = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: `none` is valid for reads of its length. The kernel ignores its value.
    unsafe {
        let (level, name) = (libc::SOL_SOCKET, libc::SO_DETACH_FILTER);
        libc::syscall(libc::SYS_setsockopt, number, level, name, &raw const none, bytes);
    }
}

/// The words that were attached to a socket, if it has such a filter.
pub fn attached(number: c_int) -> Option<Vec<u64>> {
    let mut filter = [libc::sock_filter { code: 0, jt: 0, jf: 0, k: 0 }; 2 * ATTACHED_MAX + 1];
    let mut count = filter.len() as libc::socklen_t;
    // SAFETY: `filter` is valid for writes of `count` instructions: the kernel counts them, not their bytes.
    let done = unsafe {
        let at = filter.as_mut_ptr();
        let name = libc::SO_GET_FILTER;
        libc::syscall(libc::SYS_getsockopt, number, libc::SOL_SOCKET, name, at, &raw mut count)
    };
    if done != 0 {
        return None;
    }
    let (last, words) = filter.get(..count as usize)?.split_last()?;
    let is_it = last.code == FILTER_RETURN && words.iter().all(|one| one.code == FILTER_LOAD);
    let pairs = words.chunks_exact(2);
    is_it.then(|| pairs.map(|pair| u64::from(pair[1].k) << 32 | u64::from(pair[0].k)).collect())
}

/// Bytes of a socket's keys.
const KEYS_BYTES: usize = 32;

/// Sets a socket's own keys of TCP Fast Open, which are without effect as long as it does not listen with them.
pub fn set_keys(number: c_int, keys: &[u8; KEYS_BYTES]) -> Result<(), Errno> {
    let (level, name) = (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_KEY);
    // SAFETY: `keys` is valid for reads of its length.
    let done = unsafe {
        libc::syscall(libc::SYS_setsockopt, number, level, name, keys.as_ptr(), KEYS_BYTES)
    };
    if done == 0 { Ok(()) } else { Err(last_error()) }
}

/// The keys of TCP Fast Open that a socket uses, if there are two.
pub fn keys(number: c_int) -> Option<[u8; KEYS_BYTES]> {
    let mut keys = [0; KEYS_BYTES];
    let mut length = KEYS_BYTES as libc::socklen_t;
    // SAFETY: `keys` is valid for writes of `length` bytes.
    let done = unsafe {
        let (level, name, at) = (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_KEY, keys.as_mut_ptr());
        libc::syscall(libc::SYS_getsockopt, number, level, name, at, &raw mut length)
    };
    (done == 0 && length as usize == KEYS_BYTES).then_some(keys)
}

/// BPF_LD | BPF_IMM and BPF_RET | BPF_K of a classic filter.
const FILTER_LOAD: u16 = 0x00;
const FILTER_RETURN: u16 = 0x06;
/// Most words that [`attached`] reads.
const ATTACHED_MAX: usize = 32;

/// Raises SIGPIPE in the calling thread.
pub fn raise_sigpipe() {
    // SAFETY: no memory is involved.
    unsafe { libc::raise(libc::SIGPIPE) };
}

/// O_ASYNC, for which rustix has no name.
pub const ASYNC: OFlags = OFlags::from_bits_retain(libc::O_ASYNC as u32);

/// The kernel's `siginfo_t` of a signal for O_ASYNC.
#[repr(C)]
struct SignalInfo {
    signal: c_int,
    errno: c_int,
    code: c_int,
    _pad: c_int,
    band: libc::c_long,
    fd: c_int,
    _rest: [u8; 100],
}

const _: () = assert!(size_of::<SignalInfo>() == size_of::<libc::siginfo_t>());

/// Signals the owner of a kernel socket that has O_ASYNC, as the kernel does (send_sigio). `shown` is the descriptor in `si_fd`.
///
/// A process may give the kernel's codes (`si_code` > 0) only to signals for itself. A signal to another owner has SI_SIGIO.
pub fn signal_owner(number: c_int, shown: c_int, cause: Cause) {
    const GET_OWNER: c_int = 16;
    const GET_SIGNAL: c_int = 11;
    const OWNER_THREAD: c_int = 0;
    const OWNER_GROUP: c_int = 2;
    const SI_SIGIO: c_int = -5;
    // A `struct f_owner_ex`.
    let mut owner: [c_int; 2] = [0; 2];
    // SAFETY: `owner` is valid for writes of its size.
    let known = unsafe { libc::syscall(libc::SYS_fcntl, number, GET_OWNER, owner.as_mut_ptr()) };
    let [kind, id] = owner;
    if known != 0 || id == 0 {
        return;
    }
    // SAFETY: no memory is involved.
    let chosen = unsafe { libc::syscall(libc::SYS_fcntl, number, GET_SIGNAL, 0) } as c_int;
    let own = std::process::id() as c_int;
    let (signal, own_code) = match chosen {
        1.. => (chosen, cause as c_int),
        _ => (libc::SIGIO, libc::SI_KERNEL),
    };
    let code = if kind != OWNER_THREAD && id == own { own_code } else { SI_SIGIO };
    let (band, fd) = if chosen > 0 { (cause.band().bits().into(), shown) } else { (0, 0) };
    let about = SignalInfo { signal, errno: 0, code, _pad: 0, band, fd, _rest: [0; 100] };
    let at = &raw const about;
    // SAFETY: `about` has the layout of a `siginfo_t`.
    let sent = unsafe {
        match kind {
            OWNER_GROUP => libc::syscall(libc::SYS_kill, -id, signal),
            OWNER_THREAD => libc::syscall(libc::SYS_rt_tgsigqueueinfo, own, id, signal, at),
            // The kernel compares the calling thread's number, and signals that thread's whole process.
            _ if id == own => libc::syscall(libc::SYS_rt_sigqueueinfo, libc::gettid(), signal, at),
            _ => libc::syscall(libc::SYS_rt_sigqueueinfo, id, signal, at),
        }
    };
    if sent != 0 && last_error() == Errno::AGAIN {
        // The queue of signals is full.
        // SAFETY: no memory is involved.
        unsafe { libc::kill(id, libc::SIGIO) };
    }
}

/// Runs `call` with all signals blocked in this thread: a thread that it starts gets none.
pub fn with_signals_blocked<R>(call: impl FnOnce() -> R) -> R {
    // SAFETY: all zero is a valid `sigset_t`, and both sets are valid for the calls.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) =
            (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let answer = call();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        answer
    }
}

/// TCP_MAXSEG, as the program has set it on an unconnected socket; `u16::MAX` if it is not set, or is set to the kernel's default, 536.
pub fn mss_max(fd: BorrowedFd<'_>) -> u16 {
    const UNSET: c_int = 536;
    let set = option(fd, libc::IPPROTO_TCP, libc::TCP_MAXSEG).filter(|value| *value != UNSET);
    set.and_then(|value| u16::try_from(value).ok()).unwrap_or(u16::MAX)
}

/// SO_RCVLOWAT of a kernel socket.
pub fn low_water(fd: BorrowedFd<'_>) -> usize {
    let value = option(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT);
    value.and_then(|value| usize::try_from(value).ok()).unwrap_or(1)
}

/// Sets SO_RCVLOWAT of a kernel socket.
pub fn set_low_water(fd: BorrowedFd<'_>, bytes: usize) {
    let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
    set_option(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, bytes);
}

/// Sets TCP_MAXSEG of a kernel socket.
#[cfg(test)]
pub fn set_mss_max(number: c_int, bytes: c_int) {
    assert!(
        set_option(fd(number), libc::IPPROTO_TCP, libc::TCP_MAXSEG, bytes),
        "{number} is not a TCP socket"
    );
}

/// A kernel socket's option that is a number.
fn option(fd: BorrowedFd<'_>, level: c_int, name: c_int) -> Option<c_int> {
    let mut value: c_int = 0;
    let mut length = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: `value` is valid for writes of `length` bytes, and `length` for reads and writes.
    let done = unsafe {
        libc::syscall(
            libc::SYS_getsockopt,
            fd.as_raw_fd(),
            level,
            name,
            &raw mut value,
            &raw mut length,
        )
    };
    (done == 0).then_some(value)
}

/// Sets a kernel socket's option that is a number. Returns whether the kernel has accepted it.
fn set_option(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> bool {
    let length = size_of::<c_int>();
    // SAFETY: `value` is valid for reads of `length` bytes.
    unsafe {
        let at = &raw const value;
        libc::syscall(libc::SYS_setsockopt, fd.as_raw_fd(), level, name, at, length) == 0
    }
}

/// connect(2) of a kernel socket with AF_UNSPEC.
#[cfg(test)]
pub fn disconnect(number: c_int) -> Result<(), Errno> {
    let name = libc::sockaddr { sa_family: libc::AF_UNSPEC as u16, sa_data: [0; 14] };
    let bytes = size_of::<libc::sockaddr>() as libc::socklen_t;
    // SAFETY: `name` is valid for reads of `bytes` bytes.
    match unsafe { libc::connect(number, &raw const name, bytes) } {
        0 => Ok(()),
        _ => Err(last_error()),
    }
}

/// recv(2) of a kernel socket with MSG_TRUNC, without memory for the bytes.
pub fn discard(number: c_int, bytes: usize, flags: c_int) -> Result<usize, Errno> {
    // SAFETY: with MSG_TRUNC, nothing is written to the pointer (tcp(7)).
    let count = unsafe { libc::recv(number, std::ptr::null_mut(), bytes, flags | libc::MSG_TRUNC) };
    usize::try_from(count).map_err(|_| last_error())
}

/// The kernel's ppoll(2), or poll(2) where that does the same: older sandboxes allow only the latter. Returns the number of entries with
/// events. A signal handler ends the wait by two changes: the time that is left becomes 0, and the first entry's descriptor [`NO_FILE`].
/// poll(2) gets its time by value and sees only the second; pselect6(2) gets copies of the descriptors and sees only the first.
///
/// # Safety
/// `left` is valid for the call.
pub unsafe fn ppoll(
    fds: &mut [libc::pollfd],
    left: *mut libc::timespec,
    mask: Option<SignalMask>,
) -> Result<usize, Errno> {
    #[cfg(target_arch = "x86_64")]
    if mask.is_none()
        // SAFETY: by the contract.
        && let Some(milliseconds) = unsafe { milliseconds(left) }
    {
        // SAFETY: `fds` is valid for its number of entries.
        let count =
            unsafe { libc::syscall(libc::SYS_poll, fds.as_mut_ptr(), fds.len(), milliseconds) };
        // SAFETY: by the contract.
        return unsafe { or_pselect(count, fds, left, mask) };
    }
    let signals = mask.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let bytes = size_of::<SignalMask>();
    // SAFETY: `fds` is valid for its number of entries, `mask` is null or valid; `left` by the contract.
    let count = unsafe {
        libc::syscall(libc::SYS_ppoll, fds.as_mut_ptr(), fds.len(), left, signals, bytes)
    };
    // SAFETY: by the contract.
    unsafe { or_pselect(count, fds, left, mask) }
}

/// The number of no file: it is above every limit of descriptors.
pub const NO_FILE: c_int = c_int::MAX;
/// No limit of a wait.
pub const FOR_EVER: Duration = Duration::from_secs(1 << 30);

/// A timeout for poll(2), if it is a whole number of milliseconds.
///
/// # Safety
/// `left` is valid.
#[cfg(target_arch = "x86_64")]
unsafe fn milliseconds(left: *const libc::timespec) -> Option<c_int> {
    // SAFETY: by the contract. A signal handler of this thread may change it.
    let left = unsafe { left.read_volatile() };
    let is_limited = (left.tv_sec as u64) < FOR_EVER.as_secs();
    wave_links::whole_milliseconds(is_limited.then_some(&left))
}

/// The result of poll(2), which is called again by pselect6(2) if there are more entries than RLIMIT_NOFILE: sandboxed programs set it to 0
/// or 1.
///
/// # Safety
/// `left` is valid for the call.
unsafe fn or_pselect(
    count: c_long,
    fds: &mut [libc::pollfd],
    left: *mut libc::timespec,
    mask: Option<SignalMask>,
) -> Result<usize, Errno> {
    match usize::try_from(count).map_err(|_| last_error()) {
        // SAFETY: by the contract.
        Err(Errno::INVAL) => unsafe { pselect(fds, left, mask) },
        found => found,
    }
}

/// As [`ppoll`], by pselect6(2), which has no limit of descriptors.
///
/// # Safety
/// `left` is valid for the call.
unsafe fn pselect(
    fds: &mut [libc::pollfd],
    left: *mut libc::timespec,
    mask: Option<SignalMask>,
) -> Result<usize, Errno> {
    /// The events for which each of the three sets stands.
    const KINDS: [i16; 3] =
        [libc::POLLIN | libc::POLLRDNORM | libc::POLLHUP, libc::POLLOUT, libc::POLLPRI];
    // Neither an entry that is to be skipped, nor one that a handler has changed.
    let is_file = |entry: &&libc::pollfd| (0..NO_FILE).contains(&entry.fd);
    let count = fds.iter().filter(is_file).map(|entry| entry.fd + 1).max().unwrap_or(0) as usize;
    let has = |set: &[u64], fd: c_int| set[fd as usize / 64] & 1 << (fd % 64) != 0;
    let mut sets = KINDS.map(|kinds| {
        let mut set = vec![0_u64; count.div_ceil(64)];
        for entry in fds.iter().filter(is_file).filter(|entry| entry.events & kinds != 0) {
            set[entry.fd as usize / 64] |= 1 << (entry.fd % 64);
        }
        set
    });
    let signals = mask.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let signals = [signals as usize, size_of::<SignalMask>()];
    let [read, write, except] = sets.each_mut().map(|set| set.as_mut_ptr());
    // SAFETY: the sets have a bit for each of `count` descriptors; `left` by the contract; the mask is null or valid for the call.
    let found = unsafe {
        libc::syscall(libc::SYS_pselect6, count, read, write, except, left, signals.as_ptr())
    };
    if found < 0 {
        return Err(last_error());
    }
    for entry in fds.iter_mut() {
        entry.revents = 0;
        if !is_file(&&*entry) {
            continue;
        }
        for (set, kinds) in sets.iter().zip(KINDS) {
            if entry.events & kinds != 0 && has(set, entry.fd) {
                entry.revents |= entry.events & kinds;
            }
        }
    }
    Ok(fds.iter().filter(|entry| entry.revents != 0).count())
}

/// Entries of poll(2) in the kernel's layout.
pub fn raw_entries<'a>(fds: &'a mut [PollFd<'_>]) -> &'a mut [libc::pollfd] {
    const { assert!(size_of::<PollFd<'_>>() == size_of::<libc::pollfd>()) };
    const { assert!(align_of::<PollFd<'_>>() == align_of::<libc::pollfd>()) };
    let at = fds.as_mut_ptr().cast::<libc::pollfd>();
    // SAFETY: a `PollFd` is a `struct pollfd` of the same size, as rustix documents; poll only writes its events.
    unsafe { std::slice::from_raw_parts_mut(at, fds.len()) }
}

/// Number of written bytes that the peer of a kernel socket has not acknowledged (`SIOCOUTQ`: see tcp(7)).
#[cfg(test)]
pub fn unacknowledged_bytes(number: c_int) -> c_int {
    let mut bytes: c_int = 0;
    // SAFETY: the request writes an `int` at this address.
    let done = unsafe { libc::ioctl(number, libc::TIOCOUTQ, &raw mut bytes) };
    if done == 0 { bytes } else { 0 }
}

/// `tcpi_state` of a kernel socket: see tcp(7).
#[cfg(test)]
pub fn tcp_state(number: c_int) -> u8 {
    let mut state = 0_u8;
    let mut length = 1;
    // SAFETY: `state` is valid for writes of `length` bytes.
    let done = unsafe {
        libc::getsockopt(
            number,
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut state).cast(),
            &mut length,
        )
    };
    assert_eq!(done, 0, "{number} is not a TCP socket");
    state
}

fn last_error() -> Errno {
    let error = std::io::Error::last_os_error();
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

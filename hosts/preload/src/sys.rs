//! System calls for which rustix has no safe form. None goes through a symbol that `interpose` replaces.

mod signals;

use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::event::PollFd;
use rustix::io::Errno;

pub use signals::*;

/// A program's descriptor, by its number.
pub fn fd(number: c_int) -> BorrowedFd<'static> {
    assert!(number >= 0, "{number} is not a descriptor");
    // SAFETY: it is not -1. The descriptor is the program's, not ours to close: a call on one that the program has closed fails, or
    // reaches the next file with that number, as the program's own calls would.
    unsafe { BorrowedFd::borrow_raw(number) }
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

/// TCP_MAXSEG, as the program has set it on an unconnected socket; `u16::MAX` if it is not set, or is set to the kernel's default, 536.
pub fn mss_max(fd: BorrowedFd<'_>) -> u16 {
    const UNSET: c_int = 536;
    let mut value: c_int = UNSET;
    let mut length = size_of::<c_int>() as libc::socklen_t;
    let (level, name) = (libc::IPPROTO_TCP, libc::TCP_MAXSEG);
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
    match u16::try_from(value) {
        Ok(bytes) if done == 0 && value != UNSET => bytes,
        _ => u16::MAX,
    }
}

/// Sets TCP_MAXSEG of a kernel socket.
#[cfg(test)]
pub fn set_mss_max(number: c_int, bytes: c_int) {
    let (level, name) = (libc::IPPROTO_TCP, libc::TCP_MAXSEG);
    let length = size_of::<c_int>();
    // SAFETY: `bytes` is valid for reads of `length` bytes.
    let done = unsafe {
        libc::syscall(libc::SYS_setsockopt, number, level, name, &raw const bytes, length)
    };
    assert_eq!(done, 0, "{number} is not a TCP socket");
}

/// A set of signals in the kernel's layout.
pub type SignalMask = u64;

/// The kernel's ppoll(2). Returns the number of entries with events. A signal handler may change the time that is left.
///
/// # Safety
/// `left` is valid for the call.
pub unsafe fn ppoll(
    fds: &mut [libc::pollfd],
    left: *mut libc::timespec,
    mask: Option<SignalMask>,
) -> Result<usize, Errno> {
    let mask = mask.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let bytes = size_of::<SignalMask>();
    // SAFETY: `fds` is valid for its number of entries, `mask` is null or valid; `left` by the contract.
    let count =
        unsafe { libc::syscall(libc::SYS_ppoll, fds.as_mut_ptr(), fds.len(), left, mask, bytes) };
    usize::try_from(count).map_err(|_| last_error())
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

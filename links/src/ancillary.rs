//! One message with file descriptors over a Unix socket (`SCM_RIGHTS`).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// The most descriptors that the kernel passes in one message (`SCM_MAX_FD`).
const FDS_MAX: usize = 253;
const FD_BYTES: usize = size_of::<RawFd>();

/// Room for control messages, aligned as their headers need it.
type Control = [u64; CONTROL_WORDS];
const CONTROL_WORDS: usize = 160;

const _: () = assert!(
    // SAFETY: CMSG_SPACE only computes.
    unsafe { libc::CMSG_SPACE((FDS_MAX * FD_BYTES) as u32) } as usize <= size_of::<Control>()
);

/// What came in one message.
pub(crate) struct Received {
    /// How many bytes, none where the peer hung up.
    pub bytes: usize,
    /// The descriptors, closed on exec and on drop.
    pub fds: Vec<OwnedFd>,
    /// Whether bytes or descriptors were cut off.
    pub truncated: bool,
}

/// Sends `bytes` (not empty) and `fds` as one message, without blocking and without SIGPIPE.
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    if fds.len() > FDS_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut vector =
        libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut control: Control = [0; CONTROL_WORDS];
    let mut message = header(&mut vector);
    if !fds.is_empty() {
        let data_bytes = (fds.len() * FD_BYTES) as u32;
        message.msg_control = control.as_mut_ptr().cast();
        // SAFETY: CMSG_SPACE only computes; the result fits into `control` (asserted above).
        message.msg_controllen = unsafe { libc::CMSG_SPACE(data_bytes) } as _;
        // SAFETY: `control` has room for one header and its data and is aligned for it, so
        // CMSG_FIRSTHDR is not null and CMSG_DATA has `data_bytes` bytes, written unaligned.
        unsafe {
            let first = libc::CMSG_FIRSTHDR(&message);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(data_bytes) as _;
            let data = libc::CMSG_DATA(first).cast::<RawFd>();
            for (index, fd) in fds.iter().enumerate() {
                data.add(index).write_unaligned(fd.as_raw_fd());
            }
        }
    }
    // SAFETY: `message` names `bytes` and `control`, both alive, with their true sizes; sendmsg
    // does not write through `iov_base`.
    let sent = unsafe {
        libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Receives one message into `bytes`, without blocking.
pub(crate) fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<Received> {
    let mut vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control: Control = [0; CONTROL_WORDS];
    let mut message = header(&mut vector);
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of::<Control>() as _;
    // SAFETY: `message` names `bytes` and `control`, both valid for writes of their true sizes.
    let got = unsafe {
        libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT)
    };
    if got < 0 {
        return Err(io::Error::last_os_error());
    }
    let truncated = message.msg_flags & (libc::MSG_CTRUNC | libc::MSG_TRUNC) != 0;
    Ok(Received { bytes: got as usize, fds: take_fds(&message), truncated })
}

/// Takes ownership of every descriptor in a received message, so that none is lost.
#[allow(clippy::unnecessary_cast)] // the type of cmsg_len differs between C libraries
fn take_fds(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    // SAFETY: the kernel wrote well-formed control messages within `msg_controllen` bytes of
    // `msg_control`, which the macros stay within; each descriptor in SCM_RIGHTS was just
    // installed for us and is owned by nobody else.
    unsafe {
        let mut next = libc::CMSG_FIRSTHDR(message);
        while let Some(control) = next.as_ref() {
            if control.cmsg_level == libc::SOL_SOCKET && control.cmsg_type == libc::SCM_RIGHTS {
                let bytes = control.cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let data = libc::CMSG_DATA(control).cast::<RawFd>();
                for index in 0..bytes / FD_BYTES {
                    fds.push(OwnedFd::from_raw_fd(data.add(index).read_unaligned()));
                }
            }
            next = libc::CMSG_NXTHDR(message, control);
        }
    }
    fds
}

fn header(vector: &mut libc::iovec) -> libc::msghdr {
    // SAFETY: all-zero is a valid `msghdr`: no address, no data, no control messages.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vector;
    message.msg_iovlen = 1;
    message
}

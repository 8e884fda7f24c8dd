//! One message with file descriptors over a Unix socket (`SCM_RIGHTS`).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// The most descriptors that the kernel passes in one message (`SCM_MAX_FD`).
const FDS_MAX: usize = 253;

/// A buffer for ancillary data with [`FDS_MAX`] descriptors.
type Control = [MaybeUninit<u8>; rustix::cmsg_space!(ScmRights(FDS_MAX))];
const CONTROL: Control = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];

/// One received message.
pub(crate) struct Received {
    /// Number of bytes; 0 if the peer hung up.
    pub bytes: usize,
    /// The descriptors, closed on exec and on drop.
    pub fds: Vec<OwnedFd>,
    /// Whether bytes or descriptors were cut off.
    pub truncated: bool,
}

/// Sends `bytes` (not empty) and `fds` as one message, without blocking and without SIGPIPE.
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut control = CONTROL;
    let mut control = SendAncillaryBuffer::new(&mut control);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)?;
    Ok(())
}

/// Receives one message into `bytes`, without blocking.
pub(crate) fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<Received> {
    let mut control = CONTROL;
    let mut control = RecvAncillaryBuffer::new(&mut control);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let got = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags)?;
    let fds = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let fds = fds.flatten().collect();
    let truncated = got.flags.intersects(ReturnFlags::CTRUNC | ReturnFlags::TRUNC);
    Ok(Received { bytes: got.bytes, fds, truncated })
}

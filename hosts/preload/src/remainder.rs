//! The remainder of a call whose connection has become a stream of the kernel's after the call had moved some of its bytes
//! (docs/adr/0104). The kernel's own call would begin again with the first byte.

use std::ffi::c_int;
use std::io::{IoSlice, IoSliceMut};
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, socket_timeout};
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, recvmsg, sendmsg,
};

use crate::{signals, sys};

/// Receives until `done` of all bytes is at least `least`, as far as the stream has them. Returns `done`.
///
/// `into` is all of the call's memory; without any, the bytes are discarded, up to `bytes` in all.
pub fn receive(
    fd: c_int,
    into: &mut [IoSliceMut<'_>],
    bytes: usize,
    mut done: usize,
    least: usize,
) -> usize {
    let is_discarded = into.is_empty();
    let mut left = into;
    IoSliceMut::advance_slices(&mut left, if is_discarded { 0 } else { done });
    let wait = Wait::new(fd, Timeout::Recv);
    while done < least {
        let got = match is_discarded {
            true => sys::discard(fd, bytes - done, libc::MSG_DONTWAIT),
            false => {
                let mut none = RecvAncillaryBuffer::default();
                recvmsg(sys::fd(fd), left, &mut none, RecvFlags::DONTWAIT).map(|got| got.bytes)
            }
        };
        match got {
            Ok(0) => break,
            Ok(count) => {
                done += count;
                IoSliceMut::advance_slices(&mut left, if is_discarded { 0 } else { count });
            }
            Err(Errno::AGAIN) if wait.until(libc::POLLIN) => {}
            Err(_) => break,
        }
    }
    done
}

/// Sends what is left of `bytes` bytes after the first `done`, as far as the stream takes it. Returns how many are sent in all.
pub fn send(fd: c_int, from: &[IoSlice<'_>], bytes: usize, mut done: usize) -> usize {
    let mut all = from.to_vec();
    let mut left = &mut all[..];
    IoSlice::advance_slices(&mut left, done);
    let wait = Wait::new(fd, Timeout::Send);
    while done < bytes {
        let mut none = SendAncillaryBuffer::default();
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match sendmsg(sys::fd(fd), left, &mut none, flags) {
            Ok(count) => {
                done += count;
                IoSlice::advance_slices(&mut left, count);
            }
            Err(Errno::AGAIN) if wait.until(libc::POLLOUT) => {}
            Err(_) => break,
        }
    }
    done
}

/// A wait for a kernel socket, as long as its timeout allows.
struct Wait {
    fd: c_int,
    deadline: Option<Instant>,
}

impl Wait {
    fn new(fd: c_int, timeout: Timeout) -> Wait {
        let timeout = socket_timeout(sys::fd(fd), timeout).ok().flatten();
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        Wait { fd, deadline }
    }

    /// Whether the socket has one of these events. False after the timeout, a signal, or a cancellation.
    fn until(&self, events: i16) -> bool {
        loop {
            let left = self.deadline.map(|end| end.saturating_duration_since(Instant::now()));
            let mut entries = [libc::pollfd { fd: self.fd, events, revents: 0 }];
            match signals::sleep(&mut entries, left, None) {
                Ok(0) if left.is_some_and(|left| left.is_zero()) => return false,
                Ok(0) => {}
                woken => return woken.is_ok(),
            }
        }
    }
}

//! Descriptors in the control data of messages (SCM_RIGHTS of unix(7)).

use std::ffi::c_int;

use libc::msghdr;

use super::process::{is_ours, sockets, sockets_or_new};
use crate::passing::has_ticket;
use crate::signals;

/// Most descriptors in a message (SCM_MAX_FD).
const DESCRIPTORS_MAX: usize = 253;

/// The descriptors in a message for which `is_it` holds.
///
/// # Safety
/// `message` is null, or valid with its control data.
unsafe fn descriptors(message: *const msghdr, is_it: fn(c_int) -> bool) -> Vec<c_int> {
    let mut found = Vec::new();
    // SAFETY: by the contract. The C library's macros keep within the control data.
    unsafe {
        if message.is_null() || (*message).msg_controllen == 0 || (*message).msg_control.is_null() {
            return found;
        }
        let mut head = libc::CMSG_FIRSTHDR(message);
        while !head.is_null() {
            if (*head).cmsg_level == libc::SOL_SOCKET && (*head).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*head).cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                let data = libc::CMSG_DATA(head).cast::<c_int>();
                let count = (bytes / size_of::<c_int>()).min(DESCRIPTORS_MAX);
                let all = (0..count).map(|at| data.add(at).read_unaligned());
                found.extend(all.filter(|fd| is_it(*fd)));
            }
            head = libc::CMSG_NXTHDR(message, head);
        }
    }
    found
}

/// Gives tickets to the descriptors of a message that is about to be sent.
///
/// # Safety
/// sendmsg(2)'s.
pub unsafe fn before_send(message: *const msghdr) {
    // SAFETY: the same contract.
    let pass = || unsafe {
        let fds = descriptors(message, is_ours);
        if !fds.is_empty()
            && let Some(sockets) = sockets()
        {
            sockets.pass(&fds);
        }
    };
    signals::enter(pass);
}

/// Takes over the descriptors of a received message, if it has any.
///
/// # Safety
/// `message` is valid with its control data.
pub unsafe fn after_receive(message: *const msghdr) {
    // SAFETY: the same contract.
    let take = || unsafe {
        let all = descriptors(message, |_| true);
        let (with_ticket, others): (Vec<c_int>, Vec<c_int>) =
            all.into_iter().partition(|fd| has_ticket(*fd));
        if !with_ticket.is_empty()
            && let Some(sockets) = sockets_or_new()
        {
            sockets.receive_descriptors(&with_ticket, false);
        }
        if !others.is_empty()
            && let Some(sockets) = sockets()
        {
            sockets.received(&others);
        }
    };
    signals::enter(take);
}

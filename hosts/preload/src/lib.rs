//! libTOE: the socket calls of the C library over an agent's TCP. `wave tcp run` preloads it into a program.
//!
//! A socket stays the kernel's until it is bound to the agent's address, listens on an unspecified one, or connects to a host on the
//! agent's network. Then it is *ours*: the agent serves it. The kernel's socket remains as its *placeholder*, which holds the
//! descriptor number, the flags and the options.
//!
//! [`Sockets`] decides and waits, in safe code. `interpose` exports the C library's symbols, turns pointers into slices, and passes
//! calls on other descriptors to the kernel. `sys` has the few system calls that need `unsafe`.
//!
//! Must not know: TCP segments, the agent's loop, the purpose of a program's sockets.

#![deny(unsafe_code)]
#![cfg_attr(
    test,
    allow(dead_code, reason = "used by `interpose`, which would intercept the tests' own calls")
)]

mod address;
mod agent;
#[allow(unsafe_code, reason = "a signal handler's arguments")]
mod cancellation;
mod close;
mod config;
mod cork_timers;
mod deferred_close;
mod demote;
mod description;
mod descriptor_bitmap;
mod fork;
mod inherited_sets;
mod keeper;
mod listeners;
mod lock;
mod messages;
mod names;
mod options;
mod passing;
mod poll;
mod remainder;
mod shared;
mod sigio;
#[allow(unsafe_code, reason = "signal handlers")]
mod signals;
mod sockets;
#[allow(unsafe_code, reason = "signals, masks, and descriptors by number")]
mod sys;
mod transfer;
mod view;
mod wait;
mod world;

#[cfg(not(test))]
#[allow(unsafe_code, reason = "symbols of the C library")]
mod interpose;

#[cfg(test)]
mod tests;

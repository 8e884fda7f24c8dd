//! Requests in datagrams to an agent's front (`wave agent --udp`): the format, and a client whose retries never execute a
//! non-idempotent request twice. [`Window`] bounds a sender's requests in flight by the queue length that replies report.
//!
//! Depends on no other crate of Wave, so that a program that only calls a server stays small. `wave_udp.py` beside it is the
//! same client in Python.

#![forbid(unsafe_code)]

mod client;
mod window;
pub mod wire;

pub use client::{Call, CallError, Client, Reply};
pub use window::{WINDOW_MAX, Window};

//! Requests in datagrams to an agent's front (`wave agent --udp`): the format, and a client that retries without having
//! anything executed twice.
//!
//! Depends on nothing of Wave, so that programs that only call a server can have it. `wave_udp.py` beside it is the same
//! client in Python.

#![forbid(unsafe_code)]

mod client;
pub mod wire;

pub use client::{Call, CallError, Client, Reply};

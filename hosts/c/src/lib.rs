//! Serving RPCs from C, and from any language that can call C: `include/wave_rpc.h` over the polled workers of [`wave_user::rpc`].
//!
//! The header is the documentation of ownership, threads and errors. `tests/header.rs` keeps the two in step. Names here are the
//! header's.
//!
//! Arguments from C are checked as far as possible: handles must be ours and live ([`handle`]), calls are named by numbers that are
//! used once ([`calls`]). For arguments that cannot be checked (lengths, pointers), the header states the caller's obligations.

#![expect(non_camel_case_types, reason = "types are named as in the header")]

mod answer;
mod calls;
mod handle;
mod server;
mod text;
mod worker;

pub use answer::*;
pub use server::*;
pub use text::wave_rpc_pair;
pub use worker::*;

/// Version of the header.
pub const WAVE_RPC_VERSION: u32 = 1;

/// The version of the header with which this library was built.
#[unsafe(no_mangle)]
pub extern "C" fn wave_rpc_version() -> u32 {
    WAVE_RPC_VERSION
}

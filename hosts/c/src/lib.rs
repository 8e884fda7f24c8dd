//! Serving RPCs from C, and from whatever can call C: `include/wave_rpc.h` over [`wave_user::rpc`]'s workers that are polled.
//!
//! The header is the documentation: ownership, threads and errors are said there. `tests/header.rs` holds the two together. Names
//! here are the header's.
//!
//! What comes from C is checked as far as that is possible: handles are known to be ours and live ([`handle`]), calls by a number that
//! is used once ([`calls`]). Where C must be believed (lengths, pointers), the header says what it has to keep.

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

/// `WAVE_RPC_VERSION`: of the header.
pub const WAVE_RPC_VERSION: u32 = 1;

/// The version that this library was built with.
#[unsafe(no_mangle)]
pub extern "C" fn wave_rpc_version() -> u32 {
    WAVE_RPC_VERSION
}

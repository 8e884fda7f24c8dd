//! The fuzzers of TCP and of datagrams, and the check that all executors of TCP agree.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "a part of the programs, not a library for users")]

pub mod executors;
pub mod tcp;
pub mod udp;

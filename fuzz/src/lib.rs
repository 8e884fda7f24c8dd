//! The fuzzers of TCP and of datagrams, and the check that all executors of TCP agree.
#![forbid(unsafe_code)]
// Only the project's own programs use this crate, and its documentation is built with private items.
#![allow(rustdoc::private_intra_doc_links)]
#![allow(missing_docs, reason = "a part of the programs, not a library for users")]

pub mod executors;
pub mod tcp;
pub mod udp;

//! Scenario kinds and their runs, sweeps, the bake-off, and measurements that benches share.
#![forbid(unsafe_code)]
// Only the project's own programs use this crate, and its documentation is built with private items.
#![allow(rustdoc::private_intra_doc_links)]
#![allow(missing_docs, reason = "a part of the programs, not a library for users")]

pub mod cpu_time;
pub mod ground;
pub mod kinds;
pub mod live;
pub mod measure;

#[cfg(test)]
#[path = "../tests/same_keys/mod.rs"]
mod same_keys;
pub mod store;
pub mod sweep;

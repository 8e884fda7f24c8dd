//! `wave memory`: the memory of running programs under an agent.
#![forbid(unsafe_code)]
// Only the project's own programs use this crate, and its documentation is built with private items.
#![allow(rustdoc::private_intra_doc_links)]
#![allow(missing_docs, reason = "a part of the programs, not a library for users")]

pub mod agent;
pub mod course;
pub mod explain;
mod heat;
pub mod overhead;
pub mod report;
pub mod run;
pub mod sample;
pub mod swap;

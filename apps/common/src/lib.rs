//! What the products and the experiments share: processes that they start, agents in processes of their own and their logs, and
//! facts about this machine.
#![forbid(unsafe_code)]
// Only the project's own programs use this crate, and its documentation is built with private items.
#![allow(rustdoc::private_intra_doc_links)]
#![allow(missing_docs, reason = "a part of the programs, not a library for users")]

pub mod agent;
pub mod launch;
pub mod machine;
pub mod recording;

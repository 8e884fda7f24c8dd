//! `wave record`, `wave run --workload` and `wave interference`: recordings of running programs, and their replay.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "a part of the programs, not a library for users")]

pub mod record;
pub mod workload;

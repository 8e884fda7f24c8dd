//! Pipelines of the match-action machine as JSON: [`write()`] and [`read()`].
//!
//! A file has the parts of a [`Pipeline`](wave_rmt::Pipeline) under the same names. Fields, registers, instructions, actions and parser
//! states are named, not numbered; an instruction stands once, at its register. What is absent is empty, or has no effect.
//!
//! A text may come from anyone: [`read()`] refuses one that is long, has long lists, or declares many entries, before it allocates for
//! them. Whether a chip can run the pipeline is for [`Pipeline::check`](wave_rmt::Pipeline::check) to say.
//!
//! ```
//! use wave_rmt::{Gress, Interpreter, Phv};
//! use wave_rmt_json::{Arena, read};
//!
//! # let text = r#"{"name": "nothing"}"#;
//! let arena = Arena::new();
//! let pipeline = read(text, &arena)?;
//! let mut machine: Interpreter<'_> = Interpreter::new(&pipeline);
//! assert!(!machine.pass(Gress::Ingress, &mut Phv::default()).is_dropped);
//! # Ok::<(), wave_rmt_json::ReadError>(())
//! ```
//!
//! This crate knows nothing of files, of devices, or of what a pipeline is for.

#![forbid(unsafe_code)]

mod error;
mod fold;
mod format;
mod names;
mod read;
mod write;

/// Memory in which a pipeline lies that was read.
pub use bumpalo::Bump as Arena;
pub use error::{ReadError, WriteError};
pub use read::{ENTRIES_MAX, TEXT_BYTES_MAX, read};
pub use write::write;

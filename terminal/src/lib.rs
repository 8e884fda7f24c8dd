//! What a command says on a terminal: output that survives a closed pipe, tables, progress, failures with their exit codes, and
//! what it says when it is interrupted.
#![forbid(unsafe_code)]

mod failure;
pub mod interrupt;
mod output;
mod progress;
mod table;

pub use failure::Failure;
pub use output::{counted, print, program, remark, started_as};
pub use progress::Progress;
pub use table::{Table, WIDTH};

//! Scripts about TCP in a subset of packetdrill's language, run in virtual time.
//!
//! A script says what a peer sends, what a program calls, and what is sent and returned when. It runs against the agent's engine
//! (wave-tcp) and the logic of a program's side (wave-posix's context), without a wire, a window or a clock. The guide
//! (docs/guide/tcp-scripts.md) has the language.
//!
//! [`Script::read`] reads, [`run()`] runs, and [`mutants()`] flips expectations one at a time, to see that each is looked at.
//!
//! Must not know: wires, fronts, the agent's loop.

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "a part of the programs, not a library for users")]

mod errno;
mod frames;
mod lexer;
mod machine;
mod mutants;
mod notation;
mod parser;
mod pattern;
mod peers;
mod process;
mod run;
mod script;
mod shell;
pub mod suite;

pub use mutants::{Mutant, mutants};
pub use run::run;
pub use script::Script;

impl Script {
    /// Reads a script.
    ///
    /// # Errors
    /// The text is none, or asks for what this interpreter does not have.
    pub fn read(text: &str) -> Result<Script, BadScript> {
        parser::parse(text)
    }
}

/// The script's author's fault: it cannot be read, or asks for what is not there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {what}")]
pub struct BadScript {
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1.
    pub column: usize,
    /// What is wrong, and what may stand there.
    pub what: String,
}

/// An expectation that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: expected {expected}; found {actual}")]
pub struct Failure {
    pub line: usize,
    /// In packetdrill's notation.
    pub expected: String,
    pub actual: String,
}

/// Why a script did not pass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// An expectation does not hold.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The script is at fault.
    #[error(transparent)]
    Bad(#[from] BadScript),
}

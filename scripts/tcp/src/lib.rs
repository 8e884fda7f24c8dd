//! TCP scripts in a subset of packetdrill's language, run in virtual time.
//!
//! A script says what a peer sends and what a program calls, and which segments and results it expects, and when. It runs
//! against the agent's engine (wave-tcp) and the program-side code (wave-posix's context), without a wire, a window or a clock.
//! The guide (docs/guide/tcp-scripts.md) describes the language.
//!
//! [`Script::read`] parses a script, [`run()`] runs it, and [`mutants()`] flips its expectations one at a time, to check that
//! each one is tested.
//!
//! Must not know: wires, fronts, the agent's loop.

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "part of the programs, not a library for users")]

mod errno;
mod frames;
mod lexer;
mod machine;
mod mutants;
mod notation;
mod parser;
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
    /// Parses a script.
    ///
    /// # Errors
    /// The text is not a script, or uses a feature that this interpreter lacks.
    pub fn read(text: &str) -> Result<Script, BadScript> {
        parser::parse(text)
    }
}

/// An error in the script: it does not parse, or uses a feature that this interpreter lacks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {what}")]
pub struct BadScript {
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1.
    pub column: usize,
    /// What is wrong, and what is allowed there.
    pub what: String,
}

/// An expectation of the script that was not met.
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
    /// An expectation was not met.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The script has an error.
    #[error(transparent)]
    Bad(#[from] BadScript),
}

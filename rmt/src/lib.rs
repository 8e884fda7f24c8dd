//! A match-action machine of the RMT kind, as a library: pipelines as constants, a checker of a chip's limits, and three ways to
//! run a packet through.
//!
//! A [`Pipeline`] is written at the level of the hardware's own slots: parser states, packet fields, gateways, match tables,
//! instructions on fields, and stateful ALUs on registers. [`Pipeline::check`] refuses, at compile time, what a [`Device`] cannot
//! do, and names the rule, the place, the limit, what was found, where the limit is published, and what to change.
//! [`place`](check::place) gives every table a pipeline stage and counts what it takes there. [`Interpreter`] runs any pipeline;
//! [`Specialised`] runs one that rustc compiles from the same constant.
//!
//! This crate knows nothing of TCP, of packets on a wire, or of operating systems. `no_std` with `alloc`.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod branch;
pub mod check;
pub mod devices;
pub mod examples;
pub mod field;
pub mod hash;
pub mod parser;
pub mod pass;
pub mod pipeline;
pub mod register;
mod same;
pub mod state;
pub mod table;
mod text;

pub use devices::Device;
pub use field::{Field, Phv};
pub use hash::{Hash, Polynomial};
pub use pass::{Constant, Interpreter, Specialised, Verdict};
pub use pipeline::{Gress, Intrinsic, Mirror, Pipeline};
pub use register::{
    Alu, Compare, Input, Instruction, Kind, Operand, Operation, Origin, Output, Register, Relation,
    When, Word,
};
pub use state::State;
pub use table::{
    Access, Action, Entry, Function, Gateway, Lookup, Match, Op, Row, Source, Table, TernaryEntry,
    Then,
};

//! A count-min sketch: how many packets a flow has sent, within memory that is much smaller than one counter for each flow.
//!
//! Three rows of counters, each indexed by another hash of the flow. Flows that share a counter make it too high, never too low, so
//! the smallest of a flow's three counters is the estimate.

use super::headers::flow_fields;
use crate::devices::TOFINO1;
use crate::hash::{Hash, Polynomial};
use crate::register::{Operand, Operation, Origin, Word};
use crate::table::Function;
use crate::{Access, Action, Alu, Field, Instruction, Op, Output, Pipeline, Source, Table};

flow_fields! {
    /// Index in the first row.
    INDEX_A = index_a: 16,
    /// Index in the second row.
    INDEX_B = index_b: 16,
    /// Index in the third row.
    INDEX_C = index_c: 16,
    /// Count of the first row; at the end, the estimate.
    COUNT_A = count_a: 32,
    /// Count of the second row.
    COUNT_B = count_b: 32,
    /// Count of the third row.
    COUNT_C = count_c: 32,
}

crate::registers! {
    /// First row.
    ROW_A = Register { name: "row_a", bits: 32, is_pair: false, entries: 4096 },
    /// Second row.
    ROW_B = Register { name: "row_b", bits: 32, is_pair: false, entries: 4096 },
    /// Third row.
    ROW_C = Register { name: "row_c", bits: 32, is_pair: false, entries: 4096 },
}

/// Adds 1 and outputs the sum.
const COUNT: Instruction<'static> = Instruction {
    name: "count",
    alus: &[Alu::low(Operation::AddSaturating, Operand::Memory(Word::Low), Operand::Constant(1))],
    outputs: &[Output::word(0, Origin::Alu(Word::Low))],
    ..Instruction::NOTHING
};

const FLOW: &[Field] = &[SOURCE, DESTINATION, PORTS, PROTOCOL];

const fn hash(polynomial: Polynomial) -> Source<'static> {
    Source::Hash(Hash { fields: FLOW, polynomial, bits: 12 })
}

/// A row's table: counts at an index, and hands the count out.
macro_rules! row {
    ($name:literal, $register:expr, $index:expr, $count:expr) => {
        Table {
            name: $name,
            actions: &[Action {
                name: "count",
                access: Some(Access {
                    register: $register,
                    instruction: &COUNT,
                    index: $index,
                    inputs: [None; 2],
                }),
                ops: &[Op::set($count, Source::Output(0))],
            }],
            ..Table::NOTHING
        }
    };
}

/// A table that leaves the smaller of two fields in the first.
macro_rules! smaller {
    ($name:literal, $one:expr, $other:expr) => {
        Table {
            name: $name,
            actions: &[Action {
                name: "smaller",
                access: None,
                ops: &[Op::new(
                    $one,
                    Function::Minimum,
                    Source::Field($one),
                    Source::Field($other),
                )],
            }],
            ..Table::NOTHING
        }
    };
}

/// The sketch. After the ingress, `COUNT_A` is the estimate of the packet's flow.
pub const SKETCH: Pipeline<'static> = Pipeline {
    name: "sketch",
    fields: FIELDS,
    registers: REGISTERS,
    parser: PARSER,
    ingress: &[
        Table {
            name: "hash",
            actions: &[Action {
                name: "hash",
                access: None,
                ops: &[
                    Op::set(INDEX_A, hash(Polynomial::Crc32)),
                    Op::set(INDEX_B, hash(Polynomial::Crc32c)),
                    Op::set(INDEX_C, hash(Polynomial::Crc16)),
                ],
            }],
            ..Table::NOTHING
        },
        row!("row_a", ROW_A, INDEX_A, COUNT_A),
        row!("row_b", ROW_B, INDEX_B, COUNT_B),
        row!("row_c", ROW_C, INDEX_C, COUNT_C),
        smaller!("a_or_b", COUNT_A, COUNT_B),
        smaller!("or_c", COUNT_A, COUNT_C),
    ],
    ..Pipeline::NOTHING
};

const _: () = SKETCH.must_fit(&TOFINO1);

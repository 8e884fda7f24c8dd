//! Flowlet switching: spreads flows over several paths, and does not reorder their packets. A flow keeps its path until it pauses for
//! longer than a gap; what follows is a new flowlet, which takes another path. If the gap is longer than the difference between the
//! paths' delays, a flowlet cannot overtake the one before it.
//!
//! Flowlets were proposed by Sinha, Kandula and Katabi (HotNets 2004); the table of hashed flows is CONGA's (Alizadeh et al., SIGCOMM
//! 2014). CONGA gives a new flowlet the least congested path, and Let It Flow (Vanini et al., NSDI 2017) a random one: senders pause more on
//! a slow path, so that flowlets on it are shorter. This pipeline takes the next path in turn, because a stateful ALU counts, and draws no
//! random numbers.
//!
//! Flows that share a slot begin a flowlet together, after a pause of all of them. None is reordered.

use super::headers::flow_fields;
use crate::devices::TOFINO1;
use crate::hash::{Hash, Polynomial};
use crate::register::{Compare, Input, Kind, Operand, Operation, Origin, Relation, When, Word};
use crate::table::{Function, Lookup};
use crate::{Access, Action, Alu, Field, Instruction, Op, Output, Pipeline, Source, Table};

flow_fields! {
    /// Arrival time in microseconds, which the port sets before the parser. It wraps around.
    NOW = now: 32,
    /// Slot of the flow.
    SLOT = slot: 16,
    /// Path of the slot's flowlet 0.
    START = start: 4,
    /// Path of the packet.
    PATH = path: 4,
    /// Next hop on the path.
    NEXT_HOP = next_hop: 16,
}

crate::registers! {
    /// Time of the slot's last packet (low), and number of its flowlet (high).
    FLOWLETS = Register { name: "flowlets", bits: 32, is_pair: true, entries: 4096 },
}

/// The longest pause within a flowlet, in microseconds: CONGA's.
pub const GAP: u32 = 500;
/// Number of paths.
pub const PATHS: u32 = 16;
/// Index of the table in which the control plane sets the next hop of each path. Several paths may have the same.
pub const NEXT_HOPS: usize = 2;

const IS_NEW: When = When::true_at(0);

/// Keeps the time, and outputs the number of the flowlet. After a pause of half the clock's period or more, the comparator sees a time
/// that has not come yet, and the flowlet goes on: that reorders nothing.
const PASS: Instruction<'static> = Instruction {
    name: "pass",
    compares: &[Compare::against_memory(Kind::Serial, Input::First, Relation::Greater, Word::Low)
        .plus(-(GAP as i64))],
    alus: &[
        Alu::set(Operand::Input(Input::First)),
        Alu::high(Operation::Add, Operand::Memory(Word::High), Operand::Constant(1)).when(IS_NEW),
    ],
    outputs: &[Output::word(0, Origin::Alu(Word::High))],
};

const FLOW: &[Field] = &[SOURCE, DESTINATION, PORTS, PROTOCOL];

const fn hash(polynomial: Polynomial, bits: u8) -> Source<'static> {
    Source::Hash(Hash { fields: FLOW, polynomial, bits })
}

/// The pipeline. After the ingress, `NEXT_HOP` is the next hop of the packet's flowlet.
pub const FLOWLET: Pipeline<'static> = Pipeline {
    name: "flowlet",
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
                    Op::set(SLOT, hash(Polynomial::Crc32c, 12)),
                    Op::set(START, hash(Polynomial::Crc32, 4)),
                ],
            }],
            ..Table::NOTHING
        },
        Table {
            name: "flowlet",
            actions: &[Action {
                name: "pass",
                access: Some(Access {
                    register: FLOWLETS,
                    instruction: &PASS,
                    index: SLOT,
                    inputs: [Some(NOW), None],
                }),
                ops: &[Op::new(PATH, Function::Add, Source::Field(START), Source::Output(0))],
            }],
            ..Table::NOTHING
        },
        Table {
            name: "next_hop",
            lookup: Lookup::Direct { index: PATH, entries: PATHS, data_bits: 16 },
            actions: &[Action {
                name: "forward",
                access: None,
                ops: &[Op::set(NEXT_HOP, Source::Data(0))],
            }],
            ..Table::NOTHING
        },
    ],
    ..Pipeline::NOTHING
};

const _: () = FLOWLET.must_fit(&TOFINO1);

//! A pipeline of one's own: a source may send 100 packets of IPv4, and the rest are dropped.
#![forbid(unsafe_code)]

use wave_rmt::devices::TOFINO1;
use wave_rmt::parser::{Extract, Next, ParserState, Select};
use wave_rmt::{
    Access, Action, Alu, Compare, Constant, Gateway, Hash, Instruction, Intrinsic, Kind, Match, Op,
    Operand, Operation, Origin, Output, Pipeline, Polynomial, Relation, Row, Source, Table, Then,
    Word,
};

/// Packets that a source may send.
pub const MOST: i64 = 100;

wave_rmt::fields! {
    /// Source address.
    SOURCE = source: 32,
    /// The source's counter.
    SLOT = slot: 16,
    /// Whether the source has sent enough: result of the comparator.
    ENOUGH = enough: 16,
    /// Not 0: the packet is dropped.
    DROP = drop: 8,
}

wave_rmt::registers! {
    /// Packets of each source.
    PACKETS = Register { name: "packets", bits: 32, is_pair: false, entries: 4096 },
}

/// Counts a packet, and compares the count before it with the limit.
const COUNT: Instruction = Instruction {
    name: "count",
    compares: &[Compare::memory(Kind::Unsigned, Word::Low, Relation::GreaterOrEqual, MOST)],
    alus: &[Alu::low(Operation::AddSaturating, Operand::Memory(Word::Low), Operand::Constant(1))],
    outputs: &[Output::word(0, Origin::Result)],
};

/// The pipeline.
pub const LIMIT: Pipeline = Pipeline {
    name: "limit",
    fields: FIELDS,
    registers: REGISTERS,
    parser: &[ParserState {
        name: "ipv4",
        extracts: &[Extract { field: SOURCE, offset_bits: 26 * 8 }],
        advance: 34,
        next: Select { cases: &[], otherwise: Next::Accept },
    }],
    ingress: &[
        Table {
            name: "slot",
            actions: &[Action {
                name: "hash",
                access: None,
                ops: &[Op::set(
                    SLOT,
                    Source::Hash(Hash {
                        fields: &[SOURCE],
                        polynomial: Polynomial::Crc32,
                        bits: 12,
                    }),
                )],
            }],
            ..Table::NOTHING
        },
        Table {
            name: "count",
            actions: &[Action {
                name: "count",
                access: Some(Access {
                    register: PACKETS,
                    instruction: &COUNT,
                    index: SLOT,
                    inputs: [None; 2],
                }),
                ops: &[Op::set(ENOUGH, Source::Output(0))],
            }],
            ..Table::NOTHING
        },
        Table {
            name: "limit",
            gateway: Gateway {
                // Result 1: the comparator holds.
                rows: &[Row { all: &[Match::bits(ENOUGH, 1 << 1, 1 << 1)], then: Then::Run(0) }],
                otherwise: Then::Skip,
            },
            actions: &[Action {
                name: "drop",
                access: None,
                ops: &[Op::set(DROP, Source::Constant(1))],
            }],
            ..Table::NOTHING
        },
    ],
    intrinsic: Intrinsic { drop: Some(DROP), ..Pipeline::NOTHING.intrinsic },
    ..Pipeline::NOTHING
};

// The compiler refuses a pipeline that a Tofino cannot run.
const _: () = LIMIT.must_fit(&TOFINO1);

/// The pipeline, for [`wave_rmt::Specialised`].
pub struct Limit;

impl Constant for Limit {
    const PIPELINE: Pipeline<'static> = LIMIT;
}

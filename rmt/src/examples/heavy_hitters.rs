//! Heavy hitters: flows that have sent more packets than a limit since they took their slot. A flow is reported once, unless it loses
//! its slot and takes it again.
//!
//! A slot holds the flow that was there last. A packet of another flow takes the slot over if the owner has been silent for a while,
//! and else ages it by one. This follows the majority vote of HashPipe's first stage (Sivaraman et al., SOSR 2017).

use super::headers::flow_fields;
use crate::devices::TOFINO2;
use crate::hash::{Hash, Polynomial};
use crate::pipeline::Intrinsic;
use crate::register::{Compare, Input, Kind, Operand, Operation, Origin, Relation, When, Word};
use crate::table::Row;
use crate::{
    Access, Action, Alu, Gateway, Instruction, Match, Op, Output, Pipeline, Source, Table, Then,
};

flow_fields! {
    /// Slot of the flow.
    SLOT = slot: 16,
    /// What tells flows of one slot apart.
    MARK = mark: 32,
    /// The slot's two comparators: result `r` as bit `r`.
    SEEN = seen: 16,
    /// Count of the flow.
    COUNT = count: 32,
    /// Digest for the control plane.
    DIGEST = digest: 8,
}

crate::registers! {
    /// The flow of a slot (high), and how far its packets outnumber the others' (low).
    OWNER = Register { name: "owner", bits: 32, is_pair: true, entries: 4096 },
    /// Packets of the slot's flow since it took the slot.
    PACKETS = Register { name: "packets", bits: 32, is_pair: false, entries: 4096 },
}

/// Packets after which a flow is heavy.
pub const HEAVY: u32 = 1000;
/// Digest of a heavy flow.
pub const DIGEST_HEAVY: u32 = 1;

const IS_OWNER: When = When::true_at(0);
const IS_FREE: When = When::true_at(1);

/// The owner's packet adds a vote, another flow's takes one away; without votes the slot changes its owner.
const VOTE: Instruction<'static> = Instruction {
    name: "vote",
    compares: &[
        Compare::against_memory(Kind::Unsigned, Input::First, Relation::Equal, Word::High),
        Compare::memory(Kind::Unsigned, Word::Low, Relation::Equal, 0),
    ],
    alus: &[
        Alu::low(Operation::AddSaturating, Operand::Memory(Word::Low), Operand::Constant(1))
            .when(IS_OWNER.or(IS_FREE)),
        Alu::low(Operation::SubtractSaturating, Operand::Memory(Word::Low), Operand::Constant(1))
            .when(IS_OWNER.or(IS_FREE).not()),
        Alu::high(Operation::Set, Operand::Constant(0), Operand::Input(Input::First)).when(IS_FREE),
    ],
    outputs: &[Output::word(0, Origin::Result)],
};

const COUNT_ONE: Instruction<'static> = Instruction {
    name: "count",
    alus: &[Alu::low(Operation::AddSaturating, Operand::Memory(Word::Low), Operand::Constant(1))],
    outputs: &[Output::word(0, Origin::Alu(Word::Low))],
    ..Instruction::NOTHING
};

const START: Instruction<'static> =
    Instruction { name: "start", alus: &[Alu::set(Operand::Constant(1))], ..Instruction::NOTHING };

const fn access(
    register: usize,
    instruction: &'static Instruction<'static>,
) -> Option<Access<'static>> {
    Some(Access { register, instruction, index: SLOT, inputs: [Some(MARK), None] })
}

const FLOW: &[crate::Field] = &[SOURCE, DESTINATION, PORTS, PROTOCOL];

/// The pipeline. A packet that makes its flow heavy leaves the ingress with [`DIGEST_HEAVY`].
pub const HEAVY_HITTERS: Pipeline<'static> = Pipeline {
    name: "heavy-hitters",
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
                    Op::set(
                        SLOT,
                        Source::Hash(Hash {
                            fields: FLOW,
                            polynomial: Polynomial::Crc32c,
                            bits: 12,
                        }),
                    ),
                    Op::set(
                        MARK,
                        Source::Hash(Hash {
                            fields: FLOW,
                            polynomial: Polynomial::Crc32,
                            bits: 32,
                        }),
                    ),
                ],
            }],
            ..Table::NOTHING
        },
        Table {
            name: "owner",
            actions: &[Action {
                name: "vote",
                access: access(OWNER, &VOTE),
                ops: &[Op::set(SEEN, Source::Output(0))],
            }],
            ..Table::NOTHING
        },
        Table {
            name: "packets",
            gateway: Gateway {
                rows: &[
                    // Of the owner, with votes or without.
                    Row { all: &[Match::bits(SEEN, 1 << 1, 1 << 1)], then: Then::Run(0) },
                    Row { all: &[Match::bits(SEEN, 1 << 3, 1 << 3)], then: Then::Run(0) },
                    // Of another flow, which took the slot.
                    Row { all: &[Match::bits(SEEN, 1 << 2, 1 << 2)], then: Then::Run(1) },
                ],
                otherwise: Then::Skip,
            },
            actions: &[
                Action {
                    name: "count",
                    access: access(PACKETS, &COUNT_ONE),
                    ops: &[Op::set(COUNT, Source::Output(0))],
                },
                Action {
                    name: "start",
                    access: access(PACKETS, &START),
                    ops: &[Op::set(COUNT, Source::Constant(1))],
                },
            ],
            ..Table::NOTHING
        },
        Table {
            name: "report",
            gateway: Gateway {
                rows: &[Row { all: &[Match::equal(COUNT, HEAVY)], then: Then::Run(0) }],
                otherwise: Then::Skip,
            },
            actions: &[Action {
                name: "report",
                access: None,
                ops: &[Op::set(DIGEST, Source::Constant(DIGEST_HEAVY))],
            }],
            ..Table::NOTHING
        },
    ],
    intrinsic: Intrinsic { digest: Some(DIGEST), ..Pipeline::NOTHING.intrinsic },
    ..Pipeline::NOTHING
};

const _: () = HEAVY_HITTERS.must_fit(&TOFINO2);

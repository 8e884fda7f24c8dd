//! What is acknowledged: bytes that are in the host's memory.
//!
//! The thesis acknowledges `rx_next`, which runs ahead of the copies to the host. Here a pseudo segment waits until its segment's copy
//! and all earlier ones are done; it then advances `rx_landed` and leaves as the acknowledgement. Segments to send carry the same
//! number. The right edge of the window is kept beside it, too: every packet that leaves advertises it, and a segment that starts far
//! from the window is known before it changes anything (RFC 9293, 3.10.7.4).

use wave_rmt::register::{Compare, Input, Kind, Operand, Operation, Origin, Relation, When, Word};
use wave_rmt::table::Function;
use wave_rmt::{Action, Alu, Gateway, Instruction, Match, Op, Output, Row, Source, Table, Then};

use super::fields::{AVAIL, BOUND, EDGE, KIND, LANDED, PLAUSIBLE, RX_LANDED, SEQ, TARGET};
use super::receive::{SECOND, access, is, result};
use super::transmit::sync;
use super::{TABLE, kind};

/// Comparator 0: the segment starts beyond the window. Comparator 1: it starts too far behind it.
const COMPARE: Instruction<'static> = Instruction {
    name: "compare",
    compares: &[
        Compare::against_memory(Kind::Serial, Input::First, Relation::Greater, Word::High),
        Compare::against_memory(Kind::Serial, Input::Second, Relation::Less, Word::Low),
    ],
    outputs: &[Output::word(0, Origin::Result)],
    ..Instruction::NOTHING
};

/// The segment starts neither beyond the window nor too far behind it.
pub(super) const IS_PLAUSIBLE: Match = result(PLAUSIBLE, 0);

/// All bytes before the pseudo segment's end are in the host's memory.
const LAND: Instruction<'static> = Instruction {
    name: "land",
    compares: &[Compare::against_memory(Kind::Serial, Input::Second, Relation::Greater, Word::Low)],
    alus: &[Alu::set(SECOND).when(When::true_at(0))],
    outputs: &[
        Output::word(0, Origin::Alu(Word::Low)),
        Output::word(1, Origin::Memory(Word::High)),
    ],
};

pub(super) const READ_BOTH: Instruction<'static> = Instruction {
    name: "read",
    outputs: &[
        Output::word(0, Origin::Memory(Word::Low)),
        Output::word(1, Origin::Memory(Word::High)),
    ],
    ..Instruction::NOTHING
};

/// Moves the right edge by what SYNC grants.
pub(super) const GRANT: Instruction<'static> = Instruction {
    name: "grant",
    alus: &[Alu::high(Operation::Add, Operand::Memory(Word::High), SECOND)],
    outputs: &[
        Output::word(0, Origin::Memory(Word::Low)),
        Output::word(1, Origin::Alu(Word::High)),
    ],
    ..Instruction::NOTHING
};

const LANDED_AND_EDGE: &[Op<'static>] =
    &[Op::set(LANDED, Source::Output(0)), Op::set(EDGE, Source::Output(1))];

/// `rx_landed`.
pub(super) const BEGIN: Table<'static> = Table {
    name: "rx_landed",
    gateway: Gateway {
        rows: &[
            Row { all: &[is(KIND, kind::RECEIVE)], then: Then::Run(0) },
            Row { all: &[is(KIND, kind::PSEUDO)], then: Then::Run(1) },
            Row { all: &[is(KIND, kind::TRANSMIT)], then: Then::Run(2) },
            Row { all: &[is(KIND, kind::SYNC), is(TARGET, sync::ROOM)], then: Then::Run(3) },
        ],
        otherwise: Then::Skip,
    },
    actions: &[
        Action {
            name: "compare",
            access: access(RX_LANDED, &COMPARE, [Some(SEQ), Some(BOUND)]),
            ops: &[Op::set(PLAUSIBLE, Source::Output(0))],
        },
        Action {
            name: "land",
            access: access(RX_LANDED, &LAND, [None, Some(BOUND)]),
            ops: LANDED_AND_EDGE,
        },
        Action {
            name: "read",
            access: access(RX_LANDED, &READ_BOTH, [None; 2]),
            ops: LANDED_AND_EDGE,
        },
        Action {
            name: "grant",
            access: access(RX_LANDED, &GRANT, [None, Some(BOUND)]),
            ops: LANDED_AND_EDGE,
        },
    ],
    ..TABLE
};

/// The window of a packet that leaves.
pub(super) const ADVERTISE: Table<'static> = Table {
    name: "rx_advertise",
    gateway: Gateway {
        rows: &[Row { all: &[is(KIND, kind::RECEIVE)], then: Then::Skip }],
        otherwise: Then::Run(0),
    },
    actions: &[Action {
        name: "room",
        access: None,
        ops: &[Op::new(AVAIL, Function::Subtract, Source::Field(EDGE), Source::Field(LANDED))],
    }],
    ..TABLE
};

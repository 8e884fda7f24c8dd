//! Reassembly (5.3.1): registers `rx_next`, `rx_avail`, `rx_ooo_tail` and `rx_ooo_head`, and what becomes of a segment.

use wave_rmt::register::{Compare, Input, Kind, Operand, Operation, Origin, Relation, When, Word};
use wave_rmt::table::{Function, Lookup, TernaryEntry};
use wave_rmt::{
    Access, Action, Alu, Field, Gateway, Instruction, Match, Op, Output, Row, Source, Table, Then,
};

use super::fields as field;
use super::fields::{
    AHEAD, CLASS, CONNECTION, CONTEXT_PSN, DIGEST, DROP, END, HAS_PAYLOAD, IS_PLACED, JOIN, KIND,
    LENGTH, MERGE_END, MERGED, MIRROR, OLD, OPENED, PSEUDO_KIND, PSN, RX_AVAIL, RX_NEXT,
    RX_OOO_HEAD, RX_OOO_TAIL, SEQ, START, TARGET, TOUCH,
};
use super::{DIGEST_BEYOND_WINDOW, PSEUDO_SESSION, TABLE, kind};

/// Classes of segments, in the field `class`.
pub mod class {
    /// Starts at or before `rx_next` and ends behind it.
    pub const IN_ORDER: u32 = 0x11;
    /// Starts behind `rx_next`, and within the window.
    pub const OUT_OF_ORDER: u32 = 0x02;
    /// Has no byte that is new.
    pub const DUPLICATE: u32 = 0x04;
    /// Starts behind `rx_next`, and ends beyond the window.
    pub const BEYOND: u32 = 0x05;
    /// Without payload, at `rx_next`.
    pub const PURE: u32 = 0x16;
    /// Bits that are [`DUPLICATE`] in the classes that only read the interval.
    pub const READS_MASK: u32 = 0x0c;
    /// Bit of the classes with the byte at `rx_next`, or none: they renew the peer's window.
    pub const RENEWS: u32 = 0x10;
}

pub(super) const FIRST: Operand = Operand::Input(Input::First);
pub(super) const SECOND: Operand = Operand::Input(Input::Second);
pub(super) const MEMORY: Operand = Operand::Memory(Word::Low);

pub(super) const fn access(
    register: usize,
    instruction: &'static Instruction<'static>,
    inputs: [Option<Field>; 2],
) -> Option<Access<'static>> {
    Some(Access { register, instruction, index: CONNECTION, inputs })
}

pub(super) const fn is(field: Field, value: u32) -> Match {
    Match::equal(field, value)
}

/// Bit `result` of the comparators' result.
pub(super) const fn result(field: Field, result: u32) -> Match {
    Match::bits(field, 1 << result, 1 << result)
}

pub(super) const READS: Match = Match::bits(CLASS, class::READS_MASK, class::DUPLICATE);

/// A register's word leaves, unchanged.
pub(super) const READ: Instruction<'static> = Instruction {
    name: "read",
    outputs: &[Output::word(0, Origin::Memory(Word::Low))],
    ..Instruction::NOTHING
};

/// Moves `rx_next` to the segment's end if the segment has the next byte. Whether the end is within the window is not known here:
/// a later stage checks it (5.3.1.1).
const ADVANCE: Instruction<'static> = Instruction {
    name: "advance",
    compares: &[
        Compare::against_memory(Kind::Serial, Input::First, Relation::LessOrEqual, Word::Low),
        Compare::against_memory(Kind::Serial, Input::Second, Relation::Greater, Word::Low),
        Compare::against_memory(Kind::Serial, Input::First, Relation::Equal, Word::Low),
    ],
    alus: &[Alu::set(SECOND).when(When::true_at(0).and(When::true_at(1)))],
    outputs: &[Output::word(0, Origin::Memory(Word::Low)), Output::word(1, Origin::Result)],
};

/// `rx_next`.
pub(super) const NEXT: Table<'static> = Table {
    name: "rx_next",
    gateway: Gateway {
        rows: &[
            Row { all: &[is(KIND, kind::RECEIVE)], then: Then::Run(0) },
            Row { all: &[is(KIND, kind::PSEUDO)], then: Then::Run(0) },
            Row { all: &[is(KIND, kind::TRANSMIT)], then: Then::Run(1) },
        ],
        otherwise: Then::Skip,
    },
    actions: &[
        Action {
            name: "advance",
            access: access(RX_NEXT, &ADVANCE, [Some(SEQ), Some(END)]),
            ops: &[Op::set(OLD, Source::Output(0)), Op::set(field::ORDER, Source::Output(1))],
        },
        Action {
            name: "read",
            access: access(RX_NEXT, &READ, [None; 2]),
            ops: &[Op::set(OLD, Source::Output(0))],
        },
    ],
    ..TABLE
};

pub(super) const fn offset(to: Field, from: Field) -> Op<'static> {
    Op::new(to, Function::Subtract, Source::Field(from), Source::Field(OLD))
}

/// What the comparators at `rx_next` mean. A packet to transmit, which has no result, reads like a duplicate.
pub(super) const ORDER: Table<'static> = Table {
    name: "order",
    gateway: Gateway {
        rows: &[
            Row { all: &[result(field::ORDER, 7)], then: Then::Run(0) },
            Row { all: &[result(field::ORDER, 3)], then: Then::Run(0) },
            Row { all: &[result(field::ORDER, 2)], then: Then::Run(1) },
            Row { all: &[result(field::ORDER, 5)], then: Then::Run(2) },
        ],
        otherwise: Then::Run(3),
    },
    actions: &[
        Action {
            name: "in_order",
            access: None,
            ops: &[
                Op::set(CLASS, Source::Constant(class::IN_ORDER)),
                Op::set(field::NEXT, Source::Field(END)),
                offset(AHEAD, END),
            ],
        },
        Action {
            name: "out_of_order",
            access: None,
            ops: &[
                Op::set(CLASS, Source::Constant(class::OUT_OF_ORDER)),
                Op::set(field::NEXT, Source::Field(OLD)),
                offset(START, SEQ),
                offset(AHEAD, END),
            ],
        },
        Action {
            name: "pure",
            access: None,
            ops: &[
                Op::set(CLASS, Source::Constant(class::PURE)),
                Op::set(field::NEXT, Source::Field(OLD)),
            ],
        },
        Action {
            name: "duplicate",
            access: None,
            ops: &[
                Op::set(CLASS, Source::Constant(class::DUPLICATE)),
                Op::set(field::NEXT, Source::Field(OLD)),
            ],
        },
    ],
    ..TABLE
};

const IS_BEYOND: Compare =
    Compare::against_memory(Kind::Unsigned, Input::First, Relation::Greater, Word::Low);

/// Takes the bytes of a segment in order from the room, even if there is less: `rx_next` has moved already.
const TAKE: Instruction<'static> = Instruction {
    name: "take",
    compares: &[IS_BEYOND],
    alus: &[Alu::low(Operation::SubtractSaturating, MEMORY, FIRST)],
    outputs: &[Output::word(0, Origin::Alu(Word::Low)), Output::word(1, Origin::Result)],
};

/// Compares the end of a segment out of order with the room.
const COMPARE: Instruction<'static> = Instruction {
    name: "compare",
    compares: &[IS_BEYOND],
    outputs: &[Output::word(0, Origin::Memory(Word::Low)), Output::word(1, Origin::Result)],
    ..Instruction::NOTHING
};

/// Adds what SYNC grants, which comes as the second input.
const ADD: Instruction<'static> = Instruction {
    name: "grant",
    alus: &[Alu::low(Operation::Add, MEMORY, SECOND)],
    outputs: &[Output::word(0, Origin::Alu(Word::Low))],
    ..Instruction::NOTHING
};

/// Adds what SYNC grants.
pub(super) const GRANT: Instruction<'static> = Instruction {
    name: "grant",
    alus: &[Alu::low(Operation::Add, MEMORY, FIRST)],
    outputs: &[Output::word(0, Origin::Alu(Word::Low))],
    ..Instruction::NOTHING
};

/// `rx_avail`.
pub(super) const AVAIL: Table<'static> = Table {
    name: "rx_avail",
    gateway: Gateway {
        rows: &[
            Row { all: &[is(CLASS, class::IN_ORDER)], then: Then::Run(0) },
            Row { all: &[is(CLASS, class::OUT_OF_ORDER)], then: Then::Run(1) },
            Row {
                all: &[is(KIND, kind::SYNC), is(TARGET, super::transmit::sync::ROOM)],
                then: Then::Run(2),
            },
            Row { all: &[READS], then: Then::Run(3) },
        ],
        otherwise: Then::Skip,
    },
    actions: &[
        Action {
            name: "take",
            access: access(RX_AVAIL, &TAKE, [Some(AHEAD), None]),
            ops: &[
                Op::set(field::AVAIL, Source::Output(0)),
                Op::set(field::BEYOND, Source::Output(1)),
            ],
        },
        Action {
            name: "compare",
            access: access(RX_AVAIL, &COMPARE, [Some(AHEAD), None]),
            ops: &[
                Op::set(field::AVAIL, Source::Output(0)),
                Op::set(field::BEYOND, Source::Output(1)),
            ],
        },
        Action {
            name: "grant",
            access: access(RX_AVAIL, &ADD, [None, Some(LENGTH)]),
            ops: &[Op::set(field::AVAIL, Source::Output(0))],
        },
        Action {
            name: "read",
            access: access(RX_AVAIL, &READ, [None; 2]),
            ops: &[Op::set(field::AVAIL, Source::Output(0))],
        },
    ],
    ..TABLE
};

/// Bytes in order bring the interval nearer; one that they cover ends at 0.
pub(super) const SLIDE: Instruction<'static> = Instruction {
    name: "slide",
    alus: &[Alu::low(Operation::SubtractSaturating, MEMORY, SECOND)],
    outputs: &[Output::word(0, Origin::Alu(Word::Low)), Output::word(1, Origin::Memory(Word::Low))],
    ..Instruction::NOTHING
};

/// Comparator 0: there is no interval.
pub(super) const IS_FREE: When = When::true_at(0);

/// Opens the interval with the segment, or extends it at its end.
pub(super) const EXTEND: Instruction<'static> = Instruction {
    name: "extend",
    compares: &[
        Compare::memory(Kind::Unsigned, Word::Low, Relation::Equal, 0),
        Compare::against_memory(Kind::Unsigned, Input::First, Relation::LessOrEqual, Word::Low),
        Compare::against_memory(Kind::Unsigned, Input::Second, Relation::Greater, Word::Low),
    ],
    alus: &[Alu::set(SECOND).when(IS_FREE.or(When::true_at(1).and(When::true_at(2))))],
    outputs: &[
        Output::word(0, Origin::Alu(Word::Low)),
        Output::word(1, Origin::Result),
        Output::word(2, Origin::Input(Input::Second)).when(IS_FREE),
        Output::word(3, Origin::Memory(Word::Low)),
    ],
};

/// Bytes in order bring the interval's end nearer.
pub(super) const SLIDE_TAIL: Action<'static> = Action {
    name: "slide",
    access: access(RX_OOO_TAIL, &SLIDE, [None, Some(AHEAD)]),
    ops: &[Op::set(field::TAIL, Source::Output(0)), Op::set(field::TAIL_BEFORE, Source::Output(1))],
};

/// The segment opens the interval, or extends it at its end.
pub(super) const EXTEND_TAIL: Action<'static> = Action {
    name: "extend",
    access: access(RX_OOO_TAIL, &EXTEND, [Some(START), Some(AHEAD)]),
    ops: &[
        Op::set(field::TAIL, Source::Output(0)),
        Op::set(JOIN, Source::Output(1)),
        Op::set(OPENED, Source::Output(2)),
        Op::set(field::TAIL_BEFORE, Source::Output(3)),
    ],
};

/// A packet without new bytes sees the interval's end.
pub(super) const READ_TAIL: Action<'static> = Action {
    name: "read",
    access: access(RX_OOO_TAIL, &READ, [None; 2]),
    ops: &[Op::set(field::TAIL, Source::Output(0))],
};

/// `rx_ooo_tail`, before the head: whether the segment opens the interval is known here.
pub(super) const TAIL: Table<'static> = Table {
    name: "rx_ooo_tail",
    gateway: Gateway {
        rows: &[
            Row { all: &[is(CLASS, class::IN_ORDER)], then: Then::Run(0) },
            Row {
                all: &[is(CLASS, class::OUT_OF_ORDER), result(field::BEYOND, 0)],
                then: Then::Run(1),
            },
            Row { all: &[is(CLASS, class::OUT_OF_ORDER)], then: Then::Run(2) },
            Row { all: &[READS], then: Then::Run(3) },
        ],
        otherwise: Then::Skip,
    },
    actions: &[
        SLIDE_TAIL,
        EXTEND_TAIL,
        Action {
            name: "refuse",
            access: access(RX_OOO_TAIL, &READ, [None; 2]),
            ops: &[
                Op::set(field::TAIL, Source::Output(0)),
                Op::set(CLASS, Source::Constant(class::BEYOND)),
            ],
        },
        READ_TAIL,
    ],
    ..TABLE
};

/// Sets the start of an interval that the segment has opened.
const OPEN: Instruction<'static> = Instruction {
    name: "open",
    alus: &[Alu::set(FIRST)],
    outputs: &[Output::word(0, Origin::Alu(Word::Low))],
    ..Instruction::NOTHING
};

/// Extends the interval at its start, if the segment reaches it.
const EXTEND_BACK: Instruction<'static> = Instruction {
    name: "extend_back",
    compares: &[
        Compare::against_memory(Kind::Unsigned, Input::Second, Relation::GreaterOrEqual, Word::Low),
        Compare::against_memory(Kind::Unsigned, Input::First, Relation::Less, Word::Low),
    ],
    alus: &[Alu::set(FIRST).when(When::true_at(0).and(When::true_at(1)))],
    outputs: &[
        Output::word(0, Origin::Alu(Word::Low)),
        Output::word(1, Origin::Result),
        Output::word(2, Origin::Memory(Word::Low)),
    ],
};

/// `rx_ooo_head`. A segment behind the interval's end is not nearer than its start, so it changes nothing here either.
pub(super) const HEAD: Table<'static> = Table {
    name: "rx_ooo_head",
    gateway: Gateway {
        rows: &[
            Row { all: &[is(CLASS, class::IN_ORDER)], then: Then::Run(0) },
            Row { all: &[is(CLASS, class::OUT_OF_ORDER), is(OPENED, 0)], then: Then::Run(1) },
            Row { all: &[is(CLASS, class::OUT_OF_ORDER)], then: Then::Run(2) },
            Row { all: &[READS], then: Then::Run(3) },
        ],
        otherwise: Then::Skip,
    },
    actions: &[
        Action {
            name: "slide",
            access: access(RX_OOO_HEAD, &SLIDE, [None, Some(AHEAD)]),
            ops: &[
                Op::set(field::HEAD, Source::Output(0)),
                Op::set(field::HEAD_BEFORE, Source::Output(1)),
            ],
        },
        Action {
            name: "extend_back",
            access: access(RX_OOO_HEAD, &EXTEND_BACK, [Some(START), Some(AHEAD)]),
            ops: &[
                Op::set(field::HEAD, Source::Output(0)),
                Op::set(TOUCH, Source::Output(1)),
                Op::set(field::HEAD_BEFORE, Source::Output(2)),
            ],
        },
        Action {
            name: "open",
            access: access(RX_OOO_HEAD, &OPEN, [Some(START), None]),
            ops: &[Op::set(field::HEAD, Source::Output(0))],
        },
        Action {
            name: "read",
            access: access(RX_OOO_HEAD, &READ, [None; 2]),
            ops: &[Op::set(field::HEAD, Source::Output(0))],
        },
    ],
    ..TABLE
};

/// What the pseudo segment merges: if the interval starts at `rx_next`, all of it (5.3.1.5). The host hears of these bytes now,
/// ahead of the merge (5.3.1.6).
pub(super) const MERGE: Table<'static> = Table {
    name: "merge",
    gateway: Gateway {
        rows: &[Row { all: &[is(field::HEAD, 0)], then: Then::Run(0) }],
        otherwise: Then::Run(1),
    },
    actions: &[
        Action {
            name: "merge",
            access: None,
            ops: &[
                Op::set(MERGED, Source::Field(field::TAIL)),
                Op::new(
                    MERGE_END,
                    Function::Add,
                    Source::Field(field::NEXT),
                    Source::Field(field::TAIL),
                ),
            ],
        },
        Action {
            name: "acknowledge",
            access: None,
            ops: &[Op::set(MERGE_END, Source::Field(field::NEXT))],
        },
    ],
    ..TABLE
};

pub(super) const RECEIVED: Match = is(KIND, kind::RECEIVE);
pub(super) const NOT_OPENED: Match = is(OPENED, 0);

/// The payload is placed, and a pseudo segment follows.
pub(super) const PLACE: Action<'static> = Action {
    name: "place",
    access: None,
    ops: &[
        Op::set(IS_PLACED, Source::Constant(1)),
        Op::set(MIRROR, Source::Constant(PSEUDO_SESSION)),
        Op::set(PSEUDO_KIND, Source::Constant(kind::PSEUDO)),
    ],
};

/// The segment is dropped, and a pseudo segment repeats the acknowledgement.
pub(super) const REFUSE: Action<'static> = Action {
    name: "refuse",
    access: None,
    ops: &[
        Op::set(DROP, Source::Constant(1)),
        Op::set(MIRROR, Source::Constant(PSEUDO_SESSION)),
        Op::set(PSEUDO_KIND, Source::Constant(kind::PSEUDO)),
    ],
};

/// Nothing is left to do for a segment without payload.
pub(super) const NO_PAYLOAD: Action<'static> =
    Action { name: "no_payload", access: None, ops: &[Op::set(DROP, Source::Constant(1))] };

/// `rx_next` has moved beyond the window: the control plane sets it back (5.3.1.2).
const SET_BACK: Action<'static> = Action {
    name: "set_back",
    access: None,
    ops: &[
        Op::set(DROP, Source::Constant(1)),
        Op::set(DIGEST, Source::Constant(DIGEST_BEYOND_WINDOW)),
        Op::set(MIRROR, Source::Constant(PSEUDO_SESSION)),
        Op::set(PSEUDO_KIND, Source::Constant(kind::PSEUDO)),
    ],
};

/// The segment joins the interval: it starts at or before its end, and ends at or behind its start.
pub(super) const JOINED: [&[Match]; 4] = [
    &[RECEIVED, is(CLASS, class::OUT_OF_ORDER), NOT_OPENED, result(JOIN, 2), result(TOUCH, 1)],
    &[RECEIVED, is(CLASS, class::OUT_OF_ORDER), NOT_OPENED, result(JOIN, 2), result(TOUCH, 3)],
    &[RECEIVED, is(CLASS, class::OUT_OF_ORDER), NOT_OPENED, result(JOIN, 6), result(TOUCH, 1)],
    &[RECEIVED, is(CLASS, class::OUT_OF_ORDER), NOT_OPENED, result(JOIN, 6), result(TOUCH, 3)],
];

/// Whether the payload is placed, and whether a pseudo segment follows. Every segment with payload has one, so that none that is
/// lost leaves an interval unmerged for ever (5.3.1.4).
pub(super) const VERDICT: Table<'static> = Table {
    name: "rx_verdict",
    lookup: Lookup::Ternary(&[
        TernaryEntry {
            all: &[RECEIVED, is(CLASS, class::IN_ORDER), result(field::BEYOND, 0)],
            action: 0,
        },
        TernaryEntry { all: &[RECEIVED, is(CLASS, class::IN_ORDER)], action: 3 },
        TernaryEntry { all: JOINED[0], action: 0 },
        TernaryEntry { all: JOINED[1], action: 0 },
        TernaryEntry { all: JOINED[2], action: 0 },
        TernaryEntry { all: JOINED[3], action: 0 },
        TernaryEntry { all: &[RECEIVED, is(CLASS, class::OUT_OF_ORDER), NOT_OPENED], action: 1 },
        TernaryEntry { all: &[RECEIVED, is(CLASS, class::OUT_OF_ORDER)], action: 0 },
        TernaryEntry { all: &[RECEIVED, is(HAS_PAYLOAD, 1)], action: 1 },
        TernaryEntry { all: &[RECEIVED], action: 2 },
    ]),
    actions: &[PLACE, REFUSE, NO_PAYLOAD, SET_BACK],
    ..TABLE
};

/// Numbers a packet to the host in its context's channel.
const NUMBER: Instruction<'static> = Instruction {
    name: "number",
    alus: &[Alu::low(Operation::Add, MEMORY, Operand::Constant(1))],
    outputs: &[Output::word(0, Origin::Memory(Word::Low))],
    ..Instruction::NOTHING
};

/// `context_psn`.
pub(super) const CONTEXT: Table<'static> = Table {
    name: "context_psn",
    gateway: Gateway {
        rows: &[Row { all: &[is(IS_PLACED, 1)], then: Then::Run(0) }],
        otherwise: Then::Skip,
    },
    actions: &[Action {
        name: "number",
        access: Some(Access {
            register: CONTEXT_PSN,
            instruction: &NUMBER,
            index: field::CONTEXT,
            inputs: [None; 2],
        }),
        ops: &[Op::set(PSN, Source::Output(0))],
    }],
    ..TABLE
};

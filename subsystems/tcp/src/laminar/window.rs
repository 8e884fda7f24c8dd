//! Reassembly that is safe against segments beyond the window: `rx_next` and the right edge of the window are one pair, so that a segment beyond the window
//! changes nothing. Nor does a segment with an unacceptable acknowledgement: one older than any window, or of bytes never sent.
//!
//! The thesis' rule for such a segment (5.3.1.2) moves `rx_next` first and sets it back later. Until then acknowledgements carry
//! the moved number, and so acknowledge bytes that never came: [`explore`](super::explore) finds it. The pair takes one stateful ALU
//! less.

use wave_rmt::register::{Compare, Input, Kind, Origin, Relation, When, Word};
use wave_rmt::table::{Function, Lookup, TernaryEntry};
use wave_rmt::{Action, Alu, Gateway, Instruction, Match, Op, Output, Row, Source, Table, Then};

use super::fields as field;
use super::fields::{
    AGE, CLASS, COPY, DIGEST, DROP, END, HAS_PAYLOAD, HEAD_BEFORE, KIND, OLD, PLAUSIBLE, RX_WINDOW,
    SEQ, START, TARGET,
};
use super::landed::{GRANT, IS_PLAUSIBLE};
use super::receive::{
    EXTEND_TAIL, JOINED, NO_PAYLOAD, NOT_OPENED, PLACE, READ_TAIL, READS, RECEIVED, REFUSE, SECOND,
    SLIDE_TAIL, access, class, is, offset, result,
};
use super::{DIGEST_CHALLENGE, TABLE, kind};

/// Moves `rx_next` to the segment's end if the segment has the next byte and ends within the window.
pub(super) const ADVANCE: Instruction<'static> = Instruction {
    name: "advance",
    compares: &[
        Compare::against_memory(Kind::Serial, Input::First, Relation::LessOrEqual, Word::Low),
        Compare::against_memory(Kind::Serial, Input::Second, Relation::Greater, Word::Low),
        Compare::against_memory(Kind::Serial, Input::First, Relation::Equal, Word::Low),
        Compare::against_memory(Kind::Serial, Input::Second, Relation::Greater, Word::High),
    ],
    alus: &[
        Alu::set(SECOND).when(When::true_at(0).and(When::true_at(1)).and(When::true_at(3).not()))
    ],
    outputs: &[Output::word(0, Origin::Memory(Word::Low)), Output::word(1, Origin::Result)],
};

/// The segment's acknowledgement is unacceptable, so its bytes are not taken (RFC 5961, 5.2).
pub(super) const IS_REFUSED: Match = Match::negative(AGE);

/// `rx_window`.
pub(super) const WINDOW: Table<'static> = Table {
    name: "rx_window",
    gateway: Gateway {
        rows: &[
            Row { all: &[IS_REFUSED], then: Then::Skip },
            Row { all: &[is(KIND, kind::RECEIVE), IS_PLAUSIBLE], then: Then::Run(0) },
            Row { all: &[is(KIND, kind::PSEUDO)], then: Then::Run(0) },
            Row {
                all: &[is(KIND, kind::SYNC), is(TARGET, super::transmit::sync::ROOM)],
                then: Then::Run(1),
            },
        ],
        otherwise: Then::Skip,
    },
    actions: &[
        Action {
            name: "advance",
            access: access(RX_WINDOW, &ADVANCE, [Some(SEQ), Some(END)]),
            ops: &[Op::set(OLD, Source::Output(0)), Op::set(field::ORDER, Source::Output(1))],
        },
        Action { name: "grant", access: access(RX_WINDOW, &GRANT, [None, Some(END)]), ops: &[] },
    ],
    ..TABLE
};

const fn keep(name: &'static str, ops: &'static [Op<'static>]) -> Action<'static> {
    Action { name, access: None, ops }
}

/// Classifies the segment by the comparators at `rx_window`. One that ends beyond the window counts as a duplicate; the processor cuts it.
pub(super) const ORDER: Table<'static> = Table {
    name: "order",
    gateway: Gateway {
        rows: &[
            Row { all: &[result(field::ORDER, 7)], then: Then::Run(0) },
            Row { all: &[result(field::ORDER, 3)], then: Then::Run(0) },
            Row { all: &[result(field::ORDER, 2), is(HAS_PAYLOAD, 1)], then: Then::Run(1) },
            Row { all: &[result(field::ORDER, 5)], then: Then::Run(2) },
        ],
        otherwise: Then::Run(3),
    },
    actions: &[
        keep(
            "in_order",
            &[
                Op::set(CLASS, Source::Constant(class::IN_ORDER)),
                Op::set(field::NEXT, Source::Field(END)),
                offset(field::AHEAD, END),
            ],
        ),
        keep(
            "out_of_order",
            &[
                Op::set(CLASS, Source::Constant(class::OUT_OF_ORDER)),
                Op::set(field::NEXT, Source::Field(OLD)),
                offset(START, SEQ),
                offset(field::AHEAD, END),
            ],
        ),
        keep(
            "pure",
            &[
                Op::set(CLASS, Source::Constant(class::PURE)),
                Op::set(field::NEXT, Source::Field(OLD)),
            ],
        ),
        keep(
            "duplicate",
            &[
                Op::set(CLASS, Source::Constant(class::DUPLICATE)),
                Op::set(field::NEXT, Source::Field(OLD)),
            ],
        ),
    ],
    ..TABLE
};

/// `rx_ooo_tail`.
pub(super) const TAIL: Table<'static> = Table {
    name: "rx_ooo_tail",
    gateway: Gateway {
        rows: &[
            Row { all: &[is(CLASS, class::IN_ORDER)], then: Then::Run(0) },
            Row { all: &[is(CLASS, class::OUT_OF_ORDER)], then: Then::Run(1) },
            Row { all: &[READS], then: Then::Run(2) },
        ],
        otherwise: Then::Skip,
    },
    actions: &[SLIDE_TAIL, EXTEND_TAIL, READ_TAIL],
    ..TABLE
};

/// A segment that has no effect is answered by the slow path, which bounds the answers (RFC 5961, 5 and 7).
const CHALLENGE: Action<'static> = keep(
    "challenge",
    &[Op::set(DROP, Source::Constant(1)), Op::set(DIGEST, Source::Constant(DIGEST_CHALLENGE))],
);

const HAS_BYTES: [Row<'static>; 2] = [
    Row { all: &[is(CLASS, class::IN_ORDER), is(HEAD_BEFORE, 0)], then: Then::Run(0) },
    Row { all: &[is(CLASS, class::OUT_OF_ORDER), is(HEAD_BEFORE, 0)], then: Then::Run(0) },
];

/// The first byte to copy. Bytes that a pending pseudo segment is about to announce are not copied again: the host may have read
/// them, and newer bytes may have their place in the ring. The thesis' copies end in order (5.4); ours may end in any.
pub(super) const START_COPY: Table<'static> = Table {
    name: "rx_start_copy",
    gateway: Gateway { rows: &HAS_BYTES, otherwise: Then::Skip },
    actions: &[keep(
        "behind_interval",
        &[Op::new(
            START,
            Function::Maximum,
            Source::Field(START),
            Source::Field(field::TAIL_BEFORE),
        )],
    )],
    ..TABLE
};

/// How many bytes are copied.
pub(super) const COUNT_COPY: Table<'static> = Table {
    name: "rx_count_copy",
    gateway: Gateway { rows: &[], otherwise: Then::Run(0) },
    actions: &[keep(
        "bytes",
        &[Op::new(
            COPY,
            Function::SubtractSaturating,
            Source::Field(field::AHEAD),
            Source::Field(START),
        )],
    )],
    ..TABLE
};

/// Whether the payload is placed. Every segment with payload makes a pseudo segment, unless it is implausible or its acknowledgement is unacceptable.
pub(super) const VERDICT: Table<'static> = Table {
    name: "rx_verdict",
    lookup: Lookup::Ternary(&[
        TernaryEntry { all: &[RECEIVED, IS_REFUSED], action: 3 },
        TernaryEntry { all: &[RECEIVED, Match::bits(PLAUSIBLE, 1, 0)], action: 3 },
        TernaryEntry { all: &[RECEIVED, is(HAS_PAYLOAD, 1), is(COPY, 0)], action: 1 },
        TernaryEntry { all: &[RECEIVED, is(CLASS, class::IN_ORDER)], action: 0 },
        TernaryEntry { all: JOINED[0], action: 0 },
        TernaryEntry { all: JOINED[1], action: 0 },
        TernaryEntry { all: JOINED[2], action: 0 },
        TernaryEntry { all: JOINED[3], action: 0 },
        TernaryEntry { all: &[RECEIVED, is(CLASS, class::OUT_OF_ORDER), NOT_OPENED], action: 1 },
        TernaryEntry { all: &[RECEIVED, is(CLASS, class::OUT_OF_ORDER)], action: 0 },
        TernaryEntry { all: &[RECEIVED, is(HAS_PAYLOAD, 1)], action: 1 },
        TernaryEntry { all: &[RECEIVED, is(CLASS, class::PURE)], action: 2 },
        TernaryEntry { all: &[RECEIVED, result(field::ORDER, 2)], action: 2 },
        TernaryEntry { all: &[RECEIVED], action: 3 },
    ]),
    actions: &[PLACE, REFUSE, NO_PAYLOAD, CHALLENGE],
    ..TABLE
};

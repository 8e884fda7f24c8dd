//! Transmission, safe against acknowledgements of bytes never sent (after 5.3.2).
//!
//! The first byte that is not acknowledged and the end of what was sent are one pair. So an acknowledgement of bytes that were never
//! sent changes nothing, where the thesis moves `tx_next_ack` and leaves the rest to the control plane (5.3.2.3): a forger who knows
//! both ends of a connection could end it (RFC 5961, 5).
//!
//! Send credits are what the congestion window leaves: sending spends them, an acknowledgement gives them back, and the
//! control plane writes them when it sets the window. The third duplicate acknowledgement takes them all, until the control plane has
//! heard of it.

use wave_rmt::register::{Compare, Input, Kind, Operand, Operation, Origin, Relation, When, Word};
use wave_rmt::table::{Function, Lookup, TernaryEntry};
use wave_rmt::{Action, Alu, Gateway, Instruction, Match, Op, Output, Row, Source, Table, Then};

use super::fields::{
    ACK, ACKED, AGE, BOUND, CLASS, CONNECTION, CONTEXT, DISTANCE, DUPACKS as DUPACKS_SEEN, END,
    FLIGHT, HAS_PAYLOAD, KIND, LENGTH, NEWEST, NEWS, PAID, POSITION, RAW_WINDOW,
    REMOTE as REMOTE_NOW, ROOM, SENT, SENT_START, SEQ, STEADY, TARGET, TX_CREDITS, TX_REMOTE_AVAIL,
    TX_WINDOW, UNA, WINDOW,
};
use super::landed::{IS_PLAUSIBLE, READ_BOTH};
use super::receive::{FIRST, GRANT, MEMORY, SECOND, access, class, is, result};
use super::transmit::{DROP_BYTES, FAST_RETRANSMIT};
use super::transmit::{DUP_THRESH, IS_NEW, IS_SAME, sync};
use super::{CONNECTIONS, TABLE, kind};

/// What a segment needs of its connection. Action data: the context, and the most bytes that a sequence number, and an acknowledgement,
/// may lie behind; the action is the peer's window scale.
pub(super) const PEER: Table<'static> = Table {
    lookup: Lookup::Direct { index: CONNECTION, entries: CONNECTIONS, data_bits: 96 },
    actions: SCALES,
    ..super::ingress::PEER
};

macro_rules! scales {
    ($($name:literal $bits:literal)*) => {
        &[$(Action {
            name: $name,
            access: None,
            ops: &[
                Op::set(CONTEXT, Source::Data(0)),
                Op::new(BOUND, Function::Add, Source::Field(SEQ), Source::Data(1)),
                Op::new(NEWEST, Function::Add, Source::Field(ACK), Source::Data(2)),
                Op::new(WINDOW, Function::ShiftLeft($bits), Source::Field(RAW_WINDOW), Source::Constant(0)),
            ],
        }),*]
    };
}

const SCALES: &[Action<'static>] = scales!(
    "scale_0" 0 "scale_1" 1 "scale_2" 2 "scale_3" 3 "scale_4" 4 "scale_5" 5 "scale_6" 6 "scale_7" 7
    "scale_8" 8 "scale_9" 9 "scale_10" 10 "scale_11" 11 "scale_12" 12 "scale_13" 13 "scale_14" 14
);

/// Sequence numbers of bytes to send. Action data: the sequence number of position 0.
pub(super) const STREAM: Table<'static> = Table {
    actions: &[Action {
        name: "base",
        access: None,
        ops: &[
            Op::new(SEQ, Function::Add, Source::Field(POSITION), Source::Data(0)),
            Op::new(ACK, Function::Add, Source::Field(POSITION), Source::Data(0)),
        ],
    }],
    ..super::ingress::STREAM
};

/// Moves the first unacknowledged number to the acknowledged one, if that is new and was sent.
pub(super) const ACKNOWLEDGE: Instruction<'static> = Instruction {
    name: "acknowledge",
    compares: &[
        Compare::against_memory(Kind::Serial, Input::First, Relation::Greater, Word::Low),
        Compare::against_memory(Kind::Serial, Input::First, Relation::Equal, Word::Low),
        Compare::against_memory(Kind::Serial, Input::First, Relation::Greater, Word::High),
    ],
    alus: &[Alu::set(FIRST).when(When::true_at(0).and(When::true_at(2).not()))],
    outputs: &[
        Output::word(0, Origin::Memory(Word::Low)),
        Output::word(1, Origin::Memory(Word::High)),
        Output::word(2, Origin::Result),
    ],
};

/// Result of an acknowledgement of bytes that were never sent.
const IS_UNSENT: Match = result(NEWS, 5);

/// Extends what was sent, unless the first byte is acknowledged already.
pub(super) const EXTEND: Instruction<'static> = Instruction {
    name: "extend",
    compares: &[
        Compare::against_memory(Kind::Serial, Input::First, Relation::Less, Word::Low),
        Compare::against_memory(Kind::Serial, Input::Second, Relation::Greater, Word::High),
    ],
    alus: &[Alu::set_high(SECOND).when(When::true_at(0).not().and(When::true_at(1)))],
    outputs: READ_BOTH.outputs,
};

/// `tx_window`.
pub(super) const BEGIN: Table<'static> = Table {
    name: "tx_window",
    gateway: Gateway {
        rows: &[
            Row { all: &[is(KIND, kind::RECEIVE), IS_PLAUSIBLE], then: Then::Run(0) },
            Row { all: &[is(KIND, kind::TRANSMIT)], then: Then::Run(1) },
        ],
        otherwise: Then::Skip,
    },
    actions: &[
        Action {
            name: "acknowledge",
            access: access(TX_WINDOW, &ACKNOWLEDGE, [Some(ACK), None]),
            ops: &[
                Op::set(UNA, Source::Output(0)),
                Op::set(SENT, Source::Output(1)),
                Op::set(NEWS, Source::Output(2)),
            ],
        },
        Action {
            name: "extend",
            access: access(TX_WINDOW, &EXTEND, [Some(ACK), Some(END)]),
            ops: &[Op::set(UNA, Source::Output(0)), Op::set(SENT, Source::Output(1))],
        },
    ],
    ..TABLE
};

const fn difference(to: wave_rmt::Field, of: wave_rmt::Field) -> Op<'static> {
    Op::new(to, Function::Subtract, Source::Field(of), Source::Field(UNA))
}

/// Offsets from the first unacknowledged number.
pub(super) const PROGRESS: Table<'static> = Table {
    name: "tx_progress",
    gateway: Gateway {
        rows: &[
            Row { all: &[IS_NEW], then: Then::Run(0) },
            Row { all: &[IS_UNSENT], then: Then::Run(1) },
            Row { all: &[is(KIND, kind::TRANSMIT)], then: Then::Run(2) },
            Row { all: &[is(KIND, kind::RECEIVE)], then: Then::Run(3) },
        ],
        otherwise: Then::Skip,
    },
    actions: &[
        Action {
            name: "acked",
            access: None,
            ops: &[difference(ACKED, ACK), difference(DISTANCE, ACK)],
        },
        Action { name: "unsent", access: None, ops: &[Op::set(AGE, Source::Constant(u32::MAX))] },
        Action {
            name: "offered",
            access: None,
            ops: &[difference(SENT_START, SEQ), difference(DISTANCE, END)],
        },
        Action {
            name: "repeated",
            access: None,
            ops: &[difference(AGE, NEWEST), difference(FLIGHT, SENT)],
        },
    ],
    ..TABLE
};

/// Bytes of a host, of which the first is not acknowledged yet. If it is, an acknowledgement has overtaken their
/// retransmission, and the host may have written others in their place.
const OFFERS: [Match; 3] =
    [is(KIND, kind::TRANSMIT), is(HAS_PAYLOAD, 1), Match::not_negative(SENT_START)];

/// Comparator 0: the window is the same as before. Comparator 1: it was not closed.
const SET: Instruction<'static> = Instruction {
    name: "set",
    compares: &[
        Compare::against_memory(Kind::Unsigned, Input::Second, Relation::Equal, Word::Low),
        Compare::memory(Kind::Unsigned, Word::Low, Relation::NotEqual, 0),
    ],
    alus: &[Alu::set(SECOND)],
    outputs: &[Output::word(0, Origin::Alu(Word::Low)), Output::word(1, Origin::Result)],
};

const SHRINK: Instruction<'static> = Instruction {
    name: "shrink",
    alus: &[Alu::low(Operation::SubtractSaturating, MEMORY, FIRST)],
    outputs: &[Output::word(0, Origin::Alu(Word::Low))],
    ..Instruction::NOTHING
};

/// `tx_remote_avail`: see [`transmit`](super::transmit).
pub(super) const REMOTE: Table<'static> = Table {
    name: "tx_remote_avail",
    gateway: Gateway {
        rows: &[
            Row { all: &OFFERS, then: Then::Run(0) },
            Row { all: &[result(NEWS, 0)], then: Then::Skip },
            Row {
                all: &[is(KIND, kind::RECEIVE), Match::bits(CLASS, class::RENEWS, class::RENEWS)],
                then: Then::Run(1),
            },
            Row { all: &[IS_NEW], then: Then::Run(2) },
        ],
        otherwise: Then::Skip,
    },
    actions: &[
        super::transmit::REMOTE.actions[0],
        Action {
            name: "set",
            access: access(TX_REMOTE_AVAIL, &SET, [None, Some(WINDOW)]),
            ops: &[Op::set(REMOTE_NOW, Source::Output(0)), Op::set(STEADY, Source::Output(1))],
        },
        Action {
            name: "take_off",
            access: access(TX_REMOTE_AVAIL, &SHRINK, [Some(DISTANCE), None]),
            ops: &[Op::set(REMOTE_NOW, Source::Output(0))],
        },
    ],
    ..TABLE
};

/// `tx_dupacks`: an acknowledgement counts that repeats the last and the window, without payload, while bytes are outstanding
/// (RFC 5681, section 2). An answer to a probe of a closed window does not.
pub(super) const DUPACKS: Table<'static> = Table {
    gateway: Gateway {
        rows: &[
            Row { all: &[is(FLIGHT, 0), IS_SAME], then: Then::Skip },
            Row {
                all: &[IS_SAME, Match::bits(HAS_PAYLOAD, 1, 0), result(STEADY, 3)],
                then: Then::Run(0),
            },
            Row { all: &[IS_NEW], then: Then::Run(1) },
        ],
        otherwise: Then::Skip,
    },
    ..super::transmit::DUPACKS
};

/// Pays for bytes. Comparator 0: they are more than there are credits.
const PAY: Instruction<'static> = Instruction {
    name: "pay",
    compares: &[Compare::against_memory(Kind::Signed, Input::First, Relation::Greater, Word::Low)],
    alus: &[Alu::low(Operation::Subtract, MEMORY, FIRST).when(When::true_at(0).not())],
    outputs: &[Output::word(0, Origin::Result)],
};

const GIVE_BACK: Instruction<'static> = Instruction {
    name: "give_back",
    alus: &[Alu::low(Operation::Add, MEMORY, SECOND)],
    ..Instruction::NOTHING
};

const HOLD: Instruction<'static> =
    Instruction { name: "hold", alus: &[Alu::set(Operand::Constant(0))], ..Instruction::NOTHING };

/// `tx_credits`. Bytes beyond the peer's window are not sent, and pay nothing.
pub(super) const CREDITS: Table<'static> = Table {
    name: "tx_credits",
    gateway: Gateway {
        rows: &[
            Row {
                all: &[OFFERS[0], OFFERS[1], OFFERS[2], Match::bits(ROOM, 2, 0)],
                then: Then::Run(0),
            },
            Row { all: &[is(KIND, kind::SYNC), is(TARGET, sync::CREDITS)], then: Then::Run(1) },
            Row { all: &[is(DUPACKS_SEEN, DUP_THRESH)], then: Then::Run(2) },
            Row { all: &[IS_NEW], then: Then::Run(3) },
        ],
        otherwise: Then::Skip,
    },
    actions: &[
        Action {
            name: "pay",
            access: access(TX_CREDITS, &PAY, [Some(LENGTH), None]),
            ops: &[Op::set(PAID, Source::Output(0))],
        },
        Action {
            name: "grant",
            access: access(TX_CREDITS, &GRANT, [Some(LENGTH), None]),
            ops: &[],
        },
        Action { name: "hold", access: access(TX_CREDITS, &HOLD, [None; 2]), ops: &[] },
        Action {
            name: "give_back",
            access: access(TX_CREDITS, &GIVE_BACK, [None, Some(ACKED)]),
            ops: &[],
        },
    ],
    ..TABLE
};

/// Whether bytes are sent, and whether the control plane hears of an acknowledgement.
pub(super) const VERDICT: Table<'static> = Table {
    name: "tx_verdict",
    lookup: Lookup::Ternary(&[
        TernaryEntry { all: &[OFFERS[0], OFFERS[1], Match::negative(SENT_START)], action: 0 },
        TernaryEntry { all: &[OFFERS[0], result(PAID, 1)], action: 0 },
        TernaryEntry { all: &[OFFERS[0], result(ROOM, 1)], action: 0 },
        TernaryEntry { all: &[is(DUPACKS_SEEN, DUP_THRESH)], action: 1 },
    ]),
    actions: &[DROP_BYTES, FAST_RETRANSMIT],
    ..TABLE
};

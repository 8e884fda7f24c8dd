//! Transmission and acknowledgements (5.3.2): registers `tx_next_ack`, `tx_dupacks`, `tx_avail`, `tx_credits` and `tx_remote_avail`,
//! and what congestion control reads.

use wave_rmt::register::{Compare, Input, Kind, Operand, Operation, Origin, Relation, When, Word};
use wave_rmt::table::{Function, Lookup, TernaryEntry};
use wave_rmt::{Action, Alu, Gateway, Instruction, Match, Op, Output, Row, Source, Table, Then};

use super::fields as field;
use super::fields::{
    ACK, CLASS, DIGEST, DISTANCE, DROP, DUPACKS as DUPACKS_SEEN, END, FLAGS, HALF, HAS_PAYLOAD,
    IS_STALE, KIND, LENGTH, NEWS, PAID, ROOM, SENT_START, SEQ, TARGET, TX_AVAIL, TX_CREDITS,
    TX_DUPACKS, TX_NEXT_ACK, TX_REMOTE_AVAIL, UNA, UNSENT, WINDOW,
};
use super::receive::{FIRST, GRANT, MEMORY, READ, SECOND, access, class, is, result};
use super::{DIGEST_FAST_RETRANSMIT, DIGEST_UNSENT, TABLE, kind};

/// What SYNC writes, in the field `target`.
pub mod sync {
    /// Room in the receive buffer.
    pub const ROOM: u32 = 1;
    /// Send credits.
    pub const CREDITS: u32 = 2;
    /// Nothing: congestion control reads and clears its registers.
    pub const STATISTICS: u32 = 3;
}

const ZERO: Operand = Operand::Constant(0);

/// Moves `tx_next_ack` to the acknowledged number if that is new. Whether it was ever sent is not known here (5.3.2.3).
const ACKNOWLEDGE: Instruction<'static> = Instruction {
    name: "acknowledge",
    compares: &[
        Compare::against_memory(Kind::Serial, Input::First, Relation::Greater, Word::Low),
        Compare::against_memory(Kind::Serial, Input::First, Relation::Equal, Word::Low),
    ],
    alus: &[Alu::set(FIRST).when(When::true_at(0))],
    outputs: &[Output::word(0, Origin::Memory(Word::Low)), Output::word(1, Origin::Result)],
};

/// `tx_next_ack`.
pub(super) const NEXT_ACK: Table<'static> = Table {
    name: "tx_next_ack",
    gateway: Gateway {
        rows: &[
            Row { all: &[is(KIND, kind::RECEIVE)], then: Then::Run(0) },
            Row { all: &[is(KIND, kind::TRANSMIT)], then: Then::Run(1) },
        ],
        otherwise: Then::Skip,
    },
    actions: &[
        Action {
            name: "acknowledge",
            access: access(TX_NEXT_ACK, &ACKNOWLEDGE, [Some(ACK), None]),
            ops: &[Op::set(UNA, Source::Output(0)), Op::set(NEWS, Source::Output(1))],
        },
        Action {
            name: "read",
            access: access(TX_NEXT_ACK, &READ, [None; 2]),
            ops: &[Op::set(UNA, Source::Output(0))],
        },
    ],
    ..TABLE
};

/// Result of an acknowledgement of new bytes.
pub(super) const IS_NEW: Match = result(NEWS, 1);
/// Result of one that repeats the last.
pub(super) const IS_SAME: Match = result(NEWS, 2);

/// Offsets from `tx_next_ack`.
pub(super) const PROGRESS: Table<'static> = Table {
    name: "progress",
    gateway: Gateway {
        rows: &[
            Row { all: &[IS_NEW], then: Then::Run(0) },
            Row { all: &[is(KIND, kind::TRANSMIT)], then: Then::Run(1) },
        ],
        otherwise: Then::Skip,
    },
    actions: &[
        Action {
            name: "acked",
            access: None,
            ops: &[Op::new(DISTANCE, Function::Subtract, Source::Field(ACK), Source::Field(UNA))],
        },
        Action {
            name: "offered",
            access: None,
            ops: &[
                Op::new(SENT_START, Function::Subtract, Source::Field(SEQ), Source::Field(UNA)),
                Op::new(DISTANCE, Function::Subtract, Source::Field(END), Source::Field(UNA)),
            ],
        },
    ],
    ..TABLE
};

const COUNT: Instruction<'static> = Instruction {
    name: "count",
    alus: &[Alu::low(Operation::AddSaturating, MEMORY, Operand::Constant(1))],
    outputs: &[Output::word(0, Origin::Alu(Word::Low))],
    ..Instruction::NOTHING
};

const CLEAR: Instruction<'static> = Instruction {
    name: "clear",
    alus: &[Alu::set(ZERO)],
    outputs: &[Output::word(0, Origin::Memory(Word::Low))],
    ..Instruction::NOTHING
};

/// `tx_dupacks`: an acknowledgement without payload that repeats the last counts. Updates of the window count, too: that bytes are
/// outstanding and the window is the same, as RFC 5681, section 2, demands, is known in later stages only.
pub(super) const DUPACKS: Table<'static> = Table {
    name: "tx_dupacks",
    gateway: Gateway {
        rows: &[
            Row { all: &[IS_SAME, is(HAS_PAYLOAD, 0)], then: Then::Run(0) },
            Row { all: &[IS_NEW], then: Then::Run(1) },
        ],
        otherwise: Then::Skip,
    },
    actions: &[
        Action {
            name: "count",
            access: access(TX_DUPACKS, &COUNT, [None; 2]),
            ops: &[Op::set(DUPACKS_SEEN, Source::Output(0))],
        },
        Action { name: "clear", access: access(TX_DUPACKS, &CLEAR, [None; 2]), ops: &[] },
    ],
    ..TABLE
};

/// Extends what was sent.
const EXTEND: Instruction<'static> = Instruction {
    name: "extend",
    alus: &[Alu::low(Operation::Maximum, MEMORY, FIRST)],
    ..Instruction::NOTHING
};

/// Takes acknowledged bytes off what was sent. Comparator 0: they are more.
const TAKE_OFF: Instruction<'static> = Instruction {
    name: "take_off",
    compares: &[Compare::against_memory(
        Kind::Unsigned,
        Input::First,
        Relation::Greater,
        Word::Low,
    )],
    alus: &[Alu::low(Operation::SubtractSaturating, MEMORY, FIRST)],
    outputs: &[Output::word(0, Origin::Result)],
};

/// `tx_avail`. Bytes are stale if the first one is acknowledged already: an acknowledgement has overtaken their retransmission, and the
/// host may have written others in their place.
pub(super) const AVAIL: Table<'static> = Table {
    name: "tx_avail",
    gateway: Gateway {
        rows: &[
            Row {
                all: &[is(KIND, kind::TRANSMIT), Match::negative(SENT_START)],
                then: Then::Run(2),
            },
            Row { all: &[is(KIND, kind::TRANSMIT)], then: Then::Run(0) },
            Row { all: &[IS_NEW], then: Then::Run(1) },
        ],
        otherwise: Then::Skip,
    },
    actions: &[
        Action {
            name: "extend",
            access: access(TX_AVAIL, &EXTEND, [Some(DISTANCE), None]),
            ops: &[],
        },
        Action {
            name: "take_off",
            access: access(TX_AVAIL, &TAKE_OFF, [Some(DISTANCE), None]),
            ops: &[Op::set(UNSENT, Source::Output(0))],
        },
        Action { name: "stale", access: None, ops: &[Op::set(IS_STALE, Source::Constant(1))] },
    ],
    ..TABLE
};

/// Pays for a segment. Comparator 0: there are no credits (5.3.2.2).
const PAY: Instruction<'static> = Instruction {
    name: "pay",
    compares: &[Compare::memory(Kind::Unsigned, Word::Low, Relation::Equal, 0)],
    alus: &[Alu::low(Operation::SubtractSaturating, MEMORY, FIRST)],
    outputs: &[Output::word(0, Origin::Result)],
};

/// Keeps half of what the control plane has granted: a stateful ALU cannot shift.
const HALVE: Instruction<'static> = Instruction {
    name: "halve",
    alus: &[Alu::low(Operation::Minimum, MEMORY, SECOND)],
    ..Instruction::NOTHING
};

/// Duplicate acknowledgements after which a segment counts as lost (RFC 5681, 3.2).
pub(super) const DUP_THRESH: u32 = 3;

/// `tx_credits`.
pub(super) const CREDITS: Table<'static> = Table {
    name: "tx_credits",
    gateway: Gateway {
        rows: &[
            Row { all: &[is(KIND, kind::TRANSMIT), is(IS_STALE, 0)], then: Then::Run(0) },
            Row { all: &[is(KIND, kind::SYNC), is(TARGET, sync::CREDITS)], then: Then::Run(1) },
            Row { all: &[is(DUPACKS_SEEN, DUP_THRESH)], then: Then::Run(2) },
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
        Action { name: "halve", access: access(TX_CREDITS, &HALVE, [None, Some(HALF)]), ops: &[] },
    ],
    ..TABLE
};

const SET: Instruction<'static> =
    Instruction { name: "set", alus: &[Alu::set(SECOND)], ..Instruction::NOTHING };

const SHRINK: Instruction<'static> = Instruction {
    name: "shrink",
    alus: &[Alu::low(Operation::SubtractSaturating, MEMORY, FIRST)],
    ..Instruction::NOTHING
};

/// Comparator 0: the bytes end beyond the peer's window.
const FIT: Instruction<'static> = Instruction {
    name: "fit",
    compares: &[Compare::against_memory(
        Kind::Unsigned,
        Input::First,
        Relation::Greater,
        Word::Low,
    )],
    outputs: &[Output::word(0, Origin::Result)],
    ..Instruction::NOTHING
};

/// `tx_remote_avail`: segments at `rx_next` whose acknowledgement is not older than the last renew it (RFC 9293, 3.10.7.4). Others that
/// acknowledge take the acknowledged bytes off, because the register counts from `tx_next_ack`; the text does not say so, and
/// without it bytes are sent beyond the peer's window ([`explore`](super::explore) found it).
pub(super) const REMOTE: Table<'static> = Table {
    name: "tx_remote_avail",
    gateway: Gateway {
        rows: &[
            Row { all: &[is(KIND, kind::TRANSMIT), is(IS_STALE, 0)], then: Then::Run(0) },
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
        Action {
            name: "fit",
            access: access(TX_REMOTE_AVAIL, &FIT, [Some(DISTANCE), None]),
            ops: &[Op::set(ROOM, Source::Output(0))],
        },
        Action {
            name: "set",
            access: access(TX_REMOTE_AVAIL, &SET, [None, Some(WINDOW)]),
            ops: &[],
        },
        Action {
            name: "take_off",
            access: access(TX_REMOTE_AVAIL, &SHRINK, [Some(DISTANCE), None]),
            ops: &[],
        },
    ],
    ..TABLE
};

const SENT: Match = is(KIND, kind::TRANSMIT);

/// The bytes are not sent.
pub(super) const DROP_BYTES: Action<'static> =
    Action { name: "drop", access: None, ops: &[Op::set(DROP, Source::Constant(1))] };

/// The control plane hears of a loss.
pub(super) const FAST_RETRANSMIT: Action<'static> = Action {
    name: "fast_retransmit",
    access: None,
    ops: &[Op::set(DIGEST, Source::Constant(DIGEST_FAST_RETRANSMIT))],
};

/// Whether bytes are sent, and what the control plane hears of an acknowledgement.
pub(super) const VERDICT: Table<'static> = Table {
    name: "tx_verdict",
    lookup: Lookup::Ternary(&[
        TernaryEntry { all: &[SENT, is(IS_STALE, 1)], action: 0 },
        TernaryEntry { all: &[SENT, result(PAID, 1)], action: 0 },
        TernaryEntry { all: &[SENT, result(ROOM, 1)], action: 0 },
        TernaryEntry { all: &[result(UNSENT, 1)], action: 1 },
        TernaryEntry { all: &[is(DUPACKS_SEEN, DUP_THRESH)], action: 2 },
    ]),
    actions: &[
        DROP_BYTES,
        Action {
            name: "unsent",
            access: None,
            ops: &[Op::set(DIGEST, Source::Constant(DIGEST_UNSENT))],
        },
        FAST_RETRANSMIT,
    ],
    ..TABLE
};

/// Adds acknowledged bytes.
const ADD: Instruction<'static> = Instruction {
    name: "add",
    alus: &[Alu::low(Operation::AddSaturating, MEMORY, FIRST)],
    ..Instruction::NOTHING
};

const IS_READ: Row<'static> =
    Row { all: &[is(KIND, kind::SYNC), is(TARGET, sync::STATISTICS)], then: Then::Run(1) };

/// `acked_bytes`.
pub(super) const ACKED_BYTES: Table<'static> = Table {
    name: "acked_bytes",
    gateway: Gateway {
        rows: &[Row { all: &[IS_NEW], then: Then::Run(0) }, IS_READ],
        otherwise: Then::Skip,
    },
    actions: &[
        Action {
            name: "add",
            access: access(field::ACKED_BYTES, &ADD, [Some(DISTANCE), None]),
            ops: &[],
        },
        Action {
            name: "clear",
            access: access(field::ACKED_BYTES, &CLEAR, [None; 2]),
            ops: &[Op::set(DISTANCE, Source::Output(0))],
        },
    ],
    ..TABLE
};

/// ECE: the acknowledgement echoes a congestion mark (RFC 3168, 6.1).
const ECHOES_MARK: Match = Match::bits(FLAGS, 0x40, 0x40);

/// `marked_bytes`.
pub(super) const MARKED_BYTES: Table<'static> = Table {
    name: "marked_bytes",
    gateway: Gateway {
        rows: &[Row { all: &[IS_NEW, ECHOES_MARK], then: Then::Run(0) }, IS_READ],
        otherwise: Then::Skip,
    },
    actions: &[
        Action {
            name: "add",
            access: access(field::MARKED_BYTES, &ADD, [Some(DISTANCE), None]),
            ops: &[],
        },
        Action {
            name: "clear",
            access: access(field::MARKED_BYTES, &CLEAR, [None; 2]),
            ops: &[Op::set(LENGTH, Source::Output(0))],
        },
    ],
    ..TABLE
};

/// `fast_retransmits`.
pub(super) const FAST_RETRANSMITS: Table<'static> = Table {
    name: "fast_retransmits",
    gateway: Gateway {
        rows: &[Row { all: &[is(DUPACKS_SEEN, DUP_THRESH)], then: Then::Run(0) }, IS_READ],
        otherwise: Then::Skip,
    },
    actions: &[
        Action {
            name: "count",
            access: access(field::FAST_RETRANSMITS, &COUNT, [None; 2]),
            ops: &[],
        },
        Action {
            name: "clear",
            access: access(field::FAST_RETRANSMITS, &CLEAR, [None; 2]),
            ops: &[Op::set(DUPACKS_SEEN, Source::Output(0))],
        },
    ],
    ..TABLE
};

//! A rate limiter: drops packets to a destination that exceed its rate. The control plane gives a destination a slot, and an interval,
//! which is 1 / rate. Within any time, at most 1 + (time + [`BURST`]) / interval packets pass.
//!
//! This is the Generic Cell Rate Algorithm (ITU-T I.371, annex A) as a leaky bucket with continuous state. The bucket has the time by
//! which a destination's packets run ahead of its rate: a packet that passes adds an interval, and time drains it. A packet that would
//! raise it above the burst is dropped.
//!
//! The other form of the algorithm, virtual scheduling, keeps the theoretical arrival time of the next packet in one register. It needs
//! three fields: now, the interval, and their sum. A stateful ALU reads two, so that the interval would be a constant. After a pause of
//! half the clock's period, the theoretical time would seem to be yet to come, and packets would be dropped until then.

use super::headers::flow_fields;
use crate::devices::TOFINO1;
use crate::pipeline::Intrinsic;
use crate::register::{Compare, Input, Kind, Operand, Operation, Origin, Relation, When, Word};
use crate::table::{Entry, Function, Key, Lookup, Row};
use crate::{
    Access, Action, Alu, Gateway, Instruction, Match, Op, Output, Pipeline, Source, Table, Then,
};

flow_fields! {
    /// Arrival time in microseconds, which the port sets before the parser. It wraps around.
    NOW = now: 32,
    /// 1 if the destination has a rate.
    IS_LIMITED = is_limited: 1,
    /// Slot of the destination.
    SLOT = slot: 16,
    /// Time between two packets at the destination's rate.
    INTERVAL = interval: 32,
    /// Time since the destination's last packet. A pause of the clock's whole period counts as none.
    ELAPSED = elapsed: 32,
    /// Elapsed time less the interval: a signed number if the packet is early.
    SURPLUS = surplus: 32,
    /// Interval less the elapsed time, at least 0.
    MISSING = missing: 32,
    /// Not 0: the packet is dropped.
    DROP = drop: 8,
}

crate::registers! {
    /// Time of a destination's last packet.
    ARRIVALS = Register { name: "arrivals", bits: 32, is_pair: false, entries: SLOTS },
    /// Time by which a destination's packets run ahead of its rate: 0 to [`BURST`].
    LEADS = Register { name: "leads", bits: 32, is_pair: false, entries: SLOTS },
}

/// The longest time by which packets may run ahead of their rate, in microseconds.
pub const BURST: u32 = 100_000;
/// The longest time by which a packet may be stamped before one that came first, at another port. It counts as arriving with that one.
pub const SKEW: u32 = 1_000;
/// Number of slots.
pub const SLOTS: u32 = 4096;
/// Index of the table in which the control plane gives destinations their rates.
pub const RATES: usize = 0;

/// Key and entry of [`RATES`] for a destination, in a slot of its own, with an interval in microseconds. `None` if there is no such slot,
/// or if the interval is longer than [`BURST`]: the elapsed time of a dropped packet would be lost, since a lead is not negative.
pub const fn rate(destination: u32, slot: u16, interval: u32) -> Option<(Key, Entry)> {
    if slot as u32 >= SLOTS || interval > BURST {
        return None;
    }
    Some((
        [destination, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        Entry { action: 0, data: [slot as u32, interval, 0, 0, 0, 0, 0, 0] },
    ))
}

/// Stamped before the last packet, by no more than the skew: after half the clock's period, a packet seems to be before the last one, too.
const IS_BEFORE: When = When::true_at(0).and(When::true_at(1));

/// Keeps the time, and outputs what has elapsed since the last packet.
const ARRIVE: Instruction<'static> = Instruction {
    name: "arrive",
    compares: &[
        Compare::against_memory(Kind::Serial, Input::First, Relation::Less, Word::Low),
        Compare::against_memory(Kind::Serial, Input::First, Relation::GreaterOrEqual, Word::Low)
            .plus(SKEW as i64),
    ],
    alus: &[
        Alu::set(Operand::Input(Input::First)).when(IS_BEFORE.not()),
        Alu::high(Operation::Subtract, Operand::Input(Input::First), Operand::Memory(Word::Low)),
    ],
    outputs: &[Output::word(0, Origin::Alu(Word::High)).when(IS_BEFORE.not())],
};

/// A packet after its interval is over: the surplus drains the lead.
const LATE: Instruction<'static> = Instruction {
    name: "late",
    alus: &[Alu::low(
        Operation::SubtractSaturating,
        Operand::Memory(Word::Low),
        Operand::Input(Input::First),
    )],
    ..Instruction::NOTHING
};

const EXCEEDS: When = When::true_at(0);

/// A packet before its interval is over: the surplus is negative, and raises the lead. If that exceeds the burst, the packet is dropped, and
/// the elapsed time drains the lead. It is shorter than the lead, because lead + interval - elapsed > burst, and interval <= burst.
const EARLY: Instruction<'static> = Instruction {
    name: "early",
    // surplus - lead + burst < 0.
    compares: &[Compare::against_memory(Kind::Signed, Input::First, Relation::Less, Word::Low)
        .plus(BURST as i64)],
    alus: &[
        Alu::low(Operation::Subtract, Operand::Memory(Word::Low), Operand::Input(Input::First))
            .when(EXCEEDS.not()),
        Alu::low(Operation::Subtract, Operand::Memory(Word::Low), Operand::Input(Input::Second))
            .when(EXCEEDS),
        Alu::set_high(Operand::Constant(1)),
    ],
    outputs: &[Output::word(0, Origin::Alu(Word::High)).when(EXCEEDS)],
};

const fn access(
    register: usize,
    instruction: &'static Instruction<'static>,
    inputs: [Option<crate::Field>; 2],
) -> Option<Access<'static>> {
    Some(Access { register, instruction, index: SLOT, inputs })
}

/// The pipeline. After the ingress, `DROP` is not 0 for a packet that exceeds its destination's rate.
pub const RATE_LIMITER: Pipeline<'static> = Pipeline {
    name: "rate-limiter",
    fields: FIELDS,
    registers: REGISTERS,
    parser: PARSER,
    ingress: &[
        Table {
            name: "rate",
            lookup: Lookup::Exact {
                key: &[DESTINATION],
                entries: SLOTS,
                data_bits: 64,
                miss: None,
            },
            actions: &[Action {
                name: "limit",
                access: None,
                ops: &[
                    Op::set(IS_LIMITED, Source::Constant(1)),
                    Op::set(SLOT, Source::Data(0)),
                    Op::set(INTERVAL, Source::Data(1)),
                ],
            }],
            ..Table::NOTHING
        },
        Table {
            name: "arrival",
            gateway: Gateway {
                rows: &[Row { all: &[Match::equal(IS_LIMITED, 1)], then: Then::Run(0) }],
                otherwise: Then::Skip,
            },
            actions: &[Action {
                name: "arrive",
                access: access(ARRIVALS, &ARRIVE, [Some(NOW), None]),
                ops: &[Op::set(ELAPSED, Source::Output(0))],
            }],
            ..Table::NOTHING
        },
        Table {
            name: "surplus",
            actions: &[Action {
                name: "subtract",
                access: None,
                ops: &[
                    Op::new(
                        SURPLUS,
                        Function::Subtract,
                        Source::Field(ELAPSED),
                        Source::Field(INTERVAL),
                    ),
                    Op::new(
                        MISSING,
                        Function::SubtractSaturating,
                        Source::Field(INTERVAL),
                        Source::Field(ELAPSED),
                    ),
                ],
            }],
            ..Table::NOTHING
        },
        Table {
            name: "lead",
            gateway: Gateway {
                rows: &[
                    Row { all: &[Match::equal(IS_LIMITED, 0)], then: Then::Skip },
                    Row { all: &[Match::equal(MISSING, 0)], then: Then::Run(0) },
                ],
                otherwise: Then::Run(1),
            },
            actions: &[
                Action {
                    name: "late",
                    access: access(LEADS, &LATE, [Some(SURPLUS), Some(ELAPSED)]),
                    ops: &[],
                },
                Action {
                    name: "early",
                    access: access(LEADS, &EARLY, [Some(SURPLUS), Some(ELAPSED)]),
                    ops: &[Op::set(DROP, Source::Output(0))],
                },
            ],
            ..Table::NOTHING
        },
    ],
    intrinsic: Intrinsic { drop: Some(DROP), ..Pipeline::NOTHING.intrinsic },
    ..Pipeline::NOTHING
};

const _: () = RATE_LIMITER.must_fit(&TOFINO1);

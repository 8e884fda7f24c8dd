//! Ingress: what a frame is, whose connection it belongs to, and where its bytes lie in the stream (5.2).
//!
//! Frames come from the wire, as Ethernet, IPv4 and TCP, or from a host, as Ethernet and [`HOST_ETHER_TYPE`] with this header:
//!
//! | bytes | |
//! | --- | --- |
//! | 1 | [`kind`]: [`TRANSMIT`](kind::TRANSMIT) or [`SYNC`](kind::SYNC) |
//! | 1 | for SYNC, [`ROOM`](super::transmit::sync::ROOM): credits and statistics are the control plane's |
//! | 2 | the context |
//! | 2 | the connection |
//! | 2 | 0 |
//! | 4 | position in the stream of the first byte to send, modulo 2^32 |
//! | 4 | number of bytes to send; for SYNC, bytes of room |
//!
//! The port says where a frame comes from ([`FROM_HOST`]): a host's frame from the wire goes nowhere. A host's frame is dropped unless the
//! connection is of that context. Segments with other flags than ACK, PSH and those of ECN, with
//! other options than timestamps, and fragments go to the slow path ([`DIGEST_SLOW_PATH`]), and so do segments of unknown connections.

use wave_rmt::parser::{Case, Extract, Next, ParserState, Select};
use wave_rmt::table::{Function, Lookup, TernaryEntry};
use wave_rmt::{Action, Field, Gateway, Match, Op, Row, Source, Table, Then};

use super::fields::{
    ACK, BOUND, CONNECTION, CONTEXT, DESTINATION, DIGEST, DROP, ECHO, END, ETHER_TYPE, FLAGS,
    FOREIGN, FRAGMENT, FROM_HOST, HALF, HAS_PAYLOAD, IS_KNOWN, KIND, LENGTH, OFFSET, OPTIONS,
    PORTS, POSITION, PROTOCOL, RAW_WINDOW, SEQ, SOURCE, TARGET, TIMESTAMP, TOTAL_LENGTH, VERSION,
    WINDOW,
};
use super::receive::is;
use super::transmit::sync;
use super::{CONNECTIONS, DIGEST_SLOW_PATH, TABLE, kind};

/// EtherType of hosts' frames: the first for local experiments (IEEE 802).
pub const HOST_ETHER_TYPE: u32 = 0x88b5;
const IPV4: u32 = 0x0800;
/// Two NOPs, and timestamps of ten bytes: the layout that Linux sends.
const STAMPED: u32 = 0x0101_080a;

const fn extract(field: Field, offset_bits: u16) -> Extract {
    Extract { field, offset_bits }
}

const fn case(field: Field, mask: u32, value: u32, state: usize) -> Case {
    Case { field, mask, value, next: Next::State(state) }
}

/// The parser.
pub const PARSER: &[ParserState<'static>] = &[
    ParserState {
        name: "ethernet",
        extracts: &[extract(ETHER_TYPE, 96)],
        advance: 14,
        next: Select {
            cases: &[
                case(ETHER_TYPE, 0xffff, IPV4, 1),
                case(ETHER_TYPE, 0xffff, HOST_ETHER_TYPE, 4),
            ],
            otherwise: Next::Reject,
        },
    },
    ParserState {
        name: "ipv4",
        extracts: &[
            extract(VERSION, 0),
            extract(TOTAL_LENGTH, 16),
            extract(FRAGMENT, 48),
            extract(PROTOCOL, 72),
            extract(SOURCE, 96),
            extract(DESTINATION, 128),
        ],
        advance: 20,
        // No options.
        next: Select { cases: &[case(VERSION, 0xff, 0x45, 2)], otherwise: Next::Reject },
    },
    ParserState {
        name: "tcp",
        extracts: &[
            extract(PORTS, 0),
            extract(SEQ, 32),
            extract(ACK, 64),
            extract(OFFSET, 96),
            extract(FLAGS, 104),
            extract(RAW_WINDOW, 112),
        ],
        advance: 20,
        next: Select { cases: &[case(OFFSET, 0xf0, 0x80, 3)], otherwise: Next::Accept },
    },
    ParserState {
        name: "timestamps",
        extracts: &[extract(OPTIONS, 0), extract(TIMESTAMP, 32), extract(ECHO, 64)],
        advance: 12,
        next: Select { cases: &[], otherwise: Next::Accept },
    },
    ParserState {
        name: "host",
        extracts: &[
            extract(KIND, 0),
            extract(TARGET, 8),
            extract(CONTEXT, 16),
            extract(CONNECTION, 32),
            extract(POSITION, 64),
            extract(LENGTH, 96),
            extract(BOUND, 96),
        ],
        advance: 16,
        next: Select { cases: &[], otherwise: Next::Accept },
    },
];

const IS_WIRE: Match = is(ETHER_TYPE, IPV4);
const IS_HOST: Match = is(ETHER_TYPE, HOST_ETHER_TYPE);

/// Fields of a connection's key, in order.
pub const KEY: &[Field] = &[SOURCE, DESTINATION, PORTS];

/// Index of the table `lookup` in the ingress.
pub const LOOKUP_TABLE: usize = 0;
/// Index of the table `owner` in the ingress.
pub const OWNER_TABLE: usize = 1;
/// Index of the table `peer` in the ingress.
pub const PEER_TABLE: usize = 3;
/// Index of the table `stream` in the ingress.
pub const STREAM_TABLE: usize = 4;

/// The connection of a segment, by addresses and ports. Action data: the connection.
pub(super) const LOOKUP: Table<'static> = Table {
    name: "lookup",
    gateway: Gateway {
        rows: &[Row { all: &[IS_WIRE], then: Then::Lookup }],
        otherwise: Then::Skip,
    },
    lookup: Lookup::Exact { key: KEY, entries: CONNECTIONS, data_bits: 16, miss: Some(1) },
    actions: &[
        Action {
            name: "found",
            access: None,
            ops: &[
                Op::set(CONNECTION, Source::Data(0)),
                Op::set(KIND, Source::Constant(kind::RECEIVE)),
            ],
        },
        Action {
            name: "unknown",
            access: None,
            ops: &[
                Op::set(DROP, Source::Constant(1)),
                Op::set(DIGEST, Source::Constant(DIGEST_SLOW_PATH)),
            ],
        },
    ],
    ..TABLE
};

/// Whether a host's frame is of the context that owns the connection. Action data: that context.
pub(super) const OWNER: Table<'static> = Table {
    name: "owner",
    gateway: Gateway {
        rows: &[Row { all: &[IS_HOST], then: Then::Lookup }],
        otherwise: Then::Skip,
    },
    lookup: Lookup::Direct { index: CONNECTION, entries: CONNECTIONS, data_bits: 16 },
    actions: &[Action {
        name: "compare",
        access: None,
        ops: &[
            Op::new(FOREIGN, Function::Xor, Source::Field(CONTEXT), Source::Data(0)),
            Op::set(IS_KNOWN, Source::Constant(1)),
        ],
    }],
    ..TABLE
};

/// Segments that the stages can process; the rest goes to the slow path.
pub(super) const SEGMENT: Table<'static> = Table {
    name: "segment",
    lookup: Lookup::Ternary(&[
        TernaryEntry { all: &[IS_HOST, is(FROM_HOST, 0)], action: 2 },
        TernaryEntry { all: &[IS_WIRE, is(FROM_HOST, 1)], action: 2 },
        TernaryEntry {
            all: &[IS_WIRE, is(PROTOCOL, 6), ACKS, WHOLE, Match::bits(OFFSET, 0xf0, 0x50)],
            action: 0,
        },
        TernaryEntry {
            all: &[
                IS_WIRE,
                is(PROTOCOL, 6),
                ACKS,
                WHOLE,
                Match::bits(OFFSET, 0xf0, 0x80),
                is(OPTIONS, STAMPED),
            ],
            action: 1,
        },
        TernaryEntry { all: &[IS_WIRE], action: 2 },
    ]),
    actions: &[
        length("plain", &[less_headers(40)]),
        length("stamped", &[less_headers(52)]),
        Action {
            name: "slow_path",
            access: None,
            ops: &[
                Op::set(DROP, Source::Constant(1)),
                Op::set(DIGEST, Source::Constant(DIGEST_SLOW_PATH)),
            ],
        },
    ],
    ..TABLE
};

/// ACK, and neither URG, RST, SYN nor FIN.
const ACKS: Match = Match::bits(FLAGS, 0x37, 0x10);
/// Not a fragment.
const WHOLE: Match = Match::bits(FRAGMENT, 0x3fff, 0);

const fn length(name: &'static str, ops: &'static [Op<'static>]) -> Action<'static> {
    Action { name, access: None, ops }
}

/// The number of bytes of payload; negative if the packet says that it is shorter than its headers.
const fn less_headers(bytes: u32) -> Op<'static> {
    Op::new(LENGTH, Function::Subtract, Source::Field(TOTAL_LENGTH), Source::Constant(bytes))
}

/// What a segment needs of its connection. Action data: the context, and half of the credits that the control plane grants; the action
/// is the peer's window scale.
pub(super) const PEER: Table<'static> = Table {
    name: "peer",
    gateway: Gateway {
        rows: &[Row { all: &[is(KIND, kind::RECEIVE)], then: Then::Lookup }],
        otherwise: Then::Skip,
    },
    lookup: Lookup::Direct { index: CONNECTION, entries: CONNECTIONS, data_bits: 64 },
    actions: SCALES,
    ..TABLE
};

macro_rules! scales {
    ($($name:literal $bits:literal)*) => {
        &[$(Action {
            name: $name,
            access: None,
            ops: &[
                Op::set(CONTEXT, Source::Data(0)),
                Op::set(HALF, Source::Data(1)),
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
    name: "stream",
    gateway: Gateway {
        rows: &[Row { all: &[is(KIND, kind::TRANSMIT), IS_HOST], then: Then::Lookup }],
        otherwise: Then::Skip,
    },
    lookup: Lookup::Direct { index: CONNECTION, entries: CONNECTIONS, data_bits: 32 },
    actions: &[Action {
        name: "base",
        access: None,
        ops: &[Op::new(SEQ, Function::Add, Source::Field(POSITION), Source::Data(0))],
    }],
    ..TABLE
};

/// A host sends on its own connections, and makes room there, and does nothing else.
pub(super) const ADMIT: Table<'static> = Table {
    name: "admit",
    gateway: Gateway {
        rows: &[
            Row {
                all: &[is(FROM_HOST, 1), is(IS_KNOWN, 1), is(FOREIGN, 0), is(KIND, kind::TRANSMIT)],
                then: Then::Skip,
            },
            Row {
                all: &[
                    is(FROM_HOST, 1),
                    is(IS_KNOWN, 1),
                    is(FOREIGN, 0),
                    is(KIND, kind::SYNC),
                    is(TARGET, sync::ROOM),
                ],
                then: Then::Skip,
            },
            Row { all: &[is(FROM_HOST, 1)], then: Then::Run(0) },
        ],
        otherwise: Then::Skip,
    },
    actions: &[Action { name: "drop", access: None, ops: &[Op::set(DROP, Source::Constant(1))] }],
    ..TABLE
};

/// Where the bytes end.
pub(super) const ENDS: Table<'static> = Table {
    name: "end",
    gateway: Gateway {
        rows: &[
            Row { all: &[is(LENGTH, 0)], then: Then::Run(1) },
            Row { all: &[Match::negative(LENGTH)], then: Then::Run(2) },
        ],
        otherwise: Then::Run(0),
    },
    actions: &[
        Action {
            name: "payload",
            access: None,
            ops: &[
                Op::new(END, Function::Add, Source::Field(SEQ), Source::Field(LENGTH)),
                Op::set(HAS_PAYLOAD, Source::Constant(1)),
            ],
        },
        Action { name: "empty", access: None, ops: &[Op::set(END, Source::Field(SEQ))] },
        Action { name: "short", access: None, ops: &[Op::set(DROP, Source::Constant(1))] },
    ],
    ..TABLE
};

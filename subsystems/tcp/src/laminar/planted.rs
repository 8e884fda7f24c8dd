//! Faults in Laminar's reassembly, to see that [`explore`](super::explore) finds them.

use wave_rmt::register::{Compare, Input, Kind, Relation, When, Word};
use wave_rmt::{Access, Action, Alu, Gateway, Instruction, Pipeline, Table, Then};

use super::receive::{self, EXTEND, IS_FREE, READ, REFUSE, SECOND};
use super::window::{self, ADVANCE};
use super::{LAMINAR, THESIS};

/// A fault.
#[derive(Clone, Copy, Debug)]
pub struct Planted {
    /// Name, as `--plant` takes it.
    pub name: &'static str,
    /// What is wrong.
    pub about: &'static str,
    /// The pipeline with the fault.
    pub pipeline: Pipeline<'static>,
    /// A first sequence number from which the fault shows.
    pub first: u32,
}

/// An action with another instruction.
const fn running(
    action: Action<'static>,
    instruction: &'static Instruction<'static>,
) -> Action<'static> {
    let access = match action.access {
        Some(access) => Some(Access { instruction, ..access }),
        None => None,
    };
    Action { access, ..action }
}

/// [`LAMINAR`] with one table in place of that with its name.
macro_rules! with_table {
    ($table:expr) => {{
        const TABLE: Table<'static> = $table;
        const EGRESS: [Table<'static>; LAMINAR.egress.len()] = {
            let mut egress = [Table::NOTHING; LAMINAR.egress.len()];
            let mut index = 0;
            while index < egress.len() {
                egress[index] = LAMINAR.egress[index];
                index += 1;
            }
            egress[position(TABLE.name)] = TABLE;
            egress
        };
        Pipeline { egress: &EGRESS, ..LAMINAR }
    }};
}

/// Index of a table of [`LAMINAR`].
const fn position(name: &str) -> usize {
    let mut index = 0;
    loop {
        let other = LAMINAR.egress[index].name.as_bytes();
        let (name, mut at) = (name.as_bytes(), 0);
        while at < name.len() && at < other.len() && name[at] == other[at] {
            at += 1;
        }
        if at == name.len() && at == other.len() {
            return index;
        }
        index += 1;
    }
}

const JUMP: Instruction<'static> = Instruction {
    alus: &[Alu::set(SECOND).when(When::true_at(1).and(When::true_at(3).not()))],
    ..ADVANCE
};

const SIGNED: Instruction<'static> = Instruction {
    compares: &[
        Compare::against_memory(Kind::Signed, Input::First, Relation::LessOrEqual, Word::Low),
        Compare::against_memory(Kind::Signed, Input::Second, Relation::Greater, Word::Low),
        Compare::against_memory(Kind::Serial, Input::First, Relation::Equal, Word::Low),
        Compare::against_memory(Kind::Serial, Input::Second, Relation::Greater, Word::High),
    ],
    ..ADVANCE
};

const STRETCH: Instruction<'static> =
    Instruction { alus: &[Alu::set(SECOND).when(IS_FREE.or(When::true_at(2)))], ..EXTEND };

/// The faults.
pub const PLANTED: &[Planted] = &[
    Planted {
        name: "thesis",
        about: "the thesis' rule for segments beyond the window",
        pipeline: THESIS,
        first: 0,
    },
    Planted {
        name: "jump",
        about: "a segment out of order moves rx_next",
        pipeline: with_table!(Table {
            actions: &[running(window::WINDOW.actions[0], &JUMP), window::WINDOW.actions[1],],
            ..window::WINDOW
        }),
        first: 0,
    },
    Planted {
        name: "signed",
        about: "sequence numbers are compared as signed numbers",
        pipeline: with_table!(Table {
            actions: &[running(window::WINDOW.actions[0], &SIGNED), window::WINDOW.actions[1],],
            ..window::WINDOW
        }),
        first: 13,
    },
    Planted {
        name: "stretch",
        about: "a segment behind the interval extends it over a gap",
        pipeline: with_table!(Table {
            actions: &[
                window::TAIL.actions[0],
                running(window::TAIL.actions[1], &STRETCH),
                window::TAIL.actions[2],
            ],
            ..window::TAIL
        }),
        first: 0,
    },
    Planted {
        name: "stuck-head",
        about: "bytes in order do not bring the interval's start nearer",
        pipeline: with_table!(Table {
            actions: &[
                running(receive::HEAD.actions[0], &READ),
                receive::HEAD.actions[1],
                receive::HEAD.actions[2],
                receive::HEAD.actions[3],
            ],
            ..receive::HEAD
        }),
        first: 0,
    },
    Planted {
        name: "early-merge",
        about: "a pseudo segment merges an interval that does not start at rx_next",
        pipeline: with_table!(Table {
            gateway: Gateway { rows: &[], otherwise: Then::Run(0) },
            ..receive::MERGE
        }),
        first: 0,
    },
    Planted {
        name: "copied-twice",
        about: "bytes that a pseudo segment is about to tell the host of are copied again",
        pipeline: with_table!(Table {
            gateway: Gateway { rows: &[], otherwise: Then::Skip },
            ..window::START_COPY
        }),
        first: 0,
    },
    Planted {
        name: "silent",
        about: "a segment that is refused makes no pseudo segment",
        pipeline: with_table!(Table {
            actions: &[
                window::VERDICT.actions[0],
                Action { ops: &[REFUSE.ops[0]], ..REFUSE },
                window::VERDICT.actions[2],
                window::VERDICT.actions[3],
            ],
            ..window::VERDICT
        }),
        first: 0,
    },
];

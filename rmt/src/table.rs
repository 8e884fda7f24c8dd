//! Tables: what a pipeline stage matches, and what it does then.
//!
//! A table applies in three steps. Its gateway decides, by a few bits, whether it looks up, runs an action at once, or is skipped.
//! The lookup selects an action, with data of the matching entry. The action runs one instruction of a register and writes fields;
//! all its operations read the fields as they were before the action.

use crate::field::{Field, Phv, mask, word_mask};
use crate::hash::Hash;
use crate::register::{Instruction, Known, RegisterId, UNKNOWN, each};
use crate::state::Memory;

/// A table of a gress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table<'p> {
    /// Name, unique within the pipeline.
    pub name: &'p str,
    /// Pipeline stage, if the author has chosen one.
    pub stage: Option<u8>,
    /// The decision before the lookup.
    pub gateway: Gateway<'p>,
    /// The lookup.
    pub lookup: Lookup<'p>,
    /// The actions. Gateway and entries name them by index.
    pub actions: &'p [Action<'p>],
}

impl Table<'_> {
    /// A table without gateway, lookup and actions: what others are built on.
    pub const NOTHING: Table<'static> = Table {
        name: "nothing",
        stage: None,
        gateway: Gateway::NONE,
        lookup: Lookup::None,
        actions: &[],
    };
}

/// What follows a gateway's decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// The lookup.
    Lookup,
    /// An action, without a lookup.
    Run(usize),
    /// Nothing: the table is skipped.
    Skip,
}

/// A gateway: the first row whose bits all match decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gateway<'p> {
    /// The rows.
    pub rows: &'p [Row<'p>],
    /// The decision if no row matches.
    pub otherwise: Then,
}

impl Gateway<'_> {
    /// No gateway: every packet is looked up.
    pub const NONE: Gateway<'static> = Gateway { rows: &[], otherwise: Then::Lookup };
}

/// A row of a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row<'p> {
    /// Bits that must all match.
    pub all: &'p [Match],
    /// The decision if they do.
    pub then: Then,
}

/// Bits of a field that must have a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// The field.
    pub field: Field,
    /// Bits that count.
    pub mask: u32,
    /// Their value.
    pub value: u32,
}

impl Match {
    /// The whole field has this value.
    pub const fn equal(field: Field, value: u32) -> Match {
        Match { field, mask: mask(field.bits), value }
    }

    /// These bits of the field have this value.
    pub const fn bits(field: Field, mask: u32, value: u32) -> Match {
        Match { field, mask, value }
    }

    /// The field's highest bit is set: the number is negative.
    pub const fn negative(field: Field) -> Match {
        let top = 1 << (field.bits - 1);
        Match { field, mask: top, value: top }
    }

    /// The field's highest bit is not set.
    pub const fn not_negative(field: Field) -> Match {
        Match { field, mask: 1 << (field.bits - 1), value: 0 }
    }

    #[inline(always)]
    fn holds<const WORD: u8>(&self, phv: &Phv<WORD>) -> bool {
        phv.get_extended(self.field) & self.mask == self.value
    }
}

/// A lookup of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup<'p> {
    /// None: the first action runs.
    None,
    /// Entries in the constant, of which the first that matches decides; if none does, nothing runs.
    Ternary(&'p [TernaryEntry<'p>]),
    /// Entries of the control plane whose key equals the fields.
    Exact {
        /// Fields of the key.
        key: &'p [Field],
        /// Number of entries.
        entries: u32,
        /// Bits of action data in each entry.
        data_bits: u16,
        /// Index of the action if no entry matches.
        miss: Option<usize>,
    },
    /// One entry of the control plane for each value of a field, below `entries`.
    Direct {
        /// The field that is the entry's index.
        index: Field,
        /// Number of entries.
        entries: u32,
        /// Bits of action data in each entry.
        data_bits: u16,
    },
}

/// An entry of a ternary table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TernaryEntry<'p> {
    /// Bits that must all match.
    pub all: &'p [Match],
    /// Index of the action.
    pub action: usize,
}

/// An action of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action<'p> {
    /// Name, unique within the table.
    pub name: &'p str,
    /// The instruction of a register, if the action runs one.
    pub access: Option<Access<'p>>,
    /// Operations on fields, all at once.
    pub ops: &'p [Op<'p>],
}

impl Action<'_> {
    /// An action that does nothing: what others are built on.
    pub const NOTHING: Action<'static> = Action { name: "nothing", access: None, ops: &[] };
}

/// A run of one instruction of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access<'p> {
    /// The register.
    pub register: RegisterId,
    /// The instruction. A register has those that its actions run.
    pub instruction: &'p Instruction<'p>,
    /// Field that is the index of the register's entry. Beyond the last entry nothing is read or written, and all outputs are 0.
    pub index: Field,
    /// Fields that the instruction reads as its first and second input. All actions of a register name the same.
    pub inputs: [Option<Field>; 2],
}

/// Operand of an operation on fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source<'p> {
    /// A field.
    Field(Field),
    /// A constant.
    Constant(u32),
    /// A word of the matching entry's action data.
    Data(u8),
    /// An output word of the action's instruction.
    Output(u8),
    /// A hash of fields.
    Hash(Hash<'p>),
}

impl Source<'_> {
    #[inline(always)]
    fn read<const WORD: u8>(&self, phv: &Phv<WORD>, data: &[u32], outputs: [u32; 4]) -> u32 {
        match self {
            Source::Field(field) => phv.get(*field),
            Source::Constant(constant) => *constant,
            Source::Data(word) => data.get(usize::from(*word)).copied().unwrap_or(0),
            Source::Output(word) => outputs[usize::from(*word) & 3],
            Source::Hash(hash) => hash.of(phv),
        }
    }
}

/// Function of an operation on fields, of operands `a` and `b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// a.
    Set,
    /// a + b, modulo the field.
    Add,
    /// a - b, modulo the field.
    Subtract,
    /// a - b, at least 0.
    SubtractSaturating,
    /// The smaller one, unsigned.
    Minimum,
    /// The larger one, unsigned.
    Maximum,
    /// a and b, bit by bit.
    And,
    /// a or b, bit by bit.
    Or,
    /// Exclusive or, bit by bit.
    Xor,
    /// a, shifted left by this many bits.
    ShiftLeft(u8),
    /// a, shifted right by this many bits; zeros enter from the left.
    ShiftRight(u8),
}

/// An operation on fields: one instruction of the stage's VLIW memory. Operands are cut to the width of the field that it writes,
/// before the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op<'p> {
    /// The field that it writes.
    pub to: Field,
    /// The function.
    pub function: Function,
    /// First operand.
    pub a: Source<'p>,
    /// Second operand; functions of one operand ignore it.
    pub b: Source<'p>,
}

impl<'p> Op<'p> {
    /// Writes a field.
    pub const fn set(to: Field, a: Source<'p>) -> Op<'p> {
        Op { to, function: Function::Set, a, b: Source::Constant(0) }
    }

    /// Writes a function of two operands.
    pub const fn new(to: Field, function: Function, a: Source<'p>, b: Source<'p>) -> Op<'p> {
        Op { to, function, a, b }
    }

    #[inline(always)]
    fn value<const WORD: u8>(&self, phv: &Phv<WORD>, data: &[u32], outputs: [u32; 4]) -> u32 {
        let bits = word_mask::<WORD>(self.to.bits);
        let a = self.a.read(phv, data, outputs) & bits;
        match self.function {
            Function::Set => a,
            Function::ShiftLeft(by) => a.checked_shl(by.into()).unwrap_or(0),
            Function::ShiftRight(by) => a.checked_shr(by.into()).unwrap_or(0),
            function => {
                let b = self.b.read(phv, data, outputs) & bits;
                match function {
                    Function::Add => a.wrapping_add(b),
                    Function::Subtract => a.wrapping_sub(b),
                    Function::SubtractSaturating => a.saturating_sub(b),
                    Function::Minimum => a.min(b),
                    Function::Maximum => a.max(b),
                    Function::And => a & b,
                    Function::Or => a | b,
                    _ => a ^ b,
                }
            }
        }
    }
}

/// An entry that the control plane writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Index of the action.
    pub action: usize,
    /// Action data, by word.
    pub data: [u32; DATA_WORDS_MAX],
}

/// Limit of the words of action data of an entry.
pub const DATA_WORDS_MAX: usize = 8;
/// Limit of the fields of an exact key.
pub const KEY_FIELDS_MAX: usize = 10;

/// A key of an exact table: the values of its fields.
pub type Key = [u32; KEY_FIELDS_MAX];

/// What a table needs of the state around it.
pub(crate) trait Surroundings {
    /// The entry of an exact key.
    fn exact(&self, table: usize, key: &Key) -> Option<&Entry>;
    /// The entry at an index.
    fn direct(&self, table: usize, index: u32) -> Option<&Entry>;
    /// Runs an instruction.
    fn access<K: Known>(&mut self, access: &Access<'_>, index: u32, inputs: [u32; 2]) -> [u32; 4];
}

/// A table, and how much of it the compiler knows.
pub(crate) trait Shown<'p>: Copy {
    /// Number of actions, or [`UNKNOWN`].
    const ACTIONS: usize;
    /// Number of rows of the gateway, or [`UNKNOWN`].
    const ROWS: usize;
    /// Number of ternary entries, or [`UNKNOWN`].
    const TERNARY: usize;
    /// What is known of the action at an index.
    type Action<const INDEX: usize>: Known;

    /// The table.
    fn table(self) -> &'p Table<'p>;
}

/// A table of which the compiler knows nothing.
#[derive(Clone, Copy)]
pub(crate) struct Opaque<'p>(pub(crate) &'p Table<'p>);

/// An action of which the compiler knows nothing.
pub(crate) struct OpaqueAction;

impl<'p> Shown<'p> for Opaque<'p> {
    const ACTIONS: usize = UNKNOWN;
    const ROWS: usize = UNKNOWN;
    const TERNARY: usize = UNKNOWN;
    type Action<const INDEX: usize> = OpaqueAction;

    fn table(self) -> &'p Table<'p> {
        self.0
    }
}

impl Known for OpaqueAction {
    const MEMORY: Option<Memory> = None;
    const OPS: usize = UNKNOWN;
    const COMPARES: usize = UNKNOWN;
    const ALUS: usize = UNKNOWN;
    const OUTPUTS: usize = UNKNOWN;
}

/// Applies a table to a packet. Returns the index of the action that ran.
#[inline(always)]
pub(crate) fn apply<'p, T: Shown<'p>, const WORD: u8>(
    shown: T,
    number: usize,
    phv: &mut Phv<WORD>,
    surroundings: &mut impl Surroundings,
) -> Option<usize> {
    let table = shown.table();
    let mut data = [0; DATA_WORDS_MAX];
    let chosen = match decide(shown, phv) {
        Then::Skip => None,
        Then::Run(action) => Some(action),
        Then::Lookup => match table.lookup {
            Lookup::None => Some(0),
            Lookup::Ternary(entries) => ternary::<T, WORD>(entries, phv),
            Lookup::Exact { key: fields, miss, .. } => {
                let mut key = Key::default();
                for (value, field) in key.iter_mut().zip(fields) {
                    *value = phv.get(*field);
                }
                match surroundings.exact(number, &key) {
                    Some(entry) => {
                        data = entry.data;
                        Some(entry.action)
                    }
                    None => miss,
                }
            }
            Lookup::Direct { index, .. } => {
                surroundings.direct(number, phv.get(index)).map(|entry| {
                    data = entry.data;
                    entry.action
                })
            }
        },
    };
    macro_rules! run_chosen {
        ($($index:literal)*) => {
            $(if const { T::ACTIONS != UNKNOWN && T::ACTIONS > $index } {
                if chosen == Some($index) {
                    run::<T::Action<$index>, WORD>(&table.actions[$index], &data, phv, surroundings);
                }
            })*
        };
    }
    if const { T::ACTIONS == UNKNOWN } {
        if let Some(action) = chosen.and_then(|chosen| table.actions.get(chosen)) {
            run::<OpaqueAction, WORD>(action, &data, phv, surroundings);
        }
    } else {
        const {
            assert!(
                T::ACTIONS == UNKNOWN || T::ACTIONS <= 16,
                "a specialised table has at most 16 actions"
            )
        };
        run_chosen!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
    }
    chosen.filter(|chosen| *chosen < table.actions.len())
}

#[inline(always)]
fn decide<'p, T: Shown<'p>, const WORD: u8>(shown: T, phv: &Phv<WORD>) -> Then {
    let gateway = &shown.table().gateway;
    each!(T::ROWS; (_at, row) in gateway.rows, {
        if row.all.iter().all(|bits| bits.holds(phv)) {
            return row.then;
        }
    });
    gateway.otherwise
}

#[inline(always)]
fn ternary<'p, T: Shown<'p>, const WORD: u8>(
    entries: &[TernaryEntry<'_>],
    phv: &Phv<WORD>,
) -> Option<usize> {
    each!(T::TERNARY; (_at, entry) in entries, {
        if entry.all.iter().all(|bits| bits.holds(phv)) {
            return Some(entry.action);
        }
    });
    None
}

#[inline(always)]
fn run<K: Known, const WORD: u8>(
    action: &Action<'_>,
    data: &[u32],
    phv: &mut Phv<WORD>,
    surroundings: &mut impl Surroundings,
) {
    let outputs = match &action.access {
        None => [0; 4],
        Some(access) => {
            let read = |field: Option<Field>| field.map_or(0, |field| phv.get(field));
            let inputs = [read(access.inputs[0]), read(access.inputs[1])];
            surroundings.access::<K>(access, phv.get(access.index), inputs)
        }
    };
    let before = *phv;
    each!(K::OPS; (_at, op) in action.ops, {
        phv.set(op.to, op.value(&before, data, outputs));
    });
}

//! Passes: one packet, one gress, every table once in order.
//!
//! [`Interpreter`] and [`Specialised`] share [`apply`](crate::table), so both give a pipeline the same meaning. What differs is what the
//! compiler knows: for a [`Constant`], everything but the packet and the state.

use core::marker::PhantomData;

use crate::branch::Branch;
use crate::field::{Field, Phv};
use crate::pipeline::{Gress, Pipeline};
use crate::register::{Instruction, Known};
use crate::state::{Fixed, Memory, Order, State, order, words};
use crate::table::{Action, Lookup, Opaque, Shown, Table, apply};

/// What the chip does with a packet after a gress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Verdict {
    /// The packet is dropped.
    pub is_dropped: bool,
    /// Number of the mirror session that copies it; 0 for none.
    pub mirror: u32,
    /// Number of the digest for the control plane; 0 for none.
    pub digest: u32,
}

impl Verdict {
    #[inline(always)]
    fn of<const WORD: u8>(pipeline: &Pipeline<'_>, phv: &Phv<WORD>) -> Verdict {
        let intrinsic = &pipeline.intrinsic;
        Verdict {
            is_dropped: intrinsic.drop.is_some_and(|field| phv.get(field) != 0),
            mirror: intrinsic.mirror.map_or(0, |field| phv.get(field)),
            digest: intrinsic.digest.map_or(0, |field| phv.get(field)),
        }
    }
}

impl Pipeline<'_> {
    /// The packet that mirror session `number`, from 1, makes of a packet after its egress; `None` if there is no such session.
    #[inline]
    pub fn mirrored<const WORD: u8>(&self, number: u32, phv: &Phv<WORD>) -> Option<Phv<WORD>> {
        let session = self.mirrors.get((number as usize).checked_sub(1)?)?;
        let mut copy = Phv::default();
        for (from, to) in session.carries {
            copy.set(*to, phv.get(*from));
        }
        if let Some(source) = self.intrinsic.source {
            copy.set(source, number);
        }
        Some(copy)
    }
}

/// A loaded pipeline that is interpreted: any pipeline, known at run time only.
#[derive(Clone, Debug)]
pub struct Interpreter<'p, const WORD: u8 = 32> {
    pipeline: &'p Pipeline<'p>,
    /// Registers and entries.
    pub state: State<WORD>,
}

impl<'p, const WORD: u8> Interpreter<'p, WORD> {
    /// Loads a pipeline.
    pub fn new(pipeline: &'p Pipeline<'p>) -> Interpreter<'p, WORD> {
        Interpreter { pipeline, state: State::new(pipeline) }
    }

    /// Passes a packet through a gress.
    pub fn pass(&mut self, gress: Gress, phv: &mut Phv<WORD>) -> Verdict {
        self.pass_seen(gress, phv, |_, _, _| ())
    }

    /// Passes a packet through a gress, and shows each table by its index, with the action that ran and the fields after it.
    pub fn pass_seen(
        &mut self,
        gress: Gress,
        phv: &mut Phv<WORD>,
        see: impl FnMut(usize, Option<usize>, &Phv<WORD>),
    ) -> Verdict {
        interpret(self.pipeline, &mut self.state, gress, phv, see)
    }
}

fn interpret<const WORD: u8>(
    pipeline: &Pipeline<'_>,
    state: &mut State<WORD>,
    gress: Gress,
    phv: &mut Phv<WORD>,
    mut see: impl FnMut(usize, Option<usize>, &Phv<WORD>),
) -> Verdict {
    let first = state.first_table(gress);
    for (index, table) in pipeline.tables(gress).iter().enumerate() {
        let action = apply(Opaque(table), first + index, phv, state);
        see(index, action, phv);
    }
    Verdict::of(pipeline, phv)
}

/// A pipeline that is known at compile time.
pub trait Constant {
    /// The pipeline.
    const PIPELINE: Pipeline<'static>;
}

/// A loaded pipeline that the compiler has specialised: the constant's tables and instructions are compiled like code.
#[derive(Debug)]
pub struct Specialised<C, const WORD: u8 = 32> {
    /// Registers and entries.
    pub state: State<WORD>,
    constant: PhantomData<C>,
}

impl<C: Constant, const WORD: u8> Default for Specialised<C, WORD> {
    fn default() -> Specialised<C, WORD> {
        Specialised { state: State::new(&C::PIPELINE), constant: PhantomData }
    }
}

impl<C: Constant, const WORD: u8> Clone for Specialised<C, WORD> {
    fn clone(&self) -> Specialised<C, WORD> {
        Specialised { state: self.state.clone(), constant: PhantomData }
    }
}

/// Table `INDEX` of a constant's egress, or of its ingress; beyond the last one, an empty table, which is never applied.
struct TableOf<C, const EGRESS: bool, const INDEX: usize>(PhantomData<C>);

impl<C, const EGRESS: bool, const INDEX: usize> Clone for TableOf<C, EGRESS, INDEX> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C, const EGRESS: bool, const INDEX: usize> Copy for TableOf<C, EGRESS, INDEX> {}

impl<C: Constant, const EGRESS: bool, const INDEX: usize> TableOf<C, EGRESS, INDEX> {
    const TABLES: &'static [Table<'static>] =
        if EGRESS { C::PIPELINE.egress } else { C::PIPELINE.ingress };
    const ORDER: Order = order(&C::PIPELINE);
    const TABLE: &'static Table<'static> =
        if INDEX < Self::TABLES.len() { &Self::TABLES[INDEX] } else { &Table::NOTHING };
}

impl<C: Constant, const EGRESS: bool, const INDEX: usize> Shown<'static>
    for TableOf<C, EGRESS, INDEX>
{
    const ACTIONS: usize = Self::TABLE.actions.len();
    const ROWS: usize = Self::TABLE.gateway.rows.len();
    const TERNARY: usize = match Self::TABLE.lookup {
        Lookup::Ternary(entries) => entries.len(),
        _ => 0,
    };
    type Action<const ACTION: usize> = ActionOf<C, EGRESS, INDEX, ACTION>;

    #[inline(always)]
    fn table(self) -> &'static Table<'static> {
        Self::TABLE
    }
}

/// Action `ACTION` of such a table; beyond the last one, an empty action, which never runs.
struct ActionOf<C, const EGRESS: bool, const INDEX: usize, const ACTION: usize>(PhantomData<C>);

impl<C: Constant, const EGRESS: bool, const INDEX: usize, const ACTION: usize>
    ActionOf<C, EGRESS, INDEX, ACTION>
{
    const ACTIONS: &'static [Action<'static>] = TableOf::<C, EGRESS, INDEX>::TABLE.actions;
    const ACTION: &'static Action<'static> =
        if ACTION < Self::ACTIONS.len() { &Self::ACTIONS[ACTION] } else { &Action::NOTHING };
    const INSTRUCTION: &'static Instruction<'static> = match &Self::ACTION.access {
        Some(access) => access.instruction,
        None => &Instruction::NOTHING,
    };
}

impl<C: Constant, const EGRESS: bool, const INDEX: usize, const ACTION: usize> Known
    for ActionOf<C, EGRESS, INDEX, ACTION>
{
    const MEMORY: Option<Memory> = match &Self::ACTION.access {
        Some(access) => Some(Memory::of(
            C::PIPELINE.registers,
            &TableOf::<C, EGRESS, 0>::ORDER,
            access.register,
        )),
        None => None,
    };
    const OPS: usize = Self::ACTION.ops.len();
    const COMPARES: usize = Self::INSTRUCTION.compares.len();
    const ALUS: usize = Self::INSTRUCTION.alus.len();
    const OUTPUTS: usize = Self::INSTRUCTION.outputs.len();
}

/// A branch of a constant's gress.
struct BranchOf<C, const EGRESS: bool, const MIDDLE: bool>(PhantomData<C>);

impl<C: Constant, const EGRESS: bool, const MIDDLE: bool> BranchOf<C, EGRESS, MIDDLE> {
    const BRANCH: Option<Branch> = Branch::of(
        if EGRESS { C::PIPELINE.egress } else { C::PIPELINE.ingress },
        C::PIPELINE.fields,
        MIDDLE,
    );

    /// The field with one of the values, by index.
    const fn case(index: usize) -> Option<(Field, u32)> {
        match &Self::BRANCH {
            Some(Branch { field, values, .. }) => match values[index] {
                Some(value) => Some((*field, value)),
                None => None,
            },
            None => None,
        }
    }
}

/// Runs `body` with the value of a branch's field known to the compiler, if it is one of those that tables compare.
macro_rules! branch {
    ($branch:ty, $phv:ident, $body:expr) => {
        branch!(@ $branch, $phv, $body, 0 1 2 3 4 5 6 7)
    };
    (@ $branch:ty, $phv:ident, $body:expr, $($index:literal)*) => {
        $(if let Some((field, value)) = const { <$branch>::case($index) }
            && $phv.get(field) == value
        {
            $phv.set(field, value);
            $body
        } else)* {
            $body
        }
    };
}

/// Applies the tables of a gress, each as a constant of its own: those before the branch in its middle, or those behind.
macro_rules! apply_each {
    ($egress:ident, $middle:literal, $phv:ident, $fixed:ident, $($index:literal)*) => {
        $(
            if const { Self::applies::<$egress, $middle>($index) } {
                let number = const { Self::first_table::<$egress>() + $index };
                apply(TableOf::<C, $egress, $index>(PhantomData), number, $phv, $fixed);
            }
        )*
    };
    ($egress:ident, $middle:literal, $phv:ident, $fixed:ident) => {
        apply_each!($egress, $middle, $phv, $fixed,
            0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23
            24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47)
    };
}

/// Index fields of a gress, with the registers' memory, one for each group of registers.
struct IndicesOf<C, const EGRESS: bool>(PhantomData<C>);

impl<C: Constant, const EGRESS: bool> IndicesOf<C, EGRESS> {
    /// The first few: those of others are checked where they are used.
    const INDICES: [Option<(Field, Memory)>; 4] = {
        let mut indices = [None; 4];
        let mut count = 0;
        let tables = TableOf::<C, EGRESS, 0>::TABLES;
        let mut table = 0;
        while table < tables.len() {
            let mut action = 0;
            while action < tables[table].actions.len() {
                if let Some(access) = &tables[table].actions[action].access {
                    let memory = Memory::of(
                        C::PIPELINE.registers,
                        &TableOf::<C, EGRESS, 0>::ORDER,
                        access.register,
                    );
                    let mut other = 0;
                    while other < count && !Self::is_same(&indices[other], access.index, &memory) {
                        other += 1;
                    }
                    if other == count && count < indices.len() {
                        indices[count] = Some((access.index, memory));
                        count += 1;
                    }
                }
                action += 1;
            }
            table += 1;
        }
        indices
    };

    const fn is_same(one: &Option<(Field, Memory)>, index: Field, memory: &Memory) -> bool {
        match one {
            Some((field, other)) => field.index == index.index && other.is_beside(memory),
            None => false,
        }
    }
}

impl<C: Constant, const WORD: u8> Specialised<C, WORD> {
    /// Whether all registers have the entries that a packet's fields name. The compiler then knows it for every table.
    #[inline(always)]
    fn has_entries<const EGRESS: bool>(phv: &Phv<WORD>) -> bool {
        macro_rules! has {
            ($($index:literal)*) => {
                $(match const { IndicesOf::<C, EGRESS>::INDICES[$index] } {
                    Some((field, memory)) => memory.has(phv.get(field)),
                    None => true,
                })&&*
            };
        }
        has!(0 1 2 3)
    }

    /// Passes a packet as the interpreter does: one without entries in the registers. The fields come and go by value, so that the
    /// compiler can keep the caller's in machine registers.
    #[cold]
    #[inline(never)]
    fn interpret(&mut self, gress: Gress, mut phv: Phv<WORD>) -> (Verdict, Phv<WORD>) {
        let pipeline = const { &C::PIPELINE };
        let verdict = interpret(pipeline, &mut self.state, gress, &mut phv, |_, _, _| ());
        (verdict, phv)
    }

    const fn first_table<const EGRESS: bool>() -> usize {
        if EGRESS { C::PIPELINE.ingress.len() } else { 0 }
    }

    /// Whether a table is applied before or behind the branch in the middle.
    const fn applies<const EGRESS: bool, const MIDDLE: bool>(index: usize) -> bool {
        let count = TableOf::<C, EGRESS, 0>::TABLES.len();
        assert!(count <= 48, "a specialised gress has at most 48 tables");
        let middle = match &BranchOf::<C, EGRESS, true>::BRANCH {
            Some(branch) => branch.before,
            None => count,
        };
        if MIDDLE { index >= middle && index < count } else { index < middle }
    }

    #[inline(always)]
    fn pass_gress<const EGRESS: bool>(&mut self, phv: &mut Phv<WORD>) -> Verdict {
        let words = const { words(C::PIPELINE.registers) };
        let fixed = &mut match Fixed::new(&mut self.state, words) {
            Some(fixed) if Self::has_entries::<EGRESS>(phv) => fixed,
            _ => {
                let gress = if EGRESS { Gress::Egress } else { Gress::Ingress };
                let (verdict, after) = self.interpret(gress, *phv);
                *phv = after;
                return verdict;
            }
        };
        branch!(BranchOf<C, EGRESS, false>, phv, Self::before::<EGRESS>(fixed, phv));
        Verdict::of(const { &C::PIPELINE }, phv)
    }

    /// The tables before the branch in the middle, and those behind.
    #[inline(always)]
    fn before<const EGRESS: bool>(fixed: &mut Fixed<'_, WORD>, phv: &mut Phv<WORD>) {
        apply_each!(EGRESS, false, phv, fixed);
        branch!(BranchOf<C, EGRESS, true>, phv, Self::behind::<EGRESS>(fixed, phv));
    }

    /// The tables behind the branch in the middle.
    #[inline(always)]
    fn behind<const EGRESS: bool>(fixed: &mut Fixed<'_, WORD>, phv: &mut Phv<WORD>) {
        apply_each!(EGRESS, true, phv, fixed);
    }

    /// Passes a packet through a gress.
    #[inline]
    pub fn pass(&mut self, gress: Gress, phv: &mut Phv<WORD>) -> Verdict {
        match gress {
            Gress::Ingress => self.pass_gress::<false>(phv),
            Gress::Egress => self.pass_gress::<true>(phv),
        }
    }
}

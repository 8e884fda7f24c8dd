//! Passes: one packet, one gress, every table once in order.
//!
//! [`Interpreter`] and [`Specialised`] share [`apply`](crate::table), so they mean the same by a pipeline. What differs is what the
//! compiler knows: for a [`Constant`], everything but the packet and the state.

use core::marker::PhantomData;

use crate::field::Phv;
use crate::pipeline::{Gress, Pipeline};
use crate::register::{Instruction, Known};
use crate::state::{Fixed, State};
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
        mut see: impl FnMut(usize, Option<usize>, &Phv<WORD>),
    ) -> Verdict {
        let first = self.state.first_table(gress);
        for (index, table) in self.pipeline.tables(gress).iter().enumerate() {
            let action = apply(Opaque(table), first + index, phv, &mut self.state);
            see(index, action, phv);
        }
        Verdict::of(self.pipeline, phv)
    }
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
    const OPS: usize = Self::ACTION.ops.len();
    const COMPARES: usize = Self::INSTRUCTION.compares.len();
    const ALUS: usize = Self::INSTRUCTION.alus.len();
    const OUTPUTS: usize = Self::INSTRUCTION.outputs.len();
}

/// Applies the tables of a gress, each as a constant of its own.
macro_rules! apply_each {
    ($egress:literal, $count:expr, $first:expr, $fixed:ident, $phv:ident, $($index:literal)*) => {
        const { assert!($count <= 48, "a specialised gress has at most 48 tables") };
        $(
            if const { $count > $index } {
                apply(TableOf::<C, $egress, $index>(PhantomData), $first + $index, $phv, &mut $fixed);
            }
        )*
    };
    ($egress:literal, $count:expr, $first:expr, $fixed:ident, $phv:ident) => {
        apply_each!($egress, $count, $first, $fixed, $phv,
            0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23
            24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47)
    };
}

impl<C: Constant, const WORD: u8> Specialised<C, WORD> {
    /// Passes a packet through a gress.
    #[inline]
    pub fn pass(&mut self, gress: Gress, phv: &mut Phv<WORD>) -> Verdict {
        let mut fixed =
            Fixed { state: &mut self.state, registers: const { C::PIPELINE.registers } };
        match gress {
            Gress::Ingress => {
                apply_each!(false, C::PIPELINE.ingress.len(), 0, fixed, phv);
            }
            Gress::Egress => {
                let first = const { C::PIPELINE.ingress.len() };
                apply_each!(true, C::PIPELINE.egress.len(), first, fixed, phv);
            }
        }
        Verdict::of(const { &C::PIPELINE }, phv)
    }
}

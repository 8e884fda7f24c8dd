//! A pipeline: everything that a chip is loaded with, as one constant.

use crate::field::{Declared, Field};
use crate::parser::ParserState;
use crate::register::Register;
use crate::table::Table;

/// A pipeline program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pipeline<'p> {
    /// Name, as messages print it.
    pub name: &'p str,
    /// The fields.
    pub fields: &'p [Declared<'p>],
    /// The registers.
    pub registers: &'p [Register<'p>],
    /// States of the parser; the first one starts.
    pub parser: &'p [ParserState<'p>],
    /// Tables before the traffic manager, in order.
    pub ingress: &'p [Table<'p>],
    /// Tables after the traffic manager, in order.
    pub egress: &'p [Table<'p>],
    /// Mirror sessions, numbered from 1.
    pub mirrors: &'p [Mirror<'p>],
    /// Fields that the chip itself reads and writes.
    pub intrinsic: Intrinsic,
    /// Whether no table of the ingress may have a register, so that a packet that the traffic manager drops has changed nothing.
    pub is_ingress_stateless: bool,
}

impl Pipeline<'_> {
    /// A pipeline that lets packets through unchanged: what others are built on.
    pub const NOTHING: Pipeline<'static> = Pipeline {
        name: "nothing",
        fields: &[],
        registers: &[],
        parser: &[],
        ingress: &[],
        egress: &[],
        mirrors: &[],
        intrinsic: Intrinsic { drop: None, mirror: None, digest: None, source: None },
        is_ingress_stateless: false,
    };

    /// The tables of a gress.
    pub const fn tables(&self, gress: Gress) -> &[Table<'_>] {
        match gress {
            Gress::Ingress => self.ingress,
            Gress::Egress => self.egress,
        }
    }
}

/// Fields that the chip itself reads after a gress, or writes before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intrinsic {
    /// Not 0 after a gress: the packet is dropped.
    pub drop: Option<Field>,
    /// Not 0 after the egress: the mirror session that copies the packet's fields.
    pub mirror: Option<Field>,
    /// Not 0 after a gress: the digest that the control plane gets.
    pub digest: Option<Field>,
    /// The mirror session that a packet comes from; 0 for a packet from outside.
    pub source: Option<Field>,
}

/// A mirror session: a copy of some fields that enters the egress as a packet without payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mirror<'p> {
    /// Name, as messages print it.
    pub name: &'p str,
    /// Fields that the copy carries: read from the first, written to the second.
    pub carries: &'p [(Field, Field)],
}

/// One of the two runs through the pipeline stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Gress {
    /// Before the traffic manager.
    Ingress,
    /// After it.
    Egress,
}

impl Gress {
    /// The gress's name.
    pub const fn name(self) -> &'static str {
        match self {
            Gress::Ingress => "ingress",
            Gress::Egress => "egress",
        }
    }
}

//! Reading: from a text to a pipeline in an arena.

use std::cell::Cell;

use serde::de::IgnoredAny;
use serde_path_to_error::Segment;
use wave_rmt::field::{Declared, FIELDS_MAX};
use wave_rmt::parser::{Case, Extract, Next, ParserState, Select};
use wave_rmt::{
    Access, Action, Alu, Compare, Field, Function, Gateway, Hash, Instruction, Intrinsic, Lookup,
    Match, Mirror, Op, Operand, Operation, Origin, Output, Pipeline, Register, Row, Source, Table,
    TernaryEntry, Then, When,
};

use crate::Arena;
use crate::error::{ReadError, printable};
use crate::format::{self, AluValue, OpValue, Term};
use crate::names::{At, declare, find};

/// Most bytes of a text.
pub const TEXT_BYTES_MAX: usize = 1 << 20;
/// Most entries of all registers and tables of a file together: 200 MiB of an interpreter's memory.
pub const ENTRIES_MAX: u32 = 1 << 22;
/// Most tables of a gress: those of all stages of the largest chip.
const TABLES_MAX: usize = 320;
/// Most entries of a ternary table.
const TERNARY_MAX: usize = 4096;
/// Most elements of a list of a gateway, of an instruction, or of the instructions of a register.
const SHORT_MAX: usize = 16;
/// Most elements of all other lists: no pipeline has more fields.
const LONG_MAX: usize = FIELDS_MAX;

/// Reads a pipeline from JSON.
///
/// # Errors
/// The text is no pipeline. The message says where, and what to do.
pub fn read<'a>(text: &str, arena: &'a Arena) -> Result<Pipeline<'a>, ReadError> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(ReadError::TooLong);
    }
    serde_json::from_str::<IgnoredAny>(text)
        .map_err(|error| ReadError::NotJson(printable(error)))?;
    let file = serde_path_to_error::deserialize(&mut serde_json::Deserializer::from_str(text))
        .map_err(|error| refusal(&error))?;
    let mut reader = Reader {
        arena,
        file: &file,
        instructions: vec![],
        is_run: vec![],
        entries_left: Cell::new(ENTRIES_MAX),
    };
    reader.pipeline()
}

/// What serde_json says about JSON that has another form. Words for an enumeration are ours: its own are Rust's.
fn refusal(error: &serde_path_to_error::Error<serde_json::Error>) -> ReadError {
    let (mut path, mut word) = (String::new(), None);
    for segment in error.path() {
        // The place of a word is the path without it.
        word = None;
        match segment {
            Segment::Seq { index } => path += &format!("[{index}]"),
            Segment::Map { key } => step(&mut path, key),
            Segment::Enum { variant } => {
                word = Some((variant, path.clone()));
                step(&mut path, variant);
            }
            Segment::Unknown => (),
        }
    }
    let what = error.inner().to_string();
    let line = &what[what.rfind(" at line ").unwrap_or(what.len())..];
    match word {
        Some((word, path)) if what.starts_with("invalid type: unit variant") => ReadError::new(
            path,
            format_args!("{word:?} needs a value; write {{{word:?}: ...}}{line}"),
        ),
        Some((word, path)) if what.contains(", expected unit") => {
            ReadError::new(path, format_args!("{word:?} has no value; write {word:?}{line}"))
        }
        // A number, a list, or an object with two keys.
        _ if what.starts_with("expected value") => ReadError::new(
            path,
            format_args!("expected a word in quotes, or an object with one key{line}"),
        ),
        _ => ReadError::new(path, what),
    }
}

fn step(path: &mut String, key: &str) {
    *path += if path.is_empty() { "" } else { "." };
    *path += key;
}

/// A file on its way into an arena.
struct Reader<'a, 'f> {
    arena: &'a Arena,
    file: &'f format::Pipeline,
    /// Instructions, by register.
    instructions: Vec<&'a [Instruction<'a>]>,
    /// Whether an action runs them.
    is_run: Vec<Vec<Cell<bool>>>,
    entries_left: Cell<u32>,
}

impl<'a> Reader<'a, '_> {
    fn pipeline(&mut self) -> Result<Pipeline<'a>, ReadError> {
        let (root, file) = (&At::ROOT, self.file);
        root.key("name").name(&file.name)?;
        declare(root.key("fields"), &file.fields, LONG_MAX)?;
        declare(root.key("registers"), &file.registers, LONG_MAX)?;
        declare(root.key("parser"), &file.parser, LONG_MAX)?;
        for (id, register) in file.registers.iter().enumerate() {
            let instructions = self.instructions(root.key("registers").index(id), register)?;
            self.instructions.push(instructions);
            self.is_run.push(vec![Cell::new(false); instructions.len()]);
        }
        let intrinsic = &file.intrinsic;
        let field = |key, name: &Option<String>| {
            self.optional_field(root.key("intrinsic").key(key), name.as_ref())
        };
        let pipeline = Pipeline {
            name: self.arena.alloc_str(&file.name),
            fields: self.list(root.key("fields"), &file.fields, LONG_MAX, |_, field| {
                Ok(Declared { name: self.arena.alloc_str(&field.name), bits: field.bits.byte() })
            })?,
            registers: self.list(root.key("registers"), &file.registers, LONG_MAX, |at, of| {
                Ok(Register {
                    name: self.arena.alloc_str(&of.name),
                    bits: of.bits.byte(),
                    is_pair: of.is_pair,
                    entries: self.entries(at.key("entries"), of.entries)?,
                })
            })?,
            parser: self.list(root.key("parser"), &file.parser, LONG_MAX, |at, state| {
                self.parser_state(at, state)
            })?,
            ingress: self.tables(root.key("ingress"), &file.ingress)?,
            egress: self.tables(root.key("egress"), &file.egress)?,
            mirrors: self.list(root.key("mirrors"), &file.mirrors, LONG_MAX, |at, mirror| {
                self.mirror(at, mirror)
            })?,
            intrinsic: Intrinsic {
                drop: field("drop", &intrinsic.drop)?,
                mirror: field("mirror", &intrinsic.mirror)?,
                digest: field("digest", &intrinsic.digest)?,
                source: field("source", &intrinsic.source)?,
            },
            is_ingress_stateless: file.is_ingress_stateless,
        };
        self.all_run()?;
        Ok(pipeline)
    }

    /// A list of limited length, in the arena.
    fn list<T, U: Copy>(
        &self,
        at: At<'_>,
        items: &[T],
        most: usize,
        read: impl Fn(At<'_>, &T) -> Result<U, ReadError>,
    ) -> Result<&'a [U], ReadError> {
        at.limit(items.len(), most)?;
        let read = items.iter().enumerate().map(|(index, item)| read(at.index(index), item));
        let read: Vec<U> = read.collect::<Result<_, _>>()?;
        Ok(self.arena.alloc_slice_copy(&read))
    }

    fn field(&self, at: At<'_>, name: &str) -> Result<Field, ReadError> {
        let index = find(at, &self.file.fields, name)?;
        Ok(Field { index: index as u8, bits: self.file.fields[index].bits.byte() })
    }

    fn optional_field(
        &self,
        at: At<'_>,
        name: Option<&String>,
    ) -> Result<Option<Field>, ReadError> {
        name.map(|name| self.field(at, name)).transpose()
    }

    fn field_list(&self, at: At<'_>, names: &[String]) -> Result<&'a [Field], ReadError> {
        self.list(at, names, LONG_MAX, |at, name| self.field(at, name))
    }

    fn entries(&self, at: At<'_>, entries: format::Unsigned) -> Result<u32, ReadError> {
        let entries = entries.unsigned();
        match self.entries_left.get().checked_sub(entries) {
            Some(left) => self.entries_left.set(left),
            None => {
                return at.refuse(format_args!(
                    "{entries} entries; take fewer: all registers and tables together have at most {ENTRIES_MAX}"
                ));
            }
        }
        Ok(entries)
    }

    fn instructions(
        &self,
        at: At<'_>,
        register: &format::Register,
    ) -> Result<&'a [Instruction<'a>], ReadError> {
        let at = at.key("instructions");
        declare(at, &register.instructions, SHORT_MAX)?;
        self.list(at, &register.instructions, SHORT_MAX, |at, of| self.instruction(at, of))
    }

    fn instruction(
        &self,
        at: At<'_>,
        of: &format::Instruction,
    ) -> Result<Instruction<'a>, ReadError> {
        let comparators = of.compares.len();
        Ok(Instruction {
            name: self.arena.alloc_str(&of.name),
            compares: self.list(at.key("compares"), &of.compares, SHORT_MAX, |_, compare| {
                Ok(self::compare(compare))
            })?,
            alus: self.list(at.key("alus"), &of.alus, SHORT_MAX, |at, alu| {
                let (operation, a, b) = alu_value(&alu.value);
                let when = when(at.key("when"), alu.when.as_deref(), comparators)?;
                Ok(Alu { when, word: alu.word.into(), operation, a, b })
            })?,
            outputs: self.list(at.key("outputs"), &of.outputs, SHORT_MAX, |at, output| {
                Ok(Output {
                    when: when(at.key("when"), output.when.as_deref(), comparators)?,
                    word: output.word.byte(),
                    origin: match output.origin {
                        format::Origin::Memory(word) => Origin::Memory(word.into()),
                        format::Origin::Input(input) => Origin::Input(input.into()),
                        format::Origin::Alu(word) => Origin::Alu(word.into()),
                        format::Origin::Result => Origin::Result,
                    },
                })
            })?,
        })
    }

    fn parser_state(
        &self,
        at: At<'_>,
        state: &format::ParserState,
    ) -> Result<ParserState<'a>, ReadError> {
        let next = at.key("next");
        Ok(ParserState {
            name: self.arena.alloc_str(&state.name),
            extracts: self.list(at.key("extracts"), &state.extracts, LONG_MAX, |at, extract| {
                Ok(Extract {
                    field: self.field(at.key("field"), &extract.field)?,
                    offset_bits: extract.offset_bits.short(),
                })
            })?,
            advance: state.advance.short(),
            next: Select {
                cases: self.list(next.key("cases"), &state.next.cases, LONG_MAX, |at, case| {
                    let field = self.field(at.key("field"), &case.field)?;
                    Ok(Case {
                        field,
                        mask: mask(field, case.mask),
                        value: case.value.unsigned(),
                        next: self.next(at.key("next"), &case.next)?,
                    })
                })?,
                otherwise: self.next(next.key("otherwise"), &state.next.otherwise)?,
            },
        })
    }

    fn next(&self, at: At<'_>, next: &format::Next) -> Result<Next, ReadError> {
        Ok(match next {
            format::Next::State(name) => {
                Next::State(find(at.key("state"), &self.file.parser, name)?)
            }
            format::Next::Accept => Next::Accept,
            format::Next::Reject => Next::Reject,
        })
    }

    fn tables(&self, at: At<'_>, tables: &[format::Table]) -> Result<&'a [Table<'a>], ReadError> {
        self.list(at, tables, TABLES_MAX, |at, table| self.table(at, table))
    }

    fn table(&self, at: At<'_>, table: &format::Table) -> Result<Table<'a>, ReadError> {
        at.key("name").name(&table.name)?;
        declare(at.key("actions"), &table.actions, LONG_MAX)?;
        Ok(Table {
            name: self.arena.alloc_str(&table.name),
            stage: table.stage.map(format::Byte::byte),
            gateway: match &table.gateway {
                None => Gateway::NONE,
                Some(gateway) => self.gateway(at.key("gateway"), gateway, &table.actions)?,
            },
            lookup: match &table.lookup {
                None => Lookup::None,
                Some(lookup) => self.lookup(at.key("lookup"), lookup, &table.actions)?,
            },
            actions: self.list(at.key("actions"), &table.actions, LONG_MAX, |at, action| {
                self.action(at, action)
            })?,
        })
    }

    fn gateway(
        &self,
        at: At<'_>,
        gateway: &format::Gateway,
        actions: &[format::Action],
    ) -> Result<Gateway<'a>, ReadError> {
        let then = |at: At<'_>, then: &format::Then| {
            Ok(match then {
                format::Then::Lookup => Then::Lookup,
                format::Then::Run(name) => Then::Run(find(at.key("run"), actions, name)?),
                format::Then::Skip => Then::Skip,
            })
        };
        Ok(Gateway {
            rows: self.list(at.key("rows"), &gateway.rows, SHORT_MAX, |at, row| {
                Ok(Row {
                    all: self.matches(at.key("all"), &row.all)?,
                    then: then(at.key("then"), &row.then)?,
                })
            })?,
            otherwise: then(at.key("otherwise"), &gateway.otherwise)?,
        })
    }

    fn matches(&self, at: At<'_>, all: &[format::Match]) -> Result<&'a [Match], ReadError> {
        self.list(at, all, SHORT_MAX, |at, of| {
            let field = self.field(at.key("field"), &of.field)?;
            Ok(Match { field, mask: mask(field, of.mask), value: of.value.unsigned() })
        })
    }

    fn lookup(
        &self,
        at: At<'_>,
        lookup: &format::Lookup,
        actions: &[format::Action],
    ) -> Result<Lookup<'a>, ReadError> {
        Ok(match lookup {
            format::Lookup::Ternary(entries) => {
                let at = at.key("ternary");
                Lookup::Ternary(self.list(at, entries, TERNARY_MAX, |at, entry| {
                    Ok(TernaryEntry {
                        all: self.matches(at.key("all"), &entry.all)?,
                        action: find(at.key("action"), actions, &entry.action)?,
                    })
                })?)
            }
            format::Lookup::Exact(exact) => {
                let at = at.key("exact");
                let miss = exact.miss.as_ref();
                Lookup::Exact {
                    key: self.field_list(at.key("key"), &exact.key)?,
                    entries: self.entries(at.key("entries"), exact.entries)?,
                    data_bits: exact.data_bits.short(),
                    miss: miss.map(|name| find(at.key("miss"), actions, name)).transpose()?,
                }
            }
            format::Lookup::Direct(direct) => {
                let at = at.key("direct");
                Lookup::Direct {
                    index: self.field(at.key("index"), &direct.index)?,
                    entries: self.entries(at.key("entries"), direct.entries)?,
                    data_bits: direct.data_bits.short(),
                }
            }
        })
    }

    fn action(&self, at: At<'_>, action: &format::Action) -> Result<Action<'a>, ReadError> {
        let access = action.access.as_ref();
        Ok(Action {
            name: self.arena.alloc_str(&action.name),
            access: access.map(|access| self.access(at.key("access"), access)).transpose()?,
            ops: self.list(at.key("ops"), &action.ops, LONG_MAX, |at, op| self.op(at, op))?,
        })
    }

    fn access(&self, at: At<'_>, access: &format::Access) -> Result<Access<'a>, ReadError> {
        let registers = &self.file.registers;
        let register = find(at.key("register"), registers, &access.register)?;
        let instructions = &registers[register].instructions;
        let instruction = find(at.key("instruction"), instructions, &access.instruction)?;
        self.is_run[register][instruction].set(true);
        let inputs = at.key("inputs");
        Ok(Access {
            register,
            instruction: &self.instructions[register][instruction],
            index: self.field(at.key("index"), &access.index)?,
            inputs: [
                self.optional_field(inputs.key("first"), access.inputs.first.as_ref())?,
                self.optional_field(inputs.key("second"), access.inputs.second.as_ref())?,
            ],
        })
    }

    /// Refuses an instruction that no action runs: a pipeline does not have it, and the checker would not see it.
    fn all_run(&self) -> Result<(), ReadError> {
        let registers = At::ROOT.key("registers");
        for (id, register) in self.file.registers.iter().enumerate() {
            let at = registers.index(id);
            let at = at.key("instructions");
            for (index, instruction) in register.instructions.iter().enumerate() {
                if !self.is_run[id][index].get() {
                    return at.index(index).refuse(format_args!(
                        "no action runs {:?}; remove it, or name it in an action's `access`",
                        instruction.name
                    ));
                }
            }
        }
        Ok(())
    }

    fn op(&self, at: At<'_>, op: &format::Op) -> Result<Op<'a>, ReadError> {
        let to = self.field(at.key("to"), &op.to)?;
        let value = at.key("value");
        let (name, function, a, b) = match &op.value {
            OpValue::Set(a) => return Ok(Op::set(to, self.source(value.key("set"), a)?)),
            OpValue::Add(a, b) => ("add", Function::Add, a, Some(b)),
            OpValue::Subtract(a, b) => ("subtract", Function::Subtract, a, Some(b)),
            OpValue::SubtractSaturating(a, b) => {
                ("subtract_saturating", Function::SubtractSaturating, a, Some(b))
            }
            OpValue::Minimum(a, b) => ("minimum", Function::Minimum, a, Some(b)),
            OpValue::Maximum(a, b) => ("maximum", Function::Maximum, a, Some(b)),
            OpValue::And(a, b) => ("and", Function::And, a, Some(b)),
            OpValue::Or(a, b) => ("or", Function::Or, a, Some(b)),
            OpValue::Xor(a, b) => ("xor", Function::Xor, a, Some(b)),
            OpValue::ShiftLeft(a, by) => ("shift_left", Function::ShiftLeft(by.byte()), a, None),
            OpValue::ShiftRight(a, by) => ("shift_right", Function::ShiftRight(by.byte()), a, None),
        };
        let operands = value.key(name);
        let a = self.source(operands.index(0), a)?;
        let b = b.map(|b| self.source(operands.index(1), b)).transpose()?;
        Ok(Op { to, function, a, b: b.unwrap_or(Source::Constant(0)) })
    }

    fn source(&self, at: At<'_>, source: &format::Source) -> Result<Source<'a>, ReadError> {
        Ok(match source {
            format::Source::Field(name) => Source::Field(self.field(at.key("field"), name)?),
            format::Source::Constant(constant) => Source::Constant(constant.unsigned()),
            format::Source::Data(word) => Source::Data(word.byte()),
            format::Source::Output(word) => Source::Output(word.byte()),
            format::Source::Hash(hash) => Source::Hash(Hash {
                fields: self.field_list(at.key("hash").key("fields"), &hash.fields)?,
                polynomial: hash.polynomial.into(),
                bits: hash.bits.byte(),
            }),
        })
    }

    fn mirror(&self, at: At<'_>, mirror: &format::Mirror) -> Result<Mirror<'a>, ReadError> {
        at.key("name").name(&mirror.name)?;
        Ok(Mirror {
            name: self.arena.alloc_str(&mirror.name),
            carries: self.list(at.key("carries"), &mirror.carries, LONG_MAX, |at, carry| {
                let from = self.field(at.key("from"), &carry.from)?;
                Ok((from, self.field(at.key("to"), &carry.to)?))
            })?,
        })
    }
}

/// Bits of a field that count; without a mask, all.
fn mask(field: Field, mask: Option<format::Unsigned>) -> u32 {
    mask.map_or(Match::equal(field, 0).mask, format::Unsigned::unsigned)
}

/// A set of results, of which an instruction has two for each comparator.
fn when(
    at: At<'_>,
    results: Option<&[format::ComparatorsResult]>,
    comparators: usize,
) -> Result<When, ReadError> {
    let Some(results) = results else { return Ok(When::ALWAYS) };
    at.limit(results.len(), SHORT_MAX)?;
    let count = 1 << comparators.min(4);
    let mut set = 0;
    for (index, result) in results.iter().enumerate() {
        let result = result.byte();
        if result >= count {
            return at.index(index).refuse(format_args!(
                "result {result}; take less than {count}: the instruction has {comparators} comparators"
            ));
        }
        // Comparators that the instruction does not have decide nothing.
        (result..16).step_by(count.into()).for_each(|result| set |= 1 << result);
    }
    Ok(When(set))
}

fn compare(of: &format::Compare) -> Compare {
    fn term<T: Copy, U: From<T>>(term: &Option<Term<T>>) -> (Option<U>, bool) {
        match term {
            None => (None, false),
            Some(Term::Plus(operand)) => (Some((*operand).into()), false),
            Some(Term::Minus(operand)) => (Some((*operand).into()), true),
        }
    }
    let (memory, is_memory_negative) = term(&of.memory);
    let (input, is_input_negative) = term(&of.input);
    Compare {
        relation: of.relation.into(),
        kind: of.kind.into(),
        memory,
        is_memory_negative,
        input,
        is_input_negative,
        mask: of.mask.map(format::Unsigned::unsigned),
        constant: of.constant.0,
    }
}

fn alu_value(value: &AluValue) -> (Operation, Operand, Operand) {
    let operand = |operand: &format::Operand| match *operand {
        format::Operand::Memory(word) => Operand::Memory(word.into()),
        format::Operand::Input(input) => Operand::Input(input.into()),
        format::Operand::Constant(constant) => Operand::Constant(constant.0),
    };
    let (operation, a, b) = match value {
        AluValue::Set(b) => return (Operation::Set, Operand::Constant(0), operand(b)),
        AluValue::Add(a, b) => (Operation::Add, a, b),
        AluValue::Subtract(a, b) => (Operation::Subtract, a, b),
        AluValue::AddSaturating(a, b) => (Operation::AddSaturating, a, b),
        AluValue::SubtractSaturating(a, b) => (Operation::SubtractSaturating, a, b),
        AluValue::Minimum(a, b) => (Operation::Minimum, a, b),
        AluValue::Maximum(a, b) => (Operation::Maximum, a, b),
        AluValue::And(a, b) => (Operation::And, a, b),
        AluValue::Or(a, b) => (Operation::Or, a, b),
        AluValue::Xor(a, b) => (Operation::Xor, a, b),
    };
    (operation, operand(a), operand(b))
}

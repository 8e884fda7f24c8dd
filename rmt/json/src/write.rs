//! Writing: from a pipeline to a text.

use wave_rmt::parser::{Next, ParserState};
use wave_rmt::{
    Access, Action, Alu, Compare, Field, Function, Gateway, Instruction, Lookup, Match, Op,
    Operand, Operation, Origin, Output, Pipeline, Source, Table, Then, When,
};

use crate::Arena;
use crate::error::WriteError;
use crate::fold::fold;
use crate::format::{self, AluValue, OpValue, Term};
use crate::read::read;

/// Writes a pipeline as JSON, which [`read()`] turns into an equal one.
///
/// # Errors
/// There is no such text: names are not unique, or the pipeline breaks a rule of shape.
pub fn write(pipeline: &Pipeline<'_>) -> Result<String, WriteError> {
    let file = Writer { pipeline }.file();
    let pretty = serde_json::to_string_pretty(&file).map_err(|_| WriteError::Differs)?;
    let text = fold(&pretty) + "\n";
    match read(&text, &Arena::new())? == *pipeline {
        true => Ok(text),
        false => Err(WriteError::Differs),
    }
}

/// A pipeline, whose names stand for indices. What is not declared gets a name that the reader refuses.
struct Writer<'p> {
    pipeline: &'p Pipeline<'p>,
}

impl<'p> Writer<'p> {
    fn file(&self) -> format::Pipeline {
        let pipeline = self.pipeline;
        let intrinsic = &pipeline.intrinsic;
        let optional = |field: Option<Field>| field.map(|field| self.field(field));
        let fields = pipeline.fields.iter();
        format::Pipeline {
            name: pipeline.name.to_owned(),
            fields: fields
                .map(|field| format::Field { name: field.name.to_owned(), bits: field.bits.into() })
                .collect(),
            registers: (0..pipeline.registers.len()).map(|id| self.register(id)).collect(),
            parser: pipeline.parser.iter().map(|state| self.parser_state(state)).collect(),
            ingress: pipeline.ingress.iter().map(|table| self.table(table)).collect(),
            egress: pipeline.egress.iter().map(|table| self.table(table)).collect(),
            mirrors: pipeline
                .mirrors
                .iter()
                .map(|mirror| format::Mirror {
                    name: mirror.name.to_owned(),
                    carries: mirror
                        .carries
                        .iter()
                        .map(|(from, to)| format::Carry {
                            from: self.field(*from),
                            to: self.field(*to),
                        })
                        .collect(),
                })
                .collect(),
            intrinsic: format::Intrinsic {
                drop: optional(intrinsic.drop),
                mirror: optional(intrinsic.mirror),
                digest: optional(intrinsic.digest),
                source: optional(intrinsic.source),
            },
            is_ingress_stateless: pipeline.is_ingress_stateless,
        }
    }

    fn field(&self, field: Field) -> String {
        let index = usize::from(field.index);
        named(self.pipeline.fields.get(index).map(|field| field.name), index)
    }

    fn register(&self, id: usize) -> format::Register {
        let register = &self.pipeline.registers[id];
        let mut instructions: Vec<&Instruction<'_>> = vec![];
        let tables = self.pipeline.ingress.iter().chain(self.pipeline.egress);
        for access in tables.flat_map(|table| table.actions).filter_map(|of| of.access.as_ref()) {
            if access.register == id && !instructions.contains(&access.instruction) {
                instructions.push(access.instruction);
            }
        }
        format::Register {
            name: register.name.to_owned(),
            bits: register.bits.into(),
            is_pair: register.is_pair,
            entries: register.entries.into(),
            instructions: instructions.into_iter().map(instruction).collect(),
        }
    }

    fn parser_state(&self, state: &ParserState<'_>) -> format::ParserState {
        let extracts = state.extracts.iter().map(|extract| format::Extract {
            field: self.field(extract.field),
            offset_bits: extract.offset_bits.into(),
        });
        let cases = state.next.cases.iter().map(|case| format::Case {
            field: self.field(case.field),
            mask: mask(case.field, case.mask),
            value: case.value.into(),
            next: self.next(case.next),
        });
        format::ParserState {
            name: state.name.to_owned(),
            extracts: extracts.collect(),
            advance: state.advance.into(),
            next: format::Select {
                cases: cases.collect(),
                otherwise: self.next(state.next.otherwise),
            },
        }
    }

    fn next(&self, next: Next) -> format::Next {
        match next {
            Next::State(index) => {
                let state = self.pipeline.parser.get(index);
                format::Next::State(named(state.map(|state| state.name), index))
            }
            Next::Accept => format::Next::Accept,
            Next::Reject => format::Next::Reject,
        }
    }

    fn table(&self, table: &Table<'_>) -> format::Table {
        let run = |index: usize| named(table.actions.get(index).map(|action| action.name), index);
        format::Table {
            name: table.name.to_owned(),
            stage: table.stage.map(Into::into),
            gateway: self.gateway(&table.gateway, &run),
            lookup: self.lookup(&table.lookup, &run),
            actions: table.actions.iter().map(|action| self.action(action)).collect(),
        }
    }

    fn gateway(
        &self,
        gateway: &Gateway<'_>,
        run: &dyn Fn(usize) -> String,
    ) -> Option<format::Gateway> {
        let then = |then| match then {
            Then::Lookup => format::Then::Lookup,
            Then::Run(action) => format::Then::Run(run(action)),
            Then::Skip => format::Then::Skip,
        };
        let rows = gateway
            .rows
            .iter()
            .map(|row| format::Row { all: self.matches(row.all), then: then(row.then) });
        (*gateway != Gateway::NONE)
            .then(|| format::Gateway { rows: rows.collect(), otherwise: then(gateway.otherwise) })
    }

    fn matches(&self, all: &[Match]) -> Vec<format::Match> {
        let all = all.iter().map(|of| format::Match {
            field: self.field(of.field),
            mask: mask(of.field, of.mask),
            value: of.value.into(),
        });
        all.collect()
    }

    fn lookup(&self, lookup: &Lookup<'_>, run: &dyn Fn(usize) -> String) -> Option<format::Lookup> {
        Some(match *lookup {
            Lookup::None => return None,
            Lookup::Ternary(entries) => {
                let entries = entries.iter().map(|entry| format::TernaryEntry {
                    all: self.matches(entry.all),
                    action: run(entry.action),
                });
                format::Lookup::Ternary(entries.collect())
            }
            Lookup::Exact { key, entries, data_bits, miss } => {
                format::Lookup::Exact(format::Exact {
                    key: key.iter().map(|field| self.field(*field)).collect(),
                    entries: entries.into(),
                    data_bits: data_bits.into(),
                    miss: miss.map(run),
                })
            }
            Lookup::Direct { index, entries, data_bits } => {
                format::Lookup::Direct(format::Direct {
                    index: self.field(index),
                    entries: entries.into(),
                    data_bits: data_bits.into(),
                })
            }
        })
    }

    fn action(&self, action: &Action<'_>) -> format::Action {
        format::Action {
            name: action.name.to_owned(),
            access: action.access.as_ref().map(|access| self.access(access)),
            ops: action.ops.iter().map(|op| self.op(op)).collect(),
        }
    }

    fn access(&self, access: &Access<'_>) -> format::Access {
        let register = self.pipeline.registers.get(access.register);
        let [first, second] = access.inputs.map(|field| field.map(|field| self.field(field)));
        format::Access {
            register: named(register.map(|register| register.name), access.register),
            instruction: access.instruction.name.to_owned(),
            index: self.field(access.index),
            inputs: format::Inputs { first, second },
        }
    }

    fn op(&self, op: &Op<'_>) -> format::Op {
        let (a, b) = (self.source(&op.a), self.source(&op.b));
        let value = match op.function {
            Function::Set => OpValue::Set(a),
            Function::Add => OpValue::Add(a, b),
            Function::Subtract => OpValue::Subtract(a, b),
            Function::SubtractSaturating => OpValue::SubtractSaturating(a, b),
            Function::Minimum => OpValue::Minimum(a, b),
            Function::Maximum => OpValue::Maximum(a, b),
            Function::And => OpValue::And(a, b),
            Function::Or => OpValue::Or(a, b),
            Function::Xor => OpValue::Xor(a, b),
            Function::ShiftLeft(by) => OpValue::ShiftLeft(a, by.into()),
            Function::ShiftRight(by) => OpValue::ShiftRight(a, by.into()),
        };
        format::Op { to: self.field(op.to), value }
    }

    fn source(&self, source: &Source<'_>) -> format::Source {
        match source {
            Source::Field(field) => format::Source::Field(self.field(*field)),
            Source::Constant(constant) => format::Source::Constant((*constant).into()),
            Source::Data(word) => format::Source::Data((*word).into()),
            Source::Output(word) => format::Source::Output((*word).into()),
            Source::Hash(hash) => format::Source::Hash(format::Hash {
                fields: hash.fields.iter().map(|field| self.field(*field)).collect(),
                polynomial: hash.polynomial.into(),
                bits: hash.bits.into(),
            }),
        }
    }
}

fn named(name: Option<&str>, index: usize) -> String {
    name.map_or_else(|| format!("#{index}"), str::to_owned)
}

fn mask(field: Field, mask: u32) -> Option<format::Unsigned> {
    (mask != Match::equal(field, 0).mask).then_some(mask.into())
}

fn instruction(of: &Instruction<'_>) -> format::Instruction {
    let comparators = of.compares.len();
    format::Instruction {
        name: of.name.to_owned(),
        compares: of.compares.iter().map(compare).collect(),
        alus: of.alus.iter().map(|alu| self::alu(alu, comparators)).collect(),
        outputs: of.outputs.iter().map(|of| output(of, comparators)).collect(),
    }
}

fn compare(of: &Compare) -> format::Compare {
    fn term<T>(operand: T, is_negative: bool) -> Term<T> {
        if is_negative { Term::Minus(operand) } else { Term::Plus(operand) }
    }
    format::Compare {
        kind: of.kind.into(),
        memory: of.memory.map(|word| term(word.into(), of.is_memory_negative)),
        input: of.input.map(|input| term(input.into(), of.is_input_negative)),
        mask: of.mask.map(Into::into),
        constant: of.constant.into(),
        relation: of.relation.into(),
    }
}

fn alu(of: &Alu, comparators: usize) -> format::Alu {
    let operand = |operand| match operand {
        Operand::Memory(word) => format::Operand::Memory(word.into()),
        Operand::Input(input) => format::Operand::Input(input.into()),
        Operand::Constant(constant) => format::Operand::Constant(constant.into()),
    };
    let (a, b) = (operand(of.a), operand(of.b));
    format::Alu {
        when: when(of.when, comparators),
        word: of.word.into(),
        value: match of.operation {
            Operation::Add => AluValue::Add(a, b),
            Operation::Subtract => AluValue::Subtract(a, b),
            Operation::AddSaturating => AluValue::AddSaturating(a, b),
            Operation::SubtractSaturating => AluValue::SubtractSaturating(a, b),
            Operation::Minimum => AluValue::Minimum(a, b),
            Operation::Maximum => AluValue::Maximum(a, b),
            Operation::And => AluValue::And(a, b),
            Operation::Or => AluValue::Or(a, b),
            Operation::Xor => AluValue::Xor(a, b),
            Operation::Set => AluValue::Set(b),
        },
    }
}

fn output(of: &Output, comparators: usize) -> format::Output {
    format::Output {
        when: when(of.when, comparators),
        word: of.word.into(),
        origin: match of.origin {
            Origin::Memory(word) => format::Origin::Memory(word.into()),
            Origin::Input(input) => format::Origin::Input(input.into()),
            Origin::Alu(word) => format::Origin::Alu(word.into()),
            Origin::Result => format::Origin::Result,
        },
    }
}

/// The results of an instruction's comparators that belong to a set.
fn when(set: When, comparators: usize) -> Option<Vec<format::ComparatorsResult>> {
    let results = (0..1u32 << comparators.min(4)).filter(|result| set.has(*result));
    (set != When::ALWAYS).then(|| results.map(Into::into).collect())
}

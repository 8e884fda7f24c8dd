//! For each rule of the checker, a pipeline that violates it and nothing else.

use wave_rmt::check::Rule;
use wave_rmt::devices::{Device, TOFINO1, TOFINO2};
use wave_rmt::field::Declared;
use wave_rmt::hash::{Hash, Polynomial};
use wave_rmt::parser::{Next, ParserState, Select};
use wave_rmt::register::{Compare, Input, Kind, Operand, Operation, Origin, Relation, When, Word};
use wave_rmt::table::Function;
use wave_rmt::{
    Access, Action, Alu, Field, Gateway, Instruction, Lookup, Match, Mirror, Op, Output, Pipeline,
    Register, Row, Source, Table, Then,
};

/// A pipeline that violates a rule on a device.
pub struct Case {
    pub rule: Rule,
    pub device: Device,
    pub pipeline: Pipeline<'static>,
}

wave_rmt::fields! {
    INDEX = index: 16,
    ONE = one: 32,
    TWO = two: 32,
    THREE = three: 32,
}

pub const WORD: Register<'static> =
    Register { name: "word", bits: 32, is_pair: false, entries: 1024 };
const PAIR: Register<'static> = Register { is_pair: true, ..WORD };

const LOW: Operand = Operand::Memory(Word::Low);
const HIGH: Operand = Operand::Memory(Word::High);
const FIRST: Operand = Operand::Input(Input::First);

const IS_ZERO: Compare = Compare::memory(Kind::Unsigned, Word::Low, Relation::Equal, 0);

const BASE: Pipeline<'static> = Pipeline { name: "broken", fields: FIELDS, ..Pipeline::NOTHING };
const KEEP: Instruction<'static> = Instruction { name: "keep", ..Instruction::NOTHING };

const fn access(instruction: &'static Instruction<'static>) -> Option<Access<'static>> {
    Some(Access { register: 0, instruction, index: INDEX, inputs: [Some(ONE), Some(TWO)] })
}

/// A case of one instruction of one register.
macro_rules! instruction {
    ($rule:ident, $device:ident, $register:expr, $($field:ident: $value:expr),*) => {
        Case {
            rule: Rule::$rule,
            device: $device,
            pipeline: Pipeline {
                registers: &[$register],
                egress: &[Table {
                    name: "table",
                    actions: &[Action {
                        name: "action",
                        access: access(&Instruction { name: "run", $($field: $value,)* ..Instruction::NOTHING }),
                        ops: &[],
                    }],
                    ..Table::NOTHING
                }],
                ..BASE
            },
        }
    };
}

/// A case of one table without registers.
macro_rules! table {
    ($rule:ident, $($field:ident: $value:expr),*) => {
        Case {
            rule: Rule::$rule,
            device: TOFINO2,
            pipeline: Pipeline { egress: &[Table { name: "table", $($field: $value,)* ..Table::NOTHING }], ..BASE },
        }
    };
}

/// A case of anything else.
macro_rules! pipeline {
    ($rule:ident, $($field:ident: $value:expr),*) => {
        Case { rule: Rule::$rule, device: TOFINO2, pipeline: Pipeline { $($field: $value,)* ..BASE } }
    };
}

const NOP: Action<'static> = Action { name: "nop", ..Action::NOTHING };
const NOPS: &[Action<'static>] = &[NOP];

/// An action of some operations.
macro_rules! ops {
    ($($op:expr),*) => { &[Action { name: "action", access: None, ops: &[$($op),*] }] };
}

/// One field more than a pipeline may have.
const MANY: [Declared<'static>; 129] = {
    const NAME: &str = concat!(
        "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
        "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
    );
    let mut many = [Declared { name: "", bits: 1 }; 129];
    let mut index = 0;
    while index < many.len() {
        // Each name is longer than the one before.
        many[index].name = NAME.split_at(index + 1).0;
        index += 1;
    }
    many
};

const SET: Instruction<'static> =
    Instruction { name: "set", alus: &[Alu::set(FIRST)], ..Instruction::NOTHING };

/// An access that reads a field as the first input.
const fn reading(_: &str, field: Field) -> Option<Access<'static>> {
    Some(Access { register: 0, instruction: &SET, index: INDEX, inputs: [Some(field), None] })
}

/// A table that runs an instruction of the first register.
const fn counting(name: &'static str, actions: &'static [Action<'static>]) -> Table<'static> {
    Table { name, actions, ..Table::NOTHING }
}

const RUN_KEEP: &[Action<'static>] = &[Action { name: "keep", access: access(&KEEP), ops: &[] }];

const IS_ONE: &[Match] = &[Match::equal(INDEX, 1)];

const fn row(then: Then) -> Row<'static> {
    Row { all: IS_ONE, then }
}

/// Five instructions by name.
macro_rules! five {
    ($($name:literal)*) => {
        &[$(Action {
            name: $name,
            access: access(&Instruction { name: $name, ..Instruction::NOTHING }),
            ops: &[],
        }),*]
    };
}

const fn add(a: Operand, b: Operand) -> Alu {
    Alu::low(Operation::Add, a, b)
}

/// Violations of shape, which the compiler finds.
pub const SHAPE: &[Case] = &[
    pipeline!(Names, fields: &[Declared { name: "twice", bits: 8 }, Declared { name: "twice", bits: 8 }]),
    pipeline!(FieldBits, fields: &[Declared { name: "wide", bits: 33 }]),
    table!(FieldDeclared, actions: ops!(Op::set(Field { index: 99, bits: 8 }, Source::Constant(1)))),
    table!(FieldWidth, actions: ops!(Op::set(Field { bits: 16, ..ONE }, Source::Constant(1)))),
    pipeline!(RegisterDeclared, egress: &[counting("table", RUN_KEEP)]),
    instruction!(WordBits, TOFINO2, Register { bits: 24, ..WORD },),
    pipeline!(Instructions, registers: &[WORD], egress: &[counting("table", five!("a" "b" "c" "d" "e"))]),
    pipeline!(OneTable, registers: &[WORD], egress: &[counting("one", RUN_KEEP), counting("other", RUN_KEEP)]),
    pipeline!(IngressStateless, registers: &[WORD], ingress: &[counting("table", RUN_KEEP)], is_ingress_stateless: true),
    instruction!(Comparators, TOFINO1, WORD, compares: &[IS_ZERO, IS_ZERO, IS_ZERO]),
    instruction!(ComparatorOperands, TOFINO2, WORD, compares: &[Compare { memory: None, ..IS_ZERO }]),
    instruction!(ComparatorMasks, TOFINO1, WORD, compares: &[IS_ZERO.masked(1)]),
    instruction!(MaskAndConstant, TOFINO2, WORD,
        compares: &[Compare::memory(Kind::Unsigned, Word::Low, Relation::Equal, -1000).masked(0xff00)]),
    instruction!(TruthTable, TOFINO2, WORD,
        compares: &[IS_ZERO], alus: &[Alu::set(FIRST).when(When::true_at(1))]),
    instruction!(HighWord, TOFINO2, WORD, outputs: &[Output::word(0, Origin::Memory(Word::High))]),
    instruction!(Alus, TOFINO2, WORD, alus: &[Alu::set(FIRST), Alu::set(FIRST), Alu::set(FIRST)]),
    instruction!(AluOperands, TOFINO2, PAIR, alus: &[add(LOW, HIGH)]),
    instruction!(AluConstants, TOFINO2, WORD, alus: &[add(Operand::Constant(1), Operand::Constant(2))]),
    instruction!(ConstantBits, TOFINO2, Register { bits: 8, ..WORD }, alus: &[add(LOW, Operand::Constant(300))]),
    instruction!(LargeConstants, TOFINO2, WORD, compares: &[
        Compare::memory(Kind::Unsigned, Word::Low, Relation::Equal, 100),
        Compare::memory(Kind::Unsigned, Word::Low, Relation::Equal, 200),
        Compare::memory(Kind::Unsigned, Word::Low, Relation::Equal, 300),
        Compare::memory(Kind::Unsigned, Word::Low, Relation::Equal, 400)
    ], alus: &[add(LOW, Operand::Constant(500))]),
    pipeline!(Inputs, registers: &[WORD], egress: &[counting("table", &[
        Action { name: "one", access: reading("one", ONE), ops: &[] },
        Action { name: "other", access: reading("other", TWO), ops: &[] },
    ])]),
    pipeline!(Fields, fields: &MANY),
    table!(DataBits, lookup: Lookup::Direct { index: INDEX, entries: 16, data_bits: 300 }, actions: NOPS),
    table!(SecondOperand, actions: ops!(Op::new(ONE, Function::SubtractSaturating, Source::Field(TWO), Source::Constant(1)))),
    instruction!(ResultOnce, TOFINO2, WORD, outputs: &[Output::word(0, Origin::Result), Output::word(1, Origin::Result)]),
    pipeline!(InputDeclared, registers: &[WORD], egress: &[counting("table", &[Action {
        name: "action",
        access: Some(Access {
            register: 0,
            instruction: &Instruction { name: "run", alus: &[Alu::set(FIRST)], ..Instruction::NOTHING },
            index: INDEX,
            inputs: [None; 2],
        }),
        ops: &[],
    }])]),
    instruction!(Outputs, TOFINO1, WORD, outputs: &[Output::word(1, Origin::Memory(Word::Low))]),
    instruction!(OutputOnce, TOFINO2, WORD,
        outputs: &[Output::word(0, Origin::Memory(Word::Low)), Output::word(0, Origin::Result)]),
    table!(OutputDeclared, actions: ops!(Op::set(ONE, Source::Output(0)))),
    table!(ActionDeclared, gateway: Gateway { rows: &[row(Then::Run(1))], otherwise: Then::Skip }, actions: NOPS),
    table!(WriteOnce, actions: ops!(Op::set(ONE, Source::Constant(1)), Op::set(ONE, Source::Constant(2)))),
    table!(OperationOperands, actions: ops!(Op::new(ONE, Function::Add, Source::Constant(1), Source::Constant(2)))),
    table!(DataDeclared, lookup: Lookup::Direct { index: INDEX, entries: 16, data_bits: 32 },
        actions: ops!(Op::set(ONE, Source::Data(1)))),
    table!(HashBits, actions: ops!(Op::set(ONE, Source::Hash(Hash {
        fields: &[ONE],
        polynomial: Polynomial::Crc16,
        bits: 20,
    })))),
    table!(MatchBits, gateway: Gateway {
        rows: &[Row { all: &[Match::equal(INDEX, 70_000)], then: Then::Run(0) }],
        otherwise: Then::Skip,
    }, actions: NOPS),
    table!(GatewayRows, gateway: Gateway {
        rows: &[row(Then::Skip), row(Then::Skip), row(Then::Skip), row(Then::Skip), row(Then::Skip)],
        otherwise: Then::Run(0),
    }, actions: NOPS),
    table!(GatewayBits, gateway: Gateway {
        rows: &[Row { all: &[Match::equal(ONE, 1), Match::equal(TWO, 1)], then: Then::Run(0) }],
        otherwise: Then::Skip,
    }, actions: NOPS),
    table!(KeyFields, lookup: Lookup::Exact { key: &[], entries: 16, data_bits: 0, miss: None }, actions: NOPS),
    table!(Entries, lookup: Lookup::Exact { key: &[ONE], entries: 0, data_bits: 0, miss: None }, actions: NOPS),
    pipeline!(ParserState, parser: &[ParserState {
        name: "start",
        extracts: &[],
        advance: 0,
        next: Select { cases: &[], otherwise: Next::State(1) },
    }]),
    pipeline!(Mirrors, mirrors: &[Mirror { name: "many", carries: &[] }; 16]),
];

const fn writes(name: &'static str, actions: &'static [Action<'static>]) -> Table<'static> {
    Table { name, actions, ..Table::NOTHING }
}

const TO_ONE: &[Action<'static>] = ops!(Op::set(ONE, Source::Field(TWO)));
const TO_TWO: &[Action<'static>] = ops!(Op::set(TWO, Source::Field(ONE)));

/// Violations of placement and budget, which the checker finds at run time.
pub const PLACEMENT: &[Case] = &[
    pipeline!(Dependency, egress: &[
        Table { stage: Some(3), ..writes("one", TO_ONE) },
        Table { stage: Some(3), ..writes("two", TO_TWO) },
    ]),
    pipeline!(Stages, egress: &[
        writes("a", TO_ONE), writes("b", TO_TWO), writes("c", TO_ONE), writes("d", TO_TWO), writes("e", TO_ONE),
        writes("f", TO_TWO), writes("g", TO_ONE), writes("h", TO_TWO), writes("i", TO_ONE), writes("j", TO_TWO),
        writes("k", TO_ONE), writes("l", TO_TWO), writes("m", TO_ONE), writes("n", TO_TWO), writes("o", TO_ONE),
        writes("p", TO_TWO), writes("q", TO_ONE), writes("r", TO_TWO), writes("s", TO_ONE), writes("t", TO_TWO),
        writes("u", TO_ONE),
    ]),
    pipeline!(RegisterMemory, registers: &[Register { entries: 100_000, ..WORD }]),
    pipeline!(PhvBits, fields: PHV),
    pipeline!(StageBudget, egress: &[Table {
        stage: Some(0),
        ..counting("wide", &[NOP; 33])
    }]),
];

const PHV: &[Declared<'static>] = &[Declared { name: "many", bits: 32 }; 161];

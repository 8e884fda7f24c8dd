//! What is written is read as an equal pipeline, which does the same.

mod packets;

use serde_json::Value;
use wave_core_testing::rng;
use wave_rmt::check::place;
use wave_rmt::devices::TOFINO2;
use wave_rmt::field::Declared;
use wave_rmt::{
    Access, Action, Field, Function, Instruction, Op, Origin, Output, Pipeline, Register, Source,
    Table, When, examples,
};
use wave_rmt_json::{Arena, WriteError, read, write};

/// Every part of the format.
const EVERYTHING: &str = include_str!("everything.json");

#[test]
fn examples_are_read_as_they_were_written() {
    for (example, _) in examples::EXAMPLES {
        let arena = Arena::new();
        let read = read(&write(example).unwrap(), &arena).unwrap();
        assert_eq!(read, **example);
        packets::behave_equally(&read, example, &mut rng(1));
    }
}

#[test]
fn every_part_of_the_format_is_written_as_it_was_read() {
    let arena = Arena::new();
    let pipeline = read(EVERYTHING, &arena).unwrap();
    assert_eq!(write(&pipeline).unwrap(), EVERYTHING);
    let violations = pipeline.check(&TOFINO2);
    assert_eq!(violations.iter().map(ToString::to_string).collect::<Vec<_>>(), [""; 0]);
    place(&pipeline, &TOFINO2).must_fit();
}

/// Another writer's spaces and order of keys make no difference.
#[test]
fn order_and_spaces_do_not_matter() {
    let arena = Arena::new();
    let value: Value = serde_json::from_str(EVERYTHING).unwrap();
    assert_eq!(read(&value.to_string(), &arena), read(EVERYTHING, &arena));
}

/// A pipeline of one action.
fn one_action<'p>(table: &'p [Table<'p>]) -> Pipeline<'p> {
    Pipeline {
        name: "one",
        fields: &[Declared { name: "sum", bits: 16 }],
        registers: &[Register { name: "word", bits: 32, is_pair: false, entries: 1 }],
        egress: table,
        ..Pipeline::NOTHING
    }
}

#[test]
fn what_a_file_cannot_hold_is_not_written() {
    const SUM: Field = Field { index: 0, bits: 16 };
    let written = |action: Action<'_>| {
        let actions = [action];
        let tables = [Table { name: "table", actions: &actions, ..Table::NOTHING }];
        write(&one_action(&tables))
    };
    let op = |op: Op<'static>| written(Action { name: "action", access: None, ops: &[op] });
    let set = Op::set(SUM, Source::Constant(1));
    assert!(op(set).is_ok());
    // An operand that nothing reads, and a field of another width.
    assert_eq!(op(Op { b: Source::Constant(1), ..set }), Err(WriteError::Differs));
    assert_eq!(op(Op::set(Field { bits: 8, ..SUM }, set.a)), Err(WriteError::Differs));
    // A field that is not declared.
    let undeclared = Op::new(Field { index: 7, bits: 16 }, Function::Set, set.a, set.b);
    let error = op(undeclared).unwrap_err().to_string();
    assert!(error.starts_with("egress[0].actions[0].ops[0].to: no field named \"#7\""), "{error}");
    // A truth table that asks for a comparator which is not there.
    let output = |when| Output { when, word: 0, origin: Origin::Result };
    let access = |when| {
        let outputs = [output(when)];
        let instruction = Instruction { name: "run", outputs: &outputs, ..Instruction::NOTHING };
        let access =
            Access { register: 0, instruction: &instruction, index: SUM, inputs: [None; 2] };
        written(Action { name: "action", access: Some(access), ops: &[] })
    };
    assert!(access(When::ALWAYS).is_ok());
    assert!(access(When::ALWAYS.not()).is_ok());
    assert_eq!(access(When::true_at(0)), Err(WriteError::Differs));
    let unnamed = written(Action { name: "two words", access: None, ops: &[] }).unwrap_err();
    assert!(unnamed.to_string().contains("is no name"), "{unnamed}");
}

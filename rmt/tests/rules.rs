//! Every rule of the checker, by a pipeline that violates it and nothing else: at run time, and in the compiler.

use std::path::Path;
use std::process::Command;

use wave_rmt::check::{Rule, place};
use wave_rmt::devices::{DEVICES, Device, Limit, TOFINO2};
use wave_rmt::field::Declared;
use wave_rmt::{
    Access, Action, Compare, Field, Function, Hash, Instruction, Kind, Op, Pipeline, Polynomial,
    Relation, Source, Table, Word,
};

#[path = "broken/cases.rs"]
mod cases;

#[test]
fn each_rule_of_shape_is_violated_by_its_case_alone() {
    for case in cases::SHAPE {
        let violations = case.pipeline.check(&case.device);
        let found: Vec<_> = violations.iter().map(|violation| violation.rule).collect();
        assert!(found.contains(&case.rule), "{:?}: {found:?}", case.rule);
        let others = violations.iter().filter(|violation| violation.rule != case.rule);
        assert_eq!(others.map(ToString::to_string).collect::<Vec<_>>(), [""; 0], "{:?}", case.rule);
    }
}

#[test]
fn each_rule_of_placement_is_violated_by_its_case_alone() {
    for case in cases::PLACEMENT {
        let placement = place(&case.pipeline, &case.device);
        let found: Vec<_> = placement.violations.iter().map(|violation| violation.rule).collect();
        assert!(
            !found.is_empty() && found.iter().all(|rule| *rule == case.rule),
            "{:?}: {found:?}",
            case.rule
        );
    }
}

#[test]
fn every_rule_has_a_case() {
    for rule in Rule::ALL {
        let cases = cases::SHAPE.iter().chain(cases::PLACEMENT);
        assert_eq!(cases.filter(|case| case.rule == *rule).count(), 1, "{rule:?}");
    }
}

#[test]
fn messages_name_place_limit_source_and_remedy() {
    let message = |index: usize| {
        let case = &cases::SHAPE[index];
        case.pipeline.check(&case.device).iter().next().unwrap().to_string()
    };
    let by_rule = |name: &str| {
        let index = cases::SHAPE.iter().position(|case| case.rule.name() == name).unwrap();
        message(index)
    };
    assert_eq!(
        by_rule("comparators"),
        "word.run: 3 comparators; tofino1 has 2 [comparators; bf-p4c/specs/device.cpp, \
         TofinoDevice::getStatefulAluSpec, CmpUnits]. Make two instructions of it, and let the gateway choose by bits that an \
         earlier stage has computed."
    );
    assert_eq!(
        by_rule("write-once"),
        "table.action: field `one` is written twice [write-once]. All operations of an action happen at once: keep one."
    );
    for case in cases::SHAPE {
        let text = case.pipeline.check(&case.device).iter().next().unwrap().to_string();
        assert!(!text.contains(['#', '%', '$']) && text.ends_with('.'), "{text}");
    }
}

/// Two instructions of one name are two, and both are checked.
#[test]
fn instructions_of_one_name_are_told_apart() {
    const MANY: [Compare; 6] = [Compare::memory(Kind::Unsigned, Word::Low, Relation::Equal, 0); 6];
    const fn run(instruction: &'static Instruction<'static>) -> Option<Access<'static>> {
        Some(Access { register: 0, instruction, index: cases::INDEX, inputs: [None; 2] })
    }
    const ACTIONS: [Action<'static>; 2] = [
        Action { name: "one", access: run(&Instruction::NOTHING), ops: &[] },
        Action {
            name: "other",
            access: run(&Instruction { compares: &MANY, ..Instruction::NOTHING }),
            ops: &[],
        },
    ];
    let pipeline = Pipeline {
        fields: cases::FIELDS,
        registers: &[cases::WORD],
        egress: &[Table { name: "table", actions: &ACTIONS, ..Table::NOTHING }],
        ..Pipeline::NOTHING
    };
    let rules: Vec<_> = pipeline.check(&TOFINO2).iter().map(|violation| violation.rule).collect();
    assert_eq!(rules, [Rule::Names, Rule::Comparators]);
}

#[test]
fn shift_of_a_field_without_bits_is_refused() {
    const EMPTY: Field = Field { index: 0, bits: 0 };
    let shift = Op::new(EMPTY, Function::ShiftLeft(0), Source::Field(EMPTY), Source::Constant(0));
    let actions = [Action { name: "action", access: None, ops: &[shift] }];
    let pipeline = Pipeline {
        fields: &[Declared { name: "empty", bits: 0 }],
        egress: &[Table { name: "table", actions: &actions, ..Table::NOTHING }],
        ..Pipeline::NOTHING
    };
    let rules: Vec<_> = pipeline.check(&TOFINO2).iter().map(|violation| violation.rule).collect();
    assert_eq!(rules, [Rule::FieldBits, Rule::ConstantBits]);
}

#[test]
fn actions_of_a_table_share_a_hash() {
    let actions: [Action<'_>; 7] = std::array::from_fn(|index| Action {
        name: ["a", "b", "c", "d", "e", "f", "g"][index],
        access: None,
        ops: &[Op {
            to: cases::INDEX,
            function: Function::Set,
            a: Source::Hash(Hash {
                fields: &[cases::ONE],
                polynomial: Polynomial::Crc32,
                bits: 16,
            }),
            b: Source::Constant(0),
        }],
    });
    let egress = [Table { name: "table", actions: &actions, ..Table::NOTHING }];
    let pipeline = Pipeline { fields: cases::FIELDS, egress: &egress, ..Pipeline::NOTHING };
    let placement = place(&pipeline, &TOFINO2);
    placement.must_fit();
    assert_eq!(placement.total().hashes, 1);
}

/// The guide's listing is the crate's, and its limits are the devices'.
#[test]
fn guide_says_what_the_crate_does() {
    let guide = include_str!("../../docs/guide/pipeline.md");
    let crate_text = include_str!("../../docs/guide/my-pipeline/src/lib.rs");
    let listing = &crate_text[crate_text.find("use wave_rmt::devices").unwrap()..];
    assert!(guide.contains(listing.trim_end()), "copy the crate's text into the guide");
    type Of = fn(&Device) -> Limit;
    let rows: [(&str, Of); 15] = [
        ("instructions of a register", |device| device.instructions),
        ("comparators of an instruction", |device| device.comparators),
        ("ALUs for a word", |device| device.alus),
        ("large constants of a register", |device| device.large_constants),
        ("output words", |device| device.outputs),
        ("rows of a gateway", |device| device.gateway_rows),
        ("bits of a gateway", |device| device.gateway_bits),
        ("stages", |device| device.stages),
        ("logical tables of a stage", |device| device.tables),
        ("stateful ALUs of a stage", |device| device.stateful_alus),
        ("SRAM blocks of a stage", |device| device.srams),
        ("SRAM blocks of a register", |device| device.register_srams),
        ("TCAM blocks of a stage", |device| device.tcams),
        ("gateways of a stage", |device| device.gateways),
        ("actions of a stage", |device| device.vliw),
    ];
    for (name, of) in rows {
        let most: Vec<_> = DEVICES.iter().map(|device| of(device).most.to_string()).collect();
        let row = format!("| {name} | {} |", most.join(" | "));
        assert!(guide.contains(&row), "the guide lacks: {row}");
    }
}

/// The compiler refuses each case of shape with the rule's name.
#[test]
fn compiler_refuses_each_violation_of_shape_by_name() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("broken");
    let bin = folder.join("src/bin");
    std::fs::create_dir_all(&bin).unwrap();
    let rmt = env!("CARGO_MANIFEST_DIR");
    std::fs::write(
        folder.join("Cargo.toml"),
        format!(
            "[package]\nname = \"broken\"\nversion = \"0.0.0\"\nedition = \"2024\"\n[workspace]\n\
             [dependencies]\nwave-rmt = {{ path = {rmt:?} }}\n"
        ),
    )
    .unwrap();
    std::fs::copy(Path::new(rmt).join("../Cargo.lock"), folder.join("Cargo.lock")).unwrap();
    for (index, case) in cases::SHAPE.iter().enumerate() {
        let text = format!(
            "#![allow(dead_code)]\n#[path = {:?}]\nmod cases;\n\
             const _: () = cases::SHAPE[{index}].pipeline.must_fit(&cases::SHAPE[{index}].device);\nfn main() {{}}\n",
            Path::new(rmt).join("tests/broken/cases.rs"),
        );
        std::fs::write(bin.join(format!("{}.rs", case.rule.name())), text).unwrap();
    }
    let output = Command::new(env!("CARGO"))
        .args(["check", "--offline", "--bins", "--keep-going", "--message-format", "short"])
        .env("CARGO_TARGET_DIR", folder.join("target"))
        .current_dir(&folder)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    for case in cases::SHAPE {
        let name = case.rule.name();
        let place = format!("src/bin/{name}.rs");
        let refused = text.lines().any(|line| {
            line.starts_with(&place)
                && (line.contains(&format!("[{name}]")) || line.contains(&format!("[{name};")))
        });
        assert!(refused, "{name}:\n{text}");
    }
}

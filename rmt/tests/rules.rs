//! Every rule of the checker, by a pipeline that violates it and nothing else: at run time, and in the compiler.

use std::path::Path;
use std::process::Command;

use wave_rmt::check::{Rule, place};

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
         TofinoDevice::getStatefulAluSpec, CmpUnits]. Compute one comparison in a stage before, and hand its sign in as a field."
    );
    assert_eq!(
        by_rule("write-once"),
        "table.action: 2 writes of one field; the limit is 1 [write-once]. All operations of an action happen at once: keep one."
    );
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

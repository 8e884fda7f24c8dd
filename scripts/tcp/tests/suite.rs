//! The suite of scripts passes, and each of its expectations is checked.

use std::path::PathBuf;

use wave_tcp::datapaths::DatapathKind;
use wave_tcp_script::suite::{outcome, scripts, text};

fn suite() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/tcp"))
}

#[test]
fn every_script_passes_and_each_of_its_mutants_fails() {
    let files = scripts(&[suite()]).unwrap();
    assert!(files.len() >= 120, "{} scripts", files.len());
    let (mut wrong, mut mutants) = (Vec::new(), 0);
    for path in &files {
        let name = path.display();
        let text = text(path).unwrap();
        assert!(text.starts_with("// "), "{name}: must start with a comment that names the rule");
        for line in text.lines().filter_map(|line| line.strip_prefix("// Not over ")) {
            let (kind, why) = line.split_once(": ").unwrap_or((line, ""));
            assert!(kind.parse::<DatapathKind>().is_ok() && !why.is_empty(), "{name}: {line}");
        }
        let outcome = outcome(path, &text, DatapathKind::default(), true);
        mutants += outcome.mutants;
        if let Err(error) = &outcome.result {
            wrong.push(format!("{name}: {error}"));
        }
        for (line, what) in &outcome.survivors {
            wrong.push(format!("{name}:{line}: still passes with {what} flipped"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(mutants > files.len(), "{mutants} mutants");
}

#[test]
fn every_script_that_concerns_another_data_path_passes_over_it() {
    for kind in &DatapathKind::ALL[1..] {
        let (mut run, mut wrong) = (0, Vec::new());
        for path in &scripts(&[suite()]).unwrap() {
            let outcome = outcome(path, &text(path).unwrap(), *kind, false);
            run += usize::from(outcome.left_out.is_none());
            if let Err(error) = outcome.result {
                wrong.push(format!("{}: {error}", path.display()));
            }
        }
        assert!(wrong.is_empty() && run >= 190, "{}, {run} scripts: {wrong:#?}", kind.name());
    }
}

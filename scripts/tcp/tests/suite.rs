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

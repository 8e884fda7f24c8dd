//! The suite of scripts passes, and looks at each of its expectations.

use std::path::PathBuf;

use wave_tcp_script::suite::{outcome, scripts, text};

fn suite() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/tcp"))
}

#[test]
fn scripts_pass_and_fail_with_an_expectation_flipped() {
    let files = scripts(&[suite()]).unwrap();
    assert!(files.len() >= 120, "{} scripts", files.len());
    let (mut wrong, mut mutants) = (Vec::new(), 0);
    for path in &files {
        let name = path.display();
        let text = text(path).unwrap();
        assert!(text.starts_with("// "), "{name}: the first comment names the rule");
        let outcome = outcome(path, &text, true);
        mutants += outcome.mutants;
        if let Err(error) = &outcome.result {
            wrong.push(format!("{name}: {error}"));
        }
        for (line, what) in &outcome.survivors {
            wrong.push(format!("{name}:{line}: passes with another {what}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(mutants > files.len(), "{mutants} mutants");
}

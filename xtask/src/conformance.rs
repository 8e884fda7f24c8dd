//! Files of docs/conformance: the rules of a document, each with existing tests or a reason for
//! having none.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use serde::Deserialize;

const FOLDER: &str = "docs/conformance";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    document: String,
    /// The highest rule number; numbers start at 1.
    rules: u32,
    /// The least number of rules that have tests.
    tested: usize,
    must: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    number: u32,
    clause: String,
    rule: String,
    #[serde(default)]
    test: Names,
    #[serde(default)]
    script: Names,
    reason: Option<String>,
}

/// One name or more.
#[derive(Deserialize)]
#[serde(untagged)]
enum Names {
    One(String),
    Many(Vec<String>),
}

impl Default for Names {
    fn default() -> Names {
        Names::Many(Vec::new())
    }
}

impl Names {
    fn all(&self) -> &[String] {
        match self {
            Names::One(name) => std::slice::from_ref(name),
            Names::Many(names) => names,
        }
    }
}

/// Complaints about a tracked file, if it is a list of rules.
pub fn complaints(path: &Path, text: &str) -> Vec<String> {
    if !path.starts_with(FOLDER) || path.extension().is_none_or(|extension| extension != "toml") {
        return Vec::new();
    }
    let read = |file: &str| std::fs::read_to_string(file).ok();
    let about = |what: String| format!("{}: {what}", path.display());
    holes(text, &read).into_iter().map(about).collect()
}

/// The list as a page of Markdown.
pub fn page(text: &str) -> Result<String, String> {
    let Document { document, rules, must, .. } =
        toml::from_str(text).map_err(|error| error.to_string())?;
    let has_test = |rule: &&Rule| rule.reason.is_none();
    let tested = must.iter().filter(has_test).count();
    let mut page = format!(
        "# {document}: its rules and their tests\n\n\
         {tested} of {rules} rules have a test that fails when the rule is broken; the others have a reason.\n\n\
         | number | clause | rule | tests and scripts, or the reason why there is none |\n| --- | --- | --- | --- |\n"
    );
    for Rule { number, clause, rule, test, script, reason } in must {
        let names = test.all().iter().chain(script.all()).map(|name| format!("`{name}`"));
        let held = reason.unwrap_or_else(|| names.collect::<Vec<_>>().join(", "));
        let _ = writeln!(
            page,
            "| {number} | {clause} | {} | {} |",
            rule.replace('|', "\\|"),
            held.replace('|', "\\|")
        );
    }
    Ok(page)
}

/// Gaps in a document's list. `read` returns a file's text, if the file exists.
fn holes(text: &str, read: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let document: Document = match toml::from_str(text) {
        Ok(document) => document,
        Err(error) => return vec![error.to_string()],
    };
    let mut holes = Vec::new();
    let mut seen = BTreeSet::new();
    let mut tested = 0;
    for rule in &document.must {
        let number = rule.number;
        let mut complain = |what: String| holes.push(format!("rule {number}: {what}"));
        if !(1..=document.rules).contains(&number) {
            complain(format!("the document's rules are 1 to {}", document.rules));
        } else if !seen.insert(number) {
            complain("it is listed twice".into());
        }
        if rule.clause.is_empty() || rule.rule.is_empty() {
            complain("clause or rule is empty".into());
        }
        let (tests, scripts) = (rule.test.all(), rule.script.all());
        let has_test = !tests.is_empty() || !scripts.is_empty();
        tested += usize::from(has_test);
        match rule.reason.as_deref() {
            None if !has_test => complain("it has neither a test nor a reason".into()),
            Some(reason) if has_test || reason.trim().is_empty() => {
                complain("only a rule without tests has a reason, which must not be empty".into());
            }
            _ => {}
        }
        for missing in tests.iter().filter_map(|test| missing_test(test, read)) {
            complain(missing);
        }
        for script in scripts.iter().filter(|script| read(script).is_none()) {
            complain(format!("there is no script {script}"));
        }
    }
    for number in (1..=document.rules).filter(|number| !seen.contains(number)) {
        holes.push(format!("rule {number} is missing"));
    }
    if tested < document.tested {
        holes.push(format!("{tested} rules have tests, but `tested` is {}", document.tested));
    }
    holes
}

/// The complaint about a test's name, "file::function", if there is one.
fn missing_test(test: &str, read: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let Some((file, function)) = test.split_once("::") else {
        return Some(format!("`{test}` is not of the form \"file::function\""));
    };
    let Some(text) = read(file) else { return Some(format!("there is no file {file}")) };
    let starts = format!("fn {function}(");
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let is_test = |at: usize| {
        let before = lines[..at].iter().rev();
        before.take_while(|line| line.starts_with("#[")).any(|line| *line == "#[test]")
    };
    let mut found = (0..lines.len()).filter(|at| lines[*at].starts_with(&starts));
    (!found.any(is_test)).then(|| format!("{file} has no test {function}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "\n#[test]\n#[should_panic]\nfn real() {\n}\nfn helper() {}\n";

    fn found(tested: usize, rules: &[&str]) -> Vec<String> {
        let head = format!("document = \"D\"\nrules = 2\ntested = {tested}\n");
        let rules =
            rules.iter().map(|rule| format!("[[must]]\nclause = \"1\"\nrule = \"R\"\n{rule}\n"));
        let text = head + &rules.collect::<String>();
        let read = |file: &str| match file {
            "a.rs" => Some(CODE.to_owned()),
            "a.pkt" => Some(String::new()),
            _ => None,
        };
        holes(&text, &read)
    }

    #[test]
    fn a_page_has_each_rule_with_its_tests_or_its_reason() {
        let rules = "[[must]]\nnumber = 1\nclause = \"3.1\"\nrule = \"A | B\"\ntest = [\"a.rs::b\", \"a.rs::c\"]\n\
                     [[must]]\nnumber = 2\nclause = \"4\"\nrule = \"C\"\nreason = \"because\"\n";
        let page = page(&format!("document = \"D\"\nrules = 2\ntested = 1\n{rules}")).unwrap();
        assert!(page.contains("1 of 2 rules have a test"), "{page}");
        assert!(
            page.ends_with(
                "| 1 | 3.1 | A \\| B | `a.rs::b`, `a.rs::c` |\n| 2 | 4 | C | because |\n"
            ),
            "{page}"
        );
    }

    const ONE: &str = "number = 1\ntest = \"a.rs::real\"";
    const TWO: &str = "number = 2\nreason = \"because\"";

    #[test]
    fn a_complete_list_has_no_complaints() {
        assert_eq!(found(1, &[ONE, TWO]), Vec::<String>::new());
        let scripted = "number = 2\nscript = [\"a.pkt\"]\ntest = [\"a.rs::real\", \"a.rs::real\"]";
        assert_eq!(found(2, &[ONE, scripted]), Vec::<String>::new());
    }

    #[test]
    fn each_gap_is_found() {
        for (rules, expected) in [
            (&[ONE][..], "rule 2 is missing"),
            (&[ONE, TWO, TWO], "rule 2: it is listed twice"),
            (&[ONE, TWO, "number = 3\nreason = \"x\""], "rule 3: the document's rules are 1 to 2"),
            (&[ONE, "number = 2"], "rule 2: it has neither a test nor a reason"),
            (&[ONE, "number = 2\nreason = \" \""], "rule 2: only a rule without tests"),
            (
                &[TWO, "number = 1\ntest = \"a.rs::real\"\nreason = \"x\""],
                "rule 1: only a rule without tests",
            ),
            (&[ONE, "number = 2\ntest = \"a.rs::other\""], "rule 2: a.rs has no test other"),
            (&[ONE, "number = 2\ntest = \"a.rs::helper\""], "rule 2: a.rs has no test helper"),
            (&[ONE, "number = 2\ntest = \"b.rs::real\""], "rule 2: there is no file b.rs"),
            (&[ONE, "number = 2\ntest = \"real\""], "rule 2: `real` is not of the form"),
            (&[ONE, "number = 2\nscript = \"b.pkt\""], "rule 2: there is no script b.pkt"),
        ] {
            let holes = found(1, rules);
            assert_eq!(holes.len(), 1, "{holes:?}");
            assert!(holes[0].starts_with(expected), "{holes:?}");
        }
        assert_eq!(found(2, &[ONE, TWO]), ["1 rules have tests, but `tested` is 2"]);
        assert_eq!(holes("rules = 1", &|_| None).len(), 1);
    }
}

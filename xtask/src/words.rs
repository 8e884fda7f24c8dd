//! `cargo xtask words BASE`: lists facts that comments and documents lost since a commit.
//!
//! An edit of words must not lose a fact. Facts that this program recognizes are SAFETY arguments, numbers with their units,
//! memory orderings and citations. Each fact in a removed line of a comment or document that no added line contains is listed
//! with its line; a reader approves the loss, or restores the fact. A fact that is now only in another file has moved, or is
//! another fact that looks the same: it is listed separately.

use std::collections::BTreeMap;
use std::process::{Command, ExitCode};

pub const USAGE: &str = "usage: cargo xtask words BASE            list SAFETY arguments, numbers, orderings and citations that comments and \
                         documents lost since the commit BASE";

/// Words after which a number is a citation.
const SOURCES: [&str; 14] = [
    "adr",
    "algorithm",
    "appendix",
    "chapter",
    "clause",
    "figure",
    "figures",
    "rfc",
    "section",
    "sections",
    "table",
    "tables",
    "thesis",
    "wave",
];

/// Words that are units after a number.
const UNITS: [&str; 27] = [
    "%", "b", "bits", "bytes", "gib", "ghz", "h", "hours", "hz", "kib", "lines", "m/s", "mb",
    "mhz", "mib", "min", "minutes", "ms", "ns", "pages", "ppm", "s", "seconds", "tib", "times",
    "us", "words",
];

const ORDERINGS: [&str; 9] = [
    "acqrel",
    "acquire",
    "barrier",
    "fence",
    "membarrier",
    "monotonic",
    "relaxed",
    "release",
    "seqcst",
];

pub fn main(arguments: &[String]) -> ExitCode {
    let [base] = arguments else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match changed_since(base) {
        Ok(diff) => {
            let Lost { gone, elsewhere } = lost(&diff);
            elsewhere.iter().for_each(|line| println!("elsewhere: {line}"));
            gone.iter().for_each(|line| println!("{line}"));
            println!(
                "words: {} lines lost a fact; the facts of {} more are only in another file",
                gone.len(),
                elsewhere.len()
            );
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("words: {why}");
            ExitCode::FAILURE
        }
    }
}

fn changed_since(base: &str) -> Result<String, String> {
    let kinds = ["*.rs", "*.md", "*.c", "*.h", "*.toml", "*.py", "*.sh", "*.proto"];
    let mut git = Command::new("git");
    git.args(["diff", "--unified=0", "--no-color", "--no-ext-diff", "--find-renames", base, "--"])
        .args(kinds);
    let output = git.output().map_err(|error| format!("git: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A removed line, and its facts.
struct Removed<'a> {
    file: &'a str,
    line: usize,
    text: &'a str,
    facts: Vec<String>,
}

/// Removed lines with their missing facts, for printing.
#[derive(Debug, Default, PartialEq, Eq)]
struct Lost {
    /// No added line has the fact.
    gone: Vec<String>,
    /// Only added lines of other files have it.
    elsewhere: Vec<String>,
}

fn lost(diff: &str) -> Lost {
    let mut removed = Vec::new();
    // For each fact and file, the number of added lines with the fact.
    let mut added: BTreeMap<(String, &str), usize> = BTreeMap::new();
    let (mut old, mut new, mut line) = ("", "", 0);
    let mut in_safety = false;
    for text in diff.lines() {
        if let Some(file) = text.strip_prefix("--- ") {
            old = file.strip_prefix("a/").unwrap_or(file);
        } else if let Some(file) = text.strip_prefix("+++ ") {
            new = file.strip_prefix("b/").unwrap_or(file);
        } else if let Some(hunk) = text.strip_prefix("@@ -") {
            line = hunk.split([',', ' ']).next().and_then(|line| line.parse().ok()).unwrap_or(0);
            in_safety = false;
        } else if let Some(text) = text.strip_prefix('-') {
            let text_of_words = words_of(old, text);
            in_safety = text_of_words
                .is_some_and(|words| is_safety(words) || in_safety && !words.trim().is_empty());
            if let Some(words) = text_of_words {
                let mut facts = facts(words);
                // A SAFETY argument counts line by line: each line is kept unchanged, or listed for review.
                facts.extend(in_safety.then(|| format!("SAFETY {}", plain(words))));
                removed.push(Removed { file: old, line, text, facts });
            }
            line += 1;
        } else if let Some(text) = text.strip_prefix('+')
            && let Some(words) = words_of(new, text)
        {
            for fact in facts(words).into_iter().chain([format!("SAFETY {}", plain(words))]) {
                *added.entry((fact, new)).or_default() += 1;
            }
        }
    }
    for Removed { file, facts, .. } in &mut removed {
        facts.retain(|fact| !taken(added.get_mut(&(fact.clone(), *file))));
    }
    let mut lost = Lost::default();
    for Removed { file, line, text, facts } in removed {
        let (mut gone, mut elsewhere) = (Vec::new(), Vec::new());
        for fact in facts {
            let mut others =
                added.range_mut((fact.clone(), "")..).take_while(|((other, _), _)| *other == fact);
            let is_elsewhere = others.any(|(_, left)| taken(Some(left)));
            let shown = if fact.starts_with("SAFETY ") { "SAFETY".to_owned() } else { fact };
            if is_elsewhere { elsewhere.push(shown) } else { gone.push(shown) }
        }
        for (facts, list) in [(gone, &mut lost.gone), (elsewhere, &mut lost.elsewhere)] {
            if !facts.is_empty() {
                list.push(format!("{file}:{line}: {}\n    {}", facts.join(", "), text.trim()));
            }
        }
    }
    lost
}

/// Decrements a count. Returns whether it was above zero.
fn taken(count: Option<&mut usize>) -> bool {
    let Some(count) = count.filter(|count| **count > 0) else { return false };
    *count -= 1;
    true
}

/// The words of a line: the whole line of a document, the comment of a line of code.
fn words_of<'a>(file: &str, line: &'a str) -> Option<&'a str> {
    if file.ends_with(".md") {
        return Some(line);
    }
    let marks: &[&str] = match file.rsplit_once('.').map(|(_, extension)| extension) {
        Some("rs" | "c" | "h" | "proto") => &["//", "/*", " * "],
        _ => &["# "],
    };
    marks
        .iter()
        .filter_map(|mark| line.find(mark).map(|at| &line[at + mark.len()..]))
        .max_by_key(|words| words.len())
}

fn is_safety(words: &str) -> bool {
    words.contains("SAFETY:") || words.contains("# Safety")
}

fn plain(words: &str) -> String {
    words.trim_start_matches(['/', '!', '*', ' ']).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Numbers with their units, orderings and citations.
fn facts(words: &str) -> Vec<String> {
    let trim = |word: &str| {
        let ends =
            |letter: char| !letter.is_alphanumeric() && !matches!(letter, '%' | ')' | '-' | '+');
        word.trim_matches(ends).trim_end_matches('-').to_lowercase()
    };
    let words: Vec<String> =
        words.split_whitespace().map(trim).filter(|word| !word.is_empty()).collect();
    let mut facts = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let is_number = word.chars().any(|letter| letter.is_ascii_digit());
        if is_number {
            let before = at.checked_sub(1).map(|before| words[before].as_str());
            let source = before.filter(|before| SOURCES.contains(before));
            let unit = words.get(at + 1).filter(|after| UNITS.contains(&after.as_str()));
            let word = word.trim_end_matches(')');
            facts.push(match (source, unit) {
                (Some(source), _) => format!("{source} {word}"),
                (None, Some(unit)) => format!("{word} {unit}"),
                (None, None) => word.to_owned(),
            });
        } else if ORDERINGS.iter().any(|ordering| word.trim_end_matches(')') == *ordering) {
            facts.push(word.trim_end_matches(')').to_owned());
        }
    }
    facts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn diff(file: &str, removed: &[&str], added: &[&str]) -> String {
        let removed: String = removed.iter().map(|line| format!("-{line}\n")).collect();
        let added: String = added.iter().map(|line| format!("+{line}\n")).collect();
        format!("--- a/{file}\n+++ b/{file}\n@@ -7,2 +7,2 @@\n{removed}{added}")
    }

    #[test]
    fn numbers_units_orderings_and_citations_are_facts() {
        let text = "Waits 10 us (RFC 9293, 3.8.5; Wave 5.4), `Release` before fork(2), 64-byte lines, and nothing else.";
        assert_eq!(
            facts(text),
            ["10 us", "rfc 9293", "3.8.5", "wave 5.4", "release", "fork(2", "64-byte lines"]
        );
    }

    #[test]
    fn moved_and_reworded_facts_are_kept() {
        let told = diff("a.rs", &["    /// Waits 10 us."], &["/// It waits for 10 us."]);
        assert_eq!(lost(&told), Lost::default());
        let moved = diff("a.rs", &["    /// Waits 10 us.", "let x = 5;"], &[])
            + &diff("b.md", &[], &["It waits for 10 us."]);
        assert_eq!(lost(&moved).gone, Vec::<String>::new());
        assert_eq!(lost(&moved).elsewhere, ["a.rs:7: 10 us\n    /// Waits 10 us."]);
        // Code is not a comment, and a number that stood twice must still stand twice.
        let halved = diff("a.rs", &["// 5 ms", "// 5 ms"], &["// 5 ms", "let y = 5;"]);
        assert_eq!(lost(&halved).gone, ["a.rs:8: 5 ms\n    // 5 ms"]);
    }

    #[test]
    fn every_line_of_a_safety_argument_is_kept_or_listed() {
        let argument = ["// SAFETY: the file is", "// sealed.", "unsafe { x() }"];
        assert_eq!(lost(&diff("a.rs", &argument, &argument)), Lost::default());
        let shortened = lost(&diff("a.rs", &argument, &["// SAFETY: the file is"]));
        assert_eq!(shortened.gone, ["a.rs:8: SAFETY\n    // sealed."]);
    }
}

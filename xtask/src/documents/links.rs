//! Finds broken links, and names of tests and files that no longer exist.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use super::markdown::{References, line_of, references};

/// The site's table of contents, which must link to every page.
pub const SUMMARY: &str = "docs/SUMMARY.md";

/// The decision records: their own README lists them, and the site adds them from there.
pub const RECORDS: &str = "docs/adr";

/// Files whose tables name tests and source files.
const NAMING: [&str; 3] = ["docs/bounds.md", "docs/threat-model.md", "docs/traps.md"];

/// The tracked files: possible targets of links.
pub struct Tree {
    files: BTreeSet<PathBuf>,
    folders: BTreeSet<PathBuf>,
}

impl Tree {
    pub fn of(files: &[PathBuf]) -> Tree {
        let ancestors =
            |file: &PathBuf| file.ancestors().skip(1).map(Path::to_path_buf).collect::<Vec<_>>();
        let folders =
            files.iter().flat_map(ancestors).filter(|folder| !folder.as_os_str().is_empty());
        Tree { files: files.iter().cloned().collect(), folders: folders.collect() }
    }

    pub fn is_file(&self, path: &Path) -> bool {
        self.files.contains(path)
    }

    pub fn is_folder(&self, path: &Path) -> bool {
        self.folders.contains(path)
    }

    fn has(&self, path: &Path) -> bool {
        self.is_file(path) || self.is_folder(path)
    }

    /// Whether a file's path is this path or ends with it; tables shorten paths.
    fn has_end(&self, path: &Path) -> bool {
        let path = Path::new(path.to_str().unwrap_or_default().trim_end_matches('/'));
        self.files.iter().chain(&self.folders).any(|file| file.ends_with(path))
    }

    pub fn pages(&self) -> impl Iterator<Item = &PathBuf> {
        self.files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "md"))
    }
}

/// The target of a relative link of `page`, and its anchor. `None` for links to other sites.
pub fn target(page: &Path, destination: &str) -> Option<(PathBuf, Option<String>)> {
    if destination.contains("://") || destination.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = match destination.split_once('#') {
        Some((path, anchor)) => (path, Some(anchor.to_owned())),
        None => (destination, None),
    };
    if path.is_empty() {
        return Some((page.to_path_buf(), anchor));
    }
    let mut target = page.parent().unwrap_or(Path::new("")).to_path_buf();
    for part in Path::new(path).components() {
        match part {
            // Beyond the top the path becomes one that no tracked file has.
            Component::ParentDir if !target.pop() => target.push(".."),
            Component::ParentDir | Component::CurDir => {}
            part => target.push(part),
        }
    }
    Some((target, anchor))
}

/// Complaints about the Markdown among these tracked files.
pub fn complaints(files: &[PathBuf]) -> Vec<String> {
    found(files, &|path| std::fs::read_to_string(path).ok())
}

fn found(files: &[PathBuf], read: &dyn Fn(&Path) -> Option<String>) -> Vec<String> {
    let tree = Tree::of(files);
    let texts: BTreeMap<&PathBuf, String> =
        tree.pages().filter_map(|page| Some((page, read(page)?))).collect();
    let parsed: BTreeMap<&PathBuf, References> =
        texts.iter().map(|(page, text)| (*page, references(text))).collect();
    let functions = functions(files, read);
    let mut complaints = Vec::new();
    for (page, references) in &parsed {
        let mut complain = |byte: usize, what: String| {
            complaints.push(format!("{}:{}: {what}", page.display(), line_of(&texts[page], byte)));
        };
        for link in &references.links {
            let Some((path, anchor)) = target(page, &link.destination) else { continue };
            if !tree.has(&path) {
                complain(
                    link.range.start,
                    format!("the link to {} leads nowhere", link.destination),
                );
            } else if let (Some(anchor), Some(there)) = (anchor, parsed.get(&path))
                && !there.headings.contains(&anchor)
            {
                complain(link.range.start, format!("{} has no heading #{anchor}", path.display()));
            }
        }
        if NAMING.iter().any(|naming| page.as_path() == Path::new(naming)) {
            for (code, at) in &references.code {
                if is_path_of_code(code) && !tree.has_end(Path::new(code)) {
                    complain(*at, format!("there is no file {code}"));
                } else if is_name_of_test(code) && !functions.contains(code) {
                    complain(*at, format!("there is no test {code}"));
                }
            }
        }
    }
    complaints.extend(unlisted(&tree, &parsed));
    complaints
}

/// Pages that are missing from the table of contents.
fn unlisted(tree: &Tree, parsed: &BTreeMap<&PathBuf, References>) -> Vec<String> {
    let summary = PathBuf::from(SUMMARY);
    let Some(references) = parsed.get(&summary) else { return Vec::new() };
    let listed: BTreeSet<PathBuf> = references
        .links
        .iter()
        .filter_map(|link| Some(target(&summary, &link.destination)?.0))
        .collect();
    let is_record = |page: &Path| page.parent() == Some(Path::new(RECORDS));
    let missing = tree
        .pages()
        .filter(|page| **page != summary && !listed.contains(*page) && !is_record(page));
    missing.map(|page| format!("{}: {SUMMARY} has no link to it", page.display())).collect()
}

/// Names of the functions in Rust files.
fn functions(files: &[PathBuf], read: &dyn Fn(&Path) -> Option<String>) -> BTreeSet<String> {
    let is_rust = |file: &&PathBuf| file.extension().is_some_and(|extension| extension == "rs");
    let mut names = BTreeSet::new();
    for text in files.iter().filter(is_rust).filter_map(|file| read(file)) {
        for (at, _) in text.match_indices("fn ") {
            let name =
                text[at + 3..].split(|letter: char| !letter.is_alphanumeric() && letter != '_');
            names.extend(name.take(1).map(str::to_owned));
        }
    }
    names
}

fn is_path_of_code(code: &str) -> bool {
    let plain =
        |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-' | '.' | '/');
    code.contains('/')
        && code.chars().all(plain)
        && [".rs", ".c", ".h", "/"].iter().any(|end| code.ends_with(end))
        && !code.starts_with('/')
}

/// Names of tests are sentences: they have several words.
fn is_name_of_test(code: &str) -> bool {
    code.matches('_').count() >= 4
        && code.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found_in(files: &[(&str, &str)]) -> Vec<String> {
        let paths: Vec<PathBuf> = files.iter().map(|(path, _)| PathBuf::from(path)).collect();
        let read = |path: &Path| {
            files
                .iter()
                .find(|(name, _)| Path::new(name) == path)
                .map(|(_, text)| (*text).to_owned())
        };
        found(&paths, &read)
    }

    #[test]
    fn valid_links_have_no_complaints() {
        let files = [
            (
                "README.md",
                "# R\n[a](docs/a.md#two-words) [b](docs) [c](https://example.org/x) [d](#r) [e](src/e.rs)",
            ),
            ("docs/a.md", "# A\n## Two words\n[up](../README.md) [own](./a.md#a)"),
            ("src/e.rs", ""),
        ];
        assert_eq!(found_in(&files), Vec::<String>::new());
    }

    #[test]
    fn links_to_missing_files_and_headings_are_found() {
        for (text, expected) in [
            ("\n[a](b.md)", "docs/a.md:2: the link to b.md leads nowhere"),
            ("![a](a.svg)", "docs/a.md:1: the link to a.svg leads nowhere"),
            ("[a](../../a.md)", "docs/a.md:1: the link to ../../a.md leads nowhere"),
            ("# B\n[a](#c)", "docs/a.md:2: docs/a.md has no heading #c"),
        ] {
            assert_eq!(found_in(&[("docs/a.md", text)]), [expected]);
        }
    }

    #[test]
    fn pages_missing_from_the_summary_are_found_but_records_need_no_line() {
        let files =
            [(SUMMARY, "[a](a.md)"), ("docs/a.md", ""), ("docs/adr/1.md", ""), ("b.md", "")];
        assert_eq!(found_in(&files), ["b.md: docs/SUMMARY.md has no link to it"]);
    }

    #[test]
    fn tests_and_files_named_in_tables_must_exist() {
        let table = "`one_thing_that_always_holds` in `tests/x.rs`, `core/tests/`; `a_test_that_is_gone` in `y/x.rs`; `A::b_c`";
        let code = "#[test]\nfn one_thing_that_always_holds() {}";
        let files = [("docs/traps.md", table), ("docs/other.md", table), ("core/tests/x.rs", code)];
        let expected = [
            "docs/traps.md:1: there is no test a_test_that_is_gone",
            "docs/traps.md:1: there is no file y/x.rs",
        ];
        assert_eq!(found_in(&files), expected);
    }
}

//! `cargo xtask site`: builds the documentation as a site, with mdBook.
//!
//! mdBook needs all pages below one folder, and renders no links to folders. So the pages are laid out in the target folder, at
//! their places in the tree, with every file that they link to. A link to a folder becomes a link to its README, or plain text;
//! a link to a README becomes one to `index.html`, the page that mdBook makes of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use super::links::{self, RECORDS, SUMMARY, Tree, target};
use super::markdown::references;
use crate::{cargo, conformance};

pub const USAGE: &str = "usage: cargo xtask site                  make the documentation site in target/site/html, with mdBook, which is \
                         installed into target/mdbook";

/// mdBook (MPL-2.0) is run as a separate program, and is not part of ours.
const MDBOOK: &str = "0.5.4";
const BOOK: &str = "docs/book.toml";

pub fn main(arguments: &[String]) -> ExitCode {
    if !arguments.is_empty() {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    }
    match made() {
        Ok(index) => {
            println!("site: {}", index.display());
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("site: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Builds the site, and returns the path of its first page.
fn made() -> Result<PathBuf, String> {
    let files = crate::tracked_files()?;
    if let Some(complaint) = links::complaints(&files).first() {
        return Err(complaint.clone());
    }
    let folder = cargo::target_folder().join("site");
    let site = laid_out(&Tree::of(&files), &|path| {
        fs::read_to_string(path).map_err(|error| about(path, &error))
    })?;
    let _ = fs::remove_dir_all(&folder);
    for (path, page) in &site {
        let place = folder.join("src").join(path);
        fs::create_dir_all(place.parent().unwrap_or(&folder))
            .map_err(|error| about(&place, &error))?;
        let written = match page {
            Page::Text(text) => fs::write(&place, text),
            Page::Copy => fs::copy(path, &place).map(|_| ()),
        };
        written.map_err(|error| about(&place, &error))?;
    }
    let book = folder.join("book.toml");
    fs::copy(BOOK, &book).map_err(|error| about(&book, &error))?;
    let status = Command::new(mdbook()?).arg("build").arg(&folder).status();
    let status = status.map_err(|error| format!("mdbook: {error}"))?;
    if !status.success() {
        return Err(format!("mdbook failed ({status})"));
    }
    Ok(folder.join("html/index.html"))
}

fn about(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

/// The mdBook program of the required version, installed if it is missing.
fn mdbook() -> Result<PathBuf, String> {
    let root = cargo::target_folder().join("mdbook");
    let program = root.join("bin/mdbook");
    let is_wanted = |program: &Path| {
        let said = Command::new(program).arg("--version").output();
        said.is_ok_and(|said| {
            String::from_utf8_lossy(&said.stdout).trim() == format!("mdbook v{MDBOOK}")
        })
    };
    if is_wanted(&program) {
        return Ok(program);
    }
    eprintln!(
        "site: installing mdBook {MDBOOK} into {}: about a minute of CPU time",
        root.display()
    );
    let mut install = cargo::cargo();
    install.args([
        "install",
        "mdbook",
        "--version",
        &format!("={MDBOOK}"),
        "--locked",
        "--force",
        "--quiet",
        "--debug",
    ]);
    install.args(["--no-default-features", "--features", "search", "--root"]).arg(&root);
    // mdBook runs for only a second: neither optimization nor debug information is worth the build time.
    install.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_TARGET_DIR", root.join("build"));
    let status = install.status().map_err(|error| format!("cargo: {error}"))?;
    let _ = fs::remove_dir_all(root.join("build"));
    if status.success() && is_wanted(&program) {
        Ok(program)
    } else {
        Err(format!("cargo install mdbook failed ({status})"))
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Page {
    Text(String),
    /// A file, copied unchanged.
    Copy,
}

/// The site's sources by path: its pages, and the files that they link to.
fn laid_out(
    tree: &Tree,
    read: &dyn Fn(&Path) -> Result<String, String>,
) -> Result<BTreeMap<PathBuf, Page>, String> {
    let mut site = BTreeMap::new();
    let mut copies = BTreeSet::new();
    for page in tree.pages().filter(|page| **page != Path::new(SUMMARY)) {
        let text = relinked(page, &read(page)?, tree, &mut copies);
        site.insert(page.clone(), Page::Text(text));
    }
    let (summary, rules) = contents(tree, read)?;
    for file in rules {
        site.insert(page_of(&file), Page::Text(conformance::page(&read(&file)?)?));
    }
    for file in copies {
        site.entry(file).or_insert(Page::Copy);
    }
    site.insert("SUMMARY.md".into(), Page::Text(summary));
    Ok(site)
}

/// The page of a file in the table of contents: a list of rules is not Markdown, and becomes a page.
fn page_of(file: &Path) -> PathBuf {
    file.with_extension("md")
}

/// A page with its links changed to work in the site as well.
fn relinked(page: &Path, text: &str, tree: &Tree, copies: &mut BTreeSet<PathBuf>) -> String {
    let mut relinked = text.to_owned();
    for link in references(text).links.iter().rev() {
        let Some((path, _)) = target(page, &link.destination) else { continue };
        let source = &text[link.range.clone()];
        let Some((label, _)) = source.rsplit_once("](") else { continue };
        let to = &link.destination;
        let new = if tree.is_folder(&path) {
            if tree.is_file(&path.join("README.md")) {
                format!("{label}]({}/index.html)", to.trim_end_matches('/'))
            } else {
                label.trim_start_matches('[').to_owned()
            }
        } else if path == Path::new(SUMMARY) {
            // The table of contents is beside every page, so the link becomes plain text.
            label.trim_start_matches('[').to_owned()
        } else if path.ends_with("README.md") {
            // mdBook renames the page, but does not change links to it.
            format!("{label}]({})", to.replace("README.md", "index.html"))
        } else {
            if path.extension().is_none_or(|extension| extension != "md") {
                copies.insert(path);
            }
            continue;
        };
        relinked.replace_range(link.range.clone(), &new);
    }
    relinked
}

/// The table of contents with paths from the top of the tree, each decision record, and the lists of rules.
fn contents(
    tree: &Tree,
    read: &dyn Fn(&Path) -> Result<String, String>,
) -> Result<(String, Vec<PathBuf>), String> {
    let text = read(Path::new(SUMMARY))?;
    let mut contents = text.clone();
    let mut rules = Vec::new();
    for link in references(&text).links.iter().rev() {
        let Some((path, _)) = target(Path::new(SUMMARY), &link.destination) else { continue };
        let label = text[link.range.clone()]
            .rsplit_once("](")
            .map_or("", |(label, _)| label.trim_start_matches('['));
        let mut line = format!("[{label}]({})", page_of(&path).display());
        if path == Path::new(RECORDS).join("README.md") {
            for record in
                tree.pages().filter(|page| page.parent() == path.parent() && **page != path)
            {
                let title = references(&read(record)?).title.unwrap_or_default();
                let _ = write!(line, "\n  - [{title}]({})", record.display());
            }
        } else if path.extension().is_some_and(|extension| extension == "toml") {
            rules.push(path);
        }
        contents.replace_range(link.range.clone(), &line);
    }
    Ok((contents, rules))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_keep_their_places_and_all_links_resolve() {
        let files = [
            ("README.md", "[records](docs/adr) [code](src) [guide](docs/g.md#a) ![p](docs/p.svg)"),
            (
                SUMMARY,
                "- [W](../README.md)\n- [R](adr/README.md)\n- [G](g.md)\n- [C](conformance/c.toml)\n",
            ),
            ("docs/adr/README.md", ""),
            ("docs/adr/0001-a.md", "# 1. A"),
            ("docs/adr/0002-b.md", "# 2. B"),
            (
                "docs/g.md",
                "# A\n[list](conformance/c.toml) [x](https://example.org) [all](SUMMARY.md) [up](../README.md#w)",
            ),
            ("docs/conformance/c.toml", "document = \"D\"\nrules = 0\ntested = 0\nmust = []\n"),
            ("docs/p.svg", ""),
            ("src/a.rs", ""),
        ];
        let paths: Vec<PathBuf> = files.iter().map(|(path, _)| path.into()).collect();
        let read = |path: &Path| {
            let file = files.iter().find(|(name, _)| Path::new(name) == path);
            file.map(|(_, text)| (*text).to_owned()).ok_or_else(|| format!("no {}", path.display()))
        };
        let site = laid_out(&Tree::of(&paths), &read).unwrap();
        let text = |path: &str| match &site[Path::new(path)] {
            Page::Text(text) => text.as_str(),
            Page::Copy => "a copy",
        };
        assert_eq!(
            text("README.md"),
            "[records](docs/adr/index.html) code [guide](docs/g.md#a) ![p](docs/p.svg)"
        );
        let records = "- [R](docs/adr/README.md)\n  - [1. A](docs/adr/0001-a.md)\n  - [2. B](docs/adr/0002-b.md)\n";
        let rest = "- [G](docs/g.md)\n- [C](docs/conformance/c.md)\n";
        assert_eq!(text("SUMMARY.md"), format!("- [W](README.md)\n{records}{rest}"));
        assert_eq!((text("docs/p.svg"), text("docs/conformance/c.toml")), ("a copy", "a copy"));
        assert!(text("docs/conformance/c.md").starts_with("# D"), "{site:?}");
        assert!(text("docs/g.md").ends_with(" all [up](../index.html#w)"), "{site:?}");
        assert!(!site.contains_key(Path::new("src/a.rs")));
    }
}

//! Apt's source files, in both formats: one line per source, and deb822 stanzas.

use std::path::Path;

/// A source of packages, from one of this machine's source files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The mirror, without the suite.
    pub uri: String,
    /// The keyring's path, or, in deb822 only, the key itself over several lines. `None` if apt's
    /// common keyrings are used.
    pub signed_by: Option<String>,
}

impl Source {
    /// The deb822 stanza for a suite of this mirror.
    pub fn stanza(&self, suite: &str) -> String {
        let mut text = format!(
            "Types: deb\nURIs: {}\nSuites: {suite}\nComponents: main\nArchitectures: amd64\n",
            self.uri
        );
        if let Some(signed_by) = &self.signed_by {
            text.push_str(&format!("Signed-By:{}{signed_by}\n", separator(signed_by)));
        }
        text
    }

    /// Whether this looks like a mirror of Debian itself, commonly at `/debian`; only the order of
    /// queries depends on it.
    fn looks_like_debian(&self) -> bool {
        self.uri.trim_end_matches('/').ends_with("/debian")
    }
}

/// An inline key begins on the line after the field's name.
fn separator(value: &str) -> &'static str {
    if value.starts_with('\n') { "" } else { " " }
}

/// The machine's sources of binary packages that have a component `main`; those that look like
/// Debian come first.
pub fn of_machine(etc_apt: &Path) -> Vec<Source> {
    let mut files = vec![etc_apt.join("sources.list")];
    if let Ok(parts) = std::fs::read_dir(etc_apt.join("sources.list.d")) {
        files.extend(parts.flatten().map(|entry| entry.path()));
    }
    files.sort();
    let mut sources: Vec<Source> = Vec::new();
    for file in files {
        let Ok(text) = std::fs::read_to_string(&file) else { continue };
        let found = match file.extension().and_then(|extension| extension.to_str()) {
            Some("sources") => stanzas(&text),
            Some("list") => lines(&text),
            _ => continue,
        };
        for source in found {
            if !sources.contains(&source) {
                sources.push(source);
            }
        }
    }
    sources.sort_by_key(|source| !source.looks_like_debian());
    sources
}

/// Parses the older format: `deb [signed-by=...] URI SUITE COMPONENT...`.
fn lines(text: &str) -> Vec<Source> {
    text.lines().filter_map(line).collect()
}

fn line(line: &str) -> Option<Source> {
    let line = line.split('#').next()?.trim().strip_prefix("deb")?;
    let rest = line.strip_prefix([' ', '\t'])?.trim_start();
    let (options, rest) = match rest.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => ("", rest),
    };
    let mut words = rest.split_whitespace();
    let uri = words.next()?;
    let _suite = words.next()?;
    if !words.any(|component| component == "main") {
        return None;
    }
    let signed_by = options.split_whitespace().find_map(|option| option.strip_prefix("signed-by="));
    Some(Source { uri: uri.into(), signed_by: signed_by.map(String::from) })
}

/// Parses the deb822 format: stanzas separated by empty lines, fields continued on indented lines.
fn stanzas(text: &str) -> Vec<Source> {
    let mut sources = Vec::new();
    let mut fields: Vec<(String, String)> = Vec::new();
    for line in text.lines().chain([""]) {
        if line.starts_with('#') {
            continue;
        }
        if line.trim().is_empty() {
            sources.extend(stanza(&fields));
            fields.clear();
        } else if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = fields.last_mut() {
                value.push('\n');
                value.push_str(line);
            }
        } else if let Some((name, value)) = line.split_once(':') {
            fields.push((name.trim().to_ascii_lowercase(), value.trim().into()));
        }
    }
    sources
}

fn stanza(fields: &[(String, String)]) -> Vec<Source> {
    let field = |wanted: &str| {
        fields.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str())
    };
    let has = |name: &str, word: &str| {
        field(name).is_some_and(|value| value.split_whitespace().any(|found| found == word))
    };
    if has("enabled", "no") || !has("types", "deb") || !has("components", "main") {
        return Vec::new();
    }
    let signed_by = field("signed-by").map(String::from);
    let uris = field("uris").unwrap_or_default().split_whitespace();
    uris.map(|uri| Source { uri: uri.into(), signed_by: signed_by.clone() }).collect()
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    fn source(uri: &str, signed_by: Option<&str>) -> Source {
        Source { uri: uri.into(), signed_by: signed_by.map(String::from) }
    }

    #[test]
    fn reads_one_line_sources() {
        let text = "# deb http://off/debian sid main\n\
                    deb [arch=amd64 signed-by=/k.gpg] http://a/debian bookworm main contrib # why\n\
                    deb-src http://a/debian bookworm main\n\
                    deb\thttp://b/debian bookworm main\n\
                    deb http://c/other stable extras\n";
        let expected = [source("http://a/debian", Some("/k.gpg")), source("http://b/debian", None)];
        assert_eq!(lines(text), expected);
    }

    #[test]
    fn reads_deb822_sources() {
        let text = "Types: deb deb-src\n# a remark\nURIs: http://a/debian\n http://b/debian\n\
                    Suites: trixie\nComponents: main\nSigned-By: /k.pgp\n\n\
                    Enabled: no\nTypes: deb\nURIs: http://off\nSuites: x\nComponents: main\n\n\
                    Types: deb-src\nURIs: http://src\nSuites: x\nComponents: main\n";
        let expected =
            [source("http://a/debian", Some("/k.pgp")), source("http://b/debian", Some("/k.pgp"))];
        assert_eq!(stanzas(text), expected);
    }

    #[test]
    fn carries_an_inline_key_over() {
        let text = "Types: deb\nURIs: http://a\nSuites: x\nComponents: main\n\
                    Signed-By:\n -----BEGIN-----\n .\n mQ\n";
        let stanza = stanzas(text)[0].stanza("sid");
        assert!(stanza.ends_with("\nSigned-By:\n -----BEGIN-----\n .\n mQ\n"), "{stanza}");
        assert!(stanza.contains("\nSuites: sid\n"), "{stanza}");
    }

    #[test]
    fn asks_debian_first() {
        let folder = std::env::temp_dir().join(format!("wave-sources-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("sources.list.d")).unwrap();
        std::fs::write(folder.join("sources.list"), "deb http://x/node nodistro main\n").unwrap();
        let sid = "Types: deb\nURIs: http://a/debian/\nSuites: sid\nComponents: main\n";
        std::fs::write(folder.join("sources.list.d/debian.sources"), sid).unwrap();
        std::fs::write(folder.join("sources.list.d/old.sources.disabled"), sid).unwrap();
        let found = of_machine(&folder);
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found, [source("http://a/debian/", None), source("http://x/node", None)]);
    }
}

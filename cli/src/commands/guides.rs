//! Checks that the commands in README, guides and other documents parse.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser;
use clap::error::{ContextKind, ErrorKind};

use super::Wave;

/// Every document for users. Decision records are not among them: they describe their own time.
fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = vec![root.join("README.md"), root.join("CONTRIBUTING.md")];
    for folder in ["docs", "docs/guide", "docs/cluster"] {
        let entries = fs::read_dir(root.join(folder)).expect("a folder of documents");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        found.extend(paths.filter(|path| path.extension().is_some_and(|end| end == "md")));
    }
    found
}

/// A command in a document.
struct Told {
    line: usize,
    words: Vec<String>,
    /// Whether it is a whole command line to type, rather than a command named in a sentence.
    is_whole: bool,
}

/// Commands in blocks of code, with their continuation lines, and between backticks in sentences.
fn commands(text: &str) -> Vec<Told> {
    let mut found = Vec::new();
    let mut block: Option<&str> = None;
    let mut begun = String::new();
    for (at, line) in text.lines().enumerate() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            block = if block.is_some() { None } else { Some(language) };
            begun.clear();
            continue;
        }
        let mut tell = |text: &str, is_whole| {
            if let Some(words) = words_of(text) {
                found.push(Told { line: at + 1, words, is_whole });
            }
        };
        match block {
            // Lines without a prompt are output of commands.
            Some("console") if begun.is_empty() && !line.starts_with(['$', '#']) => {}
            Some("sh" | "console" | "bash") => {
                begun.push_str(line.trim());
                match begun.strip_suffix('\\').map(str::to_owned) {
                    Some(more) => begun = more,
                    None => tell(&std::mem::take(&mut begun), true),
                }
            }
            Some(_) => {}
            None => line.split('`').skip(1).step_by(2).for_each(|span| tell(span, false)),
        }
    }
    found
}

/// The line's words as a shell would split them; `None` if the line does not start `wave`.
fn words_of(line: &str) -> Option<Vec<String>> {
    let line = line.trim_start_matches(['$', '#', ' ']);
    let line = line.strip_prefix("sudo ").unwrap_or(line);
    let line =
        line.strip_prefix("$(which wave)").map_or(line.to_owned(), |rest| format!("wave{rest}"));
    let line = line.replace("$(pidof my-server)", "1");
    if line != "wave" && !line.starts_with("wave ") {
        return None;
    }
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    for letter in line.chars() {
        match (letter, quote) {
            ('\'' | '"', None) => quote = Some(letter),
            (_, Some(open)) if letter == open => quote = None,
            // What follows is another command, a file, or a comment.
            ('|' | '>' | '&' | ';', None) => break,
            ('#', None) if word.is_empty() => break,
            (' ', None) => words.extend((!word.is_empty()).then(|| std::mem::take(&mut word))),
            _ => word.push(letter),
        }
    }
    words.extend((!word.is_empty()).then_some(word));
    Some(words)
}

/// Whether a word is a placeholder: `PID`, `DIR/x.wavelog`, `…`.
fn is_placeholder(word: &str) -> bool {
    let capitals = word.chars().filter(char::is_ascii_uppercase).count();
    word.contains('…') || word.contains("...") || capitals > 1 && !word.starts_with("--")
}

/// The argument that an error is about.
fn unknown(error: &clap::Error) -> String {
    error.get(ContextKind::InvalidArg).map(ToString::to_string).unwrap_or_default()
}

#[test]
fn commands_in_documents_parse() {
    let (mut wrong, mut count) = (Vec::new(), 0);
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for Told { line, words, is_whole } in commands(&text) {
            count += 1;
            let Err(error) = Wave::try_parse_from(&words) else { continue };
            let has_placeholder = words.iter().any(|word| is_placeholder(word));
            let is_right = match error.kind() {
                ErrorKind::DisplayHelp
                | ErrorKind::DisplayVersion
                | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => true,
                // Test names in documents begin with a command's name and continue in words.
                ErrorKind::UnknownArgument if !is_whole => !unknown(&error).starts_with('-'),
                ErrorKind::InvalidSubcommand if !is_whole => has_placeholder,
                ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand => false,
                // The file is a program that the reader has built.
                ErrorKind::ValueValidation if error.to_string().contains("--agent") => true,
                _ => !is_whole || has_placeholder,
            };
            if !is_right {
                wrong.push(format!("{}:{line}: {}\n{error}", document.display(), words.join(" ")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 200, "{count} commands");
}

#[test]
fn commands_are_found_in_blocks_and_sentences() {
    let text = "Type `wave run` or `sudo wave x --y`.\n```console\n$ wave a\nwave b\n```\n```sh\n$ sudo wave memory run \\\n    --pid 1 # one\n\
                wave agent --rpc 'a b' & ls\n```\n```text\nwave no\n```\n";
    let found: Vec<_> =
        commands(text).into_iter().map(|told| (told.words.join(","), told.is_whole)).collect();
    let expected = [
        ("wave,run", false),
        ("wave,x,--y", false),
        ("wave,a", true),
        ("wave,memory,run,--pid,1", true),
        ("wave,agent,--rpc,a b", true),
    ];
    assert_eq!(found, expected.map(|(words, is_whole)| (words.to_owned(), is_whole)));
}

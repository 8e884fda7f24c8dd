//! Words of messages: counts with their nouns, and parsers' errors without the names of Rust's types.

use std::fmt::Display;

/// A count with its noun: `1 point`, `2 points`, `3 histories`, `4 processes`.
pub fn counted<N: Display + PartialEq + From<u8>>(count: N, noun: &str) -> String {
    let is_one = count == N::from(1);
    format!("{count} {}", if is_one { noun.to_owned() } else { plural(noun) })
}

/// The regular plural of a noun.
fn plural(noun: &str) -> String {
    let ends_in_vowel_y = ["ay", "ey", "oy", "uy"].iter().any(|end| noun.ends_with(end));
    match noun.strip_suffix('y') {
        Some(stem) if !ends_in_vowel_y => format!("{stem}ies"),
        _ if ["s", "x", "z", "ch", "sh"].iter().any(|end| noun.ends_with(end)) => {
            format!("{noun}es")
        }
        _ => format!("{noun}s"),
    }
}

/// A parser's message in one line, with the names of Rust's types replaced by the words of a file's author. `fields` is that
/// author's word for a value with named fields: a table in TOML, an object in JSON.
pub fn plain(message: &str, fields: &str) -> String {
    let message = message.trim_end().replace('\n', ", ");
    let Some((head, expected)) = message.rsplit_once("expected ") else {
        return message;
    };
    let (what, place) = match expected.find(" at line ") {
        Some(at) => expected.split_at(at),
        None => (expected, ""),
    };
    let what = match what {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number, 0 or more",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a sequence" => "a list",
        "a boolean" => "true or false",
        "a map" => fields,
        what if ["struct ", "tuple struct ", "enum ", "newtype "]
            .iter()
            .any(|kind| what.starts_with(kind)) =>
        {
            fields
        }
        other => other,
    };
    format!("{head}expected {what}{place}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_of_one_is_singular_and_others_have_the_regular_plural() {
        assert_eq!(
            [0, 1, 2].map(|count| counted(count, "point")),
            ["0 points", "1 point", "2 points"]
        );
        let nouns = ["key", "history", "process", "batch", "worker"];
        let expected = ["2 keys", "2 histories", "2 processes", "2 batches", "2 workers"];
        assert_eq!(nouns.map(|noun| counted(2, noun)), expected);
        assert_eq!(counted(1, "history"), "1 history");
    }

    #[test]
    fn a_parsers_message_names_no_type_of_rust() {
        for (message, expected) in [
            (
                "invalid type: map, expected struct Plan at line 1 column 8",
                "invalid type: map, expected an object at line 1 column 8",
            ),
            (
                "invalid value: -1, expected u32\n",
                "invalid value: -1, expected a whole number, 0 or more",
            ),
            ("missing field `x`", "missing field `x`"),
            (
                "invalid type: string \"a\", expected f64",
                "invalid type: string \"a\", expected a number",
            ),
        ] {
            assert_eq!(plain(message, "an object"), expected);
        }
    }
}

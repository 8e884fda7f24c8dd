//! Why a text is no pipeline, and a pipeline no text.

use std::fmt::Display;

use crate::read::TEXT_BYTES_MAX;

/// Why a text is not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The text is long.
    #[error("longer than {TEXT_BYTES_MAX} bytes, the most of a pipeline in JSON")]
    TooLong,
    /// The text is not JSON.
    #[error("not JSON: {0}")]
    NotJson(String),
    /// The JSON is no pipeline.
    #[error("{path}{}{what}", if path.is_empty() { "" } else { ": " })]
    NotPipeline {
        /// Where in the text, such as `egress[3].actions[0].ops[1].to`; empty for the whole.
        path: String,
        /// What is wrong, and what to do.
        what: String,
    },
}

impl ReadError {
    pub(crate) fn new(path: impl Display, what: impl Display) -> ReadError {
        ReadError::NotPipeline { path: printable(path), what: printable(what) }
    }
}

/// Why a pipeline is not written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// A file cannot hold the pipeline: two things have one name, or the pipeline is beyond the limits of [`read()`](crate::read()).
    #[error("{0}")]
    Unreadable(#[from] ReadError),
    /// The file would be of another pipeline: the constant breaks a rule of shape, or sets an operand that nothing reads.
    #[error(
        "the file would not give the same pipeline: look for violations of shape (`Pipeline::check`), and for operands that nothing reads"
    )]
    Differs,
}

/// Most characters of a text from a file that an error repeats, at its start and at its end, where the remedy is.
const CHARACTERS_MAX: [usize; 2] = [150, 250];

/// A text without control characters, which a terminal would obey. A long one is cut in its middle.
pub(crate) fn printable(text: impl Display) -> String {
    let mut printable = String::new();
    for character in text.to_string().chars() {
        if character.is_control() {
            printable.extend(character.escape_default());
        } else {
            printable.push(character);
        }
    }
    let [start, end] = CHARACTERS_MAX;
    match printable.chars().count().checked_sub(start + end) {
        None | Some(0) => printable,
        Some(cut) => {
            let last = printable.chars().skip(start + cut);
            printable.chars().take(start).chain("...".chars()).chain(last).collect()
        }
    }
}

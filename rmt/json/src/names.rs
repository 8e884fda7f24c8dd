//! Names of a file: where they stand, what they may be, and what they refer to.

use std::fmt;

use crate::error::ReadError;
use crate::format;

/// Most bytes of a name, so that a violation of the checker fits its text.
const NAME_BYTES_MAX: usize = 40;

/// A place in a file.
#[derive(Clone, Copy)]
pub(crate) struct At<'p> {
    outer: Option<&'p At<'p>>,
    step: Step<'p>,
}

#[derive(Clone, Copy)]
enum Step<'p> {
    Root,
    Key(&'p str),
    Index(usize),
}

impl At<'_> {
    pub(crate) const ROOT: At<'static> = At { outer: None, step: Step::Root };

    pub(crate) fn key<'p>(&'p self, key: &'p str) -> At<'p> {
        At { outer: Some(self), step: Step::Key(key) }
    }

    pub(crate) fn index(&self, index: usize) -> At<'_> {
        At { outer: Some(self), step: Step::Index(index) }
    }

    pub(crate) fn refuse<T>(&self, what: impl fmt::Display) -> Result<T, ReadError> {
        Err(ReadError::new(self, what))
    }

    /// Refuses a list that is too long.
    pub(crate) fn limit(&self, length: usize, most: usize) -> Result<(), ReadError> {
        match length > most {
            true => {
                self.refuse(format_args!("{length} elements; remove some: at most {most} are read"))
            }
            false => Ok(()),
        }
    }

    /// Refuses a text that is no name.
    pub(crate) fn name(&self, name: &str) -> Result<(), ReadError> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        match (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_allowed) {
            true => Ok(()),
            false => self.refuse(format_args!(
                "{name:?} is no name; take 1 to {NAME_BYTES_MAX} letters of ASCII, digits, `_` and `-`"
            )),
        }
    }
}

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_first = self.outer.is_none_or(|outer| matches!(outer.step, Step::Root));
        if let Some(outer) = self.outer {
            outer.fmt(f)?;
        }
        match self.step {
            Step::Root => Ok(()),
            Step::Key(key) if is_first => f.write_str(key),
            Step::Key(key) => write!(f, ".{key}"),
            Step::Index(index) => write!(f, "[{index}]"),
        }
    }
}

/// A thing with a name to which others refer.
pub(crate) trait Named {
    const KIND: &'static str;
    /// Where a file declares such things.
    const DECLARED: &'static str;

    fn name(&self) -> &str;
}

macro_rules! named {
    ($($type:ident, $kind:literal, $declared:literal;)*) => {
        $(impl Named for format::$type {
            const KIND: &'static str = $kind;
            const DECLARED: &'static str = $declared;

            fn name(&self) -> &str {
                &self.name
            }
        })*
    };
}

named! {
    Field, "field", "the pipeline's `fields`";
    Register, "register", "the pipeline's `registers`";
    Instruction, "instruction", "the register's `instructions`";
    ParserState, "parser state", "the pipeline's `parser`";
    Action, "action", "the table's `actions`";
}

/// Refuses a list of which two have one name, or one has none.
pub(crate) fn declare<T: Named>(at: At<'_>, list: &[T], most: usize) -> Result<(), ReadError> {
    at.limit(list.len(), most)?;
    for (index, named) in list.iter().enumerate() {
        let (at, name) = (at.index(index), named.name());
        at.key("name").name(name)?;
        if list[..index].iter().any(|other| other.name() == name) {
            let kind = T::KIND;
            return at.key("name").refuse(format_args!(
                "there is another {kind} named {name:?} before it; choose another name"
            ));
        }
    }
    Ok(())
}

/// The index of the thing with a name.
pub(crate) fn find<T: Named>(at: At<'_>, list: &[T], name: &str) -> Result<usize, ReadError> {
    if let Some(index) = list.iter().position(|named| named.name() == name) {
        return Ok(index);
    }
    let (kind, declared) = (T::KIND, T::DECLARED);
    match nearest(list, name) {
        Some(nearest) => {
            at.refuse(format_args!("no {kind} named {name:?}; did you mean {nearest:?}?"))
        }
        None => at.refuse(format_args!("no {kind} named {name:?}; declare it in {declared}")),
    }
}

/// The name that differs from this one in a third of its characters at most.
fn nearest<'l, T: Named>(list: &'l [T], name: &str) -> Option<&'l str> {
    if name.len() > NAME_BYTES_MAX {
        return None;
    }
    let distance = |other: &str| strsim::damerau_levenshtein(other, name);
    let nearest = list.iter().map(Named::name).min_by_key(|other| distance(other))?;
    (distance(nearest) <= (name.len() / 3).max(1)).then_some(nearest)
}

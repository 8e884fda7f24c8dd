//! Every field of every kind of scenario: type, default, range and meaning (docs/adr/0070).
//!
//! Names, types and required fields come from the types that read the files ([`trace`]). Defaults and ranges are noted where
//! they are enforced, while the parser reads the examples ([`Source::within`](super::check::Source::within)). Only meanings,
//! and defaults and ranges that depend on other fields, are written here, a row for each field ([`rows`]).

mod rows;
mod trace;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

pub use rows::{DESCRIPTION, KIND, NAME};
use trace::Shape;
pub use trace::{Traced, fields};
use wave_sched::policies;

use super::check::{self, Source};
use super::{ScenarioError, file, memory, rpc, udp, udp_feedback, udp_preemption};

/// A form of scenario files, which one or several kinds share.
pub struct Form {
    /// Values of `kind`; empty for files of enclaves, which have none.
    pub kinds: &'static [&'static str],
    /// Subject of such experiments.
    pub about: &'static str,
    /// Commands that run them.
    pub run: &'static str,
    /// Files that omit every optional field, one for each kind.
    pub examples: &'static [&'static str],
    /// In the order in which a reader needs them.
    pub fields: Vec<Field>,
}

/// A field of a form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its path: `run.seconds`; `variant.cores` in each table of a list `[[variant]]`.
    pub path: &'static str,
    /// Type, in words.
    pub kind: String,
    /// None where the field is required.
    pub default: Option<String>,
    /// Values allowed, in words; empty where the type says it all.
    pub range: String,
    pub meaning: &'static str,
}

/// The part of a form that is written by hand.
pub struct Written {
    pub kinds: &'static [&'static str],
    pub about: &'static str,
    pub run: &'static str,
    pub examples: &'static [&'static str],
    /// Further files that give defaults and ranges, and are not shown.
    pub unshown: &'static [&'static str],
    pub rows: &'static [Row],
    pub fields: fn() -> BTreeMap<String, Traced>,
    pub check: fn(Source<'_>) -> Result<(), ScenarioError>,
}

/// The part of a field's description that the code does not give.
pub struct Row {
    pub path: &'static str,
    meaning: &'static str,
    /// A default that is in no range check, or depends on other fields.
    default: Option<&'static str>,
    /// A range that is in no range check, or depends on other fields.
    range: Option<&'static str>,
    /// Whether a check requires the field although its type does not.
    required: bool,
}

pub const fn row(path: &'static str, meaning: &'static str) -> Row {
    Row { path, meaning, default: None, range: None, required: false }
}

impl Row {
    pub const fn default(self, default: &'static str) -> Row {
        Row { default: Some(default), ..self }
    }

    pub const fn range(self, range: &'static str) -> Row {
        Row { range: Some(range), ..self }
    }

    pub const fn required(self) -> Row {
        Row { required: true, ..self }
    }
}

/// The forms that this crate reads.
pub const FORMS: &[Written] = &[
    Written {
        kinds: super::REQUEST_KINDS,
        about: "Threads of a RocksDB server, scheduled by Linux or by agents.",
        run: "`wave run FILE`, also with `--host sim` (except `chaos`)",
        examples: rows::REQUEST_EXAMPLES,
        unshown: &[rows::SEARCH_EXAMPLE],
        rows: rows::REQUESTS,
        fields: trace::fields::<file::RawScenario>,
        check: |source| check::check(file::parse(source.path, source.text)?, source).map(drop),
    },
    Written {
        kinds: &["memory"],
        about: "Memory of a RocksDB process under an agent, compared with the same run without one.",
        run: "`sudo wave run FILE`; `wave run FILE --host sim`",
        examples: &[rows::MEMORY_EXAMPLE],
        unshown: &[],
        rows: rows::MEMORY,
        fields: trace::fields::<memory::Raw>,
        check: |source| memory::check(source).map(drop),
    },
    Written {
        kinds: &["rpc"],
        about: "RocksDB behind gRPC, with RPC stack and scheduler in several places.",
        run: "`wave run FILE`, also with `--host sim`",
        examples: &[rows::RPC_EXAMPLE],
        unshown: &[],
        rows: rows::RPC,
        fields: trace::fields::<rpc::Raw>,
        check: |source| rpc::check(source).map(drop),
    },
    Written {
        kinds: &["udp"],
        about: "Throughput of requests in datagrams by the number of outstanding requests per worker.",
        run: "`wave run FILE`",
        examples: &[rows::UDP_EXAMPLE],
        unshown: &[],
        rows: rows::UDP,
        fields: trace::fields::<udp::Raw>,
        check: |source| udp::check(source).map(drop),
    },
    Written {
        kinds: &["udp-preemption"],
        about: "Short requests in datagrams beside long ones, with preemption and without.",
        run: "`wave run FILE`",
        examples: &[rows::UDP_PREEMPTION_EXAMPLE],
        unshown: &[],
        rows: rows::UDP_PREEMPTION,
        fields: trace::fields::<udp_preemption::Raw>,
        check: |source| udp_preemption::check(source).map(drop),
    },
    Written {
        kinds: &["udp-feedback"],
        about: "Overload by senders of datagrams that follow the queue at the host, beside senders that do not.",
        run: "`wave run FILE`",
        examples: &[rows::UDP_FEEDBACK_EXAMPLE],
        unshown: &[],
        rows: rows::UDP_FEEDBACK,
        fields: trace::fields::<udp_feedback::Raw>,
        check: |source| udp_feedback::check(source).map(drop),
    },
];

impl Written {
    /// The form, with all of its fields.
    pub fn form(&self) -> Form {
        let (traced, bounds) = (self.traced(), self.bounds());
        let field = |row: &'static Row| {
            let traced = traced.get(row.path).unwrap_or_else(|| {
                panic!("{:?} has no field `{}`, which is described", self.kinds, row.path)
            });
            row.field(traced, bounds.get(row.path))
        };
        Form {
            kinds: self.kinds,
            about: self.about,
            run: self.run,
            examples: self.examples,
            fields: self.rows.iter().map(field).collect(),
        }
    }

    /// Every file that gives defaults and ranges.
    pub fn files(&self) -> impl Iterator<Item = &'static str> {
        self.examples.iter().chain(self.unshown).copied()
    }

    fn traced(&self) -> BTreeMap<String, Traced> {
        let mut traced = (self.fields)();
        if let Some(kind) = traced.get_mut("kind") {
            kind.shape = Shape::OneOf(self.kinds);
        }
        traced
    }

    /// Default and range of each field with a range check, by its path.
    fn bounds(&self) -> BTreeMap<String, check::Bound> {
        let noted = RefCell::default();
        for example in self.files() {
            let path = Path::new("example.toml");
            let source = Source::new(path, example, policies::NAMES);
            let checked = (self.check)(Source { bounds: Some(&noted), ..source });
            checked.unwrap_or_else(|error| panic!("an example is refused: {error}"));
        }
        noted.into_inner().into_iter().map(|bound| (bound.field.clone(), bound)).collect()
    }
}

impl Row {
    fn field(&self, traced: &Traced, bound: Option<&check::Bound>) -> Field {
        let is_required = traced.required || self.required;
        let default = || {
            let noted = bound.map(|bound| bound.default.clone());
            self.default.map(str::to_owned).or(noted).unwrap_or_default()
        };
        let noted = || bound.map(|bound| format!("{} to {}", bound.least, bound.most));
        Field {
            path: self.path,
            kind: traced.shape.to_string(),
            default: (!is_required).then(default),
            range: self.range.map(str::to_owned).or_else(noted).unwrap_or_default(),
            meaning: self.meaning,
        }
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Shape::Table => f.write_str("table"),
            Shape::Text => f.write_str("text"),
            Shape::Flag => f.write_str("true or false"),
            Shape::Whole => f.write_str("whole number"),
            Shape::Number => f.write_str("number"),
            Shape::OneOf([one]) => write!(f, "`{one}`"),
            Shape::OneOf(words) => {
                let words: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
                write!(f, "one of {}", words.join(", "))
            }
            Shape::List(item, count) => {
                let count = count.map_or(String::new(), |count| format!("{count} "));
                match **item {
                    Shape::Table => write!(f, "{count}tables"),
                    Shape::Text => write!(f, "list of {count}texts"),
                    Shape::Whole => write!(f, "list of {count}whole numbers"),
                    Shape::Number => write!(f, "list of {count}numbers"),
                    ref item => write!(f, "list of {item}"),
                }
            }
        }
    }
}

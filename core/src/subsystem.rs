//! What a subsystem is to the rest of Wave: an identity, and a descriptor from which commands, log output
//! and the registry are built (ADR 37).

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use crate::layout::Config;
use crate::message::{Decision, Message};
use crate::modelled::{ModelSetup, ModelledHost};
use crate::policy::Policy;
use crate::settings::{Known, PolicyError};

/// Identifies a subsystem in the window's header, in the offer and in the log's header.
///
/// Numbers below [`SubsystemId::OUTSIDE`] are assigned by this project, the others by the authors
/// of subsystems outside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubsystemId(u16);

impl SubsystemId {
    /// No subsystem: the value in a configuration that no host has offered.
    pub const NONE: SubsystemId = SubsystemId(0);
    /// The first number for subsystems outside this project.
    pub const OUTSIDE: u16 = 0x8000;

    /// The identity with this number.
    pub const fn new(number: u16) -> SubsystemId {
        SubsystemId(number)
    }

    /// The number, as windows, offers and logs carry it.
    pub const fn number(self) -> u16 {
        self.0
    }
}

impl fmt::Display for SubsystemId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "subsystem {}", self.0)
    }
}

/// The interface between Wave and one subsystem. Its crate exports one value of this type.
#[derive(Clone, Copy, Debug)]
pub struct Subsystem {
    /// Identity, as windows, offers and logs carry it.
    pub id: SubsystemId,
    /// Its name, as in `wave policies`.
    pub name: &'static str,
    /// What its policies decide, for help texts.
    pub about: &'static str,
    /// The policies that it ships.
    pub policies: &'static [Known],
    /// Makes one of them from a text with its name and settings, for an enclave of this configuration.
    /// `None` if they are not [`Policy`]s.
    pub make: Option<MakePolicy>,
    /// How its messages and decisions are shown.
    pub show: Show,
    /// Makes its modelled host, for the simulator and the fuzzer. `None` if it has none.
    pub model: Option<MakeModel>,
}

/// A function that makes a policy from the text of its settings; see [`Subsystem::make`].
pub type MakePolicy = fn(&str, &Config) -> Result<Box<dyn Policy + Send>, PolicyError>;

/// See [`Subsystem::model`].
pub type MakeModel = fn(&ModelSetup) -> Box<dyn ModelledHost>;

/// How a subsystem's messages and decisions are shown to people, in traces and replays.
#[derive(Clone, Copy, Debug)]
pub struct Show {
    /// What an id stands for, such as "thread".
    pub subject: &'static str,
    /// Shows a message; `None` for a kind that the subsystem does not have.
    pub message: fn(&Message) -> Option<ShownMessage>,
    /// Describes a decision in the subsystem's terms.
    pub decision: fn(&Decision) -> Shown,
    /// Whether a committed decision occupies its core until a message ends the run. Its argument is then the time in
    /// nanoseconds after which the core itself ends the run, or zero.
    pub occupies_core: bool,
}

impl Show {
    /// For an unknown subsystem: numbers only.
    pub const PLAIN: Show = Show {
        subject: "subject",
        message: |_| None,
        decision: |decision| Shown {
            name: format!("decision of kind {}", decision.kind),
            fields: vec![("argument", decision.argument)],
        },
        occupies_core: false,
    };
}

/// A message or decision in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Its name, without the subject, such as "WAKEUP".
    pub name: String,
    /// Its fields, units last in their names.
    pub fields: Vec<(&'static str, u64)>,
}

/// A message in words, and what it does to its subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownMessage {
    /// The event or decision in words.
    pub shown: Shown,
    /// Whether its subject waits for a decision from now on; `None` if subjects of this kind never wait.
    pub waits: Option<bool>,
    /// The core whose run it ends, and whether the run was preempted.
    pub ends_run: Option<EndedRun>,
}

/// A run that a message ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedRun {
    /// The core whose run ends.
    pub core: u16,
    /// Whether it was preempted.
    pub is_forced: bool,
}

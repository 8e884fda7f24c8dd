//! Readable forms of the scheduler's messages and decisions.

use alloc::format;
use alloc::string::String;
use alloc::vec;

use wave_core::message::{Decision, Message};
use wave_core::subsystem::{EndedRun, Show, Shown, ShownMessage};

use crate::wire::{DECISION_RUN, Event, Kind};

/// See [`crate::SUBSYSTEM`].
pub const SHOW: Show = Show { subject: "thread", message, decision, occupies_core: true };

fn message(message: &Message) -> Option<ShownMessage> {
    let Event { kind, core, class, ran, .. } = Event::from_message(message)?;
    let fields = vec![("class", class.into()), ("ran_ns", ran.0)];
    let ends = !matches!(kind, Kind::New | Kind::Wakeup);
    Some(ShownMessage {
        shown: Shown { name: format!("{kind:?}").to_uppercase(), fields },
        waits: Some(kind.leaves_runnable()),
        ends_run: ends.then_some(EndedRun { core, is_forced: kind == Kind::Preempt }),
    })
}

fn decision(decision: &Decision) -> Shown {
    let name = match decision.kind {
        DECISION_RUN => String::from("RUN"),
        kind => format!("decision of kind {kind}"),
    };
    Shown { name, fields: vec![("slice_ns", decision.argument)] }
}

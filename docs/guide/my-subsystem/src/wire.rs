//! The meaning of messages and decisions for this subsystem.

use wave_core::message::{Decision, Message, Sequence, Subject};
use wave_core::policy::Choice;
use wave_core::subsystem::{EndedRun, Show, Shown, ShownMessage};

/// A request arrived. Argument: its track.
pub const ARRIVED: u16 = 1;
/// A request was served, and its id is free. Argument: the arm that served it.
pub const DONE: u16 = 2;
/// To an arm: serve this request.
pub const SERVE: u16 = 1;

/// The decision to serve this request.
pub fn serve(subject: Subject, sequence: Sequence) -> Choice {
    Choice { kind: SERVE, subject, sequence, argument: 0 }
}

/// How traces and replays show messages and decisions.
pub const SHOW: Show = Show { subject: "request", message, decision, occupies_core: true };

fn message(message: &Message) -> Option<ShownMessage> {
    let (name, field) = match message.kind {
        ARRIVED => ("ARRIVED", "track"),
        DONE => ("DONE", "arm"),
        _ => return None,
    };
    let has_arrived = message.kind == ARRIVED;
    Some(ShownMessage {
        shown: Shown { name: name.to_owned(), fields: vec![(field, message.argument.into())] },
        waits: Some(has_arrived),
        ends_run: (!has_arrived)
            .then_some(EndedRun { core: message.argument as u16, is_forced: false }),
    })
}

fn decision(decision: &Decision) -> Shown {
    let name = match decision.kind {
        SERVE => "SERVE".to_owned(),
        kind => format!("decision of kind {kind}"),
    };
    Shown { name, fields: Vec::new() }
}

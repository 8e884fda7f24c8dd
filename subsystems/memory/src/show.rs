//! Readable forms of memory's messages and decisions.

use alloc::format;
use alloc::vec;

use wave_core::message::{Decision, Message};
use wave_core::subsystem::{Show, Shown, ShownMessage};

use crate::wire::{Action, Strip};

/// See [`crate::SUBSYSTEM`].
pub const SHOW: Show = Show { subject: "strip", message, decision, occupies_core: false };

fn message(message: &Message) -> Option<ShownMessage> {
    let Strip { mapped, void, huge, place, .. } = Strip::from_message(message)?;
    let fields = vec![
        ("process", place.space.into()),
        ("address", place.address),
        ("batches_mapped", mapped.count_ones().into()),
        ("batches_void", void.count_ones().into()),
        ("units_huge", huge.count_ones().into()),
    ];
    let name = if mapped == 0 { "UNMAPPED" } else { "MAPPED" }.into();
    Some(ShownMessage { shown: Shown { name, fields }, waits: None, ends_run: None })
}

fn decision(decision: &Decision) -> Shown {
    let name = match Action::from_number(decision.kind) {
        Some(Action::Scan) => "SCAN".into(),
        Some(Action::PageOut) => "PAGE_OUT".into(),
        Some(Action::BringBack) => "BRING_BACK".into(),
        None => format!("decision of kind {}", decision.kind),
    };
    let batches = decision.argument;
    let fields = vec![("batches", batches.count_ones().into()), ("batch_mask", batches)];
    Shown { name, fields }
}

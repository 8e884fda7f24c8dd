//! Memory: which pages of an address space are cold and may leave the fast tier?
//!
//! [`wire`] gives messages, readings and decisions their meaning, [`policies`] decide, [`beta`] draws for them, and [`space`]
//! is a modelled address space that keeps the contract below. The crate knows nothing of hosts, links or other subsystems. It
//! is `no_std` with `alloc`.
//!
//! # The contract of a mechanism
//!
//! An address space is cut into *strips* of 64 *batches* of 64 pages: 16 MiB and 256 KiB with pages of 4 KiB. A strip is the
//! subject of messages and decisions, and a 64-bit mask names any of its batches.
//!
//! 1. **The host's page table is the truth.** A policy corrects its belief about tiers from the pages that a reading shows as
//!    present.
//! 2. **Life of a strip.** Its id is an index into the host's table. When a program ends or executes another, each of its
//!    strips is reported with nothing mapped; an id that is reused has a new generation.
//! 3. **Life of a batch.** Each change of a strip's mappings bumps its sequence by one and sends one message, which names the
//!    batches whose history is void: the sequence and that mask are a batch's generation. Changes may be gathered until the
//!    strip is next scanned. After a snapshot the host reports every strip anew, with all history void.
//! 4. **Batches reported as mapped** can be scanned and moved: private, anonymous, not locked. The mechanism leaves out batches
//!    that turn out otherwise: those whose pages are still young right after they were cleared (shared by a fork), and, where
//!    the slow tier is compressed memory, those that do not compress. A hole is a page that is never present.
//! 5. **SCAN** reads the access bits of its batches and then clears them. It harms no newer mapping, so its sequence is not
//!    compared. Batches are reported together if and only if they were cleared together; the host measures the time since then.
//!    Where that is not known (never cleared, cleared in part), it is zero, and the bits have no meaning. A reading names the
//!    strip's generation and sequence at the time of the reading; readings of an earlier life are not sent.
//! 6. **PAGE_OUT and BRING_BACK** are refused with TARGET_STALE unless generation and sequence are the decision's. PAGE_OUT
//!    leaves pages that were touched since they were cleared: they would come back at once, and the policy asks for the batch
//!    again when they rest. Both are carried out in pieces, so that the program's own changes of mappings never wait for long.
//!    If only a few pages are left behind (a hole, a page that is in use), the outcome is COMPLETE: the next reading shows
//!    them. PARTIAL says that a good part of a batch stayed although nobody touched it, as a fork's memory does; a reading of
//!    the decision's batches follows, with an interval of zero, and shows the pages that are present. UNSUPPORTED,
//!    INVALID_TARGET and NOT_PERMITTED say that no later attempt can succeed for any of the batches; where that holds for some,
//!    these are reported as not mapped.
//! 7. **Huge pages** are kept whole. A unit of eight batches that is mapped by one huge page is reported as such. A reading has
//!    one bit for it, at its first batch; a decision names all eight.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod beta;
pub mod guard;
pub mod policies;
pub mod serve;
pub mod show;
pub mod space;
pub mod table;
pub mod wire;

use wave_core::subsystem::{Subsystem, SubsystemId};

/// The memory manager, as the rest of Wave sees it.
pub static SUBSYSTEM: Subsystem = Subsystem {
    id: SubsystemId::new(2),
    name: "memory",
    about: "which pages stay in the fast tier",
    policies: &policies::KNOWN,
    make: Some(|text, config| policies::by_name(text, config).map(|policy| policy as _)),
    show: show::SHOW,
    model: None,
};

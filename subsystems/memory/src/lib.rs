//! Memory: which pages of an address space are cold, and may leave the fast tier?
//!
//! [`wire`] says what messages, readings and decisions mean here, [`policies`] decide, [`beta`] draws for
//! them, and [`space`] is a modelled address space that keeps the contract below. Knows nothing of hosts,
//! links or other subsystems. `no_std` with `alloc`.
//!
//! # The contract of a mechanism
//!
//! An address space is cut into *strips* of 64 *batches* of 64 pages: 256 KiB and 16 MiB where a page has
//! 4 KiB. A strip is the subject of messages and decisions, and one word names any of its batches.
//!
//! 1. **The host's page table is the truth.** What a policy believes of a tier it corrects from the pages
//!    that a reading calls present.
//! 2. **Life of a strip.** Its id is an index into the host's table. A program that ends or executes another
//!    has all its strips told with nothing mapped; ids that are used again have a new generation.
//! 3. **Life of a batch.** Each change of what is mapped in a strip bumps its sequence by one and sends one
//!    message, which names the batches whose past is void: the sequence and that mask are a batch's
//!    generation. Changes may be gathered until the strip is next scanned. After a snapshot the host
//!    tells every strip anew, all of it void.
//! 4. **What is told as mapped** can be scanned and moved: private, anonymous, not locked. The mechanism leaves
//!    out what it finds to be otherwise, such as pages that are still young right after they were cleared
//!    (shared by a fork), and what does not compress where the slow tier is compressed memory. A hole is a page that is never present.
//! 5. **SCAN** reads the access bits of its batches and then clears them. It harms no newer mapping, so its
//!    sequence is not compared. Batches are reported together if and only if they were cleared
//!    together; the time since then is measured by the host. Where it is not known (never cleared, cleared in
//!    part), it is zero, and the bits say nothing. A reading names the strip's generation and sequence as of
//!    the reading; what was read of another life is not sent.
//! 6. **PAGE_OUT and BRING_BACK** are refused with TARGET_STALE unless generation and sequence are the
//!    decision's. PAGE_OUT leaves pages that were touched since they were cleared: they would come back at once, and
//!    the batch is asked for again when they rest. Both are carried out in pieces, so that the program's own mappings never wait for long.
//!    Partial progress of a few pages (a hole, a page that is in use) is COMPLETE: the next reading shows
//!    what is left. PARTIAL says that a good part of a batch stayed although nobody touched it, as a fork's memory
//!    does; a reading of the decision's batches follows, of no interval, and shows what is there. UNSUPPORTED, INVALID_TARGET and NOT_PERMITTED say that trying again is of no use
//!    for any of the batches; where that holds for some, these are told as not mapped.
//! 7. **Huge pages** are kept whole. A unit of eight batches that is mapped by one huge page is told as such.
//!    A reading has one bit for it, at its first batch; a decision names all eight.

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

/// What the rest of Wave knows of memory.
pub static SUBSYSTEM: Subsystem = Subsystem {
    id: SubsystemId::new(2),
    name: "memory",
    about: "which pages stay in the fast tier",
    policies: &policies::KNOWN,
    make: Some(|text, config| policies::by_name(text, config).map(|policy| policy as _)),
    show: show::SHOW,
    model: None,
};

//! TCP without I/O, which an agent runs in place of a host (FlexTOE, thesis chapters 3 and 4).
//!
//! ```text
//!  packets ──> submit ─┐                                    ┌──> Send      segments for a wire
//!                      ├─> Datapath: pre, protocol, post, ──┼──> Write     payload for a host's ring
//!  a host's entries ──>┘             DMA, context queue     ├──> Notify    events for a host's context
//!                                        ^                  └──> Control   packets for the control plane
//!                              command, pace, install
//!                                        │
//!                      Control: listen, connect, close, timers, neighbours
//! ```
//!
//! A segment is not a decision that a host may refuse: here the agent is the mechanism, and only congestion control is a
//! policy. Everything is driven by calls with a time; nothing allocates after start, and every call has a bound. docs/adr/0055
//! has the contract between the data path and its surroundings, docs/adr/0111
//! what a data path says about itself, docs/adr/0059 the executors of the stages, docs/adr/0065
//! congestion control with marks and rates. The feature `threads`, on by default, adds the executor with threads and needs std.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(any(feature = "planted", feature = "threads"))]
extern crate std;

pub mod capabilities;
pub mod congestion;
pub mod context;
pub mod control;
pub mod copies;
pub mod counters;
pub mod datapath;
#[macro_use]
mod forward;
pub mod datapaths;
pub mod executors;
pub mod flextoe;
pub mod flow;
pub mod laminar;
pub mod packet;
pub mod pipeline;
pub mod planted;
pub mod reorder;
pub mod schedule;
pub mod seq;
pub mod sequencer;
pub mod stages;
pub mod steering;
pub mod summary;
#[cfg(feature = "threads")]
mod sync;
pub mod trace;
pub mod tuples;
pub mod wheel;

use wave_core::subsystem::{Show, Subsystem, SubsystemId};

/// The subsystem's entry in Wave's registry. No agent decides about TCP for a host, so there are no policies to choose and no
/// log to show.
pub static SUBSYSTEM: Subsystem = Subsystem {
    id: SubsystemId::new(5),
    name: "tcp",
    about: "connections of an address that an agent owns",
    policies: &[],
    make: None,
    show: Show::PLAIN,
    model: None,
};

//! Thread scheduling: which thread does a core run next?
//!
//! [`wire`] says what messages and decisions mean here, [`policies`] decide, and the crate's front
//! page states the contract that a mechanism keeps. Knows nothing of hosts, links or other
//! subsystems. `no_std` with `alloc`, except for the feature `mechanism`: the host's side, which an agent does
//! not need.
//!
//! # The contract of a mechanism (ghOSt's, over queues)
//!
//! 1. The host's table is the truth: per thread a state, a generation and a sequence.
//! 2. Each change of state except *running* bumps the thread's sequence by one and sends one
//!    message with the new sequence. Sequences go on when an id is reused; NEW is not special.
//! 3. RUN is committed if and only if the thread is runnable and its generation and sequence are the
//!    decision's, in one atomic step, so that two cores, or a core and the fallback, cannot both
//!    win. Otherwise nothing changes, and the outcome says why.
//! 4. A message is sent after the change that it tells, never before.
//! 5. Every message says what the thread is doing now, so that hearing the last one again, after
//!    a snapshot, does no harm.
//! 6. A run whose decision has a slice is ended by the host when that is over, late perhaps but never
//!    early ([`wire`]). A mechanism that cannot do so refuses the decision.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(any(test, feature = "mechanism"))]
extern crate std;

#[cfg(any(test, feature = "mechanism"))]
pub mod mechanism;
pub mod oracles;
pub mod policies;
pub mod scheduler;
pub mod show;
pub mod wire;
#[cfg(feature = "workload")]
pub mod workload;

use wave_core::subsystem::{Subsystem, SubsystemId};

/// The interface between scheduling and the rest of Wave.
pub static SUBSYSTEM: Subsystem = Subsystem {
    id: SubsystemId::new(1),
    name: "sched",
    about: "which thread a core runs next",
    policies: &policies::KNOWN,
    make: Some(policies::by_name),
    show: show::SHOW,
    model: None,
};

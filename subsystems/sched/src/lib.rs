//! Thread scheduling: which thread does a core run next?
//!
//! [`wire`] gives messages and decisions their meaning, [`policies`] decide, and this page states the contract that a mechanism
//! keeps. The crate knows nothing of hosts, links or other subsystems. It is `no_std` with `alloc`, except for the feature
//! `mechanism`: the host's side, which an agent does not need.
//!
//! # The contract of a mechanism (ghOSt's, over queues)
//!
//! 1. The host's table is the truth: per thread a state, a generation and a sequence.
//! 2. Each change of state except *running* bumps the thread's sequence by one and sends one message with the new sequence. The
//!    sequence continues when an id is reused; NEW is not special.
//! 3. RUN is committed if and only if the thread is runnable and the decision names its current generation and sequence. Check
//!    and commit are one atomic step, so that two cores, or a core and the fallback, cannot both win. Otherwise nothing
//!    changes, and the outcome says why.
//! 4. A message is sent after the change that it reports, never before.
//! 5. Every message states what the thread is doing now, so a message that is delivered again after a snapshot does no harm.
//! 6. The host ends a run whose decision has a slice when the slice is over, possibly late but never early ([`wire`]). A
//!    mechanism that cannot do so refuses the decision.

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

/// The scheduler, as the rest of Wave sees it.
pub static SUBSYSTEM: Subsystem = Subsystem {
    id: SubsystemId::new(1),
    name: "sched",
    about: "which thread a core runs next",
    policies: &policies::KNOWN,
    make: Some(policies::by_name),
    show: show::SHOW,
    model: None,
};

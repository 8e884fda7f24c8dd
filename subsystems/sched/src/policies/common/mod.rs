//! What the preemptive policies share: everything but the order in which threads wait, and which
//! run is ended for them. Those two are a [`Discipline`]; [`Preemptive`] makes a policy of it.
//!
//! # How a run is ended
//!
//! A preemption means "end this run, take the next entry in your queue". So a thread is left for
//! that core first, if nothing is there yet and the core has room; where prestaging is off, the
//! core says PREEMPT, asks, and is answered like any other. Such a core has a *claim* on one of the
//! threads that wait, so that no more runs are ended than there are threads for. A run is asked to
//! end once only, until it is known to have ended or another has begun. A preemption that comes too
//! late is ignored by the host, and what was left for the core is taken at its next switch.
//!
//! The slice starts at the COMPLETE outcome, or, for a run that a snapshot tells of, at the snapshot.
//!
//! With `timer=core` each decision carries the slice, the core's own timer ends the run, and the policy
//! hears PREEMPT without having asked. It asks only for the end of runs that a snapshot tells of: a thread that
//! decided those, the fallback or another agent, may have given them no slice.

mod preemptive;
mod runs;
mod slice;

pub use preemptive::{Cause, Discipline, Preemptive, Thread};
pub use runs::{Run, Runs};
pub use slice::{Slice, Timer};
pub use wave_core::settings::{CLASSES_MAX, PerClass, Setting, SettingError, Settings};
pub use wave_core::waiting::{Heap, Queues};

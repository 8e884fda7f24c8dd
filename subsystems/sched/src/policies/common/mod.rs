//! The shared part of preemptive policies: everything but the order in which threads wait, and the choice of runs to end for
//! them. Those two are a [`Discipline`]; [`Preemptive`] turns it into a policy.
//!
//! # How a run is ended
//!
//! A preemption means "end this run, take the next entry in your queue". So a thread is first staged for that core, if nothing
//! is staged yet and the core has room. Where prestaging is off, the core reports PREEMPT, asks, and is answered like any
//! other. Such a core has a *claim* on one of the waiting threads, so that no more runs are ended than there are threads to
//! run. A run is asked to end only once, until it is known to have ended or another has begun. The host ignores a preemption
//! that comes too late, and the staged decision is taken at the core's next switch.
//!
//! The slice starts at the COMPLETE outcome, or, for a run known from a snapshot, at the snapshot.
//!
//! With `timer=core` each decision carries the slice, the core's own timer ends the run, and the policy receives PREEMPT
//! without having asked. It only asks for the end of runs known from a snapshot: they were decided by the fallback or another
//! agent, perhaps without a slice.

mod preemptive;
mod runs;
mod slice;

#[cfg(test)]
pub(crate) use preemptive::UNKNOWN;
pub use preemptive::{Cause, Discipline, Preemptive, Thread};
pub use runs::{Run, Runs};
pub use slice::{Slice, Timer};
pub use wave_core::settings::{CLASSES_MAX, PerClass, Setting, SettingError, Settings};
pub use wave_core::waiting::{Heap, Queues};

//! What the entries of the core mean to the scheduler (after ghOSt's messages).
//!
//! ```text
//! message   argument  class << 16 | core        (core: where it happened, NO_CORE if on none)
//!           payload   ran_ns, 0, 0              (duration of the run that ended)
//! decision  argument  slice_ns                  (0: until the thread stops on its own)
//! ```
//!
//! # A decision's slice
//!
//! A decision with a slice has the host itself end the run when it has lasted so long, by the core's
//! own timer (Mind the Gap 3.4.4), whether or not another thread waits. The message is PREEMPT, as of a run that
//! the agent ended. A host may be late, by what its timer and its next point of preemption take, but never early:
//! `ran_ns` of such a PREEMPT is at least the slice. The first end of the run ends the slice with it; the next run has
//! its own. The agent may still preempt before. A host that has no such timer answers UNSUPPORTED and
//! commits nothing, so that no thread runs without the end that was asked for.
//!
//! # Threads that await requests
//!
//! AWAITS says that a thread found no request and left its core on its own. To the host it is as runnable as after
//! YIELD. A policy need not run it before a front's note ([`wave_core::note::Request`]) names it. Notes and messages
//! overtake each other, so a note about a thread that does not await counts for the AWAITS that follows: the thread
//! may have looked before the request was there. Running it for nothing does no harm.

use wave_core::clock::Nanos;
use wave_core::message::{Message, Sequence, Subject};
use wave_core::policy::Choice;

/// [`Event::core`] of something that happened on no host core.
pub const NO_CORE: u16 = u16::MAX;

/// Kind of the one decision there is: run this thread next.
pub const DECISION_RUN: u16 = 1;

/// What happened to a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Kind {
    /// It was created, and is runnable.
    New = 1,
    /// It was blocked, and is runnable.
    Wakeup = 2,
    /// It left its core until something wakes it.
    Blocked = 3,
    /// The thread left its core on its own, and is runnable.
    Yield = 4,
    /// It was made to leave its core, and is runnable.
    Preempt = 5,
    /// The thread ended, and its generation with it.
    Dead = 6,
    /// The thread left the enclave.
    Departed = 7,
    /// The thread left its core on its own, and is runnable, but has nothing to do before a request's note.
    Awaits = 8,
}

impl Kind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Kind; 8] = [
        Kind::New,
        Kind::Wakeup,
        Kind::Blocked,
        Kind::Yield,
        Kind::Preempt,
        Kind::Dead,
        Kind::Departed,
        Kind::Awaits,
    ];

    /// The kind with this number; `None` for a number that no kind has.
    pub fn from_number(number: u16) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u16 == number)
    }

    /// Whether the host accepts a decision for a thread after this.
    pub const fn leaves_runnable(self) -> bool {
        matches!(self, Kind::New | Kind::Wakeup | Kind::Yield | Kind::Preempt | Kind::Awaits)
    }
}

/// A decoded message of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The event that happened to the subject.
    pub kind: Kind,
    /// Thread that the event is about.
    pub thread: Subject,
    /// The version of its state.
    pub sequence: Sequence,
    /// The core on which it happened, or [`NO_CORE`].
    pub core: u16,
    /// The class that its spawner gave it.
    pub class: u16,
    /// How long the run lasted that this ended; zero where it ended none.
    pub ran: Nanos,
}

impl Event {
    /// Encodes the event as a message.
    pub const fn to_message(&self) -> Message {
        Message {
            kind: self.kind as u16,
            subject: self.thread,
            sequence: self.sequence,
            argument: (self.class as u32) << 16 | self.core as u32,
            payload: [self.ran.0, 0, 0],
        }
    }

    /// From a message. `None` for a kind of a later version: to be passed over.
    pub fn from_message(message: &Message) -> Option<Event> {
        Some(Event {
            kind: Kind::from_number(message.kind)?,
            thread: message.subject,
            sequence: message.sequence,
            core: message.argument as u16,
            class: (message.argument >> 16) as u16,
            ran: Nanos(message.payload[0]),
        })
    }
}

/// The choice of running `thread`, until the core's own timer ends it after `slice` if that is not zero.
pub const fn run(thread: Subject, sequence: Sequence, slice: Nanos) -> Choice {
    Choice { kind: DECISION_RUN, subject: thread, sequence, argument: slice.0 }
}

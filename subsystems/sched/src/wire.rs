//! The meaning of core's entries for the scheduler (after ghOSt's messages).
//!
//! ```text
//! message   argument  class << 16 | core        (core: where it happened, NO_CORE if on none)
//!           payload   ran_ns, 0, 0              (duration of the run that ended)
//! decision  argument  slice_ns                  (0: until the thread stops on its own)
//! ```
//!
//! # A decision's slice
//!
//! A decision with a slice has the host end the run once it has lasted for the slice, by the core's own timer (Mind the Gap
//! 3.4.4), whether or not another thread waits. The message is PREEMPT, as for a run that the agent ended. A host may be late,
//! by the latency of its timer and the time to its next preemption point, but never early: `ran_ns` of such a PREEMPT is at
//! least the slice. When the run ends for any reason, its slice ends too; the next run has its own. The agent may still preempt
//! before. A host that has no such timer answers UNSUPPORTED and commits nothing, so that no thread runs without the requested
//! end.
//!
//! # Threads that await requests
//!
//! AWAITS says that a thread found no request and left its core on its own. To the host it is as runnable as after YIELD. A
//! policy need not run it before a front's note ([`wave_core::note::Request`]) names it. Notes and messages overtake each
//! other, so a note about a thread that does not await counts for the next AWAITS: the thread may have looked before the
//! request was there. Running it for nothing does no harm.

use wave_core::clock::Nanos;
use wave_core::message::{Message, Sequence, Subject};
use wave_core::policy::Choice;

/// [`Event::core`] of something that happened on no host core.
pub const NO_CORE: u16 = u16::MAX;

/// Kind of the only decision: run this thread next.
pub const DECISION_RUN: u16 = 1;

/// A change of a thread's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Kind {
    /// The thread was created, and is runnable.
    New = 1,
    /// The thread was blocked, and is now runnable.
    Wakeup = 2,
    /// The thread left its core until something wakes it.
    Blocked = 3,
    /// The thread yielded its core, and is runnable.
    Yield = 4,
    /// The thread was preempted, and is runnable.
    Preempt = 5,
    /// The thread ended, and its generation with it.
    Dead = 6,
    /// The thread left the enclave.
    Departed = 7,
    /// The thread left its core on its own, and is runnable, but without work before a request's note.
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

    /// Whether only a thread that ran can send this.
    pub const fn ends_run(self) -> bool {
        matches!(self, Kind::Blocked | Kind::Yield | Kind::Preempt | Kind::Awaits)
    }

    /// Whether the thread is runnable after this, so that the host may commit a decision for it.
    pub const fn leaves_runnable(self) -> bool {
        matches!(self, Kind::New | Kind::Wakeup | Kind::Yield | Kind::Preempt | Kind::Awaits)
    }
}

/// A decoded message of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The change of state.
    pub kind: Kind,
    /// The thread whose state changed.
    pub thread: Subject,
    /// The sequence of its new state.
    pub sequence: Sequence,
    /// The core on which it happened, or [`NO_CORE`].
    pub core: u16,
    /// The class chosen by the thread's spawner.
    pub class: u16,
    /// The duration of the run that this event ended; zero if it ended none.
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

    /// Decodes a message. `None` for a kind of a later version, which a policy ignores.
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

/// The choice to run `thread`, until it stops on its own, or the core's own timer ends the run after `slice` if that is not
/// zero.
pub const fn run(thread: Subject, sequence: Sequence, slice: Nanos) -> Choice {
    Choice { kind: DECISION_RUN, subject: thread, sequence, argument: slice.0 }
}

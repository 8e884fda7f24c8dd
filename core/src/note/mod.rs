//! Notes that subsystems agree on, for a front and a policy that do not know each other.
//!
//! A note is in memory where both share an agent, and in a [`queue`] where they do not. Notes pass through
//! [`crate::brain::Brain`], so a log replays them.

pub mod queue;

use crate::clock::Nanos;
use crate::message::Subject;
use crate::policy::Note;

/// [`Note::kind`] of a [`Request`]. Kinds below it are free for policies that share an agent.
pub const NOTE_REQUEST: u16 = 0x8000;

/// A request waits for a thread: front to scheduler (Wave 7.3.2). The thread finds it where the front left it
/// before it sent this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The thread that is to serve it.
    pub thread: Subject,
    /// Class of the request, counted from 0.
    pub class: u8,
    /// The longest wait that the request itself allows, if it names one.
    pub slo: Option<Nanos>,
}

impl Request {
    /// Encodes the request as a note. Words: class, and the SLO in nanoseconds; zero stands for none.
    pub const fn to_note(&self) -> Note {
        let slo = match self.slo {
            // Zero stands for no SLO, so an SLO of zero becomes one nanosecond.
            Some(Nanos(0)) => 1,
            Some(Nanos(slo)) => slo,
            None => 0,
        };
        Note { kind: NOTE_REQUEST, subject: self.thread, words: [self.class as u64, slo] }
    }

    /// Decodes a note. `None` for a note of another kind or of a later version: skip it.
    pub fn from_note(note: &Note) -> Option<Request> {
        let [class, slo] = note.words;
        let class = u8::try_from(class).ok().filter(|_| note.kind == NOTE_REQUEST)?;
        Some(Request { thread: note.subject, class, slo: (slo != 0).then_some(Nanos(slo)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_survives_encoding_as_a_note() {
        let thread = Subject { id: 7, generation: 3 };
        for slo in [None, Some(Nanos(1)), Some(Nanos::MAX)] {
            for class in [0, 1, u8::MAX] {
                let request = Request { thread, class, slo };
                assert_eq!(Request::from_note(&request.to_note()), Some(request));
            }
        }
    }

    #[test]
    fn a_note_of_another_kind_is_not_a_request() {
        let request = Request { thread: Subject::default(), class: 1, slo: None };
        let note = request.to_note();
        assert_eq!(Request::from_note(&Note { kind: 1, ..note }), None);
        assert_eq!(Request::from_note(&Note { words: [256, 0], ..note }), None);
        // The shortest SLO, instead of none.
        let now = Request { slo: Some(Nanos(0)), ..request };
        assert_eq!(Request::from_note(&now.to_note()).unwrap().slo, Some(Nanos(1)));
    }
}

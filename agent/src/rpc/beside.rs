//! A front beside a scheduler's agent, on the same core (Wave 7.3.2), or the link to one in another agent (Wave 7.3.1): polled in
//! turn, parked together, and the policy hears of each request.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use wave_core::agent::{Front, Step};
use wave_core::clock::Nanos;
use wave_core::link::Waiter;
use wave_core::policy::{Note, Progress};

use super::front::RpcFront;
use crate::attach::OwnBell;
use crate::notes::NotesFrom;

/// Notes on their way from a front to the policy. The two are on one thread, but an agent may be moved to another before it begins.
#[derive(Clone, Debug, Default)]
struct Notes(Arc<Mutex<Vec<Note>>>);

impl Front for Notes {
    fn poll(&mut self, _now: Nanos, notes: &mut Vec<Note>) -> Progress {
        notes.append(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
        Progress::Done
    }

    fn on_note(&mut self, _now: Nanos, _note: &Note) {}
}

/// Where an agent's notes come from.
pub enum Source<'a> {
    /// From nowhere.
    None,
    /// From a front that shares the agent's core.
    Front(&'a mut RpcFront),
    /// From a front in another agent.
    Link(&'a mut NotesFrom),
}

/// A source of notes, beside an agent.
pub(crate) struct Beside<'a> {
    source: Source<'a>,
    notes: Notes,
    start: Instant,
}

impl<'a> Beside<'a> {
    /// Beside an agent that is rung by this bell.
    pub(crate) fn new(mut source: Source<'a>, bell: &OwnBell) -> Beside<'a> {
        let start = match &mut source {
            Source::Front(front) => {
                front.watch(bell);
                front.start()
            }
            Source::None | Source::Link(_) => Instant::now(),
        };
        Beside { source, notes: Notes::default(), start }
    }

    /// What the agent is to have as its front.
    pub(crate) fn notes(&self) -> Option<Box<dyn Front + Send>> {
        match self.source {
            Source::None => None,
            Source::Front(_) | Source::Link(_) => Some(Box::new(self.notes.clone())),
        }
    }

    /// The time, by the one clock of agent and front.
    pub(crate) fn now(&self) -> Nanos {
        Nanos(self.start.elapsed().as_nanos() as u64)
    }

    /// Whether a front was told to end, and has.
    pub(crate) fn has_ended(&mut self) -> bool {
        match &mut self.source {
            Source::Front(front) => front.has_ended(),
            Source::None | Source::Link(_) => false,
        }
    }

    /// The source's turn.
    pub(crate) fn poll(&mut self) -> Step {
        let now = self.now();
        let mut notes = self.notes.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut self.source {
            Source::None => Step::Idle(None),
            Source::Front(front) => {
                let step = front.poll();
                front.take_notes(|request| notes.push(request.to_note()));
                if front.take_progress() { Step::Progress } else { step }
            }
            Source::Link(link) => match link.poll(now, &mut notes) {
                true => Step::Progress,
                false => Step::Idle(None),
            },
        }
    }

    /// Says that the source is about to sleep, too. It has its turn once more.
    pub(crate) fn prepare_park(&mut self) -> Step {
        match &mut self.source {
            Source::None => {}
            Source::Front(front) => front.prepare_park(),
            Source::Link(link) => link.prepare_park(),
        }
        self.poll()
    }

    /// Takes that back.
    pub(crate) fn unpark(&mut self) {
        match &mut self.source {
            Source::None => {}
            Source::Front(front) => front.unpark(),
            Source::Link(link) => link.unpark(),
        }
    }

    /// Sleeps until the agent's bell rings, the source has something to do, or for `timeout`.
    pub(crate) fn wait(&mut self, bell: &OwnBell, timeout: Duration) {
        let until = self.now() + Nanos(timeout.as_nanos() as u64);
        match &mut self.source {
            Source::None => drop(bell.wait(Some(timeout))),
            Source::Front(front) => {
                front.park(Some(until));
                bell.wait(Some(Duration::ZERO));
            }
            Source::Link(link) => {
                let fds = [bell.as_fd()].into_iter().chain(link.fds());
                let mut fds: Vec<_> =
                    fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
                // An interrupted sleep is a short one.
                let _ = poll(&mut fds, Timespec::try_from(timeout).ok().as_ref());
                drop(fds);
                bell.wait(Some(Duration::ZERO));
                link.drain();
            }
        }
    }
}

/// What two that share a thread come to: progress if one made some, and otherwise the earlier time.
pub(crate) fn both(agent: Step, front: Step) -> Step {
    match (agent, front) {
        (Step::Idle(until), Step::Idle(other)) => Step::Idle(until.into_iter().chain(other).min()),
        (Step::Idle(_), Step::Progress) => Step::Progress,
        (agent, _) => agent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_are_idle_until_the_earlier_time() {
        let idle = |until: Option<u64>| Step::Idle(until.map(Nanos));
        assert_eq!(both(idle(Some(2)), idle(Some(1))), idle(Some(1)));
        assert_eq!(both(idle(None), idle(Some(1))), idle(Some(1)));
        assert_eq!(both(idle(None), Step::Progress), Step::Progress);
        assert_eq!(both(Step::Progress, idle(None)), Step::Progress);
        assert_eq!(both(Step::Revoked, Step::Progress), Step::Revoked);
    }
}

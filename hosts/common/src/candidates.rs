//! The door: agents that have a window and have not announced themselves yet.

use std::time::Duration;

use wave_core::clock::Nanos;
use wave_core::control::AgentState;
use wave_core::layout::PROTOCOL_VERSION;
use wave_links::socket::{Connection, Listener};

/// Most candidates that may wait at once, over sockets and devices together; more are refused.
pub const CANDIDATES_MAX: usize = 4;

/// Pause in accepting connections after a shortage of descriptors or memory.
const SHORTAGE_REST: Duration = Duration::from_millis(10);

/// An agent that was given a window.
pub trait Candidate {
    /// Host state needed to check or refuse a candidate: for example, the device that it attaches through.
    type Beside;

    /// The state that the agent wrote to the window.
    fn state(&self) -> AgentState;

    /// Whether the agent has left.
    fn has_gone(&self, beside: &Self::Beside) -> bool;

    /// Refuses the candidate, which is dropped next. `why` is shown to its user; `None` if the agent hung up or timed out.
    fn turn_away(&self, beside: &mut Self::Beside, why: Option<&str>);
}

/// Candidates that have connected and not yet announced themselves.
#[derive(Debug)]
pub struct Candidates<C> {
    patience: Nanos,
    waiting: Vec<(C, Nanos)>,
}

impl<C: Candidate> Candidates<C> {
    /// No candidates yet. A candidate that does not announce itself within `patience` is dropped.
    pub const fn new(patience: Nanos) -> Candidates<C> {
        Candidates { patience, waiting: Vec::new() }
    }

    /// Whether no candidate waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Checks that there is room for another candidate.
    ///
    /// # Errors
    /// [`CANDIDATES_MAX`] are waiting; the message is for the refused agent's user.
    pub fn check_room(&self) -> Result<(), &'static str> {
        match self.waiting.len() < CANDIDATES_MAX {
            true => Ok(()),
            false => Err("too many agents are attaching at once; try again"),
        }
    }

    /// The candidates, in the order of their arrival.
    pub fn iter(&self) -> impl Iterator<Item = &C> {
        self.waiting.iter().map(|(candidate, _)| candidate)
    }

    /// Adds a candidate that was given a window just now.
    pub fn push(&mut self, candidate: C, now: Nanos) {
        self.waiting.push((candidate, now));
    }

    /// Admits agents that have connected: `make` gives each a window, and `join` makes a candidate of both. A refused agent is
    /// told why.
    pub fn accept<M, E: std::fmt::Display>(
        &mut self,
        listener: &Listener,
        now: Nanos,
        mut make: impl FnMut(&Connection) -> Result<M, E>,
        mut join: impl FnMut(Connection, M) -> C,
    ) {
        for _ in 0..CANDIDATES_MAX {
            let connection = match listener.accept() {
                Ok(Some(connection)) => connection,
                Ok(None) => return,
                Err(error) if error.is_shortage() => {
                    // The connection still waits, and would wake the caller at once.
                    std::thread::sleep(SHORTAGE_REST);
                    return;
                }
                // The refused agent has been told why. The next connection may be good.
                Err(_) => continue,
            };
            // An agent that has gone needs no answer.
            let _ = match self.check_room() {
                Err(full) => connection.refuse(full),
                Ok(()) => match make(&connection) {
                    Ok(made) => {
                        self.push(join(connection, made), now);
                        Ok(())
                    }
                    Err(error) => connection.refuse(&no_window(error)),
                },
            };
        }
    }

    /// Removes and returns a candidate that has announced itself; call until `None`. Drops candidates that failed or timed out.
    pub fn announced(&mut self, now: Nanos, beside: &mut C::Beside) -> Option<C> {
        let mut at = 0;
        while let Some((candidate, since)) = self.waiting.get(at) {
            let why = match candidate.state() {
                AgentState::Ready if !candidate.has_gone(beside) => {
                    return Some(self.waiting.swap_remove(at).0);
                }
                AgentState::OtherVersion(version) => Some(format!(
                    "the host speaks protocol version {PROTOCOL_VERSION}, the agent {version}"
                )),
                AgentState::Ready | AgentState::Absent => None,
            };
            let is_late = now.since(*since) > self.patience;
            if why.is_some() || is_late || candidate.has_gone(beside) {
                candidate.turn_away(beside, why.as_deref());
                self.waiting.swap_remove(at);
            } else {
                at += 1;
            }
        }
        None
    }
}

/// The message to an agent for which no window could be made.
pub fn no_window(error: impl std::fmt::Display) -> String {
    format!("the host cannot make a window: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Nanos = Nanos::from_millis(10);

    struct Stranger {
        name: char,
        state: AgentState,
        has_gone: bool,
    }

    impl Candidate for Stranger {
        type Beside = Vec<(char, Option<String>)>;

        fn state(&self) -> AgentState {
            self.state
        }

        fn has_gone(&self, _: &Self::Beside) -> bool {
            self.has_gone
        }

        fn turn_away(&self, beside: &mut Self::Beside, why: Option<&str>) {
            beside.push((self.name, why.map(String::from)));
        }
    }

    fn waiting(strangers: &[(char, AgentState, bool)]) -> Candidates<Stranger> {
        let mut candidates = Candidates::new(PATIENCE);
        for &(name, state, has_gone) in strangers {
            candidates.push(Stranger { name, state, has_gone }, Nanos(0));
        }
        candidates
    }

    #[test]
    fn announced_candidates_attach_and_others_wait() {
        let mut candidates = waiting(&[
            ('a', AgentState::Absent, false),
            ('b', AgentState::Ready, false),
            ('c', AgentState::Ready, false),
        ]);
        let mut away = Vec::new();
        let mut come = Vec::new();
        while let Some(stranger) = candidates.announced(PATIENCE, &mut away) {
            come.push(stranger.name);
        }
        come.sort_unstable();
        assert_eq!(come, ['b', 'c']);
        assert!(candidates.iter().map(|stranger| stranger.name).eq(['a']));
        assert!(away.is_empty());
    }

    #[test]
    fn late_or_gone_candidates_are_dropped_silently_and_other_versions_are_refused() {
        let mut candidates = waiting(&[
            ('a', AgentState::Absent, true),
            ('b', AgentState::OtherVersion(1), false),
            ('c', AgentState::Absent, false),
            // It has died since it announced itself, and may not take a living agent's place.
            ('d', AgentState::Ready, true),
        ]);
        let mut away = Vec::new();
        assert!(candidates.announced(PATIENCE, &mut away).is_none());
        away.sort();
        let [('a', None), ('b', Some(why)), ('d', None)] = &away[..] else { panic!("{away:?}") };
        assert!(why.contains("the agent 1"), "{why}");
        assert!(candidates.announced(PATIENCE + Nanos(1), &mut away).is_none());
        assert!(candidates.is_empty());
        assert_eq!(away.len(), 4);
    }

    #[test]
    fn fifth_candidate_finds_no_room() {
        let candidates = waiting(&[('a', AgentState::Absent, false); CANDIDATES_MAX]);
        assert!(candidates.check_room().is_err());
        assert!(waiting(&[('a', AgentState::Absent, false); 3]).check_room().is_ok());
    }
}

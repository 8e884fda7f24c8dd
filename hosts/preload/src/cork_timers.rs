//! Bytes that are held back for more to follow (MSG_MORE, TCP_CORK), for 200 ms at most, as in Linux (tcp(7)).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::world::{ANSWER_PATIENCE, World};

/// Longest time that bytes are held back.
const CORKED_FOR: Duration = Duration::from_millis(200);

/// Connections with bytes held back, in the order of their deadlines: deadline, agent's incarnation, and name.
#[derive(Debug, Default)]
pub struct CorkTimers(VecDeque<(Instant, u64, u32)>);

impl CorkTimers {
    /// Time until the first deadline.
    pub fn left(&self) -> Option<Duration> {
        self.0.front().map(|(due, ..)| due.saturating_duration_since(Instant::now()))
    }

    fn forget(&mut self, incarnation: u64, name: u32) {
        self.0.retain(|(_, other_incarnation, other)| {
            (*other_incarnation, *other) != (incarnation, name)
        });
    }
}

impl World {
    /// Starts the deadline of a connection's held bytes, unless it is running already.
    pub fn start_cork_timer(&mut self, incarnation: u64, name: u32) {
        if !self.cork_timers.0.iter().any(|(_, other_incarnation, other)| {
            (*other_incarnation, *other) == (incarnation, name)
        }) {
            self.cork_timers.0.push_back((Instant::now() + CORKED_FOR, incarnation, name));
        }
    }

    /// Sends a connection's held bytes now.
    pub fn uncork(&mut self, incarnation: u64, name: u32) {
        self.cork_timers.forget(incarnation, name);
        if let Some(agent) = self.agents.iter_mut().find(|agent| agent.incarnation == incarnation) {
            agent.context.push(name);
        }
    }

    /// Sends the held bytes of all connections.
    pub fn uncork_all(&mut self) {
        while let Some(&(_, incarnation, name)) = self.cork_timers.0.front() {
            self.uncork(incarnation, name);
        }
    }

    /// Sends all that the program has written, and waits for the agents' queues to have room for it.
    pub fn flush_all(&mut self) {
        self.uncork_all();
        for agent in &mut self.agents {
            agent.context.flush_all(ANSWER_PATIENCE);
        }
    }

    /// Sends the held bytes whose deadline has passed.
    pub fn uncork_expired(&mut self) {
        while let Some(&(due, incarnation, name)) = self.cork_timers.0.front()
            && due <= Instant::now()
        {
            self.uncork(incarnation, name);
        }
    }
}

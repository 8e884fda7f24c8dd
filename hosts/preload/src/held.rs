//! Bytes that wait for more (MSG_MORE, TCP_CORK), for 200 ms at most, as in Linux (tcp(7)).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::world::World;

/// Longest wait.
const HELD_FOR: Duration = Duration::from_millis(200);

/// Connections with bytes that wait: agent's life and name, in the order of their deadlines.
#[derive(Debug, Default)]
pub struct Held(VecDeque<(Instant, u64, u32)>);

impl Held {
    /// Time until the first deadline.
    pub fn left(&self) -> Option<Duration> {
        self.0.front().map(|(due, ..)| due.saturating_duration_since(Instant::now()))
    }

    fn forget(&mut self, life: u64, name: u32) {
        self.0.retain(|(_, other_life, other)| (*other_life, *other) != (life, name));
    }
}

impl World {
    /// Bytes were written that wait for more.
    pub fn hold(&mut self, life: u64, name: u32) {
        if !self.held.0.iter().any(|(_, other_life, other)| (*other_life, *other) == (life, name)) {
            self.held.0.push_back((Instant::now() + HELD_FOR, life, name));
        }
    }

    /// Sends a connection's bytes now.
    pub fn push(&mut self, life: u64, name: u32) {
        self.held.forget(life, name);
        if let Some(agent) = self.agents.iter_mut().find(|agent| agent.life == life) {
            agent.context.push(name);
        }
    }

    /// Sends everything that waits.
    pub fn push_held(&mut self) {
        while let Some(&(_, life, name)) = self.held.0.front() {
            self.push(life, name);
        }
    }

    /// Sends what has waited for long enough.
    pub fn push_late(&mut self) {
        while let Some(&(due, life, name)) = self.held.0.front()
            && due <= Instant::now()
        {
            self.push(life, name);
        }
    }
}

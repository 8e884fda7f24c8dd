//! Connections that are over on our side first: what was on its way then must not meet their successors (RFC 9293, 3.6.1).

use alloc::collections::VecDeque;

use serde::{Deserialize, Serialize};
use wave_core::clock::Nanos;

use crate::datapath::{FlowId, Tuple};
use crate::flow::moment::Moment;
use crate::packet::MacAddress;
use crate::seq::Seq;
use crate::stages::receive::ANSWER_AFTER;
use crate::tuples::Tuples;

/// Twice the longest life of a segment: Linux's, half of RFC 9293's.
pub const LASTS: Nanos = Nanos::from_millis(60_000);

/// A connection that is over.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Over {
    /// Until when it is remembered.
    pub until: Nanos,
    /// What we send next, if anything.
    pub seq: Seq,
    /// What we expect: the number behind the peer's FIN.
    pub expected: Seq,
    /// The peer's last timestamp, if it sends them.
    pub recent: Option<u32>,
    /// What is added to our clock in timestamps.
    pub offset: u32,
    /// Where its segments come from.
    pub mac: MacAddress,
    /// When one of them was answered last.
    pub answered_at: Moment,
}

/// The table: of bounded size, the oldest leave for new ones.
#[derive(Debug)]
pub struct TimeWait {
    table: Tuples<Over>,
    /// In the order in which they came.
    order: VecDeque<FlowId>,
}

impl TimeWait {
    pub fn new(entries: u32, key: (u64, u64)) -> TimeWait {
        TimeWait {
            table: Tuples::new(entries, key),
            order: VecDeque::with_capacity(2 * entries as usize),
        }
    }

    /// Remembers one for longer.
    pub fn extend(&mut self, tuple: &Tuple, until: Nanos) {
        if let Some(over) = self.find(tuple).copied() {
            self.insert(*tuple, Over { until, ..over });
        }
    }

    /// Adds a connection.
    pub fn insert(&mut self, tuple: Tuple, over: Over) {
        if let Some(id) = self.table.find(&tuple) {
            self.table.remove(id);
        }
        // Names of those that were forgotten before their time.
        if self.order.len() >= 2 * self.table.capacity() as usize {
            self.order.retain(|id| self.table.get(*id).is_some());
        }
        loop {
            match self.table.insert(tuple, over) {
                Ok(id) => return self.order.push_back(id),
                Err(_) => match self.order.pop_front() {
                    Some(oldest) => drop(self.table.remove(oldest)),
                    None => return,
                },
            }
        }
    }

    /// The one with these ends.
    pub fn find(&mut self, tuple: &Tuple) -> Option<&mut Over> {
        let id = self.table.find(tuple)?;
        self.table.get_mut(id)
    }

    /// Whether a segment of these ends may be answered now.
    pub fn may_answer(&mut self, tuple: &Tuple, now: Nanos) -> bool {
        let Some(over) = self.find(tuple) else { return false };
        let may = over.answered_at.get().is_none_or(|at| now.since(at) >= ANSWER_AFTER);
        if may {
            over.answered_at = now.into();
        }
        may
    }

    /// Whether these ends are still remembered.
    pub fn contains(&self, tuple: &Tuple) -> bool {
        self.table.find(tuple).is_some()
    }

    /// Removes a connection.
    pub fn remove(&mut self, tuple: &Tuple) {
        if let Some(id) = self.table.find(tuple) {
            self.table.remove(id);
        }
    }

    /// Forgets those whose time is over.
    pub fn expire(&mut self, now: Nanos) {
        while let Some(id) = self.order.front().copied() {
            match self.table.get(id) {
                Some(over) if over.until > now => return,
                Some(_) => drop(self.table.remove(id)),
                None => {}
            }
            self.order.pop_front();
        }
    }

    /// All connections, the oldest first.
    pub fn in_order(&self) -> impl Iterator<Item = (Tuple, &Over)> {
        self.order.iter().filter_map(|id| self.table.entry(*id))
    }

    pub fn iter(&self) -> impl Iterator<Item = (Tuple, &Over)> {
        self.table.iter().map(|(_, tuple, over)| (tuple, over))
    }
}

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;

    use super::*;

    #[test]
    fn the_oldest_leave_for_new_ones_and_all_in_time() {
        let tuple = |port| Tuple {
            local: SocketAddr::from(([10, 0, 0, 2], 80)),
            remote: SocketAddr::from(([10, 0, 0, 1], port)),
        };
        let over = |until| Over {
            until: Nanos(until),
            seq: Seq(0),
            expected: Seq(0),
            recent: None,
            offset: 0,
            mac: [0; 6],
            answered_at: Moment::NEVER,
        };
        let mut table = TimeWait::new(2, (1, 2));
        for port in 1..=3 {
            table.insert(tuple(port), over(u64::from(port)));
        }
        assert!(!table.contains(&tuple(1)) && table.contains(&tuple(2)));
        table.expire(Nanos(2));
        assert!(!table.contains(&tuple(2)) && table.contains(&tuple(3)));
    }
}

//! TIME_WAIT: connections that our side closed first. Their late segments must not reach a new connection between the same ends
//! (RFC 9293, 3.6.1).

use alloc::collections::VecDeque;

use serde::{Deserialize, Serialize};
use wave_core::clock::Nanos;

use crate::datapath::{FlowId, Tuple};
use crate::flow::optional_time::OptionalTime;
use crate::packet::MacAddress;
use crate::seq::Seq;
use crate::stages::receive::ANSWER_AFTER;
use crate::tuples::Tuples;

/// Twice the maximum segment lifetime: Linux's value, half of RFC 9293's.
pub const TIME_WAIT_LASTS: Nanos = Nanos::from_millis(60_000);

/// A connection in TIME_WAIT.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct TimeWaitEntry {
    /// Time until which it is remembered.
    pub until: Nanos,
    /// Sequence number of our acknowledgements: that after our FIN.
    pub seq: Seq,
    /// Expected sequence number: that after the peer's FIN.
    pub expected: Seq,
    /// The peer's last timestamp, if it sends timestamps.
    pub recent: Option<u32>,
    /// Offset of our timestamps from our clock.
    pub offset: u32,
    /// Ethernet address of the next hop.
    pub mac: MacAddress,
    /// When one of the peer's segments was last answered.
    pub answered_at: OptionalTime,
}

/// A bounded table of connections in TIME_WAIT; new ones replace the oldest.
#[derive(Debug)]
pub struct TimeWait {
    table: Tuples<TimeWaitEntry>,
    /// In the order of insertion.
    order: VecDeque<FlowId>,
}

impl TimeWait {
    pub fn new(entries: u32, key: (u64, u64)) -> TimeWait {
        TimeWait {
            table: Tuples::new(entries, key),
            order: VecDeque::with_capacity(2 * entries as usize),
        }
    }

    /// Extends the time of a connection.
    pub fn extend(&mut self, tuple: &Tuple, until: Nanos) {
        if let Some(over) = self.find(tuple).copied() {
            self.insert(*tuple, TimeWaitEntry { until, ..over });
        }
    }

    /// Adds a connection.
    pub fn insert(&mut self, tuple: Tuple, over: TimeWaitEntry) {
        if let Some(id) = self.table.find(&tuple) {
            self.table.remove(id);
        }
        // Drop names of connections that were removed early.
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

    /// The connection between these ends.
    pub fn find(&mut self, tuple: &Tuple) -> Option<&mut TimeWaitEntry> {
        let id = self.table.find(tuple)?;
        self.table.get_mut(id)
    }

    /// Whether a segment between these ends may be answered now.
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

    /// Removes connections whose time is over.
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
    pub fn in_order(&self) -> impl Iterator<Item = (Tuple, &TimeWaitEntry)> {
        self.order.iter().filter_map(|id| self.table.entry(*id))
    }

    pub fn iter(&self) -> impl Iterator<Item = (Tuple, &TimeWaitEntry)> {
        self.table.iter().map(|(_, tuple, over)| (tuple, over))
    }
}

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;

    use super::*;

    #[test]
    fn new_connections_replace_the_oldest_and_all_expire() {
        let tuple = |port| Tuple {
            local: SocketAddr::from(([10, 0, 0, 2], 80)),
            remote: SocketAddr::from(([10, 0, 0, 1], port)),
        };
        let over = |until| TimeWaitEntry {
            until: Nanos(until),
            seq: Seq(0),
            expected: Seq(0),
            recent: None,
            offset: 0,
            mac: [0; 6],
            answered_at: OptionalTime::NONE,
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

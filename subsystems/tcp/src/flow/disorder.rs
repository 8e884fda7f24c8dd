//! State that a connection has only while data is lost or out of order, and the pool that lends it.
//!
//! Most connections are in order most of the time, so [`Disorder`] is not part of [`Protocol`]. The pool has one for every 16th
//! connection, and is allocated at the start. A connection that gets none behaves like FlexTOE's first version: its sender goes
//! back to the first unacknowledged byte after three duplicate acknowledgements, and its receiver drops out-of-order segments.
//!
//! *Threat*: a peer that acknowledges and sends with gaps, on many connections, to exhaust the pool. *Defence*: peers are
//! divided into [`PEERS`] groups by a keyed hash of their address (of IPv6, its first 64 bits), and a group gets another one
//! only while it has fewer than are free. *Invariant*: `k` groups that take all they can leave `1 / (k + 1)` of the pool to the
//! others.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};
use core::net::IpAddr;

use siphasher::sip::SipHasher13;
use wave_core::clock::Nanos;

use super::intervals::{Interval, Intervals};
use super::prr::Prr;
use super::scoreboard::Scoreboard;
use super::state::{Protocol, RxtMark};

/// Number of groups of peers that share the pool.
pub const PEERS: usize = 256;
/// One in this many connections can be out of order at a time.
const ONE_OF: u32 = 16;
/// Number of connections up to which each one gets a [`Disorder`], even if all have the same peer.
const FEW: u32 = 256;

/// State of a connection with lost or out-of-order segments, in either direction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disorder {
    /// Losses among the bytes that we have sent.
    pub loss: Loss,
    /// Bytes that arrived out of order.
    pub intervals: Intervals,
    /// Bytes that arrived twice, to be reported by the next acknowledgement (RFC 2883).
    pub duplicate: Interval,
}

/// A sender's losses. Positions are in order: acknowledged, `high_rxt`, `rxt_once`, `lost`, highest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    /// Bytes that the peer has selectively acknowledged.
    pub board: Scoreboard,
    /// Recovery from a loss is in progress, until [`Protocol::recover`] is acknowledged.
    pub is_recovering: bool,
    /// Position: all bytes before it that the peer does not have are lost.
    pub lost: u64,
    /// Position: all lost bytes before it were retransmitted (RFC 6675: HighRxt), as often as they were lost.
    pub high_rxt: u64,
    /// Position: all lost bytes before it were retransmitted at least once.
    pub rxt_once: u64,
    /// Position: retransmissions from `high_rxt` up to it were lost.
    pub lost_rxt: u64,
    /// Retransmissions that count as lost if later data overtakes them.
    pub mark: Option<RxtMark>,
    /// Limits sending after the loss.
    pub prr: Prr,
    /// Position: all bytes before it that the peer does not have are overtaken, since `overtaken_at`.
    pub overtaken: u64,
    /// See `overtaken`.
    pub overtaken_at: Nanos,
}

impl Loss {
    /// The state of a connection without losses.
    pub const NONE: Loss = Loss {
        board: Scoreboard::EMPTY,
        is_recovering: false,
        lost: 0,
        high_rxt: 0,
        rxt_once: 0,
        lost_rxt: 0,
        mark: None,
        prr: Prr::NONE,
        overtaken: 0,
        overtaken_at: Nanos(0),
    };

    /// A new state of a connection with all bytes before `acknowledged` acknowledged.
    pub fn new(acknowledged: u64) -> Loss {
        let mut loss = Loss::NONE;
        loss.end(acknowledged);
        loss
    }

    /// Begins recovery after a loss was detected.
    pub fn begin(&mut self, acknowledged: u64) {
        self.is_recovering = true;
        (self.high_rxt, self.rxt_once, self.lost_rxt, self.mark) =
            (acknowledged, acknowledged, 0, None);
    }

    /// Ends recovery.
    pub fn end(&mut self, acknowledged: u64) {
        self.begin(acknowledged);
        self.is_recovering = false;
        self.lost = acknowledged;
    }
}

impl Disorder {
    /// Whether nothing is out of order, so that the connection behaves the same without this state.
    pub fn is_over(&self) -> bool {
        !self.loss.is_recovering
            && self.loss.board.ranges().is_empty()
            && self.intervals.is_empty()
            && self.duplicate.is_empty()
    }
}

/// The pool of [`Disorder`] for the connections of one protocol stage.
#[derive(Clone, Debug)]
pub struct Pool {
    #[expect(clippy::vec_box, reason = "a box moves between pool and flow, its contents do not")]
    free: Vec<Box<Disorder>>,
    /// Number of loans to each group of peers.
    lent: Box<[u32; PEERS]>,
    key: (u64, u64),
}

impl Pool {
    /// A pool for a table of `flows` connections. The key keeps peers from choosing their group.
    pub fn new(flows: u32, key: (u64, u64)) -> Pool {
        let count = (flows / ONE_OF).max(flows.min(FEW) * 2);
        let free = (0..count).map(|_| Box::default()).collect();
        Pool { free, lent: Box::new([0; PEERS]), key }
    }

    /// The group of a peer.
    pub fn group(&self, peer: IpAddr) -> u8 {
        let mut hasher = SipHasher13::new_with_keys(self.key.0, self.key.1);
        match peer {
            IpAddr::V4(peer) => peer.to_bits().hash(&mut hasher),
            IpAddr::V6(peer) => ((peer.to_bits() >> 64) as u64).hash(&mut hasher),
        }
        hasher.finish() as u8
    }

    /// Lends a flow a [`Disorder`]. The flow gets none if its group of peers has used up its share.
    pub fn lend(&mut self, flow: &mut Protocol) {
        let lent = &mut self.lent[usize::from(flow.group)];
        if flow.disorder.is_some() || *lent as usize >= self.free.len() {
            return;
        }
        let Some(mut disorder) = self.free.pop() else { return };
        *lent += 1;
        disorder.loss = Loss::new(flow.acknowledged);
        (disorder.intervals, disorder.duplicate) = (Intervals::NONE, Interval::NONE);
        flow.disorder = Some(disorder);
    }

    /// Takes a flow's [`Disorder`] back.
    pub fn take_back(&mut self, flow: &mut Protocol) {
        if let Some(disorder) = flow.disorder.take() {
            self.lent[usize::from(flow.group)] -= 1;
            self.free.push(disorder);
        }
    }

    /// Takes a flow's [`Disorder`] back if nothing is out of order.
    #[inline]
    pub fn reclaim(&mut self, flow: &mut Protocol) {
        if flow.disorder.as_ref().is_some_and(|disorder| disorder.is_over()) {
            self.take_back(flow);
        }
    }
}

#[cfg(test)]
mod tests {
    use core::net::{Ipv4Addr, Ipv6Addr};
    use std::vec::Vec;

    use super::*;
    use crate::flow::state::split;
    use crate::flow::tests::established;

    fn flows(count: usize, group: u8) -> Vec<Protocol> {
        let flow = split(&established(), Nanos(0)).1;
        (0..count).map(|_| Protocol { group, ..flow.clone() }).collect()
    }

    fn borrowed(pool: &mut Pool, flows: &mut [Protocol]) -> usize {
        flows.iter_mut().for_each(|flow| pool.lend(flow));
        flows.iter().filter(|flow| flow.disorder.is_some()).count()
    }

    #[test]
    fn hostile_peers_leave_their_share_of_the_pool_to_others() {
        for greedy in 1..=3 {
            let mut pool = Pool::new(16_384, (1, 2));
            let all = pool.free.len();
            assert_eq!(all, 1_024);
            let mut hostile: Vec<_> = (1..=greedy).map(|group| flows(all, group)).collect();
            // In turns, so that no group comes first.
            for at in 0..all {
                hostile.iter_mut().for_each(|flows| pool.lend(&mut flows[at]));
            }
            assert!(pool.free.len() >= all / (usize::from(greedy) + 1), "{}", pool.free.len());
            assert!(borrowed(&mut pool, &mut flows(64, 0)) == 64);
            for flow in hostile.iter_mut().flatten() {
                pool.take_back(flow);
            }
        }
    }

    #[test]
    fn every_connection_of_a_small_table_can_borrow() {
        let mut pool = Pool::new(32, (1, 2));
        let mut flows = flows(32, 9);
        assert_eq!(borrowed(&mut pool, &mut flows), 32);
        flows.iter_mut().for_each(|flow| pool.reclaim(flow));
        assert_eq!((pool.free.len(), pool.lent[9]), (64, 0));
    }

    #[test]
    fn a_loan_holds_no_state_of_its_previous_borrower() {
        let mut pool = Pool::new(1, (1, 2));
        let mut flow = flows(1, 0).remove(0);
        for acknowledged in [0, 5_000] {
            flow.acknowledged = acknowledged;
            pool.lend(&mut flow);
            let disorder = flow.disorder.as_mut().unwrap();
            assert!(disorder.is_over());
            assert_eq!(disorder.loss, Loss::new(acknowledged));
            disorder.loss.board.insert(Interval { start: 10_000, end: 11_000 });
            disorder.loss.is_recovering = true;
            disorder.intervals.insert(Interval { start: 7, end: 9 }, 4);
            disorder.duplicate = Interval { start: 1, end: 2 };
            pool.reclaim(&mut flow);
            assert!(flow.disorder.is_some());
            pool.take_back(&mut flow);
        }
    }

    #[test]
    fn peers_of_one_ipv6_network_are_one_group() {
        let pool = Pool::new(16, (3, 4));
        let group = |bits: u128| pool.group(Ipv6Addr::from_bits(bits).into());
        let network = 0x2001_0db8_u128 << 96;
        assert_eq!(group(network | 1), group(network | u128::from(u64::MAX)));
        let of = |last| pool.group(Ipv4Addr::new(10, 0, 0, last).into());
        assert!((1..=20).any(|last| of(last) != of(0)));
    }
}

//! Numbers that a stranger must not be able to guess: initial sequence numbers (RFC 6528), SYN cookies (RFC 4987), ports (RFC 6056), timestamp offsets
//! (RFC 7323, 5.4).

use core::hash::{Hash, Hasher};
use core::net::IpAddr;

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;
use wave_core::clock::Nanos;

use crate::datapath::Tuple;
use crate::seq::Seq;

/// Local ports of outgoing connections.
pub const EPHEMERAL_PORTS: core::ops::Range<u16> = 32_768..60_999;

/// Keys, drawn at random when the agent starts.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Secrets {
    /// Key of initial sequence numbers and SYN cookies.
    pub sequence: (u64, u64),
    /// Key of timestamps.
    pub timestamp: (u64, u64),
    /// Key of ports.
    pub port: (u64, u64),
    /// Key of hash tables.
    pub table: (u64, u64),
}

impl Secrets {
    /// Initial sequence number of a connection: a keyed hash of its ends, plus a clock of 4 us.
    pub fn initial_sequence(&self, tuple: &Tuple, now: Nanos) -> Seq {
        Seq((hash(self.sequence, tuple) as u32).wrapping_add((now.0 / 4_000) as u32))
    }

    /// The keyed hash of a SYN cookie: of the ends, the peer's initial sequence number, the period, and the index of the MSS.
    pub fn cookie(&self, tuple: &Tuple, irs: Seq, period: u64, mss: usize) -> u64 {
        hash(self.sequence, &(tuple, irs.0, period, mss as u64))
    }

    /// Offset of a connection's timestamps from our clock. It depends on the hosts, not on the ports, so that timestamps
    /// continue to grow in a second connection between the same ends (RFC 6191).
    pub fn timestamp_offset(&self, tuple: &Tuple) -> u32 {
        hash(self.timestamp, &(tuple.local.ip(), tuple.remote.ip())) as u32
    }

    /// The port to try for a peer after `count` ports were tried.
    pub fn candidate_port(&self, tuple: &Tuple, count: u32) -> u16 {
        let offset = hash(self.port, &tuple.remote) as u32;
        let range = u32::from(EPHEMERAL_PORTS.end - EPHEMERAL_PORTS.start);
        EPHEMERAL_PORTS.start + (offset.wrapping_add(count) % range) as u16
    }

    /// Which of `buckets` limits a host shares with others that have the same hash.
    pub fn bucket(&self, host: IpAddr, buckets: usize) -> usize {
        (hash(self.table, &host) % buckets as u64) as usize
    }

    /// An unpredictable limit between half and one and a half times `mean`: a stranger who counts our answers cannot infer
    /// whether others got some (CVE-2016-5696, CVE-2020-25705).
    pub fn jittered(&self, mean: u32, period: u64) -> u32 {
        mean / 2 + hash(self.table, &period) as u32 % (mean + 1)
    }
}

fn hash(key: (u64, u64), value: &impl Hash) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(key.0, key.1);
    value.hash(&mut hasher);
    hasher.finish()
}

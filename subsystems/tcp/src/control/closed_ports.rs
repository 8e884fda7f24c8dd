//! Datagrams to the agent's addresses. No program receives UDP there, so each is answered with "port unreachable" (RFC 1122,
//! 4.1.3.1; RFC 4443, 3.1), which ends a traceroute and lets a resolver try its next server at once.
//!
//! A sender's address may be forged. Answers are limited by the limits that Linux has: by destination, and in all.

use alloc::vec::Vec;
use core::net::IpAddr;

use wave_core::clock::Nanos;

use super::frames::Answer;
use super::{Secrets, Stack};
use crate::datapath::{Datapath, Head};
use crate::packet::{
    EthernetView, ICMP_REPLY_HEADERS_BYTES, IpView, build_port_unreachable, unreachable_quote,
};

/// Time in which one more answer to a destination becomes due (Linux's icmp_ratelimit).
const TO_ONE_AFTER: Nanos = Nanos::from_millis(1_000);
/// Limit of answers to a destination at once.
const TO_ONE_MAX: u64 = 6;
/// Time in which one more answer becomes due, on average (Linux's icmp_msgs_per_sec).
const TO_ALL_AFTER_US: u32 = 1_000;
/// Limit of answers at once (Linux's icmp_msgs_burst).
const TO_ALL_MAX: u64 = 50;
/// Number of limits by destination. Destinations with the same hash share one, so the memory is bounded.
const DESTINATIONS: usize = 256;

/// A rate limit: the time at which all of its burst is available again.
#[derive(Clone, Copy, Debug, Default)]
struct Limit(Nanos);

impl Limit {
    /// Whether one more is allowed, with a burst of at most `most` that is replenished by one each `interval`.
    fn allows(self, now: Nanos, interval: Nanos, most: u64) -> bool {
        self.0.since(now).0 <= interval.0 * (most - 1)
    }

    fn count(&mut self, now: Nanos, interval: Nanos) {
        self.0 = self.0.max(now) + interval;
    }
}

/// Rate limits of answers to datagrams.
#[derive(Debug)]
pub struct ClosedPorts {
    to_one: Vec<Limit>,
    to_all: Limit,
    answers: u64,
}

impl ClosedPorts {
    pub fn new() -> ClosedPorts {
        ClosedPorts {
            to_one: alloc::vec![Limit::default(); DESTINATIONS],
            to_all: Limit::default(),
            answers: 0,
        }
    }

    /// Whether this host may be answered now.
    fn may_answer(&mut self, now: Nanos, host: IpAddr, secrets: &Secrets) -> bool {
        let to_one = &mut self.to_one[secrets.bucket(host, DESTINATIONS)];
        // The second limit's interval varies, so that a stranger who counts answers cannot infer whether others got some
        // (CVE-2020-25705).
        let varied = secrets.jittered(TO_ALL_AFTER_US, self.answers);
        let interval = Nanos(u64::from(varied) * 1_000);
        let mean = Nanos(u64::from(TO_ALL_AFTER_US) * 1_000);
        let may = to_one.allows(now, TO_ONE_AFTER, TO_ONE_MAX)
            && self.to_all.allows(now, mean, TO_ALL_MAX);
        if may {
            to_one.count(now, TO_ONE_AFTER);
            self.to_all.count(now, interval);
            self.answers += 1;
        }
        may
    }
}

impl<F: AsRef<[u8]>, D: Datapath<F>> Stack<F, D> {
    /// Handles an intact datagram from one host to one host.
    pub(super) fn on_datagram(
        &mut self,
        now: Nanos,
        frame: &[u8],
        ethernet: &EthernetView,
        ip: &IpView<IpAddr>,
    ) -> Answer {
        if !self.address.is_local(ip.destination) || !self.address.may_be_peer(ip.source) {
            return Answer::None;
        }
        if !self.closed_ports.may_answer(now, ip.source, &self.secrets) {
            self.counters.held_back += 1;
            return Answer::None;
        }
        self.counters.ports_unreachable += 1;
        let quote = unreachable_quote(ethernet, ip);
        let mut head = Head::zeroed(ICMP_REPLY_HEADERS_BYTES);
        let len = build_port_unreachable(head.bytes_mut(), ethernet, ip, &frame[quote.clone()]);
        head.truncate(len);
        Answer::Reply(head, quote)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRETS: Secrets =
        Secrets { sequence: (1, 2), timestamp: (3, 4), port: (5, 6), table: (7, 8) };

    fn host(number: u32) -> IpAddr {
        IpAddr::from((0x0a00_0000 + number).to_be_bytes())
    }

    #[test]
    fn a_destination_gets_six_answers_at_once_and_then_one_a_second() {
        let mut ports = ClosedPorts::new();
        let mut answers = |now: Nanos, count: u32| {
            (0..count).filter(|_| ports.may_answer(now, host(1), &SECRETS)).count()
        };
        let start = Nanos::from_millis(5_000);
        assert_eq!(answers(start, 100), 6);
        for second in 1..10 {
            assert_eq!(answers(start + Nanos::from_millis(1_000 * second), 100), 1);
        }
        assert_eq!(answers(start + Nanos::from_millis(60_000), 100), 6);
    }

    #[test]
    fn a_flood_from_forged_addresses_gets_some_thousand_answers_a_second_in_bounded_memory() {
        let mut ports = ClosedPorts::new();
        let memory = ports.to_one.capacity();
        let start = Nanos::from_millis(5_000);
        let first = (0..10_000).filter(|one| ports.may_answer(start, host(*one), &SECRETS)).count();
        assert!((34..=100).contains(&first), "{first} at once");
        // A thousand datagrams in each millisecond of ten seconds.
        let mut answers = 0;
        for one in 0..10_000_000_u32 {
            let now = start + Nanos(u64::from(one) * 1_000);
            answers += u32::from(ports.may_answer(now, host(one), &SECRETS));
        }
        // 256 limits allow one a second each, and six at first.
        assert!((2_000..=11_000).contains(&answers), "{answers} in ten seconds");
        assert_eq!(ports.to_one.capacity(), memory);
    }
}

//! Which flow sends next: Carousel's time wheel, and a queue that flows without a rate take turns in (thesis 4.3.4, 4.4.1.1).
//!
//! A flow with a rate waits in the slot of the wheel in which its next segment is due. Every operation takes constant time, whatever
//! the number of flows. Within a slot, flows leave in the order in which they came, not by their times.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use wave_core::clock::Nanos;
use wave_core::waiting::Queues;

/// Time that one slot stands for: a power of two.
const SLOT_NS: u64 = 1 << 14;
/// Slots of the wheel, which is 67 ms long. What is due later waits in the last one and is put there again.
const SLOTS: u64 = 1 << 12;
const WORDS: usize = (SLOTS / 64) as usize;
const _: () = assert!(WORDS == u64::BITS as usize);
/// Longest burst of a flow that was idle: it may use so much of the time in which it sent nothing.
const CREDIT: Nanos = Nanos::from_millis(1);
/// Of `Queues`: flows that may send at once.
const READY: usize = 0;

/// The time that a flow's bytes take at its rate, as a number to multiply with: data paths do not divide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    ns_per_kib: u32,
}

impl Pace {
    /// From a rate in bytes per second. Rates below 256 bytes per second are that.
    pub fn of(bytes_per_second: u64) -> Pace {
        let ns_per_kib = 1_024_000_000_000_u64.div_ceil(bytes_per_second.max(256));
        Pace { ns_per_kib: ns_per_kib.min(u32::MAX.into()) as u32 }
    }

    /// How long so many bytes take.
    pub fn time(self, bytes: u32) -> Nanos {
        Nanos((u64::from(bytes) * u64::from(self.ns_per_kib)) >> 10)
    }

    /// Most bytes of a super-packet, so that it takes 1 ms at most and other flows are not held up by it.
    pub fn burst_bytes(self) -> u32 {
        ((CREDIT.0 << 10) / u64::from(self.ns_per_kib.max(1))).min(u32::MAX.into()) as u32
    }
}

/// The flows that may have something to send.
#[derive(Clone, Debug)]
pub struct Carousel {
    queues: Queues,
    /// When the flow's next segment is due.
    due: Vec<Nanos>,
    /// A bit for each slot that holds a flow, or did; and one for each word of those that is not zero.
    occupied: Box<[u64; WORDS]>,
    occupied_words: u64,
    /// The first slot, counted from time 0, that may hold flows.
    hand: u64,
}

impl Carousel {
    /// For flows below `flows`.
    pub fn new(flows: u32) -> Carousel {
        Carousel {
            queues: Queues::new(1 + SLOTS as usize, flows),
            due: vec![Nanos(0); flows as usize],
            occupied: Box::new([0; WORDS]),
            occupied_words: 0,
            hand: 0,
        }
    }

    /// Whether a flow waits here.
    pub fn contains(&self, flow: u32) -> bool {
        self.queues.contains(flow)
    }

    /// A flow has something to send: at once, or where it has a rate and has used it up, once it is due. Nothing if it waits already.
    pub fn push(&mut self, now: Nanos, flow: u32) {
        if self.contains(flow) {
            return;
        }
        let due = self.due[flow as usize];
        if due <= now {
            return self.queues.push(READY, flow);
        }
        if self.occupied_words == 0 {
            self.hand = now.0 / SLOT_NS;
        }
        // Not into the slot that the hand is leaving.
        let slot = (due.0 / SLOT_NS).clamp(self.hand, self.hand + SLOTS - 2) % SLOTS;
        self.queues.push(1 + slot as usize, flow);
        self.occupied[slot as usize / 64] |= 1 << (slot % 64);
        self.occupied_words |= 1 << (slot / 64);
    }

    /// A flow has sent so many bytes, at this pace.
    pub fn sent(&mut self, now: Nanos, flow: u32, bytes: u32, pace: Option<Pace>) {
        let Some(pace) = pace else {
            self.due[flow as usize] = Nanos(0);
            return;
        };
        // What was not used is lost, but for a burst.
        let from = self.due[flow as usize].max(Nanos(now.0.saturating_sub(CREDIT.0)));
        self.due[flow as usize] = from + pace.time(bytes);
    }

    /// The next flow that may send.
    pub fn pop(&mut self, now: Nanos) -> Option<u32> {
        self.turn(now);
        self.queues.pop(READY)
    }

    /// Forgets a flow.
    pub fn remove(&mut self, flow: u32) {
        self.queues.remove(flow);
        self.due[flow as usize] = Nanos(0);
    }

    /// When a flow is due: `now` if one may send at once.
    pub fn next(&self, now: Nanos) -> Option<Nanos> {
        if self.queues.first(READY).is_some() {
            return Some(now);
        }
        let slot = self.first_occupied()?;
        // The end of the slot: all of it is due then.
        Some(Nanos((slot + 1) * SLOT_NS).max(now))
    }

    /// The first slot from the hand on that holds a flow, or did.
    fn first_occupied(&self) -> Option<u64> {
        let at = self.hand % SLOTS;
        let (word, bit) = (at / 64, at % 64);
        let bits_from = self.occupied[word as usize] & (u64::MAX << bit);
        let slot = if bits_from != 0 {
            word * 64 + u64::from(bits_from.trailing_zeros())
        } else {
            // Words behind this one come first; its own lower bits last.
            let ahead = self.occupied_words.rotate_right(word as u32 + 1).trailing_zeros();
            if ahead == u64::BITS {
                return None;
            }
            let found = (word + 1 + u64::from(ahead)) % WORDS as u64;
            found * 64 + u64::from(self.occupied[found as usize].trailing_zeros())
        };
        Some(self.hand + (slot + SLOTS - at) % SLOTS)
    }

    /// Moves flows whose slots are over to those that may send.
    fn turn(&mut self, now: Nanos) {
        let end = now.0 / SLOT_NS;
        while let Some(slot) = self.first_occupied().filter(|slot| *slot < end) {
            self.hand = slot;
            let at = (slot % SLOTS) as usize;
            self.occupied[at / 64] &= !(1 << (at % 64));
            if self.occupied[at / 64] == 0 {
                self.occupied_words &= !(1 << (at / 64));
            }
            // Those that are due later, beyond the wheel's length, go back to a slot further on.
            self.hand += 1;
            while let Some(flow) = self.queues.pop(1 + at) {
                self.push(now, flow);
            }
        }
        self.hand = self.hand.max(end);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn flows_without_a_rate_take_turns_and_do_not_wait() {
        let mut carousel = Carousel::new(4);
        for flow in [2, 0, 3] {
            carousel.push(Nanos(5), flow);
        }
        let order: Vec<u32> = (0..6)
            .map(|_| {
                let flow = carousel.pop(Nanos(5)).unwrap();
                carousel.sent(Nanos(5), flow, 64_000, None);
                carousel.push(Nanos(5), flow);
                flow
            })
            .collect();
        assert_eq!(order, [2, 0, 3, 2, 0, 3]);
    }

    #[test]
    fn a_flow_sends_at_its_rate_and_another_is_not_held_up() {
        let mut carousel = Carousel::new(2);
        let pace = Pace::of(10_000_000);
        let (mut now, mut bytes) = (Nanos(10 * MS), 0);
        let end = Nanos(1_010 * MS);
        carousel.push(now, 0);
        while now < end {
            while let Some(flow) = carousel.pop(now) {
                carousel.sent(now, flow, 1_500, Some(pace));
                carousel.push(now, flow);
                bytes += 1_500;
            }
            now = carousel.next(now).unwrap();
        }
        // Ten megabytes in a second, and the burst that it began with.
        assert!((9_900_000..=10_030_000).contains(&bytes), "{bytes}");
        carousel.push(now, 1);
        assert_eq!(carousel.pop(now), Some(1));
    }

    #[test]
    fn a_super_packet_takes_a_millisecond_at_most() {
        let pace = Pace::of(10_000_000);
        assert!(pace.burst_bytes().abs_diff(10_000) <= 10, "{}", pace.burst_bytes());
        assert!(pace.time(pace.burst_bytes()) <= Nanos::from_millis(1));
    }

    #[test]
    fn what_is_due_beyond_the_wheel_waits_as_long_as_it_must() {
        let mut carousel = Carousel::new(1);
        let pace = Pace::of(1_000);
        carousel.sent(Nanos(0), 0, 1_000, Some(pace));
        carousel.push(Nanos(0), 0);
        let mut now = Nanos(0);
        while carousel.pop(now).is_none() {
            now = carousel.next(now).unwrap();
        }
        let due = 1_000 * MS;
        assert!((due..due + 2 * SLOT_NS).contains(&now.0), "{now:?}");
    }

    proptest! {
        /// Against a list of due times: nobody sends before, and everybody within a slot.
        #[test]
        fn nobody_leaves_early_or_late(
            steps in prop::collection::vec((0_u32..8, 1_u32..70_000, 0_u64..40 * MS), 1..200),
            rate in 1_000_u64..1_000_000_000,
        ) {
            let mut carousel = Carousel::new(8);
            let mut now = Nanos(MS);
            let mut due = [Nanos(0); 8];
            let mut waits = [false; 8];
            for (flow, bytes, pause) in steps {
                if !waits[flow as usize] {
                    carousel.sent(now, flow, bytes, Some(Pace::of(rate)));
                    due[flow as usize] = carousel.due[flow as usize];
                    carousel.push(now, flow);
                    waits[flow as usize] = true;
                }
                let next = carousel.next(now).unwrap();
                let first = (0..8).filter(|at| waits[*at]).map(|at| due[at]).min().unwrap();
                // A wheel that is shorter than the wait is looked at in between.
                prop_assert!(next <= first.max(now) + Nanos(SLOT_NS), "{next:?} {first:?}");
                now = now + Nanos(pause);
                while let Some(flow) = carousel.pop(now) {
                    prop_assert!(waits[flow as usize] && due[flow as usize] <= now);
                    waits[flow as usize] = false;
                }
                for flow in 0..8 {
                    let is_late = waits[flow] && due[flow].0 + SLOT_NS <= now.0;
                    prop_assert!(!is_late, "{flow} {:?} {now:?}", due[flow]);
                }
            }
        }
    }
}

//! Carousel's time wheel (thesis 4.3.4, 4.4.1.1): flows by the time at which they may send next. Every operation takes constant
//! time. Flows within a slot are in the order of insertion.

use alloc::vec::Vec;

use wave_core::clock::Nanos;
use wave_core::waiting::Queues;

/// Width of a slot: 65 us. A flow is released at the end of its slot, so it is late by less than this, and never early.
pub const SLOT: Nanos = Nanos(1 << 16);
/// Number of slots.
const SLOTS: usize = 4096;
/// Longest time that a flow waits: 268 ms. Longer waits are cut to this.
pub const HORIZON: Nanos = Nanos(SLOT.0 * (SLOTS as u64 - 1));

/// A time wheel of flows.
#[derive(Debug)]
pub struct Wheel {
    slots: Queues,
    /// One bit per slot, set for slots with flows.
    occupied: Vec<u64>,
    /// Number of the last slot whose time has passed. Slot `n` holds flows with times up to `n * SLOT`, at index `n % SLOTS`.
    turned: u64,
}

impl Wheel {
    /// An empty wheel for flows with indices below `flows`.
    pub fn new(flows: u32) -> Wheel {
        Wheel { slots: Queues::new(SLOTS, flows), occupied: alloc::vec![0; SLOTS / 64], turned: 0 }
    }

    /// Whether no flow waits.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Whether this flow waits.
    pub fn contains(&self, flow: u32) -> bool {
        self.slots.contains(flow)
    }

    /// Inserts a flow that does not wait yet. It is released at `at`, but no later than [`HORIZON`] from now.
    pub fn insert(&mut self, now: Nanos, at: Nanos, flow: u32) {
        // Advances to the current slot, but not past flows that were not released yet.
        let current = now.0 / SLOT.0;
        let waiting = self.first().filter(|_| !self.is_empty());
        self.turned = self.turned.max(waiting.map_or(current, |first| current.min(first - 1)));
        let latest = self.turned + SLOTS as u64 - 1;
        let number = at.0.div_ceil(SLOT.0).clamp(self.turned + 1, latest);
        let slot = (number % SLOTS as u64) as usize;
        self.slots.push(slot, flow);
        self.occupied[slot / 64] |= 1 << (slot % 64);
    }

    /// Removes a flow, if it waits.
    pub fn remove(&mut self, flow: u32) {
        // The slot may stay marked; it is found empty when its time comes.
        self.slots.remove(flow);
    }

    /// Releases flows whose times have come, in the order of their slots.
    pub fn advance(&mut self, now: Nanos, mut release: impl FnMut(u32)) {
        let current = now.0 / SLOT.0;
        while let Some(number) = self.first().filter(|number| *number <= current) {
            let slot = (number % SLOTS as u64) as usize;
            while let Some(flow) = self.slots.pop(slot) {
                release(flow);
            }
            self.occupied[slot / 64] &= !(1 << (slot % 64));
            self.turned = number;
        }
        self.turned = self.turned.max(current);
    }

    /// When the next flow is released; `None` if no flow waits. After a removal, the time may be too early.
    pub fn next_at(&self) -> Option<Nanos> {
        if self.is_empty() {
            return None;
        }
        self.first().map(|number| Nanos(number * SLOT.0))
    }

    /// Number of the first marked slot.
    fn first(&self) -> Option<u64> {
        let from = (self.turned + 1) % SLOTS as u64;
        let words = self.occupied.len();
        // The first word is examined twice: first from the starting slot on, and at the end up to that slot.
        (0..=words).find_map(|step| {
            let word = (from as usize / 64 + step) % words;
            let skipped = !0 << (from % 64);
            let bits = match step {
                0 => self.occupied[word] & skipped,
                _ if step == words => self.occupied[word] & !skipped,
                _ => self.occupied[word],
            };
            let slot = (word * 64) as u64 + u64::from(bits.trailing_zeros());
            let ahead = (slot + SLOTS as u64 - from) % SLOTS as u64;
            (bits != 0).then_some(self.turned + 1 + ahead)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Op {
        /// Inserts a flow, if it does not wait, to be released this much later.
        Insert(u32, u64),
        Remove(u32),
        /// Lets this much time pass.
        Pass(u64),
    }

    const FLOWS: u32 = 16;

    fn op() -> impl Strategy<Value = Op> {
        let span = prop_oneof![0..3 * SLOT.0, 0..HORIZON.0, 0..3 * HORIZON.0];
        prop_oneof![
            4 => (0..FLOWS, span.clone()).prop_map(|(flow, after)| Op::Insert(flow, after)),
            1 => (0..FLOWS).prop_map(Op::Remove),
            3 => span.prop_map(Op::Pass),
        ]
    }

    proptest! {
        /// The model is a list of flows by their times, in which each flow waits until the end of its slot.
        #[test]
        fn flows_are_released_in_order_and_on_time_and_none_is_lost(
            start in 0_u64..1 << 40,
            ops in prop::collection::vec(op(), 0..100),
        ) {
            let mut wheel = Wheel::new(FLOWS);
            let mut model: Vec<(u64, u64, u32)> = Vec::new();
            let mut now = start;
            for op in ops {
                match op {
                    Op::Insert(flow, after) => {
                        let waits = model.iter().any(|(.., other)| *other == flow);
                        prop_assert_eq!(wheel.contains(flow), waits);
                        if !waits {
                            wheel.insert(Nanos(now), Nanos(now + after), flow);
                            let at = (now + after).div_ceil(SLOT.0);
                            let slot = at.clamp(now / SLOT.0 + 1, (now + HORIZON.0) / SLOT.0);
                            let place = model.partition_point(|(other, ..)| *other <= slot);
                            model.insert(place, (slot, now + after.min(HORIZON.0), flow));
                        }
                    }
                    Op::Remove(flow) => {
                        wheel.remove(flow);
                        model.retain(|(.., other)| *other != flow);
                    }
                    Op::Pass(span) => {
                        now += span;
                        let mut released = Vec::new();
                        wheel.advance(Nanos(now), |flow| released.push(flow));
                        let due = model.partition_point(|(slot, ..)| slot * SLOT.0 <= now);
                        for (expected, flow) in model.drain(..due).zip(&released) {
                            let (slot, at, of) = expected;
                            prop_assert_eq!(of, *flow);
                            // Never early, except in the slot in which the longest wait ends.
                            prop_assert!(slot * SLOT.0 + SLOT.0 > at && slot * SLOT.0 < at + 2 * SLOT.0);
                        }
                        prop_assert_eq!(released.len(), due);
                    }
                }
                prop_assert_eq!(wheel.is_empty(), model.is_empty());
                match (wheel.next_at(), model.first()) {
                    (None, None) => {}
                    (Some(at), Some((slot, ..))) => prop_assert!(at.0 <= slot * SLOT.0 && at.0 > now),
                    other => prop_assert!(false, "{other:?}"),
                }
            }
        }
    }

    #[test]
    fn a_flow_waits_until_the_end_of_its_slot_and_no_longer() {
        let mut wheel = Wheel::new(1);
        let now = Nanos(10 * SLOT.0 + 5);
        wheel.insert(now, Nanos(12 * SLOT.0 + 1), 0);
        assert_eq!(wheel.next_at(), Some(Nanos(13 * SLOT.0)));
        let mut released = Vec::new();
        wheel.advance(Nanos(13 * SLOT.0 - 1), |flow| released.push(flow));
        assert_eq!(released, []);
        wheel.advance(Nanos(13 * SLOT.0), |flow| released.push(flow));
        assert_eq!((released, wheel.next_at()), (vec![0], None));
    }
}

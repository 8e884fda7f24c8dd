//! Copies to hosts' rings that are under way. Their effects take place in the order in which the protocol stage processed their entries,
//! whichever copy completes first (thesis 4.3.1.3, 4.3.2).

use alloc::collections::VecDeque;

use crate::datapath::{FlowId, Ticket};
use crate::planted::{Planted, is_planted};
use crate::stages::marks::Marks;
use crate::stages::receive::AckTiming;

/// Effects of a copy, which take place once it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Position: all bytes before it are in the host's ring.
    pub landed: u64,
    /// Number of the last of them that had arrived out of order.
    pub merged: u32,
    /// When to acknowledge, if at all.
    pub acknowledge: Option<AckTiming>,
    /// Congestion signals of the packet.
    pub marks: Marks,
}

/// A bounded queue of copies in the order of their tickets.
#[derive(Debug)]
pub struct Copies {
    under_way: VecDeque<(FlowId, Copied, bool)>,
    copies_max: usize,
    /// Ticket of the first copy.
    first: u64,
}

impl Copies {
    /// Room for `copies_max` copies.
    pub fn new(copies_max: usize) -> Copies {
        Copies { under_way: VecDeque::with_capacity(copies_max), copies_max, first: 0 }
    }

    /// Number of copies that may still begin.
    pub fn room(&self) -> usize {
        self.copies_max - self.under_way.len()
    }

    /// Begins a copy. There must be room.
    pub fn begin(&mut self, flow: FlowId, copied: Copied) -> Ticket {
        debug_assert!(self.room() > 0);
        self.under_way.push_back((flow, copied, false));
        Ticket(self.first + self.under_way.len() as u64 - 1)
    }

    /// Marks a copy as done. A ticket that is not under way is ignored.
    pub fn complete(&mut self, ticket: Ticket) {
        let at = ticket.0.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        if let Some((_, _, is_done)) = at.and_then(|at| self.under_way.get_mut(at)) {
            *is_done = true;
        }
    }

    /// Whether the first copy is done.
    pub fn has_done(&self) -> bool {
        let any = |(_, _, is_done): &(FlowId, Copied, bool)| *is_done;
        match is_planted(Planted::NoSequencer) {
            true => self.under_way.iter().any(any),
            false => self.under_way.front().is_some_and(any),
        }
    }

    /// Removes the first copy, if it is done.
    pub fn pop(&mut self) -> Option<(FlowId, Copied)> {
        if !self.has_done() {
            return None;
        }
        self.first += 1;
        self.under_way.pop_front().map(|(flow, copied, _)| (flow, copied))
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn copies_take_effect_in_the_order_in_which_they_began(
            steps in prop::collection::vec((0_u64..24, 0_u8..3), 0..200),
        ) {
            let mut copies = Copies::new(8);
            // Whether each copy is done, from the first one ever.
            let mut model: Vec<bool> = Vec::new();
            let mut ended = 0_usize;
            for (number, what) in steps {
                match what {
                    0 if copies.room() > 0 => {
                        let flow = FlowId { index: model.len() as u32, generation: 1 };
                        let copied = Copied {
                            landed: model.len() as u64,
                            merged: 0,
                            acknowledge: None,
                            marks: Marks::default(),
                        };
                        prop_assert_eq!(copies.begin(flow, copied), Ticket(model.len() as u64));
                        model.push(false);
                    }
                    1 => {
                        copies.complete(Ticket(number));
                        if let Some(is_done) = model.get_mut(number as usize) {
                            *is_done = true;
                        }
                    }
                    _ => {
                        let expected = model.get(ended).is_some_and(|is_done| *is_done);
                        prop_assert_eq!(copies.has_done(), expected);
                        let popped = copies.pop();
                        prop_assert_eq!(popped.map(|(_, copied)| copied.landed), expected.then_some(ended as u64));
                        ended += usize::from(expected);
                    }
                }
                prop_assert_eq!(copies.room(), 8 - (model.len() - ended));
            }
        }
    }
}

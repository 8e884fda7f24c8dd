//! A reorder buffer: items arrive in any order, and leave in the order of their numbers (thesis 4.3.2).

use alloc::collections::VecDeque;

use crate::planted::{Planted, is_planted};

/// Why a number was refused, which is a bug of the executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OutOfPlace {
    /// The number has left already, or is in the buffer.
    #[error("number {0} was used before")]
    Again(u64),
    /// Too many numbers before it are missing: the buffer has no room for it.
    #[error("number {0} is beyond the reorder buffer")]
    TooFar(u64),
}

#[derive(Clone, Debug)]
enum Place<T> {
    Missing,
    /// No item will arrive for this number.
    Skipped,
    /// The item waits for those before it.
    Here(T),
}

/// A bounded buffer of items, each with a number. Every number is inserted once, or skipped.
///
/// An item leaves when all numbers before it have left or were skipped. With [`Planted::NoSequencer`], items leave as they
/// arrive.
#[derive(Clone, Debug)]
pub struct Reorder<T> {
    /// The number at the front of `places`.
    next: u64,
    places: VecDeque<Place<T>>,
    places_max: usize,
    /// Items that leave as they arrive.
    unordered: VecDeque<T>,
}

impl<T> Reorder<T> {
    /// An empty buffer that waits for number 0. It has room for `places_max` numbers, counted from the next one.
    pub fn new(places_max: usize) -> Reorder<T> {
        let places = VecDeque::with_capacity(places_max);
        Reorder { next: 0, places, places_max, unordered: VecDeque::new() }
    }

    /// The next number to leave.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Inserts an item.
    ///
    /// # Errors
    /// The number was used before, or is beyond the buffer.
    pub fn insert(&mut self, number: u64, item: T) -> Result<(), OutOfPlace> {
        if is_planted(Planted::NoSequencer) {
            self.unordered.push_back(item);
            return Ok(());
        }
        self.put(number, Place::Here(item))
    }

    /// Skips a number: no item with it will arrive, so later ones do not wait for it.
    ///
    /// # Errors
    /// The same as of [`Reorder::insert`].
    pub fn skip(&mut self, number: u64) -> Result<(), OutOfPlace> {
        if is_planted(Planted::NoSequencer) {
            return Ok(());
        }
        self.put(number, Place::Skipped)
    }

    fn put(&mut self, number: u64, place: Place<T>) -> Result<(), OutOfPlace> {
        let at = number.checked_sub(self.next).ok_or(OutOfPlace::Again(number))?;
        if at >= self.places_max as u64 {
            return Err(OutOfPlace::TooFar(number));
        }
        let at = at as usize;
        while self.places.len() <= at {
            self.places.push_back(Place::Missing);
        }
        if !matches!(self.places[at], Place::Missing) {
            return Err(OutOfPlace::Again(number));
        }
        self.places[at] = place;
        Ok(())
    }

    /// Removes the next item, if it has arrived.
    pub fn pop(&mut self) -> Option<T> {
        if is_planted(Planted::NoSequencer) {
            return self.unordered.pop_front();
        }
        while !matches!(self.places.front(), None | Some(Place::Missing)) {
            self.next += 1;
            if let Some(Place::Here(item)) = self.places.pop_front() {
                return Some(item);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The model is a map of the numbers that have arrived, and the next number.
        #[test]
        fn items_leave_in_the_order_of_their_numbers(
            steps in prop::collection::vec((0_u64..12, any::<bool>(), any::<bool>()), 0..200),
        ) {
            const ROOM: usize = 8;
            let mut buffer = Reorder::new(ROOM);
            let mut model: BTreeMap<u64, Option<u64>> = BTreeMap::new();
            let (mut next, mut base) = (0_u64, 0_u64);
            for (ahead, is_skipped, pops) in steps {
                // Some numbers are old, some are too far ahead.
                let number = (base + ahead).saturating_sub(2);
                let item = (!is_skipped).then_some(number * 10);
                let done = match item {
                    Some(item) => buffer.insert(number, item),
                    None => buffer.skip(number),
                };
                let expected = if number < next || model.contains_key(&number) {
                    Err(OutOfPlace::Again(number))
                } else if number >= next + ROOM as u64 {
                    Err(OutOfPlace::TooFar(number))
                } else {
                    model.insert(number, item);
                    Ok(())
                };
                prop_assert_eq!(done, expected);
                if pops {
                    let mut out = None;
                    while out.is_none() && let Some(item) = model.remove(&next) {
                        next += 1;
                        out = item;
                    }
                    prop_assert_eq!(buffer.pop(), out);
                    prop_assert_eq!(buffer.next(), next);
                    base = next;
                }
            }
        }
    }

    #[test]
    fn every_order_of_arrival_gives_the_same_order_of_departure() {
        // All orders of six numbers, two of which are skipped.
        fn orders(left: &mut Vec<u64>, order: &mut Vec<u64>) {
            if left.is_empty() {
                let mut buffer = Reorder::new(6);
                let mut out = Vec::new();
                for &number in order.iter() {
                    match number {
                        1 | 4 => buffer.skip(number),
                        _ => buffer.insert(number, number),
                    }
                    .unwrap();
                    out.extend(core::iter::from_fn(|| buffer.pop()));
                }
                assert_eq!(out, [0, 2, 3, 5], "{order:?}");
                return;
            }
            for at in 0..left.len() {
                let number = left.remove(at);
                order.push(number);
                orders(left, order);
                order.pop();
                left.insert(at, number);
            }
        }
        orders(&mut (0..6).collect(), &mut Vec::new());
    }
}

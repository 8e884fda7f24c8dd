//! The host's table of strips: mappings, generations, and the times since which access bits count.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use wave_core::clock::Nanos;
use wave_core::message::{Message, Sequence, Subject};
use wave_core::snapshot::{Record, State};

use crate::wire::{self, Place, Reading, STRIP_BATCHES};

const LANES: usize = STRIP_BATCHES as usize;
/// Pages that came back because they were touched, and were not touched again for this long, were a sweep's.
pub const REST: Nanos = Nanos::from_millis(2_000);

/// Access bits of a strip, as the page table has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bits {
    /// Pages of each batch that were touched since they were cleared.
    pub young: [u64; LANES],
    /// Pages that are in the fast tier.
    pub present: [u64; LANES],
    /// Units of eight batches that one huge page maps. Their batches have all bits or none.
    pub huge: u8,
}

impl Default for Bits {
    fn default() -> Bits {
        Bits { young: [0; LANES], present: [0; LANES], huge: 0 }
    }
}

#[derive(Clone, Debug)]
struct Slot {
    place: Option<Place>,
    generation: u32,
    sequence: Sequence,
    mapped: u64,
    /// Batches that are mapped, but cannot be managed: those whose bits cannot be cleared, and those that paging out
    /// saves nothing of.
    unclearable: u64,
    incompressible: u64,
    huge: u8,
    /// Batches whose history is void, and not yet reported.
    void: u64,
    /// Whether the agent knows this sequence.
    told: bool,
    /// When each batch was cleared; zero where that is not known.
    cleared: [Nanos; LANES],
    /// How long the last reading of each reached back, in microseconds.
    interval_us: [u32; LANES],
    /// Pages of each that were paged out, and have not been seen since.
    out: [u64; LANES],
    /// Pages of each that came back and were not touched again so far, and since when they are there.
    back: [u64; LANES],
    back_since: [Nanos; LANES],
    /// Bytes that a page of each takes in the slow tier, as of its last page-out.
    bytes: [u16; LANES],
    /// Batches that would have been paged out, if anything were.
    dry: u64,
}

impl Slot {
    fn forget(&mut self, batches: u64) {
        for batch in wire::bits(batches) {
            let batch = batch as usize;
            (self.cleared[batch], self.interval_us[batch]) = (Nanos(0), 0);
        }
    }

    /// What is mapped there now is something else: nothing of it was paged out.
    fn forget_mapping(&mut self, batches: u64) {
        self.dry &= !batches;
        for batch in wire::bits(batches) {
            (self.out[batch as usize], self.back[batch as usize]) = (0, 0);
        }
    }

    /// Takes what a look at a batch says of pages that were paged out: how many came back because they were touched. What
    /// came back untouched was brought by the end of the swap that it was in, or by somebody else.
    fn came_back(&mut self, at: usize, bits: &Bits, now: Nanos) -> u64 {
        let back = self.out[at] & bits.present[at];
        self.out[at] &= !back;
        let refaults = back & bits.young[at];
        if refaults != 0 {
            (self.back[at], self.back_since[at]) = (self.back[at] | refaults, now);
        }
        refaults.count_ones().into()
    }

    /// Of the pages that came back to a batch, how many were a sweep's: touched once, and not in [`REST`] after. And when
    /// they came. Bits count since they were cleared after that.
    fn swept(&mut self, at: usize, bits: &Bits, now: Nanos) -> Option<(Nanos, u64)> {
        let since = self.back_since[at];
        if self.back[at] == 0 || self.cleared[at] < since {
            return None;
        }
        self.back[at] &= bits.present[at] & !bits.young[at];
        if now.since(since) < REST || self.back[at] == 0 {
            return None;
        }
        Some((since, core::mem::take(&mut self.back[at]).count_ones().into()))
    }

    /// Batches of units that have become huge, or are no longer. One that is wholly out is what it was: a page is
    /// paged out in small ones, and comes back so.
    fn changed(&self, bits: &Bits) -> u64 {
        let is_out = |unit: &u32| {
            let first = (unit * wire::UNIT_BATCHES) as usize;
            bits.present[first..][..wire::UNIT_BATCHES as usize].iter().all(|pages| *pages == 0)
        };
        let units = (0..u8::BITS).filter(|unit| (self.huge ^ bits.huge) >> unit & 1 != 0);
        let units = units.filter(|unit| self.huge >> unit & 1 == 0 || !is_out(unit));
        wire::whole(units.fold(0, |units, unit| units | 1 << unit))
    }
}

/// All strips of an enclave.
#[derive(Clone, Debug)]
pub struct Table {
    slots: Vec<Slot>,
    places: BTreeMap<Place, u32>,
    free: Vec<u32>,
    most: usize,
    /// Strips that found no room.
    left_out: u64,
    /// Where the search for unreported batches continues.
    cursor: usize,
}

/// What was paged out and has not been seen since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Number of pages.
    pub pages: u64,
    /// Memory that they take in the slow tier: an estimate.
    pub bytes: u64,
}

/// What a page-out came to, by the page table before it and after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Pages that left the fast tier.
    pub pages: u64,
    /// Pages that were to leave, and stayed although nobody touched them: another process has them too (a fork), or
    /// the kernel holds them.
    pub stayed: u64,
    /// Batches of which a good part stayed.
    pub partial: u64,
}

/// What a reading came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Batches that were read.
    pub batches: u64,
    /// Pages that had been paged out and are there again because they were touched.
    pub refaults: u64,
    /// When pages came back that were not touched again, and how many.
    pub swept: Vec<(Nanos, u64)>,
}

impl Table {
    /// For at most this many strips.
    pub fn new(strips: u32) -> Table {
        Table {
            slots: Vec::new(),
            places: BTreeMap::new(),
            free: Vec::new(),
            most: strips as usize,
            left_out: 0,
            cursor: 0,
        }
    }

    /// Sets what is mapped in a space: strips by address with their batches. Strips that are not named are gone;
    /// batches that come are void.
    pub fn update(&mut self, space: u32, mapped: &BTreeMap<u64, u64>) {
        let of_space = Place { space, address: 0 }..=Place { space, address: u64::MAX };
        let known: Vec<(Place, u32)> =
            self.places.range(of_space).map(|(place, id)| (*place, *id)).collect();
        for (place, id) in known {
            if !mapped.contains_key(&place.address) {
                self.release(place, id);
            }
        }
        for (&address, &batches) in mapped {
            let place = Place { space, address };
            let Some(id) = self.places.get(&place).copied().or_else(|| self.take(place)) else {
                self.left_out += 1;
                continue;
            };
            let slot = &mut self.slots[id as usize];
            slot.unclearable &= batches;
            slot.incompressible &= batches;
            let managed = batches & !(slot.unclearable | slot.incompressible);
            let changed = slot.mapped ^ managed;
            if changed != 0 {
                slot.mapped = managed;
                slot.forget_mapping(changed);
                self.void(id, changed);
            }
        }
    }

    /// What these batches were is void. Changes that no message has told of are one change.
    fn void(&mut self, id: u32, batches: u64) {
        let slot = &mut self.slots[id as usize];
        slot.forget(batches);
        slot.void |= batches;
        if slot.told {
            slot.sequence = slot.sequence.next();
            slot.told = false;
        }
    }

    fn take(&mut self, place: Place) -> Option<u32> {
        let id = match self.free.pop() {
            Some(id) => id,
            None if self.slots.len() < self.most => {
                self.slots.push(Slot {
                    place: None,
                    generation: 0,
                    sequence: Sequence(0),
                    mapped: 0,
                    unclearable: 0,
                    incompressible: 0,
                    huge: 0,
                    void: 0,
                    told: true,
                    cleared: [Nanos(0); LANES],
                    interval_us: [0; LANES],
                    out: [0; LANES],
                    back: [0; LANES],
                    back_since: [Nanos(0); LANES],
                    bytes: [0; LANES],
                    dry: 0,
                });
                self.slots.len() as u32 - 1
            }
            None => return None,
        };
        let slot = &mut self.slots[id as usize];
        slot.place = Some(place);
        slot.generation = slot.generation.wrapping_add(1);
        (slot.mapped, slot.unclearable, slot.incompressible, slot.huge) = (0, 0, 0, 0);
        self.places.insert(place, id);
        Some(id)
    }

    fn release(&mut self, place: Place, id: u32) {
        self.places.remove(&place);
        let slot = &mut self.slots[id as usize];
        (slot.mapped, slot.huge) = (0, 0);
        slot.forget_mapping(u64::MAX);
        self.void(id, u64::MAX);
        self.slots[id as usize].place = None;
        self.free.push(id);
    }

    /// All strips in use: where, and what is mapped.
    pub fn strips(&self) -> impl Iterator<Item = (Place, u64)> + '_ {
        self.slots.iter().filter_map(|slot| Some((slot.place?, slot.mapped)))
    }

    /// Batches whose bits could not be cleared may be tried again: a fork's other half has ended, say. They are told with
    /// the next update.
    pub fn pardon_unclearable(&mut self) {
        self.slots.iter_mut().for_each(|slot| slot.unclearable = 0);
    }

    /// The same of batches that paging out saved nothing of: what is in them may be something else by now.
    pub fn pardon_incompressible(&mut self) {
        self.slots.iter_mut().for_each(|slot| slot.incompressible = 0);
    }

    /// How many strips found no room since the start.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Whether there is anything to decide on.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Records of all strips, as a snapshot has them.
    pub fn records(&self) -> impl Iterator<Item = Record> + '_ {
        self.slots.iter().enumerate().map(|(id, slot)| Record {
            subject: Subject { id: id as u32, generation: slot.generation },
            sequence: slot.sequence,
            state: if slot.place.is_some() { State::Blocked } else { State::Free },
            core: 0,
            class: 0,
        })
    }

    /// An agent was sent a snapshot of what is here: now all is to be told again, and all of it void.
    pub fn tell_again(&mut self) {
        for id in 0..self.slots.len() as u32 {
            // Messages that a snapshot covers are passed over.
            self.slots[id as usize].told = true;
            self.void(id, u64::MAX);
        }
        self.cursor = 0;
    }

    /// Tells of strips, one message each, as far as `send` takes them.
    pub fn tell(&mut self, mut send: impl FnMut(&Message) -> bool) {
        for _ in 0..self.slots.len() {
            if self.cursor >= self.slots.len() {
                self.cursor = 0;
            }
            let id = self.cursor;
            let slot = &mut self.slots[id];
            if !slot.told {
                let told = wire::Strip {
                    strip: Subject { id: id as u32, generation: slot.generation },
                    sequence: slot.sequence,
                    mapped: slot.mapped,
                    void: slot.void,
                    huge: slot.huge,
                    place: slot.place.unwrap_or_default(),
                };
                if !send(&told.to_message()) {
                    return;
                }
                (slot.told, slot.void) = (true, 0);
            }
            self.cursor += 1;
        }
    }

    /// The strip of a decision: where it is and what is mapped, if it lives.
    pub fn find(&self, subject: Subject) -> Option<(Place, u64, Sequence)> {
        let slot = self.slots.get(subject.id as usize)?;
        let same = slot.generation == subject.generation;
        Some((slot.place.filter(|_| same)?, slot.mapped, slot.sequence))
    }

    /// Units of a strip that are huge, as far as is known.
    pub fn huge(&self, id: u32) -> u8 {
        self.slots[id as usize].huge
    }

    /// Units of a strip that are huge now; those that came or went are void. Returns whether any did.
    pub fn note_huge(&mut self, id: u32, bits: &Bits) -> bool {
        let slot = &mut self.slots[id as usize];
        let changed = slot.changed(bits);
        if changed != 0 {
            for unit in (0..u8::BITS).filter(|unit| changed & wire::whole(1 << unit) != 0) {
                slot.huge ^= 1 << unit;
            }
            self.void(id, changed);
        }
        changed != 0
    }

    /// Batches would have been paged out, if anything were. Returns how many pages of those of which that was not
    /// said before.
    pub fn would_page_out(&mut self, id: u32, batches: u64, bits: &Bits) -> u64 {
        let slot = &mut self.slots[id as usize];
        let fresh = batches & !slot.dry;
        slot.dry |= fresh;
        let pages = |batch: usize| bits.present[batch] & !bits.young[batch];
        wire::bits(fresh).map(|batch| u64::from(pages(batch as usize).count_ones())).sum()
    }

    /// Batches whose bits cannot be cleared: they are told as not mapped.
    pub fn leave_unclearable(&mut self, id: u32, batches: u64) {
        let batches = self.leave(id, batches);
        self.slots[id as usize].unclearable |= batches;
    }

    /// Batches that paging out saves nothing of: they are told as not mapped.
    pub fn leave_incompressible(&mut self, id: u32, batches: u64) {
        let batches = self.leave(id, batches);
        self.slots[id as usize].incompressible |= batches;
    }

    fn leave(&mut self, id: u32, batches: u64) -> u64 {
        let batches = self.slots[id as usize].mapped & batches;
        if batches != 0 {
            self.slots[id as usize].mapped &= !batches;
            self.void(id, batches);
        }
        batches
    }

    /// What a page of each of these batches takes in the slow tier.
    pub fn takes(&mut self, id: u32, batches: u64, bytes: &[u16; LANES]) {
        let slot = &mut self.slots[id as usize];
        wire::bits(batches).for_each(|batch| slot.bytes[batch as usize] = bytes[batch as usize]);
    }

    /// Pages that are in the slow tier because they were paged out here, and what they take there.
    pub fn account(&self) -> Account {
        let mut account = Account::default();
        for slot in self.slots.iter().filter(|slot| slot.place.is_some()) {
            for (out, bytes) in slot.out.iter().zip(slot.bytes).filter(|(out, _)| **out != 0) {
                account.pages += u64::from(out.count_ones());
                account.bytes += u64::from(out.count_ones()) * u64::from(bytes);
            }
        }
        account
    }

    /// Takes what was read of some batches of a strip, and appends the readings to `extent`: one for those that
    /// were cleared together. A huge unit that came or went is void, and not read.
    pub fn read(
        &mut self,
        id: u32,
        batches: u64,
        bits: &Bits,
        now: Nanos,
        extent: &mut Vec<u64>,
    ) -> Seen {
        let changed = self.slots[id as usize].changed(bits);
        self.note_huge(id, bits);
        let slot = &mut self.slots[id as usize];
        let tails = wire::whole(slot.huge) & !wire::firsts(slot.huge);
        let mut rest = batches & slot.mapped & !changed & !tails;
        let mut seen = Seen { batches: rest.count_ones().into(), ..Seen::default() };
        // Also of those that are told first, and of the rest of a huge unit.
        for batch in wire::bits(batches & slot.mapped) {
            let at = batch as usize;
            if let Some((since, pages)) = slot.swept(at, bits, now) {
                match seen.swept.last_mut().filter(|(last, _)| *last == since) {
                    Some((_, sum)) => *sum += pages,
                    None => seen.swept.push((since, pages)),
                }
            }
            seen.refaults += slot.came_back(at, bits, now);
        }
        let subject = Subject { id, generation: slot.generation };
        while rest != 0 {
            let cleared = slot.cleared[rest.trailing_zeros() as usize];
            let alike = |batch: &u32| slot.cleared[*batch as usize] == cleared;
            let together = wire::bits(rest).filter(alike).fold(0, |mask, batch| mask | 1 << batch);
            rest &= !together;
            let interval_us = match cleared {
                Nanos(0) => 0,
                cleared => u32::try_from(now.since(cleared).0 / 1_000).unwrap_or(u32::MAX),
            };
            let mut words = [[0; 2]; LANES];
            let mut count = 0;
            for batch in wire::bits(together) {
                let at = batch as usize;
                let one =
                    if slot.huge >> (batch / wire::UNIT_BATCHES) & 1 != 0 { 1 } else { u64::MAX };
                words[count] = [bits.young[at] & bits.present[at] & one, bits.present[at] & one];
                count += 1;
                slot.interval_us[at] = interval_us;
            }
            let sequence = slot.sequence;
            let words = &words[..count];
            Reading { strip: subject, sequence, interval_us, batches: together, words }
                .write(extent);
        }
        seen
    }

    /// Batches of a strip were cleared at this moment; of those in `failed` that is not known.
    pub fn cleared(&mut self, id: u32, batches: u64, failed: u64, now: Nanos) {
        let slot = &mut self.slots[id as usize];
        for batch in wire::bits(batches) {
            let known = failed >> batch & 1 == 0;
            slot.cleared[batch as usize] = if known { now } else { Nanos(0) };
        }
    }

    /// Batches of a strip are to be paged out, and were looked at. Returns how many pages had come back because they were
    /// touched.
    pub fn looked(&mut self, id: u32, batches: u64, bits: &Bits, now: Nanos) -> u64 {
        let slot = &mut self.slots[id as usize];
        wire::bits(batches).map(|batch| slot.came_back(batch as usize, bits, now)).sum()
    }

    /// Batches of a strip were paged out; `before` and `after` are its bits.
    pub fn paged_out(&mut self, id: u32, batches: u64, before: &Bits, after: &Bits) -> Moved {
        let slot = &mut self.slots[id as usize];
        let mut moved = Moved::default();
        for batch in wire::bits(batches) {
            let at = batch as usize;
            let went = before.present[at] & !after.present[at];
            slot.out[at] |= went;
            moved.pages += u64::from(went.count_ones());
            let asked = before.present[at] & !before.young[at];
            let stayed = asked & after.present[at] & !after.young[at];
            moved.stayed += u64::from(stayed.count_ones());
            // The kernel leaves some pages at any time: those that wait in a list of one CPU.
            let is_partial = stayed != 0 && wire::is_good_part(stayed, asked.count_ones());
            moved.partial |= u64::from(is_partial) << batch;
        }
        moved
    }

    /// Appends what there is now of batches that were moved: since when their bits count is not said. Huge units are
    /// told by the next scan, as they may have been split.
    pub fn show(&self, id: u32, batches: u64, bits: &Bits, extent: &mut Vec<u64>) {
        let slot = &self.slots[id as usize];
        let batches = batches & slot.mapped & !wire::whole(slot.huge | bits.huge);
        if batches == 0 {
            return;
        }
        let mut words = [[0; 2]; LANES];
        for (word, batch) in words.iter_mut().zip(wire::bits(batches)) {
            let at = batch as usize;
            *word = [bits.young[at] & bits.present[at], bits.present[at]];
        }
        let words = &words[..batches.count_ones() as usize];
        let strip = Subject { id, generation: slot.generation };
        Reading { strip, sequence: slot.sequence, interval_us: 0, batches, words }.write(extent);
    }

    /// Batches of a strip are being brought back: what comes is no refault. Returns how many pages had been out.
    pub fn brought_back(&mut self, id: u32, batches: u64) -> u64 {
        let slot = &mut self.slots[id as usize];
        let out = wire::bits(batches).map(|batch| core::mem::take(&mut slot.out[batch as usize]));
        out.map(|out| u64::from(out.count_ones())).sum()
    }

    /// Batches by the interval that they were last read over: milliseconds, 0 where none is known yet, and how many
    /// batches. Ascending, by powers of two: intervals of one period differ a little.
    pub fn intervals_ms(&self) -> Vec<(u32, u64)> {
        let mut classes: Vec<(u32, u64)> = Vec::new();
        for slot in self.slots.iter().filter(|slot| slot.place.is_some()) {
            let tails = wire::whole(slot.huge) & !wire::firsts(slot.huge);
            for batch in wire::bits(slot.mapped & !tails) {
                let ms = slot.interval_us[batch as usize] / 1_000;
                let class = if ms == 0 { 0 } else { (ms + ms / 2).next_power_of_two() / 2 };
                match classes.binary_search_by_key(&class, |(class, _)| *class) {
                    Ok(at) => classes[at].1 += 1,
                    Err(at) => classes.insert(at, (class, 1)),
                }
            }
        }
        classes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    const SPACE: u32 = 7;
    const FIRST: u64 = 3 * wire::STRIP_BYTES;

    fn at(ms: u64) -> Nanos {
        Nanos::from_millis(ms)
    }

    fn mapped(strips: &[(u64, u64)]) -> BTreeMap<u64, u64> {
        strips
            .iter()
            .map(|(number, batches)| (FIRST + number * wire::STRIP_BYTES, *batches))
            .collect()
    }

    fn told(table: &mut Table, room: usize) -> Vec<wire::Strip> {
        let mut messages = vec![];
        table.tell(|message| {
            let fits = messages.len() < room;
            if fits {
                messages.push(wire::Strip::from_message(message).unwrap());
            }
            fits
        });
        messages
    }

    #[test]
    fn changes_that_were_not_told_are_one_change() {
        let mut table = Table::new(2);
        table.update(SPACE, &mapped(&[(0, 0b0011), (1, 1)]));
        table.update(SPACE, &mapped(&[(0, 0b0110), (1, 1)]));
        let first = told(&mut table, 1);
        let strip = first[0];
        assert_eq!((strip.sequence, strip.mapped, strip.void), (Sequence(1), 0b0110, 0b0111));
        assert_eq!(strip.place, Place { space: SPACE, address: FIRST });
        assert_eq!(told(&mut table, 9).len(), 1, "the other waited for room");
        assert_eq!(told(&mut table, 9), [], "nothing changed since");

        table.update(SPACE, &mapped(&[(1, 1)]));
        table.update(SPACE, &mapped(&[(1, 1), (2, 1)]));
        let again = told(&mut table, 9);
        let strip = again[0];
        assert_eq!((strip.strip.id, strip.strip.generation), (0, 2), "its id has another life");
        assert_eq!((strip.sequence, strip.void), (Sequence(2), u64::MAX));
        table.update(SPACE, &mapped(&[(1, 1), (2, 1), (3, 1)]));
        assert_eq!(table.left_out(), 1);
        table.update(SPACE + 1, &BTreeMap::new());
        assert_eq!(table.strips().count(), 2, "another space is not touched");
        table.update(SPACE, &BTreeMap::new());
        assert!(table.is_empty());
        assert!(told(&mut table, 9).iter().all(|strip| strip.mapped == 0));
    }

    #[test]
    fn after_a_snapshot_all_is_told_with_the_next_sequence() {
        let mut table = Table::new(2);
        table.update(SPACE, &mapped(&[(0, 1), (1, 1)]));
        told(&mut table, 1);
        let sequences = |table: &Table| table.records().map(|record| record.sequence).collect();
        let snapshot: Vec<Sequence> = sequences(&table);
        table.tell_again();
        let told: Vec<_> = told(&mut table, 9).iter().map(|strip| strip.sequence).collect();
        assert!(told.into_iter().eq(snapshot.into_iter().map(Sequence::next)));
    }

    #[test]
    fn batches_cleared_together_are_reported_together() {
        let mut table = Table::new(1);
        table.update(SPACE, &mapped(&[(0, 0b1111)]));
        told(&mut table, 9);
        let mut bits = Bits { present: [u64::MAX; LANES], ..Bits::default() };
        bits.young[1] = 5;
        let mut extent = vec![];
        table.read(0, 0b0011, &bits, at(1), &mut extent);
        table.cleared(0, 0b0011, 0b0001, at(1));
        table.read(0, 0b1111, &bits, at(3), &mut extent);
        let read: Vec<_> = wire::Readings::new(&extent).map(|reading| reading.unwrap()).collect();
        let lines: Vec<_> = read.iter().map(|read| (read.batches, read.interval_us)).collect();
        assert_eq!(lines, [(0b0011, 0), (0b1101, 0), (0b0010, 2_000)]);
        assert_eq!(read[2].words, [[5, u64::MAX]]);
        assert_eq!(read[2].sequence, Sequence(1));
    }

    #[test]
    fn pages_that_come_back_by_themselves_are_refaults() {
        let mut table = Table::new(1);
        table.update(SPACE, &mapped(&[(0, 0b11)]));
        let (all, none) = (Bits { present: [u64::MAX; LANES], ..Bits::default() }, Bits::default());
        let mut some = none.clone();
        (some.present[0], some.young[0]) = (0b111, 0b111);
        let moved = Moved { pages: 128, ..Moved::default() };
        assert_eq!(table.paged_out(0, 0b11, &all, &none), moved);
        let refaults =
            |table: &mut Table, bits: &Bits| table.read(0, 0b11, bits, at(9), &mut vec![]).refaults;
        assert_eq!(refaults(&mut table, &some), 3);
        assert_eq!(refaults(&mut table, &some), 0, "each counts once");
        assert_eq!(table.brought_back(0, 0b01), 61);
        let mut other = all.clone();
        other.young[1] = 0xff;
        assert_eq!(refaults(&mut table, &other), 8, "of the other batch, what was touched");
        other.young[1] = u64::MAX;
        assert_eq!(
            refaults(&mut table, &other),
            0,
            "the rest came by itself, as swap's end brings it"
        );
    }

    #[test]
    fn pages_that_come_back_and_are_not_touched_again_are_a_sweep_s() {
        let mut table = Table::new(1);
        table.update(SPACE, &mapped(&[(0, 0b11)]));
        let (all, none) = (Bits { present: [u64::MAX; LANES], ..Bits::default() }, Bits::default());
        table.paged_out(0, 0b11, &all, &none);
        let look = |table: &mut Table, young: [u64; 2], ms| {
            let mut bits = all.clone();
            (bits.young[0], bits.young[1]) = (young[0], young[1]);
            let seen = table.read(0, 0b11, &bits, at(ms), &mut vec![]);
            table.cleared(0, 0b11, 0, at(ms));
            (seen.refaults, seen.swept)
        };
        assert_eq!(look(&mut table, [u64::MAX; 2], 9_000), (128, vec![]));
        assert_eq!(look(&mut table, [0, 0xff], 10_000), (0, vec![]), "it is too soon to tell");
        let swept = vec![(at(9_000), 64 + 56)];
        assert_eq!(look(&mut table, [0, 0xf0], 12_000), (0, swept), "8 pages were touched again");
        assert_eq!(look(&mut table, [0, 0], 19_000), (0, vec![]), "each counts once");
    }

    #[test]
    fn pages_that_stay_are_told_and_do_not_count_as_paged_out() {
        let mut table = Table::new(1);
        table.update(SPACE, &mapped(&[(0, 0b111)]));
        let before = Bits { present: [u64::MAX; LANES], ..Bits::default() };
        let mut after = before.clone();
        // Of the first a few stay, the second stays, and of the third half is touched meanwhile.
        (after.present[0], after.present[2], after.young[2]) = (0b111, 0xffff, 0xffff);
        let moved = table.paged_out(0, 0b111, &before, &after);
        assert_eq!(moved, Moved { pages: 61 + 48, stayed: 3 + 64, partial: 0b010 });
        let mut extent = vec![];
        table.show(0, 0b111, &after, &mut extent);
        let reading = wire::Readings::new(&extent).next().unwrap().unwrap();
        assert_eq!((reading.interval_us, reading.batches), (0, 0b111));
        assert_eq!(reading.words, [[0, 0b111], [0, u64::MAX], [0xffff, 0xffff]]);
        let mut touched = before.clone();
        touched.young = touched.present;
        let refaults = table.read(0, 0b111, &touched, at(9), &mut vec![]).refaults;
        assert_eq!(refaults, moved.pages, "only what went can come back");
    }

    #[test]
    fn a_huge_page_that_comes_voids_its_unit_and_is_one_page() {
        let mut table = Table::new(1);
        table.update(SPACE, &mapped(&[(0, u64::MAX)]));
        told(&mut table, 9);
        let mut bits = Bits { present: [u64::MAX; LANES], young: [u64::MAX; LANES], huge: 2 };
        let mut extent = vec![];
        let seen = table.read(0, u64::MAX, &bits, at(1), &mut extent);
        assert_eq!(seen.batches, 56, "the unit is told first");
        let strip = told(&mut table, 9)[0];
        assert_eq!((strip.huge, strip.void), (2, 0xff00));
        extent.clear();
        assert_eq!(table.read(0, 0xff00, &bits, at(2), &mut extent).batches, 1);
        let reading = wire::Readings::new(&extent).next().unwrap().unwrap();
        assert_eq!((reading.batches, reading.words), (1 << 8, &[[1, 1]][..]));
        // Paged out, it is in small pages, and what it was.
        let (before, mut out) = (bits.clone(), bits.clone());
        out.huge = 0;
        (8..16).for_each(|batch| (out.present[batch], out.young[batch]) = (0, 0));
        assert_eq!(table.paged_out(0, 0xff00, &before, &out).pages, 512);
        assert_eq!(table.read(0, 0xff00, &out, at(3), &mut extent).batches, 1);
        assert_eq!(told(&mut table, 9), []);
        (out.present[9], out.young[9]) = (0b111, 0b111);
        let seen = table.read(0, 0xff00, &out, at(3), &mut extent);
        assert_eq!((seen.batches, seen.refaults), (0, 3), "it was split, and is told first");
        assert_eq!(told(&mut table, 9)[0].huge, 0);
        (out.present[10], out.young[10]) = (u64::MAX, u64::MAX);
        assert_eq!(table.read(0, 0xff00, &out, at(4), &mut extent).refaults, 64, "the rest counts");
        bits.huge = 2;
        table.read(0, 0xff00, &bits, at(5), &mut extent);
        told(&mut table, 9);
        bits.huge = 0;
        assert_eq!(table.read(0, 0xff00, &bits, at(5), &mut extent).batches, 0);
        assert_eq!(told(&mut table, 9)[0].void, 0xff00, "it was split");
        table.leave_unclearable(0, 0b100);
        table.update(SPACE, &mapped(&[(0, u64::MAX)]));
        assert_eq!(told(&mut table, 9)[0].mapped, !0b100, "it stays left out");
        table.pardon_incompressible();
        table.update(SPACE, &mapped(&[(0, u64::MAX)]));
        assert_eq!(told(&mut table, 9), [], "that is another reason");
        table.pardon_unclearable();
        assert_eq!(told(&mut table, 9), []);
        table.update(SPACE, &mapped(&[(0, u64::MAX)]));
        assert_eq!(told(&mut table, 9)[0].mapped, u64::MAX);
    }
}

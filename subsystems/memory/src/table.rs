//! The host's table of strips: mappings, generations, and the times when access bits were cleared.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use wave_core::clock::Nanos;
use wave_core::message::{Message, Sequence, Subject};
use wave_core::snapshot::{Record, State};

use crate::wire::{self, Place, Reading, STRIP_BATCHES};

const LANES: usize = STRIP_BATCHES as usize;
/// A page that came back because it was touched, and is not touched again for this long, was a sweep's.
pub const REST: Nanos = Nanos::from_millis(2_000);

/// Access bits of a strip, as the page table has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bits {
    /// Pages of each batch that were touched since they were cleared.
    pub young: [u64; LANES],
    /// Pages that are in the fast tier.
    pub present: [u64; LANES],
    /// Units of eight batches that one huge page maps. The batches of a unit have all bits or none.
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
    /// Batches that are mapped but cannot be managed: those whose bits cannot be cleared, and those for which paging out saves
    /// nothing.
    unclearable: u64,
    incompressible: u64,
    huge: u8,
    /// Batches whose history is void, which has not been reported yet.
    void: u64,
    /// Whether the current sequence has been reported to the agent.
    told: bool,
    /// When each batch was cleared; zero if that is not known.
    cleared: [Nanos; LANES],
    /// Interval of each batch's last reading, in microseconds.
    interval_us: [u32; LANES],
    /// Pages of each batch that were paged out, and have not been seen present since.
    out: [u64; LANES],
    /// Pages of each batch that came back and have not been touched again so far, and when they came back.
    back: [u64; LANES],
    back_since: [Nanos; LANES],
    /// Bytes per page of each batch in the slow tier, as of its last page-out.
    bytes: [u16; LANES],
    /// Batches that a dry run would have paged out.
    dry: u64,
}

impl Slot {
    fn forget(&mut self, batches: u64) {
        for batch in wire::bits(batches) {
            let batch = batch as usize;
            (self.cleared[batch], self.interval_us[batch]) = (Nanos(0), 0);
        }
    }

    /// Other memory is mapped there now: nothing of it was paged out.
    fn forget_mapping(&mut self, batches: u64) {
        self.dry &= !batches;
        for batch in wire::bits(batches) {
            (self.out[batch as usize], self.back[batch as usize]) = (0, 0);
        }
    }

    /// Notes the pages of a batch that were paged out and are present in `bits`. Returns how many came back because they were
    /// touched. Pages that came back untouched were brought by the end of their swap, or by another process.
    fn came_back(&mut self, at: usize, bits: &Bits, now: Nanos) -> u64 {
        let back = self.out[at] & bits.present[at];
        self.out[at] &= !back;
        let refaults = back & bits.young[at];
        if refaults != 0 {
            (self.back[at], self.back_since[at]) = (self.back[at] | refaults, now);
        }
        refaults.count_ones().into()
    }

    /// When pages of a sweep came back to a batch, and how many: touched once, and not again for [`REST`]. Their access bits
    /// count only if they were cleared after the pages came back.
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

    /// Batches of units that have become huge, or no longer are. A unit that is wholly paged out has not changed: a huge page
    /// is paged out in small pages, and comes back in small pages.
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
    /// Number of strips for which there was no room.
    left_out: u64,
    /// Where the search for unreported batches continues.
    cursor: usize,
}

/// The pages that were paged out and have not been seen present since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Number of pages.
    pub pages: u64,
    /// Memory that they take in the slow tier, in bytes: an estimate.
    pub bytes: u64,
}

/// The result of a page-out, from the page table before and after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Pages that left the fast tier.
    pub pages: u64,
    /// Pages that stayed when they were to be paged out although nobody touched them: another process maps them too (a fork),
    /// or the kernel holds them.
    pub stayed: u64,
    /// Batches of which a good part stayed, a bit each.
    pub partial: u64,
}

/// The result of a reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Number of batches that were read.
    pub batches: u64,
    /// Pages that had been paged out and came back because they were touched.
    pub refaults: u64,
    /// Pages of sweeps: when they came back, and how many.
    pub swept: Vec<(Nanos, u64)>,
}

impl Table {
    /// A table for at most `strips` strips.
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

    /// Sets the mappings of a space: strips by address, with a bit for each mapped batch. Strips that are not in `mapped` are
    /// gone; new batches have a void history.
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

    /// Voids the history of these batches. Changes that have not been reported are merged into one.
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

    /// All strips in use: their places and mapped batches.
    pub fn strips(&self) -> impl Iterator<Item = (Place, u64)> + '_ {
        self.slots.iter().filter_map(|slot| Some((slot.place?, slot.mapped)))
    }

    /// Makes batches whose bits could not be cleared eligible again: the other half of a fork may have ended. The next update
    /// reports them as mapped.
    pub fn pardon_unclearable(&mut self) {
        self.slots.iter_mut().for_each(|slot| slot.unclearable = 0);
    }

    /// The same for batches for which paging out saved nothing: their contents may have changed.
    pub fn pardon_incompressible(&mut self) {
        self.slots.iter_mut().for_each(|slot| slot.incompressible = 0);
    }

    /// Number of strips for which there was no room since the start.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Whether the table has no strip to decide on.
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

    /// A snapshot of the table was sent to an agent: everything is to be reported again, with all history void.
    pub fn report_all(&mut self) {
        for id in 0..self.slots.len() as u32 {
            // The agent ignores messages that a snapshot covers.
            self.slots[id as usize].told = true;
            self.void(id, u64::MAX);
        }
        self.cursor = 0;
    }

    /// Reports strips, one message each, as long as `send` accepts them.
    pub fn send_reports(&mut self, mut send: impl FnMut(&Message) -> bool) {
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

    /// The strip of a decision: its place, mapped batches and sequence. `None` if that generation is gone.
    pub fn find(&self, subject: Subject) -> Option<(Place, u64, Sequence)> {
        let slot = self.slots.get(subject.id as usize)?;
        let same = slot.generation == subject.generation;
        Some((slot.place.filter(|_| same)?, slot.mapped, slot.sequence))
    }

    /// Units of a strip that are known to be huge.
    pub fn huge(&self, id: u32) -> u8 {
        self.slots[id as usize].huge
    }

    /// Sets the units of a strip that are huge now; the history of units that changed is void. Returns whether any changed.
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

    /// Records batches that a dry run would have paged out. Returns those not recorded before.
    pub fn would_page_out(&mut self, id: u32, batches: u64) -> u64 {
        let slot = &mut self.slots[id as usize];
        let fresh = batches & !slot.dry;
        slot.dry |= fresh;
        fresh
    }

    /// Leaves out batches whose bits cannot be cleared: they are reported as not mapped.
    pub fn leave_unclearable(&mut self, id: u32, batches: u64) {
        let batches = self.leave(id, batches);
        self.slots[id as usize].unclearable |= batches;
    }

    /// Leaves out batches for which paging out saves nothing: they are reported as not mapped.
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

    /// The pages that are in the slow tier because they were paged out here, and their memory there.
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

    /// Takes the access bits of some batches of a strip, and appends readings to `extent`: one for all batches that were
    /// cleared together. The history of a huge unit that came or went is void, and it is not read.
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
        // Includes batches that must be reported first, and the rest of huge units.
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

    /// Batches of a strip were cleared at this time; for those in `failed` the time is not known.
    pub fn cleared(&mut self, id: u32, batches: u64, failed: u64, now: Nanos) {
        let slot = &mut self.slots[id as usize];
        for batch in wire::bits(batches) {
            let known = failed >> batch & 1 == 0;
            slot.cleared[batch as usize] = if known { now } else { Nanos(0) };
        }
    }

    /// Batches of a strip are about to be paged out, and `bits` were read. Returns the number of pages that had come back
    /// because they were touched.
    pub fn count_refaults(&mut self, id: u32, batches: u64, bits: &Bits, now: Nanos) -> u64 {
        let slot = &mut self.slots[id as usize];
        wire::bits(batches).map(|batch| slot.came_back(batch as usize, bits, now)).sum()
    }

    /// Batches of a strip were paged out; `before` and `after` are the strip's bits. `bytes` is the memory in the slow tier of a page
    /// of each batch that left now: pages that left earlier keep their own estimate.
    pub fn paged_out(
        &mut self,
        id: u32,
        batches: u64,
        bytes: &[u16; LANES],
        before: &Bits,
        after: &Bits,
    ) -> Moved {
        let slot = &mut self.slots[id as usize];
        let mut moved = Moved::default();
        for batch in wire::bits(batches) {
            let at = batch as usize;
            let went = before.present[at] & !after.present[at];
            let (earlier, now) = (slot.out[at].count_ones(), went.count_ones());
            if let Some(mean) = (earlier * u32::from(slot.bytes[at]) + now * u32::from(bytes[at]))
                .checked_div(earlier + now)
            {
                slot.bytes[at] = mean as u16;
            }
            slot.out[at] |= went;
            moved.pages += u64::from(went.count_ones());
            let asked = before.present[at] & !before.young[at];
            let stayed = asked & after.present[at] & !after.young[at];
            moved.stayed += u64::from(stayed.count_ones());
            // The kernel always leaves a few pages: those on a CPU's local list.
            let is_partial = stayed != 0 && wire::is_good_part(stayed, asked.count_ones());
            moved.partial |= u64::from(is_partial) << batch;
        }
        moved
    }

    /// Appends a reading of batches that were moved, with an interval of zero: the time since their bits were cleared is not
    /// reported. Huge units wait for the next scan, as they may have been split.
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

    /// Batches of a strip are being brought back: their pages do not count as refaults. Returns the number of pages that were
    /// out.
    pub fn brought_back(&mut self, id: u32, batches: u64) -> u64 {
        let slot = &mut self.slots[id as usize];
        let out = wire::bits(batches).map(|batch| core::mem::take(&mut slot.out[batch as usize]));
        out.map(|out| u64::from(out.count_ones())).sum()
    }

    /// Pages of a strip are in the fast tier again although no program touched them: they are not refaults.
    pub fn stayed(&mut self, place: Place, pages: &[u64; LANES]) {
        if let Some(&id) = self.places.get(&place) {
            let out = &mut self.slots[id as usize].out;
            out.iter_mut().zip(pages).for_each(|(out, pages)| *out &= !pages);
        }
    }

    /// A histogram of intervals: mean milliseconds of batches' last readings, 0 where none is known yet, and number of batches.
    /// Ascending; intervals up to about twice as long as each other are one class, as those of one period differ a little.
    pub fn intervals_ms(&self) -> Vec<(u32, u64)> {
        // Power of two, sum of the intervals, and batches.
        let mut classes: Vec<(u32, u64, u64)> = Vec::new();
        for slot in self.slots.iter().filter(|slot| slot.place.is_some()) {
            let tails = wire::whole(slot.huge) & !wire::firsts(slot.huge);
            for batch in wire::bits(slot.mapped & !tails) {
                let ms = slot.interval_us[batch as usize] / 1_000;
                let class = if ms == 0 { 0 } else { (ms + ms / 2).next_power_of_two() / 2 };
                let at = classes.binary_search_by_key(&class, |(class, ..)| *class);
                let at = at.unwrap_or_else(|at| {
                    classes.insert(at, (class, 0, 0));
                    at
                });
                classes[at].1 += u64::from(ms);
                classes[at].2 += 1;
            }
        }
        let mean = |(_, sum, batches): (u32, u64, u64)| ((sum / batches) as u32, batches);
        classes.into_iter().map(mean).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    const NO_COST: [u16; LANES] = [0; LANES];

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

    fn reports(table: &mut Table, room: usize) -> Vec<wire::Strip> {
        let mut messages = vec![];
        table.send_reports(|message| {
            let fits = messages.len() < room;
            if fits {
                messages.push(wire::Strip::from_message(message).unwrap());
            }
            fits
        });
        messages
    }

    #[test]
    fn unreported_changes_are_merged() {
        let mut table = Table::new(2);
        table.update(SPACE, &mapped(&[(0, 0b0011), (1, 1)]));
        table.update(SPACE, &mapped(&[(0, 0b0110), (1, 1)]));
        let first = reports(&mut table, 1);
        let strip = first[0];
        assert_eq!((strip.sequence, strip.mapped, strip.void), (Sequence(1), 0b0110, 0b0111));
        assert_eq!(strip.place, Place { space: SPACE, address: FIRST });
        assert_eq!(reports(&mut table, 9).len(), 1, "the other waited for room");
        assert_eq!(reports(&mut table, 9), [], "nothing has changed since");

        table.update(SPACE, &mapped(&[(1, 1)]));
        table.update(SPACE, &mapped(&[(1, 1), (2, 1)]));
        let again = reports(&mut table, 9);
        let strip = again[0];
        assert_eq!((strip.strip.id, strip.strip.generation), (0, 2), "the id has a new generation");
        assert_eq!((strip.sequence, strip.void), (Sequence(2), u64::MAX));
        table.update(SPACE, &mapped(&[(1, 1), (2, 1), (3, 1)]));
        assert_eq!(table.left_out(), 1);
        table.update(SPACE + 1, &BTreeMap::new());
        assert_eq!(table.strips().count(), 2, "the other space is unchanged");
        table.update(SPACE, &BTreeMap::new());
        assert!(table.is_empty());
        let told = reports(&mut table, 9);
        assert!(!told.is_empty() && told.iter().all(|strip| strip.mapped == 0), "{told:?}");
    }

    #[test]
    fn after_a_snapshot_every_strip_is_reported_with_its_next_sequence() {
        let mut table = Table::new(2);
        table.update(SPACE, &mapped(&[(0, 1), (1, 1)]));
        reports(&mut table, 1);
        let sequences = |table: &Table| table.records().map(|record| record.sequence).collect();
        let snapshot: Vec<Sequence> = sequences(&table);
        table.report_all();
        let told: Vec<_> = reports(&mut table, 9).iter().map(|strip| strip.sequence).collect();
        assert!(told.into_iter().eq(snapshot.into_iter().map(Sequence::next)));
    }

    #[test]
    fn batches_cleared_together_are_reported_together() {
        let mut table = Table::new(1);
        table.update(SPACE, &mapped(&[(0, 0b1111)]));
        reports(&mut table, 9);
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
    fn touched_pages_that_come_back_are_refaults() {
        let mut table = Table::new(1);
        table.update(SPACE, &mapped(&[(0, 0b11)]));
        let (all, none) = (Bits { present: [u64::MAX; LANES], ..Bits::default() }, Bits::default());
        let mut some = none.clone();
        (some.present[0], some.young[0]) = (0b111, 0b111);
        let moved = Moved { pages: 128, ..Moved::default() };
        assert_eq!(table.paged_out(0, 0b11, &NO_COST, &all, &none), moved);
        let refaults =
            |table: &mut Table, bits: &Bits| table.read(0, 0b11, bits, at(9), &mut vec![]).refaults;
        assert_eq!(refaults(&mut table, &some), 3);
        assert_eq!(refaults(&mut table, &some), 0, "each counts once");
        assert_eq!(table.brought_back(0, 0b01), 61);
        let mut other = all.clone();
        other.young[1] = 0xff;
        assert_eq!(refaults(&mut table, &other), 8, "only the touched pages of the other batch");
        other.young[1] = u64::MAX;
        assert_eq!(
            refaults(&mut table, &other),
            0,
            "the rest came back untouched, as at the end of swap"
        );
    }

    #[test]
    fn pages_that_the_host_mapped_again_are_no_refaults() {
        let mut table = Table::new(1);
        table.update(SPACE, &mapped(&[(0, 0b11)]));
        let (all, none) = (Bits { present: [u64::MAX; LANES], ..Bits::default() }, Bits::default());
        table.paged_out(0, 0b11, &NO_COST, &all, &none);
        let mut pages = [0; LANES];
        pages[0] = 0xff;
        let touched = Bits { young: [u64::MAX; LANES], ..all };
        table.stayed(Place { space: SPACE, address: FIRST }, &pages);
        let refaults = table.read(0, 0b11, &touched, at(9), &mut vec![]).refaults;
        assert_eq!(refaults, 128 - 8);
    }

    #[test]
    fn refaults_not_touched_again_are_a_sweeps() {
        let mut table = Table::new(1);
        table.update(SPACE, &mapped(&[(0, 0b11)]));
        let (all, none) = (Bits { present: [u64::MAX; LANES], ..Bits::default() }, Bits::default());
        table.paged_out(0, 0b11, &NO_COST, &all, &none);
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
    fn pages_that_stay_are_reported_and_not_counted_as_paged_out() {
        let mut table = Table::new(1);
        table.update(SPACE, &mapped(&[(0, 0b111)]));
        let before = Bits { present: [u64::MAX; LANES], ..Bits::default() };
        let mut after = before.clone();
        // Of the first batch a few pages stay, the second stays, and of the third half is touched meanwhile.
        (after.present[0], after.present[2], after.young[2]) = (0b111, 0xffff, 0xffff);
        let moved = table.paged_out(0, 0b111, &NO_COST, &before, &after);
        assert_eq!(moved, Moved { pages: 61 + 48, stayed: 3 + 64, partial: 0b010 });
        let mut extent = vec![];
        table.show(0, 0b111, &after, &mut extent);
        let reading = wire::Readings::new(&extent).next().unwrap().unwrap();
        assert_eq!((reading.interval_us, reading.batches), (0, 0b111));
        assert_eq!(reading.words, [[0, 0b111], [0, u64::MAX], [0xffff, 0xffff]]);
        let mut touched = before.clone();
        touched.young = touched.present;
        let refaults = table.read(0, 0b111, &touched, at(9), &mut vec![]).refaults;
        assert_eq!(refaults, moved.pages, "only pages that left can come back");
    }

    #[test]
    fn pages_that_left_at_an_earlier_try_keep_their_estimate() {
        let mut table = Table::new(1);
        table.update(SPACE, &mapped(&[(0, 0b1)]));
        let pages = |present| {
            let mut bits = Bits::default();
            bits.present[0] = present;
            bits
        };
        let cost = |bytes| {
            let mut all = NO_COST;
            all[0] = bytes;
            all
        };
        table.paged_out(0, 1, &cost(1_000), &pages(u64::MAX), &pages(0xffff));
        assert_eq!(table.account(), Account { pages: 48, bytes: 48_000 });
        table.paged_out(0, 1, &cost(3_000), &pages(0xffff), &pages(0));
        assert_eq!(table.account(), Account { pages: 64, bytes: 64 * 1_500 });
        // Nothing is left that could be sampled.
        table.paged_out(0, 1, &cost(4_096), &pages(0), &pages(0));
        assert_eq!(table.account(), Account { pages: 64, bytes: 64 * 1_500 });
    }

    #[test]
    fn a_new_huge_page_voids_its_unit_and_counts_as_one_page() {
        let mut table = Table::new(1);
        table.update(SPACE, &mapped(&[(0, u64::MAX)]));
        reports(&mut table, 9);
        let mut bits = Bits { present: [u64::MAX; LANES], young: [u64::MAX; LANES], huge: 2 };
        let mut extent = vec![];
        let seen = table.read(0, u64::MAX, &bits, at(1), &mut extent);
        assert_eq!(seen.batches, 56, "the unit must be reported first");
        let strip = reports(&mut table, 9)[0];
        assert_eq!((strip.huge, strip.void), (2, 0xff00));
        extent.clear();
        assert_eq!(table.read(0, 0xff00, &bits, at(2), &mut extent).batches, 1);
        let reading = wire::Readings::new(&extent).next().unwrap().unwrap();
        assert_eq!((reading.batches, reading.words), (1 << 8, &[[1, 1]][..]));
        // When it is paged out it is in small pages, and has not changed.
        let (before, mut out) = (bits.clone(), bits.clone());
        out.huge = 0;
        (8..16).for_each(|batch| (out.present[batch], out.young[batch]) = (0, 0));
        assert_eq!(table.paged_out(0, 0xff00, &NO_COST, &before, &out).pages, 512);
        assert_eq!(table.read(0, 0xff00, &out, at(3), &mut extent).batches, 1);
        assert_eq!(reports(&mut table, 9), []);
        (out.present[9], out.young[9]) = (0b111, 0b111);
        let seen = table.read(0, 0xff00, &out, at(3), &mut extent);
        assert_eq!(
            (seen.batches, seen.refaults),
            (0, 3),
            "the page was split, which must be reported first"
        );
        assert_eq!(reports(&mut table, 9)[0].huge, 0);
        (out.present[10], out.young[10]) = (u64::MAX, u64::MAX);
        assert_eq!(table.read(0, 0xff00, &out, at(4), &mut extent).refaults, 64, "the rest counts");
        bits.huge = 2;
        table.read(0, 0xff00, &bits, at(5), &mut extent);
        reports(&mut table, 9);
        bits.huge = 0;
        assert_eq!(table.read(0, 0xff00, &bits, at(5), &mut extent).batches, 0);
        assert_eq!(reports(&mut table, 9)[0].void, 0xff00, "the page was split");
        table.leave_unclearable(0, 0b100);
        table.update(SPACE, &mapped(&[(0, u64::MAX)]));
        assert_eq!(reports(&mut table, 9)[0].mapped, !0b100, "the batch stays left out");
        table.pardon_incompressible();
        table.update(SPACE, &mapped(&[(0, u64::MAX)]));
        assert_eq!(reports(&mut table, 9), [], "the batch is left out for another reason");
        table.pardon_unclearable();
        assert_eq!(reports(&mut table, 9), []);
        table.update(SPACE, &mapped(&[(0, u64::MAX)]));
        assert_eq!(reports(&mut table, 9)[0].mapped, u64::MAX);
    }
}

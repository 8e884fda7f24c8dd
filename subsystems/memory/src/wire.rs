//! The meaning of core's entries and extents for memory.
//!
//! ```text
//! message   STRIP   subject   the strip
//!                   argument  address / 16 MiB
//!                   payload   mapped, void, space << 32 | huge
//!                             (a bit per batch; huge: a bit per unit of eight)
//! decision          subject   the strip
//!                   argument  batches                 (a bit each)
//! extent    readings, one after the other, each:
//!           word 0  the strip: generation << 32 | id
//!           word 1  batches, a bit each
//!           word 2  sequence << 32 | interval_us      (0: not known since when the bits count)
//!           then per batch, lowest first: young, present
//! ```
//!
//! 16 bytes per batch, and 24 per reading: 6.7 MB for 100 GiB if everything is scanned.

use alloc::vec::Vec;

use wave_core::message::{Message, Sequence, Subject};
use wave_core::policy::{BadBulk, Choice};

/// Number of pages in a batch.
pub const BATCH_PAGES: u32 = 64;
/// Number of batches in a strip.
pub const STRIP_BATCHES: u32 = 64;
/// Batches that one huge page maps.
pub const UNIT_BATCHES: u32 = 8;

/// Kind of the only message: the mappings of a strip.
pub const MESSAGE_STRIP: u16 = 1;

/// An action on batches of a strip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Action {
    /// Read the access bits, clear them, and send the reading.
    Scan = 1,
    /// Move the batches to the slow tier, except pages that were touched since they were scanned.
    PageOut = 2,
    /// Move the batches to the fast tier before they are touched.
    BringBack = 3,
}

impl Action {
    /// The action of a decision's kind.
    pub const fn from_number(number: u16) -> Option<Action> {
        match number {
            1 => Some(Action::Scan),
            2 => Some(Action::PageOut),
            3 => Some(Action::BringBack),
            _ => None,
        }
    }

    /// The choice to do this to `batches`.
    pub const fn choice(self, strip: Subject, sequence: Sequence, batches: u64) -> Choice {
        Choice { kind: self as u16, subject: strip, sequence, argument: batches }
    }
}

/// Whether these pages are a good part of a batch's `pages`: a quarter or more. A move that leaves fewer behind is complete.
pub const fn is_good_part(of: u64, pages: u32) -> bool {
    of.count_ones() * 4 >= pages
}

/// Bytes of a strip with pages of 4 KiB.
pub const STRIP_BYTES: u64 = 1 << 24;

/// The place of a strip, for display and for policies that look at neighbours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The address space: an id of its process.
    pub space: u32,
    /// Address of the strip: a multiple of [`STRIP_BYTES`], below 2^56.
    pub address: u64,
}

/// The mappings of a strip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strip {
    /// The strip: its id and generation.
    pub strip: Subject,
    /// The sequence of the mappings.
    pub sequence: Sequence,
    /// Batches with mapped pages that can be scanned and moved.
    pub mapped: u64,
    /// Batches whose history is void.
    pub void: u64,
    /// Units of eight batches that one huge page maps.
    pub huge: u8,
    /// Place of the strip: address space and address.
    pub place: Place,
}

impl Strip {
    /// The strip as a message.
    pub const fn to_message(&self) -> Message {
        Message {
            kind: MESSAGE_STRIP,
            subject: self.strip,
            sequence: self.sequence,
            argument: (self.place.address / STRIP_BYTES) as u32,
            payload: [self.mapped, self.void, (self.place.space as u64) << 32 | self.huge as u64],
        }
    }

    /// Decodes a message. `None` for a kind of a later version, which a policy ignores.
    pub const fn from_message(message: &Message) -> Option<Strip> {
        let [mapped, void, huge] = message.payload;
        match message.kind {
            MESSAGE_STRIP => Some(Strip {
                strip: message.subject,
                sequence: message.sequence,
                mapped,
                void,
                huge: huge as u8,
                place: Place {
                    space: (huge >> 32) as u32,
                    address: message.argument as u64 * STRIP_BYTES,
                },
            }),
            _ => None,
        }
    }
}

/// The positions of set bits, from the lowest upwards.
pub fn bits(mut mask: u64) -> impl Iterator<Item = u32> {
    core::iter::from_fn(move || {
        let bit = (mask != 0).then(|| mask.trailing_zeros())?;
        mask &= mask - 1;
        Some(bit)
    })
}

/// The first batch of each unit in `units`.
pub const fn firsts(units: u8) -> u64 {
    let mut mask = 0;
    let mut unit = 0;
    while unit < u8::BITS {
        mask |= ((units >> unit) as u64 & 1) << (unit * UNIT_BATCHES);
        unit += 1;
    }
    mask
}

/// Every batch of each unit in `units`.
pub const fn whole(units: u8) -> u64 {
    firsts(units) * 0xff
}

/// Access bits of batches of one strip that were cleared together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading<'a> {
    /// The strip that was read.
    pub strip: Subject,
    /// The sequence of the mappings that were read.
    pub sequence: Sequence,
    /// Time since the bits were cleared, in microseconds; 0 if that is not known.
    pub interval_us: u32,
    /// Batches in the reading, a bit each.
    pub batches: u64,
    /// Young and present pages of each batch, lowest batch first.
    pub words: &'a [[u64; 2]],
}

const HEADER_WORDS: usize = 3;

impl Reading<'_> {
    /// Appends the reading to an extent's words. Panics unless it has words for each of its batches.
    pub fn write(&self, extent: &mut Vec<u64>) {
        assert_eq!(self.words.len(), self.batches.count_ones() as usize);
        let third = u64::from(self.sequence.0) << 32 | u64::from(self.interval_us);
        extent.extend([self.strip.to_word(), self.batches, third]);
        extent.extend(self.words.as_flattened());
    }
}

/// The readings of an extent. Ends after the first invalid one.
#[derive(Clone, Debug)]
pub struct Readings<'a> {
    words: &'a [u64],
    at: usize,
}

impl<'a> Readings<'a> {
    /// The readings in these words, which were copied from the extent.
    pub fn new(words: &'a [u64]) -> Readings<'a> {
        Readings { words, at: 0 }
    }

    /// Index of the word at which the next reading begins.
    pub fn at(&self) -> usize {
        self.at
    }

    fn reading(&mut self) -> Result<Reading<'a>, BadBulk> {
        let (words, at) = (self.words.len(), self.at);
        let rest = &self.words[at..];
        let bad = |what| BadBulk { words, at, what };
        let short = || bad("a reading that is cut off");
        let (header, rest) = rest.split_first_chunk::<HEADER_WORDS>().ok_or_else(short)?;
        let [strip, batches, third] = *header;
        let (pairs, _) = rest.as_chunks::<2>();
        let count = batches.count_ones() as usize;
        let words = pairs.get(..count).ok_or_else(short)?;
        let strip = Subject::from_word(strip);
        if words.iter().fold(0, |bad, [young, present]| bad | young & !present) != 0 {
            return Err(bad("a reading with young pages that are not present"));
        }
        self.at += HEADER_WORDS + 2 * count;
        let sequence = Sequence((third >> 32) as u32);
        Ok(Reading { strip, sequence, interval_us: third as u32, batches, words })
    }
}

impl<'a> Iterator for Readings<'a> {
    type Item = Result<Reading<'a>, BadBulk>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.words.len() {
            return None;
        }
        let reading = self.reading();
        if reading.is_err() {
            self.at = self.words.len();
        }
        Some(reading)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;
    use std::vec;

    const STRIP: Subject = Subject { id: 3, generation: 9 };

    #[test]
    fn a_strip_survives_encoding_as_a_message() {
        let strip = Strip {
            strip: STRIP,
            sequence: Sequence(7),
            mapped: u64::MAX,
            void: 6,
            huge: 0x81,
            place: Place { space: 4711, address: 0x7fff_ff00_0000 },
        };
        assert_eq!(Strip::from_message(&strip.to_message()), Some(strip));
        assert_eq!(Strip::from_message(&Message { kind: 2, ..strip.to_message() }), None);
    }

    #[test]
    fn units_are_eight_batches() {
        assert_eq!(firsts(0x81), 1 | 1 << 56);
        assert_eq!(whole(0x81), 0xff | 0xff << 56);
        assert_eq!(whole(0xff), u64::MAX);
        assert_eq!(bits(0x8000_0000_0000_0005).collect::<Vec<_>>(), [0, 2, 63]);
    }

    #[test]
    fn readings_survive_encoding_in_an_extent() {
        let words = [[1, 3], [0, 0], [u64::MAX, u64::MAX]];
        let batches = 1 | 1 << 5 | 1 << 63;
        let reading = Reading {
            strip: STRIP,
            sequence: Sequence(7),
            interval_us: 300_000,
            batches,
            words: &words,
        };
        let empty = Reading { batches: 0, words: &[], ..reading };
        let mut extent = vec![];
        for reading in [reading, empty, reading] {
            reading.write(&mut extent);
        }
        let read: Vec<_> = Readings::new(&extent).collect();
        assert_eq!(read, [Ok(reading), Ok(empty), Ok(reading)]);

        let cut = &extent[..extent.len() - 1];
        let last = Readings::new(cut).last().unwrap().unwrap_err();
        assert_eq!(
            last.to_string(),
            "peer's fault: bulk data of 20 words, at word 12: a reading that is cut off"
        );
        assert_eq!(Readings::new(cut).count(), 3, "iteration ends at the invalid reading");
        extent[3 + 2] = 4;
        let first = Readings::new(&extent).next().unwrap().unwrap_err();
        assert_eq!(
            first.to_string(),
            "peer's fault: bulk data of 21 words, at word 0: a reading with young pages that are not present"
        );
    }
}

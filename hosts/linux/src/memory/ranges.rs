//! Ranges of manageable memory in strips: what is mapped, what rests, and what advice is given on.

use std::collections::BTreeMap;
use std::ops::Range;

use wave_memory::table::Bits;
use wave_memory::wire::{self, STRIP_BYTES};

use super::areas::{Area, Kind};

pub(super) const PAGE: u64 = 4096;
pub(super) const BATCH: u64 = STRIP_BYTES / 64;
/// The addresses that one table of the second lowest level maps.
const GIB: u64 = 1 << 30;

/// Strips by address, each with the set of its batches that contain manageable memory. `tables` are the strips with page tables,
/// by GiB: the rest of an area has no pages.
pub(super) fn batches_of(areas: &[Area], tables: &BTreeMap<u64, u64>) -> BTreeMap<u64, u64> {
    let mut strips = BTreeMap::new();
    for area in areas.iter().filter(|area| area.kind == Kind::Movable) {
        for (gib, tables) in tables.range(area.start & !(GIB - 1)..area.end) {
            for number in wire::bits(*tables) {
                let strip = gib + u64::from(number) * STRIP_BYTES;
                let start = area.start.max(strip);
                let end = area.end.min(strip + STRIP_BYTES);
                if start >= end {
                    continue;
                }
                let (first, last) = ((start - strip) / BATCH, (end - 1 - strip) / BATCH);
                let mask = (u64::MAX >> (63 - (last - first))) << first;
                *strips.entry(strip).or_default() |= mask;
            }
        }
    }
    strips
}

/// The addresses from the first manageable area to the last.
pub(super) fn span(areas: &[Area]) -> Range<u64> {
    let mut movable = areas.iter().filter(|area| area.kind == Kind::Movable);
    let first = movable.next().map_or(0..0, |area| area.start..area.end);
    first.start..movable.next_back().map_or(first.end, |area| area.end)
}

/// The manageable areas that overlap a range.
pub(super) fn within(areas: &[Area], range: Range<u64>) -> impl Iterator<Item = &Area> {
    let first = areas.partition_point(|area| area.end <= range.start);
    let rest = areas[first..].iter().take_while(move |area| area.start < range.end);
    rest.filter(|area| area.kind == Kind::Movable)
}

/// Batches of a strip, as ranges of bytes in the strip.
pub(super) fn whole(batches: u64) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for batch in wire::bits(batches) {
        let start = u64::from(batch) * BATCH;
        match ranges.last_mut() {
            Some(last) if last.end == start => last.end += BATCH,
            _ => ranges.push(start..start + BATCH),
        }
    }
    ranges
}

/// Pages of a strip, as ranges of bytes in the strip.
pub(super) fn of_pages(pages: &[u64; 64]) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for (batch, pages) in (0..).zip(pages) {
        for page in wire::bits(*pages) {
            let start = batch * BATCH + u64::from(page) * PAGE;
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end += PAGE,
                _ => ranges.push(start..start + PAGE),
            }
        }
    }
    ranges
}

/// The fewest ranges in these batches that contain every page that is present and not young, and no young page. Few,
/// because each range costs the kernel a TLB flush.
pub(super) fn resting(batches: u64, seen: &Bits) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let mut joins = false;
    let mut previous = None;
    for batch in wire::bits(batches) {
        joins &= previous == Some(batch.wrapping_sub(1));
        previous = Some(batch);
        let (young, present) = (seen.young[batch as usize], seen.present[batch as usize]);
        for page in wire::bits(present | young) {
            let start = u64::from(batch) * BATCH + u64::from(page) * PAGE;
            let is_young = young >> page & 1 != 0;
            match ranges.last_mut() {
                _ if is_young => {}
                Some(last) if joins => last.end = start + PAGE,
                _ => ranges.push(start..start + PAGE),
            }
            joins = !is_young;
        }
    }
    ranges
}

/// Truncates the ranges to `room` bytes in total.
pub(super) fn shorten(ranges: &mut Vec<Range<u64>>, mut room: u64) {
    ranges.retain_mut(|range| {
        range.end = range.end.min(range.start + room);
        room -= range.end - range.start;
        range.start < range.end
    });
}

/// The manageable parts of ranges in a strip, as addresses.
pub(super) fn within_areas(areas: &[Area], strip: u64, ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut found = Vec::new();
    for range in ranges {
        let (start, end) = (strip + range.start, strip + range.end);
        for area in within(areas, start..end) {
            found.push(area.start.max(start)..area.end.min(end));
        }
    }
    found
}

/// Clears the bits of pages that are not managed.
pub(super) fn keep_only(areas: &[Area], strip: u64, bits: &mut Bits) {
    let range = strip..strip + STRIP_BYTES;
    if within(areas, range.clone()).any(|area| area.start <= range.start && area.end >= range.end) {
        return;
    }
    let mut keep = [0_u64; 64];
    for area in within(areas, range.clone()) {
        let mut page = (area.start.max(range.start) - strip) / PAGE;
        let end = (area.end.min(range.end) - strip) / PAGE;
        while page < end {
            let (batch, first) = (page / 64, page % 64);
            let count = (end - page).min(64 - first);
            keep[batch as usize] |= (u64::MAX >> (64 - count)) << first;
            page += count;
        }
    }
    for (at, keep) in keep.into_iter().enumerate() {
        bits.young[at] &= keep;
        bits.present[at] &= keep;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRIP: u64 = 5 * STRIP_BYTES;

    fn areas() -> Vec<Area> {
        let area = |start, end, kind| Area { start: STRIP + start, end: STRIP + end, kind };
        vec![
            area(PAGE, 3 * PAGE, Kind::Movable),
            area(3 * PAGE, BATCH, Kind::File),
            area(2 * BATCH, 4 * BATCH + PAGE, Kind::Movable),
            area(63 * BATCH, STRIP_BYTES + BATCH, Kind::Movable),
        ]
    }

    #[test]
    fn only_batches_with_manageable_memory_are_listed() {
        let tables = BTreeMap::from([(0, 0b11 << 5)]);
        let strips = batches_of(&areas(), &tables);
        assert_eq!(
            strips.into_iter().collect::<Vec<_>>(),
            [(STRIP, 1 | 0b11100 | 1 << 63), (STRIP + STRIP_BYTES, 1)]
        );
        let whole = [Area { start: STRIP, end: STRIP + STRIP_BYTES, kind: Kind::Movable }];
        assert_eq!(batches_of(&whole, &tables), BTreeMap::from([(STRIP, u64::MAX)]));
        assert_eq!(span(&areas()), STRIP + PAGE..STRIP + STRIP_BYTES + BATCH);
    }

    #[test]
    fn strips_without_page_tables_are_passed_over() {
        let shadow = [Area { start: 0, end: 1 << 44, kind: Kind::Movable }];
        let tables = BTreeMap::from([(0, 1), (7 << 40, 1 << 63), (1 << 45, 1)]);
        let last = (7 << 40) + 63 * STRIP_BYTES;
        let strips = BTreeMap::from([(0, u64::MAX), (last, u64::MAX)]);
        assert_eq!(batches_of(&shadow, &tables), strips);
    }

    #[test]
    fn ranges_exclude_unmanaged_memory() {
        let ranges = within_areas(&areas(), STRIP, &whole(u64::MAX));
        let at = |start, end| STRIP + start..STRIP + end;
        let expected =
            [at(PAGE, 3 * PAGE), at(2 * BATCH, 4 * BATCH + PAGE), at(63 * BATCH, STRIP_BYTES)];
        assert_eq!(ranges, expected);
        let ranges = within_areas(&areas(), STRIP, &whole(0b1010));
        assert_eq!(ranges, [at(3 * BATCH, 4 * BATCH)]);
    }

    #[test]
    fn untouched_pages_are_paged_out_and_young_ones_stay() {
        let mut seen = Bits { young: [0; 64], present: [0; 64], huge: 0 };
        (seen.present[0], seen.young[0]) = (0b1011_0110, 0b10_0000);
        (seen.present[1], seen.young[1]) = (u64::MAX, 1 << 63);
        (seen.present[3], seen.present[5]) = (1, u64::MAX);
        (seen.present[6], seen.young[6]) = (u64::MAX, u64::MAX);
        let page = |batch: u64, page: u64| batch * BATCH + page * PAGE;
        // Pages 3 and 6 are absent, and page 5 is young. The next batch is present, except its last page.
        let ranges = resting(0b110_1011, &seen);
        let expected = [
            page(0, 1)..page(0, 5),
            page(0, 7)..page(1, 63),
            page(3, 0)..page(3, 1),
            page(5, 0)..page(6, 0),
        ];
        assert_eq!(ranges, expected);
        assert_eq!(resting(1 << 6, &seen), []);
        let mut ranges = ranges;
        shorten(&mut ranges, 5 * PAGE);
        assert_eq!(ranges, [page(0, 1)..page(0, 5), page(0, 7)..page(0, 8)]);
    }

    #[test]
    fn bits_of_unmanaged_pages_are_cleared() {
        let mut bits = Bits { young: [u64::MAX; 64], present: [u64::MAX; 64], huge: 0 };
        keep_only(&areas(), STRIP, &mut bits);
        let mut expected = [0; 64];
        (expected[0], expected[2], expected[3]) = (0b110, u64::MAX, u64::MAX);
        (expected[4], expected[63]) = (1, u64::MAX);
        assert_eq!((bits.young, bits.present), (expected, expected));
    }
}

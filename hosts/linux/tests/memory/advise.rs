//! Pages go to swap and come back intact; pages that may not be moved stay.

use std::ops::Range;

use wave_linux::memory::{
    AccessBits, Advice, Areas, Figures, Kind, Process, STRIP_BYTES, Zram, advise,
};
use wave_skip::turn;

use crate::swap::own_swap;
use crate::target::{MIB, PAGE, Target, share_a_cpu};

/// Number of present pages in a range within one strip.
fn present(bits: &mut AccessBits, process: &Process, range: &Range<u64>) -> u64 {
    let space = Areas::open().map(process).unwrap().space;
    let strip = range.start - range.start % STRIP_BYTES;
    assert!(range.end <= strip + STRIP_BYTES);
    let mut strips = Vec::new();
    bits.read(process, space, &[strip], &mut strips).unwrap();
    let pages = (range.start - strip) / PAGE..(range.end - strip) / PAGE;
    let is_present = |page: &u64| strips[0].present[*page as usize / 64] >> (page % 64) & 1 == 1;
    pages.filter(is_present).count() as u64
}

/// Pages everything out, repeatedly, as the kernel leaves some pages at first.
fn page_out(bits: &mut AccessBits, process: &Process, range: &Range<u64>) {
    for _ in 0..8 {
        let out = advise(process, Advice::PageOut, std::slice::from_ref(range)).unwrap();
        assert_eq!(out.bytes, range.end - range.start, "{out:?}");
        if present(bits, process, range) == 0 {
            return;
        }
    }
    panic!("{} pages were not paged out", present(bits, process, range));
}

fn open_bits() -> Option<AccessBits> {
    share_a_cpu();
    AccessBits::open().inspect_err(|error| wave_skip::skip(error)).ok()
}

#[test]
fn pages_go_to_swap_and_come_back_as_they_were() {
    let _turn = turn("swap");
    let Some(swap) = own_swap(64 * MIB) else { return };
    let Some(mut bits) = open_bits() else { return };
    let mut target = Target::start();
    let Some(process) = target.open() else { return };
    let start = target.map("anonymous", STRIP_BYTES, STRIP_BYTES);
    let bytes = 10 * MIB;
    target.write(start, bytes, 0);
    let before = Figures::of(&process).unwrap();
    assert!(before.resident_bytes > bytes && before.swapped_bytes == 0, "{before:?}");
    let range = start..start + bytes;
    page_out(&mut bits, &process, &range);
    let out = Figures::of(&process).unwrap();
    assert!(out.swapped_bytes >= bytes, "{out:?}");
    assert!(out.resident_bytes + bytes / 2 < before.resident_bytes, "{before:?} {out:?}");
    if let Some(zram) = Zram::of(swap.path()) {
        assert!(zram.orig_bytes >= bytes, "{zram:?}");
        assert!(zram.compressed_bytes < zram.orig_bytes * 3 / 4, "{zram:?}");
        assert!(zram.memory_used_bytes >= zram.compressed_bytes, "{zram:?}");
    }
    target.is_intact(start, bytes);
    assert_eq!(present(&mut bits, &process, &range), bytes / PAGE);
    let back = Figures::of(&process).unwrap();
    assert!(back.major_faults > out.major_faults, "{out:?} {back:?}");

    // A process does not wait for pages that are read back ahead of their use.
    target.write(start, bytes, 0);
    page_out(&mut bits, &process, &range);
    let out = Figures::of(&process).unwrap();
    let ahead = advise(&process, Advice::WillNeed, std::slice::from_ref(&range)).unwrap();
    assert_eq!((ahead.bytes, ahead.holes), (bytes, 0), "{ahead:?}");
    target.is_intact(start, bytes);
    let back = Figures::of(&process).unwrap();
    // Except for the target's own pages that were paged out as well.
    assert!(back.major_faults <= out.major_faults + bytes / PAGE / 20, "{out:?} {back:?}");
}

#[test]
fn holes_and_locked_memory_do_not_stop_advice_on_the_rest() {
    let _turn = turn("swap");
    let Some(_swap) = own_swap(64 * MIB) else { return };
    let Some(mut bits) = open_bits() else { return };
    let mut target = Target::start();
    let Some(process) = target.open() else { return };
    let start = target.map("anonymous", STRIP_BYTES, STRIP_BYTES);
    let locked = target.map("locked", MIB, MIB);
    target.write(start, STRIP_BYTES, 0);
    target.write(locked, MIB, 0);
    let hole = start + 5 * MIB..start + 5 * MIB + 3 * PAGE;
    target.unmap(hole.start, hole.end - hole.start);
    let ranges = [start..start + 7 * MIB, locked..locked + MIB, start + 8 * MIB..start + 9 * MIB];
    let (before, after) = (start..hole.start, hole.end..start + 7 * MIB);
    for _ in 0..8 {
        let advised = advise(&process, Advice::PageOut, &ranges).unwrap();
        // Pieces end at 4 MiB, so the first one has no hole.
        assert_eq!((advised.bytes, advised.holes), (5 * MIB, 1), "{advised:?}");
        let (range, error) = advised.refused.expect("one range is locked");
        assert_eq!((range, error.raw_os_error()), (ranges[1].clone(), Some(libc::EINVAL)));
        if [&before, &after, &ranges[2]].map(|range| present(&mut bits, &process, range)) == [0; 3]
        {
            break;
        }
    }
    for out in [&before, &after, &ranges[2]] {
        assert_eq!(present(&mut bits, &process, out), 0, "{out:x?}");
    }
    for stays in [locked..locked + MIB, start + 7 * MIB..start + 8 * MIB] {
        assert_eq!(present(&mut bits, &process, &stays), MIB / PAGE, "{stays:x?}");
    }
    for intact in [before, after, start + 7 * MIB..start + STRIP_BYTES, locked..locked + MIB] {
        target.is_intact(intact.start, intact.end - intact.start);
    }
    // The range is entirely unmapped.
    target.unmap(start, STRIP_BYTES);
    let nothing = start..start + STRIP_BYTES;
    let advised = advise(&process, Advice::PageOut, std::slice::from_ref(&nothing)).unwrap();
    assert_eq!((advised.bytes, advised.holes, advised.calls), (0, 4, 4), "{advised:?}");
}

#[test]
fn shared_file_and_locked_memory_is_not_moved() {
    let _turn = turn("swap");
    let Some(_swap) = own_swap(256 * MIB) else { return };
    let Some(mut bits) = open_bits() else { return };
    let mut target = Target::start();
    let Some(process) = target.open() else { return };
    let anonymous = target.map("anonymous", MIB, MIB);
    let stay = [("shared", MIB), ("file", 64 * PAGE), ("locked", MIB)];
    let stay = stay.map(|(kind, bytes)| {
        let at = target.map(kind, bytes, MIB);
        if kind == "file" {
            target.read(at, bytes, 0)
        } else {
            target.write(at, bytes, 0)
        };
        at..at + bytes
    });
    target.write(anonymous, MIB, 0);
    let map = Areas::open().map(&process).unwrap();
    let movable: Vec<_> = map
        .areas
        .iter()
        .filter(|area| area.kind == Kind::Movable)
        .map(|area| area.start..area.end)
        .collect();
    assert!(movable.iter().any(|range| range.contains(&anonymous)));
    let advised = advise(&process, Advice::PageOut, &movable).unwrap();
    assert!(advised.refused.is_none() && advised.holes == 0, "{advised:?}");
    page_out(&mut bits, &process, &(anonymous..anonymous + MIB));
    for range in &stay {
        let pages = (range.end - range.start) / PAGE;
        assert_eq!(present(&mut bits, &process, range), pages, "{range:x?}");
    }
    target.is_intact(anonymous, MIB);
    target.is_intact(stay[0].start, MIB);
    target.is_intact(stay[2].start, MIB);
}

#[test]
fn calls_are_of_bounded_size() {
    let mut target = Target::start();
    let Some(process) = target.open() else { return };
    let start = target.map("anonymous", 64 * MIB, STRIP_BYTES);
    let calls = |advice, ranges: &[Range<u64>]| {
        let advised = advise(&process, advice, ranges).unwrap();
        assert_eq!((advised.holes, advised.refused.is_none()), (0, true));
        assert_eq!(advised.bytes, ranges.iter().map(|range| range.end - range.start).sum::<u64>());
        advised.calls
    };
    let whole = start..start + 64 * MIB;
    let whole = std::slice::from_ref(&whole);
    assert_eq!([Advice::Cold, Advice::PageOut].map(|advice| calls(advice, whole)), [4, 16]);
    let batch = |at: u64| start + at * MIB / 4..start + (at + 1) * MIB / 4;
    let batches: Vec<_> = (0..100).map(|at| batch(2 * at)).collect();
    assert_eq!([Advice::Cold, Advice::PageOut].map(|advice| calls(advice, &batches)), [2, 7]);
    // A piece never ends in the middle of an area that a huge page may map.
    let askew = start + MIB..start + 10 * MIB;
    assert_eq!(calls(Advice::PageOut, std::slice::from_ref(&askew)), 3);
    assert_eq!(calls(Advice::Cold, &[]), 0);
    let empty = start..start;
    assert_eq!(calls(Advice::Cold, std::slice::from_ref(&empty)), 0);
}

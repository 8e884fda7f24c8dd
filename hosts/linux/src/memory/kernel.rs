//! The kernel as the tiers of an enclave: surveys programs and their mappings, and reads and moves pages.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use wave_core::clock::Nanos;
use wave_core::outcome::Code;
use wave_memory::guard::{Guard, Standing};
use wave_memory::serve::{Cost, Tiers};
use wave_memory::table::{Bits, Table};
use wave_memory::wire::{self, Place, STRIP_BYTES};

use super::advise::{Advice, Advised, advise};
use super::areas::{Area, Areas, Kind, Map};
use super::bits::{AccessBits, Strip};
use super::figures::{Figures, Part, Pressure};
use super::process::{Process, lifetimes_of};
use super::sample::Sampler;
use super::swap::{SwapKind, SwapState, swap_state};
use super::{Group, TargetError, refault};
use crate::process::{Lifetime, Stat};

const PAGE: u64 = 4096;
const BATCH: u64 = STRIP_BYTES / 64;
/// Swap that is left to other programs: one part in `SWAP_LEFT_SHARE`, and at most `SWAP_LEFT_MOST` bytes.
const SWAP_LEFT_SHARE: u64 = 32;
const SWAP_LEFT_MOST: u64 = 2 * STRIP_BYTES;
/// How often to check again whether swap is full.
const SWAP_LOOK: Nanos = Nanos::from_millis(10);
/// How often to measure the time of a refault.
const REFAULT_LOOK: Nanos = Nanos::from_millis(60_000);
/// Most of a core that reading the parts of several programs may take: one part in this many.
const PARTS_SHARE: u64 = 200;

/// A program, and its memory by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// Process id in this process's namespace.
    pub pid: i32,
    /// Mapped bytes that can be managed.
    pub movable: u64,
    /// Mapped bytes that are shared with other processes: not managed.
    pub shared: u64,
    /// Mapped bytes of files: not managed.
    pub file: u64,
    /// Mapped bytes that are locked: not managed.
    pub locked: u64,
}

/// Memory of all programs together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    pub resident_bytes: u64,
    pub swapped_bytes: u64,
}

struct Target {
    process: Process,
    map: Map,
    program: Program,
    /// The process's proportional part of its memory, as of the last reading.
    part: Part,
}

pub(super) struct Kernel {
    areas: Areas,
    bits: AccessBits,
    targets: BTreeMap<u32, Target>,
    read: Vec<Strip>,
    swap: SwapState,
    swap_at: Nanos,
    sampler: Sampler,
    refault: Option<Nanos>,
    refault_at: Nanos,
    /// Processes that the last survey found for the first time.
    newcomers: BTreeSet<i32>,
    surveyed: bool,
    /// When the processes of the groups started, as of the first survey.
    roots: BTreeMap<i32, u64>,
    parts_at: Nanos,
}

impl Kernel {
    pub(super) fn new(bits: AccessBits) -> Kernel {
        Kernel {
            areas: Areas::open(),
            bits,
            targets: BTreeMap::new(),
            read: Vec::new(),
            swap: SwapState::default(),
            swap_at: Nanos(0),
            sampler: Sampler::default(),
            refault: None,
            refault_at: Nanos(0),
            newcomers: BTreeSet::new(),
            surveyed: false,
            roots: BTreeMap::new(),
            parts_at: Nanos(0),
        }
    }

    /// Lists the processes of the groups, and their mappings.
    pub(super) fn survey(
        &mut self,
        groups: &[Group],
        table: &mut Table,
    ) -> Result<(), TargetError> {
        let mut found = Vec::new();
        let mut first_error = None;
        if !self.surveyed {
            self.roots = roots_of(groups);
        }
        for group in groups {
            if is_reused(&self.roots, group) {
                continue;
            }
            match lifetimes_of(group) {
                Ok(listed) => found.extend(listed),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        let here = |pid: u32| found.iter().any(|(listed, _)| *listed == pid as i32);
        self.targets.retain(|&pid, target| {
            let stays = here(pid) && target.process.is_alive();
            if !stays {
                table.update(pid, &BTreeMap::new());
            }
            stays
        });
        // A process that is forked for one request ends before any of its memory could be cold.
        let newcomers: BTreeSet<i32> = match self.surveyed {
            true => found
                .iter()
                .map(|(pid, _)| *pid)
                .filter(|pid| !self.targets.contains_key(&(*pid as u32)))
                .collect(),
            false => BTreeSet::new(),
        };
        let lasting: Vec<Lifetime> = found
            .into_iter()
            .filter(|(pid, _)| !newcomers.contains(pid) || self.newcomers.contains(pid))
            .collect();
        (self.newcomers, self.surveyed) = (newcomers, true);
        for process in lasting {
            if let Err(error) = self.look_at(process, table) {
                first_error = first_error.or(Some(error));
            }
        }
        match first_error {
            Some(error) if self.targets.is_empty() => Err(error),
            _ => Ok(()),
        }
    }

    fn look_at(&mut self, listed: Lifetime, table: &mut Table) -> Result<(), TargetError> {
        let (pid, _) = listed;
        let space = pid as u32;
        if !self.targets.contains_key(&space) {
            let process = Process::open_listed(listed)?;
            let map = self.areas.map(&process)?;
            let (program, part) = (Program { pid, ..Program::default() }, Part::default());
            self.targets.insert(space, Target { process, map, program, part });
            self.parts_at = Nanos(0);
        } else if let Some(target) = self.targets.get_mut(&space) {
            let before = target.map.space;
            target.map = self.areas.map(&target.process)?;
            if target.map.space != before {
                table.update(space, &BTreeMap::new());
            }
        }
        let Some(target) = self.targets.get_mut(&space) else { return Ok(()) };
        let bytes = |kind| target.map.bytes(kind);
        target.program = Program {
            pid,
            movable: bytes(Kind::Movable),
            shared: bytes(Kind::Shared),
            file: bytes(Kind::File),
            locked: bytes(Kind::Locked),
        };
        table.update(space, &batches_of(&target.map.areas));
        Ok(())
    }

    pub(super) fn programs(&self) -> Vec<Program> {
        self.targets.values().map(|target| target.program.clone()).collect()
    }

    pub(super) fn is_swap_full(&self) -> bool {
        self.swap_room() < BATCH
    }

    pub(super) fn swap(&self) -> &SwapState {
        &self.swap
    }

    /// The measured time of a refault; `None` if not measured.
    pub(super) fn refault(&self) -> Option<Nanos> {
        self.refault
    }

    /// Bytes that may be paged out.
    fn swap_room(&self) -> u64 {
        room(self.swap.total_bytes, self.swap.free_bytes)
    }

    fn look_at_swap(&mut self) {
        self.swap_at = super::now();
        self.swap = swap_state().unwrap_or_default();
    }

    /// Measures the time of a refault, if that is due. It pages out some memory of this process.
    pub(super) fn measure(&mut self) {
        let now = super::now();
        if now >= self.refault_at {
            self.refault_at = now + REFAULT_LOOK;
            self.refault = refault::measure().or(self.refault);
        }
    }

    /// Reads the figures, and updates the guard.
    pub(super) fn look(&mut self, groups: &[Group], guard: &mut Guard) -> Sums {
        let mut sums = Sums::default();
        // A single program's memory is all its own. With several, a shared page must count once.
        let several = self.targets.len() > 1;
        if several {
            self.look_at_parts();
        }
        for target in self.targets.values() {
            let part = match several {
                true => target.part,
                false => {
                    let Ok(figures) = Figures::of(&target.process) else { continue };
                    let Figures { resident_bytes, swapped_bytes, .. } = figures;
                    Part { resident_bytes, swapped_bytes }
                }
            };
            sums.resident_bytes += part.resident_bytes;
            sums.swapped_bytes += part.swapped_bytes;
        }
        self.look_at_swap();
        // A cgroup's own pressure is closer to what its processes experience.
        let of_cgroups = groups.iter().filter_map(|group| match group {
            Group::Cgroup(folder) => Pressure::of_cgroup(folder),
            Group::Process(_) => None,
        });
        let worst = of_cgroups.map(|pressure| pressure.some.avg10_percent).reduce(f64::max);
        let of_machine = || Some(Pressure::of_machine()?.some.avg10_percent);
        guard.look(Standing {
            resident_pages: sums.resident_bytes / PAGE,
            pressure_percent: worst.or_else(of_machine).unwrap_or(0.0),
            refault: self.refault,
        });
        sums
    }

    /// Reads the programs' parts, as often as [`PARTS_SHARE`] allows.
    fn look_at_parts(&mut self) {
        let now = super::now();
        if now < self.parts_at {
            return;
        }
        for target in self.targets.values_mut() {
            // A process that has ended, and that no survey has missed yet, has no part: another has all of what they shared.
            target.part = match Part::of(&target.process) {
                Some(part) => part,
                None if target.process.is_alive() => target.part,
                None => Part::default(),
            };
        }
        self.parts_at = now + Nanos(super::now().since(now).0 * PARTS_SHARE);
    }

    fn advise(&self, place: Place, ranges: &[Range<u64>], advice: Advice) -> Option<Advised> {
        let target = self.targets.get(&place.space)?;
        let ranges = within_areas(&target.map.areas, place.address, ranges);
        advise(&target.process, advice, &ranges).ok()
    }
}

/// The processes that groups are about, and when they started.
fn roots_of(groups: &[Group]) -> BTreeMap<i32, u64> {
    let root = |group: &Group| match group {
        Group::Process(pid) => Some((*pid, Stat::read(*pid)?.started)),
        Group::Cgroup(_) => None,
    };
    groups.iter().filter_map(root).collect()
}

/// Whether the group's process has ended, and another one has its id.
fn is_reused(roots: &BTreeMap<i32, u64>, group: &Group) -> bool {
    match group {
        Group::Process(pid) => {
            Stat::read(*pid).is_some_and(|stat| roots.get(pid) != Some(&stat.started))
        }
        Group::Cgroup(_) => false,
    }
}

/// The outcome code for the kernel's answer to advice.
fn code_of(advised: &Advised) -> Result<(), Code> {
    match &advised.refused {
        // Some of the memory was advised.
        Some(_) if advised.bytes > 0 => Ok(()),
        Some((_, error)) => Err(match error.raw_os_error() {
            Some(libc::EINVAL) => Code::InvalidTarget,
            Some(libc::EPERM | libc::EACCES) => Code::NotPermitted,
            _ => Code::Held,
        }),
        None => Ok(()),
    }
}

impl Tiers for Kernel {
    fn now(&self) -> Nanos {
        super::now()
    }

    fn read(&mut self, place: Place) -> Option<Bits> {
        let target = self.targets.get(&place.space)?;
        self.read.clear();
        let (bits, map) = (&mut self.bits, &target.map);
        bits.read(&target.process, map.space, &[place.address], &mut self.read).ok()?;
        let strip = self.read.pop()?;
        let mut bits = Bits { young: strip.young, present: strip.present, huge: strip.huge as u8 };
        keep_only(&map.areas, place.address, &mut bits);
        Some(bits)
    }

    fn clear(&mut self, place: Place, batches: u64) -> u64 {
        match self.advise(place, &whole(batches), Advice::Cold) {
            Some(advised) if advised.refused.is_none() => 0,
            _ => batches,
        }
    }

    fn page_out(&mut self, place: Place, batches: u64, seen: &Bits) -> Result<Cost, Code> {
        // Not all advised pages have gone to swap, and other programs free some of it.
        if self.is_swap_full() && super::now().since(self.swap_at) >= SWAP_LOOK {
            self.look_at_swap();
        }
        if self.is_swap_full() {
            return Err(Code::Held);
        }
        let cost = self.cost(place, batches, seen);
        let mut ranges = resting(batches & !cost.incompressible, seen);
        shorten(&mut ranges, self.swap_room());
        let advised = self.advise(place, &ranges, Advice::PageOut);
        let advised = advised.ok_or(Code::TargetNotFound)?;
        self.swap.free_bytes = self.swap.free_bytes.saturating_sub(advised.bytes);
        code_of(&advised).map(|()| cost)
    }

    fn cost(&mut self, place: Place, batches: u64, seen: &Bits) -> Cost {
        // A dry run without swap is one for compressed memory.
        let compresses = self.swap.first().is_none_or(|device| device.kind == SwapKind::Zram);
        let Some(target) = self.targets.get(&place.space).filter(|_| compresses) else {
            return Cost::NONE;
        };
        let sampled = self.sampler.sample(&target.process, place.address, batches, seen);
        Cost { bytes: sampled.bytes, incompressible: sampled.incompressible }
    }

    fn bring_back(&mut self, place: Place, batches: u64) -> Result<(), Code> {
        let advised = self.advise(place, &whole(batches), Advice::WillNeed);
        code_of(&advised.ok_or(Code::TargetNotFound)?)
    }
}

/// Strips by address, each with the set of its batches that contain manageable memory.
fn batches_of(areas: &[Area]) -> BTreeMap<u64, u64> {
    let mut strips = BTreeMap::new();
    for area in areas.iter().filter(|area| area.kind == Kind::Movable) {
        let mut strip = area.start & !(STRIP_BYTES - 1);
        while strip < area.end {
            let start = area.start.max(strip);
            let end = area.end.min(strip + STRIP_BYTES);
            let (first, last) = ((start - strip) / BATCH, (end - 1 - strip) / BATCH);
            let mask = (u64::MAX >> (63 - (last - first))) << first;
            *strips.entry(strip).or_default() |= mask;
            strip += STRIP_BYTES;
        }
    }
    strips
}

/// The manageable areas that overlap a range.
fn within(areas: &[Area], range: Range<u64>) -> impl Iterator<Item = &Area> {
    let first = areas.partition_point(|area| area.end <= range.start);
    let rest = areas[first..].iter().take_while(move |area| area.start < range.end);
    rest.filter(|area| area.kind == Kind::Movable)
}

/// Batches of a strip, as ranges of bytes in the strip.
fn whole(batches: u64) -> Vec<Range<u64>> {
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

/// The fewest ranges in these batches that contain every page that is present and not young, and no young page. Few,
/// because each range costs the kernel a TLB flush.
fn resting(batches: u64, seen: &Bits) -> Vec<Range<u64>> {
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

/// Bytes of swap that may still be filled.
fn room(total_bytes: u64, free_bytes: u64) -> u64 {
    free_bytes.saturating_sub(SWAP_LEFT_MOST.min(total_bytes / SWAP_LEFT_SHARE))
}

/// Truncates the ranges to `room` bytes in total.
fn shorten(ranges: &mut Vec<Range<u64>>, mut room: u64) {
    ranges.retain_mut(|range| {
        range.end = range.end.min(range.start + room);
        room -= range.end - range.start;
        range.start < range.end
    });
}

/// The manageable parts of ranges in a strip, as addresses.
fn within_areas(areas: &[Area], strip: u64, ranges: &[Range<u64>]) -> Vec<Range<u64>> {
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
fn keep_only(areas: &[Area], strip: u64, bits: &mut Bits) {
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
    fn process_that_got_the_id_of_an_ended_one_is_not_managed() {
        let group = Group::Process(std::process::id() as i32);
        let mut roots = roots_of(std::slice::from_ref(&group));
        assert!(!is_reused(&roots, &group));
        // The id was an earlier process's.
        roots.values_mut().for_each(|started| *started -= 1);
        assert!(is_reused(&roots, &group));
        // The process had ended before the first survey.
        assert!(is_reused(&BTreeMap::new(), &group));
    }

    #[test]
    fn only_batches_with_manageable_memory_are_listed() {
        let strips = batches_of(&areas());
        assert_eq!(
            strips.into_iter().collect::<Vec<_>>(),
            [(STRIP, 1 | 0b11100 | 1 << 63), (STRIP + STRIP_BYTES, 1)]
        );
        let whole = [Area { start: STRIP, end: STRIP + STRIP_BYTES, kind: Kind::Movable }];
        assert_eq!(batches_of(&whole), BTreeMap::from([(STRIP, u64::MAX)]));
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
    fn small_swap_is_not_full_when_a_third_of_it_is_free() {
        let mib = |mib: u64| mib << 20;
        assert_eq!(room(mib(64), mib(23)), mib(21));
        assert_eq!(room(mib(64), mib(2)), 0);
        assert_eq!(room(mib(65_536), mib(33)), mib(1));
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

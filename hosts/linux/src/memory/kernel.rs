//! The kernel as the tiers of an enclave: surveys programs and their mappings, and reads and moves pages.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use wave_core::clock::Nanos;
use wave_core::outcome::Code;
use wave_memory::guard::{Guard, Standing};
use wave_memory::serve::{Cost, Tiers};
use wave_memory::table::{Bits, Table};
use wave_memory::wire::{self, Place, STRIP_BYTES};

use super::advise::{Advice, Advised, advise};
use super::areas::{Areas, Kind, Map};
use super::bits::{AccessBits, Strip};
use super::figures::{Figures, Part, Pressure, major_faults_of};
use super::process::{Process, lifetimes_of};
use super::ranges::{
    BATCH, PAGE, batches_of, keep_only, of_pages, resting, shorten, span, whole, within_areas,
};
use super::refault::{Probe, Probed, Times};
use super::sample::Sampler;
use super::swap::{SwapKind, SwapState, swap_state};
use super::swap_cache::{self, Counter, Written};
use super::{Group, TargetError};
use crate::process::{Lifetime, Stat};

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
    /// The part of them that may have pages, as far as page tables say: all of it is scanned.
    pub populated: u64,
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
    /// Bytes in swap that are still in memory, too.
    pub cached_bytes: u64,
    /// How often a thread has waited for a page, since the programs are managed. Ended ones count.
    pub major_faults: u64,
    /// The mean time of a refault; `None` if not measured.
    pub refault: Option<Nanos>,
}

struct Target {
    process: Process,
    started: u64,
    map: Map,
    program: Program,
    /// The process's proportional part of its memory, as of the last reading.
    part: Part,
    /// Its major faults when it was taken up, and at the last reading.
    faults: Range<u64>,
}

impl Target {
    /// Reads the faults of a process that may have ended. They can be read until its parent has waited for it.
    fn read_faults(&mut self) {
        let faults = major_faults_of((self.process.pid(), self.started));
        self.faults.end = faults.unwrap_or(0).max(self.faults.end);
    }

    fn major_faults(&self) -> u64 {
        self.faults.end - self.faults.start
    }
}

pub(super) struct Kernel {
    areas: Areas,
    bits: AccessBits,
    targets: BTreeMap<u32, Target>,
    read: Vec<Strip>,
    swap: SwapState,
    swap_at: Nanos,
    sampler: Sampler,
    /// Whether the kernel compresses pages before it writes them to a disk.
    zswap: bool,
    written: Written,
    cached: Counter,
    times: Option<Times>,
    probe: Option<Probe>,
    probe_at: Nanos,
    /// Major faults of programs that have ended.
    faults_of_ended: u64,
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
            zswap: has_zswap(),
            written: Written::default(),
            cached: Counter::default(),
            times: None,
            probe: None,
            probe_at: Nanos(0),
            faults_of_ended: 0,
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
        let faults_of_ended = &mut self.faults_of_ended;
        self.targets.retain(|&pid, target| {
            let stays = here(pid) && target.process.is_alive();
            if !stays {
                target.read_faults();
                *faults_of_ended += target.major_faults();
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
            if let Err(error) = self.survey_process(process, table) {
                first_error = first_error.or(Some(error));
            }
        }
        match first_error {
            Some(error) if self.targets.is_empty() => Err(error),
            _ => Ok(()),
        }
    }

    fn survey_process(&mut self, listed: Lifetime, table: &mut Table) -> Result<(), TargetError> {
        let (pid, started) = listed;
        let space = pid as u32;
        if !self.targets.contains_key(&space) {
            let process = Process::open_listed(listed)?;
            let map = self.areas.map(&process)?;
            let (program, part) = (Program { pid, ..Program::default() }, Part::default());
            let faults = major_faults_of(listed).unwrap_or(0);
            let faults = faults..faults;
            self.targets.insert(space, Target { process, started, map, program, part, faults });
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
            populated: 0,
            shared: bytes(Kind::Shared),
            file: bytes(Kind::File),
            locked: bytes(Kind::Locked),
        };
        // Perhaps only a part of the mapped memory has pages: a tiny one of a reservation, or of a sanitizer's shadow.
        let found =
            self.bits.find_tables(&target.process, target.map.space, span(&target.map.areas));
        // Else it has ended or executes another program, which the next survey sees.
        let Ok(tables) = found else { return Ok(()) };
        let strips = batches_of(&target.map.areas, &tables);
        let batches: u64 = strips.values().map(|batches| u64::from(batches.count_ones())).sum();
        target.program.populated = target.program.movable.min(batches * BATCH);
        table.update(space, &strips);
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

    /// Bytes that may be paged out.
    fn swap_room(&self) -> u64 {
        room(self.swap.total_bytes, self.swap.free_bytes)
    }

    /// Whether pages that leave now are compressed in memory. A dry run without swap assumes compressed memory.
    fn compresses(&self) -> bool {
        self.zswap || self.swap.first().is_none_or(|device| device.kind == SwapKind::Zram)
    }

    fn read_swap(&mut self) {
        self.swap_at = super::now();
        self.swap = swap_state().unwrap_or_default();
    }

    /// Continues to measure the time of a refault, if that is due. It pages out some memory of this process.
    pub(super) fn measure(&mut self) {
        let now = super::now();
        let probe = match self.probe.take() {
            Some(probe) => probe,
            None if now < self.probe_at => return,
            None => {
                self.probe_at = now + REFAULT_LOOK;
                let Ok(probe) = Probe::new() else { return };
                probe
            }
        };
        match probe.attempt() {
            Probed::Done(times) => self.times = Some(times),
            Probed::NotYet(probe) => self.probe = Some(probe),
            Probed::Failed => {}
        }
    }

    /// Reads the figures, and updates the guard. `refaults` is their number so far.
    pub(super) fn read_figures(
        &mut self,
        groups: &[Group],
        guard: &mut Guard,
        refaults: u64,
    ) -> Sums {
        let mut sums = Sums::default();
        // With several programs, a shared page must count once.
        if self.targets.len() > 1 {
            self.read_parts();
            for Target { part, .. } in self.targets.values() {
                sums.resident_bytes += part.resident_bytes;
                sums.swapped_bytes += part.swapped_bytes;
            }
        } else if let Some(figures) = self.read_only_program() {
            // A single program's memory is all its own, but it may map some of it several times.
            if figures.shared_bytes > 0 {
                self.read_parts();
            }
            let shared = self.targets.values().map(|target| target.part.shared_bytes).sum();
            let own = figures.resident_bytes - figures.shared_bytes;
            sums.resident_bytes = own + figures.shared_bytes.min(shared);
            sums.swapped_bytes = figures.swapped_bytes;
        }
        sums.cached_bytes = self.cached.count(groups).min(sums.swapped_bytes);
        sums.major_faults =
            self.faults_of_ended + self.targets.values().map(Target::major_faults).sum::<u64>();
        sums.refault = self.times.map(|times| times.mean(refaults, sums.major_faults));
        self.read_swap();
        // A cgroup's own pressure is closer to what its processes experience.
        let of_cgroups = groups.iter().filter_map(|group| match group {
            Group::Cgroup(folder) => Pressure::of_cgroup(folder),
            Group::Process(_) => None,
        });
        let worst = of_cgroups.map(|pressure| pressure.some.avg10_percent).reduce(f64::max);
        let of_machine = || Some(Pressure::of_machine()?.some.avg10_percent);
        guard.update(Standing {
            resident_pages: sums.resident_bytes / PAGE,
            pressure_percent: worst.or_else(of_machine).unwrap_or(0.0),
            refault: sums.refault,
        });
        sums
    }

    fn read_only_program(&mut self) -> Option<Figures> {
        let target = self.targets.values_mut().next()?;
        target.read_faults();
        let figures = Figures::of(&target.process).ok()?;
        Some(Figures { shared_bytes: figures.shared_bytes.min(figures.resident_bytes), ..figures })
    }

    /// Reads the programs' parts, as often as [`PARTS_SHARE`] allows.
    fn read_parts(&mut self) {
        let now = super::now();
        if now < self.parts_at {
            return;
        }
        let before = super::thread_cpu();
        for target in self.targets.values_mut() {
            target.read_faults();
            // A process that has ended, and that no survey has missed yet, has no part: another has all of what they shared.
            target.part = match Part::of(&target.process) {
                Some(part) => part,
                None if target.process.is_alive() => target.part,
                None => Part::default(),
            };
        }
        let took = super::thread_cpu().saturating_sub(before).as_nanos() as u64;
        self.parts_at = now + Nanos(took * PARTS_SHARE);
    }

    /// When [`Kernel::free_written`] is due; `None` if nothing is being written.
    pub(super) fn written_at(&self) -> Option<Nanos> {
        self.written.next_check()
    }

    /// Frees the memory of pages of a strip that have been written to a disk, and that the kernel keeps in its swap cache.
    pub(super) fn free_written(&mut self, table: &mut Table) {
        let Some((place, mut pages)) = self.written.take(super::now()) else { return };
        self.read_swap();
        // Once half of all swap is in use, the kernel gives up a page's place there when the page is mapped.
        if self.swap.free_bytes <= self.swap.total_bytes / 2 {
            return self.written.clear();
        }
        let Some(before) = self.read(place) else { return };
        pages.iter_mut().zip(before.present).for_each(|(pages, present)| *pages &= !present);
        let Some(target) = self.targets.get(&place.space) else { return };
        let in_memory = swap_cache::map(&target.process, place.address, &pages);
        self.advise(place, &of_pages(&pages), Advice::PageOut);
        if !in_memory {
            self.written.clear();
        }
        let Some(after) = self.read(place) else { return };
        pages.iter_mut().zip(after.present).for_each(|(pages, present)| *pages &= present);
        if pages.iter().any(|pages| *pages != 0) {
            // Nobody has touched them, and their access bits must not say so.
            self.advise(place, &of_pages(&pages), Advice::Cold);
            table.stayed(place, &pages);
        }
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
            self.read_swap();
        }
        if self.is_swap_full() {
            return Err(Code::Held);
        }
        let cost = self.cost(place, batches, seen);
        let batches = batches & !cost.incompressible;
        let mut ranges = resting(batches, seen);
        shorten(&mut ranges, self.swap_room());
        let is_compressed = self.compresses();
        let advised = self.advise(place, &ranges, Advice::PageOut);
        let advised = advised.ok_or(Code::TargetNotFound)?;
        if !is_compressed {
            let mut pages = [0; 64];
            for batch in wire::bits(batches).map(|batch| batch as usize) {
                pages[batch] = seen.present[batch] & !seen.young[batch];
            }
            self.written.add(super::now(), place, &pages);
        }
        self.swap.free_bytes = self.swap.free_bytes.saturating_sub(advised.bytes);
        code_of(&advised).map(|()| cost)
    }

    fn cost(&mut self, place: Place, batches: u64, seen: &Bits) -> Cost {
        let compresses = self.compresses();
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

/// Whether the kernel compresses pages in memory on their way to swap on a disk.
fn has_zswap() -> bool {
    let parameter = Path::new("/sys/module/zswap/parameters/enabled");
    std::fs::read_to_string(parameter).is_ok_and(|text| text.trim() == "Y")
}

/// Bytes of swap that may still be filled.
fn room(total_bytes: u64, free_bytes: u64) -> u64 {
    free_bytes.saturating_sub(SWAP_LEFT_MOST.min(total_bytes / SWAP_LEFT_SHARE))
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn small_swap_is_not_full_when_a_third_of_it_is_free() {
        let mib = |mib: u64| mib << 20;
        assert_eq!(room(mib(64), mib(23)), mib(21));
        assert_eq!(room(mib(64), mib(2)), 0);
        assert_eq!(room(mib(65_536), mib(33)), mib(1));
    }
}

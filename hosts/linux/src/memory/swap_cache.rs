//! The kernel's swap cache: pages that were written to swap and are still in memory.
//!
//! Writing to zram completes at once, and frees the memory. Writing to a disk or a file completes later, and then the kernel keeps
//! the page until it needs the memory: the page is neither mapped by its program nor given back. No advice reaches such a page.
//! So each page is mapped again by reading a byte of it, which reads no disk, and paged out again: a page that is already in swap
//! is freed at once.

use std::collections::BTreeMap;

use wave_core::clock::Nanos;
use wave_memory::wire::{self, Place};

use super::Group;
use super::process::{Process, iovec};
use super::ranges::{BATCH, PAGE};

/// Least and most time until written pages are looked at. The most applies if other programs write all the time.
const WRITE_LEAST: Nanos = Nanos::from_millis(200);
const WRITE_MOST: Nanos = Nanos::from_millis(10_000);
/// Bytes that the machine may still be writing when written pages are looked at.
const WRITING_MOST: u64 = 1 << 20;
/// Number of pages read by one call, and by the first call for a strip.
const PAGES_AT_ONCE: usize = 512;
const PAGES_AT_FIRST: usize = 16;

/// Pages of a strip, a bit per page.
pub(super) type Pages = [u64; 64];

/// Bytes in the swap cache that the programs' page-outs may have left there.
#[derive(Debug, Default)]
pub(super) struct Counter {
    /// Bytes that the machine had there before: others' pages.
    others: Option<u64>,
}

impl Counter {
    /// The kernel's count: of the control groups, if all memory is theirs and they have a count; else of the machine, as far as it
    /// has grown.
    pub(super) fn count(&mut self, groups: &[Group]) -> u64 {
        let of_group = |group: &Group| match group {
            Group::Cgroup(folder) => {
                let text = std::fs::read_to_string(folder.join("memory.stat")).ok()?;
                let line = text.lines().find_map(|line| line.strip_prefix("swapcached "))?;
                line.trim().parse::<u64>().ok()
            }
            Group::Process(_) => None,
        };
        if let Some(bytes) = groups.iter().map(of_group).sum::<Option<u64>>() {
            return bytes;
        }
        let now = of_machine("SwapCached:");
        let others = self.others.map_or(now, |others| others.min(now));
        self.others = Some(others);
        now - others
    }
}

/// A figure of `/proc/meminfo`, in bytes.
fn of_machine(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    super::figures::bytes(&text, name).unwrap_or(0)
}

/// Pages on their way to a disk.
#[derive(Debug, Default)]
pub(super) struct Written {
    strips: BTreeMap<Place, (Nanos, Box<Pages>)>,
    look_at: Option<Nanos>,
}

impl Written {
    /// Adds the pages of a strip that were paged out now.
    pub(super) fn add(&mut self, now: Nanos, place: Place, pages: &Pages) {
        let (since, all) = self.strips.entry(place).or_insert((now, Box::new([0; 64])));
        *since = now;
        all.iter_mut().zip(pages).for_each(|(all, pages)| *all |= pages);
        self.look_at.get_or_insert(now + WRITE_LEAST);
    }

    /// When to call [`Written::take`] again; `None` without pages.
    pub(super) fn next_check(&self) -> Option<Nanos> {
        self.look_at
    }

    /// The pages of a strip that have probably been written; `None` if there are none yet.
    pub(super) fn take(&mut self, now: Nanos) -> Option<(Place, Box<Pages>)> {
        let (&place, &(since, _)) = self.strips.iter().min_by_key(|(_, (since, _))| *since)?;
        let age = now.since(since);
        let is_written = || of_machine("Writeback:") <= WRITING_MOST;
        if age < WRITE_LEAST || (age < WRITE_MOST && !is_written()) {
            self.look_at = Some(now.max(since) + WRITE_LEAST);
            return None;
        }
        let (_, pages) = self.strips.remove(&place)?;
        self.look_at = (!self.strips.is_empty()).then_some(now);
        Some((place, pages))
    }

    /// Leaves all pages to the kernel.
    pub(super) fn clear(&mut self) {
        *self = Written::default();
    }
}

/// Maps pages of a strip that are in the swap cache, by reading a byte of each. Returns false if that read the disk: the kernel has
/// freed the pages itself.
pub(super) fn map(process: &Process, strip: u64, pages: &Pages) -> bool {
    let addresses: Vec<u64> = addresses(strip, pages).collect();
    let before = major_faults();
    let (mut at, mut most) = (0, PAGES_AT_FIRST);
    while at < addresses.len() {
        let some = &addresses[at..addresses.len().min(at + most)];
        let from: Vec<_> = some.iter().map(|address| iovec(*address, 1)).collect();
        // An unmapped page is passed over.
        at += process.read(&from, &mut [0; PAGES_AT_ONCE][..some.len()]).max(1);
        if major_faults() > before {
            return false;
        }
        most = PAGES_AT_ONCE;
    }
    true
}

fn addresses(strip: u64, pages: &Pages) -> impl Iterator<Item = u64> {
    (0..64).flat_map(move |batch| {
        let of_page = move |page| strip + batch * BATCH + u64::from(page) * PAGE;
        wire::bits(pages[batch as usize]).map(of_page)
    })
}

/// How often this thread has waited until a page was read from a disk.
fn major_faults() -> u64 {
    // SAFETY: `usage` is valid for writes for the duration of the call, and zero is a valid value of it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage
    };
    usage.ru_majflt as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_checked_once_they_have_been_written() {
        let place = |number: u64| Place { space: 7, address: number << 24 };
        let at = Nanos::from_millis;
        let mut written = Written::default();
        assert_eq!((written.next_check(), written.take(at(0))), (None, None));
        let mut pages = [0; 64];
        pages[3] = 0b101;
        written.add(at(1_000), place(1), &pages);
        pages[3] = 0b110;
        written.add(at(1_100), place(1), &pages);
        written.add(at(9_000), place(2), &pages);
        assert_eq!(written.next_check(), Some(at(1_200)));
        assert_eq!(written.take(at(1_200)), None, "the strip was paged out again");
        // However much the machine writes.
        let (first, pages) = written.take(at(11_100)).unwrap();
        assert_eq!((first, pages[3]), (place(1), 0b111));
        assert_eq!(written.take(at(19_000)).unwrap().0, place(2));
        assert_eq!((written.next_check(), written.take(at(20_000))), (None, None));
    }
}

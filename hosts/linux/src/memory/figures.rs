//! Figures from the kernel: how much of a process is in memory, how often it waited for its pages, and how long
//! the machine or a cgroup waited for memory.

use std::path::Path;

use super::process::Process;
use crate::process::{Lifetime, text};
use crate::target::TargetError;

/// Memory of one process, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Resident bytes, private and shared, each as often as it is mapped. Each CPU adds several pages at a time to the
    /// kernel's count, so it may be off by some pages per CPU.
    pub resident_bytes: u64,
    /// The part of them that is shared memory.
    pub shared_bytes: u64,
    /// Private bytes in swap. Pages that were read back ahead of use count until they are used.
    pub swapped_bytes: u64,
    /// How often a thread of the process has waited until a page was read, since the process began.
    pub major_faults: u64,
}

impl Figures {
    /// Reads the present figures of a process.
    pub fn of(process: &Process) -> Result<Figures, TargetError> {
        let pid = process.pid();
        let read = |file| text(&format!("/proc/{pid}/{file}"));
        let texts = read("status").and_then(|status| Ok((status, read("stat")?)));
        if !process.is_alive() {
            return Err(TargetError::Ended(pid));
        }
        let unreadable = |what| TargetError::Unreadable { pid, what };
        let (status, stat) = texts.map_err(|error| unreadable(error.to_string()))?;
        let parsed = Figures::parse(&status, &stat);
        parsed.ok_or_else(|| {
            unreadable("/proc/PID/status or /proc/PID/stat lacks a field".to_owned())
        })
    }

    fn parse(status: &str, stat: &str) -> Option<Figures> {
        let bytes = |name| bytes(status, name);
        let major_faults = field(stat, 9)?;
        let (resident_bytes, swapped_bytes) = (bytes("VmRSS:")?, bytes("VmSwap:")?);
        let shared_bytes = bytes("RssShmem:")?;
        Some(Figures { resident_bytes, shared_bytes, swapped_bytes, major_faults })
    }
}

/// The major faults of a process that runs, or has ended and has not been waited for.
pub(super) fn major_faults_of((pid, started): Lifetime) -> Option<u64> {
    let stat = text(&format!("/proc/{pid}/stat")).ok()?;
    (field(&stat, 19)? == started).then(|| field(&stat, 9))?
}

/// A field of `/proc/PID/stat` after the process's name.
fn field(stat: &str, at: usize) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(at)?.parse().ok()
}

/// A process's proportional part of its memory, in bytes: memory that several processes share is divided among them. The
/// kernel walks the page table for it, in about 15 ms per GiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    pub resident_bytes: u64,
    /// The part of them that is shared memory: mapped several times by one process, it counts once.
    pub shared_bytes: u64,
    pub swapped_bytes: u64,
}

impl Part {
    pub(super) fn of(process: &Process) -> Option<Part> {
        let text = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", process.pid())).ok()?;
        process.is_alive().then(|| Part::parse(&text)).flatten()
    }

    fn parse(text: &str) -> Option<Part> {
        let bytes = |name| bytes(text, name);
        Some(Part {
            resident_bytes: bytes("Pss:")?,
            shared_bytes: bytes("Pss_Shmem:")?,
            swapped_bytes: bytes("SwapPss:")?,
        })
    }
}

/// Parses a line such as `name 12 kB`.
pub(super) fn bytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// How long threads waited for memory: PSI.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    /// Time in which at least one task waited.
    pub some: Stall,
    /// Time in which all tasks that were not idle waited.
    pub full: Stall,
}

/// A line of the kernel's pressure stall information (PSI).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stall {
    /// Share of the last ten seconds, in percent.
    pub avg10_percent: f64,
    /// Total time since the machine or the cgroup began, in microseconds.
    pub total_us: u64,
}

impl Pressure {
    /// Pressure of the machine; `None` if the kernel does not report it.
    pub fn of_machine() -> Option<Pressure> {
        Pressure::read(Path::new("/proc/pressure/memory"))
    }

    /// Pressure of a cgroup (v2), by its folder; `None` if the kernel does not report it.
    pub fn of_cgroup(folder: &Path) -> Option<Pressure> {
        Pressure::read(&folder.join("memory.pressure"))
    }

    fn read(path: &Path) -> Option<Pressure> {
        Pressure::parse(&std::fs::read_to_string(path).ok()?)
    }

    fn parse(text: &str) -> Option<Pressure> {
        let stall = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(' '));
            let (_, line) = lines.find(|(first, _)| *first == name)?;
            let field = |name: &str| {
                line.split(' ').find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
            };
            let avg10_percent = field("avg10")?.parse().ok()?;
            Some(Stall { avg10_percent, total_us: field("total")?.parse().ok()? })
        };
        Some(Pressure { some: stall("some")?, full: stall("full")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_parsed() {
        let status =
            "Name:\ta)\nVmRSS:\t     120 kB\nRssShmem:\t      40 kB\nVmSwap:\t       8 kB\n";
        let stat = "7 (a) 1 (b)) S 1 7 7 0 -1 4194304 100 0 42 9 42 58 0 0 20 0 1 0 1000 0";
        let expected = Figures {
            resident_bytes: 120 << 10,
            shared_bytes: 40 << 10,
            swapped_bytes: 8 << 10,
            major_faults: 42,
        };
        assert_eq!(Figures::parse(status, stat), Some(expected));
        // A process that is exiting has no memory.
        assert_eq!(Figures::parse("Name:\ta\n", stat), None);
        let rollup =
            "Rss:   90 kB\nPss:     60 kB\nPss_Shmem:  9 kB\nSwap:  8 kB\nSwapPss:  4 kB\n";
        let part = Part { resident_bytes: 60 << 10, shared_bytes: 9 << 10, swapped_bytes: 4 << 10 };
        assert_eq!(Part::parse(rollup), Some(part));
    }

    #[test]
    fn pressure_is_parsed() {
        let text = "some avg10=0.12 avg60=0.00 avg300=0.00 total=3156\n\
                    full avg10=0.03 avg60=0.00 avg300=0.00 total=777\n";
        let expected = Pressure {
            some: Stall { avg10_percent: 0.12, total_us: 3156 },
            full: Stall { avg10_percent: 0.03, total_us: 777 },
        };
        assert_eq!(Pressure::parse(text), Some(expected));
        assert_eq!(Pressure::parse(""), None);
        let there = Path::new("/proc/pressure/memory");
        let told = std::fs::read_to_string(there).is_ok_and(|text| !text.is_empty());
        assert_eq!(Pressure::of_machine().is_some(), told);
    }
}

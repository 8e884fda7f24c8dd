//! The mappings of a process, and which of them have pages that may be moved.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;
use std::os::fd::AsFd;
use std::sync::Mutex;

use zerocopy::FromBytes;

use super::pages::Pages;
use super::process::Process;
use super::shared::Mapped;
use crate::lock;
use crate::target::TargetError;

/// Attempts to read a process's mappings while it executes one program after another.
const TRIES: usize = 4;

/// The kind of a mapping's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Private and anonymous, for example heaps. The only kind that is scanned and moved.
    Movable,
    /// A file's pages, or a private copy of them.
    File,
    /// Shared with other processes, or meant to be, like PostgreSQL's buffers.
    Shared,
    /// Locked by the program.
    Locked,
    /// Stacks, device and frame mappings without ordinary pages, hugetlbfs, and inaccessible mappings.
    Special,
}

/// A mapped range of whole pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Area {
    /// Address of the first byte.
    pub start: u64,
    /// The first byte after it.
    pub end: u64,
    /// What backs the area, and whether it may be moved.
    pub kind: Kind,
}

/// The mappings of a process at one time, by address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Map {
    /// The mapped areas; adjacent areas of the same kind are merged.
    pub areas: Vec<Area>,
    /// Identifies the address space. It changes when the process executes another program.
    pub space: u64,
    /// Parts of shared files that are mapped.
    shared: Vec<Part>,
}

/// A mapped part of a shared file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Part {
    /// Identifies the file.
    file: u64,
    start: u64,
    end: u64,
}

impl Map {
    /// Mapped bytes of a kind, in memory or not. Shared memory that the process maps several times, as ZGC's heaps are, counts once.
    pub fn bytes(&self, kind: Kind) -> u64 {
        if kind == Kind::Shared {
            return union(self.shared.clone());
        }
        let of_kind = self.areas.iter().filter(|area| area.kind == kind);
        of_kind.map(|area| area.end - area.start).sum()
    }

    fn add_shared(&mut self, area: &Area, file: u64, offset: u64) {
        if area.kind == Kind::Shared {
            self.shared.push(Part { file, start: offset, end: offset + (area.end - area.start) });
        }
    }

    fn push(&mut self, area: Area) {
        match self.areas.last_mut() {
            Some(last) if last.end == area.start && last.kind == area.kind => last.end = area.end,
            // The iterator reports the mappings again for a thread that has its own files.
            Some(last) if area.start < last.end => {}
            _ => self.areas.push(area),
        }
    }
}

/// Bytes in any of the parts.
fn union(mut parts: Vec<Part>) -> u64 {
    parts.sort_unstable();
    let (mut bytes, mut file, mut reached) = (0, None, 0);
    for part in parts {
        if file != Some(part.file) {
            (file, reached) = (Some(part.file), 0);
        }
        bytes += part.end.saturating_sub(part.start.max(reached));
        reached = reached.max(part.end);
    }
    bytes
}

/// Reads the mappings of processes: by a BPF program, which walks no page table, or else from /proc if the kernel
/// does not support that.
#[derive(Debug)]
pub struct Areas {
    pages: Result<Mutex<Pages>, String>,
}

impl Areas {
    /// Tries the BPF program on this process, and falls back to /proc if that fails.
    pub fn open() -> Areas {
        let tried = Pages::load(&["areas"]).and_then(|pages| {
            let areas = Areas { pages: Ok(Mutex::new(pages)) };
            let ourselves = Process::ourselves().and_then(|process| areas.map(&process));
            let map = ourselves.map_err(|error| error.to_string())?;
            let here = &raw const map as u64;
            let found = map.areas.iter().any(|area| (area.start..area.end).contains(&here));
            match found {
                true => areas.pages,
                false => Err("the iterator does not find this process's own stack".to_owned()),
            }
        });
        Areas { pages: tried }
    }

    /// Finds areas by /proc only, even if the kernel offers a faster way.
    pub fn by_proc() -> Areas {
        Areas { pages: Err("not asked for".to_owned()) }
    }

    /// Why /proc is used, if it is.
    pub fn falls_back(&self) -> Option<&str> {
        self.pages.as_ref().err().map(String::as_str)
    }

    /// The present mappings of a process. Fails with `Unreadable` at the instant at which a thread other than the first
    /// executes a program: the first thread has ended then, and the kernel shows the memory only through it.
    pub fn map(&self, process: &Process) -> Result<Map, TargetError> {
        let pid = process.pid();
        let map = match &self.pages {
            Ok(pages) => by_iterator(&mut lock(pages), process),
            Err(_) => by_proc(pid),
        };
        match map {
            // If it is alive, its id was not reused up to here.
            _ if !process.is_alive() => Err(TargetError::Ended(pid)),
            Ok(map) => Ok(map),
            Err(what) => Err(TargetError::Unreadable { pid, what }),
        }
    }
}

/// Masks of the kernel's flags of mappings (VM_*).
mod flags {
    pub(super) const ACCESS: u64 = 0x7;
    pub(super) const SHARED: u64 = 0x8 | 0x80;
    pub(super) const LOCKED: u64 = 0x2000;
    /// Growing downwards, frames without pages (two kinds), devices, hugetlbfs.
    pub(super) const SPECIAL: u64 = 0x100 | 0x400 | 0x1000_0000 | 0x4000 | 0x40_0000;
}

fn kind(bits: u64, has_file: bool, has_operations: bool) -> Kind {
    if bits & flags::SPECIAL != 0 {
        Kind::Special
    } else if bits & flags::SHARED != 0 {
        Kind::Shared
    } else if bits & flags::LOCKED != 0 {
        Kind::Locked
    } else if has_file {
        Kind::File
    } else if has_operations || bits & flags::ACCESS == 0 {
        Kind::Special
    } else {
        Kind::Movable
    }
}

fn by_iterator(pages: &mut Pages, process: &Process) -> Result<Map, String> {
    let mut bytes = Vec::new();
    for _ in 0..TRIES {
        bytes.clear();
        let read = pages
            .iterate("areas", process.as_fd())
            .and_then(|mut records| records.read_to_end(&mut bytes));
        read.map_err(|error| format!("reading its mappings by the BPF iterator: {error}"))?;
        let records = bytes
            .chunks_exact(size_of::<Mapped>())
            .filter_map(|bytes| Mapped::read_from_bytes(bytes).ok());
        let mut map = Map::default();
        let mut spaces = records.clone().map(|mapped| mapped.space);
        map.space = spaces.next().ok_or("it has nothing mapped at this instant")?;
        if spaces.all(|space| space == map.space) {
            for Mapped { start, end, flags, file, offset, has_file, has_operations, .. } in records
            {
                let kind = kind(flags, has_file != 0, has_operations != 0);
                let area = Area { start, end, kind };
                map.add_shared(&area, file, offset);
                map.push(area);
            }
            return Ok(map);
        }
    }
    Err("it keeps executing other programs".to_owned())
}

fn by_proc(pid: i32) -> Result<Map, String> {
    for _ in 0..TRIES {
        let space = space_by_proc(pid)?;
        let path = format!("/proc/{pid}/smaps");
        let text = crate::process::text(&path).map_err(|error| format!("{path}: {error}"))?;
        let mut map = Map { space, ..Map::default() };
        for (area, file, offset) in parse(&text) {
            map.add_shared(&area, file, offset);
            map.push(area);
        }
        if space_by_proc(pid)? == space {
            return Ok(map);
        }
    }
    Err("it keeps executing other programs".to_owned())
}

/// An identifier of the address space: a hash of the addresses of code, stack, arguments and environment, which are
/// randomized for each program.
fn space_by_proc(pid: i32) -> Result<u64, String> {
    let path = format!("/proc/{pid}/stat");
    let text = crate::process::text(&path).map_err(|error| format!("{path}: {error}"))?;
    let (_, fields) =
        text.rsplit_once(')').ok_or_else(|| format!("{path} has no name in parentheses"))?;
    let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
    let mut hasher = DefaultHasher::new();
    for at in [23, 24, 25, 42, 43, 44, 45, 46, 47, 48] {
        let field: u64 = fields.get(at).and_then(|field| field.parse().ok()).unwrap_or(0);
        field.hash(&mut hasher);
    }
    Ok(hasher.finish())
}

/// Parses the areas of an smaps file: each has a line `start-end access offset device inode path`, and among the lines
/// that follow, one with two-letter flags. With each comes an identifier of its file, and the position in it.
fn parse(text: &str) -> impl Iterator<Item = (Area, u64, u64)> {
    let mut header: Option<Vec<&str>> = None;
    text.lines().filter_map(move |line| {
        if let Some(names) = line.strip_prefix("VmFlags:") {
            let words: Vec<&str> = header.take()?;
            let &[range, _, offset, device, inode, ..] = words.as_slice() else { return None };
            let (start, end) = range.split_once('-')?;
            let path = words.get(5);
            let start = u64::from_str_radix(start, 16).ok()?;
            let end = u64::from_str_radix(end, 16).ok()?;
            let bits = names.split_ascii_whitespace().map(flag).fold(0, |all, one| all | one);
            let has_file = path.is_some_and(|path| path.starts_with('/'));
            // For example [vdso].
            let has_operations = path.is_some_and(|path| path.starts_with("[v"));
            // Pages that the kernel maps into every process.
            if start > i64::MAX as u64 {
                return None;
            }
            let area = Area { start, end, kind: kind(bits, has_file, has_operations) };
            let mut hasher = DefaultHasher::new();
            (device, inode).hash(&mut hasher);
            let offset = u64::from_str_radix(offset, 16).ok()?;
            return Some((area, hasher.finish(), offset));
        }
        let words: Vec<&str> = line.split_ascii_whitespace().take(6).collect();
        if words.first().is_some_and(|word| word.contains('-')) {
            header = Some(words);
        }
        None
    })
}

fn flag(name: &str) -> u64 {
    match name {
        "rd" => 1,
        "wr" => 2,
        "ex" => 4,
        "sh" => 8,
        "ms" => 0x80,
        "gd" => 0x100,
        "pf" => 0x400,
        "lo" => 0x2000,
        "io" => 0x4000,
        "ht" => 0x40_0000,
        "mm" => 0x1000_0000,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_that_is_mapped_several_times_counts_once() {
        let mut map = Map::default();
        let mut add = |file, offset, bytes: u64| {
            let area = Area { start: 4096, end: 4096 + bytes, kind: Kind::Shared };
            map.add_shared(&area, file, offset);
        };
        // Three views of one file, one of which is in two pieces that overlap, and another file.
        add(7, 0, 4096);
        add(7, 0, 4096);
        add(8, 0, 4096);
        add(7, 0, 2048);
        add(7, 1024, 4096);
        assert_eq!(map.bytes(Kind::Shared), 4096 + 1024 + 4096);
    }
}

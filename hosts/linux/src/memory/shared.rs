//! What this process shares with the BPF programs of `bpf/pages.bpf.c`: `build.rs` writes `shared/pages.h` of it for C.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Most strips in one call.
pub const STRIPS_MAX: usize = 256;
/// A strip is 16 MiB: 8 units, which one page table or one huge page each maps, of 8 batches of 64 pages.
pub const UNITS: usize = 8;
/// Number of batches in a strip.
pub const BATCHES: usize = 64;
/// Entries of a page table.
pub const TABLE_ENTRIES: usize = 512;
/// Words that make a page unlike any other.
pub const MARK_WORDS: usize = 4;

/// Results of a program's call.
pub const NOT_RUN: u32 = 0;
pub const DONE: u32 = 1;
pub const CHANGED: u32 = 2;

/// Which pages of 16 MiB were accessed, as the page table says: 64 batches of 64 pages, a bit each, lowest
/// first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, IntoBytes)]
#[repr(C)]
pub struct Strip {
    /// Pages that were accessed since they were cleared.
    pub young: [u64; BATCHES],
    /// Pages that are in memory.
    pub present: [u64; BATCHES],
    /// Units of 2 MiB that are one huge page, a bit each: all their pages are alike.
    pub huge: u64,
}

/// Requests to the BPF programs, and their answers. Valid for any bytes.
#[derive(FromBytes, IntoBytes)]
#[repr(C)]
pub struct Exchange {
    /// Where the kernel maps all memory.
    pub direct_map: u64,
    /// Which bits of an entry are its frame's address.
    pub frames: u64,
    /// Levels of the page table.
    pub levels: u32,
    pub state: u32,
    /// The address space to read: the process, and which of its address spaces.
    pub space: u64,
    pub pid: i32,
    /// Number of strips to read.
    pub count: u32,
    /// What is in the page at `marked` is the complement of `mark`: so there is no other page like it.
    pub marked: u64,
    pub mark: [u64; MARK_WORDS],
    /// The strip that is being read: its units' entries before and after, and one's pages.
    units: [u64; UNITS],
    after: [u64; UNITS],
    table: [u64; TABLE_ENTRIES],
    pub addresses: [u64; STRIPS_MAX],
    pub strips: [Strip; STRIPS_MAX],
}

/// Something mapped; written by `areas`.
#[derive(Clone, Copy, FromBytes, IntoBytes)]
#[repr(C)]
pub struct Mapped {
    pub start: u64,
    pub end: u64,
    pub flags: u64,
    pub space: u64,
    pub has_file: u32,
    pub has_operations: u32,
}

//! Structures shared with the BPF programs of `bpf/pages.bpf.c`. `build.rs` generates `shared/pages.h` from them for C.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Most strips in one call.
pub const STRIPS_MAX: usize = 256;
/// A strip of 16 MiB has 8 units. One page table or one huge page maps a unit, which has 8 batches of 64 pages.
pub const UNITS: usize = 8;
/// Number of batches in a strip.
pub const BATCHES: usize = 64;
/// Entries of a page table.
pub const TABLE_ENTRIES: usize = 512;
/// Number of words that make a page unique.
pub const MARK_WORDS: usize = 4;

/// What a call reads: the bits of strips, or which strips have a page table.
pub const BITS: u32 = 0;
pub const TABLES: u32 = 1;

/// Results of a program's call.
pub const NOT_RUN: u32 = 0;
pub const DONE: u32 = 1;
pub const CHANGED: u32 = 2;

/// Page table bits of a strip of 16 MiB: 64 batches of 64 pages, a bit per page, the lowest page in the lowest
/// bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, IntoBytes)]
#[repr(C)]
pub struct Strip {
    /// Pages that were accessed since they were cleared.
    pub young: [u64; BATCHES],
    /// Pages that are in memory.
    pub present: [u64; BATCHES],
    /// Units of 2 MiB that are one huge page, a bit per unit: all pages of such a unit have the same bits.
    pub huge: u64,
}

/// Requests to the BPF programs, and their answers. Valid for any bytes.
#[derive(FromBytes, IntoBytes)]
#[repr(C)]
pub struct Exchange {
    /// Address at which the kernel maps all memory.
    pub direct_map: u64,
    /// Mask of an entry's bits that hold the frame's address.
    pub frames: u64,
    /// Levels of the page table.
    pub levels: u32,
    pub state: u32,
    /// The address space to read: the process, and which of its address spaces.
    pub space: u64,
    pub pid: i32,
    /// Number of strips to read, or of GiBs found.
    pub count: u32,
    pub wanted: u32,
    _reserved: u32,
    /// The range in which page tables are looked for. A call moves the start to where the next one goes on.
    pub start: u64,
    pub end: u64,
    /// Physical address of a page whose contents are the complement of `mark`, so that no other page is like it.
    pub marked: u64,
    pub mark: [u64; MARK_WORDS],
    /// Scratch space for the strip being read: the units' entries before and after, and one unit's pages.
    units: [u64; UNITS],
    after: [u64; UNITS],
    table: [u64; TABLE_ENTRIES],
    /// Strips to read, or GiBs found.
    pub addresses: [u64; STRIPS_MAX],
    /// Strips of each GiB that have a page table or a huge page, a bit each.
    pub tables: [u64; STRIPS_MAX],
    pub strips: [Strip; STRIPS_MAX],
}

/// A mapping, as the program `areas` writes it.
#[derive(Clone, Copy, FromBytes, IntoBytes)]
#[repr(C)]
pub struct Mapped {
    pub start: u64,
    pub end: u64,
    pub flags: u64,
    pub space: u64,
    /// An identifier of the mapped file, and the position in it in bytes.
    pub file: u64,
    pub offset: u64,
    pub has_file: u32,
    pub has_operations: u32,
}

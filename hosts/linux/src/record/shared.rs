//! Structures shared with the BPF programs of `bpf/record.bpf.c`. `build.rs` generates `shared/record.h` from them for C.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Bytes of a thread's name, its terminating zero included.
pub const NAME_BYTES: usize = 16;

/// Every thread of the machine is recorded.
pub const SCOPE_ALL: u32 = 0;
/// A process and its descendants are recorded.
pub const SCOPE_TREE: u32 = 1;
/// Processes that the recorder's thread starts are recorded.
pub const SCOPE_CHILDREN: u32 = 2;

/// Settings of the recording, written before the programs are loaded.
#[derive(Clone, Copy, Immutable, IntoBytes)]
#[repr(C)]
pub struct Settings {
    pub scope: u32,
    /// For SCOPE_TREE: the process's id in the recorder's namespace.
    pub root: u32,
}

/// Counts of losses, and whether anything was found.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes)]
#[repr(C)]
pub struct Counts {
    pub dropped: u64,
    pub unfollowed: u64,
    pub followed: u64,
    /// The recorder's own process and thread, by their ids in the initial namespace.
    pub recorder: u64,
}

pub const SEEN: u8 = 1;
pub const MADE: u8 = 2;
pub const WAKING: u8 = 3;
pub const WAKEUP: u8 = 4;
pub const SWITCH: u8 = 5;
pub const EXIT: u8 = 6;

/// States of a thread after it left its CPU, or when it was first seen.
pub const BLOCKED: u8 = 0;
pub const RUNNABLE: u8 = 1;
pub const RUNNING: u8 = 2;
pub const DEAD: u8 = 3;

/// A thread's identity; a reused id is another thread.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, FromBytes, Immutable, IntoBytes,
)]
#[repr(C)]
pub struct Who {
    /// Id of the thread in the kernel.
    pub pid: u32,
    /// A part of the thread's start time.
    pub born: u32,
}

/// An event without a name.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
#[repr(C)]
pub struct Plain {
    pub time_ns: u64,
    /// Subject of the event. SWITCH: the thread that left, or none.
    pub who: Who,
    /// WAKING, MADE: the thread that did it. SWITCH: the thread that came, or none.
    pub other: Who,
    pub cpu: u16,
    pub kind: u8,
    pub doing: u8,
    /// SEEN, MADE, EXIT: the subject's process. SWITCH: the process of an unrecorded thread that came; 0 if none came.
    pub process: u32,
}

/// SEEN, MADE, EXIT: an event with a name.
#[derive(IntoBytes)]
#[repr(C)]
pub struct WithName {
    event: Plain,
    name: [u8; NAME_BYTES],
}

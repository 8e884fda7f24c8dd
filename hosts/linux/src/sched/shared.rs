//! Structures shared with the BPF program `bpf/sched.bpf.c`. `build.rs` generates `shared/sched.h` from them for C.
//!
//! A structure of plain integers is handed over before anything runs, or with a call. Structures that both sides access
//! while the program runs consist of atomics. `IntoBytes` refuses padding, so that C has the same layout.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Most CPUs. A power of two.
pub const CPUS_MAX: usize = 1024;
/// Most enclaves at a time. A power of two.
pub const ENCLAVES_MAX: usize = 8;
/// Number of windows of each enclave.
pub const WINDOWS: usize = 4;
/// Outcome codes below this have a counter, among them all that the program answers (`answers.rs`).
pub const CODES: usize = 19;
/// In `enclave_of_task`: the task joins no enclave.
pub const NO_ENCLAVE: u32 = 0xffff_ffff;

/// Request on an enclave's bell: ring the agent.
pub const BELL_AGENT: u64 = 0;
/// Request on an enclave's bell: look at `control`.
pub const BELL_CONTROL: u64 = 1;

/// Places of the parts of an enclave's window, in lines from its start; rings have `1 << shift` lines each.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
#[repr(C)]
pub struct Places {
    pub patience_ns: u64,
    /// The enclave's cores are the `cores` ones from `first_core` on.
    pub cores: u32,
    pub first_core: u32,
    pub agent_parked: u32,
    pub preempt: u32,
    pub core_status: u32,
    pub messages_first: u32,
    pub messages_credit: u32,
    pub messages_shift: u32,
    pub decisions_first: u32,
    pub decisions_credit: u32,
    pub decisions_shift: u32,
    /// Whether the rings of decisions are in a device's memory (see `far_rings`).
    pub decisions_far: u16,
    /// Whether reading the clock orders memory; see `fence()`.
    pub clock_is_fence: u16,
    /// The context of each CPU, whose queue of messages it uses: the core's own, or one for a CPU outside the enclave.
    pub context_of_cpu: [u16; CPUS_MAX],
}

/// Settings that the loader writes before anything runs.
#[derive(FromBytes, Immutable, IntoBytes)]
#[repr(C)]
pub struct AllPlaces {
    pub round_ns: u64,
    pub enclaves: u32,
    pub all_cores: u32,
    pub subjects: u32,
    pub cpus_possible: u32,
    /// Whether the program schedules all threads of the machine, rather than only those that joined.
    pub everything: u32,
    pub unused: u32,
    pub places: [Places; ENCLAVES_MAX],
    /// The core of each CPU; values from `all_cores` on mean none.
    pub core_of_cpu: [u16; CPUS_MAX],
    pub cpu_of_core: [u16; CPUS_MAX],
    pub enclave_of_core: [u16; CPUS_MAX],
}

/// The BPF program's record of an enclave. Only the loader and the program see it.
#[derive(FromBytes, IntoBytes)]
#[repr(C)]
pub struct Control {
    pub agent_decides: AtomicU64,
    /// Bumped with each change of window; `windows[epoch % WINDOWS]` is the current one.
    pub epoch: AtomicU64,
    /// When the control thread last looked, in ns of CLOCK_MONOTONIC.
    pub beat: AtomicU64,
    /// A message or outcome to the agent was lost.
    pub lost: AtomicU64,
    /// The agent violated the protocol.
    pub fault: AtomicU64,
    /// Counts the timer's rounds.
    pub tick: AtomicU64,
    /// Number of threads that joined when no slot was left.
    pub without_slot: AtomicU64,
    pub fallbacks: AtomicU64,
    /// Number of threads that have a slot.
    held: AtomicU64,
    /// The timer's last round found a thread in the FIFO.
    fifo_waits: AtomicU64,
    unused: [AtomicU64; 6],
}

/// The BPF program's record of the thread in a slot.
#[derive(FromBytes, IntoBytes)]
#[repr(C)]
pub struct Thread {
    /// `sequence | state << 32 | core << 48`, as in a snapshot.
    pub word: AtomicU64,
    pub generation: AtomicU32,
    pub pid: AtomicU32,
    started_ns: AtomicU64,
    ran_ns: AtomicU64,
    early: AtomicU32,
    fresh: AtomicU8,
    yielded: AtomicU8,
    in_fifo: AtomicU8,
    pub enclave: AtomicU8,
    /// The task's address while it owns the slot.
    task: AtomicU64,
    /// The slice of the thread's next run, from its decision; 0 means no limit.
    slice: AtomicU64,
    /// The thread left because of its affinity, and its slot has been unused since.
    narrow: AtomicU8,
    /// A move failed although the thread was in its DSQ.
    stuck: AtomicU8,
    unused: [AtomicU8; 6],
}

/// The BPF program's record of a core.
#[derive(FromBytes, IntoBytes)]
#[repr(C)]
pub struct Core {
    pub epoch: AtomicU64,
    consumed: AtomicU64,
    credited: AtomicU64,
    /// `run << 32 | asks << 24 | txn` of the last answer, for snapshots.
    pub record: AtomicU64,
    parked: AtomicU32,
    pub offline: AtomicU32,
    scanned: AtomicU64,
    pub fallback_switches: AtomicU64,
    /// How often each code was answered.
    pub outcomes: [AtomicU64; CODES],
    /// Number of looks at a decision that came before its thread was in its DSQ.
    pub early: AtomicU64,
    /// A CPU looks at the core's queue of decisions: the core's own, or another in its place.
    claimed: AtomicU64,
    /// The timer's last round found a thread that waits behind the core's run, without a decision.
    local_waits: AtomicU64,
    unused: [AtomicU64; 3],
}

/// Argument of `wave_kick`, which the loader calls when an agent rings a core's doorbell.
#[derive(Clone, Copy, FromBytes, IntoBytes)]
#[repr(C)]
pub struct Kick {
    pub core: u32,
}

/// Argument of `wave_take`, which gives a thread that waits for a decision to the host, for one run.
#[derive(Clone, Copy, FromBytes, IntoBytes)]
#[repr(C)]
pub struct Take {
    pub slot: u32,
}

/// Why the kernel turned the program out.
#[derive(FromBytes, IntoBytes)]
#[repr(C)]
pub struct TurnedOut {
    pub reason: [u8; 128],
    pub message: [u8; 1024],
}

/// Payload of an entry in a queue of messages.
#[derive(Clone, Copy, FromBytes, IntoBytes)]
#[repr(C)]
pub struct Entry {
    pub words: [u64; 6],
}

/// Operations of [`Step`].
pub const SEND: u32 = 0;
pub const DISPATCH: u32 = 1;
pub const REFUSE: u32 = 2;

/// Argument of `wave_step` (`bpf/model.bpf.c`, which only a test loads).
#[derive(Clone, Copy, FromBytes, IntoBytes)]
#[repr(C)]
pub struct Step {
    pub operation: u32,
    pub at: u32,
    pub tag: u64,
    pub entry: Entry,
}

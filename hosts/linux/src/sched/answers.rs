//! The outcome codes that the BPF program answers.

use wave_core::outcome::Code;

/// The codes that the program answers. `build.rs` defines only these names for it, so that it cannot answer others; a
/// test in the virtual machine provokes each answer.
pub const ANSWERS: [Code; 12] = [
    Code::Complete,
    Code::TargetOnCpu,
    Code::TargetStale,
    Code::TargetNotFound,
    Code::TargetNotRunnable,
    Code::CpuOffline,
    Code::CpuUnavailable,
    Code::InvalidFlags,
    Code::NotPermitted,
    Code::UnsupportedVersion,
    Code::Affinity,
    Code::Unsupported,
];

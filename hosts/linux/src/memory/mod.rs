//! Memory tiering of other processes: what a process has mapped ([`Areas`]), which of its pages were
//! accessed ([`AccessBits`]), and moves of its pages to swap and back ([`advise()`]); swap, where the machine has
//! none ([`Swap`]). Decides nothing.
//!
//! Nothing here changes what a process computes: bits are read and cleared, and pages are moved by
//! advice that the kernel is free to pass over. A process is held by a descriptor of its own, so that its number
//! is never another's, and an address space is named, so that a program which executes another is
//! noticed.

mod advise;
mod areas;
mod bits;
mod figures;
mod own_swap;
mod pages;
mod pattern;
mod process;
mod swap;

pub use crate::target::{Group, TargetError};
pub use advise::{Advice, AdviseError, Advised, advise};
pub use areas::{Area, Areas, Kind, Map};
pub use bits::{AccessBits, Backend, BitsError, STRIP_BYTES, Strip};
pub use figures::{Figures, Pressure, Stall};
pub use own_swap::{Swap, SwapError};
pub use process::{Process, processes_of};
pub use swap::{SwapDevice, SwapKind, SwapState, Zram, swap_state};

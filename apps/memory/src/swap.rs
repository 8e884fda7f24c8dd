//! Swap that a run sets up for itself.

use wave_linux::memory::{Swap, SwapError};

use wave_scenario::SwapOn;

/// Sets up this many bytes of swap, until the result is dropped.
///
/// # Errors
/// Setting it up is not permitted, there is swap already, or this machine has no such swap.
pub fn set_up(on: SwapOn, bytes: u64) -> Result<Swap, SwapError> {
    match on {
        SwapOn::Zram => Swap::on_zram(bytes),
        SwapOn::File => Swap::in_own_file(bytes),
    }
}

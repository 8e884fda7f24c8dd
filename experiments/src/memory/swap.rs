//! Swap that a run sets up for itself.

use serde::{Deserialize, Serialize};
use wave_linux::memory::{Swap, SwapError};

#[derive(Clone, Copy, Debug, Eq, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SwapOn {
    Zram,
    /// A file, in a folder that only root can enter.
    File,
}

impl SwapOn {
    /// Name in scenario files and in output.
    pub fn name(self) -> &'static str {
        match self {
            SwapOn::Zram => "zram",
            SwapOn::File => "file",
        }
    }

    /// Sets up this many bytes of swap, until the result is dropped.
    ///
    /// # Errors
    /// Setting it up is not permitted, there is swap already, or this machine has no such swap.
    pub fn set_up(self, bytes: u64) -> Result<Swap, SwapError> {
        match self {
            SwapOn::Zram => Swap::on_zram(bytes),
            SwapOn::File => Swap::in_own_file(bytes),
        }
    }
}

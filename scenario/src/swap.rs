//! Swap that a run sets up for itself.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Eq, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SwapOn {
    Zram,
    // In a folder that only root can enter.
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
}

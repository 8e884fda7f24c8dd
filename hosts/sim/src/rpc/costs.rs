//! The costs of an RPC stack's own work, each figure with its source.

use serde::Deserialize;

use crate::machine::Figure;

const COSTS: &str = include_str!("../../data/rpc.toml");

/// An RPC stack on one kind of core.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StackCosts {
    /// Cores that process RPCs in parallel (a count).
    pub cores: Figure,
    /// From a request's arrival until it can be steered.
    pub request: Figure,
    /// From a reply's arrival at the stack until it leaves.
    pub reply: Figure,
    /// Choosing a worker, on the one core that steers.
    pub steer: Figure,
    /// Cost of a note for a scheduler on the same side as the stack.
    pub note: Figure,
}

impl StackCosts {
    /// Every figure by its name.
    pub fn all(&self) -> [(&'static str, &Figure); 5] {
        [
            ("cores", &self.cores),
            ("request", &self.request),
            ("reply", &self.reply),
            ("steer", &self.steer),
            ("note", &self.note),
        ]
    }
}

/// The words that a scheduler loads if the stack is on the other side of the link.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcrossCosts {
    /// Words of a request's header (a count).
    pub header_words: Figure,
    /// Words that hold the SLO (a count).
    pub slo_words: Figure,
}

/// Costs of RPC stacks, by the place where they run.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RpcCosts {
    /// Costs of a stack on the host.
    pub host: StackCosts,
    /// Costs of a stack on the NIC.
    pub nic: StackCosts,
    /// Costs between host and NIC.
    pub across: AcrossCosts,
}

impl RpcCosts {
    /// The costs that come with this crate.
    pub fn builtin() -> RpcCosts {
        RpcCosts::parse(COSTS).expect("the file is tested")
    }

    /// The text of the file that comes with this crate.
    pub fn builtin_text() -> &'static str {
        COSTS
    }

    /// Reads and checks the text of a cost file.
    pub fn parse(text: &str) -> Result<RpcCosts, toml::de::Error> {
        toml::from_str(text)
    }
}

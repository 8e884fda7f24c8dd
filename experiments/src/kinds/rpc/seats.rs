//! Cores of each variant: the host's for its workers, and the CPUs of its agents.

use crate::ground::seating::{self, Seating};
use crate::kinds::rpc::{Rpc, Stack};

/// The quantity that is equal in all variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Equal {
    /// The host's cores: anything on the host besides workers takes some of them.
    Cores,
    /// The number of workers, if there are too few CPUs for equal cores.
    Workers,
}

impl Equal {
    /// The equality that `cpus` CPUs allow.
    pub fn of(scenario: &Rpc, cpus: usize) -> Equal {
        let cores = scenario.host.cores as usize;
        let agents = scenario.variants.iter().map(|stack| stack.placement.agents()).max();
        match cores > 1 && cpus > cores + agents.unwrap_or(0) {
            true => Equal::Cores,
            false => Equal::Workers,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Equal::Cores => "cores",
            Equal::Workers => "workers",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seats {
    pub seating: Seating,
    /// Cores of the host: those of the workers, and of agents on the host.
    pub host_cores: u32,
    pub agent_cores: u32,
}

impl Seats {
    pub fn new(scenario: &Rpc, stack: &Stack, equal: Equal, cpus: &[usize]) -> Seats {
        let (agents, taken) = (stack.placement.agents(), stack.placement.cores_taken());
        let workers = match equal {
            Equal::Cores => scenario.host.cores - taken,
            Equal::Workers => scenario.host.cores,
        };
        Seats {
            seating: seating::seat(cpus, workers as usize, agents),
            host_cores: workers + taken,
            agent_cores: agents as u32 - taken,
        }
    }
}

/// The variant that is the same system as `stack` under another name, if there is one: with equal workers, an agent on the host
/// equals an offloaded one over the same link.
pub fn twin<'a>(scenario: &'a Rpc, stack: &Stack, equal: Equal) -> Option<&'a Stack> {
    use super::RpcPlacement::{OffloadAll, OnhostAll};
    let is_same = |other: &&Stack| {
        (other.placement, &other.policy, &other.steer, &other.link)
            == (OffloadAll, &stack.policy, &stack.steer, &stack.link)
    };
    let may_have = equal == Equal::Workers && stack.placement == OnhostAll;
    scenario.variants.iter().find(|other| may_have && is_same(other))
}

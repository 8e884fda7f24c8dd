//! How long things may take, from the costs of link and machine; and what a fault excuses.

use wave_core::agent::RESYNC_PATIENCE;
use wave_core::clock::Nanos;
use wave_core::order::GAP_MAX;

use super::faults::Fault;
use super::plan::{Injection, RUN_MAX};
use crate::enclave::Setup;

/// Bounds of one enclave.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// How long a core may be idle beside a waiting thread while nothing is wrong.
    pub idle_max: Nanos,
    /// The same while something is wrong: until the fallback or another agent decides.
    pub recovery_max: Nanos,
    /// How long a new agent needs until it knows everything, and cores listen to it.
    settle: Nanos,
    patience: Nanos,
}

impl Bounds {
    /// Of an enclave with this setup, whose link may stall for `stall`.
    pub fn of(setup: &Setup, stall: Nanos) -> Bounds {
        let (config, costs, machine) = (&setup.config, &setup.costs, &setup.machine);
        // The dearest way of an entry, across and back, with what it takes to be looked at.
        let reads = 8.0 * costs.host_read.ns;
        let copies = 4.0 * (1.5 * costs.dma_flight.ns + costs.dma_submit.ns);
        let kick = costs.kick_send.ns + costs.kick_flight.ns + costs.kick_receive.ns;
        let switch = machine.switch_before.value + machine.switch_after.value;
        let crossing = reads + copies + kick + switch + 2.0 * costs.posted_flight.ns;
        // A thread that was bound to a busy core waits for the runs before it.
        let chain = (f64::from(config.prestage) + 2.0) * (RUN_MAX.0 as f64 + crossing);
        // The agent serves every context, and each core's decision, before it comes back to one.
        let far = costs.host_read.ns + costs.agent_access_uncached.ns * 8.0 + 2.0 * copies;
        let turn = machine.agent_message.value + machine.agent_decision.value + kick + far;
        let round = f64::from(config.cores + config.contexts) * turn;
        let idle_max = Nanos((chain + 3.0 * round) as u64) + config.spin;
        let settle = GAP_MAX + RESYNC_PATIENCE + idle_max + idle_max;
        // The watchdog looks four times as often as its patience, twice before it is sure.
        let patience = Nanos(config.patience.0 * 7 / 4);
        Bounds { idle_max, recovery_max: patience + settle + stall, settle, patience }
    }

    /// What a new agent excuses.
    pub fn turn(&self, now: Nanos) -> Excuses {
        let until = now + self.settle;
        Excuses { slow: until, loss: Nanos(0), resync: until }
    }

    /// What messages excuse that found no room.
    pub fn overflow(&self, now: Nanos) -> Excuses {
        let until = now + self.patience + self.settle;
        Excuses { slow: until, loss: until, resync: until }
    }

    /// What a fault excuses that begins now.
    pub fn excuses(&self, now: Nanos, injection: &Injection) -> Excuses {
        let end = now + injection.lasts;
        let (settled, found) = (end + self.settle, end + self.patience + self.settle);
        let none = Nanos(0);
        match injection.fault {
            Fault::LostKick | Fault::AgentStop | Fault::Hostile => {
                Excuses { slow: found, loss: found, resync: found }
            }
            // Nobody waits as long for a kick, or for the agent, that the watchdog would bark.
            Fault::LateKick => Excuses { slow: end + self.patience, loss: none, resync: none },
            Fault::AgentContinue | Fault::LinkStall => {
                Excuses { slow: settled, loss: none, resync: settled }
            }
            Fault::AgentCrash | Fault::AgentRestart => {
                Excuses { slow: found, loss: found, resync: found }
            }
            Fault::Replacement => Excuses { slow: settled, loss: none, resync: settled },
            Fault::FullQueue | Fault::Reordered | Fault::ClockSkew | Fault::CoreOffline => {
                Excuses::default()
            }
        }
    }
}

/// Until when what may be slow, lost or asked for again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Excuses {
    /// Decisions come late.
    pub slow: Nanos,
    /// The agent is turned out.
    pub loss: Nanos,
    /// The agent asks for a snapshot.
    pub resync: Nanos,
}

impl Excuses {
    /// Adds others.
    pub fn add(&mut self, more: Excuses) {
        self.slow = self.slow.max(more.slow);
        self.loss = self.loss.max(more.loss);
        self.resync = self.resync.max(more.resync);
    }

    /// From when on nothing is excused.
    pub fn end(&self) -> Nanos {
        self.slow.max(self.loss).max(self.resync)
    }
}

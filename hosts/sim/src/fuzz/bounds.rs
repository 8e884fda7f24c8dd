//! Bounds on delays, from the costs of link and machine; and the excuses of a fault.

use wave_core::agent::RESYNC_PATIENCE;
use wave_core::clock::Nanos;
use wave_core::link::{Home, Transport};
use wave_core::order::GAP_MAX;

use super::faults::Fault;
use super::plan::Injection;
use crate::enclave::Setup;

/// Bounds that hold for one enclave.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// How long a core may be idle while a thread waits, without a fault.
    pub idle_max: Nanos,
    /// How much longer a core may be idle then, because the policy says that it idles on purpose.
    pub on_purpose: Nanos,
    /// How long a core may be idle while a thread waits under a fault, with one agent: until the watchdog
    /// turns it out, and the fallback decides.
    pub recovery_max: Nanos,
    /// How much longer than its slice a run may be.
    pub late_max: Nanos,
    /// How long a new agent needs until it knows the host's state, and cores take its decisions.
    settle: Nanos,
    patience: Nanos,
}

impl Bounds {
    /// Bounds of an enclave with this setup, whose link may stall for `stall`, in which a run takes up to `run_max`, and whose
    /// policy idles `on_purpose` ([`wave_core::policy::Policy::idles_for`]).
    pub fn of(setup: &Setup, stall: Nanos, run_max: Nanos, on_purpose: Nanos) -> Bounds {
        let (config, costs, machine) = (&setup.config, &setup.costs, &setup.machine);
        let round_trip =
            costs.host_read.ns.max(2.0 * costs.posted_flight.ns + costs.line_transfer.ns);
        let copy = costs.dma_submit.ns + 1.5 * costs.dma_flight.ns;
        let kick = costs.kick_send.ns + costs.kick_flight.ns + costs.kick_receive.ns;
        // From host memory, the agent loads through its copy engine: the lap word, then the line.
        let is_pulled = config.messages.transport == Transport::Mmio
            && config.messages.home == Home::Host
            && !costs.coherent;
        let load = if is_pulled {
            2.0 * costs.dma_flight.ns
        } else {
            8.0 * costs.agent_access_uncached.ns.max(costs.line_transfer.ns / 8.0)
        };
        // One round of the agent's loop: an entry of every context, a decision for every core.
        let contexts = f64::from(config.cores + config.contexts);
        let round = contexts * (3.0 * load + machine.agent_message.value)
            + f64::from(config.cores) * (machine.agent_decision.value + 2.0 * copy + kick);
        // A core's path from one thread to the next: message, two looks at decisions, word by word.
        let write = 8.0 * costs.host_write.ns + costs.line_drain.ns + costs.flush.ns;
        let switch = machine.switch_before.value + machine.switch_after.value;
        let turn = run_max.0 as f64 + switch + 2.0 * write + 14.0 * round_trip + 2.0 * copy + kick;
        // A thread that is prestaged for a busy core waits for the runs before it.
        let runs = f64::from(config.prestage) + 2.0;
        let idle_max = Nanos((4.0 * round + runs * turn) as u64) + config.spin;
        // The core may be taking a kick when its timer expires.
        let interrupts = machine.timer_receive.value + 2.0 * (costs.kick_receive.ns + round_trip);
        let late_max = machine.timer_late.nanos() + Nanos(interrupts as u64);
        let settle = GAP_MAX + RESYNC_PATIENCE + idle_max + idle_max;
        // The watchdog looks four times per patience: one look until it knows that the core is idle,
        // one until it has found the thread, and one that comes too late.
        let patience = Nanos(config.patience.0 * 7 / 4);
        let recovery_max = patience + idle_max + stall;
        Bounds { idle_max, on_purpose, recovery_max, late_max, settle, patience }
    }

    /// The excuses of a new agent.
    pub fn turn(&self, now: Nanos) -> Excuses {
        let until = now + self.settle;
        Excuses { slow: until, loss: Nanos(0), resync: until }
    }

    /// The excuses of messages that found no room.
    pub fn overflow(&self, now: Nanos) -> Excuses {
        let until = now + self.patience + self.settle;
        Excuses { slow: until, loss: until, resync: until }
    }

    /// The excuses of a fault that begins now.
    pub fn excuses(&self, now: Nanos, injection: &Injection) -> Excuses {
        let end = now + injection.lasts;
        let (settled, found) = (end + self.settle, end + self.patience + self.settle);
        let none = Nanos(0);
        match injection.fault {
            Fault::LostKick | Fault::AgentStop | Fault::Hostile => {
                Excuses { slow: found, loss: found, resync: found }
            }
            // No wait for a kick, or for the agent, is long enough to trigger the watchdog.
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

/// What a fault excuses, each until a time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Excuses {
    /// Decisions may come late until this time.
    pub slow: Nanos,
    /// The agent may be turned out until this time.
    pub loss: Nanos,
    /// The agent may ask for a snapshot until this time.
    pub resync: Nanos,
}

impl Excuses {
    /// Takes the later of both times for each excuse.
    pub fn add(&mut self, more: Excuses) {
        self.slow = self.slow.max(more.slow);
        self.loss = self.loss.max(more.loss);
        self.resync = self.resync.max(more.resync);
    }

    /// The time from which nothing is excused.
    pub fn end(&self) -> Nanos {
        self.slow.max(self.loss).max(self.resync)
    }
}

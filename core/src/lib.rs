//! The offload core: the protocol between host and agent.
//!
//! Knows queues, messages, transactions, outcomes, the host's side of a switch and the agent's
//! loop. Knows nothing of operating systems, of a particular interconnect or of what is being
//! decided; those are [`link`] implementations, hosts and subsystems. `no_std` with `alloc`.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod agent;
pub mod backlog;
pub mod brain;
pub mod clock;
pub mod control;
pub mod cores;
pub mod dma;
pub mod endpoint;
pub mod extent;
pub mod host;
pub mod layout;
pub mod link;
pub mod log;
pub mod message;
pub mod modelled;
pub mod note;
pub mod order;
pub mod outcome;
pub mod park;
pub mod planted;
pub mod policy;
pub mod queue;
pub mod replay;
pub mod settings;
pub mod snapshot;
pub mod subsystem;
pub mod waiting;
pub mod watchdog;

//! A subsystem of your own: which request a disk's arm serves next.
//!
//! A request comes for a track of the disk and waits. A free arm (a core of the enclave) seeks to the track of the request that
//! the agent chose, and serves it. [`SUBSYSTEM`] is all that the rest of Wave knows of it: one line registers it in an agent
//! (`src/main.rs`) and in a laboratory (`examples/lab.rs`).

#![forbid(unsafe_code)]

pub mod disk;
pub mod policies;
pub mod wire;

use wave_core::subsystem::{Subsystem, SubsystemId};

/// The subsystem's descriptor, for agents and laboratories to register.
pub static SUBSYSTEM: Subsystem = Subsystem {
    id: SubsystemId::new(SubsystemId::OUTSIDE + 7),
    name: "disk",
    about: "which request a disk's arm serves next",
    policies: &policies::KNOWN,
    make: Some(policies::by_name),
    show: wire::SHOW,
    model: Some(|setup| Box::new(disk::Disk::new(setup))),
};

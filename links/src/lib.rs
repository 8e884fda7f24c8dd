//! What may lie between host and agent: shared memory, or a modelled interconnect over it.
//!
//! Implements the core's link traits; knows nothing of queues, messages or what is being decided.
//! [`memory`] is the window's file, [`payload`] a host's memory for bulk data. [`doorbell`] and [`socket`] are how two
//! processes get at them and at each other. [`shm`] and [`model`] are the links, [`costs`] what a modelled one charges.
//! [`cpus`] says where threads may run, [`places`] where files may lie that others must not reach, and [`lines`] writes
//! what is said in passing.

mod ancillary;
mod any;
pub mod costs;
pub mod cpus;
pub mod doorbell;
mod eviction;
pub mod heap;
pub mod lines;
pub mod measure;
pub mod memory;
pub mod model;
pub mod payload;
pub mod pci;
pub mod places;
pub mod shm;
pub mod socket;

pub use any::{AnyBell, AnyDma, AnyPort, AnyWindow, LinkError, LinkSpec};
pub use costs::Costs;
pub use doorbell::{EventFd, SocketBell};
pub use memory::{Lender, MapError, Memory};
pub use payload::{LentPayload, Payload, Populator};
pub use pci::DeviceBell;

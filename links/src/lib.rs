//! The links between host and agent: shared memory, or a modelled interconnect over it.
//!
//! Implements the core's link traits; knows nothing of queues, messages or what is being decided. [`memory`] is the window's
//! file, [`payload`] a host's memory for bulk data. [`socket`] hands them over between two processes, and [`doorbell`] wakes
//! the other side. [`shm`] and [`model`] are the links, [`costs`] the costs of a modelled one, and [`measure`] measures them.

mod ancillary;
mod any;
pub mod costs;
pub mod doorbell;
mod eviction;
pub mod measure;
pub mod memory;
pub mod model;
pub mod payload;
pub mod pci;
pub mod shm;
pub mod socket;

pub use any::{AnyBell, AnyDma, AnyPort, AnyWindow, LinkError, LinkSpec};
pub use costs::Costs;
pub use doorbell::{EventFd, SocketBell, poll, whole_milliseconds};
pub use memory::{Lender, MapError, Memory};
pub use payload::{LentPayload, Payload, Populator};
pub use pci::DeviceBell;

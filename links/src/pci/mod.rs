//! A link over PCI: the window lies in the host's memory, where the device reaches it by DMA, or partly
//! in the device's own memory; the host is rung by MSI-X, the agent by a register.
//!
//! ```text
//!   host                                   device                             agent
//!   window (BPF array) <------ DMA ------- reaches pages of the host <------- maps the window
//!   decisions, if there -- uncached loads -> memory (BAR 2) <---------------- stores
//!   control thread <----- MSI-X (VFIO) --- vectors <------------------------- rings
//!          `------------- register ------> doorbell (BAR 0) ----------------> wakes up
//! ```
//!
//! [`device`] is the host's side. [`mailbox`] is the handshake before there is a window. [`ivshmem`] is a
//! device that QEMU gives to a virtual machine, and its other side. On a card, the way in which its own
//! processor maps the host's pages and raises interrupts differs: see the guide "Bring your own NIC".

pub mod device;
pub mod ivshmem;
pub mod mailbox;

pub use device::{Access, Device, DeviceError};

use wave_core::link::Doorbell;

use crate::EventFd;
use crate::shm::ShmWindow;
use mailbox::AgentEnd;

/// One of the device's vectors, rung from its other side: an interrupt for the host, and a count in the
/// mailbox for a host that gets none.
#[derive(Debug)]
pub struct DeviceBell {
    interrupt: EventFd,
    end: AgentEnd<ShmWindow>,
    vector: usize,
}

impl DeviceBell {
    /// Creates the bell of a vector, whose interrupt is behind this eventfd.
    pub fn new(interrupt: EventFd, end: AgentEnd<ShmWindow>, vector: usize) -> DeviceBell {
        DeviceBell { interrupt, end, vector }
    }
}

impl Doorbell for DeviceBell {
    fn ring(&self) {
        self.end.ring(self.vector);
        self.interrupt.ring();
    }
}

//! Options for a PCI device that an agent runs behind.

use clap::{Args, ValueEnum};
use wave_core::link::Home;
use wave_linux::sched::{Access, DeviceOptions};

/// A PCI device, instead of an agent on this machine.
#[derive(Args, Debug)]
pub struct DeviceArgs {
    /// Start no agent: one attaches from the other side of this PCI device, and chooses its policy
    /// there. Threads wait 30 s for it; then the host schedules by itself until it attaches.
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["scenario", "workload", "policies", "record"])]
    device: Option<String>,
    /// Home of the queues of decisions: the host's memory, written by the device; or the device's
    /// memory, read by the host's cores.
    #[arg(long, value_enum, value_name = "HOME", default_value_t = Decisions::Host, requires = "device")]
    decisions: Decisions,
    /// Access to the device: by VFIO with interrupts, or by its files in sysfs, where a thread must
    /// poll.
    #[arg(long, value_enum, value_name = "WAY", default_value_t = Way::Vfio, requires = "device")]
    device_by: Way,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Decisions {
    Host,
    Nic,
}

/// Way to access a device.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Way {
    /// By VFIO.
    Vfio,
    /// By its files in sysfs.
    Sysfs,
}

impl From<Way> for Access {
    fn from(way: Way) -> Access {
        match way {
            Way::Vfio => Access::Vfio,
            Way::Sysfs => Access::Sysfs,
        }
    }
}

impl DeviceArgs {
    /// The host's options for the device; `None` without `--device`.
    pub fn options(&self) -> Option<DeviceOptions> {
        let address = self.device.clone()?;
        let decisions = match self.decisions {
            Decisions::Host => Home::Host,
            Decisions::Nic => Home::Nic,
        };
        let access = self.device_by.into();
        Some(DeviceOptions { address, access, decisions })
    }
}

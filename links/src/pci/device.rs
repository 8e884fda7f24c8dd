//! The host's side of a PCI device: its memory, its registers, its interrupts, and its access to host memory.
//!
//! Through VFIO the kernel hands all of that to this process: interrupts become eventfds, and behind an
//! IOMMU the device reaches only the pages that are mapped for it. Through sysfs there is only the
//! device's memory: no interrupts (a waiter must poll), and the device reaches all memory.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use vfio_ioctls::{VfioContainer, VfioDevice, VfioError};

use crate::doorbell::EventFd;
use crate::memory::{Memory, PAGE_BYTES, SharedMap, file_size};

/// VFIO's number for MSI-X.
const MSIX: u32 = 2;

/// How a device is reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Through VFIO, with interrupts and an IOMMU.
    #[default]
    Vfio,
    /// Through its files in sysfs.
    Sysfs,
}

/// Why a device cannot be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum DeviceError {
    #[error("there is no PCI device {0}; `lspci -D` lists the devices")]
    NotThere(String),
    /// Another driver has the device.
    #[error(
        "PCI device {address} is driven by `{driver}`; if nothing needs that, free it: \
         echo {address} > /sys/bus/pci/devices/{address}/driver/unbind"
    )]
    Taken { address: String, driver: String },
    #[error(
        "PCI device {0} is not behind an IOMMU, so it could reach all memory: switch the IOMMU on in the \
         firmware and the kernel (intel_iommu=on)"
    )]
    NoIommu(String),
    #[error("the kernel's VFIO driver is not loaded: run `modprobe vfio-pci`")]
    NoVfio,
    /// A call to VFIO failed for this device.
    #[error("{doing} PCI device {address} through VFIO: {error}")]
    Vfio { doing: &'static str, address: String, error: VfioError },
    /// The device has less of a resource than is needed.
    #[error("PCI device {address} has {have} {what}, but {need} are needed")]
    TooSmall { address: String, what: &'static str, have: u64, need: u64 },
    /// A system call failed for this device.
    #[error("{doing} PCI device {address}: {error}")]
    System { doing: &'static str, address: String, error: io::Error },
}

/// A device that this process drives.
pub struct Device {
    address: String,
    inner: Inner,
}

enum Inner {
    Vfio {
        // Dropped before the container that it is in; both are dropped before the binding to the kernel's driver.
        device: VfioDevice,
        container: Arc<VfioContainer>,
        _bound: Option<Bound>,
    },
    Sysfs {
        folder: PathBuf,
        registers: SharedMap,
    },
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Device {
    /// Opens the device at `address` (`0000:00:01.0`, or without the domain 0000). For VFIO, a device without a
    /// driver is first bound to the kernel's VFIO driver, and unbound at the end.
    pub fn open(address: &str, access: Access) -> Result<Device, DeviceError> {
        let full = format!("0000:{address}");
        let address = if address.matches(':').count() == 1 { &full } else { address };
        let folder = Path::new("/sys/bus/pci/devices").join(address);
        if address.is_empty() || address.contains('/') || !folder.is_dir() {
            return Err(DeviceError::NotThere(address.into()));
        }
        let system =
            |doing| move |error| DeviceError::System { doing, address: address.into(), error };
        let inner = match access {
            Access::Sysfs => {
                if let Some(driver) = driver_of(&folder) {
                    return Err(DeviceError::Taken { address: address.into(), driver });
                }
                fs::write(folder.join("enable"), "1").map_err(system("enabling"))?;
                let file = resource(&folder, 0).map_err(system("opening BAR 0 of"))?;
                let registers = SharedMap::new(file.as_fd(), 0, PAGE_BYTES as usize);
                Inner::Sysfs { registers: registers.map_err(system("mapping BAR 0 of"))?, folder }
            }
            Access::Vfio => {
                let bound = bind(address, &folder)?;
                let vfio = |doing| {
                    move |error| DeviceError::Vfio { doing, address: address.into(), error }
                };
                let container = VfioContainer::new(None).map_err(vfio("preparing for"))?;
                let container = Arc::new(container);
                let device = VfioDevice::new(&folder, container.clone(), false);
                let device = device.map_err(vfio("opening"))?;
                be_master(&device);
                Inner::Vfio { device, container, _bound: bound }
            }
        };
        Ok(Device { address: address.into(), inner })
    }

    /// The device's address on the bus.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Maps the whole memory of a BAR.
    pub fn bar(&self, index: u32) -> Result<Memory, DeviceError> {
        let mapped = match &self.inner {
            Inner::Vfio { device, .. } => {
                // SAFETY: `device` keeps the descriptor open for as long as it lives.
                let fd = unsafe { BorrowedFd::borrow_raw(device.as_raw_fd()) };
                Memory::device(fd, device.get_region_offset(index), device.get_region_size(index))
            }
            Inner::Sysfs { folder, .. } => resource(folder, index)
                .and_then(|file| Memory::device(file.as_fd(), 0, file_size(file.as_fd())?)),
        };
        mapped.map_err(|error| self.system("mapping a BAR of", error))
    }

    /// The address of a BAR, as the host's CPUs see it.
    pub fn bar_address(&self, index: usize) -> Result<u64, DeviceError> {
        let path = Path::new("/sys/bus/pci/devices").join(&self.address).join("resource");
        let text = fs::read_to_string(path).map_err(|error| self.system("asking for", error))?;
        let start = text.lines().nth(index).and_then(|line| line.split(' ').next());
        let start =
            start.and_then(|text| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok());
        start
            .filter(|start| *start != 0)
            .ok_or_else(|| self.system("finding a BAR of", io::ErrorKind::NotFound.into()))
    }

    /// A register of BAR 0, at a byte below 256.
    pub fn read(&self, byte: usize) -> u32 {
        match &self.inner {
            Inner::Vfio { device, .. } => {
                let mut bytes = [0; 4];
                device.region_read(0, &mut bytes, byte as u64);
                u32::from_le_bytes(bytes)
            }
            Inner::Sysfs { registers, .. } => register(registers, byte).load(Ordering::SeqCst),
        }
    }

    /// Writes a register of BAR 0, at a byte below 256.
    pub fn write(&self, byte: usize, value: u32) {
        match &self.inner {
            Inner::Vfio { device, .. } => device.region_write(0, &value.to_le_bytes(), byte as u64),
            Inner::Sysfs { registers, .. } => {
                register(registers, byte).store(value, Ordering::SeqCst)
            }
        }
    }

    /// Enables the interrupts of vectors 0 to `count` - 1, each with its own eventfd. `None` without VFIO,
    /// where there are no interrupts.
    pub fn vectors(&self, count: usize) -> Result<Option<Vec<EventFd>>, DeviceError> {
        let Inner::Vfio { device, .. } = &self.inner else { return Ok(None) };
        let have = device.get_irq_info(MSIX).map_or(0, |irq| irq.count);
        if (have as usize) < count {
            return Err(DeviceError::TooSmall {
                address: self.address.clone(),
                what: "interrupts (MSI-X)",
                have: have.into(),
                need: count as u64,
            });
        }
        let bells = (0..count).map(|_| EventFd::new()).collect::<io::Result<Vec<_>>>();
        let bells = bells.map_err(|error| self.system("creating eventfds for", error))?;
        let theirs = bells.iter().map(their_handle).collect::<io::Result<Vec<_>>>();
        let theirs = theirs.map_err(|error| self.system("creating eventfds for", error))?;
        device
            .enable_msix(theirs.iter().collect())
            .map_err(|error| self.vfio("switching on the interrupts of", error))?;
        Ok(Some(bells))
    }

    /// Lets the device reach memory. Returns the addresses of its pages on the device's side, which are the
    /// physical ones: so one list serves a device behind an IOMMU and a device without.
    pub fn reach(&self, memory: &Memory) -> Result<Vec<u64>, DeviceError> {
        let pages = physical_pages(memory)
            .map_err(|error| self.system("finding the pages of a window for", error))?;
        let Inner::Vfio { container, .. } = &self.inner else { return Ok(pages) };
        let (base, _) = memory.mapped_at();
        for (at, page) in pages.iter().enumerate() {
            // SAFETY: the range is within `memory`'s mapping, which is only ever reached as atomic words;
            // its pages stay the kernel's own until the device is told otherwise.
            let mapped = unsafe {
                let address = base.add(at * PAGE_BYTES as usize).cast_mut();
                container.vfio_dma_map(*page, PAGE_BYTES as usize, address)
            };
            if let Err(error) = mapped {
                self.forget(&pages[..at]);
                return Err(self.vfio("mapping a window for", error));
            }
        }
        Ok(pages)
    }

    /// Takes away the device's access to pages that [`Device::reach`] has returned.
    pub fn forget(&self, pages: &[u64]) {
        if let Inner::Vfio { container, .. } = &self.inner {
            for page in pages {
                // Memory that is not mapped need not be unmapped.
                let _ = container.vfio_dma_unmap(*page, PAGE_BYTES as usize);
            }
        }
    }

    /// The address at which the kernel itself has mapped a BAR, uncached, for a program within the kernel to
    /// read. VFIO's driver maps a BAR when it is first read through it; the kernel's list of mappings has the
    /// address.
    pub fn kernel_address(&self, bar: u32) -> Result<u64, DeviceError> {
        if let Inner::Vfio { device, .. } = &self.inner {
            device.region_read(bar, &mut [0; 4], 0);
        }
        let physical = self.bar_address(bar as usize)?;
        let list = list_of_mappings()
            .map_err(|error| self.system("finding the kernel's mapping of", error))?;
        mapping_of(physical, &list).ok_or_else(|| {
            let why = "the kernel has mapped no BAR (it does so with VFIO only), or hides its addresses \
                       (sysctl kernel.kptr_restrict=1 shows them to root)";
            self.system("finding the kernel's mapping of", io::Error::other(why))
        })
    }

    fn system(&self, doing: &'static str, error: io::Error) -> DeviceError {
        DeviceError::System { doing, address: self.address.clone(), error }
    }

    fn vfio(&self, doing: &'static str, error: VfioError) -> DeviceError {
        DeviceError::Vfio { doing, address: self.address.clone(), error }
    }
}

fn register(registers: &SharedMap, byte: usize) -> &AtomicU32 {
    assert!(byte < 256 && byte.is_multiple_of(4), "no register of BAR 0: {byte}");
    let words: *const AtomicU32 = registers.words().as_ptr().cast();
    // SAFETY: the mapping is a page long and lives as long as the reference; the register lies within it
    // and is aligned, and is only reached as an atomic.
    unsafe { &*words.add(byte / 4) }
}

fn their_handle(bell: &EventFd) -> io::Result<vmm_sys_util::eventfd::EventFd> {
    let fd: OwnedFd = bell.as_fd().try_clone_to_owned()?;
    // SAFETY: the descriptor is open, an eventfd, and belongs to nobody else.
    Ok(unsafe { vmm_sys_util::eventfd::EventFd::from_raw_fd(fd.into_raw_fd()) })
}

fn resource(folder: &Path, bar: u32) -> io::Result<File> {
    File::options().read(true).write(true).open(folder.join(format!("resource{bar}")))
}

fn driver_of(folder: &Path) -> Option<String> {
    let link = fs::read_link(folder.join("driver")).ok()?;
    Some(link.file_name()?.to_string_lossy().into_owned())
}

/// A device that was bound to the kernel's VFIO driver, and is unbound on drop.
struct Bound {
    address: String,
    folder: PathBuf,
}

impl Drop for Bound {
    fn drop(&mut self) {
        // Another process may have unbound it already.
        let _ = fs::write(self.folder.join("driver/unbind"), &self.address);
        let _ = fs::write(self.folder.join("driver_override"), "\n");
    }
}

/// Binds the device to the kernel's VFIO driver, if it has no driver.
fn bind(address: &str, folder: &Path) -> Result<Option<Bound>, DeviceError> {
    const DRIVER: &str = "vfio-pci";
    match driver_of(folder) {
        Some(driver) if driver == DRIVER => return Ok(None),
        Some(driver) => return Err(DeviceError::Taken { address: address.into(), driver }),
        None => {}
    }
    if !folder.join("iommu_group").exists() {
        return Err(DeviceError::NoIommu(address.into()));
    }
    if !Path::new("/sys/bus/pci/drivers").join(DRIVER).exists() {
        return Err(DeviceError::NoVfio);
    }
    let system = |error| DeviceError::System { doing: "binding", address: address.into(), error };
    fs::write(folder.join("driver_override"), DRIVER).map_err(system)?;
    let bound = Bound { address: address.into(), folder: folder.into() };
    fs::write("/sys/bus/pci/drivers_probe", address).map_err(system)?;
    Ok(Some(bound))
}

/// Lets the device write to memory (bus mastering), as it does for each interrupt. VFIO leaves that to its user.
fn be_master(device: &VfioDevice) {
    const CONFIGURATION: u32 = 7;
    const COMMAND: u64 = 4;
    const MASTER: u16 = 1 << 2;
    let mut command = [0; 2];
    device.region_read(CONFIGURATION, &mut command, COMMAND);
    let command = u16::from_le_bytes(command) | MASTER;
    device.region_write(CONFIGURATION, &command.to_le_bytes(), COMMAND);
}

/// The kernel's list of its mappings. It shows true addresses to root if `kptr_restrict` is 1. If that is 0,
/// under which everybody sees false ones, this sets it to 1 for the moment.
fn list_of_mappings() -> io::Result<String> {
    const SETTING: &str = "/proc/sys/kernel/kptr_restrict";
    const LIST: &str = "/proc/vmallocinfo";
    if fs::read_to_string(SETTING)?.trim() != "0" {
        return fs::read_to_string(LIST);
    }
    fs::write(SETTING, "1")?;
    let list = fs::read_to_string(LIST);
    fs::write(SETTING, "0")?;
    list
}

/// Looks up the kernel's address of the mapping that begins at a physical address.
fn mapping_of(physical: u64, list: &str) -> Option<u64> {
    let hex = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    list.lines()
        .find(|line| {
            let mut words = line.split_whitespace();
            words.clone().any(|word| word == "ioremap")
                && words.find_map(|word| hex(word.strip_prefix("phys=")?)) == Some(physical)
        })
        .and_then(|line| hex(line.split('-').next()?))
        .filter(|address| *address != 0)
}

/// The physical addresses of a mapping's pages.
fn physical_pages(memory: &Memory) -> io::Result<Vec<u64>> {
    const PRESENT: u64 = 1 << 63;
    const FRAME: u64 = (1 << 55) - 1;
    let (base, bytes) = memory.mapped_at();
    let map = File::open("/proc/self/pagemap")?;
    let first = base as u64 / PAGE_BYTES;
    (first..first + (bytes as u64).div_ceil(PAGE_BYTES))
        .map(|page| {
            let mut entry = [0; 8];
            map.read_exact_at(&mut entry, page * 8)?;
            let entry = u64::from_le_bytes(entry);
            let frame = entry & FRAME;
            if entry & PRESENT == 0 || frame == 0 {
                let why = "the kernel does not tell the physical address of a page: run as root";
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
            }
            Ok(frame * PAGE_BYTES)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_not_there_is_named() {
        for address in ["ffff:ff:1f.7", "", "../0000"] {
            for access in [Access::Vfio, Access::Sysfs] {
                let error = Device::open(address, access).unwrap_err();
                assert!(matches!(error, DeviceError::NotThere(_)), "{error}");
            }
        }
    }

    #[test]
    fn a_mapping_is_found_by_its_physical_address() {
        let list = "0xffffb3c000000000-0xffffb3c000005000   20480 load_module+0x1 pages=4 vmalloc\n\
                    0xffffb3c000800000-0xffffb3c000c01000 4198400 vfio_pci_core_setup_barmap+0x86/0xd0 \
                    phys=0x00000000fe400000 ioremap\n";
        assert_eq!(mapping_of(0xfe40_0000, list), Some(0xffff_b3c0_0080_0000));
        assert_eq!(mapping_of(0xfe40_1000, list), None);
        let hidden = "0x0000000000000000-0x0000000000000000 8192 x phys=0x00000000fe400000 ioremap";
        assert_eq!(mapping_of(0xfe40_0000, hidden), None);
    }

    #[test]
    fn mappings_of_one_file_have_the_same_physical_pages() {
        let (memory, fd) = Memory::create("test", 256, 0, 0).unwrap();
        let Ok(pages) = physical_pages(&memory) else { return };
        assert_eq!(pages.len(), 4);
        // Another mapping of the same file has the same pages.
        let again = Memory::map(fd.as_fd(), 256, 0, 0).unwrap();
        assert_eq!(physical_pages(&again).unwrap(), pages);
        let distinct: std::collections::BTreeSet<_> = pages.iter().collect();
        assert_eq!(distinct.len(), 4);
    }
}

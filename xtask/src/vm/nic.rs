//! The other side of the machine's PCI device: the files in the folder of `--nic`, for a process here.
//!
//! `ivshmem` is the socket of the device's server, with QEMU's protocol: a client shares the memory of BAR 2 with the guest,
//! and interrupts it. `memory` is the guest's own memory, which a real device reaches by DMA.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use wave_links::pci::ivshmem::Server;
use wave_process::places::own_dir;

use super::machine::Wanted;

/// Number of the device's interrupts: one for control, and one for each core of an enclave.
pub const VECTORS: usize = 32;
/// Bytes of BAR 2.
const BAR_BYTES: u64 = 4 << 20;
/// Modules with which the guest's kernel hands the device to a process.
pub const MODULES: [&str; 2] = ["vfio_iommu_type1", "vfio_pci"];
/// Below this size the offset of a byte in the guest's memory file is its physical address.
const MEMORY_MAX_MIB: u32 = 2048;

/// The socket of the device's server.
pub fn socket(folder: &Path) -> PathBuf {
    folder.join("ivshmem")
}

pub fn memory(folder: &Path) -> PathBuf {
    folder.join("memory")
}

/// The files are removed when this is dropped.
pub struct Nic {
    folder: PathBuf,
}

impl Nic {
    /// Creates the files, and serves the device. The folder should be in memory (`/dev/shm/...`).
    pub fn open(folder: &Path, wanted: &Wanted) -> Result<Nic, String> {
        if wanted.memory_mib > MEMORY_MAX_MIB {
            return Err(format!("with --nic the guest may have {MEMORY_MAX_MIB} MiB at most"));
        }
        let failed = |error| format!("{}: {error}", folder.display());
        // The files there get removed, and they contain the guest's memory: the folder must be ours.
        own_dir(folder).map_err(|error| error.to_string())?;
        if UnixStream::connect(socket(folder)).is_ok() {
            return Err(format!(
                "{}: another machine uses this folder for its device",
                folder.display()
            ));
        }
        let nic = Nic { folder: folder.into() };
        nic.clear();
        let server = Server::bind(&socket(folder), BAR_BYTES, VECTORS).map_err(failed)?;
        let serve = move || match server.serve() {
            Ok(()) => {}
            Err(error) => eprintln!("vm: the device's server has ended: {error}"),
        };
        std::thread::Builder::new().name("nic".into()).spawn(serve).map_err(failed)?;
        Ok(nic)
    }

    fn clear(&self) {
        // The files may not exist.
        let _ = fs::remove_file(socket(&self.folder));
        let _ = fs::remove_file(memory(&self.folder));
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        self.clear();
        // The folder may contain other files.
        let _ = fs::remove_dir(&self.folder);
    }
}

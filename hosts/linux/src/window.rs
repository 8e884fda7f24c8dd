//! Windows in BPF arrays, which the kernel and a device can reach.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

use libbpf_rs::{MapHandle, MapType};
use wave_core::layout::Layout;
use wave_core::link::LINE_BYTES;
use wave_links::memory::{MapError, Memory};

const BPF_F_MMAPABLE: u32 = 1 << 10;
const BPF_F_INNER_MAP: u32 = 1 << 12;

/// Why a window could not be made.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum WindowError {
    /// A call to libbpf failed.
    #[error("{doing} failed: {error}")]
    Bpf { doing: &'static str, error: libbpf_rs::Error },
    /// The window's memory could not be mapped.
    #[error("mapping a window failed: {0}")]
    Map(#[from] MapError),
}

/// A window for one agent: a BPF array that both sides map.
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) memory: Arc<Memory>,
    pub(crate) map: MapHandle,
}

impl Window {
    pub(crate) fn new(layout: &Layout) -> Result<Window, WindowError> {
        let map = array("wave_window", layout.nic_lines + layout.host_lines)?;
        let memory = Memory::map(map.as_fd(), layout.nic_lines, layout.host_lines, 0)?;
        Ok(Window { memory: Arc::new(memory), map })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }

    /// Pins the window in the kernel, so that it outlives this process for as long as the file exists.
    pub(crate) fn pin(&mut self, path: &Path) -> Result<(), WindowError> {
        self.map.pin(path).map_err(|error| WindowError::Bpf { doing: "pinning a window", error })
    }
}

pub(crate) fn array(name: &str, lines: u32) -> Result<MapHandle, WindowError> {
    let options = libbpf_rs::libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
        map_flags: BPF_F_MMAPABLE | BPF_F_INNER_MAP,
        ..Default::default()
    };
    MapHandle::create(MapType::Array, Some(name), 4, LINE_BYTES as u32, lines, &options)
        .map_err(|error| WindowError::Bpf { doing: "making a window", error })
}

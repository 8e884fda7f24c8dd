//! The state of the machine's swap, and the header of Wave's own swap.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// The machine's swap: the slow tier for pages that leave memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwapState {
    /// Size of all swap devices together.
    pub total_bytes: u64,
    /// Unused bytes of all swap devices.
    pub free_bytes: u64,
    /// The swap devices in the kernel's order.
    pub devices: Vec<SwapDevice>,
}

/// A device or file used as swap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwapDevice {
    /// Path of the device or file.
    pub path: PathBuf,
    /// What backs the device.
    pub kind: SwapKind,
    /// Size of the device in bytes.
    pub size_bytes: u64,
    /// Bytes of the device in use.
    pub used_bytes: u64,
    /// Priority: the device with the highest is filled first.
    pub priority: i32,
}

/// Backing of a swap device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapKind {
    /// Compressed memory (zram).
    Zram,
    /// A file of a file system.
    File,
    /// A partition, or another block device.
    Partition,
}

/// Reads the present state of the machine's swap.
pub fn swap_state() -> io::Result<SwapState> {
    Ok(SwapState::parse(&std::fs::read_to_string("/proc/swaps")?))
}

impl SwapState {
    fn parse(text: &str) -> SwapState {
        let mut state = SwapState::default();
        // The first line has the titles.
        for line in text.lines().skip(1) {
            state.devices.extend(SwapDevice::parse(line));
        }
        state.total_bytes = state.devices.iter().map(|device| device.size_bytes).sum();
        let used: u64 = state.devices.iter().map(|device| device.used_bytes).sum();
        state.free_bytes = state.total_bytes - used;
        state
    }

    /// The device that pages go to next: the one with the highest priority of those with room.
    pub(super) fn first(&self) -> Option<&SwapDevice> {
        let has_room = |device: &&SwapDevice| device.used_bytes < device.size_bytes;
        self.devices.iter().filter(has_room).max_by_key(|device| device.priority)
    }
}

impl SwapDevice {
    fn parse(line: &str) -> Option<SwapDevice> {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [path, kind, size, used, priority] = fields[..] else { return None };
        let kib = |text: &str| text.parse::<u64>().ok().map(|kib| kib * 1024);
        let path = PathBuf::from(path.replace("\\040", " ").replace("\\011", "\t"));
        let kind = match kind {
            "file" => SwapKind::File,
            _ if zram_name(&path).is_some() => SwapKind::Zram,
            _ => SwapKind::Partition,
        };
        let (size_bytes, priority) = (kib(size)?, priority.parse().ok()?);
        Some(SwapDevice {
            path,
            kind,
            size_bytes,
            used_bytes: kib(used)?.min(size_bytes),
            priority,
        })
    }
}

/// Memory use of a zram device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Zram {
    /// Uncompressed size of its contents. Pages of one repeated word do not count.
    pub orig_bytes: u64,
    /// The same bytes after compression.
    pub compressed_bytes: u64,
    /// Memory that the device takes for its contents, fragmentation included.
    pub memory_used_bytes: u64,
    /// Memory that the device takes for its table, full or empty: an entry for each page of its size.
    pub table_bytes: u64,
}

/// Bytes of an entry of zram's table: a handle, and flags.
const TABLE_ENTRY_BYTES: u64 = 16;

impl Zram {
    /// Reads the figures of a device such as `/dev/zram0`; `None` if it is no zram device.
    pub fn of(device: &Path) -> Option<Zram> {
        let name = zram_name(device)?;
        let text = std::fs::read_to_string(format!("/sys/block/{name}/mm_stat")).ok()?;
        let mut fields = text.split_ascii_whitespace().map(|field| field.parse().ok());
        let (orig_bytes, compressed_bytes) = (fields.next()??, fields.next()??);
        let memory_used_bytes = fields.next()??;
        let size = std::fs::read_to_string(format!("/sys/block/{name}/disksize")).ok()?;
        let table_bytes =
            size.trim().parse::<u64>().ok()? / header::page_bytes() * TABLE_ENTRY_BYTES;
        Some(Zram { orig_bytes, compressed_bytes, memory_used_bytes, table_bytes })
    }
}

/// `zram0` of `/dev/zram0`.
pub(super) fn zram_name(device: &Path) -> Option<&str> {
    let name = device.strip_prefix("/dev").ok()?.to_str()?;
    let number = name.strip_prefix("zram")?;
    number.parse::<u32>().is_ok().then_some(name)
}

/// The first page of swap: the kernel's header, with a label that says whose swap it is.
pub(super) mod header {
    use super::*;
    use std::os::unix::fs::FileExt;

    const MAGIC: &[u8; 10] = b"SWAPSPACE2";
    const VERSION_AT: u64 = 1024;
    const LAST_PAGE_AT: u64 = 1028;
    const LABEL_AT: u64 = 1052;
    pub(in super::super) const LABEL_BYTES: usize = 16;

    /// Writes a swap header to a device or file.
    pub(in super::super) fn write(
        file: &File,
        bytes: u64,
        label: &[u8; LABEL_BYTES],
    ) -> io::Result<()> {
        let page = page_bytes();
        file.write_all_at(&1_u32.to_ne_bytes(), VERSION_AT)?;
        file.write_all_at(&((bytes / page - 1) as u32).to_ne_bytes(), LAST_PAGE_AT)?;
        file.write_all_at(label, LABEL_AT)?;
        file.write_all_at(MAGIC, page - MAGIC.len() as u64)?;
        file.sync_all()
    }

    /// Reads the label of existing swap.
    pub(in super::super) fn label(file: &File) -> io::Result<[u8; LABEL_BYTES]> {
        let mut label = [0; LABEL_BYTES];
        file.read_exact_at(&mut label, LABEL_AT)?;
        Ok(label)
    }

    pub(in super::super) fn page_bytes() -> u64 {
        // SAFETY: takes a number and touches no memory.
        unsafe { libc::sysconf(libc::_SC_PAGESIZE) as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swap_devices_are_parsed() {
        let text = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n\
                    /dev/zram3                              partition\t1048572\t\t512\t\t100\n\
                    /var/a\\040file                          file\t\t2044\t\t0\t\t-2\n\
                    /dev/vdb1                               partition\t4096\t\t0\t\t-3\n";
        let state = SwapState::parse(text);
        let kinds: Vec<_> = state.devices.iter().map(|device| device.kind).collect();
        assert_eq!(kinds, [SwapKind::Zram, SwapKind::File, SwapKind::Partition]);
        assert_eq!(state.total_bytes, (1_048_572 + 2044 + 4096) << 10);
        assert_eq!(state.free_bytes, state.total_bytes - (512 << 10));
        assert_eq!(state.devices[1].path, Path::new("/var/a file"));
        assert_eq!(state.devices[1].priority, -2);
        assert_eq!(SwapState::parse("Filename Type\n"), SwapState::default());
    }

    #[test]
    fn only_zram_devices_are_zram() {
        assert_eq!(zram_name(Path::new("/dev/zram12")), Some("zram12"));
        for other in ["/dev/zram", "/dev/zramx", "/dev/sda", "/zram0"] {
            assert_eq!(zram_name(Path::new(other)), None, "{other}");
        }
    }
}

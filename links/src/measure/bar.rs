//! Opens the memory of a PCI device in sysfs, and no other file.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// `SYSFS_MAGIC` of `linux/magic.h`.
const SYSFS: u32 = 0x6265_6572;

/// Opens a `resourceN` or `resourceN_wc` of a PCI device in sysfs, by any path that leads there.
///
/// # Errors
/// The path leads to another file, which is then not opened; or the system refuses to open it.
pub fn open(path: &Path) -> io::Result<File> {
    let no_bar = || {
        let why = "this is not a PCI BAR: name a file /sys/bus/pci/devices/ADDRESS/resourceN";
        io::Error::new(io::ErrorKind::InvalidInput, why)
    };
    // Only the kernel creates links or files there, so the checked path stays valid.
    let path = path.canonicalize()?;
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let folder = path.parent().unwrap_or(Path::new("/"));
    let filesystem = rustix::fs::statfs(folder)?.f_type;
    let subsystem = folder.join("subsystem").canonicalize().unwrap_or_default();
    let is_pci = subsystem.ends_with("bus/pci") && folder.join("config").is_file();
    if filesystem as u32 != SYSFS || !is_pci || !is_resource(name) {
        return Err(no_bar());
    }
    File::options().read(true).write(true).custom_flags(libc::O_SYNC | libc::O_NOFOLLOW).open(path)
}

/// `resource`, a digit, and perhaps `_wc`.
fn is_resource(name: &str) -> bool {
    let number = name.strip_prefix("resource").map(|rest| rest.strip_suffix("_wc").unwrap_or(rest));
    number.is_some_and(|number| matches!(number.as_bytes(), [b'0'..=b'5']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_bars_are_accepted() {
        for bar in ["resource0", "resource5", "resource2_wc"] {
            assert!(is_resource(bar), "{bar}");
        }
        // `resource` lists all BARs; 6 is the expansion ROM.
        for other in ["resource", "resource6", "resource10", "resource2_uc", "config", "rom", ""] {
            assert!(!is_resource(other), "{other}");
        }
    }
}

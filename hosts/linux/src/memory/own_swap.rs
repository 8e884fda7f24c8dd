//! Swap of our own, for as long as this process lives.
//!
//! There is at most one on a machine: who has locked [`LOCK`]. A small process, the *sentinel*, waits for the end
//! of a pipe that this process holds, and takes the swap down: when it is dropped, and when this
//! process is killed. The sentinel keeps the lock until then. So whoever has the lock and finds such swap
//! knows that both were killed, and takes it down.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::fs::{FallocateFlags, FlockOperation};

use super::swap::{header, swap_state};

const LOCK: &str = "/run/wave-swap.lock";
/// Labels of our devices: one that is removed afterwards, and one that was there.
const ADDED: [u8; header::LABEL_BYTES] = *b"wave-swap-added\0";
const FOUND: [u8; header::LABEL_BYTES] = *b"wave-swap-found\0";
const FILE: &str = "wave-swap";
/// Where a file may lie, the best first.
const FOLDERS: [&str; 3] = ["/var/tmp", "/var/lib", "/"];
/// What is left to others where a file lies.
const LEFT_FREE_BYTES: u64 = 1 << 30;
const CONTROL: &str = "/sys/class/zram-control";
const BYTES_MIN: u64 = 1 << 20;
/// Filled before what else there is.
const ZRAM_PRIORITY: i32 = 100;
const SWAP_FLAG_PREFER: i32 = 0x8000;

/// What the sentinel runs: $1 is the device or file; of a device, $2 is what frees it, when written to $3. Others look
/// into devices that come and go, and so hold them for a moment.
const SENTINEL: &str = r#"
trap '' HUP INT QUIT TERM
while read -r _; do :; done
swapoff "$1" 2>/dev/null
if [ -z "$2" ]; then rm -f "$1"; exit; fi
tries=50
until echo "$2" 2>/dev/null >"$3"; do
    [ $((tries -= 1)) -gt 0 ] || exit
    sleep 0.1
done
"#;

/// Why there is no swap of our own, or why it is still there.
#[derive(Debug, thiserror::Error)]
pub enum SwapError {
    /// Another process of Wave's has some.
    #[error(
        "another wave has set up swap, or takes it down ({LOCK} is locked): one at a time; use the swap that \
         there is, or wait for the other to end"
    )]
    Taken,
    /// Not permitted.
    #[error(
        "swap is root's to set up (CAP_SYS_ADMIN): run this as root, or have swap set up before"
    )]
    NotPermitted,
    /// Too little.
    #[error("{0} bytes are too little for swap: it takes 1 MiB or more")]
    TooSmall(u64),
    /// Neither way.
    #[error("no swap could be set up: zram: {zram}; a file: {file}")]
    Nowhere {
        /// Why not in compressed memory.
        zram: String,
        /// Why not in a file.
        file: String,
    },
    /// The kernel refuses it.
    #[error("{doing} {}: {error}", path.display())]
    Refused {
        /// What was being done.
        doing: &'static str,
        /// With what.
        path: PathBuf,
        /// What was said.
        error: io::Error,
    },
    /// No place has room.
    #[error("none of {folders} has room for a file of {bytes} bytes with 1 GiB left")]
    NoRoom {
        /// Where was looked.
        folders: String,
        /// For how much.
        bytes: u64,
    },
    /// It could not be taken down.
    #[error(
        "{} is still swap: there may be too little memory for what is in it; end what uses it, then `swapoff {}`",
        .0.display(), .0.display()
    )]
    StillThere(PathBuf),
}

/// Swap that is taken down when this is dropped, and when this process ends in any other way.
#[derive(Debug)]
pub struct Swap {
    path: PathBuf,
    sentinel: Child,
    /// Held by the sentinel too.
    _lock: File,
}

impl Swap {
    /// Sets up swap of so many bytes: in compressed memory where the kernel has zram, else in a file.
    pub fn set_up(bytes: u64) -> Result<Swap, SwapError> {
        let lock = begin(bytes)?;
        let on_zram = match lock.try_clone() {
            Ok(lock) => on_zram(lock, bytes),
            Err(error) => Err(SwapError::Refused { doing: "locking", path: LOCK.into(), error }),
        };
        let zram = match on_zram {
            Ok(swap) => return Ok(swap),
            Err(error) => error.to_string(),
        };
        let folders = FOLDERS.map(PathBuf::from);
        in_file(lock, &folders, bytes)
            .map_err(|error| SwapError::Nowhere { zram, file: error.to_string() })
    }

    /// In a file in this folder.
    pub fn in_file(folder: &Path, bytes: u64) -> Result<Swap, SwapError> {
        in_file(begin(bytes)?, &[folder.to_owned()], bytes)
    }

    /// The device or file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes it down, and says if that fails.
    pub fn take_down(mut self) -> Result<(), SwapError> {
        self.end();
        match swap_state() {
            Ok(state) if !state.has(&self.path) => Ok(()),
            _ => Err(SwapError::StillThere(self.path.clone())),
        }
    }

    fn end(&mut self) {
        drop(self.sentinel.stdin.take());
        // It cannot be waited for twice, nor by others.
        let _ = self.sentinel.wait();
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        self.end();
    }
}

/// Whether some may be set up; takes down what was left by those who were killed with their sentinel.
fn begin(bytes: u64) -> Result<File, SwapError> {
    if bytes < BYTES_MIN {
        return Err(SwapError::TooSmall(bytes));
    }
    let refused = |error: io::Error| match error.kind() {
        io::ErrorKind::PermissionDenied => SwapError::NotPermitted,
        _ => SwapError::Refused { doing: "locking", path: LOCK.into(), error },
    };
    let mut options = OpenOptions::new();
    let lock = options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let lock = lock.open(LOCK).map_err(refused)?;
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Err(SwapError::Taken),
        Err(error) => return Err(refused(error.into())),
    }
    take_down_leftovers();
    Ok(lock)
}

fn on_zram(lock: File, bytes: u64) -> Result<Swap, SwapError> {
    let (number, added) = free_zram()?;
    let path = PathBuf::from(format!("/dev/zram{number}"));
    let (value, freeing) = freeing(number, added);
    let swap = guarded(path, &value, &freeing, lock)?;
    let path = &swap.path;
    let refused = |doing| move |error| SwapError::Refused { doing, path: path.clone(), error };
    let set = |name: &str, value: String| std::fs::write(setting(number, name), value);
    // One that the kernel lacks is no reason not to swap.
    let _ = set("comp_algorithm", "lz4".to_owned());
    set("disksize", bytes.to_string()).map_err(refused("sizing"))?;
    let label = if added { &ADDED } else { &FOUND };
    let device = OpenOptions::new().write(true).open(path);
    let written = device.and_then(|device| header::write(&device, bytes, label));
    written.map_err(refused("writing to"))?;
    swap_on(path, SWAP_FLAG_PREFER | ZRAM_PRIORITY)?;
    Ok(swap)
}

/// The number of a zram device that nobody uses, and whether it was made for us.
fn free_zram() -> Result<(u32, bool), SwapError> {
    let refused =
        |error| SwapError::Refused { doing: "making a device by", path: CONTROL.into(), error };
    // Reading it makes one.
    let made = std::fs::read_to_string(format!("{CONTROL}/hot_add"));
    match made.as_ref().map(|number| number.trim().parse()) {
        Ok(Ok(number)) => Ok((number, true)),
        _ => {
            let unused = zram_devices().into_iter().find(|number| size(*number) == Some(0));
            let none = || match made {
                Err(error) => refused(error),
                Ok(_) => refused(io::Error::other("it says no number")),
            };
            unused.map(|number| (number, false)).ok_or_else(none)
        }
    }
}

/// What frees a zram device, and where it is written to.
fn freeing(number: u32, added: bool) -> (String, PathBuf) {
    match added {
        true => (number.to_string(), Path::new(CONTROL).join("hot_remove")),
        false => ("1".to_owned(), setting(number, "reset")),
    }
}

fn setting(number: u32, name: &str) -> PathBuf {
    PathBuf::from(format!("/sys/block/zram{number}/{name}"))
}

fn zram_devices() -> Vec<u32> {
    let entries = std::fs::read_dir("/sys/block").into_iter().flatten();
    let number = |name: &str| name.strip_prefix("zram")?.parse().ok();
    entries.filter_map(|entry| number(entry.ok()?.file_name().to_str()?)).collect()
}

/// The size that a zram device was given; 0 is that it is not used.
fn size(number: u32) -> Option<u64> {
    let text = std::fs::read_to_string(setting(number, "disksize")).ok()?;
    text.trim().parse().ok()
}

fn in_file(lock: File, folders: &[PathBuf], bytes: u64) -> Result<Swap, SwapError> {
    let has_room = |folder: &&PathBuf| free_bytes(folder) >= Some(bytes + LEFT_FREE_BYTES);
    let Some(folder) = folders.iter().find(has_room) else {
        let folders: Vec<_> = folders.iter().map(|folder| folder.to_string_lossy()).collect();
        return Err(SwapError::NoRoom { folders: folders.join(", "), bytes });
    };
    let path = folder.join(FILE);
    let refused = |error| SwapError::Refused { doing: "writing to", path: path.clone(), error };
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    let file = file.map_err(refused)?;
    let swap = guarded(path.clone(), "", Path::new(""), lock)?;
    // No holes: the kernel takes none in swap.
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes)
        .map_err(|error| refused(error.into()))?;
    header::write(&file, bytes, &FOUND).map_err(refused)?;
    swap_on(&swap.path, 0)?;
    Ok(swap)
}

fn free_bytes(folder: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(folder).ok()?;
    Some(found.f_bavail * found.f_frsize)
}

/// Swap that is not on yet, with its sentinel.
fn guarded(path: PathBuf, value: &str, freeing: &Path, lock: File) -> Result<Swap, SwapError> {
    let refused = |error| SwapError::Refused { doing: "starting", path: "sh".into(), error };
    let kept = lock.try_clone().map_err(refused)?;
    let mut command = Command::new("sh");
    command.args(["-c", SENTINEL, "wave-swap"]).arg(&path).arg(value).arg(freeing);
    // What it would print goes nowhere: the lock is what it holds.
    command.stdin(Stdio::piped()).stdout(kept).stderr(Stdio::null()).current_dir("/");
    let own_session = || rustix::process::setsid().map(|_| ()).map_err(io::Error::from);
    // SAFETY: a system call, which may be made between fork and exec.
    let sentinel = unsafe { command.pre_exec(own_session) }.spawn().map_err(refused)?;
    Ok(Swap { path, sentinel, _lock: lock })
}

fn swap_on(path: &Path, flags: i32) -> Result<(), SwapError> {
    let name = CString::new(path.as_os_str().as_bytes()).unwrap_or_default();
    // SAFETY: the kernel reads the name, which ends with a zero.
    match unsafe { libc::swapon(name.as_ptr(), flags) } {
        0 => Ok(()),
        _ => Err(match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::PermissionDenied => SwapError::NotPermitted,
            error => SwapError::Refused { doing: "swapping on", path: path.to_owned(), error },
        }),
    }
}

/// What cannot be taken down stays, and is tried again by the next one.
fn take_down_leftovers() {
    for number in zram_devices() {
        let path = PathBuf::from(format!("/dev/zram{number}"));
        if size(number).unwrap_or(0) == 0 {
            continue;
        }
        let Ok(label) = header::label(&path) else { continue };
        if label != ADDED && label != FOUND {
            continue;
        }
        swap_off(&path);
        let (value, freeing) = freeing(number, label == ADDED);
        let _ = std::fs::write(freeing, value);
    }
    let devices = swap_state().unwrap_or_default().devices;
    let swapped = devices.into_iter().map(|device| device.path);
    let files = swapped.chain(FOLDERS.map(|folder| Path::new(folder).join(FILE)));
    for path in files.filter(|path| path.file_name().is_some_and(|name| name == FILE)) {
        let empty = path.metadata().is_ok_and(|file| file.len() == 0);
        if empty || header::label(&path).is_ok_and(|label| label == FOUND) {
            swap_off(&path);
            let _ = std::fs::remove_file(&path);
        }
    }
}

fn swap_off(path: &Path) {
    let name = CString::new(path.as_os_str().as_bytes()).unwrap_or_default();
    // SAFETY: the kernel reads the name, which ends with a zero.
    unsafe { libc::swapoff(name.as_ptr()) };
}

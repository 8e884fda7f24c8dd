//! Wave's own swap, which lasts for as long as this process lives.
//!
//! A machine has at most one: its owner holds [`LOCK`]. A small process, the *sentinel*, waits until a pipe that this
//! process holds is closed, and then takes the swap down ([`sentinel`]): when the [`Swap`] is dropped, or this process is killed.
//! The sentinel keeps the lock until then. So a process that gets the lock and finds such swap knows that owner and sentinel
//! were killed, and takes it down.
//!
//! Several processes may share the swap ([`Swap::share`]): each holds the lock in shared mode, and has a sentinel. Taking swap
//! down brings back all of its contents, whoever paged them out. So a sentinel takes it down only once nobody else holds the
//! lock, and processes that merely use existing swap hold the lock as well ([`SwapUse`]). Setting up or joining takes two
//! steps, during which [`SETUP_NAME`] is locked.
//!
//! Files are in folders that only root can enter, and are opened by name there without following links. Swap is turned off for
//! the file that was opened and checked, by its descriptor, and never for whatever a path leads to at that moment. A file is
//! removed from the folder that was opened, if the name there is still that file's.

mod sentinel;

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, FlockOperation, Mode, OFlags};
use wave_process::places::{PlaceError, ROOTS_RUNTIME_DIR, own_dir};

use self::sentinel::{
    Backing, Ended, Guarded, Sentinel, by_descriptor, c_path, open_again, swap_off,
};
use super::swap::{SwapDevice, SwapKind, header, swap_state, zram_name};

/// The lock file, in root's folder for sockets.
const LOCK: &str = "/run/wave/swap.lock";
const LOCK_NAME: &str = "swap.lock";
const SETUP_NAME: &str = "swap.setup";
/// How long to wait for other processes that set swap up or take it down, and the time between two checks.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(20);
/// Mode of swap files: only the owner may read and write them.
const OWNERS: Mode = Mode::RUSR.union(Mode::WUSR);
/// Labels of Wave's swap: on a zram device that is removed afterwards, and on one that existed before.
const ADDED: [u8; header::LABEL_BYTES] = *b"wave-swap-added\0";
const FOUND: [u8; header::LABEL_BYTES] = *b"wave-swap-found\0";
/// Contents of the label before anything was written.
const UNLABELLED: [u8; header::LABEL_BYTES] = [0; header::LABEL_BYTES];
const FILE: &str = "wave-swap";
/// Wave's folders for swap files, the best first.
const FOLDERS: [&str; 2] = ["/var/lib/wave", "/var/tmp/wave"];
/// Space that must remain free on the file system of a swap file.
const LEFT_FREE_BYTES: u64 = 1 << 30;
const CONTROL: &str = "/sys/class/zram-control";
const BYTES_MIN: u64 = 1 << 20;
/// Priority of zram: filled before other swap.
const ZRAM_PRIORITY: i32 = 100;
const SWAP_FLAG_PREFER: i32 = 0x8000;

/// Why swap could not be set up, or not be taken down.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum SwapError {
    /// Another process of Wave uses its own swap.
    #[error(
        "another `wave` is using swap that it does not share, or is removing swap ({LOCK} is locked): wait for the \
         other process to end"
    )]
    Taken,
    /// This process may not set up swap.
    #[error(
        "only root can set up swap (CAP_SYS_ADMIN): run this as root, or have root set up swap first"
    )]
    NotPermitted,
    /// The size is too small for swap.
    #[error("{0} B is too small for swap: use 1 MiB or more")]
    TooSmall(u64),
    /// Swap worked neither on zram nor in a file.
    #[error("cannot set up swap, neither on zram ({zram}) nor in a file ({file})")]
    Nowhere { zram: String, file: String },
    /// A system call failed on this path.
    #[error("{doing} {} failed: {error}", path.display())]
    Refused { doing: &'static str, path: PathBuf, error: io::Error },
    /// No folder has room for the file.
    #[error("none of {folders} has room for a swap file of {bytes} bytes and 1 GiB of free space")]
    NoRoom { folders: String, bytes: u64 },
    /// Other users may control a folder.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The swap could not be taken down.
    #[error(
        "{} is still in use as swap, perhaps because its contents do not fit into memory: end programs, then run `swapoff {}`",
        .0.display(), .0.display()
    )]
    StillThere(PathBuf),
}

/// Swap that is taken down when this is dropped, or when this process ends in any other way.
#[derive(Debug)]
pub struct Swap {
    path: PathBuf,
    sentinel: Sentinel,
    /// The sentinel holds it, too.
    _lock: File,
    /// Whether another process had set the swap up.
    joined: bool,
}

/// Use of swap that another process may have set up: while this lives, the swap is not taken down.
#[derive(Debug)]
pub struct SwapUse {
    _lock: File,
}

impl SwapUse {
    /// Keeps Wave's own swap in place, whether it exists now or is set up later.
    ///
    /// # Errors
    /// Another process holds the lock exclusively ([`SwapError::Taken`]), or this process may not open the lock.
    pub fn hold() -> Result<SwapUse, SwapError> {
        let lock = open_lock(LOCK_NAME)?;
        match try_lock(&lock, FlockOperation::NonBlockingLockShared)? {
            true => Ok(SwapUse { _lock: lock }),
            false => Err(SwapError::Taken),
        }
    }
}

impl Swap {
    /// Sets up swap of `bytes` bytes: in compressed memory if the kernel has zram, otherwise in a file.
    pub fn set_up(bytes: u64) -> Result<Swap, SwapError> {
        Swap::anywhere(begin(bytes)?, bytes, false)
    }

    fn anywhere(lock: File, bytes: u64, shared: bool) -> Result<Swap, SwapError> {
        let on_zram = match lock.try_clone() {
            Ok(lock) => on_zram(lock, bytes),
            Err(error) => Err(SwapError::Refused { doing: "locking", path: LOCK.into(), error }),
        };
        on_zram.or_else(|zram| {
            if shared {
                // The failed attempt's sentinel had the lock, and may have locked it exclusively before it ended.
                wait_for_lock(&lock, FlockOperation::NonBlockingLockShared)?;
            }
            let folders = FOLDERS.map(PathBuf::from);
            in_file(lock, &folders, bytes).map_err(|error| SwapError::Nowhere {
                zram: zram.to_string(),
                file: error.to_string(),
            })
        })
    }

    /// Joins swap that another process has set up to share, or else sets up `bytes` bytes like [`Swap::set_up`], for others to
    /// share. The swap is taken down when the last of its processes ends.
    ///
    /// # Errors
    /// As for [`Swap::set_up`].
    pub fn share(bytes: u64) -> Result<Swap, SwapError> {
        check(bytes)?;
        // Held while checking whether there is swap.
        let setup = open_lock(SETUP_NAME)?;
        wait_for_lock(&setup, FlockOperation::NonBlockingLockExclusive)?;
        let start = Instant::now();
        loop {
            // A separate lock, not the one that is kept: converting an exclusive lock to a shared one lets others, such as a
            // waiting sentinel, take it in between.
            let alone = open_lock(LOCK_NAME)?;
            if try_lock(&alone, FlockOperation::NonBlockingLockExclusive)? {
                take_down_leftovers();
            }
            drop(alone);
            let lock = open_lock(LOCK_NAME)?;
            if try_lock(&lock, FlockOperation::NonBlockingLockShared)? {
                return match ours() {
                    Some(ours) => ours.join(lock),
                    None => Swap::anywhere(lock, bytes, true),
                };
            }
            if start.elapsed() > PATIENCE {
                return Err(SwapError::Taken);
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Whether another process had set the swap up.
    pub fn is_joined(&self) -> bool {
        self.joined
    }

    /// Sets up swap of `bytes` bytes in compressed memory only.
    ///
    /// # Errors
    /// This process lacks permission, Wave's own swap exists already, or the kernel has no zram.
    pub fn on_zram(bytes: u64) -> Result<Swap, SwapError> {
        on_zram(begin(bytes)?, bytes)
    }

    /// Sets up swap of `bytes` bytes in a file, in one of Wave's own folders.
    ///
    /// # Errors
    /// This process lacks permission, Wave's own swap exists already, no folder has room, or the file system does not support
    /// swap.
    pub fn in_own_file(bytes: u64) -> Result<Swap, SwapError> {
        in_file(begin(bytes)?, &FOLDERS.map(PathBuf::from), bytes)
    }

    /// Sets up swap in a file in this folder, which only root may enter (mode 0700). Creates the folder if it is missing.
    pub fn in_file(folder: &Path, bytes: u64) -> Result<Swap, SwapError> {
        in_file(begin(bytes)?, &[folder.to_owned()], bytes)
    }

    /// Path of the device or file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes the swap down, unless others share it, and reports failure.
    pub fn take_down(mut self) -> Result<(), SwapError> {
        match self.sentinel.end() {
            Ended::TakenDown | Ended::LeftToOthers => Ok(()),
            Ended::StillThere => Err(SwapError::StillThere(self.path.clone())),
        }
    }
}

fn check(bytes: u64) -> Result<(), SwapError> {
    if bytes < BYTES_MIN {
        return Err(SwapError::TooSmall(bytes));
    }
    match rustix::process::geteuid().is_root() {
        true => Ok(()),
        false => Err(SwapError::NotPermitted),
    }
}

/// Checks the size, takes the lock, and takes down swap that was left over when an owner and its sentinel were killed.
fn begin(bytes: u64) -> Result<File, SwapError> {
    check(bytes)?;
    let lock = open_lock(LOCK_NAME)?;
    match try_lock(&lock, FlockOperation::NonBlockingLockExclusive)? {
        true => take_down_leftovers(),
        false => return Err(SwapError::Taken),
    }
    Ok(lock)
}

fn open_lock(name: &str) -> Result<File, SwapError> {
    let refused = |error: io::Error| match error.kind() {
        io::ErrorKind::PermissionDenied => SwapError::NotPermitted,
        _ => SwapError::Refused { doing: "locking", path: LOCK.into(), error },
    };
    let folder = own_dir(Path::new(ROOTS_RUNTIME_DIR))?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let lock = rustix::fs::openat(&folder, name, flags, OWNERS);
    lock.map(File::from).map_err(|error| refused(error.into()))
}

/// Tries to take the lock. Returns whether it was free.
fn try_lock(lock: &File, operation: FlockOperation) -> Result<bool, SwapError> {
    match rustix::fs::flock(lock, operation) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(error) => {
            Err(SwapError::Refused { doing: "locking", path: LOCK.into(), error: error.into() })
        }
    }
}

fn wait_for_lock(lock: &File, operation: FlockOperation) -> Result<(), SwapError> {
    let start = Instant::now();
    while !try_lock(lock, operation)? {
        if start.elapsed() > PATIENCE {
            return Err(SwapError::Taken);
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// Swap in use that a process of Wave has set up.
struct Ours {
    path: PathBuf,
    guarded: Guarded,
}

fn ours() -> Option<Ours> {
    let devices = swap_state().unwrap_or_default().devices;
    devices.into_iter().find_map(|SwapDevice { path, kind, .. }| match kind {
        SwapKind::Zram => {
            let number = zram_name(&path)?.strip_prefix("zram")?.parse().ok()?;
            let found = header::label(&zram_device(number).ok()?).ok()?;
            let label = [ADDED, FOUND].into_iter().find(|label| *label == found)?;
            Some(Ours { path, guarded: guarded_zram(number, label).ok()? })
        }
        SwapKind::File => {
            let folder =
                path.parent().filter(|_| path.file_name().is_some_and(|name| name == FILE))?;
            let folder = own_dir(folder).ok()?;
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = rustix::fs::openat(&folder, FILE, flags, Mode::empty()).ok()?;
            let file = File::from(file);
            if header::label(&file).ok()? != FOUND {
                return None;
            }
            Some(Ours { path, guarded: guarded_file(&file, folder).ok()? })
        }
        SwapKind::Partition => None,
    })
}

impl Ours {
    /// Joins this swap. `lock` is held in shared mode.
    fn join(self, lock: File) -> Result<Swap, SwapError> {
        let mut swap = Swap::guarded(self.path, self.guarded, lock)?;
        swap.joined = true;
        Ok(swap)
    }
}

fn on_zram(lock: File, bytes: u64) -> Result<Swap, SwapError> {
    let (number, added) = free_zram()?;
    let path = PathBuf::from(format!("/dev/zram{number}"));
    let label = if added { ADDED } else { FOUND };
    let refused = |doing| {
        let path = path.clone();
        move |error| SwapError::Refused { doing, path, error }
    };
    let guarded = guarded_zram(number, label).map_err(|error| {
        // Its node may be missing, as in a container. No sentinel frees the device then.
        if added {
            let (word, hot_remove) = freeing(number, added);
            let _ = std::fs::write(hot_remove, word);
        }
        refused("opening")(error)
    })?;
    let mut swap = Swap::guarded(path.clone(), guarded, lock)?;
    let set = |name: &str, value: String| std::fs::write(setting(number, name), value);
    // If the kernel lacks this algorithm, its default will do.
    let _ = set("comp_algorithm", "lz4".to_owned());
    set("disksize", bytes.to_string()).map_err(refused("sizing"))?;
    swap.sentinel.announce_sized().map_err(refused("guarding"))?;
    let device = zram_device(number).map_err(refused("opening"))?;
    header::write(&device, bytes, &label).map_err(refused("writing to"))?;
    swap_on(&open_again(&device), &path, SWAP_FLAG_PREFER | ZRAM_PRIORITY)?;
    Ok(swap)
}

/// The number of an unused zram device, and whether it was made for us.
fn free_zram() -> Result<(u32, bool), SwapError> {
    let refused = |error| SwapError::Refused {
        doing: "making a zram device by",
        path: CONTROL.into(),
        error,
    };
    // Reading this file creates a device.
    let made = std::fs::read_to_string(format!("{CONTROL}/hot_add"));
    match made.as_ref().map(|number| number.trim().parse()) {
        Ok(Ok(number)) => Ok((number, true)),
        _ => {
            let unused = zram_devices().into_iter().find(|number| size(*number) == Some(0));
            let none = || match made {
                Err(error) => refused(error),
                Ok(_) => refused(io::Error::other("it returns no device number")),
            };
            unused.map(|number| (number, false)).ok_or_else(none)
        }
    }
}

/// The word that frees a zram device, and the file to write it to.
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

/// The size set for a zram device; 0 if the device is unused.
fn size(number: u32) -> Option<u64> {
    let text = std::fs::read_to_string(setting(number, "disksize")).ok()?;
    text.trim().parse().ok()
}

fn in_file(lock: File, folders: &[PathBuf], bytes: u64) -> Result<Swap, SwapError> {
    let mut refusal = None;
    for path in folders {
        let folder = match own_dir(path) {
            Ok(folder) => folder,
            Err(error) => {
                refusal = Some(error);
                continue;
            }
        };
        if free_bytes(&folder) >= Some(bytes + LEFT_FREE_BYTES) {
            return in_file_of(lock, &folder, bytes);
        }
    }
    let folders: Vec<_> = folders.iter().map(|folder| folder.to_string_lossy()).collect();
    let no_room = SwapError::NoRoom { folders: folders.join(", "), bytes };
    Err(refusal.map_or(no_room, SwapError::Place))
}

fn in_file_of(lock: File, folder: &OwnedFd, bytes: u64) -> Result<Swap, SwapError> {
    // The folder's path without links, as the kernel lists it.
    let folder_path = std::fs::read_link(by_descriptor(folder)).unwrap_or_default();
    let path = folder_path.join(FILE);
    let refused = |error| SwapError::Refused { doing: "writing to", path: path.clone(), error };
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(folder, FILE, flags, OWNERS);
    let file = File::from(file.map_err(|error| refused(error.into()))?);
    let kept = folder.try_clone().and_then(|folder| guarded_file(&file, folder));
    let swap = Swap::guarded(path.clone(), kept.map_err(refused)?, lock)?;
    // The kernel accepts no holes in swap files.
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes)
        .map_err(|error| refused(error.into()))?;
    header::write(&file, bytes, &FOUND).map_err(refused)?;
    swap_on(&open_again(&file), &path, 0)?;
    Ok(swap)
}

fn free_bytes(folder: &OwnedFd) -> Option<u64> {
    let found = rustix::fs::fstatvfs(folder).ok()?;
    Some(found.f_bavail * found.f_frsize)
}

impl Swap {
    /// Starts the sentinel of swap that need not be turned on yet.
    fn guarded(path: PathBuf, guarded: Guarded, lock: File) -> Result<Swap, SwapError> {
        let refused = |error| SwapError::Refused { doing: "guarding", path: path.clone(), error };
        let sentinel = lock.try_clone().and_then(|kept| Sentinel::start(guarded, kept));
        let sentinel = sentinel.map_err(refused)?;
        Ok(Swap { path, sentinel, _lock: lock, joined: false })
    }
}

fn guarded_zram(number: u32, label: [u8; header::LABEL_BYTES]) -> io::Result<Guarded> {
    let (word, freeing) = freeing(number, label == ADDED);
    let (freeing, size) = (c_path(&freeing), c_path(&setting(number, "disksize")));
    let target = open_zram(number, OFlags::PATH)?;
    Ok(Guarded { target, label, backing: Backing::Zram { word, freeing, size } })
}

fn guarded_file(file: &File, folder: OwnedFd) -> io::Result<Guarded> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let target = rustix::fs::openat(CWD, open_again(file), flags, Mode::empty())?;
    let name = CString::new(FILE).unwrap_or_default();
    Ok(Guarded { target, label: FOUND, backing: Backing::File { folder, name } })
}

/// Turns swap on. `what` is the path given to the kernel, `path` the one for messages.
fn swap_on(what: &CStr, path: &Path, flags: i32) -> Result<(), SwapError> {
    // SAFETY: the kernel reads the path, which ends with a zero.
    match unsafe { libc::swapon(what.as_ptr(), flags) } {
        0 => Ok(()),
        _ => Err(match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::PermissionDenied => SwapError::NotPermitted,
            error => {
                SwapError::Refused { doing: "turning on swap on", path: path.to_owned(), error }
            }
        }),
    }
}

/// Takes down leftover swap. The next owner tries again if that fails.
fn take_down_leftovers() {
    for number in zram_devices() {
        if size(number).unwrap_or(0) == 0 {
            continue;
        }
        let Ok(device) = zram_device(number) else { continue };
        let Ok(label) = header::label(&device) else { continue };
        if label != ADDED && label != FOUND {
            continue;
        }
        let _ = swap_off(&open_again(&device));
        // An open descriptor keeps the device from being freed.
        drop(device);
        let (value, freeing) = freeing(number, label == ADDED);
        let _ = std::fs::write(freeing, value);
    }
    let devices = swap_state().unwrap_or_default().devices;
    let swapped = devices.iter().map(|device| device.path.as_path());
    let swapped = swapped.filter(|path| path.file_name().is_some_and(|name| name == FILE));
    for folder in swapped.filter_map(Path::parent).chain(FOLDERS.map(Path::new)) {
        let _ = take_down_in(folder);
    }
}

/// Takes down the swap file in this folder, and removes it: only if the folder is root's alone and the file is Wave's.
fn take_down_in(folder: &Path) -> io::Result<()> {
    if !folder.is_dir() {
        return Ok(());
    }
    let folder = own_dir(folder).map_err(io::Error::other)?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat(&folder, FILE, flags, Mode::empty())?);
    let found = file.metadata()?;
    let is_ours = found.is_file() && found.uid() == 0 && found.nlink() == 1;
    // A file whose setup was interrupted has no label yet; only Wave uses this name in this folder.
    let is_known = || header::label(&file).map(|label| label == FOUND || label == UNLABELLED);
    if is_ours && (found.len() == 0 || is_known()?) {
        let _ = swap_off(&open_again(&file));
        rustix::fs::unlinkat(&folder, FILE, AtFlags::empty())?;
    }
    Ok(())
}

/// Opens the kernel's zram device of this number. Fails if another file has its name.
fn zram_device(number: u32) -> io::Result<File> {
    open_zram(number, OFlags::RDWR).map(File::from)
}

fn open_zram(number: u32, access: OFlags) -> io::Result<OwnedFd> {
    let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let device = rustix::fs::openat(CWD, format!("/dev/zram{number}"), flags, Mode::empty())?;
    let found = rustix::fs::fstat(device.as_fd())?;
    let (major, minor) = (libc::major(found.st_rdev), libc::minor(found.st_rdev));
    let kernels = std::fs::read_to_string(setting(number, "dev"))?;
    let is_block = FileType::from_raw_mode(found.st_mode) == FileType::BlockDevice;
    match is_block && kernels.trim() == format!("{major}:{minor}") {
        true => Ok(device),
        false => {
            Err(io::Error::other(format!("/dev/zram{number} is not a zram device of this number")))
        }
    }
}

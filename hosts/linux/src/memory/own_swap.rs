//! Wave's own swap, which lasts for as long as this process lives.
//!
//! A machine has at most one: its owner holds [`LOCK`]. A small process, the *sentinel*, waits until a pipe that this
//! process holds is closed, and then takes the swap down: when the [`Swap`] is dropped, or this process is killed. The
//! sentinel keeps the lock until then. So a process that gets the lock and finds such swap knows that owner and sentinel
//! were killed, and takes it down.
//!
//! Several processes may share the swap ([`Swap::share`]): each holds the lock in shared mode, and has a sentinel. Taking swap
//! down brings back all of its contents, whoever paged them out. So a sentinel takes it down only once nobody else holds the
//! lock, and processes that merely use existing swap hold the lock as well ([`SwapUse`]). Setting up or joining takes two
//! steps, during which [`SETUP_NAME`] is locked.
//!
//! Files are in folders that only root can enter, and are opened by name there without following links. Swap is turned off for
//! the file that was opened and checked, by its descriptor, and never for whatever a path leads to at that moment.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FallocateFlags, FlockOperation, Mode, OFlags};
use wave_links::places::{PlaceError, ROOTS_RUNTIME_DIR, own_dir};

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

/// The sentinel's script. $1 is the device or file; writing $2 to $3 frees a device. It retries, as other programs inspect
/// devices that appear or disappear, and so hold them for a moment. Its standard output is the lock. While others share the
/// lock, it waits in the background; its exit code is then [`LEFT_TO_OTHERS`].
///
/// Any program may take an unused device, or take over one from which the swap was removed meanwhile. So a device is left alone
/// unless it has the label $4, or none yet and either no size or the size that this process has given it ([`SIZED`]).
const SENTINEL: &str = r#"
trap '' HUP INT QUIT TERM
is_ours() {
    label=$(dd if="$1" bs=1 skip=1052 count=15 2>/dev/null | tr -d '\000')
    case $label in
    "$4") true ;;
    "") [ -z "$2" ] || [ "$sized" ] || [ "$(cat "/sys/block/${1##*/}/disksize")" = 0 ] ;;
    *) false ;;
    esac
}
down() {
    is_ours "$@" || return
    swapoff "$1" 2>/dev/null
    if [ -z "$2" ]; then rm -f "$1"; return; fi
    tries=50
    until echo "$2" 2>/dev/null >"$3"; do
        [ $((tries -= 1)) -gt 0 ] || return
        sleep 0.1
    done
}
sized=
while read -r said; do sized=$said; done
if ! command -v flock >/dev/null 2>&1 || flock -n 1; then down "$@"; exit; fi
{ flock 1; down "$@"; } <&- &
exit 3
"#;
/// Tells the sentinel that the device's size is from this process.
const SIZED: &[u8] = b"sized\n";
const LEFT_TO_OTHERS: i32 = 3;
const SHELL: &str = "/bin/sh";
/// Where the sentinel finds its programs: the caller's PATH may lack swapoff (cron, `su`).
const SENTINEL_PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

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
    sentinel: Child,
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
        let is_left_to_others = self.end();
        match swap_state() {
            Ok(_) if is_left_to_others => Ok(()),
            Ok(state) if !state.has(&self.path) => Ok(()),
            _ => Err(SwapError::StillThere(self.path.clone())),
        }
    }

    /// Returns whether the swap stays because others share it.
    fn end(&mut self) -> bool {
        drop(self.sentinel.stdin.take());
        // Waiting cannot fail: nobody else waits for the sentinel, and a second wait returns the same status.
        self.sentinel.wait().is_ok_and(|status| status.code() == Some(LEFT_TO_OTHERS))
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        self.end();
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
    value: String,
    freeing: PathBuf,
    label: &'static [u8; header::LABEL_BYTES],
}

fn ours() -> Option<Ours> {
    let devices = swap_state().unwrap_or_default().devices;
    devices.into_iter().find_map(|SwapDevice { path, kind, .. }| match kind {
        SwapKind::Zram => {
            let number = zram_name(&path)?.strip_prefix("zram")?.parse().ok()?;
            let found = header::label(&zram_device(number).ok()?).ok()?;
            let label = [&ADDED, &FOUND].into_iter().find(|label| **label == found)?;
            let (value, freeing) = freeing(number, *label == ADDED);
            Some(Ours { path, value, freeing, label })
        }
        SwapKind::File => {
            let folder =
                path.parent().filter(|_| path.file_name().is_some_and(|name| name == FILE))?;
            let folder = own_dir(folder).ok()?;
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = rustix::fs::openat(&folder, FILE, flags, Mode::empty()).ok()?;
            let label = header::label(&File::from(file)).ok()?;
            let (value, freeing) = (String::new(), PathBuf::new());
            (label == FOUND).then_some(Ours { path, value, freeing, label: &FOUND })
        }
        SwapKind::Partition => None,
    })
}

impl Ours {
    /// Joins this swap. `lock` is held in shared mode.
    fn join(self, lock: File) -> Result<Swap, SwapError> {
        let Ours { path, value, freeing, label } = self;
        let mut swap = guarded(path, &value, &freeing, label, lock)?;
        swap.joined = true;
        Ok(swap)
    }
}

fn on_zram(lock: File, bytes: u64) -> Result<Swap, SwapError> {
    let (number, added) = free_zram()?;
    let path = PathBuf::from(format!("/dev/zram{number}"));
    let (value, freeing) = freeing(number, added);
    let label = if added { &ADDED } else { &FOUND };
    let swap = guarded(path, &value, &freeing, label, lock)?;
    let mut pipe = swap.sentinel.stdin.as_ref();
    let path = &swap.path;
    let refused = |doing| move |error| SwapError::Refused { doing, path: path.clone(), error };
    let set = |name: &str, value: String| std::fs::write(setting(number, name), value);
    // If the kernel lacks this algorithm, its default will do.
    let _ = set("comp_algorithm", "lz4".to_owned());
    set("disksize", bytes.to_string()).map_err(refused("sizing"))?;
    if let Some(pipe) = &mut pipe {
        pipe.write_all(SIZED).map_err(refused("guarding"))?;
    }
    let device = zram_device(number).map_err(refused("opening"))?;
    header::write(&device, bytes, label).map_err(refused("writing to"))?;
    swap_on(&by_descriptor(&device), path, SWAP_FLAG_PREFER | ZRAM_PRIORITY)?;
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
    let swap = guarded(path.clone(), "", Path::new(""), &FOUND, lock)?;
    // The kernel accepts no holes in swap files.
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes)
        .map_err(|error| refused(error.into()))?;
    header::write(&file, bytes, &FOUND).map_err(refused)?;
    swap_on(&by_descriptor(&file), &path, 0)?;
    Ok(swap)
}

/// A path that leads to exactly this open file, even after its name was given to another file.
fn by_descriptor(file: &impl AsRawFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

fn free_bytes(folder: &OwnedFd) -> Option<u64> {
    let found = rustix::fs::fstatvfs(folder).ok()?;
    Some(found.f_bavail * found.f_frsize)
}

/// Starts the sentinel for swap that is not turned on yet.
fn guarded(
    path: PathBuf,
    value: &str,
    freeing: &Path,
    label: &[u8; header::LABEL_BYTES],
    lock: File,
) -> Result<Swap, SwapError> {
    let refused = |error| SwapError::Refused { doing: "starting", path: SHELL.into(), error };
    let kept = lock.try_clone().map_err(refused)?;
    let mut command = Command::new(SHELL);
    command.env("PATH", SENTINEL_PATH);
    command.args(["-c", SENTINEL, "wave-swap"]).arg(&path).arg(value).arg(freeing);
    command.arg(String::from_utf8_lossy(label).trim_end_matches('\0'));
    // Its standard output is the lock file, so that it holds the lock.
    command.stdin(Stdio::piped()).stdout(kept).stderr(Stdio::null()).current_dir("/");
    let own_session = || rustix::process::setsid().map(|_| ()).map_err(io::Error::from);
    // SAFETY: a system call, which may be made between fork and exec.
    let sentinel = unsafe { command.pre_exec(own_session) }.spawn().map_err(refused)?;
    Ok(Swap { path, sentinel, _lock: lock, joined: false })
}

/// Turns swap on. `what` is the path given to the kernel, `path` the one for messages.
fn swap_on(what: &Path, path: &Path, flags: i32) -> Result<(), SwapError> {
    let name = CString::new(what.as_os_str().as_bytes()).unwrap_or_default();
    // SAFETY: the kernel reads the name, which ends with a zero.
    match unsafe { libc::swapon(name.as_ptr(), flags) } {
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
        swap_off(&device);
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
        swap_off(&file);
        rustix::fs::unlinkat(&folder, FILE, AtFlags::empty())?;
    }
    Ok(())
}

/// Opens the kernel's zram device of this number. Fails if another file has its name.
fn zram_device(number: u32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).custom_flags(libc::O_NOFOLLOW);
    let device = options.open(format!("/dev/zram{number}"))?;
    let found = device.metadata()?;
    let (major, minor) = (libc::major(found.rdev()), libc::minor(found.rdev()));
    let kernels = std::fs::read_to_string(setting(number, "dev"))?;
    match found.file_type().is_block_device() && kernels.trim() == format!("{major}:{minor}") {
        true => Ok(device),
        false => {
            Err(io::Error::other(format!("/dev/zram{number} is not a zram device of this number")))
        }
    }
}

/// Turns swap off for this open file or device, if it is swap.
fn swap_off(file: &File) {
    let path = by_descriptor(file);
    let name = CString::new(path.as_os_str().as_bytes()).unwrap_or_default();
    // SAFETY: the kernel reads the name, which ends with a zero.
    unsafe { libc::swapoff(name.as_ptr()) };
}

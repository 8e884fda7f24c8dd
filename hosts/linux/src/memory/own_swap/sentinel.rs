//! The sentinel: a process that takes swap down once its owner has ended.
//!
//! It is a copy of its owner that starts no program. swapoff(8) looks up where a path leads and passes the result on, so only the
//! system call itself turns swap off for a file that is already open. A copy of a process with threads may make system calls,
//! but not allocate: what [`Watch`] needs is prepared before.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::super::swap::header::{self, LABEL_BYTES};

/// Exit codes. Others mean that the sentinel was killed.
const TAKEN_DOWN: i32 = 0;
const LEFT_TO_OTHERS: i32 = 3;
const STILL_THERE: i32 = 4;
/// Attempts to free a device, and the time between two: other programs inspect devices that appear or disappear, and so hold
/// them for a moment.
const TRIES: u32 = 50;
const BETWEEN_TRIES: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Tells the sentinel that the device's size is from its owner.
const SIZED: &[u8] = b"sized";

/// Swap that a sentinel takes down.
pub(super) struct Guarded {
    /// The device or file, opened by `O_PATH`, which keeps no device in use.
    pub target: OwnedFd,
    pub label: [u8; LABEL_BYTES],
    pub backing: Backing,
}

/// What is left to do after swap was turned off.
pub(super) enum Backing {
    /// Remove the file of this name from this folder, if it is the guarded one.
    File { folder: OwnedFd, name: CString },
    /// Write `word` to `freeing`. `size` tells the device's size. Both are files of sysfs.
    Zram { word: String, freeing: CString, size: CString },
}

/// How a sentinel has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// No swap of ours is left.
    TakenDown,
    /// Others share the swap.
    LeftToOthers,
    /// The kernel did not turn the swap off, or the sentinel was killed.
    StillThere,
}

/// A running sentinel. It starts its work when this is dropped, or when this process ends in any other way.
#[derive(Debug)]
pub(super) struct Sentinel(Child);

impl Sentinel {
    /// Starts the sentinel of swap that need not be turned on yet. The sentinel holds `lock`, too.
    pub(super) fn start(guarded: Guarded, lock: File) -> io::Result<Sentinel> {
        let watch = Watch { open_again: open_again(&guarded.target), guarded };
        // This program is not started: the copy does not return from the closure. `spawn` returns once the copy has closed the
        // descriptors that it does not need.
        let mut command = Command::new("wave-swap-sentinel");
        command.stdin(Stdio::piped()).stdout(lock).stderr(Stdio::null()).current_dir("/");
        // SAFETY: the closure only makes system calls, and allocates nothing (`Watch`).
        unsafe { command.pre_exec(move || watch.run()) };
        command.spawn().map(Sentinel)
    }

    /// Tells the sentinel that this process has set the device's size: the sentinel may then free a device without a
    /// label.
    pub(super) fn announce_sized(&mut self) -> io::Result<()> {
        self.0.stdin.as_mut().map_or(Ok(()), |pipe| pipe.write_all(SIZED))
    }

    /// Has the swap taken down, unless others share it, and waits for that.
    pub(super) fn end(&mut self) -> Ended {
        drop(self.0.stdin.take());
        // Waiting cannot fail: nobody else waits for the sentinel, and a second wait returns the same status.
        match self.0.wait().ok().and_then(|status| status.code()) {
            Some(TAKEN_DOWN) => Ended::TakenDown,
            Some(LEFT_TO_OTHERS) => Ended::LeftToOthers,
            _ => Ended::StillThere,
        }
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        self.end();
    }
}

/// A path that leads to exactly this open file, even after its name was given to another file.
pub(super) fn by_descriptor(file: &impl AsRawFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// The path of [`by_descriptor`], for system calls.
pub(super) fn open_again(file: &impl AsRawFd) -> CString {
    c_path(&by_descriptor(file))
}

pub(super) fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
}

/// Turns swap off for the file or device at this path.
pub(super) fn swap_off(path: &CStr) -> Result<(), Errno> {
    // SAFETY: the kernel reads the path, which ends with a zero.
    match unsafe { libc::swapoff(path.as_ptr()) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// The work of the sentinel, on memory that its owner has prepared. Nothing here allocates, panics or takes a lock of the process.
struct Watch {
    guarded: Guarded,
    /// Leads to the guarded file; see [`by_descriptor`].
    open_again: CString,
}

impl Watch {
    /// Waits for the end of the owner, then takes the swap down. While others share the lock, a copy waits for it.
    fn run(&self) -> ! {
        self.detach();
        let is_sized = received_sized();
        // SAFETY: the standard output of this process is the lock, and stays open.
        let lock = unsafe { BorrowedFd::borrow_raw(libc::STDOUT_FILENO) };
        if rustix::fs::flock(lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            let flags = libc::SIGCHLD as libc::c_ulong;
            // SAFETY: this process has one thread. Without a stack, the child continues on a copy of this one.
            match unsafe { libc::syscall(libc::SYS_clone, flags, 0_u64, 0_u64, 0_u64, 0_u64) } {
                0 => while rustix::fs::flock(lock, FlockOperation::LockExclusive).is_err() {},
                // Without a copy, the next owner takes the swap down.
                _ => exit(LEFT_TO_OTHERS),
            }
        }
        exit(self.take_down(is_sized))
    }

    /// Leaves the owner's session, its signal handlers and its descriptors. Signals for the owner's group do not end this process.
    fn detach(&self) {
        let _ = rustix::process::setsid();
        let _ = rustix::thread::set_name(c"wave-swap");
        for signal in 1..=libc::SIGRTMAX() {
            let is_ignored =
                matches!(signal, libc::SIGHUP | libc::SIGINT | libc::SIGQUIT | libc::SIGTERM);
            // SAFETY: a system call; it sets no handler.
            unsafe { libc::signal(signal, if is_ignored { libc::SIG_IGN } else { libc::SIG_DFL }) };
        }
        let target = self.guarded.target.as_raw_fd();
        let other = match &self.guarded.backing {
            Backing::File { folder, .. } => folder.as_raw_fd(),
            Backing::Zram { .. } => target,
        };
        let (low, high) = (target.min(other) as u32, target.max(other) as u32);
        for (first, last) in [(3, low - 1), (low + 1, high - 1), (high + 1, u32::MAX)] {
            if first <= last {
                // SAFETY: nothing in this process uses these descriptors any more.
                unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
            }
        }
    }

    /// Returns the exit code.
    fn take_down(&self, is_sized: bool) -> i32 {
        if !self.is_ours(is_sized) {
            return TAKEN_DOWN;
        }
        match swap_off(&self.open_again) {
            // It may not have been turned on yet, or was turned off by others.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(_) => return STILL_THERE,
        }
        match &self.guarded.backing {
            Backing::File { folder, name } => self.remove(folder, name),
            Backing::Zram { word, freeing, .. } => free(word, freeing),
        }
        TAKEN_DOWN
    }

    /// Whether the device or file is still Wave's. Any program may take an unused device, or one from which the swap was removed
    /// meanwhile: a device without a label is ours only if it has no size, or the size that the owner has given it.
    fn is_ours(&self, is_sized: bool) -> bool {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(CWD, &self.open_again, flags, Mode::empty());
        let label = opened.ok().and_then(|file| header::label(&File::from(file)).ok());
        match label.unwrap_or_default() {
            label if label == self.guarded.label => true,
            label if label != [0; LABEL_BYTES] => false,
            _ => match &self.guarded.backing {
                Backing::File { .. } => true,
                Backing::Zram { size, .. } => is_sized || is_zero(size),
            },
        }
    }

    /// Removes the file's name, if it is still this file's. Linux removes no file by descriptor: between check and
    /// removal, only root could give the name to another file, as the folder is root's alone.
    fn remove(&self, folder: &OwnedFd, name: &CString) {
        let ours = rustix::fs::fstat(&self.guarded.target);
        let named = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
        if let (Ok(ours), Ok(named)) = (ours, named)
            && (ours.st_dev, ours.st_ino) == (named.st_dev, named.st_ino)
        {
            let _ = rustix::fs::unlinkat(folder, name, AtFlags::empty());
        }
    }
}

/// Waits until the owner's end of the pipe is closed. Returns whether it said [`SIZED`].
fn received_sized() -> bool {
    // SAFETY: the standard input of this process is the pipe, and stays open.
    let pipe = unsafe { BorrowedFd::borrow_raw(libc::STDIN_FILENO) };
    let (mut is_told, mut bytes) = (false, [0; 8]);
    loop {
        match rustix::io::read(pipe, &mut bytes) {
            Ok(0) => return is_told,
            Ok(_) => is_told = true,
            Err(Errno::INTR) => {}
            Err(_) => return is_told,
        }
    }
}

/// Whether a file of sysfs holds the number 0.
fn is_zero(path: &CString) -> bool {
    let mut bytes = [0; 8];
    let file = rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let count = file.and_then(|file| rustix::io::read(file, &mut bytes));
    count == Ok(2) && bytes.starts_with(b"0\n")
}

fn free(word: &str, freeing: &CString) {
    for _ in 0..TRIES {
        let file =
            rustix::fs::openat(CWD, freeing, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
        if file.and_then(|file| rustix::io::write(file, word.as_bytes())).is_ok() {
            return;
        }
        // SAFETY: a system call, with a valid time.
        unsafe { libc::nanosleep(&BETWEEN_TRIES, std::ptr::null_mut()) };
    }
}

fn exit(code: i32) -> ! {
    // SAFETY: ends this process, without the owner's handlers of exit(3).
    unsafe { libc::_exit(code) }
}

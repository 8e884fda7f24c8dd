//! A process whose memory is managed.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::process::{Lifetime, Stat};
use crate::target::{self, Group, TargetError};

/// A range of another process's addresses.
pub(super) fn iovec(address: u64, bytes: u64) -> libc::iovec {
    libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes as usize }
}

/// A process, held by a pidfd so that reuse of its id is noticed.
#[derive(Debug)]
pub struct Process {
    pid: i32,
    fd: OwnedFd,
}

impl Process {
    /// Opens a running process. Fails if this process may not read it or advise on its memory.
    pub fn open(pid: i32) -> Result<Process, TargetError> {
        target::check_process(pid)?;
        Process::hold(pid)
    }

    /// This process itself, for trying what works on this machine.
    pub(super) fn ourselves() -> Result<Process, TargetError> {
        Process::hold(std::process::id() as i32)
    }

    /// As [`Process::open`]; fails if another process has got the id since it was listed.
    pub(super) fn open_listed((pid, started): Lifetime) -> Result<Process, TargetError> {
        let process = Process::open(pid)?;
        match Stat::read(pid).is_some_and(|now| now.started == started) {
            true => Ok(process),
            false => Err(TargetError::Ended(pid)),
        }
    }

    fn hold(pid: i32) -> Result<Process, TargetError> {
        // SAFETY: takes numbers; nothing else owns the returned descriptor.
        let fd = unsafe {
            match libc::syscall(libc::SYS_pidfd_open, pid, 0) {
                fd if fd >= 0 => OwnedFd::from_raw_fd(fd as i32),
                _ => return Err(refused(pid, io::Error::last_os_error())),
            }
        };
        let process = Process { pid, fd };
        // Empty advice shows whether advice would be accepted.
        process.advise(&[], libc::MADV_COLD).map_err(|error| refused(pid, error))?;
        Ok(process)
    }

    /// Process id in this process's namespace.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether the process still runs. Once false, it stays false.
    pub fn is_alive(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: `poll` is one entry, and ours to be written to for the call.
        unsafe { libc::poll(&mut poll, 1, 0) == 0 }
    }

    /// Copies ranges of the process's memory to `into`, one after another. Returns the number of bytes read, up to the first
    /// unreadable one.
    pub(super) fn read(&self, from: &[libc::iovec], into: &mut [u8]) -> usize {
        let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        let count = from.len() as libc::c_ulong;
        // SAFETY: the kernel writes only to `into`, at most its length; the addresses in `from` belong to the other
        // process.
        let read = unsafe { libc::process_vm_readv(self.pid, &local, 1, from.as_ptr(), count, 0) };
        // If it is alive, its id was not reused.
        usize::try_from(read).ok().filter(|_| self.is_alive()).unwrap_or(0)
    }

    /// Calls `process_madvise` once. Returns the number of bytes advised.
    pub(super) fn advise(&self, pieces: &[libc::iovec], advice: i32) -> io::Result<u64> {
        let fd = self.fd.as_raw_fd();
        let count = pieces.len();
        // SAFETY: the kernel reads `count` entries; their addresses belong to the other process.
        let done = unsafe {
            libc::syscall(libc::SYS_process_madvise, fd, pieces.as_ptr(), count, advice, 0)
        };
        u64::try_from(done).map_err(|_| io::Error::last_os_error())
    }
}

impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn refused(pid: i32, error: io::Error) -> TargetError {
    match error.raw_os_error() {
        Some(libc::ESRCH) => TargetError::Ended(pid),
        Some(libc::EPERM | libc::EACCES) => TargetError::NotPermitted { pid, error },
        _ => TargetError::Unreadable { pid, what: error.to_string() },
    }
}

/// The running processes of a group, without this one. A process's group is itself and its children.
pub fn processes_of(group: &Group) -> Result<Vec<i32>, TargetError> {
    Ok(lifetimes_of(group)?.into_iter().map(|(pid, _)| pid).collect())
}

/// The same with the start of each: its id may be reused.
pub(super) fn lifetimes_of(group: &Group) -> Result<Vec<Lifetime>, TargetError> {
    target::check(group)?;
    let found = match group {
        Group::Process(pid) => target::below(*pid),
        Group::Cgroup(path) => target::cgroup_processes(path)?,
    };
    let own = std::process::id() as i32;
    let mut found: Vec<Lifetime> = found.into_iter().filter(|(pid, _)| *pid != own).collect();
    found.sort_unstable();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_that_got_the_id_of_a_listed_one_is_refused() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id() as i32;
        let started = Stat::read(pid).unwrap().started;
        let opened = Process::open_listed((pid, started));
        let other = Process::open_listed((pid, started - 1));
        child.kill().unwrap();
        child.wait().unwrap();
        if let Err(error @ TargetError::NotPermitted { .. }) = opened {
            return wave_skip::skip(error);
        }
        assert_eq!(opened.unwrap().pid(), pid);
        assert!(matches!(other, Err(TargetError::Ended(ended)) if ended == pid));
    }
}

//! Sockets of an agent beside its door, at which tools ask.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, chmod, fchmod, fstat, open};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use rustix::process::geteuid;
use wave_links::socket::remove_stale;

/// Clients that wait to be accepted.
const BACKLOG: i32 = 128;

/// Binds a non-blocking socket with this mode beside a door that was bound. A socket that a killed agent left there is replaced.
pub(crate) fn bind_beside(path: &Path, mode: Mode) -> io::Result<UnixListener> {
    // The kernel takes a path that is a byte too long for Rust's clients.
    SocketAddr::from_pathname(path)?;
    remove_stale(path).map_err(io::Error::other)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // The file has at most this mode from its creation.
    fchmod(&socket, mode)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    // The umask may have taken bits away. They are given back to this user's socket only, in case another user, who owns the
    // folder, has put something in its place.
    let file = open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let found = fstat(&file)?;
    let is_socket = FileType::from_raw_mode(found.st_mode) == FileType::Socket;
    if !is_socket || found.st_uid != geteuid().as_raw() {
        return Err(io::Error::other("another user has put a file in the place of the socket"));
    }
    if Mode::from_raw_mode(found.st_mode) != mode {
        chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), mode)?;
    }
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    #[test]
    fn socket_beside_a_door_replaces_only_a_dead_one_and_changes_no_other_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("door.ss");
        let mode = || fs::symlink_metadata(&path).unwrap().mode() & 0o777;
        let first = bind_beside(&path, Mode::from_raw_mode(0o666)).unwrap();
        assert_eq!(mode(), 0o666);
        assert!(bind_beside(&path, Mode::RUSR | Mode::WUSR).is_err(), "somebody listens there");
        drop(first);
        bind_beside(&path, Mode::RUSR | Mode::WUSR).unwrap();
        assert_eq!(mode(), 0o600);
        fs::remove_file(&path).unwrap();

        let other = folder.path().join("other");
        fs::write(&other, "").unwrap();
        let before = fs::metadata(&other).unwrap().mode();
        symlink(&other, &path).unwrap();
        assert!(bind_beside(&path, Mode::from_raw_mode(0o666)).is_err());
        assert_eq!(fs::metadata(&other).unwrap().mode(), before);
    }
}

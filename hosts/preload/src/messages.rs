//! Lines for the program's user.

use std::os::fd::BorrowedFd;
use std::sync::OnceLock;

use rustix::fs::{OFlags, fcntl_getfl, fstat};
use rustix::net::{AddressFamily, sockopt};

use crate::sys;

/// A file: its device and inode.
type Identity = (u64, u64);

/// Standard error when the library was loaded; `None` if it was closed.
static AT_START: OnceLock<Option<Identity>> = OnceLock::new();

/// Remembers which file is standard error. Called when the library is loaded.
#[cfg_attr(test, allow(dead_code))]
pub fn remember_standard_error() {
    AT_START.get_or_init(|| identity(sys::fd(2)));
}

/// Writes a line to standard error. If the program has closed it, descriptor 2 may be a file or a connection of its own, into which
/// nothing is written.
pub fn warn_user(what: &str) {
    let at_start = AT_START.get().copied().flatten();
    if is_for_people(sys::fd(2), at_start) {
        let line = format!("libwave_toe: {what}\n");
        let _ = rustix::io::write(sys::fd(2), line.as_bytes());
    }
}

fn identity(file: BorrowedFd<'_>) -> Option<Identity> {
    fstat(file).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

/// Whether descriptor 2 is the file that it was at the start, unless a server has started the program with its connection there, or a log,
/// to which files are opened for appending.
fn is_for_people(file: BorrowedFd<'_>, at_start: Option<Identity>) -> bool {
    let is_log = || fcntl_getfl(file).is_ok_and(|flags| flags.contains(OFlags::APPEND));
    let is_connection = || {
        let family = sockopt::socket_domain(file);
        matches!(family, Ok(AddressFamily::INET | AddressFamily::INET6))
    };
    let is_one = |identity| Some(identity) == at_start && !is_connection();
    identity(file).is_some_and(|identity| is_one(identity) || is_log())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::net::TcpListener;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn nothing_is_written_to_a_file_or_connection_that_took_the_number_of_standard_error() {
        let folder = tempfile::tempdir().unwrap();
        let new = |name: &str| File::create(folder.path().join(name)).unwrap();
        let (error, data) = (new("error"), new("data"));
        let log = File::options().append(true).create(true).open(folder.path().join("log"));
        let log = log.unwrap();
        let (connection, _peer) = UnixStream::pair().unwrap();
        let at_start = identity(error.as_fd());
        let may = |file: BorrowedFd<'_>| is_for_people(file, at_start);
        assert!(may(error.as_fd()) && may(log.as_fd()));
        assert!(!may(data.as_fd()) && !may(connection.as_fd()));
        assert!(!is_for_people(data.as_fd(), None), "closed from the start");
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let at_start = identity(socket.as_fd());
        assert!(!is_for_people(socket.as_fd(), at_start), "a server's, for its child");
    }
}

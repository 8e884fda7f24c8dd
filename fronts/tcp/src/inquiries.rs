//! A socket at which programs such as `wave tcp ss` ask what the agent has. Nothing that they do holds it up.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use serde_json::Value;
use wave_core::clock::Nanos;

/// Inquiries that are answered at a time. Others wait in the socket's backlog.
const INQUIRIES_MAX: usize = 4;
/// Who takes nothing of an answer for so long is left.
const PATIENCE: Nanos = Nanos::from_millis(2_000);

/// A report that is younger is given again.
const FRESH: Nanos = Nanos::from_millis(100);

/// Where the socket for inquiries is, of an agent whose door is at `door`.
pub fn path_of(door: &Path) -> PathBuf {
    let mut name = door.as_os_str().to_owned();
    name.push(".ss");
    name.into()
}

/// A socket that never blocks, beside a door that was bound.
pub(crate) fn bind_beside(path: &Path) -> io::Result<UnixListener> {
    // The door's own socket was free, so that this one is a leftover of an agent that was killed, or ours by its name.
    match std::fs::symlink_metadata(path) {
        Ok(found) if std::os::unix::fs::FileTypeExt::is_socket(&found.file_type()) => {
            std::fs::remove_file(path)?;
        }
        Ok(_) => return Err(io::Error::other("something that is no socket is there")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let listener = UnixListener::bind(path)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The socket, and who was not answered in full yet.
#[derive(Debug)]
pub struct Inquiries {
    listener: UnixListener,
    path: PathBuf,
    open: Vec<Open>,
    /// The last report, and when it was made: whoever asks again and again does not keep the agent busy.
    latest: Option<(Nanos, Vec<u8>)>,
}

#[derive(Debug)]
struct Open {
    stream: UnixStream,
    answer: Vec<u8>,
    sent: usize,
    since: Nanos,
}

impl Inquiries {
    /// Listens beside a door that was bound: its path is ours.
    ///
    /// # Errors
    /// The path cannot be listened at.
    pub fn beside(door: &Path) -> io::Result<Inquiries> {
        let path = path_of(door);
        let listener = bind_beside(&path)?;
        // Everybody may look, as with ss(8).
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666))?;
        Ok(Inquiries { listener, path, open: Vec::new(), latest: None })
    }

    /// Goes on for another agent, with its listening socket.
    pub(crate) fn adopt(listener: OwnedFd, door: &Path) -> Inquiries {
        let path = path_of(door);
        Inquiries { listener: listener.into(), path, open: Vec::new(), latest: None }
    }

    pub(crate) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Answers who asks, as far as they take it.
    pub(crate) fn answer(&mut self, now: Nanos, report: impl Fn() -> Value) {
        while self.open.len() < INQUIRIES_MAX {
            let Ok((stream, _)) = self.listener.accept() else { break };
            if stream.set_nonblocking(true).is_ok() {
                if self.latest.as_ref().is_none_or(|(at, _)| now.since(*at) >= FRESH) {
                    self.latest = Some((now, report().to_string().into_bytes()));
                }
                let answer = self.latest.as_ref().map_or(Vec::new(), |(_, answer)| answer.clone());
                self.open.push(Open { stream, answer, sent: 0, since: now });
            }
        }
        self.open.retain_mut(|open| {
            loop {
                let left = &open.answer[open.sent..];
                if left.is_empty() {
                    return false;
                }
                match open.stream.write(left) {
                    Ok(0) => return false,
                    Ok(count) => {
                        open.sent += count;
                        open.since = now;
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        return now.since(open.since) < PATIENCE;
                    }
                    Err(_) => return false,
                }
            }
        });
    }

    /// Whether an answer waits for its reader, and is to be tried again soon.
    pub(crate) fn is_answering(&self) -> bool {
        !self.open.is_empty()
    }

    /// What to poll for input.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.listener.as_fd())
    }
}

impl Drop for Inquiries {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

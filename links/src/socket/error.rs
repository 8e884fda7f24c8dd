//! Errors of the socket between a host and an agent.

use std::io;
use std::path::PathBuf;

use super::{DOORBELLS_MAX, FILES_MAX, TEXT_BYTES_MAX};

/// An error on the socket between a host and an agent.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum SocketError {
    /// A system call on the path failed: this system or the path is at fault.
    #[error("cannot {what} {}: {source}", path.display())]
    Path { what: &'static str, path: PathBuf, source: io::Error },
    /// A system call on the socket failed.
    #[error("cannot {what}: {source}")]
    System { what: &'static str, source: io::Error },
    /// The caller's fault: the path does not fit into a socket address.
    #[error("{} is too long for a socket's path", .0.display())]
    PathTooLong(PathBuf),
    /// Another process listens there.
    #[error("another process listens on {}", .0.display())]
    InUse(PathBuf),
    /// Something that is not a socket lies there, and is left alone.
    #[error("{} exists and is not a socket", .0.display())]
    NotASocket(PathBuf),
    /// Another user's socket lies there, and is left alone.
    #[error("{} is a socket of user {uid}, and is not replaced", path.display())]
    AnotherUsers { path: PathBuf, uid: u32 },
    /// The caller's fault: the folder is missing. It is not created, so that a mistyped path leaves nothing behind.
    #[error("the folder of {} does not exist: create it, or name a socket in another folder", .0.display())]
    NoFolder(PathBuf),
    /// The peer's fault: it runs as a user who is not allowed.
    #[error("process {pid} runs as user {uid}, who may not use this link")]
    Stranger {
        uid: u32,
        /// The peer's process when it connected, as the kernel reports it.
        pid: i32,
    },
    /// The host refused this agent, for the given reason.
    #[error("the host refused: {0}")]
    Refused(String),
    /// The two sides were built for different versions.
    #[error("the host offers version {theirs}, this agent needs {ours}")]
    Version { ours: u32, theirs: u32 },
    /// The peer's fault: this is not an offer.
    #[error("the peer's answer is not an offer: {0}")]
    Malformed(&'static str),
    /// The caller's fault: the offer exceeds a bound.
    #[error(
        "an offer has at most {DOORBELLS_MAX} doorbells, {FILES_MAX} files and {TEXT_BYTES_MAX} bytes of text"
    )]
    TooLarge,
    /// The peer did not answer in time.
    #[error("the host did not answer in time")]
    Timeout,
    /// The peer closed the connection.
    #[error("the peer hung up")]
    HungUp,
}

impl SocketError {
    /// Whether the system lacks descriptors or memory: the same call may succeed later.
    pub fn is_shortage(&self) -> bool {
        let SocketError::System { source, .. } = self else { return false };
        matches!(
            source.raw_os_error(),
            Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)
        )
    }
}

//! How an agent comes by its window: one message over a Unix socket, from host to agent.
//!
//! The agent connects; the host checks who it is and answers with an *offer* (the window's file,
//! the doorbells and a description of the link) or a *refusal* (a sentence). Nothing else is ever
//! said here: the handshake lies in the window, and the open connection only tells each side
//! whether the other still lives. Sockets are `SOCK_SEQPACKET`, so that the answer is one message.
//!
//! Neither side believes the other: credentials are the kernel's, sizes are checked, descriptors
//! beyond those announced are closed, and nothing blocks longer than the caller says.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::ancillary;
use crate::doorbell::poll;
use crate::memory::check;

/// Most doorbells in one offer (the kernel passes at most 253 descriptors in a message).
pub const DOORBELLS_MAX: usize = 249;
/// Most bytes of text in an offer or refusal.
pub const TEXT_BYTES_MAX: usize = 64 * 1024;

const MAGIC: u64 = u64::from_le_bytes(*b"wavelink");
const KIND_OFFER: u32 = 1;
const KIND_REFUSAL: u32 = 2;
const HEADER_BYTES: usize = 40;

/// What can go wrong between a host's and an agent's socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// This system's fault, or the caller's path.
    #[error("cannot {what} {}: {source}", path.display())]
    Path {
        /// What was tried.
        what: &'static str,
        /// On which path.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// This system's fault.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// The caller's fault: the path does not fit into a socket address.
    #[error("{} is too long for a socket's path", .0.display())]
    PathTooLong(PathBuf),
    /// Another host listens there.
    #[error("another process listens on {}", .0.display())]
    InUse(PathBuf),
    /// Something that is not a socket lies there, and is left alone.
    #[error("{} exists and is not a socket", .0.display())]
    NotASocket(PathBuf),
    /// The peer's fault: it runs as a user that was not allowed.
    #[error("process {pid} runs as user {uid}, who may not use this link")]
    Stranger {
        /// Its effective user.
        uid: u32,
        /// Its process, as the kernel knew it when it connected.
        pid: i32,
    },
    /// The host did not want us, and says why.
    #[error("the host refused: {0}")]
    Refused(String),
    /// The two sides were built for different versions.
    #[error("the host offers version {theirs}, this agent needs {ours}")]
    Version {
        /// This side's.
        ours: u32,
        /// The offer's.
        theirs: u32,
    },
    /// The peer's fault: this is not an offer.
    #[error("the peer's answer is not an offer: {0}")]
    Malformed(&'static str),
    /// The caller's fault: the offer exceeds a bound.
    #[error("an offer has at most {DOORBELLS_MAX} doorbells and {TEXT_BYTES_MAX} bytes of text")]
    TooLarge,
    /// No answer in time.
    #[error("the host did not answer in time")]
    Timeout,
    /// The peer closed the connection.
    #[error("the peer hung up")]
    HungUp,
}

/// What the host hands to an agent.
#[derive(Clone, Debug)]
pub struct Offer<'a> {
    /// The version of everything in the window; checked first.
    pub version: u32,
    /// Lines of the NIC, host and extra regions.
    pub lines: [u32; 3],
    /// The window's file, sealed.
    pub memory: BorrowedFd<'a>,
    /// The doorbells, by vector.
    pub doorbells: &'a [BorrowedFd<'a>],
    /// The link's kind and costs, as text (see [`crate::LinkSpec::to_text`]).
    pub link: &'a str,
}

/// What an agent received. Nothing in it was checked against anything else yet:
/// [`crate::Memory::map`] checks file and lines.
#[derive(Debug)]
pub struct ReceivedOffer {
    /// Lines of the NIC, host and extra regions.
    pub lines: [u32; 3],
    /// The window's file.
    pub memory: OwnedFd,
    /// The doorbells, by vector.
    pub doorbells: Vec<OwnedFd>,
    /// The link's kind and costs, as text.
    pub link: String,
}

/// Where a host waits for agents. Its file is removed on drop.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    path: PathBuf,
    file: (u64, u64),
    allowed: Vec<u32>,
}

impl Listener {
    /// Listens on `path` (mode 0600, in a directory made with mode 0700 where there is none) for
    /// agents of our own user, of root and of the users in `allowed`. A socket's file that nobody
    /// listens on is replaced; anything else there is an error.
    pub fn bind(path: &Path, allowed: &[u32]) -> Result<Listener, SocketError> {
        let failed = |what, source| SocketError::Path { what, path: path.into(), source };
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            let mut builder = fs::DirBuilder::new();
            builder.recursive(true).mode(0o700).create(parent).map_err(|e| failed("create", e))?;
        }
        remove_stale(path)?;
        let fd = socket()?;
        with_address(path, |address, length| {
            // SAFETY: `address` is valid for reads of `length` bytes.
            check(unsafe { libc::bind(fd.as_raw_fd(), address, length) })
        })?
        .map_err(|e| failed("bind", e))?;
        // Nobody can connect before `listen`, so the file's mode holds from the start.
        let mode = fs::Permissions::from_mode(0o600);
        fs::set_permissions(path, mode).map_err(|e| failed("set the mode of", e))?;
        let metadata = fs::symlink_metadata(path).map_err(|e| failed("stat", e))?;
        let file = (metadata.dev(), metadata.ino());
        let listener = Listener { fd, path: path.into(), file, allowed: allowed.into() };
        // SAFETY: no memory is involved.
        check(unsafe { libc::listen(listener.fd.as_raw_fd(), 16) })
            .map_err(|e| failed("listen on", e))?;
        Ok(listener)
    }

    /// The next agent, if one waits. Never blocks.
    ///
    /// # Errors
    ///
    /// [`SocketError::Stranger`] names a user that was turned away; listening goes on.
    pub fn accept(&self) -> Result<Option<Connection>, SocketError> {
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let null = std::ptr::null_mut();
        // SAFETY: null asks for no address.
        let raw = unsafe { libc::accept4(self.fd.as_raw_fd(), null, null.cast(), flags) };
        let raw = match check(raw) {
            Ok(raw) => raw,
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR | libc::ECONNABORTED) => return Ok(None),
                _ => {
                    return Err(SocketError::System { what: "accept an agent", source: error });
                }
            },
        };
        // SAFETY: `raw` was just opened and belongs to nobody else.
        let connection = Connection::over(unsafe { OwnedFd::from_raw_fd(raw) })?;
        match connection.check_peer(&self.allowed) {
            Ok(()) => Ok(Some(connection)),
            Err(stranger) => {
                let _ = connection.refuse("this user may not use this link");
                Err(stranger)
            }
        }
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Only our own file: a successor may have replaced it.
        let ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.file);
        if ours {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// One host and one agent.
#[derive(Debug)]
pub struct Connection {
    fd: OwnedFd,
    peer: libc::ucred,
}

impl Connection {
    /// Connects to the host that listens on `path`, which must run as our own user or root.
    pub fn connect(path: &Path) -> Result<Connection, SocketError> {
        Connection::connect_allowing(path, &[])
    }

    /// As [`Connection::connect`], to a host that may also run as one of the users in `allowed`.
    pub fn connect_allowing(path: &Path, allowed: &[u32]) -> Result<Connection, SocketError> {
        let fd = socket()?;
        with_address(path, |address, length| {
            // SAFETY: `address` is valid for reads of `length` bytes.
            check(unsafe { libc::connect(fd.as_raw_fd(), address, length) })
        })?
        .map_err(|source| SocketError::Path {
            what: "connect to",
            path: path.into(),
            source,
        })?;
        let connection = Connection::over(fd)?;
        connection.check_peer(allowed)?;
        Ok(connection)
    }

    /// Sends the offer (the host's side). Never blocks.
    pub fn send_offer(&self, offer: &Offer<'_>) -> Result<(), SocketError> {
        if offer.doorbells.len() > DOORBELLS_MAX || offer.link.len() > TEXT_BYTES_MAX {
            return Err(SocketError::TooLarge);
        }
        let mut fds = vec![offer.memory];
        fds.extend_from_slice(offer.doorbells);
        let header = Header {
            version: offer.version,
            kind: KIND_OFFER,
            lines: offer.lines,
            doorbells: offer.doorbells.len() as u32,
            text_bytes: offer.link.len() as u32,
        };
        self.send(&header, offer.link, &fds)
    }

    /// Says why there will be no offer (the host's side). Never blocks; what exceeds
    /// [`TEXT_BYTES_MAX`] is cut off.
    pub fn refuse(&self, why: &str) -> Result<(), SocketError> {
        let mut end = why.len().min(TEXT_BYTES_MAX);
        while !why.is_char_boundary(end) {
            end -= 1;
        }
        let why = &why[..end];
        let header = Header {
            version: 0,
            kind: KIND_REFUSAL,
            lines: [0; 3],
            doorbells: 0,
            text_bytes: why.len() as u32,
        };
        self.send(&header, why, &[])
    }

    /// Waits for the host's answer (the agent's side), for ever where there is no `timeout`.
    ///
    /// # Errors
    ///
    /// [`SocketError::Refused`] carries the host's words, [`SocketError::Version`] both versions.
    pub fn receive_offer(
        &self,
        version: u32,
        timeout: Option<Duration>,
    ) -> Result<ReceivedOffer, SocketError> {
        let failed = |source| SocketError::System { what: "receive an offer", source };
        if poll(self.as_fd(), libc::POLLIN, timeout).map_err(failed)? == 0 {
            return Err(SocketError::Timeout);
        }
        let mut bytes = vec![0; HEADER_BYTES + TEXT_BYTES_MAX];
        let received = ancillary::receive(self.as_fd(), &mut bytes).map_err(failed)?;
        let bytes = &bytes[..received.bytes];
        if bytes.is_empty() {
            return Err(SocketError::HungUp);
        }
        let (header, text) = Header::parse(bytes)?;
        if header.kind == KIND_OFFER && header.version != version {
            return Err(SocketError::Version { ours: version, theirs: header.version });
        }
        let text = text
            .get(..header.text_bytes as usize)
            .ok_or(SocketError::Malformed("it has less text than it announces"))?;
        if header.kind == KIND_REFUSAL {
            return Err(SocketError::Refused(String::from_utf8_lossy(text).into_owned()));
        }
        if header.kind != KIND_OFFER {
            return Err(SocketError::Malformed("its kind is unknown"));
        }
        if received.truncated {
            return Err(SocketError::Malformed("some of its descriptors were lost"));
        }
        if received.fds.len() != header.doorbells as usize + 1 {
            return Err(SocketError::Malformed("it has other descriptors than it announces"));
        }
        let link = str::from_utf8(text)
            .map_err(|_| SocketError::Malformed("its text is not UTF-8"))?
            .to_owned();
        let mut fds = received.fds.into_iter();
        let memory = fds.next().expect("there is one more than doorbells");
        Ok(ReceivedOffer { lines: header.lines, memory, doorbells: fds.collect(), link })
    }

    /// Whether the peer has closed its end or died.
    pub fn hung_up(&self) -> bool {
        let gone = libc::POLLHUP | libc::POLLRDHUP | libc::POLLERR;
        poll(self.as_fd(), gone, Some(Duration::ZERO)).is_ok_and(|events| events & gone != 0)
    }

    /// Whether the peer still holds its end.
    pub fn is_alive(&self) -> bool {
        !self.hung_up()
    }

    /// The peer's process when it connected (or, seen from the agent, when it began to listen).
    /// Zero where it is outside our process namespace.
    pub fn peer_pid(&self) -> i32 {
        self.peer.pid
    }

    /// The peer's effective user at that time.
    pub fn peer_uid(&self) -> u32 {
        self.peer.uid
    }

    fn over(fd: OwnedFd) -> Result<Connection, SocketError> {
        let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: `peer` is valid for writes of `length` bytes, and `length` for reads and writes.
        check(unsafe {
            libc::getsockopt(
                fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut peer).cast(),
                &mut length,
            )
        })
        .map_err(|source| SocketError::System { what: "read the peer's credentials", source })?;
        Ok(Connection { fd, peer })
    }

    fn check_peer(&self, allowed: &[u32]) -> Result<(), SocketError> {
        let uid = self.peer.uid;
        // SAFETY: no memory is involved.
        let ours = unsafe { libc::geteuid() };
        if may_attach(uid, ours, allowed) {
            Ok(())
        } else {
            Err(SocketError::Stranger { uid, pid: self.peer.pid })
        }
    }

    fn send(&self, header: &Header, text: &str, fds: &[BorrowedFd<'_>]) -> Result<(), SocketError> {
        let mut bytes = header.to_bytes().to_vec();
        bytes.extend_from_slice(text.as_bytes());
        ancillary::send(self.as_fd(), &bytes, fds).map_err(|source| match source.raw_os_error() {
            Some(libc::EPIPE | libc::ECONNRESET) => SocketError::HungUp,
            _ => SocketError::System { what: "answer an agent", source },
        })
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The fixed part of an answer, little-endian: magic (8 bytes), version, kind, lines (3),
/// doorbells, bytes of text, zero (4 bytes each). Magic, version and kind never move.
struct Header {
    version: u32,
    kind: u32,
    lines: [u32; 3],
    doorbells: u32,
    text_bytes: u32,
}

impl Header {
    fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
        let [nic, host, extra] = self.lines;
        let fields = [self.version, self.kind, nic, host, extra, self.doorbells, self.text_bytes];
        for (field, target) in fields.iter().zip(bytes[8..].chunks_exact_mut(4)) {
            target.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    fn parse(bytes: &[u8]) -> Result<(Header, &[u8]), SocketError> {
        let (header, text) = bytes
            .split_first_chunk::<HEADER_BYTES>()
            .ok_or(SocketError::Malformed("it is too short"))?;
        if header[..8] != MAGIC.to_le_bytes() {
            return Err(SocketError::Malformed("it does not begin with the magic word"));
        }
        let mut fields = [0; 7];
        for (field, source) in fields.iter_mut().zip(header[8..].chunks_exact(4)) {
            *field = u32::from_le_bytes(source.try_into().expect("chunks of four"));
        }
        let [version, kind, nic, host, extra, doorbells, text_bytes] = fields;
        let lines = [nic, host, extra];
        Ok((Header { version, kind, lines, doorbells, text_bytes }, text))
    }
}

fn may_attach(uid: u32, ours: u32, allowed: &[u32]) -> bool {
    uid == ours || uid == 0 || allowed.contains(&uid)
}

fn socket() -> Result<OwnedFd, SocketError> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no memory is involved.
    let raw = check(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })
        .map_err(|source| SocketError::System { what: "create a socket", source })?;
    // SAFETY: `raw` was just opened and belongs to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Removes a socket's file that nobody listens on.
fn remove_stale(path: &Path) -> Result<(), SocketError> {
    let failed = |what, source| SocketError::Path { what, path: path.into(), source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("stat", error)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(SocketError::NotASocket(path.into()));
        }
        Ok(_) => {}
    }
    let probe = socket()?;
    let answer = with_address(path, |address, length| {
        // SAFETY: `address` is valid for reads of `length` bytes.
        check(unsafe { libc::connect(probe.as_raw_fd(), address, length) })
    })?;
    match answer.map_err(|error| error.raw_os_error()) {
        Err(Some(libc::ECONNREFUSED)) => {
            fs::remove_file(path).map_err(|error| failed("remove the stale", error))
        }
        Err(Some(libc::ENOENT)) => Ok(()),
        _ => Err(SocketError::InUse(path.into())),
    }
}

/// Calls `use_address` with the socket address of `path`.
fn with_address<R>(
    path: &Path,
    use_address: impl FnOnce(*const libc::sockaddr, libc::socklen_t) -> R,
) -> Result<R, SocketError> {
    // SAFETY: all-zero is a valid `sockaddr_un`.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    // One byte stays zero; a path with a zero byte, or none, would name another kind of address.
    if bytes.len() >= address.sun_path.len() || bytes.is_empty() || bytes.contains(&0) {
        return Err(SocketError::PathTooLong(path.into()));
    }
    for (target, byte) in address.sun_path.iter_mut().zip(bytes) {
        *target = *byte as libc::c_char;
    }
    let length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    Ok(use_address((&raw const address).cast(), length))
}

#[cfg(test)]
#[path = "socket_tests.rs"]
mod tests;

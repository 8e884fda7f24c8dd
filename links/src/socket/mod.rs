//! Hands a window to an agent: one message over a Unix socket, from host to agent.
//!
//! Either side listens. Where an agent serves one host, the host listens, checks the connecting process, and answers with an
//! *offer* (the window's file, the doorbells and a description of the link) or a *refusal* (a sentence). Where an agent serves
//! many processes, it listens, and a process that connects sends its offer; the agent may answer with a refusal. Nothing else
//! is ever sent here: the handshake lies in the window, and the open connection only tells each side whether the other still
//! lives. Sockets are `SOCK_SEQPACKET`, so that each offer or refusal is one message.
//!
//! Neither side trusts the other: credentials come from the kernel, sizes are checked, descriptors
//! beyond those announced are closed, and nothing blocks longer than the caller allows.

mod error;

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::Mode;
use rustix::process::geteuid;
use wave_core::subsystem::SubsystemId;

use crate::ancillary;
use crate::doorbell::poll;
use crate::memory::check;
use wave_process::places::{is_dead, remove_socket};

pub use self::error::SocketError;

/// The most doorbells in one offer (the kernel passes at most 253 descriptors in a message).
pub const DOORBELLS_MAX: usize = 249;
/// The most descriptors in one message ([`Connection::send_descriptors`]).
pub const DESCRIPTORS_MAX: usize = 253;
/// The most files in one offer, in addition to the window's.
pub const FILES_MAX: usize = 3;
/// The most bytes of text in an offer or refusal.
pub const TEXT_BYTES_MAX: usize = 64 * 1024;

const MAGIC: u64 = u64::from_le_bytes(*b"wavelink");
const KIND_OFFER: u32 = 1;
const KIND_REFUSAL: u32 = 2;
const HEADER_BYTES: usize = 40;

/// A window, as a host offers it to an agent.
#[derive(Clone, Debug)]
pub struct Offer<'a> {
    /// The version of everything in the window; checked first.
    pub version: u32,
    /// The window's subsystem.
    pub subsystem: SubsystemId,
    /// Lines of the NIC, host and extra regions.
    pub lines: [u32; 3],
    /// The window's file, sealed.
    pub memory: BorrowedFd<'a>,
    /// The doorbells, by vector.
    pub doorbells: &'a [BorrowedFd<'a>],
    /// Further files, as the subsystem defines: at most [`FILES_MAX`].
    pub files: &'a [BorrowedFd<'a>],
    /// The link's kind and costs, as text (see [`crate::LinkSpec::to_text`]).
    pub link: &'a str,
}

/// An offer as an agent received it. Its parts are not yet checked against each other:
/// [`crate::Memory::map`] checks file and lines.
#[derive(Debug)]
pub struct ReceivedOffer {
    /// The subsystem, as the host claims.
    pub subsystem: SubsystemId,
    /// Lines of the NIC, host and extra regions.
    pub lines: [u32; 3],
    /// The memory file of the window.
    pub memory: OwnedFd,
    /// The doorbells, by vector.
    pub doorbells: Vec<OwnedFd>,
    /// Further files, as the subsystem defines.
    pub files: Vec<OwnedFd>,
    /// The link's kind and costs, as text.
    pub link: String,
}

/// A socket on which one side waits for the other to connect. Its file is removed on drop.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    path: PathBuf,
    file: (u64, u64),
    allowed: Vec<u32>,
}

impl Listener {
    /// Listens on `path` (mode 0600, in a folder that must exist) for processes of this user, of root and of the users in
    /// `allowed`. A socket of this user that nobody listens on is replaced; anything else there is an error, also a link.
    pub fn bind(path: &Path, allowed: &[u32]) -> Result<Listener, SocketError> {
        let failed = |what, source| SocketError::Path { what, path: path.into(), source };
        remove_stale(path)?;
        let fd = socket()?;
        // The file gets this mode at its creation, so that no file put in its place has its mode changed.
        rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR)
            .map_err(|error| failed("set the mode of", error.into()))?;
        with_address(path, |address, length| {
            // SAFETY: `address` is valid for reads of `length` bytes.
            check(unsafe { libc::bind(fd.as_raw_fd(), address, length) })
        })?
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => SocketError::NoFolder(path.into()),
            _ => failed("bind", error),
        })?;
        let metadata = fs::symlink_metadata(path).map_err(|e| failed("stat", e))?;
        let file = (metadata.dev(), metadata.ino());
        let listener = Listener { fd, path: path.into(), file, allowed: allowed.into() };
        // SAFETY: no memory is involved.
        check(unsafe { libc::listen(listener.fd.as_raw_fd(), 16) })
            .map_err(|e| failed("listen on", e))?;
        Ok(listener)
    }

    /// The next connection, if one waits. Never blocks.
    ///
    /// # Errors
    ///
    /// [`SocketError::Stranger`] names a user who was turned away; listening continues.
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
                    return Err(SocketError::System { what: "accept a connection", source: error });
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

    /// Takes over the listening socket of another process. Its file at `path` belongs to this process from then on: the other
    /// process must not drop its [`Listener`].
    ///
    /// # Errors
    /// The file does not exist.
    pub fn adopt(fd: OwnedFd, path: &Path, allowed: &[u32]) -> Result<Listener, SocketError> {
        let metadata = fs::symlink_metadata(path).map_err(|source| SocketError::Path {
            what: "stat",
            path: path.into(),
            source,
        })?;
        let file = (metadata.dev(), metadata.ino());
        Ok(Listener { fd, path: path.into(), file, allowed: allowed.into() })
    }

    /// Path that the socket is bound to.
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
        // Only this listener's own file: a successor may have replaced it.
        let _ = remove_socket(&self.path, |found| (found.st_dev, found.st_ino) == self.file);
    }
}

/// A connection of one host and one agent, whichever of them listens.
#[derive(Debug)]
pub struct Connection {
    fd: OwnedFd,
    peer: libc::ucred,
}

impl Connection {
    /// Connects to the process that listens on `path`, which must run as this user or root.
    pub fn connect(path: &Path) -> Result<Connection, SocketError> {
        Connection::connect_allowing(path, &[])
    }

    /// As [`Connection::connect`], to a process that may also run as one of the users in `allowed`.
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
        let (doorbells, files) = (offer.doorbells.len(), offer.files.len());
        if doorbells > DOORBELLS_MAX || files > FILES_MAX || offer.link.len() > TEXT_BYTES_MAX {
            return Err(SocketError::TooLarge);
        }
        let mut fds = vec![offer.memory];
        fds.extend_from_slice(offer.doorbells);
        fds.extend_from_slice(offer.files);
        let header = Header {
            version: offer.version,
            kind: KIND_OFFER,
            subsystem: offer.subsystem.number().into(),
            lines: offer.lines,
            doorbells: doorbells as u16,
            files: files as u16,
            text_bytes: offer.link.len() as u32,
        };
        self.send(&header, offer.link, &fds)
    }

    /// Sends the reason why there will be no offer, or why an offer is not accepted. Never blocks; text
    /// beyond [`TEXT_BYTES_MAX`] is cut off.
    pub fn refuse(&self, why: &str) -> Result<(), SocketError> {
        let mut end = why.len().min(TEXT_BYTES_MAX);
        while !why.is_char_boundary(end) {
            end -= 1;
        }
        let why = &why[..end];
        let header = Header {
            version: 0,
            kind: KIND_REFUSAL,
            subsystem: 0,
            lines: [0; 3],
            doorbells: 0,
            files: 0,
            text_bytes: why.len() as u32,
        };
        self.send(&header, why, &[])
    }

    /// Waits for the host's offer (the agent's side), for ever without a `timeout`; a timeout of zero only looks.
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
        let received = self.receive(&mut bytes).map_err(failed)?;
        let bytes = &bytes[..received.bytes];
        if bytes.is_empty() {
            return Err(SocketError::HungUp);
        }
        let (header, text) = Header::parse(bytes)?;
        if header.kind == KIND_OFFER && header.version != version {
            // Before version 4, offers carry their kind in bits above the version.
            let tagged = header.version & (0b11 << 30) != 0;
            let theirs = if tagged { header.version & 0xffff } else { header.version };
            return Err(SocketError::Version { ours: version, theirs });
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
            return Err(SocketError::Malformed("some of its descriptors are missing"));
        }
        let [doorbells, files] = [header.doorbells, header.files].map(usize::from);
        if received.fds.len() != 1 + doorbells + files {
            return Err(SocketError::Malformed(
                "its number of descriptors is not the announced one",
            ));
        }
        let link = str::from_utf8(text)
            .map_err(|_| SocketError::Malformed("its text is not UTF-8"))?
            .to_owned();
        let mut fds = received.fds.into_iter();
        let memory = fds.next().expect("there is one more than doorbells and files");
        let subsystem = u16::try_from(header.subsystem)
            .map(SubsystemId::new)
            .map_err(|_| SocketError::Malformed("its subsystem number has more than 16 bits"))?;
        let lines = header.lines;
        let doorbells = fds.by_ref().take(doorbells).collect();
        Ok(ReceivedOffer { subsystem, lines, memory, doorbells, files: fds.collect(), link })
    }

    /// Takes over a connection of another process, with the same peer.
    ///
    /// # Errors
    /// The descriptor is not a socket.
    pub fn adopt(fd: OwnedFd) -> Result<Connection, SocketError> {
        Connection::over(fd)
    }

    /// Sends a message of the caller's own with at most [`DESCRIPTORS_MAX`] descriptors. Never blocks.
    ///
    /// # Errors
    /// The peer hung up, or its queue is full at present.
    pub fn send_descriptors(&self, text: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), SocketError> {
        ancillary::send(self.as_fd(), text, fds).map_err(|source| match source.raw_os_error() {
            Some(libc::EPIPE | libc::ECONNRESET) => SocketError::HungUp,
            _ => SocketError::System { what: "send a message", source },
        })
    }

    /// Waits for a message of [`Connection::send_descriptors`]; a timeout of zero only looks.
    ///
    /// # Errors
    /// No message came in time, the peer hung up, or a part of the message was lost.
    pub fn receive_descriptors(
        &self,
        timeout: Duration,
    ) -> Result<(Vec<u8>, Vec<OwnedFd>), SocketError> {
        let failed = |source| SocketError::System { what: "receive a message", source };
        if poll(self.as_fd(), libc::POLLIN, Some(timeout)).map_err(failed)? == 0 {
            return Err(SocketError::Timeout);
        }
        let mut bytes = vec![0; TEXT_BYTES_MAX];
        let received = self.receive(&mut bytes).map_err(failed)?;
        if received.bytes == 0 {
            return Err(SocketError::HungUp);
        }
        if received.truncated {
            return Err(SocketError::Malformed("a part of a message was lost"));
        }
        bytes.truncate(received.bytes);
        Ok((bytes, received.fds))
    }

    /// The text of the peer's refusal, if there is one. Never blocks.
    pub fn refusal(&self) -> Option<String> {
        match self.receive_offer(0, Some(Duration::ZERO)) {
            Err(SocketError::Refused(why)) => Some(why),
            _ => None,
        }
    }

    /// Whether the peer has closed its end or died.
    pub fn hung_up(&self) -> bool {
        let gone = libc::POLLHUP | libc::POLLRDHUP | libc::POLLERR;
        poll(self.as_fd(), gone, Some(Duration::ZERO)).is_ok_and(|events| events & gone != 0)
    }

    /// Continues with `fd`, a duplicate of the connection's descriptor, and closes the other.
    pub fn renumber(&mut self, fd: OwnedFd) {
        self.fd = fd;
    }

    /// Whether an agent has left: it has closed its end, has died, or has written to the socket, which agents do not after the
    /// handshake.
    pub fn has_left(&self) -> bool {
        let gone = libc::POLLIN | libc::POLLHUP | libc::POLLRDHUP | libc::POLLERR;
        poll(self.as_fd(), gone, Some(Duration::ZERO)).is_ok_and(|events| events & gone != 0)
    }

    /// Whether the peer still holds its end.
    pub fn is_alive(&self) -> bool {
        !self.hung_up()
    }

    /// The peer's process when it connected (or, for the connecting side, when the peer began to listen).
    /// Zero if it is outside this process namespace.
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
        if may_attach(uid, geteuid().as_raw(), allowed) {
            Ok(())
        } else {
            Err(SocketError::Stranger { uid, pid: self.peer.pid })
        }
    }

    /// Receives one message, without blocking.
    fn receive(&self, bytes: &mut [u8]) -> io::Result<ancillary::Received> {
        match ancillary::receive(self.as_fd(), bytes) {
            // The peer closed with a message unread: the kernel reports this before it delivers the peer's own messages.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                ancillary::receive(self.as_fd(), bytes)
            }
            received => received,
        }
    }

    fn send(&self, header: &Header, text: &str, fds: &[BorrowedFd<'_>]) -> Result<(), SocketError> {
        let mut bytes = header.to_bytes().to_vec();
        bytes.extend_from_slice(text.as_bytes());
        ancillary::send(self.as_fd(), &bytes, fds).map_err(|source| match source.raw_os_error() {
            Some(libc::EPIPE | libc::ECONNRESET) => SocketError::HungUp,
            _ => SocketError::System { what: "send a message", source },
        })
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The fixed part of a message, little-endian: magic (8 bytes), version, kind, lines (3),
/// doorbells and files (2 bytes each), bytes of text, subsystem (4 bytes each). Magic, version and kind never move.
struct Header {
    version: u32,
    kind: u32,
    subsystem: u32,
    lines: [u32; 3],
    doorbells: u16,
    files: u16,
    text_bytes: u32,
}

impl Header {
    fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
        let [nic, host, extra] = self.lines;
        let Header { version, kind, subsystem, doorbells, files, text_bytes, .. } = *self;
        let counts = u32::from(files) << 16 | u32::from(doorbells);
        let fields = [version, kind, nic, host, extra, counts, text_bytes, subsystem];
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
        let mut fields = [0; 8];
        for (field, source) in fields.iter_mut().zip(header[8..].chunks_exact(4)) {
            *field = u32::from_le_bytes(source.try_into().expect("chunks of four"));
        }
        let [version, kind, nic, host, extra, counts, text_bytes, subsystem] = fields;
        let lines = [nic, host, extra];
        let (doorbells, files) = (counts as u16, (counts >> 16) as u16);
        Ok((Header { version, kind, subsystem, lines, doorbells, files, text_bytes }, text))
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

/// Removes a socket file of this user that nobody listens on.
///
/// # Errors
/// Something else is there: no socket, another user's, or one that somebody listens on.
pub fn remove_stale(path: &Path) -> Result<(), SocketError> {
    let failed = |what, source| SocketError::Path { what, path: path.into(), source };
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found.map_err(|error| failed("stat", error))?,
    };
    if !found.file_type().is_socket() {
        return Err(SocketError::NotASocket(path.into()));
    }
    if found.uid() != geteuid().as_raw() {
        return Err(SocketError::AnotherUsers { path: path.into(), uid: found.uid() });
    }
    if !is_dead(path) {
        return Err(SocketError::InUse(path.into()));
    }
    let dead = (found.dev(), found.ino());
    remove_socket(path, |found| (found.st_dev, found.st_ino) == dead)
        .map(|_| ())
        .map_err(|error| failed("remove the stale", error))
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
mod tests;

//! Lets processes in: accepts connections and checks what they offer. Never blocks, whatever they do.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use wave_core::clock::Nanos;
use wave_core::layout::{ConfigError, HeaderError, Layout, PROTOCOL_VERSION, read_header};
use wave_core::link::{Home, Port, Side};
use wave_links::socket::{Connection, Listener, ReceivedOffer, SocketError};
use wave_links::{Lender, LentPayload, LinkError, LinkSpec, MapError, Memory, Payload, SocketBell};
use wave_tcp::context::{CONTEXTS_MAX, CROWD, window as window_of};
use wave_tcp::control::{Owner, Shares};

use crate::process::Process;

/// Most connections that have offered nothing yet. Others wait in the socket's backlog.
pub const WAITING_MAX: usize = 16;
/// How long a connection may take to offer a window.
pub const OFFER_PATIENCE: Nanos = Nanos::from_millis(2_000);
/// Connections that are accepted in one poll.
const ACCEPTS_PER_POLL: usize = 4;
/// Time for which nobody is accepted after the system had no descriptor for it.
const DEAF_FOR: Nanos = Nanos::from_millis(100);

/// Whom a door lets in, and with how much memory.
#[derive(Clone, Debug)]
pub struct DoorOptions {
    /// Users whose processes may come, beside this process's own user and root.
    pub allowed: Vec<u32>,
    /// Users whose processes may come and are trusted with their memory, as those of this process's own user and root: it is not sealed, so
    /// that another agent can go on with it.
    pub trusted: Vec<u32>,
    /// Most bytes of a process's payload memory. It is sparse, and the process's: see [`LentPayload`].
    pub payload_bytes_max: u64,
}

impl Default for DoorOptions {
    /// No other users; 64 GiB.
    fn default() -> DoorOptions {
        DoorOptions { allowed: Vec::new(), trusted: Vec::new(), payload_bytes_max: 1 << 36 }
    }
}

impl DoorOptions {
    /// All users that may come, beside our own and root.
    fn users(&self) -> Vec<u32> {
        self.allowed.iter().chain(&self.trusted).copied().collect()
    }

    fn lender(&self, connection: &Connection) -> Lender {
        let Owner { user, has_system_ports: is_own, .. } = owner_of(connection);
        match is_own || self.trusted.contains(&user) {
            true => Lender::Trusted,
            false => Lender::Stranger,
        }
    }
}

/// Why a process was turned away, or none can come.
#[derive(Debug, thiserror::Error)]
pub enum DoorError {
    /// No connection was accepted: a stranger's, or the system has no descriptors.
    #[error(transparent)]
    Accept(#[from] SocketError),
    /// The offer of a process.
    #[error("process {pid} of user {uid} was turned away: {error}")]
    Offer {
        /// The process, as the kernel knew it when it connected.
        pid: i32,
        /// Its effective user at that time.
        uid: u32,
        /// What is wrong.
        error: OfferError,
    },
}

/// What is wrong with an offer.
#[derive(Debug, thiserror::Error)]
pub enum OfferError {
    /// It said nothing for [`OFFER_PATIENCE`].
    #[error("it offered no window in time")]
    Silent,
    /// Its program, or its user, has so many that wait that others would find no room.
    #[error("{CROWD}")]
    Crowd,
    /// It is no offer, one of another version, or the process has gone.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// Another subsystem's window.
    #[error("peer's fault: the window is subsystem {0}'s")]
    Subsystem(u16),
    /// A link that is not shared memory.
    #[error("peer's fault: the window lies behind a link other than shared memory")]
    NotShared,
    /// Doorbells must be one per context, then the agent's.
    #[error("peer's fault: {0} doorbells came, there must be 2 to {max}", max = CONTEXTS_MAX + 1)]
    Doorbells(usize),
    /// Something that must not be rung or waited for.
    #[error("peer's fault: doorbell {vector} is not a Unix socket")]
    Doorbell {
        /// Which one.
        vector: usize,
    },
    /// The payload memory must be the one further file.
    #[error("peer's fault: {0} further files came, there must be one: the payload memory")]
    Files(usize),
    /// The window is not as large as its contexts need.
    #[error("peer's fault: the window has {have:?} lines (NIC, host, extra), not {need:?}")]
    Lines {
        /// What the offer says.
        have: [u32; 3],
        /// What the layout needs.
        need: [u32; 3],
    },
    /// The window's header is none.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The window's header has another configuration than [`window_of`]'s.
    #[error("peer's fault: the window's header has another configuration than that of TCP")]
    Config,
    /// A file is not a sealed memfd of the size that it should have.
    #[error("{what}: {error}")]
    Map {
        /// Which file.
        what: &'static str,
        /// What is wrong with it.
        error: MapError,
    },
    /// More than [`DoorOptions::payload_bytes_max`].
    #[error("the payload memory has {have} bytes, allowed are {max}")]
    PayloadBytes {
        /// Its size.
        have: u64,
        /// The limit.
        max: u64,
    },
    /// Impossible for windows that this door takes.
    #[error(transparent)]
    Layout(#[from] ConfigError),
    /// Impossible for shared memory.
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// Where processes come in. The socket's file is removed on drop.
#[derive(Debug)]
pub struct Door {
    listener: Listener,
    options: DoorOptions,
    waiting: Vec<Waiting>,
    /// Until then nobody is accepted.
    deaf_until: Option<Nanos>,
}

/// A connection that has offered nothing yet.
#[derive(Debug)]
struct Waiting {
    connection: Connection,
    since: Nanos,
}

impl Door {
    /// Listens at `path`, as [`Listener::bind`].
    ///
    /// # Errors
    /// The path cannot be listened at.
    pub fn bind(path: &Path, options: DoorOptions) -> Result<Door, SocketError> {
        let listener = Listener::bind(path, &options.users())?;
        Ok(Door { listener, options, waiting: Vec::with_capacity(WAITING_MAX), deaf_until: None })
    }

    /// Goes on for another agent, with its listening socket, which is bound to `path`.
    ///
    /// # Errors
    /// They are none.
    pub(crate) fn adopt(
        listener: OwnedFd,
        path: &Path,
        options: DoorOptions,
    ) -> Result<Door, SocketError> {
        let listener = Listener::adopt(listener, path, &options.users())?;
        Ok(Door { listener, options, waiting: Vec::with_capacity(WAITING_MAX), deaf_until: None })
    }

    /// Goes on with a connection of another agent's that has offered nothing yet.
    pub(crate) fn adopt_waiting(&mut self, now: Nanos, fd: OwnedFd) -> Result<(), SocketError> {
        self.waiting.push(Waiting { connection: Connection::adopt(fd)?, since: now });
        Ok(())
    }

    pub(crate) fn path(&self) -> &Path {
        self.listener.path()
    }

    pub(crate) fn options(&self) -> &DoorOptions {
        &self.options
    }

    pub(crate) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Connections that have offered nothing yet.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.waiting.iter().map(|waiting| waiting.connection.as_fd())
    }

    /// Accepts a connection, and looks at the offers of those that wait. Returns the first process whose offer is good, for the
    /// caller to [`Process::announce`] or [`Process::refuse`]. Call again until there is none.
    ///
    /// Takes a few accept(2) and [`WAITING_MAX`] looks; a good offer takes about a millisecond, for its pages.
    ///
    /// # Errors
    /// A process was turned away, and told why. Call again.
    pub fn poll(&mut self, now: Nanos) -> Result<Option<Process>, DoorError> {
        // Those that wait are looked at all the same.
        let failed = self.accept(now).err();
        for at in 0..self.waiting.len() {
            let Waiting { connection, since } = &self.waiting[at];
            let looked =
                connection.receive_offer(PROTOCOL_VERSION, Some(std::time::Duration::ZERO));
            let offer = match looked {
                Err(SocketError::Timeout) if now.since(*since) < OFFER_PATIENCE => continue,
                Err(SocketError::Timeout) => Err(OfferError::Silent),
                offer => offer.map_err(OfferError::from),
            };
            let Waiting { connection, .. } = self.waiting.swap_remove(at);
            let (pid, uid) = (connection.peer_pid(), connection.peer_uid());
            let lender = self.options.lender(&connection);
            let opened =
                offer.and_then(|offer| open(offer, self.options.payload_bytes_max, lender));
            return match opened {
                Ok(opened) => Ok(Some(Process::new(connection, opened))),
                Err(error) => {
                    // Whether it hears of that does not matter: its connection ends.
                    let _ = connection.refuse(&error.to_string());
                    Err(DoorError::Offer { pid, uid, error })
                }
            };
        }
        failed.map_or(Ok(None), Err)
    }

    fn accept(&mut self, now: Nanos) -> Result<(), DoorError> {
        if self.deaf_until.is_some_and(|until| now < until) {
            return Ok(());
        }
        self.deaf_until = None;
        for _ in 0..ACCEPTS_PER_POLL {
            if self.waiting.len() == WAITING_MAX {
                break;
            }
            let connection = match self.listener.accept() {
                Ok(Some(connection)) => connection,
                Ok(None) => break,
                Err(error) => {
                    // Otherwise a socket that is readable and cannot be accepted would keep the agent awake.
                    let is_ours = matches!(error, SocketError::System { .. });
                    self.deaf_until = is_ours.then(|| now + DEAF_FOR);
                    return Err(error.into());
                }
            };
            if !self.has_room_for(&connection) {
                let error = OfferError::Crowd;
                // As above.
                let _ = connection.refuse(&error.to_string());
                let (pid, uid) = (connection.peer_pid(), connection.peer_uid());
                return Err(DoorError::Offer { pid, uid, error });
            }
            self.waiting.push(Waiting { connection, since: now });
        }
        Ok(())
    }

    /// Whether one more connection of a program may wait here.
    fn has_room_for(&self, connection: &Connection) -> bool {
        let mut shares = Shares::new([WAITING_MAX as u32]);
        for (at, waiting) in self.waiting.iter().enumerate() {
            shares.enter(at as u16, owner_of(&waiting.connection));
            shares.take(at as u16, 0, 1);
        }
        let next = self.waiting.len() as u16;
        shares.enter(next, owner_of(connection));
        shares.has_room(next, 0, 1)
    }

    /// What to poll for input: as soon as one of them is readable, [`Door::poll`] has something to do. It should also be called
    /// when [`Door::is_waiting`], every second or so.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let waiting = self.waiting.iter().map(|waiting| waiting.connection.as_fd());
        let listener = Some(self.listener.as_fd()).filter(|_| self.deaf_until.is_none());
        listener.into_iter().chain(waiting)
    }

    /// Whether a connection has offered nothing yet.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
}

/// Whose a connection is, by the kernel. Ports below 1,024 are root's, and of the user whose agent this is.
pub(crate) fn owner_of(connection: &Connection) -> Owner {
    let user = connection.peer_uid();
    let has_system_ports = user == 0 || user == rustix::process::geteuid().as_raw();
    Owner { program: connection.peer_pid() as u32, user, has_system_ports }
}

/// What an offer comes to.
pub(crate) struct Opened {
    pub(crate) layout: Layout,
    pub(crate) memory: Arc<Memory>,
    /// The file of `memory`.
    pub(crate) window: OwnedFd,
    pub(crate) payload: LentPayload,
    /// One per context.
    pub(crate) bells: Vec<SocketBell>,
    pub(crate) agent_bell: SocketBell,
}

/// Checks everything in an offer. Sizes come before mappings.
fn open(
    offer: ReceivedOffer,
    payload_bytes_max: u64,
    lender: Lender,
) -> Result<Opened, OfferError> {
    let ReceivedOffer { subsystem, lines, memory: window, doorbells, files, link } = offer;
    if subsystem != wave_tcp::SUBSYSTEM.id {
        return Err(OfferError::Subsystem(subsystem.number()));
    }
    if link != LinkSpec::Shm.to_text() {
        return Err(OfferError::NotShared);
    }
    let contexts = u16::try_from(doorbells.len()).unwrap_or(u16::MAX).saturating_sub(1);
    if !(1..=CONTEXTS_MAX).contains(&contexts) {
        return Err(OfferError::Doorbells(doorbells.len()));
    }
    let [payload] = <[_; 1]>::try_from(files).map_err(|files| OfferError::Files(files.len()))?;

    let layout = Layout::new(window_of(contexts))?;
    let need = [layout.nic_lines, layout.host_lines, 0];
    if lines != need {
        return Err(OfferError::Lines { have: lines, need });
    }
    let mapped = Memory::map_lent(window.as_fd(), need[0], need[1], lender);
    let memory =
        Arc::new(mapped.map_err(|error| OfferError::Map { what: "the window's file", error })?);
    let port = LinkSpec::Shm.port(&memory, Side::Agent, &[])?;
    let header = read_header(port.window(Home::Nic), need[0], need[1])?;
    if header.config != layout.config {
        return Err(OfferError::Config);
    }

    let failed = |error| OfferError::Map { what: "the payload memory", error };
    let bytes = Payload::sealed_bytes(payload.as_fd()).map_err(failed)?;
    if bytes > payload_bytes_max {
        return Err(OfferError::PayloadBytes { have: bytes, max: payload_bytes_max });
    }
    let payload = LentPayload::take(payload, bytes, lender).map_err(failed)?;

    let mut bells = Vec::with_capacity(doorbells.len());
    for (vector, fd) in doorbells.into_iter().enumerate() {
        let bell = SocketBell::from_untrusted(fd);
        bells.push(bell.map_err(|_| OfferError::Doorbell { vector })?);
    }
    let agent_bell = bells.pop().ok_or(OfferError::Doorbells(0))?;
    Ok(Opened { layout, memory, window, payload, bells, agent_bell })
}

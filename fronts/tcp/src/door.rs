//! Lets processes in: accepts connections and checks their offers. Never blocks, whatever processes do.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use wave_core::clock::Nanos;
use wave_core::layout::{ConfigError, HeaderError, Layout, PROTOCOL_VERSION, read_header};
use wave_core::link::{Home, Port, Side};
use wave_links::socket::{Connection, Listener, ReceivedOffer, SocketError};
use wave_links::{Lender, LentPayload, LinkError, LinkSpec, MapError, Memory, Payload, SocketBell};
use wave_tcp::context::{CONTEXTS_MAX, OFFERS_EXCEEDED, window as window_of};
use wave_tcp::control::{Owner, Shares};

use crate::process::Process;

/// Most connections that have offered nothing yet. Others wait in the socket's backlog.
pub const WAITING_MAX: usize = 16;
/// How long a connection may take to offer a window.
pub const OFFER_PATIENCE: Nanos = Nanos::from_millis(2_000);
/// Connections that are accepted in one poll.
const ACCEPTS_PER_POLL: usize = 4;
/// Time without further accept(2) after the system had no descriptor for a connection.
const PAUSE: Nanos = Nanos::from_millis(100);

/// Which users a door lets in, and how much memory their processes may offer.
#[derive(Clone, Debug)]
pub struct DoorOptions {
    /// Users whose processes are let in, beside this process's own user and root.
    pub allowed: Vec<u32>,
    /// Users whose processes are let in and trusted with their memory, like those of this process's own user and root. Their
    /// memory is not sealed, so another agent can take it over.
    pub trusted: Vec<u32>,
    /// Most bytes of a process's payload memory. It is sparse, and belongs to the process: see [`LentPayload`].
    pub payload_bytes_max: u64,
}

impl Default for DoorOptions {
    /// No other users; 64 GiB.
    fn default() -> DoorOptions {
        DoorOptions { allowed: Vec::new(), trusted: Vec::new(), payload_bytes_max: 1 << 36 }
    }
}

impl DoorOptions {
    /// All users that are let in, beside our own and root.
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

/// Why a process was turned away, or no process can be accepted.
#[derive(Debug, thiserror::Error)]
pub enum DoorError {
    /// A connection was not accepted: its user is not allowed, or the system has no descriptors.
    #[error(transparent)]
    Accept(#[from] SocketError),
    /// The offer of a process was refused.
    #[error("process {pid} of user {uid} was turned away: {error}")]
    Offer {
        /// The process, as the kernel knew it when it connected.
        pid: i32,
        /// Its effective user at that time.
        uid: u32,
        /// What is wrong with the offer.
        error: OfferError,
    },
}

/// What is wrong with an offer.
#[derive(Debug, thiserror::Error)]
pub enum OfferError {
    /// The process made no offer within [`OFFER_PATIENCE`].
    #[error("it offered no window in time")]
    Silent,
    /// The program or its user has its share of waiting connections; more would leave no room for others.
    #[error("{OFFERS_EXCEEDED}")]
    Crowd,
    /// The message is not an offer, or of another version, or the process has gone.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The window is another subsystem's.
    #[error("peer's fault: the window is subsystem {0}'s")]
    Subsystem(u16),
    /// The link is not shared memory.
    #[error("peer's fault: the window's link is not shared memory")]
    NotShared,
    /// The number of doorbells is wrong: there must be one per context, then the agent's.
    #[error("peer's fault: the offer has {0} doorbells, but must have 2 to {max}", max = CONTEXTS_MAX + 1)]
    Doorbells(usize),
    /// A doorbell's descriptor is not a Unix socket, so it must be neither rung nor waited for.
    #[error("peer's fault: doorbell {vector} is not a Unix socket")]
    Doorbell {
        /// Index of the doorbell.
        vector: usize,
    },
    /// The number of further files is wrong: the payload memory must be the only one.
    #[error("peer's fault: the offer has {0} further files, but must have one: the payload memory")]
    Files(usize),
    /// The window does not have the size that its contexts need.
    #[error("peer's fault: the window has {have:?} lines (NIC, host, extra), not {need:?}")]
    Lines {
        /// Lines in the offer: NIC, host, extra.
        have: [u32; 3],
        /// Lines that the layout needs.
        need: [u32; 3],
    },
    /// The window's header is invalid.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The configuration in the window's header is not that of [`window_of`].
    #[error("peer's fault: the configuration in the window's header is not that of TCP")]
    Config,
    /// A file is not a sealed memfd of the expected size.
    #[error("{what}: {error}")]
    Map {
        /// The file's role, for the message.
        what: &'static str,
        /// What is wrong with the file.
        error: MapError,
    },
    /// The payload memory is larger than [`DoorOptions::payload_bytes_max`].
    #[error("the payload memory has {have} bytes, at most {max} are allowed")]
    PayloadBytes {
        /// Its size in bytes.
        have: u64,
        /// The limit in bytes.
        max: u64,
    },
    /// The layout is invalid; impossible for windows that this door takes.
    #[error(transparent)]
    Layout(#[from] ConfigError),
    /// The link cannot be used; impossible for shared memory.
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// The socket at which processes attach to the agent. Its file is removed on drop.
#[derive(Debug)]
pub struct Door {
    listener: Listener,
    options: DoorOptions,
    waiting: Vec<Waiting>,
    /// Threads that use the memory of processes, besides the front's.
    threads: usize,
    /// No connection is accepted until then.
    paused_until: Option<Nanos>,
}

/// A connection that has offered nothing yet.
#[derive(Debug)]
struct Waiting {
    connection: Connection,
    since: Nanos,
}

impl Door {
    /// Listens at `path`, as [`Listener::bind`] does.
    ///
    /// # Errors
    /// The socket cannot be bound.
    pub fn bind(path: &Path, options: DoorOptions) -> Result<Door, SocketError> {
        let listener = Listener::bind(path, &options.users())?;
        Ok(Door::over(listener, options))
    }

    /// Continues for another agent, with its listening socket, which is bound to `path`.
    ///
    /// # Errors
    /// The descriptor is not such a socket.
    pub(crate) fn adopt(
        listener: OwnedFd,
        path: &Path,
        options: DoorOptions,
    ) -> Result<Door, SocketError> {
        let listener = Listener::adopt(listener, path, &options.users())?;
        Ok(Door::over(listener, options))
    }

    fn over(listener: Listener, options: DoorOptions) -> Door {
        let waiting = Vec::with_capacity(WAITING_MAX);
        Door { listener, options, waiting, threads: 0, paused_until: None }
    }

    /// The door of a front of which `threads` other threads use the memory of processes.
    pub(crate) fn for_threads(self, threads: usize) -> Door {
        Door { threads, ..self }
    }

    /// Takes over a connection of another agent that has offered nothing yet.
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

    /// Accepts connections, and checks the offers of those that wait. Returns the first process with a good offer, for the
    /// caller to [`Process::announce`] or [`Process::refuse`]. Call again until it returns `None`.
    ///
    /// Costs a few accept(2) and [`WAITING_MAX`] reads at most; a good offer takes about a millisecond, for its pages.
    ///
    /// # Errors
    /// A process was turned away, and told the reason. Call again.
    pub fn poll(&mut self, now: Nanos) -> Result<Option<Process>, DoorError> {
        // After an error, the waiting connections are still checked.
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
            let bytes_max = self.options.payload_bytes_max;
            let opened = offer.and_then(|offer| open(offer, bytes_max, lender, self.threads));
            return match opened {
                Ok(opened) => Ok(Some(Process::new(connection, opened))),
                Err(error) => {
                    // A failure does not matter: the connection ends anyway.
                    let _ = connection.refuse(&error.to_string());
                    Err(DoorError::Offer { pid, uid, error })
                }
            };
        }
        failed.map_or(Ok(None), Err)
    }

    fn accept(&mut self, now: Nanos) -> Result<(), DoorError> {
        if self.paused_until.is_some_and(|until| now < until) {
            return Ok(());
        }
        self.paused_until = None;
        for _ in 0..ACCEPTS_PER_POLL {
            if self.waiting.len() == WAITING_MAX {
                break;
            }
            let connection = match self.listener.accept() {
                Ok(Some(connection)) => connection,
                Ok(None) => break,
                Err(error) => {
                    // Otherwise a readable socket whose connections cannot be accepted would keep the agent awake.
                    let is_ours = matches!(error, SocketError::System { .. });
                    self.paused_until = is_ours.then(|| now + PAUSE);
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

    /// Whether this connection may wait here, by the share of its program and user.
    fn has_room_for(&self, connection: &Connection) -> bool {
        let mut shares = Shares::new([WAITING_MAX as u32]);
        for (at, waiting) in self.waiting.iter().enumerate() {
            shares.add_process(at as u16, owner_of(&waiting.connection));
            shares.acquire(at as u16, 0, 1);
        }
        let next = self.waiting.len() as u16;
        shares.add_process(next, owner_of(connection));
        shares.has_room(next, 0, 1)
    }

    /// Descriptors to poll for input: when one of them is readable, call [`Door::poll`]. While [`Door::is_waiting`], also call
    /// it every second or so.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let waiting = self.waiting.iter().map(|waiting| waiting.connection.as_fd());
        let listener = Some(self.listener.as_fd()).filter(|_| self.paused_until.is_none());
        listener.into_iter().chain(waiting)
    }

    /// Whether a connection has offered nothing yet.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
}

/// The owner of a connection, from the kernel. Only root and the agent's own user may have ports below 1,024.
pub(crate) fn owner_of(connection: &Connection) -> Owner {
    let user = connection.peer_uid();
    let has_system_ports = user == 0 || user == rustix::process::geteuid().as_raw();
    Owner { program: connection.peer_pid() as u32, user, has_system_ports }
}

/// The parts of a good offer.
pub(crate) struct Opened {
    pub(crate) layout: Layout,
    pub(crate) memory: Arc<Memory>,
    /// The file of `memory`.
    pub(crate) window: OwnedFd,
    pub(crate) payload: LentPayload,
    /// Further mappings of the payload memory.
    pub(crate) for_threads: Vec<LentPayload>,
    /// One per context.
    pub(crate) bells: Vec<SocketBell>,
    pub(crate) agent_bell: SocketBell,
}

/// Checks everything in an offer. Sizes are checked before anything is mapped.
fn open(
    offer: ReceivedOffer,
    payload_bytes_max: u64,
    lender: Lender,
    threads: usize,
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
    let mut for_threads =
        LentPayload::take_for(1 + threads, payload, bytes, lender).map_err(failed)?;
    let payload = for_threads.remove(0);

    let mut bells = Vec::with_capacity(doorbells.len());
    for (vector, fd) in doorbells.into_iter().enumerate() {
        let bell = SocketBell::from_untrusted(fd);
        bells.push(bell.map_err(|_| OfferError::Doorbell { vector })?);
    }
    let agent_bell = bells.pop().ok_or(OfferError::Doorbells(0))?;
    Ok(Opened { layout, memory, window, payload, for_threads, bells, agent_bell })
}

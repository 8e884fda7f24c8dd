//! Attaching: from a socket's path to a checked window.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use wave_core::layout::{HeaderError, Layout, PROTOCOL_VERSION, read_header};
use wave_core::link::{Doorbell, Home, Port, Side, Waiter};
use wave_core::note::queue::NOTES;
use wave_core::subsystem::SubsystemId;
use wave_links::memory::stay_resident;
use wave_links::socket::{Connection, ReceivedOffer, SocketError};
use wave_links::{
    AnyBell, AnyPort, DeviceBell, EventFd, LinkError, LinkSpec, MapError, Memory, SocketBell,
};
use wave_process::say;

use crate::device::{DeviceError, DeviceLine};

/// How long a host may take to offer a window, and how long of that the agent waits before it reports the delay.
const OFFER_PATIENCE: Duration = Duration::from_secs(5);
const SILENCE: Duration = Duration::from_secs(2);

/// Why an agent could not attach.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum AttachError {
    /// No host there, no permission, refused, another version.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The window's file contradicts the host's offer.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The window's header is invalid, or of another version.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The host's description of the link cannot be used.
    #[error("peer's fault: {0}")]
    Link(#[from] LinkError),
    /// The host is the kernel, and this process cannot lock its memory: a page fault could deadlock.
    #[error(
        "cannot lock this process's memory ({0}); without that, a page fault may wait for a thread that \
         waits for this agent: run `ulimit -l unlimited` first, or start the agent as root"
    )]
    Resident(#[source] std::io::Error),
    #[error("peer's fault: doorbell {vector}: {error}")]
    Doorbell { vector: usize, error: std::io::Error },
    /// The socket belongs to another kind of Wave process.
    #[error("{who} listens at this socket; use {option} for it")]
    Other { who: &'static str, option: &'static str },
    /// The offer and the window's header name different subsystems.
    #[error("peer's fault: the offer names {offer}, but its window's header names {header}")]
    Subsystem { offer: SubsystemId, header: SubsystemId },
    /// The device cannot be opened, or its mailbox is wrong.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The offer has too few or too many doorbells.
    #[error("peer's fault: the offer has {have} doorbells, but the layout needs {need}")]
    Doorbells { have: usize, need: usize },
}

/// A window that an agent may work in.
#[derive(Debug)]
pub struct Attached {
    /// Where queues, words and pools are in the window.
    pub layout: Layout,
    /// The agent's access to the window.
    pub port: AnyPort,
    /// The host's doorbells: one per core, then the control context's.
    pub host_bells: Vec<HostBell>,
    /// The doorbell by which the host rings the agent.
    pub own_bell: OwnBell,
    /// Name of the link, for messages.
    pub link: String,
    /// Connection to the host; each side sees here that the other is gone.
    pub connection: HostLine,
}

/// A doorbell of the host.
#[derive(Debug)]
pub enum HostBell {
    /// A host on this machine.
    Link(AnyBell),
    /// A host behind a device.
    Device(DeviceBell),
}

impl Doorbell for HostBell {
    fn ring(&self) {
        match self {
            HostBell::Link(bell) => bell.ring(),
            HostBell::Device(bell) => bell.ring(),
        }
    }
}

/// The agent's own doorbell, on which it waits.
#[derive(Debug)]
pub enum OwnBell {
    /// A host on this machine rings it through a socket.
    Socket(SocketBell),
    /// An event descriptor that the device's interrupt signals.
    Event(EventFd),
}

impl AsFd for OwnBell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            OwnBell::Socket(bell) => bell.as_fd(),
            OwnBell::Event(bell) => bell.as_fd(),
        }
    }
}

impl Waiter for OwnBell {
    fn wait(&self, timeout: Option<Duration>) -> bool {
        match self {
            OwnBell::Socket(bell) => bell.wait(timeout),
            OwnBell::Event(bell) => bell.wait(timeout),
        }
    }
}

/// An agent's connection to its host.
#[derive(Debug)]
pub enum HostLine {
    /// The host's socket: when it closes, the host is gone.
    Socket(Connection),
    /// The mailbox in a device's memory.
    Device(Box<DeviceLine>),
}

impl HostLine {
    /// Whether the host has gone.
    pub fn hung_up(&self) -> bool {
        match self {
            HostLine::Socket(connection) => connection.hung_up(),
            HostLine::Device(line) => line.hung_up(),
        }
    }
}

/// Attaches to the host that listens at `socket`, of any subsystem whose decisions a policy makes.
/// Everything that the host sends is checked.
pub fn attach(socket: &Path) -> Result<Attached, AttachError> {
    attach_as(socket, Wanted::Policy, true)
}

/// Attaches to the server of RPCs that listens at `socket`, as [`attach`] does. Unless `quiet`, reports a slow host on standard
/// error.
pub fn attach_rpc(socket: &Path, quiet: bool) -> Result<Attached, AttachError> {
    attach_as(socket, Wanted::Rpc, quiet)
}

/// Attaches to a host whose offer is of the wanted kind. Unless `quiet`, reports a slow host on standard error.
pub(crate) fn attach_as(
    socket: &Path,
    wanted: Wanted,
    quiet: bool,
) -> Result<Attached, AttachError> {
    let opened = open(socket, wanted, Side::Agent, quiet)?;
    let Opened { connection, link, memory, layout, port, mut doorbells } = opened;
    if memory.is_kernels() {
        stay_resident().map_err(AttachError::Resident)?;
    }
    let (have, need) = (doorbells.len(), layout.doorbells());
    if have != need {
        return Err(AttachError::Doorbells { have, need });
    }
    let own_bell = doorbells.pop().map(SocketBell::from_fd);
    let own_bell = own_bell.ok_or(AttachError::Doorbells { have, need })?;
    let mut bells = Vec::with_capacity(need);
    for (vector, fd) in doorbells.into_iter().enumerate() {
        let bell = EventFd::from_fd(fd).map_err(|error| AttachError::Doorbell { vector, error })?;
        bells.push(HostBell::Link(link.doorbell(&memory, vector, bell)?));
    }
    Ok(Attached {
        layout,
        port,
        host_bells: bells,
        own_bell: OwnBell::Socket(own_bell),
        link: link.name().to_owned(),
        connection: HostLine::Socket(connection),
    })
}

/// A window with a checked header, and the descriptors of its offer.
pub(crate) struct Opened {
    pub(crate) connection: Connection,
    pub(crate) link: LinkSpec,
    pub(crate) memory: Arc<Memory>,
    pub(crate) layout: Layout,
    pub(crate) port: AnyPort,
    pub(crate) doorbells: Vec<OwnedFd>,
}

/// The purpose of an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Decisions of a policy, for any subsystem except the two below.
    Policy,
    /// RPC calls, which a front's agent steers.
    Rpc,
    /// Notes from a front, for a scheduler.
    Notes,
}

impl Wanted {
    /// The purpose of an offer of this subsystem.
    fn of(subsystem: SubsystemId) -> Wanted {
        match subsystem {
            NOTES => Wanted::Notes,
            rpc if rpc == wave_rpc::SUBSYSTEM.id => Wanted::Rpc,
            _ => Wanted::Policy,
        }
    }

    pub(crate) fn check(self, offered: SubsystemId) -> Result<(), AttachError> {
        let offered = Wanted::of(offered);
        if offered == self {
            return Ok(());
        }
        let (who, option) = match offered {
            Wanted::Notes => ("a front that offers notes", "--notes-from"),
            Wanted::Rpc => ("a server of RPCs", "--rpc"),
            Wanted::Policy => ("a host that needs a policy", "--attach"),
        };
        Err(AttachError::Other { who, option })
    }
}

/// Connects to the host that listens at `socket`, and opens the window that it offers.
pub(crate) fn open(
    socket: &Path,
    wanted: Wanted,
    side: Side,
    quiet: bool,
) -> Result<Opened, AttachError> {
    let connection = Connection::connect(socket)?;
    let mut offer = connection.receive_offer(PROTOCOL_VERSION, Some(SILENCE));
    if let Err(SocketError::Timeout) = offer {
        if !quiet {
            say!(
                "wave agent: connected to {}; waiting for process {} there to offer a window",
                socket.display(),
                connection.peer_pid(),
            );
        }
        offer = connection.receive_offer(PROTOCOL_VERSION, Some(OFFER_PATIENCE - SILENCE));
    }
    let ReceivedOffer { subsystem, lines: [nic, host, extra], memory, doorbells, link, .. } =
        offer?;
    wanted.check(subsystem)?;
    let link = LinkSpec::parse(&link)?;
    let memory = Arc::new(Memory::map(memory.as_fd(), nic, host, extra)?);
    // The layout is not known yet: the header is read through a port without page types, word by word.
    let port = link.port(&memory, side, &[])?;
    let layout = read_header(port.window(Home::Nic), nic, host)?;
    let header = layout.config.subsystem;
    if header != subsystem {
        return Err(AttachError::Subsystem { offer: subsystem, header });
    }
    memory.make_resident(layout.busy_lines);
    let port = link.port(&memory, side, &layout.mappings(side))?;
    Ok(Opened { connection, link, memory, layout, port, doorbells })
}

//! Attaching from the far side of a device: QEMU's ivshmem, which a folder represents on this side.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use wave_core::layout::{PROTOCOL_VERSION, read_header};
use wave_core::link::{Doorbell, Home, Port, Side, Waiter};
use wave_links::memory::{PAGE_BYTES, Page};
use wave_links::pci::ivshmem::Peer;
use wave_links::pci::mailbox::{self, AgentEnd, Greeting, NoOffer, Offer, Place};
use wave_links::shm::ShmWindow;
use wave_links::{DeviceBell, LinkSpec, Memory};
use wave_process::say;

use crate::attach::{AttachError, Attached, HostBell, HostLine, OwnBell, Wanted};

/// How long a host may take to answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);
/// Interval between checks for a host or its answer.
const POLL_EVERY: Duration = Duration::from_millis(20);
/// The vector of this side's own doorbell.
const OWN_VECTOR: usize = 0;

/// Why an agent could not attach through a device.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum DeviceError {
    /// No device server listens in this folder.
    #[error("no device server in {}; first run: cargo xtask vm run --nic {}", .0.display(), .0.display())]
    NotThere(PathBuf),
    /// The device's server or the guest's memory cannot be used.
    #[error("{doing} {}: {error}", path.display())]
    File { doing: &'static str, path: PathBuf, error: io::Error },
    /// The device's memory cannot be mapped.
    #[error("mapping the device's memory: {0}")]
    Map(io::Error),
    /// Host and agent speak different versions of the protocol.
    #[error("the host behind the device speaks version {theirs}, this agent {ours}")]
    Version { ours: u32, theirs: u32 },
    /// The host refused this agent, with this reason.
    #[error("the host refused: {0}")]
    Refused(String),
    #[error("the host did not answer; another agent may have attached at the same time")]
    NoAnswer,
    /// The device or its host went away.
    #[error("the host went away")]
    Gone,
    /// The device's server, or the answer in the mailbox, breaks the protocol.
    #[error("peer's fault: {0}")]
    Nonsense(&'static str),
}

/// The connection to a host behind a device.
#[derive(Debug)]
pub struct DeviceLine {
    end: AgentEnd<ShmWindow>,
    life: u64,
    request: u64,
    // Keeps this agent's place at the device.
    _peer: Peer,
}

impl DeviceLine {
    pub(crate) fn hung_up(&self) -> bool {
        self.end.greeting().is_none_or(|greeting| greeting.life != self.life)
    }
}

impl Drop for DeviceLine {
    fn drop(&mut self) {
        self.end.leave(self.request);
    }
}

/// Attaches to the host behind the device that `folder` represents: `ivshmem` is the socket of the
/// device's server, `memory` the guest's memory. If there is no host yet, it waits without a limit
/// and says so on standard error once.
pub fn attach_device(folder: &Path) -> Result<Attached, AttachError> {
    let failed = |doing, path: &Path| {
        let path = path.to_owned();
        move |error| DeviceError::File { doing, path, error }
    };
    let socket = folder.join("ivshmem");
    if !socket.exists() {
        return Err(DeviceError::NotThere(folder.to_owned()).into());
    }
    let mut peer = Peer::connect(&socket).map_err(failed("connecting to", &socket))?;
    let bar = peer.memory().try_clone_to_owned().map_err(DeviceError::Map)?;
    let bar = File::from(bar);
    let bar_bytes = bar.metadata().map_err(DeviceError::Map)?.len();
    let device = Memory::device(bar.as_fd(), 0, bar_bytes).map_err(DeviceError::Map)?;
    let lines = device.lines(Home::Nic);
    let end = AgentEnd::new(ShmWindow::new(Arc::new(device), Home::Nic), lines);

    let greeting = wait_for_host(&mut peer, &end, &socket)?;
    if greeting.version != PROTOCOL_VERSION {
        let theirs = greeting.version;
        return Err(DeviceError::Version { ours: PROTOCOL_VERSION, theirs }.into());
    }
    let request = random();
    let own = peer
        .own()
        .get(OWN_VECTOR)
        .ok_or(DeviceError::Nonsense("the device's server gives this agent no vector"))?;
    let own = own.try_clone().map_err(DeviceError::Map)?;
    end.request(request, u32::from(peer.id()) << 16 | OWN_VECTOR as u32);
    let line = DeviceLine { end: end.clone(), life: greeting.life, request, _peer: peer };
    let host = line._peer.of(greeting.number);
    let mut bells: Vec<DeviceBell> = host[..greeting.vectors]
        .iter()
        .enumerate()
        .map(|(vector, bell)| Ok(DeviceBell::new(bell.try_clone()?, end.clone(), vector)))
        .collect::<io::Result<_>>()
        .map_err(DeviceError::Map)?;
    bells[mailbox::CONTROL_VECTOR].ring();
    let offer = wait_for_offer(&line, &own)?;

    let path = folder.join("memory");
    let memory = File::options().read(true).write(true).open(&path);
    let memory = memory.map_err(failed("opening", &path))?;
    let memory_bytes = memory.metadata().map_err(failed("looking at", &path))?.len();
    let page = |place: &Place| {
        let (file, offset, bytes) = match *place {
            Place::Host(address) => (memory.as_fd(), address, memory_bytes),
            Place::Device(offset) => (bar.as_fd(), offset, bar_bytes),
        };
        let end = offset.checked_add(PAGE_BYTES).filter(|_| offset % PAGE_BYTES == 0);
        if end.is_none_or(|end| end > bytes) {
            return Err(DeviceError::Nonsense(
                "a page of its window is outside the guest's memory and the device's",
            ));
        }
        Ok(Page { file, offset })
    };
    let pages = offer.pages.iter().map(page).collect::<Result<Vec<_>, _>>()?;
    let (nic, host_lines) = (offer.nic_lines, offer.host_lines);
    let window = Arc::new(Memory::of_pages(&pages, nic, host_lines)?);

    let link = LinkSpec::Shm;
    let port = link.port(&window, Side::Agent, &[])?;
    let layout = read_header(port.window(Home::Nic), nic, host_lines)?;
    // The answer in the mailbox does not name a subsystem: the window's header is the first that does.
    Wanted::Policy.check(layout.config.subsystem)?;
    let cores = usize::from(layout.config.cores);
    let (have, need) = (bells.len(), cores + 1);
    if have < need {
        return Err(AttachError::Doorbells { have, need });
    }
    // The control context's vector is the device's first, but the layout's last.
    let control = bells.remove(mailbox::CONTROL_VECTOR);
    let host_bells = bells.into_iter().take(cores).chain([control]);
    let host_bells = host_bells.map(HostBell::Device).collect();
    Ok(Attached {
        layout,
        port,
        host_bells,
        own_bell: OwnBell::Event(own),
        link: "pci".into(),
        connection: HostLine::Device(Box::new(line)),
    })
}

/// Waits until a host has written its greeting, and the device's server has announced its vectors.
fn wait_for_host(
    peer: &mut Peer,
    end: &AgentEnd<ShmWindow>,
    socket: &Path,
) -> Result<Greeting, DeviceError> {
    let began = Instant::now();
    let mut told = false;
    loop {
        let lost =
            |error| DeviceError::File { doing: "hearing from", path: socket.to_owned(), error };
        peer.update().map_err(lost)?;
        if let Some(greeting) = end.greeting()
            && greeting.vectors > mailbox::CONTROL_VECTOR
            && peer.of(greeting.number).len() >= greeting.vectors
        {
            return Ok(greeting);
        }
        if !told && began.elapsed() > Duration::from_secs(1) {
            told = true;
            say!("wave agent: no host behind the device yet; waiting for one");
        }
        std::thread::sleep(POLL_EVERY);
    }
}

fn wait_for_offer(line: &DeviceLine, own: &impl Waiter) -> Result<Offer, DeviceError> {
    let deadline = Instant::now() + ANSWER_PATIENCE;
    loop {
        match line.end.answer(line.request) {
            Ok(offer) => return Ok(offer),
            Err(NoOffer::Refused(why)) => return Err(DeviceError::Refused(why)),
            Err(NoOffer::Nonsense) => {
                return Err(DeviceError::Nonsense("its answer does not describe a window"));
            }
            Err(NoOffer::NotYet) => {}
        }
        if line.hung_up() {
            return Err(DeviceError::Gone);
        }
        if Instant::now() > deadline {
            return Err(DeviceError::NoAnswer);
        }
        own.wait(Some(POLL_EVERY));
    }
}

/// A request number that no other agent uses.
fn random() -> u64 {
    // The hasher's keys are random.
    RandomState::new().hash_one(std::process::id()).max(1)
}

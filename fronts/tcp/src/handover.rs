//! The protocol by which an agent replaces a running one (docs/adr/0072).
//!
//! ```text
//!  new agent                                old agent
//!  connects to SOCKET.replace ────────────> checks its user
//!                             <──────────── its description, its wire, its listening sockets
//!  makes its tables
//!  READY                      ────────────> finishes work in progress, freezes connections: the pause begins
//!                             <──────────── its state in a file, the descriptors of its processes
//!  restores everything, writes nothing
//!  RESTORED                   ────────────>
//!  serves: the pause ends     <──────────── COMMIT; the old agent leaves, and touches nothing any more
//! ```
//!
//! A failure before COMMIT leaves the old agent as it was: it sends STAY and continues. If the old agent dies in between, the
//! new one takes its place as soon as the old agent's end of the socket is closed.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use wave_core::clock::Nanos;
use wave_links::socket::{Connection, DESCRIPTORS_MAX, Listener, SocketError};
use wave_tcp::control::{Address, Bounds, StackState};
use wave_tcp::steering::{GROUPS_MAX, Steering};

use crate::admitted::{AdmissionCounters, KeptAdmitted};
use crate::streams::KeptStreams;

/// Version of the format of everything that is handed over. Agents of different versions do not replace each other.
const VERSION: u32 = 7;
/// Time for a new agent to make its tables.
const CANDIDATE_PATIENCE: Nanos = Nanos::from_millis(10_000);
/// Time for a new agent to restore the state. No agent serves meanwhile.
const RESTORE_PATIENCE: Duration = Duration::from_millis(2_000);
/// Time for an old agent to answer.
const PATIENCE: Duration = Duration::from_secs(10);

const READY: &[u8] = b"ready";
const RESTORED: &[u8] = b"restored";
const COMMIT: &[u8] = b"commit";
const STAY: &[u8] = b"stay";
const DESCRIPTORS: &[u8] = b"descriptors";

/// Path of the socket where a new agent connects to replace the agent whose door is at `door`.
pub fn replace_path(door: &Path) -> PathBuf {
    let mut name = door.as_os_str().to_owned();
    name.push(".replace");
    name.into()
}

/// Why a new agent does not replace a running one.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    /// There is no replaceable agent at the socket, or it has gone.
    #[error(transparent)]
    Socket(SocketError),
    /// The running agent does not answer.
    #[error("the running agent does not answer in time: is it stopped?")]
    Silent,
    /// The running agent continues: another agent is replacing it, or this one was too slow.
    #[error("the running agent continues, and was not replaced")]
    Stays,
    /// The running agent has another version, or breaks the protocol.
    #[error("the running agent cannot be replaced by this one: {0}")]
    Other(String),
    /// A system call failed.
    #[error("{0}")]
    System(#[from] io::Error),
}

impl From<SocketError> for HandoverError {
    fn from(error: SocketError) -> HandoverError {
        match error {
            SocketError::Timeout => HandoverError::Silent,
            error => HandoverError::Socket(error),
        }
    }
}

/// The kind of a front's wire. Another agent needs it to continue with the descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WireKind {
    /// A TAP device.
    Tap,
    /// An interface shared with the kernel.
    Interface,
}

/// Description of a running agent, which a new one needs before it makes its tables.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct AgentInfo {
    pub(crate) version: u32,
    /// Name of its data path.
    pub(crate) datapath: String,
    pub(crate) wire: WireKind,
    /// How its flows are spread over groups with a wire each. `None`: it has one wire.
    pub(crate) steering: Option<Steering>,
    /// Name of the wire's network interface in Linux.
    pub(crate) name: String,
    pub(crate) address: Address,
    pub(crate) bounds: Bounds,
    pub(crate) door: PathBuf,
    pub(crate) allowed: Vec<u32>,
    pub(crate) trusted: Vec<u32>,
    pub(crate) payload_bytes_max: u64,
    /// When the agent's clock began, by the machine's clock.
    pub(crate) clock_ns: u64,
}

impl AgentInfo {
    pub(crate) const VERSION: u32 = VERSION;
}

/// The rest of the state that is handed over.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Kept {
    pub(crate) stack: StackState,
    /// Processes by number.
    pub(crate) processes: Vec<Option<KeptAdmitted>>,
    /// Number of connections at the door that have offered nothing yet.
    pub(crate) waiting: usize,
    pub(crate) streams: KeptStreams,
    pub(crate) admission: AdmissionCounters,
}

impl Kept {
    fn descriptors(&self) -> usize {
        let of_processes =
            self.processes.iter().flatten().map(|process| process.process.descriptors());
        of_processes.sum::<usize>() + self.waiting + self.streams.descriptors()
    }
}

/// Descriptors that come with [`AgentInfo`].
#[derive(Debug)]
pub(crate) struct Sockets<F> {
    pub(crate) door: F,
    pub(crate) reports: F,
    pub(crate) captures: F,
    pub(crate) traces: F,
    pub(crate) successors: F,
}

impl Sockets<OwnedFd> {
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        Ok(Sockets {
            door: self.door.try_clone()?,
            reports: self.reports.try_clone()?,
            captures: self.captures.try_clone()?,
            traces: self.traces.try_clone()?,
            successors: self.successors.try_clone()?,
        })
    }
}

/// The start of an agent's clock, in nanoseconds of the machine's clock.
pub(crate) fn to_machine_time(start: Instant) -> u64 {
    machine_time().saturating_sub(start.elapsed().as_nanos() as u64)
}

/// The start of another agent's clock, as an instant of this process.
pub(crate) fn from_machine_time(start_ns: u64) -> Instant {
    let since = Duration::from_nanos(machine_time().saturating_sub(start_ns));
    let now = Instant::now();
    now.checked_sub(since).unwrap_or(now)
}

fn machine_time() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The socket for agents that are to replace this one. Its file is removed on drop.
#[derive(Debug)]
pub struct Successors {
    listener: Listener,
    candidate: Option<(Connection, Nanos)>,
}

impl Successors {
    /// Listens beside a door that was bound.
    ///
    /// # Errors
    /// The socket cannot be bound.
    pub fn bind(door: &Path) -> Result<Successors, SocketError> {
        Ok(Successors { listener: Listener::bind(&replace_path(door), &[])?, candidate: None })
    }

    pub(crate) fn adopt(listener: OwnedFd, door: &Path) -> Result<Successors, SocketError> {
        let listener = Listener::adopt(listener, &replace_path(door), &[])?;
        Ok(Successors { listener, candidate: None })
    }

    /// Descriptors to poll for input.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let candidate = self.candidate.as_ref().map(|(connection, _)| connection.as_fd());
        std::iter::once(self.listener.as_fd()).chain(candidate)
    }

    /// Accepts a new agent, welcomes it, and returns its connection once it is READY. One agent at a time.
    pub(crate) fn poll(
        &mut self,
        now: Nanos,
        send_info: impl FnOnce(BorrowedFd<'_>, &Connection) -> Result<(), SocketError>,
    ) -> Option<Connection> {
        if let Some((connection, since)) = self.candidate.take() {
            return match connection.receive_descriptors(Duration::ZERO) {
                Ok((text, _)) if text == READY => Some(connection),
                Err(SocketError::Timeout) if now.since(since) < CANDIDATE_PATIENCE => {
                    self.candidate = Some((connection, since));
                    None
                }
                _ => None,
            };
        }
        // The listener has refused a user that is not allowed, and told it so.
        let connection = self.listener.accept().ok().flatten()?;
        if send_info(self.listener.as_fd(), &connection).is_ok() {
            self.candidate = Some((connection, now));
        }
        None
    }
}

/// Sends a new agent this one's description, wires and sockets.
pub(crate) fn send_info(
    to: &Connection,
    info: &AgentInfo,
    wires: &[BorrowedFd<'_>],
    sockets: &Sockets<BorrowedFd<'_>>,
) -> Result<(), SocketError> {
    let Sockets { door, reports, captures, traces, successors } = *sockets;
    let text = serde_json::to_vec(info).unwrap_or_default();
    let sockets = [door, reports, captures, traces, successors];
    to.send_descriptors(&text, &[wires, &sockets].concat())
}

/// Hands everything to a new agent. Returns once the new agent has confirmed that it has restored all.
pub(crate) fn send(
    to: &Connection,
    kept: &Kept,
    fds: &[BorrowedFd<'_>],
) -> Result<(), HandoverError> {
    let file = memfd_create("wave-tcp-state", MemfdFlags::CLOEXEC).map_err(io::Error::from)?;
    let mut file = File::from(file);
    let mut writer = io::BufWriter::with_capacity(1 << 18, &mut file);
    serde_json::to_writer(&mut writer, kept).map_err(io::Error::from)?;
    writer.flush()?;
    drop(writer);
    to.send_descriptors(READY, &[file.as_fd()])?;
    for part in fds.chunks(DESCRIPTORS_MAX) {
        to.send_descriptors(DESCRIPTORS, part)?;
    }
    match to.receive_descriptors(RESTORE_PATIENCE)? {
        (text, _) if text == RESTORED => Ok(()),
        (text, _) => Err(HandoverError::Other(String::from_utf8_lossy(&text).into_owned())),
    }
}

/// From now on the new agent serves. If this fails, this agent still does.
pub(crate) fn send_commit(to: &Connection) -> Result<(), SocketError> {
    to.send_descriptors(COMMIT, &[])
}

/// Tells the new agent that this one continues.
pub(crate) fn send_stay(to: Connection) {
    match to.send_descriptors(STAY, &[]) {
        Ok(()) | Err(SocketError::HungUp) => {}
        // The successor begins if this end closes. As long as it is open, that agent waits.
        Err(_) => std::mem::forget(to),
    }
}

/// A running agent that is about to be replaced by this process.
#[derive(Debug)]
pub struct Predecessor {
    connection: Connection,
    pub(crate) info: AgentInfo,
    pub(crate) sockets: Sockets<OwnedFd>,
}

impl Predecessor {
    /// Connects to the agent whose door is at `door`, and receives its description. That agent goes on serving. Also returns
    /// the descriptors of its wires: one, or those of its flow groups in order.
    ///
    /// # Errors
    /// There is no agent, or this process cannot replace it.
    pub fn connect(door: &Path) -> Result<(Predecessor, Vec<OwnedFd>), HandoverError> {
        let connection = Connection::connect(&replace_path(door))?;
        let (text, mut wires) = connection.receive_descriptors(PATIENCE)?;
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let other = |error: serde_json::Error| HandoverError::Other(error.to_string());
        let Version { version } = serde_json::from_slice(&text).map_err(other)?;
        if version != VERSION {
            let why = format!("its state has version {version}, but this agent needs {VERSION}");
            return Err(HandoverError::Other(why));
        }
        let info: AgentInfo = serde_json::from_slice(&text).map_err(other)?;
        if let Some(steering) = info.steering
            && !(1..=GROUPS_MAX).contains(&steering.groups())
        {
            let why = format!(
                "it reports {} flow groups; 1 to {GROUPS_MAX} are possible",
                steering.groups()
            );
            return Err(HandoverError::Other(why));
        }
        let count = info.steering.map_or(1, |steering| usize::from(steering.groups()));
        let wrong = format!("it sent {} descriptors instead of {}", wires.len(), count + 5);
        let sockets = wires.split_off(count.min(wires.len()));
        let [door, reports, captures, traces, successors] =
            <[OwnedFd; 5]>::try_from(sockets).map_err(|_| HandoverError::Other(wrong))?;
        let sockets = Sockets { door, reports, captures, traces, successors };
        Ok((Predecessor { connection, info, sockets }, wires))
    }

    /// Kind of the agent's wire.
    pub fn wire(&self) -> WireKind {
        self.info.wire
    }

    /// How its flows are spread over groups, if it has several.
    pub fn steering(&self) -> Option<Steering> {
        self.info.steering
    }

    /// Name of its wire's network interface in Linux.
    pub fn name(&self) -> &str {
        &self.info.name
    }

    /// Name of the agent's data path.
    pub fn datapath(&self) -> &str {
        &self.info.datapath
    }

    /// The agent's addresses.
    pub fn address(&self) -> &Address {
        &self.info.address
    }

    /// Path of the socket where programs attach.
    pub fn door(&self) -> &Path {
        &self.info.door
    }

    /// Sends READY, and receives the agent's state and descriptors.
    pub(crate) fn receive(&self) -> Result<(Kept, Vec<OwnedFd>), HandoverError> {
        self.connection.send_descriptors(READY, &[])?;
        let (text, fds) = self.receive_message()?;
        let Some(file) = fds.into_iter().next().filter(|_| text == READY) else {
            return Err(HandoverError::Stays);
        };
        let (mut file, mut bytes) = (File::from(file), Vec::new());
        file.rewind()?;
        file.read_to_end(&mut bytes)?;
        let kept: Kept = serde_json::from_slice(&bytes)
            .map_err(|error| HandoverError::Other(error.to_string()))?;
        let (expected, mut fds) = (kept.descriptors(), Vec::new());
        while fds.len() < expected {
            let (text, more) = self.receive_message()?;
            if text != DESCRIPTORS || more.is_empty() {
                return Err(HandoverError::Stays);
            }
            fds.extend(more);
        }
        Ok((kept, fds))
    }

    fn receive_message(&self) -> Result<(Vec<u8>, Vec<OwnedFd>), HandoverError> {
        Ok(self.connection.receive_descriptors(PATIENCE)?)
    }

    /// Sends RESTORED, and waits for COMMIT. Until this returns, the other agent may continue.
    pub(crate) fn replace(self) -> Result<(), HandoverError> {
        match self.connection.send_descriptors(RESTORED, &[]) {
            // The other agent has closed its end: it has sent STAY, or it died.
            Ok(()) | Err(SocketError::HungUp) => {}
            Err(error) => return Err(error.into()),
        }
        loop {
            match self.connection.receive_descriptors(PATIENCE) {
                Ok((text, _)) if text == COMMIT => return Ok(()),
                Ok(_) => return Err(HandoverError::Stays),
                // The other agent has not answered, but has not gone either.
                Err(SocketError::Timeout) => {}
                // The other agent died before it could answer: no agent serves any more.
                Err(SocketError::HungUp) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::thread;

    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    /// A predecessor that has sent its state, and its own end of the connection.
    fn predecessor() -> (Predecessor, Connection) {
        let folder = tempfile::tempdir().unwrap();
        let door = folder.path().join("door");
        let listener = Listener::bind(&door, &[]).unwrap();
        let connection = Connection::connect(&door).unwrap();
        let fd = || OwnedFd::from(File::open("/dev/null").unwrap());
        let info = AgentInfo {
            version: VERSION,
            datapath: "flextoe".to_owned(),
            wire: WireKind::Tap,
            steering: None,
            name: String::new(),
            address: Address {
                ip: Ipv4Addr::new(10, 0, 0, 2),
                prefix: 24,
                gateway: None,
                v6: None,
                mac: [0; 6],
                mtu: 1500,
            },
            bounds: Bounds::default(),
            door,
            allowed: Vec::new(),
            trusted: Vec::new(),
            payload_bytes_max: 0,
            clock_ns: 0,
        };
        let sockets =
            Sockets { door: fd(), reports: fd(), captures: fd(), traces: fd(), successors: fd() };
        let old = listener.accept().unwrap().unwrap();
        (Predecessor { connection, info, sockets }, old)
    }

    #[test]
    fn an_agent_that_died_before_restored_was_sent_is_replaced_unless_it_has_said_that_it_stays() {
        let (predecessor, old) = predecessor();
        drop(old);
        assert!(predecessor.replace().is_ok());

        let (predecessor, old) = self::predecessor();
        send_stay(old);
        assert!(matches!(predecessor.replace(), Err(HandoverError::Stays)));
    }

    #[test]
    fn an_agent_that_dies_with_restored_unread_is_replaced_unless_it_has_said_that_it_stays() {
        for says_stay in [false, true] {
            let (predecessor, old) = predecessor();
            let replacing = thread::spawn(|| predecessor.replace());
            poll(&mut [PollFd::new(&old, PollFlags::IN)], None).unwrap();
            if says_stay {
                send_stay(old);
            } else {
                drop(old);
            }
            let replaced = replacing.join().unwrap();
            assert_eq!(matches!(replaced, Err(HandoverError::Stays)), says_stay);
            assert_eq!(replaced.is_ok(), !says_stay);
        }
    }
}

//! QEMU's ivshmem: memory that machines share, and eventfds that interrupt them.
//!
//! A *server* hands the same memory to every *peer* that connects to its socket, and an eventfd for each
//! of the other peers' vectors. A virtual machine sees all this as a PCI device (`ivshmem-doorbell`). An
//! agent beside the machine, that is, on the far side of the device, uses this module. The protocol is
//! QEMU's (its `docs/specs/ivshmem-spec`): numbers of eight bytes, little-endian, some with a descriptor.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::ancillary;
use crate::doorbell::{EventFd, poll};
use crate::memory::sealed_memory;

/// The protocol's only version.
const VERSION: i64 = 0;
/// The number that precedes the memory's descriptor.
const MEMORY: i64 = -1;
/// How long the server may take to introduce a new peer.
const GREETING: Duration = Duration::from_secs(5);
/// Registers in BAR 0, by byte: the device's own number, and the doorbell (peer << 16 | vector).
pub const REGISTER_OWN_ID: usize = 8;
/// The doorbell register: see [`REGISTER_OWN_ID`].
pub const REGISTER_DOORBELL: usize = 12;

/// Hands out memory and eventfds, for as long as [`Server::serve`] runs.
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
    memory: OwnedFd,
    vectors: usize,
    peers: BTreeMap<u16, Seat>,
    next: u16,
}

/// A connected peer, with its doorbells.
#[derive(Debug)]
struct Seat {
    stream: UnixStream,
    vectors: Vec<EventFd>,
}

impl Server {
    /// Listens on `path`, which must not exist. The memory has `bytes` bytes, all zero (a power of two, as
    /// the size of a BAR), and each peer gets `vectors` vectors.
    pub fn bind(path: &Path, bytes: u64, vectors: usize) -> io::Result<Server> {
        assert!(bytes.is_power_of_two(), "a BAR's size is a power of two");
        let listener = UnixListener::bind(path)?;
        let memory = sealed_memory("wave-ivshmem", bytes)?;
        Ok(Server { listener, memory, vectors, peers: BTreeMap::new(), next: 0 })
    }

    /// Serves until the process ends; returns only if listening fails.
    pub fn serve(mut self) -> io::Result<()> {
        loop {
            let mut entries: Vec<libc::pollfd> = [self.listener.as_raw_fd()]
                .into_iter()
                .chain(self.peers.values().map(|seat| seat.stream.as_raw_fd()))
                .map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 })
                .collect();
            // SAFETY: `entries` is valid for reads and writes during the call.
            unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, -1) };
            let ids: Vec<u16> = self.peers.keys().copied().collect();
            for (id, entry) in ids.into_iter().zip(&entries[1..]) {
                // Peers send nothing: readable means closed.
                if entry.revents != 0 {
                    self.leave(id);
                }
            }
            if entries[0].revents != 0 {
                let (stream, _) = self.listener.accept()?;
                // A peer for which this fails is not served; the others are.
                let _ = self.enter(stream);
            }
        }
    }

    fn enter(&mut self, stream: UnixStream) -> io::Result<()> {
        // Numbers are never reused: QEMU (7.2) frees its record of a peer that
        // leaves, and writes to it when the number comes again.
        let id = self.next;
        self.next = id.checked_add(1).ok_or(io::ErrorKind::OutOfMemory)?;
        let vectors = (0..self.vectors).map(|_| EventFd::new()).collect::<io::Result<Vec<_>>>()?;
        send(&stream, VERSION, None)?;
        send(&stream, id.into(), None)?;
        send(&stream, MEMORY, Some(self.memory.as_fd()))?;
        for (other, seat) in &self.peers {
            for bell in &seat.vectors {
                send(&stream, (*other).into(), Some(bell.as_fd()))?;
            }
        }
        let mut lost = Vec::new();
        for (other, seat) in &self.peers {
            if vectors.iter().any(|bell| send(&seat.stream, id.into(), Some(bell.as_fd())).is_err())
            {
                lost.push(*other);
            }
        }
        let told = vectors.iter().try_for_each(|bell| send(&stream, id.into(), Some(bell.as_fd())));
        self.peers.insert(id, Seat { stream, vectors });
        for other in lost {
            self.leave(other);
        }
        if told.is_err() {
            self.leave(id);
        }
        Ok(())
    }

    fn leave(&mut self, id: u16) {
        self.peers.remove(&id);
        for seat in self.peers.values() {
            // A peer that cannot be notified is about to leave as well.
            let _ = send(&seat.stream, id.into(), None);
        }
    }
}

fn send(stream: &UnixStream, number: i64, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    ancillary::send(stream.as_fd(), &number.to_le_bytes(), fd.as_slice())
}

/// One peer's connection to the server.
#[derive(Debug)]
pub struct Peer {
    stream: UnixStream,
    id: u16,
    memory: OwnedFd,
    vectors: BTreeMap<u16, Vec<EventFd>>,
}

impl Peer {
    /// Connects to the server at `path`, and returns when the server has announced the other peers and
    /// this peer's first vector.
    ///
    /// # Errors
    /// `InvalidData` if the server does not speak the protocol, `TimedOut` if its greeting is incomplete.
    pub fn connect(path: &Path) -> io::Result<Peer> {
        let stream = UnixStream::connect(path)?;
        let deadline = Instant::now() + GREETING;
        let nonsense = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        let next = || receive(&stream, Some(deadline));
        if !matches!(next()?, Some((VERSION, None))) {
            return Err(nonsense("the server speaks a version other than 0"));
        }
        let id = match next()? {
            Some((id, None)) => u16::try_from(id).map_err(|_| nonsense("not a peer's number"))?,
            _ => return Err(nonsense("the server sent no peer number")),
        };
        let memory = match next()? {
            Some((MEMORY, Some(memory))) => memory,
            _ => return Err(nonsense("the server sent no memory")),
        };
        let mut peer = Peer { stream, id, memory, vectors: BTreeMap::new() };
        // Its own vectors come last.
        while peer.own().is_empty() {
            peer.listen(Some(deadline))?;
        }
        while peer.listen(None)? {}
        Ok(peer)
    }

    /// Number of this peer in the device.
    pub fn id(&self) -> u16 {
        self.id
    }

    /// The file of the shared memory: BAR 2 of the device.
    pub fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// This peer's own vectors, which others ring.
    pub fn own(&self) -> &[EventFd] {
        self.of(self.id)
    }

    /// A peer's vectors; none if there is no such peer at present.
    pub fn of(&self, id: u16) -> &[EventFd] {
        self.vectors.get(&id).map_or(&[], Vec::as_slice)
    }

    /// Takes in the server's news of peers that came or left since the last call.
    pub fn update(&mut self) -> io::Result<()> {
        while self.listen(None)? {}
        Ok(())
    }

    /// Takes the server's next announcement. Returns whether there was one; without a deadline it does not wait.
    fn listen(&mut self, deadline: Option<Instant>) -> io::Result<bool> {
        let Some((number, fd)) = receive(&self.stream, deadline)? else { return Ok(false) };
        let id = u16::try_from(number)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "not a peer's number"))?;
        match fd {
            Some(fd) => self.vectors.entry(id).or_default().push(EventFd::from_fd(fd)?),
            None => drop(self.vectors.remove(&id)),
        }
        Ok(true)
    }
}

/// Receives a number, with its descriptor. `None` if nothing came (without a deadline it does not wait).
fn receive(
    mut stream: &UnixStream,
    deadline: Option<Instant>,
) -> io::Result<Option<(i64, Option<OwnedFd>)>> {
    let left = match deadline {
        Some(deadline) => deadline.saturating_duration_since(Instant::now()),
        None => Duration::ZERO,
    };
    if poll(stream.as_fd(), libc::POLLIN, Some(left))? == 0 {
        return match deadline {
            Some(_) => Err(io::ErrorKind::TimedOut.into()),
            None => Ok(None),
        };
    }
    let mut bytes = [0; 8];
    let received = ancillary::receive(stream.as_fd(), &mut bytes)?;
    match received.bytes {
        0 => {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the server closed the connection",
            ));
        }
        8 => {}
        // The rest of the number is under way.
        some => {
            stream.set_read_timeout(Some(GREETING))?;
            stream.read_exact(&mut bytes[some..])?;
        }
    }
    Ok(Some((i64::from_le_bytes(bytes), received.fds.into_iter().next())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::SeqCst;

    use wave_core::link::{Doorbell, Home, Waiter};

    use crate::Memory;

    fn server(vectors: usize) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ivshmem");
        let server = Server::bind(&path, 4096, vectors).unwrap();
        std::thread::spawn(move || server.serve());
        (folder, path)
    }

    #[test]
    fn peers_share_memory_and_ring_each_other() {
        let (_folder, path) = server(2);
        let mut first = Peer::connect(&path).unwrap();
        let second = Peer::connect(&path).unwrap();
        assert_ne!(first.id(), second.id());
        let maps = [&first, &second].map(|peer| Memory::device(peer.memory(), 0, 4096).unwrap());
        maps[0].region(Home::Nic)[3].store(7, SeqCst);
        assert_eq!(maps[1].region(Home::Nic)[3].load(SeqCst), 7);
        // The last of its own vectors may still be under way.
        while first.own().len() < 2 {
            first.update().unwrap();
        }
        second.of(first.id())[1].ring();
        assert!(first.own()[1].wait(Some(Duration::from_secs(5))));
        assert!(!first.own()[0].drain());
        while first.of(second.id()).len() < 2 {
            first.update().unwrap();
        }
        first.of(second.id())[0].ring();
        assert!(second.own()[0].wait(Some(Duration::from_secs(5))));
    }

    #[test]
    fn a_peer_that_leaves_is_forgotten_and_its_number_is_not_reused() {
        let (_folder, path) = server(1);
        let mut first = Peer::connect(&path).unwrap();
        let mut before = first.id();
        for _ in 0..3 {
            let second = Peer::connect(&path).unwrap();
            assert!(second.id() > before);
            before = second.id();
            while first.of(before).is_empty() {
                first.update().unwrap();
            }
            drop(second);
            while !first.of(before).is_empty() {
                first.update().unwrap();
            }
        }
    }

    #[test]
    fn another_version_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ivshmem");
        let listener = UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            send(&stream, 1, None).unwrap();
            stream
        });
        let error = Peer::connect(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
        drop(server.join().unwrap());
    }
}

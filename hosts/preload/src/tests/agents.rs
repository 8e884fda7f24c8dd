//! Two agents with the engine of `wave tcp up`, at the two ends of a wire in memory, and processes with sockets at each.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use wave_agent::{Seat, ThreadFront};
use wave_core::agent::Front;
use wave_core::clock::Nanos;
use wave_core::policy::Progress;
use wave_front_tcp::{
    Captures, Door, DoorOptions, FrontDatapath, GroupWires, ReportSocket, TcpFront, TcpOptions,
    Traces, steering_over,
};
use wave_tcp::congestion::Algorithm;
use wave_tcp::control::Bounds;
use wave_tcp::datapaths::DatapathKind;
use wave_wires::{Adversity, Counters, Frame, Limits, Memory, Offload, RawPart, Sent, Wire};

use crate::config::Config;
use crate::descriptor_bitmap::DescriptorBitmap;
use crate::sockets::Sockets;

/// Longest sleep of an agent before it checks whether it must stop.
const CHECK_EVERY: Duration = Duration::from_millis(20);

/// One end of a wire in memory that runs in real time; a packet wakes the other end. It outlives its agent.
#[derive(Clone)]
struct Cable {
    memory: Arc<Mutex<Memory>>,
    start: Instant,
    own: Arc<OwnedFd>,
    other: Arc<OwnedFd>,
}

impl Cable {
    fn pair() -> [Cable; 2] {
        let (one, other) = Memory::pair(&Adversity::default());
        let event =
            || Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap());
        let (here, there) = (event(), event());
        let start = Instant::now();
        [
            Cable {
                memory: Arc::new(Mutex::new(one)),
                start,
                own: here.clone(),
                other: there.clone(),
            },
            Cable { memory: Arc::new(Mutex::new(other)), start, own: there, other: here },
        ]
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        let memory = self.memory.lock().unwrap();
        memory.advance(self.start.elapsed().as_nanos() as u64);
        memory
    }
}

impl Wire for Cable {
    fn limits(&self) -> Limits {
        self.memory().limits()
    }

    fn receive(&mut self) -> io::Result<Option<Frame>> {
        let mut memory = self.memory();
        let frame = memory.receive()?;
        if frame.is_none() {
            let _ = rustix::io::read(&self.own, &mut [0; 8]);
            // A packet may have arrived before the eventfd was cleared.
            return memory.receive();
        }
        Ok(frame)
    }

    fn send(
        &mut self,
        head: &[u8],
        payload: [RawPart<'_>; 2],
        offload: Offload,
    ) -> io::Result<Sent> {
        let sent = self.memory().send(head, payload, offload)?;
        let _ = rustix::io::write(&self.other, &1_u64.to_ne_bytes());
        Ok(sent)
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.own.as_fd())
    }

    fn counters(&self) -> Counters {
        self.memory().counters()
    }
}

/// An agent on its own thread.
struct Agent {
    stops: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Agent {
    /// With several flow groups, whichever receives first gets the frame.
    fn start(wire: Cable, socket: PathBuf, ip: Ipv4Addr, groups: u16) -> Agent {
        let stops = Arc::new(AtomicBool::new(false));
        let door = Door::bind(&socket, DoorOptions::default()).unwrap();
        let ends = stops.clone();
        let thread = std::thread::spawn(move || {
            let reports = ReportSocket::bind(&socket).unwrap();
            let captures = Captures::bind(&socket, "memory").unwrap();
            let traces = Traces::bind(&socket).unwrap();
            let options = TcpOptions {
                ip,
                prefix: 24,
                gateway: None,
                v6: None,
                bounds: Bounds::default(),
                congestion: Algorithm::default(),
                seat: Seat::Shared,
            };
            let make = |settings, trace| DatapathKind::default().make(settings, trace);
            if groups == 1 {
                let front = TcpFront::new(wire, make, door, reports, captures, traces, &options);
                return run(front.unwrap(), &ends);
            }
            let wires = GroupWires {
                wires: vec![wire.clone(); groups.into()],
                senders: vec![wire; groups.into()],
                steering: steering_over(groups),
                cpus: Vec::new(),
            };
            let front =
                TcpFront::with_groups(wires, make, door, reports, captures, traces, &options);
            run(front.unwrap(), &ends);
        });
        Agent { stops, thread: Some(thread) }
    }

    fn stop(&mut self) {
        self.stops.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// Serves until the agent is to end.
fn run<W: Wire, D: FrontDatapath>(mut front: TcpFront<W, D>, ends: &AtomicBool) {
    let start = Instant::now();
    while !ends.load(Ordering::Relaxed) {
        let now = Nanos(start.elapsed().as_nanos() as u64);
        if matches!(front.poll(now, &mut Vec::new()), Progress::More) {
            continue;
        }
        front.prepare_park();
        let now = Nanos(start.elapsed().as_nanos() as u64);
        if matches!(front.poll(now, &mut Vec::new()), Progress::Done) {
            let due = front.next_deadline().map_or(u64::MAX, |at| at.0);
            let timeout = Duration::from_nanos(due.saturating_sub(now.0)).min(CHECK_EVERY);
            front.wait(None, timeout);
        }
        front.unpark();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Both agents. Their addresses are 10.99.0.1 and 10.99.0.2.
pub struct Network {
    folder: tempfile::TempDir,
    cables: [Cable; 2],
    agents: [Agent; 2],
    groups: [u16; 2],
}

pub const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 99, 0, 1), Ipv4Addr::new(10, 99, 0, 2)];

impl Network {
    pub fn new() -> Network {
        Network::with_groups([1, 1])
    }

    /// Agents with these numbers of flow groups.
    pub fn with_groups(groups: [u16; 2]) -> Network {
        let folder = tempfile::tempdir().unwrap();
        let cables = Cable::pair();
        let agents = [0, 1].map(|end| {
            let (wire, path) = (cables[end].clone(), socket(folder.path(), end));
            Agent::start(wire, path, ADDRESSES[end], groups[end])
        });
        Network { folder, cables, agents, groups }
    }

    /// The sockets of a new process at one of the agents.
    pub fn sockets(&self, end: usize) -> Sockets {
        let addresses = format!("{}/24", ADDRESSES[end]);
        let config = Config::new(socket(self.folder.path(), end), &addresses).unwrap();
        let marks = || Box::leak(Box::new(DescriptorBitmap::new()));
        Sockets::new(config, marks(), marks())
    }

    /// Ends an agent without notice to its processes and peers.
    pub fn kill(&mut self, end: usize) {
        self.agents[end].stop();
    }

    /// Starts a new agent in place of a killed one.
    pub fn start(&mut self, end: usize) {
        let (wire, path) = (self.cables[end].clone(), socket(self.folder.path(), end));
        self.agents[end] = Agent::start(wire, path, ADDRESSES[end], self.groups[end]);
    }
}

fn socket(folder: &Path, end: usize) -> PathBuf {
    folder.join(format!("{end}.sock"))
}

//! The agent's process. Tests start processes as this program once more, with only the test `role`.

use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, setrlimit};
use wave_agent::Seat;
use wave_core::agent::Front;
use wave_core::clock::Nanos;
use wave_core::policy::Progress;
use wave_front_tcp::{
    Captures, Door, DoorOptions, EVENTS_MAX, GroupWires, PROCESSES_MAX, ReportSocket, SPANS_MAX,
    TcpFront, TcpOptions, Traces, steering_over,
};
use wave_posix::Toe;
use wave_tcp::congestion::Algorithm;
use wave_tcp::control::Bounds;
use wave_tcp::datapaths::DatapathKind;
use wave_wires::{Adversity, Counters, Frame, Memory, Offload, RawPart, Sent, Wire};

use crate::attacks;

/// A test that waits longer has failed.
pub const PATIENCE: Duration = Duration::from_secs(300);
/// The addresses of the two fronts.
pub const NEAR: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub const FAR: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// Another user whose processes are let in, but not trusted.
pub const STRANGER: u32 = 65_534;
/// Limits of the near front: small, so that attacks reach them soon.
pub const BOUNDS: Bounds =
    Bounds { flows: 256, handshakes: 64, time_wait: 64, listeners: 16, slots: 128 };

/// Limits of the far front, which has the good program's connections and those that hostile programs make to it.
const FAR_BOUNDS: Bounds =
    Bounds { flows: 4_096, handshakes: 1_024, time_wait: 64, listeners: 16, slots: 128 };

const ROLE: &str = "WAVE_TEST_ROLE";
const FOLDER: &str = "WAVE_TEST_FOLDER";

/// Starts this program as another process, in a role.
pub fn start(role: &str, folder: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "role", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(FOLDER, folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(if role.starts_with("agent") { Stdio::piped() } else { Stdio::inherit() })
        .spawn()
        .unwrap()
}

/// Runs this process's role, if [`start`] started it.
pub fn run_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let folder = PathBuf::from(std::env::var(FOLDER).unwrap());
    match role.strip_prefix("agent ") {
        Some(numbers) => {
            let (descriptors, groups) = numbers.split_once(' ').unwrap();
            serve(&folder, descriptors.parse().unwrap(), groups.parse().unwrap());
        }
        None => attacks::run(&role, &folder.join("near")),
    }
}

pub fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "{what}: not in {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Limit of an agent's descriptors, in most tests.
pub const DESCRIPTORS: u64 = 4_096;

/// A running agent.
pub struct Agent {
    folder: tempfile::TempDir,
    process: Child,
    /// The agent has reported that it has no descriptors left.
    has_none_left: Arc<AtomicBool>,
}

impl Agent {
    /// Starts an agent with this limit of descriptors.
    pub fn start(descriptors: u64) -> Agent {
        Agent::launch(descriptors, 1)
    }

    /// Starts an agent whose near front has several flow groups.
    pub fn with_groups(groups: u16) -> Agent {
        Agent::launch(DESCRIPTORS, groups)
    }

    fn launch(descriptors: u64, groups: u16) -> Agent {
        let folder = tempfile::tempdir().unwrap();
        let mut process = start(&format!("agent {descriptors} {groups}"), folder.path());
        let has_none_left = Arc::new(AtomicBool::new(false));
        let (noted, words) = (has_none_left.clone(), process.stderr.take().unwrap());
        std::thread::spawn(move || {
            for line in BufReader::new(words).lines().map_while(Result::ok) {
                noted.fetch_or(line.contains("Too many open files"), SeqCst);
                eprintln!("{line}");
            }
        });
        let agent = Agent { folder, process, has_none_left };
        wait_for("the agent is up", || {
            [agent.near(), agent.far()].iter().all(|path| Toe::connect(path).is_ok())
        });
        agent
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn near(&self) -> PathBuf {
        self.folder.path().join("near")
    }

    pub fn far(&self) -> PathBuf {
        self.folder.path().join("far")
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    fn proc(&self, file: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{file}", self.process.id()))
    }

    /// Number of open descriptors.
    pub fn descriptors(&self) -> u64 {
        std::fs::read_dir(self.proc("fd")).unwrap().count() as u64
    }

    /// Memory charged to the agent: its own, and the kernel's page tables for it.
    pub fn memory_bytes(&self) -> u64 {
        let text = std::fs::read_to_string(self.proc("status")).unwrap();
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
        };
        field("RssAnon:") + field("VmPTE:")
    }

    /// The most memory that programs with rings in this many spans may cost the agent, by its limits. Both fronts have these
    /// limits.
    pub fn bound(&self, spans: u64) -> u64 {
        assert!(spans <= SPANS_MAX.into());
        let payload_max = DoorOptions::default().payload_bytes_max;
        // A page table of 4 KiB maps 2 MiB, which is a span.
        let tables = spans * 4_096;
        // A bit for each page, and one for each span. Only the parts for pages that were looked at are touched.
        let known = PROCESSES_MAX as u64 * 2 * 4_096 + payload_max / 32_768;
        // While a queue grows, it has room for twice its contents, and so has its index.
        let events = u64::from(EVENTS_MAX) * 2 * (64 + 32);
        // Windows have 64 contexts of 2 queues, whose pages are the programs'. A context has its endpoints and a bell.
        let windows = PROCESSES_MAX as u64 * 64 * 1_024;
        // Slots, and taken requests.
        let slots = u64::from(BOUNDS.listeners * BOUNDS.slots) * 128;
        2 * (tables + known + events + windows + slots)
    }

    /// Whether the agent has lacked a descriptor for a connection.
    pub fn has_none_left(&self) -> bool {
        self.has_none_left.load(SeqCst)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let ended = self.process.try_wait().unwrap();
        let _ = self.process.kill();
        let _ = self.process.wait();
        if !std::thread::panicking() {
            assert!(ended.is_none(), "the agent has ended: {ended:?}");
        }
    }
}

/// A wire in memory that runs in real time. Clones share one end: whichever receives first gets the frame.
#[derive(Clone)]
struct Cable {
    memory: Arc<Mutex<Memory>>,
    start: Instant,
}

impl Cable {
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap()
    }
}

impl Wire for Cable {
    fn limits(&self) -> wave_wires::Limits {
        self.memory().limits()
    }

    fn receive(&mut self) -> std::io::Result<Option<Frame>> {
        let mut memory = self.memory();
        memory.advance(self.start.elapsed().as_nanos() as u64);
        memory.receive()
    }

    fn send(
        &mut self,
        head: &[u8],
        payload: [RawPart<'_>; 2],
        offload: Offload,
    ) -> std::io::Result<Sent> {
        self.memory().send(head, payload, offload)
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn counters(&self) -> Counters {
        self.memory().counters()
    }
}

/// Runs the agent until the test ends.
fn serve(folder: &Path, descriptors: u64, groups: u16) {
    let limit = Rlimit { current: Some(descriptors), maximum: Some(descriptors) };
    setrlimit(Resource::Nofile, limit).unwrap();
    let start = Instant::now();
    let (near, far) = Memory::pair(&Adversity::default());
    let front = |name: &str, ip, bounds, memory, groups: u16| -> Box<dyn Front> {
        let path = folder.join(name);
        let options = DoorOptions { allowed: vec![STRANGER], ..DoorOptions::default() };
        let door = Door::bind(&path, options).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        let reports = ReportSocket::bind(&path).unwrap();
        let captures = Captures::bind(&path, "test").unwrap();
        let traces = Traces::bind(&path).unwrap();
        let (prefix, gateway, v6, seat) = (24, None, None, Seat::Shared);
        let congestion = Algorithm::default();
        let options = TcpOptions { ip, prefix, gateway, v6, bounds, congestion, seat };
        let cable = Cable { memory: Arc::new(Mutex::new(memory)), start };
        let make = |settings, trace| DatapathKind::default().make(settings, trace);
        if groups == 1 {
            let front = TcpFront::new(cable, make, door, reports, captures, traces, &options);
            return Box::new(front.unwrap());
        }
        let cables = || vec![cable.clone(); groups.into()];
        let (steering, cpus) = (steering_over(groups), Vec::new());
        let wires = GroupWires { wires: cables(), senders: cables(), steering, cpus };
        let front = TcpFront::with_groups(wires, make, door, reports, captures, traces, &options);
        Box::new(front.unwrap())
    };
    let mut fronts =
        [front("near", NEAR, BOUNDS, near, groups), front("far", FAR, FAR_BOUNDS, far, 1)];
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o711)).unwrap();
    let mut notes = Vec::new();
    let parent = rustix::process::getppid();
    while rustix::process::getppid() == parent {
        let mut turn = |fronts: &mut [Box<dyn Front>; 2]| {
            let now = Nanos(start.elapsed().as_nanos() as u64);
            let worked = fronts.each_mut().map(|front| front.poll(now, &mut notes));
            worked.contains(&Progress::More)
        };
        if !turn(&mut fronts) {
            fronts.iter_mut().for_each(|front| front.prepare_park());
            if !turn(&mut fronts) {
                std::thread::sleep(Duration::from_micros(100));
            }
            fronts.iter_mut().for_each(|front| front.unpark());
        }
    }
}

//! A bench's networks: two unnamed network namespaces, a veth pair between them, and a TAP device.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sched::{CloneFlags, setns, unshare};
use tempfile::TempDir;
use wave_process::{cpus, say};
use wave_tcp::datapaths::DatapathKind;

use crate::client::{Load, set};
use crate::cpu::{Snapshot, Spent, tree};
use crate::process::{Process, own};

/// Ends of the cable: the program's, in this process's namespace, and the client's.
const NEAR: &str = "wavebench0";
const FAR: &str = "wavebench1";
const TAP: &str = "wavebench2";
/// Addresses on the cable: Linux's at the program's end, the client's, the agent's, and that of another build's agent.
const LINUX: &str = "10.90.0.1";
const CLIENT: &str = "10.90.0.2";
const AGENT: &str = "10.90.0.3";
const BASE_AGENT: &str = "10.90.0.4";
const LOOPBACK: &str = "127.0.0.1";
/// Addresses on the TAP device, in the client's namespace.
const TAP_CLIENT: &str = "10.91.0.2";
const TAP_AGENT: &str = "10.91.0.3";

/// Congestion control of every sender, Linux's and ours. The machine's default would influence the figures: BBR's pacing, for
/// example, depends on how the receiver shares its CPU.
pub const CONGESTION: &str = "reno";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stack {
    /// Linux's sockets, on the cable.
    Linux,
    /// An agent with AF_PACKET, on the cable.
    Veth,
    /// An agent with a TAP device.
    Tap,
    /// An agent of another build, with AF_PACKET, on the cable.
    Base,
}

impl Stack {
    /// Those of every bench.
    pub const ALL: [Stack; 3] = [Stack::Linux, Stack::Veth, Stack::Tap];

    pub fn name(self) -> &'static str {
        match self {
            Stack::Linux => "linux",
            Stack::Veth => "veth",
            Stack::Tap => "tap",
            Stack::Base => "base",
        }
    }
}

/// The place of a stack's program in the networks.
pub struct Place {
    pub address: &'static str,
    /// The client's interface towards the program.
    pub interface: &'static str,
    /// The agent's arguments for its wire; `None` without an agent.
    pub wire: Option<Vec<String>>,
}

/// A serving program and its agent.
pub struct Server {
    pub program: Process,
    pub agent: Option<Process>,
    address: &'static str,
    /// The client's interface towards the program.
    interface: &'static str,
}

#[derive(Clone, Copy, Debug)]
pub struct Chunk {
    /// Number of requests, or of bytes of a stream.
    pub count: f64,
    /// Length of the chunk by the client's clock.
    pub seconds: f64,
    pub spent: Spent,
    /// Packets on the cable in both directions, as counted at the client's end.
    pub packets: f64,
}

impl Chunk {
    /// Rate and CPU time of requests, as text.
    pub fn per_request(&self) -> String {
        let Chunk { count, seconds, spent, .. } = self;
        let [app, agent, all] = [spent.app, spent.agent, spent.total].map(|ns| ns / count / 1e3);
        let rate = count / seconds;
        format!("{rate:.0} requests/s, app {app:.2} us, agent {agent:.2} us, all {all:.2} us")
    }
}

pub struct Network {
    pub client: Process,
    folder: TempDir,
    /// The CPU of program and agent, and the client's CPU.
    pub cpus: [usize; 2],
    /// Processes that are neither client, program nor agent.
    pub helpers: Vec<u32>,
    /// Data path of the agents.
    datapath: DatapathKind,
}

impl Network {
    /// Moves this process into its own network namespace, and starts a client in another one.
    pub fn new(datapath: DatapathKind) -> Result<Network, String> {
        if !rustix::process::geteuid().is_root() {
            return Err(
                "the bench's network namespaces need root: type `sudo wave bench tcp ...`".into()
            );
        }
        if Command::new("ip").arg("-V").output().is_err() {
            return Err("ip(8) is not installed: type `sudo apt-get install iproute2`".into());
        }
        let cpus = cpus::two()?;
        own_network()?;
        let folder = tempfile::tempdir()
            .map_err(|error| format!("cannot create a temporary folder: {error}"))?;
        let client = Process::start(&["client", &cpus[1].to_string()])?;
        ip("link set lo up")?;
        let mut network = Network { client, folder, cpus, helpers: Vec::new(), datapath };
        network.set("ipv4/tcp_congestion_control", CONGESTION)?;
        Ok(network)
    }

    /// Sets a value of `/proc/sys/net` in both namespaces.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        set(name, value)?;
        self.client.tell(&format!("set {name} {value}"))?;
        self.client.expect("done")
    }

    pub fn with_cable(mut self) -> Result<Network, String> {
        let pid = self.client.pid();
        ip(&format!("link add {NEAR} type veth peer name {FAR} netns {pid}"))?;
        ip(&format!("address add {LINUX}/24 dev {NEAR}"))?;
        ip(&format!("link set {NEAR} up"))?;
        self.client.tell(&format!("ip address add {CLIENT}/24 dev {FAR}"))?;
        self.client.expect("done")?;
        self.client.tell(&format!("ip link set {FAR} up"))?;
        self.client.expect("done")?;
        Ok(self)
    }

    /// Turns on GRO at both ends, which is off in a new veth pair. Returns whether that was possible, and prints why it was not.
    pub fn with_gro(&mut self) -> Result<bool, String> {
        let near = ethtool(NEAR);
        self.client.tell(&format!("gro {FAR}"))?;
        let is_far = self.client.hear()? == "done";
        if let Err(error) = &near {
            say!(
                "wave bench tcp: GRO stays off: {error}. If ethtool is missing, type `apt-get install ethtool`"
            );
        }
        Ok(near.is_ok() && is_far)
    }

    /// A stack's place in these networks.
    pub fn place(&self, stack: Stack) -> Place {
        let client = self.client.pid().to_string();
        let (address, wire) = match stack {
            Stack::Linux => (LINUX, None),
            Stack::Veth => (AGENT, Some(vec!["--interface", NEAR])),
            Stack::Base => (BASE_AGENT, Some(vec!["--interface", NEAR])),
            // In the client's namespace, where the other end of the device must be.
            Stack::Tap => (
                TAP_AGENT,
                Some(vec!["--tap", TAP, "--linux", TAP_CLIENT, "--network-of", &client]),
            ),
        };
        let wire = wire.map(|words| words.into_iter().map(str::to_owned).collect());
        Place { address, interface: if stack == Stack::Tap { TAP } else { FAR }, wire }
    }

    /// Starts a server.
    pub fn serve(&self, stack: Stack) -> Result<Server, String> {
        let socket = self.socket(stack.name());
        let socket = socket.to_str().ok_or("the path of the folder for sockets is not UTF-8")?;
        let place = self.place(stack);
        let wire = place.wire.as_ref().map(|words| words.iter().map(String::as_str).collect());
        self.start(place.address, wire, socket, place.interface)
    }

    /// Starts a program over Linux's sockets, on the loopback of the client's namespace.
    pub fn serve_on_loopback(&self) -> Result<Server, String> {
        let (cpu, client) = (self.cpus[0].to_string(), self.client.pid().to_string());
        let words = ["program", "--cpu", &cpu, "--linux", LOOPBACK, "--network-of", &client];
        let place = Place { address: LOOPBACK, interface: "lo", wire: None };
        Ok(Server::new(Process::start(&words)?, None, &place))
    }

    /// Starts a program at `address`, over Linux's sockets or over an agent with these arguments.
    pub fn start(
        &self,
        address: &'static str,
        agent: Option<Vec<&str>>,
        socket: &str,
        interface: &'static str,
    ) -> Result<Server, String> {
        let cpu = self.cpus[0].to_string();
        let agent = agent.map(|wire| self.agent(address, socket, &wire, &own()?)).transpose()?;
        let program = match agent {
            Some(_) => Process::start(&["program", "--cpu", &cpu, "--toe", socket])?,
            None => Process::start(&["program", "--cpu", &cpu, "--linux", address])?,
        };
        Ok(Server { program, agent, address, interface })
    }

    /// Starts an agent of the bench's program at `bench`, which shares the measured program's CPU.
    pub fn agent(
        &self,
        address: &str,
        socket: &str,
        wire: &[&str],
        bench: &Path,
    ) -> Result<Process, String> {
        let cpu = self.cpus[0].to_string();
        let words = ["agent", "--address", address, "--socket", socket, "--cpu", &cpu];
        let datapath = ["--datapath", self.datapath.name()];
        // Another build may not have the option.
        let datapath = &datapath[..if self.datapath == DatapathKind::default() { 0 } else { 2 }];
        Process::start_of(bench, &[], &[&words[..], wire, datapath].concat())
    }

    /// A path for an agent's socket.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn measure(&mut self, server: &Server, load: &Load) -> Result<Chunk, String> {
        self.measure_between(server, load, || Ok(()))
    }

    /// As [`Network::measure`], but runs a function between the connections' establishment and their first bytes.
    pub fn measure_between(
        &mut self,
        server: &Server,
        load: &Load,
        between: impl FnOnce() -> Result<(), String>,
    ) -> Result<Chunk, String> {
        let line = load.to_line(server.address, server.interface);
        let agent = server.agent.as_ref().map(Process::pid);
        let (chunk, _) = self.measure_line(&line, server.program.pid(), agent, between)?;
        Ok(chunk)
    }

    /// Measures while the client executes a command line against a program and its agent. Returns the chunk, and the client's numbers
    /// after count, nanoseconds and packets.
    pub fn measure_line(
        &mut self,
        line: &str,
        program: u32,
        agent: Option<u32>,
        between: impl FnOnce() -> Result<(), String>,
    ) -> Result<(Chunk, Vec<f64>), String> {
        let app = tree(program);
        self.client.tell(line)?;
        self.client.expect("connected")?;
        between()?;
        self.client.tell("go")?;
        self.client.expect("begin")?;
        let before = Snapshot::take()?;
        let told = self.client.hear()?;
        let after = Snapshot::take()?;
        let numbers: Vec<f64> =
            told.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [count, ns, packets, ref more @ ..] = numbers[..] else {
            return Err(format!("the bench's client: {told}"));
        };
        self.client.expect("over")?;
        let mut ours = self.helpers.clone();
        ours.extend([self.client.pid(), std::process::id()]);
        // The time of taking the snapshots must not count, so CPU time is scaled to the client's span.
        let scale = ns / 1e9 / before.seconds_until(&after);
        let spent = before.until(&after, &app, agent, &ours);
        let scaled = |ns: f64| ns * scale;
        let spent = Spent {
            app: scaled(spent.app),
            agent: scaled(spent.agent),
            total: scaled(spent.total),
            by_tasks: scaled(spent.by_tasks),
            others: scaled(spent.others),
        };
        Ok((Chunk { count, seconds: ns / 1e9, spent, packets }, more.to_vec()))
    }
}

impl Server {
    pub fn new(program: Process, agent: Option<Process>, place: &Place) -> Server {
        Server { program, agent, address: place.address, interface: place.interface }
    }

    pub fn address(&self) -> &'static str {
        self.address
    }

    /// Number of allocations of the agent's process so far, and the size of its tables in bytes. `None` without an agent.
    pub fn allocations(&mut self) -> Result<Option<[u64; 2]>, String> {
        let Some(agent) = &mut self.agent else { return Ok(None) };
        match agent.ask("")?[..] {
            [allocations, table_bytes] => Ok(Some([allocations, table_bytes])),
            _ => Err("the bench's agent returned no count of allocations".into()),
        }
    }
}

/// Moves the calling process, which must have one thread, into an empty network namespace.
pub fn own_network() -> Result<(), String> {
    unshare(CloneFlags::CLONE_NEWNET)
        .map_err(|error| format!("cannot create a network namespace: {error}"))
}

/// Moves the calling process into the network namespace of another process.
pub fn enter_network_of(pid: u32) -> Result<(), String> {
    let path = format!("/proc/{pid}/ns/net");
    let file = fs::File::open(&path).map_err(|error| format!("{path}: {error}"))?;
    setns(file, CloneFlags::CLONE_NEWNET).map_err(|error| format!("{path}: {error}"))
}

/// Runs ip(8).
pub fn ip(line: &str) -> Result<(), String> {
    run("ip", line)
}

/// Turns on GRO of an interface.
pub fn ethtool(interface: &str) -> Result<(), String> {
    run("ethtool", &format!("-K {interface} gro on"))
}

fn run(program: &str, line: &str) -> Result<(), String> {
    let output = Command::new(program).args(line.split_whitespace()).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("{program} {line}: {}", said.trim())) }
}

/// Number of packets that an interface of this process's namespace has sent and received.
pub fn packets(interface: &str) -> Result<u64, String> {
    let path = "/proc/self/net/dev";
    let text = fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    let line = text.lines().find_map(|line| line.trim().strip_prefix(interface)?.strip_prefix(':'));
    let numbers: Vec<u64> =
        line.unwrap_or_default().split_whitespace().filter_map(|word| word.parse().ok()).collect();
    // Received: bytes, packets and six more numbers; then the same for sent ones.
    match numbers[..] {
        [_, received, _, _, _, _, _, _, _, sent, ..] => Ok(received + sent),
        _ => Err(format!("{path} has no {interface}")),
    }
}

//! The measured processes, and their CPU time.

use std::fs;
use std::io;
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use wave_core::clock::Nanos;
use wave_process::places;
use wave_user::rpc::{Options, Server};
use wave_workloads::grpc::onhost;

use wave_apps::launch::{self, Dialogue};
use wave_experiments::{cpu_time, store};
use wave_terminal::out;

#[derive(Clone, Copy, Debug)]
pub struct Seats {
    pub host: usize,
    pub agent: usize,
    /// The CPU of the front's connection core, if it has one.
    pub connections: Option<usize>,
    pub load: usize,
}

#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// tonic, on the host's core.
    OnHost,
    /// A worker, which sends its replies in batches of `batch`, and an agent's front.
    Offload { batch: u32, waits: Waits, front: Front },
}

/// The protocol of the agent's front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front {
    Grpc,
    Udp,
}

/// The way in which an offloaded server waits for the next call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// Worker and agent poll for [`AWAKE`] before they sleep.
    Awake,
    /// Only the agent does, as on a NIC (Wave 4.1); the worker has default options.
    AgentAwake,
    /// Both have default options; the agent has its own CPU.
    AsShipped,
    /// The agent sleeps as soon as there is no work (`--share-cpu`); the worker has default options.
    Asleep,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Used {
    /// CPU time of the host's serving thread, polling for work included.
    pub host_ns: u64,
    pub agent_ns: u64,
    /// The part of `agent_ns` of its connection core, if it has one.
    pub connections_ns: u64,
    /// The worker's time with open calls.
    pub busy_ns: u64,
    /// Number of calls that it served in that time.
    pub calls: u64,
}

impl Used {
    pub fn since(self, earlier: Used) -> Used {
        Used {
            host_ns: self.host_ns - earlier.host_ns,
            agent_ns: self.agent_ns - earlier.agent_ns,
            connections_ns: self.connections_ns - earlier.connections_ns,
            busy_ns: self.busy_ns - earlier.busy_ns,
            calls: self.calls - earlier.calls,
        }
    }
}

/// A server under test. Killed when it is dropped.
pub struct Measured {
    pub address: String,
    host: Process,
    /// Name of the serving thread.
    thread: &'static str,
    agent: Option<Process>,
    socket: Option<PathBuf>,
}

/// Prefix of the names of the host's worker threads.
const WORKERS: &str = "wave-worker-";

/// Prefix of the names of an agent's connection-core threads.
const CONNECTIONS: &str = "wave-conn-";

impl Measured {
    pub fn start(kind: Kind, seats: Seats) -> Result<Measured, String> {
        match kind {
            Kind::OnHost => {
                let cpu = seats.host.to_string();
                let words = ["serve", "kv", "--on-host", "--listen", "127.0.0.1:0"];
                let more = ["--cpus", &cpu, "--keys", "1", "--json"];
                let mut host = Process::wave(&[&words[..], &more].concat())?;
                let address = host.address()?;
                let (thread, agent, socket) = (onhost::THREADS, None, None);
                Ok(Measured { address, host, thread, agent, socket })
            }
            Kind::Offload { batch, waits, front } => {
                let socket = places::socket("bench-rpc").map_err(|error| error.to_string())?;
                let place =
                    socket.to_str().ok_or("the path of the folder for sockets is not UTF-8")?;
                let [host_cpu, agent_cpu] = [seats.host, seats.agent].map(|cpu| cpu.to_string());
                let batch = batch.to_string();
                let mut words = vec!["rpc-host", place, &host_cpu, &batch];
                let shares = [seats.load, seats.agent].contains(&seats.host);
                words.extend(shares.then_some("--yields"));
                words.extend((waits == Waits::Awake).then_some("--awake"));
                words.extend((waits == Waits::AgentAwake).then_some("--agent-awake"));
                let mut host = Process::start(launch::own(&words))?;
                host.line()?;
                let (option, address) = match front {
                    Front::Grpc => ("--listen", free_address()),
                    Front::Udp => ("--udp", free_udp_address()),
                };
                let address =
                    address.map_err(|error| format!("cannot find a free port: {error}"))?;
                let mut words = vec!["agent", "--rpc", place, option, &address];
                words.extend(["--cpu", &agent_cpu, "--quiet", "--leave-with-parent"]);
                // The only worker may have all calls, and then finds several with one poll.
                words.extend(["--steer", "round-robin:ahead=1024"]);
                words.extend((waits == Waits::Asleep).then_some("--share-cpu"));
                let connections = seats.connections.map(|cpu| cpu.to_string());
                words.extend(connections.iter().flat_map(|cpu| ["--connection-cpus", cpu]));
                let agent = Some(Process::wave(&words)?);
                let socket = Some(socket);
                Ok(Measured { address: address.clone(), host, thread: WORKERS, agent, socket })
            }
        }
    }

    /// CPU time so far of the server's threads, which sleep or spin by now.
    pub fn used(&mut self) -> Result<Used, String> {
        // The kernel accounts a run when it ends.
        std::thread::sleep(Duration::from_millis(2));
        let mut used = Used { host_ns: self.host.cpu_ns(self.thread)?, ..Used::default() };
        if let Some(agent) = &mut self.agent {
            used.agent_ns = agent.cpu_ns("")?;
            used.connections_ns = agent.cpu_ns(CONNECTIONS)?;
            let told = self.host.ask()?;
            let numbers: Vec<u64> =
                told.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            let [calls, busy_ns] = numbers[..] else {
                return Err(format!("unexpected answer of the bench's host: `{told}`"));
            };
            (used.calls, used.busy_ns) = (calls, busy_ns);
        }
        Ok(used)
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        if let Some(socket) = &self.socket {
            let _ = fs::remove_file(socket);
        }
    }
}

/// Polling time of a host and an agent that stay awake: longer than the time between two calls.
const AWAKE: Nanos = Nanos::from_millis(5);

/// The host's process: `wave-bench rpc-host SOCKET CPU BATCH`. It prints a line when it serves, and answers each line
/// on its standard input with the number of calls served so far and the time that they took.
pub fn host(
    socket: &Path,
    cpu: usize,
    batch: u32,
    yields_cpu: bool,
    is_awake: bool,
    agent_is_awake: bool,
) -> Result<(), String> {
    let mut options = Options { cpus: vec![cpu], batch, yields_cpu, ..Options::new(socket) };
    if is_awake {
        options.spin = AWAKE;
    }
    if is_awake || agent_is_awake {
        options.config.spin = AWAKE;
    }
    let server =
        Server::start(options, store::echo_methods()).map_err(|error| error.to_string())?;
    out!("serving");
    for line in std::io::stdin().lines() {
        line.map_err(|error| error.to_string())?;
        let work = server.work();
        let calls: u64 = work.iter().map(|work| work.calls).sum();
        let busy_ns: u64 = work.iter().map(|work| work.busy.0).sum();
        out!("{calls} {busy_ns}");
    }
    Ok(())
}

pub fn free_address() -> std::io::Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}

fn free_udp_address() -> std::io::Result<String> {
    Ok(UdpSocket::bind("127.0.0.1:0")?.local_addr()?.to_string())
}

pub struct Process(Dialogue);

impl Process {
    pub fn wave(words: &[&str]) -> Result<Process, String> {
        Process::start(launch::wave(words))
    }

    pub fn start(command: io::Result<Command>) -> Result<Process, String> {
        let dialogue = command.and_then(|mut command| Dialogue::start(&mut command));
        dialogue.map(Process).map_err(|error| error.to_string())
    }

    pub fn line(&mut self) -> Result<String, String> {
        let ended = "a process of the bench has ended; its message is above";
        self.0.read_line().map_err(|_| ended.to_owned())
    }

    /// Reads the address of a server that prints a line of JSON.
    pub fn address(&mut self) -> Result<String, String> {
        let told: Value = serde_json::from_str(&self.line()?).map_err(|error| error.to_string())?;
        Ok(told["address"].as_str().ok_or("no address")?.to_owned())
    }

    fn ask(&mut self) -> Result<String, String> {
        self.0.write_line("").map_err(|error| format!("a process of the bench: {error}"))?;
        self.line()
    }

    /// Sends SIGTERM, and waits for the process to end. Returns whether it did.
    pub fn end(&mut self, patience: Duration) -> Result<bool, String> {
        let process = self.0.process();
        process.terminate().map_err(|error| error.to_string())?;
        Ok(process.wait_for_end(patience).is_some())
    }

    /// CPU time of the threads whose names begin with `name`.
    pub fn cpu_ns(&mut self, name: &str) -> Result<u64, String> {
        let pid = self.0.process().pid().as_raw_pid();
        cpu_time::cpu_ns(pid.unsigned_abs(), name)
    }
}

//! The client: Linux's sockets and epoll, in its own network namespace, with one load after the other.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::net::sockopt::set_socket_linger;

use wave_process::cpus;

use crate::apps::exchange::App;
use crate::apps::traffic::{self, Traffic};
use crate::network::{ethtool, ip, own_network, packets};
use crate::process::answer;
use crate::program::{DEMOTED_PORTS, Role, raise_descriptors};

pub const REQUEST_BYTES: usize = 64;
/// Longest time for a connection to be established, and for a load to go without an answer.
pub const PATIENCE: Duration = Duration::from_secs(20);
const BUFFER_BYTES: usize = 256 << 10;
/// Most reads or writes of a stream before the next connection's turn.
const TURNS: usize = 16;

#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// The program's role on these connections.
    pub role: Role,
    pub connections: usize,
    /// Requests in flight on each connection; ignored for streams.
    pub depth: usize,
    /// The program has its connections demoted.
    pub is_demoted: bool,
    pub warm_up: Duration,
    pub measured: Duration,
}

impl Load {
    /// The command line for the client, with the interface whose packets it must count.
    pub fn to_line(self, address: &str, interface: &str) -> String {
        let port = self.role.port() + if self.is_demoted { DEMOTED_PORTS } else { 0 };
        let (warm_up, measured) = (self.warm_up.as_micros(), self.measured.as_micros());
        format!(
            "load {interface} {address}:{port} {} {} {warm_up} {measured}",
            self.connections, self.depth
        )
    }

    fn from_words(words: &[&str]) -> Option<(SocketAddr, Load)> {
        let [address, numbers @ ..] = words else { return None };
        let address: SocketAddr = address.parse().ok()?;
        let numbers: Option<Vec<u64>> = numbers.iter().map(|word| word.parse().ok()).collect();
        let [connections, depth, warm_up, measured] = numbers?[..] else { return None };
        let (role, is_demoted) = Role::of_port(address.port())?;
        let load = Load {
            role,
            is_demoted,
            connections: connections as usize,
            depth: depth as usize,
            warm_up: Duration::from_micros(warm_up),
            measured: Duration::from_micros(measured),
        };
        Some((address, load))
    }
}

/// Executes commands from standard input, line by line, until the input ends.
pub fn serve(cpu: usize) -> Result<(), String> {
    own_network()?;
    ip("link set lo up")?;
    raise_descriptors();
    cpus::pin(&[cpu]).map_err(|error| error.to_string())?;
    answer("ready")?;
    let mut held: Vec<TcpStream> = Vec::new();
    let mut lines = std::io::stdin().lines();
    while let Some(Ok(line)) = lines.next() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match &words[..] {
            ["ip", rest @ ..] => {
                ip(&rest.join(" "))?;
                answer("done")?;
            }
            ["gro", interface] => answer(if ethtool(interface).is_ok() { "done" } else { "no" })?,
            ["set", name, values @ ..] => {
                set(name, &values.join(" "))?;
                answer("done")?;
            }
            ["hold", address, count] => {
                let address: SocketAddr = address.parse().map_err(|_| line.clone())?;
                let count: usize = count.parse().map_err(|_| line.clone())?;
                held = connect(address, count)?;
                for stream in &held {
                    // The connections end with a reset: thousands in TIME_WAIT would use up the ports.
                    let reset = set_socket_linger(stream, Some(Duration::ZERO));
                    reset.map_err(|error| error.to_string())?;
                }
                answer("done")?;
            }
            ["drop"] => {
                held.clear();
                answer("done")?;
            }
            ["load", interface, rest @ ..] => {
                let (address, load) = Load::from_words(rest).ok_or_else(|| line.clone())?;
                let streams = connect(address, load.connections)?;
                answer("connected")?;
                if lines.next().is_none() {
                    return Ok(());
                }
                generate(streams, &load, interface)?;
                answer("over")?;
            }
            ["prepare", app, address] => {
                let app = App::of_name(app).ok_or_else(|| line.clone())?;
                let address = address.parse().map_err(|_| line.clone())?;
                match traffic::prepare(app, address) {
                    Ok(answer_bytes) => answer(&answer_bytes.to_string())?,
                    Err(error) => answer(&error)?,
                }
            }
            ["traffic", interface, rest @ ..] => {
                let (address, traffic) = Traffic::from_words(rest).ok_or_else(|| line.clone())?;
                let streams = connect(address, traffic.connections)?;
                answer("connected")?;
                if lines.next().is_none() {
                    return Ok(());
                }
                traffic::generate(streams, &traffic, interface)?;
                answer("over")?;
            }
            _ => return Err(format!("the bench's client got an invalid command: `{line}`")),
        }
    }
    Ok(())
}

/// Sets a value of `/proc/sys/net` in this process's network namespace.
pub fn set(name: &str, value: &str) -> Result<(), String> {
    let path = format!("/proc/sys/net/{name}");
    std::fs::write(&path, value).map_err(|error| format!("{path}: {error}"))
}

fn connect(address: SocketAddr, count: usize) -> Result<Vec<TcpStream>, String> {
    let one = |_| {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(stream)
    };
    let streams: std::io::Result<Vec<TcpStream>> = (0..count).map(one).collect();
    streams.map_err(|error| format!("the bench's client: {address}: {error}"))
}

/// A connection of a load.
struct Connection {
    stream: TcpStream,
    /// Bytes still to write before the next read.
    owed: usize,
    /// Bytes received of an incomplete answer.
    partial: usize,
}

/// Generates the load. Prints `begin` after the warm-up, and at the end the count since then, nanoseconds, and packets.
fn generate(streams: Vec<TcpStream>, load: &Load, interface: &str) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| format!("the bench's client: {error}");
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| failed(&error))?;
    let flags = match load.role {
        Role::Sink(_) => epoll::EventFlags::OUT,
        Role::Echo | Role::Source(_) => epoll::EventFlags::IN,
    };
    let mut connections = Vec::with_capacity(streams.len());
    for (at, stream) in streams.into_iter().enumerate() {
        let data = epoll::EventData::new_u64(at as u64);
        epoll::add(&epoll, stream.as_fd(), data, flags).map_err(|error| failed(&error))?;
        connections.push(Connection { stream, owed: 0, partial: 0 });
    }
    let mut buffer = vec![0x5a; BUFFER_BYTES];
    if load.role == Role::Echo {
        for connection in &mut connections {
            connection.owed = load.depth * REQUEST_BYTES;
            connection.pay(&buffer).map_err(|error| failed(&error))?;
        }
    }
    let mut events = Vec::with_capacity(256);
    let start = Instant::now();
    let (mut begun, mut count, mut latest) = (None, 0_u64, start);
    loop {
        events.clear();
        let timeout = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
        match epoll::wait(&epoll, spare_capacity(&mut events), Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(failed(&error)),
        }
        let before = count;
        for event in &events {
            let connection = &mut connections[event.data.u64() as usize];
            count += connection.step(load.role, &mut buffer).map_err(|error| failed(&error))?;
        }
        let now = Instant::now();
        if count > before {
            latest = now;
        } else if now.duration_since(latest) > PATIENCE {
            return Err(failed(&"no answer for 20 s"));
        }
        match begun {
            None if now.duration_since(start) >= load.warm_up => {
                begun = Some((now, count, packets(interface)?));
                answer("begin")?;
            }
            // On a busy machine, there may be no answer yet: then the chunk continues, in any row.
            Some((at, first, packets_first))
                if now.duration_since(at) >= load.measured && count > first =>
            {
                let ns = now.duration_since(at).as_nanos();
                let packets = packets(interface)? - packets_first;
                return answer(&format!("{} {ns} {packets}", count - first));
            }
            _ => {}
        }
    }
}

impl Connection {
    /// Reads and writes as far as possible without waiting. Returns the number of answered requests, or of bytes.
    fn step(&mut self, role: Role, buffer: &mut [u8]) -> std::io::Result<u64> {
        let mut count = 0;
        for _ in 0..TURNS {
            let moved = match role {
                Role::Sink(_) => self.stream.write(buffer),
                Role::Echo | Role::Source(_) => self.stream.read(buffer),
            };
            let moved = match moved {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(moved) => moved,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(count),
                Err(error) => return Err(error),
            };
            if role == Role::Echo {
                self.partial += moved;
                let answered = self.partial / REQUEST_BYTES;
                self.partial %= REQUEST_BYTES;
                self.owed += answered * REQUEST_BYTES;
                self.pay(buffer)?;
                return Ok(answered as u64);
            }
            count += moved as u64;
            if moved < buffer.len() {
                break;
            }
        }
        Ok(count)
    }

    /// Writes the requests that are owed. The connection has room, because as many answers have arrived.
    fn pay(&mut self, buffer: &[u8]) -> std::io::Result<()> {
        while self.owed > 0 {
            self.owed -= self.stream.write(&buffer[..self.owed.min(buffer.len())])?;
        }
        Ok(())
    }
}

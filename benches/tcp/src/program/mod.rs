//! The measured program: echo, discard and character generator, written once for both stacks.

mod linux;
mod toe;

use std::io::{self, ErrorKind};
use std::net::Ipv4Addr;
use std::path::PathBuf;

use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use wave_process::cpus;

use crate::network::enter_network_of;
use crate::process::answer;

const BUFFER_BYTES: usize = 256 << 10;
/// Bytes of a small piece of a stream.
pub const PIECE_BYTES: usize = 64 << 10;
/// Most reads or writes of a stream before the next connection's turn.
const TURNS: usize = 16;
/// Connections at ports from this one on are demoted: each port is this much above its role's.
pub const DEMOTED_PORTS: u16 = 1000;
/// Connections that may wait to be accepted.
const BACKLOG: u16 = 1024;

/// Arguments of the program's process.
#[derive(Args, Debug)]
pub struct ProgramArgs {
    /// Serve over Linux's sockets, on this address.
    #[arg(long, conflicts_with = "toe", required_unless_present = "toe")]
    linux: Option<Ipv4Addr>,
    /// Serve over the agent with this socket.
    #[arg(long)]
    toe: Option<PathBuf>,
    /// Also serve at ports whose connections it has demoted.
    #[arg(long, requires = "linux")]
    demotes: bool,
    /// Number of the process whose network namespace to enter.
    #[arg(long)]
    network_of: Option<u32>,
    #[arg(long)]
    cpu: usize,
}

/// The program's role on a connection, which its port selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Sends received bytes back (RFC 862).
    Echo,
    /// Reads and discards (RFC 863).
    Sink(Pieces),
    /// Writes all the time (RFC 864).
    Source(Pieces),
}

/// The way in which a stream is read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pieces {
    /// Copied, 256 KiB at a time.
    Large,
    /// Copied, 64 KiB at a time.
    Small,
    /// 64 KiB at a time, in the rings of an agent's connection. Linux's sockets copy.
    InPlace,
}

impl Role {
    pub const ALL: [Role; 7] = [
        Role::Echo,
        Role::Sink(Pieces::Large),
        Role::Sink(Pieces::Small),
        Role::Sink(Pieces::InPlace),
        Role::Source(Pieces::Large),
        Role::Source(Pieces::Small),
        Role::Source(Pieces::InPlace),
    ];

    pub fn port(self) -> u16 {
        match self {
            Role::Echo => 7,
            Role::Sink(pieces) => 9 + 100 * pieces as u16,
            Role::Source(pieces) => 19 + 100 * pieces as u16,
        }
    }

    /// The role, and whether its connections are demoted.
    pub fn of_port(port: u16) -> Option<(Role, bool)> {
        let is_demoted = port >= DEMOTED_PORTS;
        let its = port - if is_demoted { DEMOTED_PORTS } else { 0 };
        Role::ALL.into_iter().find(|role| role.port() == its).map(|role| (role, is_demoted))
    }
}

/// Nonblocking sockets, each with a number.
pub trait Sockets {
    /// Waits until there is work, and appends the connections that have some to `ready`. Accepts new connections.
    fn wait(&mut self, ready: &mut Vec<usize>) -> io::Result<()>;
    fn role(&self, at: usize) -> Role;
    fn read(&mut self, at: usize, into: &mut [u8]) -> io::Result<usize>;
    fn write(&mut self, at: usize, from: &[u8]) -> io::Result<usize>;
    /// As [`Sockets::read`] and [`Sockets::write`] of at most `most` bytes, without a copy if possible.
    fn read_in_place(&mut self, at: usize, most: usize) -> io::Result<usize>;
    fn write_in_place(&mut self, at: usize, most: usize) -> io::Result<usize>;
    /// Sets whether an echo waits for room to write.
    fn await_room(&mut self, at: usize, awaits: bool) -> io::Result<()>;
    /// Marks a connection that may have more work.
    fn come_back(&mut self, at: usize);
    fn close(&mut self, at: usize);
}

/// Serves until this process is killed, or the process that started it ends.
pub fn run(args: &ProgramArgs) -> Result<(), String> {
    if let Some(pid) = args.network_of {
        enter_network_of(pid)?;
    }
    raise_descriptors();
    cpus::pin(&[args.cpu]).map_err(|error| error.to_string())?;
    let failed = |error: io::Error| format!("the bench's program: {error}");
    if let Some(address) = args.linux {
        let sockets = linux::Linux::listen(address, BACKLOG, args.demotes).map_err(failed)?;
        answer("ready")?;
        return serve(sockets).map_err(failed);
    }
    let socket = args.toe.as_deref().unwrap_or_else(|| "".as_ref());
    let sockets = toe::OfAgent::listen(socket, BACKLOG)?;
    answer("ready")?;
    serve(sockets).map_err(failed)
}

/// Raises the limit of descriptors as far as allowed, for thousands of connections.
pub fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

fn serve(mut sockets: impl Sockets) -> io::Result<()> {
    let mut buffer = vec![0x5a; BUFFER_BYTES];
    let mut ready = Vec::new();
    // Bytes that could not be sent back at once, by connection.
    let mut unsent: Vec<Vec<u8>> = Vec::new();
    loop {
        ready.clear();
        sockets.wait(&mut ready)?;
        for &at in &ready {
            unsent.resize_with(unsent.len().max(at + 1), Vec::new);
            let stepped = match sockets.role(at) {
                Role::Echo => echo(&mut sockets, at, &mut buffer, &mut unsent[at]),
                role => stream(&mut sockets, at, role, &mut buffer),
            };
            match stepped {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // The peer has gone.
                Err(_) => {
                    unsent[at].clear();
                    sockets.close(at);
                }
            }
        }
    }
}

fn echo(
    sockets: &mut impl Sockets,
    at: usize,
    buffer: &mut [u8],
    unsent: &mut Vec<u8>,
) -> io::Result<()> {
    if !unsent.is_empty() {
        let sent = sockets.write(at, unsent)?;
        unsent.drain(..sent);
        if !unsent.is_empty() {
            return Ok(());
        }
        sockets.await_room(at, false)?;
    }
    let came = sockets.read(at, buffer)?;
    if came == 0 {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    let sent = match sockets.write(at, &buffer[..came]) {
        Ok(sent) => sent,
        Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
        Err(error) => return Err(error),
    };
    if sent < came {
        unsent.extend_from_slice(&buffer[sent..came]);
        return sockets.await_room(at, true);
    }
    sockets.come_back(at);
    Ok(())
}

fn stream(sockets: &mut impl Sockets, at: usize, role: Role, buffer: &mut [u8]) -> io::Result<()> {
    let (Role::Sink(pieces) | Role::Source(pieces)) = role else { return Ok(()) };
    let most = if pieces == Pieces::Large { buffer.len() } else { PIECE_BYTES };
    let buffer = &mut buffer[..most];
    for _ in 0..TURNS * (BUFFER_BYTES / most) {
        let moved = match role {
            Role::Source(Pieces::InPlace) => sockets.write_in_place(at, most)?,
            Role::Source(_) => sockets.write(at, buffer)?,
            Role::Sink(Pieces::InPlace) => sockets.read_in_place(at, most)?,
            _ => sockets.read(at, buffer)?,
        };
        if moved == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        if moved < most {
            break;
        }
    }
    sockets.come_back(at);
    Ok(())
}

//! `wave serve echo` and `wave serve http`: programs whose TCP connections are an agent's. They open no kernel socket for them.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use wave_confine::{Profile, Role};
use wave_posix::{Stream, StreamId, Toe};
use wave_process::tell;
use wave_terminal::Failure;

use super::super::set_by_signals;

/// Maximum number of connections that wait to be accepted.
const BACKLOG: u16 = 128;
/// Interval between checks for a signal to end.
const CHECK_EVERY: Duration = Duration::from_millis(500);
/// Maximum length of a request's head.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// Period of a body's bytes: bodies repeat a pattern of this length.
const PATTERN_BYTES: usize = 1 << 20;
/// Number of bytes to echo before the next connection's turn.
const TURN_BYTES: usize = 256 << 10;

#[derive(Args, Debug)]
#[command(
    after_help = "`wave tcp up` starts the agent, which owns the address. This program opens no kernel socket for its connections.

Examples:
  wave serve http --toe /run/wave-toe0.sock
  curl http://10.77.0.2/                           lists what can be fetched
  curl -o /dev/null http://10.77.0.2/1g            a gigabyte
  wave serve echo --toe /run/wave-toe0.sock --port 7
  nc 10.77.0.2 7

Exit codes: 0 ended by Ctrl-C or SIGTERM; 2 bad arguments; 3 no agent answers, or the port is not available."
)]
pub struct ToeArgs {
    /// The agent's socket.
    #[arg(long, value_name = "SOCKET")]
    toe: PathBuf,
    /// Port to listen on; 0 is any free one [default: 80 for http, 7 for echo].
    #[arg(long, value_name = "N")]
    port: Option<u16>,
}

/// Echoes until SIGINT or SIGTERM.
pub fn echo(args: &ToeArgs) -> Result<(), Failure> {
    run(args, "echo", 7, |_| Echo { held: vec![0; 64 << 10], from: 0, to: 0, has_ended: false })
}

/// Serves bytes by HTTP until SIGINT or SIGTERM.
pub fn http(args: &ToeArgs) -> Result<(), Failure> {
    let pattern: Arc<[u8]> = pattern().into();
    run(args, "http", 80, move |_| Http {
        head: Vec::new(),
        answer: Vec::new(),
        body: 0..0,
        pattern: Arc::clone(&pattern),
        closes: false,
    })
}

/// The repeated pattern of a body: the high bits of a linear congruential generator, so that neighbouring bytes differ.
fn pattern() -> Vec<u8> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..PATTERN_BYTES).map(|_| next()).collect()
}

/// The server's state for one connection.
trait Session {
    /// Works until it would wait, and then returns `WouldBlock`. `Ok(true)`: there is more to do, but it is the next connection's
    /// turn. `Ok(false)`: the connection is over.
    fn step(&mut self, stream: &mut Stream) -> io::Result<bool>;
}

fn run<S: Session>(
    args: &ToeArgs,
    name: &str,
    port: u16,
    session: impl Fn(SocketAddr) -> S,
) -> Result<(), Failure> {
    let ends = set_by_signals()?;
    let limited = Profile::of(Role::Server).with_socket(&args.toe).limit();
    let limited = limited.map_err(Failure::cannot)?;
    let toe = Toe::connect(&args.toe).map_err(|error| {
        let how = "`wave tcp up` starts an agent, whose socket is /run/wave-toe0.sock by default";
        Failure::cannot(format!("{error}; {how}"))
    })?;
    let port = args.port.unwrap_or(port);
    let listener =
        toe.listen(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)), BACKLOG).map_err(|error| {
            let how = match error.kind() {
                io::ErrorKind::AddrInUse => {
                    "; `wave tcp ss` shows which program has it, and --port takes another"
                }
                _ => "",
            };
            Failure::cannot(format!("cannot listen at port {port}: {error}{how}"))
        })?;
    listener.set_nonblocking(true);
    let local = listener.local_addr().map_err(Failure::cannot)?;
    limited.seal().map_err(Failure::cannot)?;
    tell!("Serving {name} at {local}; Ctrl-C ends it");
    let lost = |error| Failure::cannot(format!("the agent has gone: {error}"));
    // By stream index. Only streams with news are visited.
    let mut open: Vec<Option<(Stream, S)>> = Vec::new();
    let mut ready: VecDeque<StreamId> = VecDeque::new();
    while !ends.load(Ordering::Relaxed) {
        while toe.poll_ready().map_err(lost)? || !ready.is_empty() {
            loop {
                match listener.accept() {
                    Ok((stream, peer)) => {
                        stream.set_nonblocking(true);
                        let at = stream.id().index();
                        open.resize_with(open.len().max(at + 1), || None);
                        open[at] = Some((stream, session(peer)));
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(lost(error)),
                }
            }
            ready.extend(std::iter::from_fn(|| toe.next_changed()));
            for _ in 0..ready.len() {
                let Some(id) = ready.pop_front() else { break };
                let place = open.get_mut(id.index());
                let Some(place) = place else { continue };
                let Some((stream, session)) =
                    place.as_mut().filter(|(stream, _)| stream.id() == id)
                else {
                    continue;
                };
                match session.step(stream) {
                    Ok(true) => ready.push_back(id),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Ok(false) | Err(_) => *place = None,
                }
            }
        }
        let timeout = Timespec { tv_sec: 0, tv_nsec: CHECK_EVERY.as_nanos() as i64 };
        // A signal also ends the wait.
        let _ = poll(&mut [PollFd::from_borrowed_fd(toe.as_fd(), PollFlags::IN)], Some(&timeout));
    }
    Ok(())
}

/// The received bytes not yet echoed.
struct Echo {
    held: Vec<u8>,
    from: usize,
    to: usize,
    has_ended: bool,
}

impl Session for Echo {
    fn step(&mut self, stream: &mut Stream) -> io::Result<bool> {
        for _ in 0..TURN_BYTES / self.held.len() {
            if self.from == self.to {
                if self.has_ended {
                    return Ok(false);
                }
                (self.from, self.to) = (0, stream.read(&mut self.held)?);
                self.has_ended = self.to == 0;
            }
            self.from += stream.write(&self.held[self.from..self.to])?;
        }
        Ok(true)
    }
}

/// An HTTP/1.1 connection. Its requests are answered one after the other.
struct Http {
    head: Vec<u8>,
    /// Bytes to send before the body: the response's head.
    answer: Vec<u8>,
    /// Remaining bytes of the body.
    body: std::ops::Range<u64>,
    pattern: Arc<[u8]>,
    closes: bool,
}

impl Session for Http {
    fn step(&mut self, stream: &mut Stream) -> io::Result<bool> {
        loop {
            while !self.answer.is_empty() {
                let sent = stream.write(&self.answer)?;
                self.answer.drain(..sent);
            }
            while !self.body.is_empty() {
                let left = self.body.end - self.body.start;
                let room = stream.reserve(left.min(PATTERN_BYTES as u64) as usize)?;
                let mut filled = 0;
                for part in room.parts() {
                    let mut part = part;
                    while !part.is_empty() {
                        let at = (self.body.start as usize + filled) % PATTERN_BYTES;
                        let count = part.copy_from(&self.pattern[at..]);
                        filled += count;
                        part = part.skip(count);
                    }
                }
                room.commit(filled);
                self.body.start += filled as u64;
            }
            if self.closes {
                return Ok(false);
            }
            if !self.take_request() {
                let mut bytes = [0; 4096];
                let count = stream.read(&mut bytes)?;
                self.head.extend_from_slice(&bytes[..count]);
                if count == 0 {
                    return Ok(false);
                }
            }
        }
    }
}

impl Http {
    /// Answers the first received request. Returns false if its head is incomplete.
    fn take_request(&mut self) -> bool {
        let end = self.head.windows(4).position(|four| four == b"\r\n\r\n");
        let Some(end) = end else {
            if self.head.len() > HEAD_BYTES_MAX {
                self.refuse("431 Request Header Fields Too Large");
                return true;
            }
            return false;
        };
        let head: Vec<u8> = self.head.drain(..end + 4).collect();
        let head = String::from_utf8_lossy(&head);
        let mut lines = head.lines();
        let mut words = lines.next().unwrap_or_default().split(' ');
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let wants_close = lines.clone().any(|line| {
            let line = line.to_ascii_lowercase();
            line.split_once(':')
                .is_some_and(|(name, value)| name == "connection" && value.trim() == "close")
        });
        let has_body = lines.any(|line| {
            let line = line.to_ascii_lowercase();
            line.starts_with("transfer-encoding:")
                || line.strip_prefix("content-length:").is_some_and(|value| value.trim() != "0")
        });
        self.closes = wants_close;
        if !matches!(method, "GET" | "HEAD") || has_body {
            // A body may follow. It is not read: the connection ends.
            self.refuse("405 Method Not Allowed");
            return true;
        }
        let connection = if wants_close { "close" } else { "keep-alive" };
        let say = |status: &str, kind: &str, bytes: u64| {
            format!(
                "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {bytes}\r\nConnection: {connection}\r\n\r\n"
            )
        };
        let is_get = method == "GET";
        match size(path) {
            Some(bytes) => {
                self.answer = say("200 OK", "application/octet-stream", bytes).into_bytes();
                self.body = if is_get { 0..bytes } else { 0..0 };
            }
            None => {
                let text = "Ask for a number of bytes: /0, /64k, /1m, /1g.\n";
                let status = if path == "/" { "200 OK" } else { "404 Not Found" };
                let mut answer = say(status, "text/plain", text.len() as u64);
                if is_get {
                    answer.push_str(text);
                }
                self.answer = answer.into_bytes();
            }
        }
        true
    }

    fn refuse(&mut self, status: &str) {
        self.answer =
            format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                .into_bytes();
        self.closes = true;
        self.head.clear();
    }
}

/// Body size in bytes for a path: 65,536 for `/64k`.
fn size(path: &str) -> Option<u64> {
    let text = path.strip_prefix('/')?;
    let (digits, shift) = match text.char_indices().last()? {
        (at, 'k') => (&text[..at], 10),
        (at, 'm') => (&text[..at], 20),
        (at, 'g') => (&text[..at], 30),
        _ => (text, 0),
    };
    digits.parse::<u32>().ok().map(|count| u64::from(count) << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_parsed_as_sizes() {
        assert_eq!(size("/1g"), Some(1 << 30));
        assert_eq!(size("/0"), Some(0));
        assert_eq!(size("/"), None);
        assert_eq!(size("/x"), None);
        assert_eq!(size("/9999999999"), None);
    }
}

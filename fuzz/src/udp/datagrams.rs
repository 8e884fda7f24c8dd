//! Datagrams of a flood: a quarter valid, half mutations of valid ones, a quarter random bytes. A seed determines them all.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use rand::{Rng, RngCore, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde::Serialize;
use wave_udp_client::wire::{DATAGRAM_MAX, HEADER_BYTES, Header, IDEMPOTENT, REPLY};

/// Time for a front to answer with its incarnation.
const PATIENCE: Duration = Duration::from_secs(5);
/// Interval between tries to get it.
const RETRY: Duration = Duration::from_millis(100);
/// Bound on the length of valid messages and of most random datagrams.
const SHORT_BYTES: usize = 200;

/// Number of datagrams by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sent {
    pub valid: u64,
    /// Valid requests changed in one to four places.
    pub mutated: u64,
    pub random: u64,
    /// Datagrams of any kind that the kernel did not take.
    pub refused_by_the_kernel: u64,
}

impl Sent {
    /// Number of datagrams of all kinds.
    pub fn all(&self) -> u64 {
        self.valid + self.mutated + self.random
    }

    /// Adds the counts of `more`.
    pub fn add(&mut self, more: Sent) {
        self.valid += more.valid;
        self.mutated += more.mutated;
        self.random += more.random;
        self.refused_by_the_kernel += more.refused_by_the_kernel;
    }
}

/// A socket with a cookie.
pub struct Sender {
    socket: UdpSocket,
    rng: Pcg64Mcg,
    header: Header,
    datagram: Vec<u8>,
}

impl Sender {
    /// Asks the front for an incarnation and a cookie.
    pub fn new(front: SocketAddr, seed: u64, number: u64) -> io::Result<Sender> {
        let mut sender = Sender::to_nobody(front, seed, number)?;
        let socket = &sender.socket;
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(Some(RETRY))?;
        let mut reply = [0; HEADER_BYTES];
        let end = Instant::now() + PATIENCE;
        let bytes = loop {
            socket.send(&Header { flags: IDEMPOTENT, ..Header::default() }.encode())?;
            match socket.recv(&mut reply) {
                Ok(bytes) => break bytes,
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
                Err(_) if Instant::now() < end => {}
                Err(_) => {
                    let why = format!("no answer from {front} within {PATIENCE:?}");
                    return Err(io::Error::new(ErrorKind::TimedOut, why));
                }
            }
        };
        let (told, _) = Header::decode(&reply[..bytes]).map_err(io::Error::other)?;
        socket.set_nonblocking(true)?;
        (sender.header.incarnation, sender.header.cookie) = (told.incarnation, told.cookie);
        Ok(sender)
    }

    /// Creates a sender to a socket that does not answer.
    pub fn to_nobody(address: SocketAddr, seed: u64, number: u64) -> io::Result<Sender> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.connect(address)?;
        socket.set_nonblocking(true)?;
        let mut rng = Pcg64Mcg::seed_from_u64(seed << 8 | number);
        let header = Header { id: rng.random::<u64>() >> 2, ..Header::default() };
        Ok(Sender { socket, rng, header, datagram: Vec::new() })
    }

    /// The cookie of this sender.
    pub fn cookie(&self) -> u64 {
        self.header.cookie
    }

    /// Makes and sends the next datagram. `cookies` are the cookies of all senders.
    pub fn send(&mut self, cookies: &[u64], sent: &mut Sent) {
        match self.rng.random_range(0..4) {
            0 => {
                self.valid();
                sent.valid += 1;
            }
            1 | 2 => {
                self.valid();
                for _ in 0..self.rng.random_range(1..=4) {
                    self.mutate(cookies);
                }
                sent.mutated += 1;
            }
            _ => {
                let bytes = self.length();
                self.datagram.resize(bytes, 0);
                self.rng.fill_bytes(&mut self.datagram);
                sent.random += 1;
            }
        }
        self.datagram.truncate(DATAGRAM_MAX);
        sent.refused_by_the_kernel += u64::from(self.socket.send(&self.datagram).is_err());
    }

    /// Drains replies, and adopts a new incarnation and cookie from them.
    pub fn take_replies(&mut self) {
        let mut reply = [0; HEADER_BYTES];
        while let Ok(bytes) = self.socket.recv(&mut reply) {
            // A restarted agent has another incarnation.
            if let Ok((told, _)) = Header::decode(&reply[..bytes])
                && told.has(REPLY)
                && told.cookie != 0
                && told.id == self.header.id
            {
                (self.header.incarnation, self.header.cookie) = (told.incarnation, told.cookie);
            }
        }
    }

    /// A random length: mostly short, rarely up to the longest datagram.
    fn length(&mut self) -> usize {
        match self.rng.random_range(0..1000) {
            0 => self.rng.random_range(0..=DATAGRAM_MAX),
            _ => self.rng.random_range(0..SHORT_BYTES),
        }
    }

    fn valid(&mut self) {
        // Sometimes repeats the previous id.
        self.header.id += u64::from(self.rng.random_bool(0.9));
        self.header.flags = if self.rng.random() { IDEMPOTENT } else { 0 };
        self.header.class = self.rng.random_range(0..3);
        let bytes = self.length().min(DATAGRAM_MAX - HEADER_BYTES);
        self.datagram.clear();
        self.datagram.extend_from_slice(&self.header.encode());
        self.datagram.resize(HEADER_BYTES + bytes, 7);
    }

    /// Changes the datagram in one place.
    fn mutate(&mut self, cookies: &[u64]) {
        let length = self.datagram.len();
        let word = |datagram: &mut Vec<u8>, at: usize, value: u64| {
            if let Some(bytes) = datagram.get_mut(at..at + 8) {
                bytes.copy_from_slice(&value.to_le_bytes());
            }
        };
        match self.rng.random_range(0..8) {
            // Flips a bit, mostly in the header.
            0..3 if length > 0 => {
                let end = if self.rng.random_bool(0.8) { length.min(HEADER_BYTES) } else { length };
                let at = self.rng.random_range(0..end);
                self.datagram[at] ^= 1 << self.rng.random_range(0..8);
            }
            3 => self.datagram.truncate(self.rng.random_range(0..=length)),
            4 => {
                let longer = length + self.length();
                self.datagram.resize(longer, 0xff);
            }
            // Sets a word of the header to an extreme or random value.
            5 => {
                let at = [8, 16, 24][self.rng.random_range(0..3)];
                let value = [0, 1, u64::MAX, self.rng.next_u64()][self.rng.random_range(0..4)];
                word(&mut self.datagram, at, value);
            }
            // Uses any sender's cookie.
            6 => {
                let cookie = cookies[self.rng.random_range(0..cookies.len())];
                word(&mut self.datagram, 24, cookie);
            }
            _ => {
                let leap = self.rng.random_range(0..4096);
                word(&mut self.datagram, 8, self.header.id.wrapping_add(leap).wrapping_sub(2048));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_gives_same_datagrams_and_half_are_mutated() {
        let made = |seed| {
            let front = UdpSocket::bind("127.0.0.1:0").unwrap();
            let address = front.local_addr().unwrap();
            let told = Header { flags: REPLY, incarnation: 3, cookie: 4, ..Header::default() };
            let replies = std::thread::scope(|scope| {
                let sender = scope.spawn(|| Sender::new(address, seed, 0).unwrap());
                let (_, from) = front.recv_from(&mut [0; 64]).unwrap();
                front.send_to(&told.encode(), from).unwrap();
                sender.join().unwrap()
            });
            let (mut sender, mut sent, mut all) = (replies, Sent::default(), Vec::new());
            for _ in 0..2_000 {
                sender.send(&[1, 2], &mut sent);
                all.push(sender.datagram.clone());
            }
            (sent, all)
        };
        let (first, second) = (made(1), made(1));
        assert!(first == second && made(2).1 != first.1);
        assert!((900..1_100).contains(&first.0.mutated), "{:?}", first.0);
    }
}

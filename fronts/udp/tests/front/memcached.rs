//! memcached's protocol, compared with memcached itself, and with hostile clients.

use std::net::{SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use rand::{Rng, RngCore, SeedableRng};
use rand_pcg::Pcg64Mcg;
use wave_udp::{Fate, FrontError, UdpFront};

use crate::fixture::{Fixture, PATIENCE, options};

/// A client that sends one datagram per command, as the protocol's specification says.
pub struct Client {
    socket: UdpSocket,
    request: u16,
}

impl Client {
    pub fn new(address: SocketAddr) -> Client {
        let socket =
            UdpSocket::bind(if address.is_ipv4() { "127.0.0.1:0" } else { "[::1]:0" }).unwrap();
        socket.connect(address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Client { socket, request: 0xfffe }
    }

    fn send(&mut self, text: &[u8]) {
        self.request = self.request.wrapping_add(1);
        let frame = [&self.request.to_be_bytes()[..], &[0, 0, 0, 1, 0, 0]].concat();
        self.socket.send(&[&frame[..], text].concat()).unwrap();
    }

    /// The datagrams of the next reply.
    fn datagrams(&self) -> Vec<Vec<u8>> {
        let mut all: Vec<Vec<u8>> = Vec::new();
        loop {
            let mut buffer = vec![0; 1 << 16];
            let bytes = self.socket.recv(&mut buffer).expect("a reply comes");
            buffer.truncate(bytes);
            all.push(buffer);
            let count = u16::from_be_bytes([all[0][4], all[0][5]]);
            if all.len() == usize::from(count) {
                return all;
            }
        }
    }

    pub fn ask(&mut self, text: &[u8]) -> String {
        self.send(text);
        let request = self.request.to_be_bytes();
        let all = self.datagrams();
        let pieces = all.iter().enumerate().map(|(at, datagram)| {
            assert_eq!((&datagram[..2], datagram[3]), (&request[..], at as u8));
            assert!(datagram.len() <= 1400);
            &datagram[8..]
        });
        String::from_utf8(pieces.collect::<Vec<_>>().concat()).unwrap()
    }
}

/// A memcached of one thread, killed on drop.
struct Memcached(Child);

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts memcached at a free loopback port, and waits until it answers. `None` if it is not installed, or does not serve UDP.
fn memcached() -> Option<(Memcached, Client)> {
    let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut command = Command::new("memcached");
    command.args(["-U", &port.to_string(), "-p", "0", "-l", "127.0.0.1", "-t", "1", "-u", "root"]);
    let process = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut process = Memcached(process.ok()?);
    let address = ([127, 0, 0, 1], port).into();
    let client = Client::new(address);
    client.socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let (start, mut buffer) = (Instant::now(), [0; 64]);
    while start.elapsed() < PATIENCE {
        if process.0.try_wait().unwrap().is_some() {
            return None;
        }
        let frame = [0, 0, 0, 0, 0, 1, 0, 0];
        // Fails while nobody listens yet.
        let _ = client.socket.send(&[&frame[..], b"version\r\n"].concat());
        if client.socket.recv(&mut buffer).is_ok() {
            // Another socket: replies to earlier tries may still come to this one.
            return Some((process, Client::new(address)));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("memcached runs but does not answer");
}

#[test]
fn replies_match_memcached_byte_for_byte() {
    let Some((_process, mut theirs)) = memcached() else {
        return wave_skip::skip("no memcached that serves UDP");
    };
    let fixture = Fixture::of_memcached();
    let mut ours = Client::new(fixture.address);
    (ours.request, theirs.request) = (0xfffe, 0xfffe);
    let large: Vec<u8> = (0..60_000u32).map(|at| b'0' + (at % 10) as u8).collect();
    let set = |key: &str, data: &[u8]| {
        let head = format!("set {key} 7 0 {}\r\n", data.len());
        [head.as_bytes(), data, b"\r\n"].concat()
    };
    let long = |verb: &str, bytes: usize| format!("{verb} {}\r\n", "k".repeat(bytes)).into_bytes();
    let mut commands: Vec<Vec<u8>> = [
        &b"get a\r\n"[..],
        b"set a 5 0 3\r\nabc\r\n",
        b"get a\r\n",
        b"get  a\n",
        b"set a 4294967295 0 0\r\n\r\n",
        b"get a\r\n",
        b"set a 0 0 3 ignored\r\nabc\r\n",
        b"set a 0 0 2 noreply\r\nde\r\n",
        b"get a\r\n",
        b"get b\r\n",
        b"delete a 5\r\n",
        b"delete a b c\r\n",
        b"delete a 0\r\n",
        b"delete a\r\n",
        b"set a 0 0 1\r\nx\r\n",
        b"delete a noreply\r\n",
        b"delete a\r\n",
        b"get\r\n",
        b"delete\r\n",
        b"unknown a\r\n",
        b"\r\n",
    ]
    .map(<[u8]>::to_vec)
    .into();
    commands.extend([long("get", 250), long("get", 251), long("delete", 251)]);
    // Lengths at which a reply grows from one datagram to two, and longer ones.
    for bytes in [0, 1_000, 1_365, 1_366, 1_367, 1_368, 1_370, 1_375, 5_000, large.len()] {
        commands.extend([set("q", &large[..bytes]), b"get q\r\n".to_vec()]);
    }
    for command in &commands {
        ours.send(command);
        theirs.send(command);
        if command.split(|byte| *byte == b'\n').next().unwrap().ends_with(b"noreply\r") {
            continue;
        }
        let shown = command[..command.len().min(60)].escape_ascii();
        let [ours, theirs] = [&ours, &theirs].map(|client| client.datagrams());
        assert!(ours == theirs, "{shown}: {ours:?} {theirs:?}");
    }
}

#[test]
fn gets_of_several_keys_and_deviations_from_memcached() {
    let fixture = Fixture::of_memcached();
    let mut client = Client::new(fixture.address);
    assert_eq!(client.ask(b"set a 1 0 1\r\nx\r\n"), "STORED\r\n");
    // Here memcached would send each value as a separate reply.
    assert_eq!(client.ask(b"get a b a\r\n"), "VALUE a 1 1\r\nx\r\nVALUE a 1 1\r\nx\r\nEND\r\n");
    assert!(client.ask(b"version\r\n").starts_with("VERSION "));
    // memcached would execute both commands.
    let second = "CLIENT_ERROR more than one command in a datagram\r\n";
    assert_eq!(client.ask(b"get a\r\ndelete a\r\n"), second);
    assert_eq!(client.ask(b"get a\r\n"), "VALUE a 1 1\r\nx\r\nEND\r\n");
    // 50 values of 2,000 bytes.
    let data = "y".repeat(2_000);
    assert_eq!(client.ask(format!("set a 0 0 2000\r\n{data}\r\n").as_bytes()), "STORED\r\n");
    let many = format!("get{}\r\n", " a".repeat(50));
    assert_eq!(client.ask(many.as_bytes()), "SERVER_ERROR the values do not fit a reply\r\n");
    assert_eq!(client.ask(b"set broken 0 0 1\r\nx\r\n"), "CLIENT_ERROR no  such key\r\n");
    assert_eq!(client.ask(b"get broken\r\n"), "SERVER_ERROR INTERNAL broken\r\n");
}

#[test]
fn missing_host_and_host_without_the_commands_are_reported() {
    let fixture = Fixture::new_with(|options| options.memcached = Some(loopback()), |_| {});
    let mut client = Client::new(fixture.address);
    assert_eq!(client.ask(b"get a\r\n"), "SERVER_ERROR no host is attached\r\n");
    let mut fixture = fixture;
    fixture.start_host(|options| options.workers(1));
    let start = Instant::now();
    while client.ask(b"get a\r\n").starts_with("SERVER_ERROR no host is ") {
        assert!(start.elapsed() < PATIENCE, "the front does not find the host");
    }
    let none = "SERVER_ERROR the host does not serve memcached's commands\r\n";
    assert_eq!(client.ask(b"get a\r\n"), none);
    assert!(fixture.leave().of(Fate::Method) >= 2);
}

#[test]
fn addresses_that_are_not_listed_get_no_answer() {
    let elsewhere = vec!["10.0.0.0/8".parse().unwrap(), "127.0.0.2".parse().unwrap()];
    let fixture = Fixture::new_with(|options| options.memcached = Some(elsewhere), |_| {});
    let mut unlisted = Client::new(fixture.address);
    (0..3).for_each(|_| unlisted.send(b"version\r\n"));
    let socket = UdpSocket::bind("127.0.0.2:0").unwrap();
    socket.connect(fixture.address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut listed = Client { socket, request: 0 };
    assert!(listed.ask(b"version\r\n").starts_with("VERSION "));
    unlisted.socket.set_nonblocking(true).unwrap();
    assert!(unlisted.socket.recv(&mut [0; 64]).is_err());
    assert_eq!(fixture.leave().of(Fate::Unlisted), 3);
}

#[test]
fn public_prefixes_require_udp_public() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(&folder.path().join("host"), ([127, 0, 0, 1], 0).into());
    options.memcached = Some(vec!["10.0.0.0/7".parse().unwrap()]);
    let refused = UdpFront::new(options.clone(), Instant::now()).err().unwrap();
    assert!(
        matches!(refused, FrontError::Public(_)) && refused.to_string().contains("--udp-public")
    );
    options.takes_public = true;
    UdpFront::new(options, Instant::now()).unwrap();
}

/// An address may not have more open commands than it leaves to others.
#[test]
fn one_address_leaves_room_for_others() {
    let fixture = Fixture::of_memcached_with(|options| {
        let mut options = options.workers(1);
        options.config.subjects = 8;
        options
    });
    let mut busy = Client::new(fixture.address);
    (0..20).for_each(|_| busy.send(b"get wait\r\n"));
    // 4 of 8 are open, the others are refused.
    for _ in 0..16 {
        let text = busy.datagrams().concat();
        assert_eq!(&text[8..], b"SERVER_ERROR too many requests are open\r\n");
    }
    let socket = UdpSocket::bind("127.0.0.2:0").unwrap();
    socket.connect(fixture.address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut other = Client { socket, request: 0 };
    other.send(b"get a\r\n");
    fixture.seen.may_end.store(true, SeqCst);
    assert_eq!(&other.datagrams().concat()[8..], b"END\r\n");
    (0..4).for_each(|_| assert_eq!(&busy.datagrams().concat()[8..], b"END\r\n"));
    // All commands have ended, and no longer count.
    assert_eq!(busy.ask(b"get a\r\n"), "END\r\n");
    let counts = fixture.leave();
    // One command of the fixture, 4 that waited, and one later command of each client.
    assert_eq!((counts.of(Fate::Busy), counts.of(Fate::Begun)), (16, 7), "{counts}");
}

/// Mutated commands and random bytes, beside a well-behaved client.
#[test]
fn any_datagrams_leave_the_front_serving() {
    const SEED: u64 = 16;
    const ROUNDS: usize = 200;
    const FLOOD: usize = 50;
    let fixture = Fixture::of_memcached();
    let mut client = Client::new(fixture.address);
    let hostile = UdpSocket::bind("127.0.0.1:0").unwrap();
    hostile.connect(fixture.address).unwrap();
    hostile.set_nonblocking(true).unwrap();
    let valid: [&[u8]; 4] = [
        b"\0\x01\0\0\0\x01\0\0get a b c\r\n",
        b"\0\x01\0\0\0\x01\0\0set k 1 0 5\r\nabcde\r\n",
        b"\0\x01\0\0\0\x01\0\0delete k noreply\r\n",
        b"\0\x01\0\0\0\x01\0\0version\r\n",
    ];
    let mut rng = Pcg64Mcg::seed_from_u64(SEED);
    let mut sent = 0;
    for round in 0..ROUNDS {
        for _ in 0..FLOOD {
            let mut datagram = valid[rng.random_range(0..valid.len())].to_vec();
            for _ in 0..rng.random_range(0..4) {
                let at = rng.random_range(0..datagram.len());
                match rng.random_range(0..4) {
                    0 => datagram[at] = rng.next_u32() as u8,
                    1 => datagram.truncate(at.max(1)),
                    2 => datagram.insert(at, b" \r\n0"[rng.random_range(0..4)]),
                    _ => datagram.extend_from_within(at..),
                }
            }
            sent += u64::from(hostile.send(&datagram).is_ok());
        }
        let set = format!("set good 0 0 4\r\n{round:04}\r\n");
        assert_eq!(client.ask(set.as_bytes()), "STORED\r\n", "seed {SEED}, round {round}");
        let expected = format!("VALUE good 0 4\r\n{round:04}\r\nEND\r\n");
        assert_eq!(client.ask(b"get good\r\n"), expected, "seed {SEED}, round {round}");
        let mut buffer = [0; 2048];
        while let Ok(bytes) = hostile.recv(&mut buffer) {
            assert!((9..=1400).contains(&bytes), "seed {SEED}, round {round}: {bytes}");
        }
    }
    let counts = fixture.leave();
    let all = counts.of(Fate::Received) + counts.of(Fate::Overflow);
    assert!(all >= sent + 2 * ROUNDS as u64, "{counts}");
    for fate in [Fate::Several, Fate::Command, Fate::Magic, Fate::Begun] {
        assert!(counts.of(fate) > ROUNDS as u64, "{counts}");
    }
}

pub fn loopback() -> Vec<wave_udp::Prefix> {
    vec!["127.0.0.0/8".parse().unwrap()]
}

//! Programs whose agent is replaced: they, their peers and their bytes do not notice.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use rustix::process::{Pid, Signal, kill_process};

use crate::deaths::use_redis;
use crate::network::{AGENT, Running, Up, connect, in_a_network, wave, within_patience};
use crate::{has_redis, redis};

const CLIENTS: usize = 3;
/// Replacements by an agent with another data path.
const MOVES: usize = 20;
const REPLACEMENTS: usize = 3;
/// One after each replacement but the last.
const DEATHS: usize = REPLACEMENTS - 1;
/// Number of requests of all clients between two replacements.
const REQUESTS: u64 = 300;
const ECHO: u16 = 7;

/// Clients of a redis-server. Counts answered requests and reset connections.
#[derive(Default)]
struct Load {
    done: AtomicU64,
    /// Agents that were killed so far.
    deaths: AtomicUsize,
    /// Reset connections, by the number of deaths before each began: a client may learn of a death long after it.
    resets: [AtomicU64; 1 + DEATHS],
    stops: AtomicBool,
}

impl Load {
    fn goes_on(&self) {
        let before = self.done.load(Ordering::Relaxed);
        within_patience("requests", || {
            (self.done.load(Ordering::Relaxed) >= before + REQUESTS).then_some(())
        });
    }

    /// Uses redis until `stops`, over as many connections as it takes.
    fn run(&self, client: usize) {
        loop {
            let deaths = self.deaths.load(Ordering::SeqCst);
            if use_redis(client, &self.done, &self.stops).is_ok() {
                return;
            }
            self.resets[deaths].fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Runs clients of a redis-server over the agent while `change` changes the agent.
fn redis_under_load(change: impl FnOnce(&mut Up, &Load) + Send + 'static) {
    in_a_network(|| {
        if !has_redis() {
            return;
        }
        let mut up = Up::new();
        let _server = redis(&up, true, AGENT, 6379);
        let load = Load::default();
        thread::scope(|scope| {
            for client in 0..CLIENTS {
                let load = &load;
                scope.spawn(move || load.run(client));
            }
            load.goes_on();
            change(&mut up, &load);
            load.stops.store(true, Ordering::Relaxed);
        });
    });
}

#[test]
fn redis_under_load_loses_connections_to_killed_but_not_to_replaced_agents() {
    redis_under_load(|up, load| {
        let resets = |deaths: usize| load.resets[deaths].load(Ordering::SeqCst);
        for deaths in 0..REPLACEMENTS {
            up.replace();
            load.goes_on();
            assert_eq!(resets(deaths), 0, "a replacement has reset a connection");
            if deaths < DEATHS {
                up.kill();
                load.deaths.fetch_add(1, Ordering::SeqCst);
                up.start_again();
                load.goes_on();
            }
        }
        assert!((0..DEATHS).map(resets).sum::<u64>() >= DEATHS as u64);
    });
}

#[test]
fn redis_under_load_moves_between_data_paths_without_a_reset() {
    redis_under_load(|up, load| {
        for datapath in ["laminar", "flextoe"].iter().cycle().take(MOVES) {
            up.replace_with(&["--datapath", datapath]);
            assert_eq!(up.report()["datapath"], *datapath);
            load.goes_on();
            let resets = load.resets[0].load(Ordering::SeqCst);
            assert_eq!(resets, 0, "a replacement has reset a connection");
        }
    });
}

/// `wave serve echo`, a program with the Rust API.
fn echo(up: &Up) -> Running {
    let mut server = wave();
    server.args(["serve", "echo", "--toe"]).arg(up.path("toe.sock"));
    let server = Running(server.stdout(std::process::Stdio::null()).spawn().unwrap());
    drop(connect(SocketAddr::from((AGENT, ECHO))));
    server
}

/// The same as user nobody, at another port.
fn echo_of_nobody(up: &Up, port: u16) -> Running {
    let mut server = std::process::Command::new("setpriv");
    server.args(["--reuid=65534", "--clear-groups", env!("CARGO_BIN_EXE_wave")]);
    server.args(["serve", "echo", "--port", &port.to_string(), "--toe"]).arg(up.path("toe.sock"));
    let server = Running(server.stdout(std::process::Stdio::null()).spawn().unwrap());
    drop(connect(SocketAddr::from((AGENT, port))));
    server
}

/// The byte of a stream at a position.
fn byte(at: u64) -> u8 {
    (at ^ (at >> 8).wrapping_mul(7) ^ (at >> 16)) as u8
}

/// Sends bytes and reads them back, until `stops`. Returns the number of bytes that came back.
fn stream(stops: &AtomicBool) -> u64 {
    let reader = connect(SocketAddr::from((AGENT, ECHO)));
    let mut writer = reader.try_clone().unwrap();
    thread::scope(|scope| {
        let written = scope.spawn(move || {
            let mut at = 0;
            let mut bytes = vec![0; 20_000];
            while !stops.load(Ordering::Relaxed) {
                bytes.iter_mut().zip(at..).for_each(|(to, at)| *to = byte(at));
                writer.write_all(&bytes).unwrap();
                at += bytes.len() as u64;
            }
            writer.shutdown(std::net::Shutdown::Write).unwrap();
            at
        });
        let (mut reader, mut at) = (&reader, 0);
        let mut bytes = vec![0; 50_000];
        loop {
            match reader.read(&mut bytes).unwrap() {
                0 => break,
                count => {
                    let wrong =
                        bytes[..count].iter().zip(at..).find(|(got, at)| **got != byte(*at));
                    assert_eq!(wrong, None, "a wrong byte");
                    at += count as u64;
                }
            }
        }
        assert_eq!(at, written.join().unwrap(), "bytes are missing");
        at
    })
}

#[test]
fn streams_lose_no_byte_and_connections_open_and_close_across_replacements() {
    in_a_network(|| go_on_across_replacements(Up::new()));
}

#[test]
fn streams_of_flow_groups_lose_no_byte_across_replacements() {
    in_a_network(|| go_on_across_replacements(Up::with("--groups", "3")));
}

fn go_on_across_replacements(mut up: Up) {
    let _server = echo(&up);
    let stops = AtomicBool::new(false);
    let short = AtomicU64::new(0);
    thread::scope(|scope| {
        let streams: Vec<_> = (0..2).map(|_| scope.spawn(|| stream(&stops))).collect();
        // Handshakes and ends of connections also fall into replacements.
        scope.spawn(|| {
            while !stops.load(Ordering::Relaxed) {
                let mut stream = connect(SocketAddr::from((AGENT, ECHO)));
                stream.write_all(b"short").unwrap();
                stream.shutdown(std::net::Shutdown::Write).unwrap();
                let mut answer = Vec::new();
                stream.read_to_end(&mut answer).unwrap();
                assert_eq!(answer, b"short");
                short.fetch_add(1, Ordering::Relaxed);
            }
        });
        for _ in 0..REPLACEMENTS {
            let before = short.load(Ordering::Relaxed);
            up.replace();
            within_patience("connections", || {
                (short.load(Ordering::Relaxed) >= before + 20).then_some(())
            });
        }
        stops.store(true, Ordering::Relaxed);
        for stream in streams {
            assert!(stream.join().unwrap() > 0);
        }
    });
    // TIME_WAIT and the counters were handed from agent to agent.
    up.awaits("PassiveOpens", short.load(Ordering::Relaxed) + 2);
}

#[test]
fn replacement_keeps_connections_of_trusted_users_and_resets_others() {
    const NOBODYS: u16 = 7_000;
    for (option, survives) in [("--trust", true), ("--allow", false)] {
        in_a_network(move || {
            let mut up = Up::with(option, "65534");
            let _servers = [echo(&up), echo_of_nobody(&up, NOBODYS)];
            let mut streams = [ECHO, NOBODYS].map(|port| connect(SocketAddr::from((AGENT, port))));
            let [own, nobodys] = &mut streams;
            let ask = |stream: &mut std::net::TcpStream| {
                let mut answer = [0; 6];
                stream.write_all(b"anyone")?;
                stream.read_exact(&mut answer)?;
                assert_eq!(&answer, b"anyone");
                std::io::Result::Ok(())
            };
            for stream in [&mut *own, &mut *nobodys] {
                ask(stream).unwrap();
            }
            up.replace();
            ask(own).unwrap();
            assert_eq!(ask(nobodys).is_ok(), survives, "{option}");
        });
    }
}

/// Sends requests to the echo server over one connection, each answered before the next. Keeps the longest time of one.
fn ping(stops: &AtomicBool, longest: &Mutex<Duration>, done: &AtomicU64) {
    let mut stream = connect(SocketAddr::from((AGENT, ECHO)));
    stream.set_nodelay(true).unwrap();
    for at in 0_u64.. {
        if stops.load(Ordering::Relaxed) {
            return;
        }
        let (sent, mut got) = (at.to_le_bytes(), [0; 8]);
        let begun = Instant::now();
        stream.write_all(&sent).unwrap();
        stream.read_exact(&mut got).unwrap();
        let took = begun.elapsed();
        assert_eq!(got, sent);
        let mut longest = longest.lock().unwrap();
        *longest = (*longest).max(took);
        done.fetch_add(1, Ordering::Relaxed);
    }
}

/// Poses as a new agent toward the running one, by raw messages over the socket.
struct Impostor(std::os::unix::net::UnixStream);

impl Impostor {
    fn come(up: &Up) -> Impostor {
        let address = SocketAddrUnix::new(up.path("toe.sock.replace")).unwrap();
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        rustix::net::connect(&socket, &address).unwrap();
        // `UnixStream`'s methods suffice for messages.
        Impostor(std::os::unix::net::UnixStream::from(socket))
    }

    /// Waits for a message. Descriptors in it are closed.
    fn hear(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; 65_536];
        let count = self.0.read(&mut bytes).unwrap();
        bytes.truncate(count);
        bytes
    }

    fn say(&mut self, what: &str) {
        assert_eq!(self.0.write(what.as_bytes()).unwrap(), what.len());
    }
}

#[test]
fn service_continues_whenever_a_replacement_fails() {
    in_a_network(|| {
        let mut up = Up::new();
        let _server = echo(&up);
        let (stops, done, longest) = (AtomicBool::new(false), AtomicU64::new(0), Mutex::default());
        thread::scope(|scope| {
            scope.spawn(|| ping(&stops, &longest, &done));
            scope.spawn(|| stream(&stops));
            let goes_on = || {
                let before = done.load(Ordering::Relaxed);
                within_patience("requests", || {
                    (done.load(Ordering::Relaxed) >= before + 50).then_some(())
                });
            };
            goes_on();
            // Another user.
            let path = up.path("toe.sock.replace");
            let stranger = thread::spawn(move || {
                rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(65_534)).unwrap();
                std::os::unix::net::UnixStream::connect(path).unwrap_err().kind()
            });
            assert_eq!(stranger.join().unwrap(), std::io::ErrorKind::PermissionDenied);
            // The impostor leaves at once; or asks for the state and leaves; or receives it and leaves, stays silent, or sends an
            // invalid message.
            drop(Impostor::come(&up));
            goes_on();
            for _ in 0..3 {
                let mut impostor = Impostor::come(&up);
                assert!(impostor.hear().starts_with(b"{"));
                impostor.say("ready");
                drop(impostor);
                goes_on();
            }
            let got_all = || {
                let mut impostor = Impostor::come(&up);
                impostor.hear();
                impostor.say("ready");
                assert_eq!(impostor.hear(), b"ready");
                impostor
            };
            drop(got_all());
            goes_on();
            let mut silent = got_all();
            goes_on();
            assert_eq!(silent.hear(), b"descriptors");
            assert_eq!(silent.hear(), b"stay");
            let mut liar = got_all();
            liar.say("restoredd");
            goes_on();
            assert_eq!((liar.hear(), liar.hear()), (b"descriptors".to_vec(), b"stay".to_vec()));
            // A real new agent is killed at various instants before it serves.
            for milliseconds in [1, 5, 10, 20, 30, 40, 60] {
                let mut new = wave();
                new.args(["tcp", "replace", "--socket"]).arg(up.path("toe.sock"));
                let mut new = new.spawn().unwrap();
                thread::sleep(Duration::from_millis(milliseconds));
                // While stopped it neither serves nor answers: either the old agent continues to serve, or it has exited.
                kill_process(Pid::from_child(&new), Signal::STOP).unwrap();
                let before = done.load(Ordering::Relaxed);
                let is_replaced = within_patience("one of them serves", || {
                    let has_left = up.agent.0.try_wait().unwrap().is_some();
                    let goes_on = done.load(Ordering::Relaxed) >= before + 50;
                    (has_left || goes_on).then_some(has_left)
                });
                if is_replaced {
                    kill_process(Pid::from_child(&new), Signal::CONT).unwrap();
                    up.agent = Running(new);
                } else {
                    new.kill().unwrap();
                    new.wait().unwrap();
                }
                goes_on();
            }
            up.replace();
            goes_on();
            stops.store(true, Ordering::Relaxed);
        });
    });
}

#[test]
fn agent_with_a_removed_socket_is_not_replaced_and_keeps_its_other_sockets() {
    in_a_network(|| {
        let up = Up::new();
        let _server = echo(&up);
        std::fs::remove_file(up.path("toe.sock")).unwrap();
        let files = || {
            let entries = std::fs::read_dir(up.folder.path()).unwrap();
            let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        let before = files();
        assert!(before.contains(&"toe.sock.replace".into()));
        let mut new = wave();
        new.args(["tcp", "replace", "--socket"]).arg(up.path("toe.sock"));
        let refused = new.output().unwrap();
        let why = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && why.contains("was not replaced"), "{why}");
        assert_eq!(files(), before);
        let mut stream = connect(SocketAddr::from((AGENT, ECHO)));
        stream.write_all(b"still").unwrap();
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"still");
    });
}

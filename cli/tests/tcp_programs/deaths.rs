//! Programs whose agent is killed and that continue with the next one, and programs that are killed.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::net::sockopt;

use crate::network::{AGENT, Up, connect, in_a_network, python, within_patience};
use crate::{has_redis, redis_with};

const CLIENTS: usize = 3;
const DEATHS: u32 = 4;
/// Number of requests of all clients between two kills.
const REQUESTS: u64 = 300;

/// Stores and fetches values until the connection ends. Every byte must be right.
pub fn use_redis(client: usize, done: &AtomicU64, stops: &AtomicBool) -> io::Result<()> {
    let mut stream = connect(SocketAddr::from((AGENT, 6379)));
    // A client whose requests are all acknowledged sends nothing that the next agent could answer with a reset.
    sockopt::set_socket_keepalive(&stream, true)?;
    sockopt::set_tcp_keepidle(&stream, Duration::from_secs(1))?;
    sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(1))?;
    for at in 0_u64.. {
        if stops.load(Ordering::Relaxed) {
            return Ok(());
        }
        let value = format!("{client}-{at}-").repeat(1 + (at as usize * 37) % 400);
        let (key, length) = (format!("key{client}"), value.len());
        write!(stream, "*3\r\n$3\r\nSET\r\n$4\r\n{key}\r\n${length}\r\n{value}\r\n")?;
        write!(stream, "*2\r\n$3\r\nGET\r\n$4\r\n{key}\r\n")?;
        let expected = format!("+OK\r\n${length}\r\n{value}\r\n").into_bytes();
        let mut got = 0;
        let mut bytes = vec![0; expected.len()];
        while got < expected.len() {
            let count = stream.read(&mut bytes[got..])?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            assert!(bytes[got..got + count] == expected[got..got + count], "a wrong byte");
            got += count;
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

#[test]
fn redis_under_load_continues_with_the_next_agent_after_each_kill() {
    in_a_network(|| {
        if !has_redis() {
            return;
        }
        let mut up = Up::new();
        let log = up.path("redis.log");
        let server = redis_with(&up, true, AGENT, 6379, &["--logfile", log.to_str().unwrap()]);
        let (done, resets) = (AtomicU64::new(0), AtomicU64::new(0));
        let stops = AtomicBool::new(false);
        thread::scope(|scope| {
            for client in 0..CLIENTS {
                let (done, resets, stops) = (&done, &resets, &stops);
                scope.spawn(move || {
                    while use_redis(client, done, stops).is_err() {
                        resets.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let goes_on = || {
                let before = done.load(Ordering::Relaxed);
                within_patience("requests", || {
                    (done.load(Ordering::Relaxed) >= before + REQUESTS).then_some(())
                });
            };
            goes_on();
            for _ in 0..DEATHS {
                up.kill();
                up.start_again();
                goes_on();
            }
            stops.store(true, Ordering::Relaxed);
        });
        assert!(resets.load(Ordering::Relaxed) >= u64::from(DEATHS));
        // The server still runs, and its listener returned no errors.
        drop(server);
        let said = fs::read_to_string(log).unwrap();
        assert!(!said.contains("Accepting client connection"), "{said}");
    });
}

#[test]
fn nobody_connects_to_a_program_that_has_been_killed() {
    in_a_network(|| {
        let Some(python) = python() else { return };
        let up = Up::new();
        let at = SocketAddr::from((AGENT, 7000));
        let server = "import socket\nwith socket.create_server(('10.77.0.2', 7000)) as s: s.accept()[0].recv(1)";
        for _ in 0..10 {
            let mut server = up.over(&[python, "-c", server]).spawn().unwrap();
            drop(connect(at));
            server.kill().unwrap();
            server.wait().unwrap();
            let refused = TcpStream::connect(at).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        }
    });
}

//! Connections that several processes use, or calls that bypass the library: a C program over an agent and over Linux.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::Command;
use std::thread;

use wave_skip::skip;

use crate::network::{LINUX, Up, in_a_network};

const PROGRAM: &str = include_str!("several/several.c");
const LOOPBACK: [u8; 4] = [127, 0, 0, 1];

/// Echoes every connection at this address. Returns the port.
pub fn echo_at(ip: [u8; 4]) -> u16 {
    let listener = TcpListener::bind(SocketAddr::from((ip, 0))).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            thread::spawn(move || {
                let mut bytes = vec![0; 65_536];
                while let Ok(count @ 1..) = stream.read(&mut bytes) {
                    if stream.write_all(&bytes[..count]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

/// What the program prints, with a server at this address.
fn transcript(mut command: Command, ip: [u8; 4]) -> String {
    let port = echo_at(ip).to_string();
    let done = command.args([Ipv4Addr::from(ip).to_string(), port]).output().unwrap();
    let said = String::from_utf8(done.stdout).unwrap();
    let errors = String::from_utf8(done.stderr).unwrap();
    assert!(done.status.success(), "{said}\n{errors}");
    assert_eq!(errors, "");
    said
}

#[test]
fn connections_are_shared_by_processes_and_used_by_any_call_as_over_linux() {
    in_a_network(|| {
        let up = Up::new();
        let (source, program) = (up.path("several.c"), up.path("several"));
        fs::write(&source, PROGRAM).unwrap();
        let built = Command::new("cc").arg("-g").arg(&source).arg("-o").arg(&program).status();
        if !built.is_ok_and(|built| built.success()) {
            return skip("there is no C compiler: apt-get install gcc libc6-dev");
        }
        let ours = transcript(up.over(&[program.to_str().unwrap()]), LINUX);
        for cause in ["second_process", "standard_stream", "c_library", "splice"] {
            up.awaits(&format!("demoted_by.{cause}"), 1);
        }
        let counters = &up.report()["counters"];
        let by_cause = counters["demoted_by"].as_object().unwrap().values();
        let sum: u64 = by_cause.map(|count| count.as_u64().unwrap()).sum();
        assert_eq!(counters["demoted"].as_u64(), Some(sum));
        let theirs = transcript(Command::new(&program), LOOPBACK);
        assert_eq!(ours, theirs);
    });
}

//! Programs under limits of memory, file sizes and descriptors, and under sanitizers and valgrind.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;

use wave_skip::skip;

use crate::network::{AGENT, LINUX, Running, Up, connect, in_a_network, is_there};

const PORT: u16 = 7000;
/// Echoes what it gets over one connection that it has accepted (`serve`), or made (`connect`).
const ECHO: &str = include_str!("limits/echo.c");
const BYTES: usize = 1_000_000;

/// Compiles [`ECHO`] with these flags; `None`, skipping the test, if there is no compiler for them.
fn echo(up: &Up, flags: &[&str]) -> Option<PathBuf> {
    let (source, program) = (up.path("echo.c"), up.path("echo"));
    fs::write(&source, ECHO).unwrap();
    let mut compiler = Command::new("cc");
    compiler.arg("-g").args(flags).arg(&source).arg("-o").arg(&program).arg("-lpthread");
    match compiler.stderr(Stdio::null()).status() {
        Ok(status) if status.success() => Some(program),
        _ => {
            skip(format!("there is no C compiler for {flags:?}: apt-get install gcc libc6-dev"));
            None
        }
    }
}

/// Runs the program below `before` as a server and as a client over an agent. Each echoes a stream, and has connections for the rest.
fn echoes(before: &[&str], flags: &[&str]) {
    let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let (before, flags) = (owned(before), owned(flags));
    in_a_network(move || {
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let up = Up::new();
        let Some(program) = echo(&up, &flags) else { return };
        let program = program.to_str().unwrap();
        let run = |role: &str, address: [u8; 4]| {
            let ip = std::net::Ipv4Addr::from(address).to_string();
            let port = PORT.to_string();
            let mut words: Vec<&str> = before.iter().map(String::as_str).collect();
            words.extend([program, role, &ip, &port]);
            Running(up.over(&words).spawn().unwrap())
        };
        let ended = |mut running: Running| {
            let mut said = [String::new(), String::new()];
            running.0.stdout.take().unwrap().read_to_string(&mut said[0]).unwrap();
            running.0.stderr.take().unwrap().read_to_string(&mut said[1]).unwrap();
            let status = running.0.wait().unwrap();
            assert!(status.success() && said[0].contains("echoed"), "{status}: {said:?}");
        };
        let bytes: Vec<u8> = (0..BYTES).map(|at| (at * 7 % 251) as u8).collect();
        let exchange = |mut stream: std::net::TcpStream| {
            let (mut sender, data) = (stream.try_clone().unwrap(), bytes.clone());
            let sending = thread::spawn(move || {
                sender.write_all(&data).unwrap();
                sender.shutdown(Shutdown::Write).unwrap();
            });
            let mut got = Vec::new();
            stream.read_to_end(&mut got).unwrap();
            sending.join().unwrap();
            assert!(got == bytes, "{} of {} bytes", got.len(), bytes.len());
        };
        let server = run("serve", AGENT);
        exchange(connect(SocketAddr::from((AGENT, PORT))));
        ended(server);
        up.awaits("PassiveOpens", 1);
        let listener = TcpListener::bind(SocketAddr::from((LINUX, PORT))).unwrap();
        let client = run("connect", LINUX);
        exchange(listener.accept().unwrap().0);
        ended(client);
        up.awaits("ActiveOpens", 1);
    });
}

#[test]
fn program_with_little_address_space_keeps_most_of_it() {
    echoes(&["prlimit", "--as=4294967296"], &[]);
}

#[test]
fn program_with_very_little_address_space_serves() {
    echoes(&["prlimit", "--as=200000000", "--data=50000000"], &[]);
}

#[test]
fn program_that_may_write_only_small_files_serves() {
    echoes(&["prlimit", "--fsize=1024000000"], &[]);
    echoes(&["prlimit", "--fsize=1000000"], &[]);
}

#[test]
fn program_with_few_descriptors_and_little_locked_memory_serves() {
    echoes(&["prlimit", "--nofile=64", "--memlock=65536"], &[]);
}

#[test]
fn program_that_locks_its_memory_does_not_fill_its_payload_memory() {
    echoes(&[], &["-DLOCKS"]);
}

#[test]
fn program_built_with_address_sanitizer_runs() {
    echoes(&[], &["-fsanitize=address"]);
    // Started by another program, of which alone the launcher knows.
    echoes(&["sh", "-c", "exec \"$@\"", "sh"], &["-fsanitize=address"]);
}

#[test]
fn program_built_with_thread_sanitizer_runs() {
    echoes(&[], &["-fsanitize=thread"]);
}

#[test]
fn program_below_valgrind_runs() {
    if !is_there("valgrind", "--version") {
        return skip("valgrind is not installed: apt-get install valgrind");
    }
    echoes(&["valgrind", "--quiet", "--error-exitcode=9"], &[]);
}

//! Programs under limits of memory, file sizes and descriptors, and under sanitizers and valgrind.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use wave_skip::skip;

use crate::network::{AGENT, LINUX, Running, Up, connect, in_a_network, is_there};

const PORT: u16 = 7000;
/// Echoes what it gets over one connection that it has accepted (`serve`), or made (`connect`).
const ECHO: &str = include_str!("limits/echo.c");
/// Waits in several calls, each until a signal handler has run.
const SIGNALLED: &str = include_str!("limits/signalled.c");
const BYTES: usize = 1_000_000;

/// Compiles a program with these flags; `None`, skipping the test, if there is no compiler for them.
fn compiled(up: &Up, name: &str, text: &str, flags: &[&str]) -> Option<PathBuf> {
    let (source, program) = (up.path(&format!("{name}.c")), up.path(name));
    fs::write(&source, text).unwrap();
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
        let Some(program) = compiled(&up, "echo", ECHO, &flags) else { return };
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

/// Valgrind does not take a mask from a handler: such a program never left its call, and used a CPU for ever.
#[test]
fn signals_reach_a_program_below_valgrind_in_its_calls() {
    if !is_there("valgrind", "--version") {
        return skip("valgrind is not installed: apt-get install valgrind");
    }
    in_a_network(|| {
        let up = Up::new();
        let Some(program) = compiled(&up, "signalled", SIGNALLED, &[]) else { return };
        let program = program.to_str().unwrap();
        let ip = std::net::Ipv4Addr::from(AGENT).to_string();
        let words = ["valgrind", "--quiet", "--error-exitcode=9", program, &ip, &PORT.to_string()];
        let mut server = Running(up.over(&words).spawn().unwrap());
        let _idle = connect(SocketAddr::from((AGENT, PORT)));
        let server_pid = Pid::from_child(&server.0);
        let said = server.0.stdout.take().unwrap();
        let said = thread::spawn(move || std::io::read_to_string(said).unwrap());
        // A signal that arrives between two calls ends none.
        for signal in [Signal::USR1, Signal::TERM].into_iter().cycle() {
            if server.0.try_wait().unwrap().is_some() {
                break;
            }
            kill_process(server_pid, signal).unwrap();
            thread::sleep(Duration::from_millis(50));
        }
        let said = said.join().unwrap();
        assert_eq!(said.lines().collect::<Vec<_>>(), ["accepted", "recv", "poll", "accept"]);
        assert_eq!(server.0.wait().unwrap().code(), Some(0));
    });
}

//! Programs in C whose calls are interrupted: by signals, by time limits, and by the cancellation of threads. Each runs over Linux's TCP and
//! over the agent, with the same output.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;

use wave_skip::skip;

use crate::network::{AGENT, LINUX, Up, connect, in_a_network, within_patience};

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tcp_programs/interruptions");
const PORT: u16 = 7000;

/// Compiles a program; `None`, with a skip, without a compiler.
fn compiled(up: &Up, source: &str, compiler: &str, flags: &[&str]) -> Option<PathBuf> {
    let program = up.path(source.split('.').next().unwrap());
    let mut build = Command::new(compiler);
    build.args(["-O1", "-pthread", "-w", "-o"]).arg(&program);
    let Ok(built) = build.args(flags).arg(Path::new(SOURCES).join(source)).output() else {
        skip(format!("{compiler} is not installed: apt-get install gcc g++ libc6-dev"));
        return None;
    };
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Some(program)
}

/// Echoes until the other end has shut down. Then tells `other`.
fn echo(mut stream: TcpStream, mut other: Option<TcpStream>) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut bytes) {
        if stream.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    // `other` may be a handle of the same connection.
    let _ = stream.shutdown(Shutdown::Both);
    if let Some(other) = &mut other {
        // Only some programs wait for this.
        let _ = other.write_all(b"e");
    }
}

/// Runs a program with two connections to a peer that echoes.
fn run(mut command: Command, at: [u8; 4]) -> Output {
    command.arg(std::net::Ipv4Addr::from(at).to_string()).arg(PORT.to_string());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let peer = thread::spawn(move || {
        let first = connect(SocketAddr::from((at, PORT)));
        let second = connect(SocketAddr::from((at, PORT)));
        for stream in [&first, &second] {
            stream.set_read_timeout(None).unwrap();
        }
        let other = second.try_clone().unwrap();
        let echoes = thread::spawn(|| echo(second, None));
        echo(first, Some(other));
        echoes.join().unwrap();
    });
    within_patience("the program's end", || child.try_wait().unwrap());
    peer.join().unwrap();
    child.wait_with_output().unwrap()
}

/// Whether the program's output over the agent is that over Linux, which ends with `last`.
fn is_as_over_linux(source: &str, last: &str) {
    let (source, last) = (source.to_owned(), last.to_owned());
    in_a_network(move || {
        let up = Up::new();
        let (compiler, flags): (&str, &[&str]) = match source.ends_with(".c") {
            true => ("cc", &[]),
            false => ("c++", &["-fnon-call-exceptions", "-fexceptions"]),
        };
        let Some(program) = compiled(&up, &source, compiler, flags) else { return };
        let linux = run(Command::new(&program), LINUX);
        let ours = run(up.over(&[program.to_str().unwrap()]), AGENT);
        up.awaits("PassiveOpens", 2);
        let [linux, text] =
            [linux.stdout, ours.stdout].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let errors = String::from_utf8_lossy(&ours.stderr).into_owned();
        assert_eq!(text, linux, "{:?}, {errors}", ours.status);
        assert!(ours.status.success() && text.ends_with(&last), "{:?}: {text}", ours.status);
    });
}

#[test]
fn thread_is_cancelled_in_each_call_that_waits() {
    is_as_over_linux("cancel.c", "disabled: cancelled 1, received before 1, whole 1\n");
}

#[test]
fn handler_that_jumps_out_of_a_call_leaves_nothing_behind() {
    is_as_over_linux("jump.c", "the other thread 1\nclosed 0\npeer has seen the end 1\n");
}

#[test]
fn exception_from_a_handler_leaves_nothing_behind() {
    is_as_over_linux("throw.cpp", "closed 0\n");
}

#[test]
fn handler_writes_and_closes_whatever_it_interrupts() {
    let last = "failed 0, all whole 1, some closed 1\nechoed what handlers wrote 1\n";
    is_as_over_linux("handlers.c", last);
}

#[test]
fn signals_end_and_restart_calls_as_over_linux() {
    is_as_over_linux("restarts.c", "once 1, then 1\nsignal 1\nwhole 1\n");
}

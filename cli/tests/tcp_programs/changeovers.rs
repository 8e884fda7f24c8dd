//! Calls that wait while their connection becomes a stream of the kernel's, because a child uses it, too.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;

use serde_json::Value;

use crate::network::{AGENT, Running, Up, connect, in_a_network, python, within_patience};

/// A size that is no divisor of the pattern's period.
const BYTES: usize = 6_000_000;

fn pattern(count: usize) -> Vec<u8> {
    (0..count as u32).map(|at| (at / 300) as u8).collect()
}

/// Runs a Python program whose child waits for a line before it does `child` with the connection `c`, while the parent does `parent`.
/// `bytes` is a file with the pattern. `peer` gets the running program and its connection.
fn with_child(child: &str, parent: &str, peer: impl FnOnce(&Up, Running, TcpStream)) {
    let Some(python) = python() else { return };
    let up = Up::new();
    let file = up.path("bytes");
    fs::write(&file, pattern(BYTES)).unwrap();
    let program = format!(
        "import os, socket, sys\n\
         bytes = open({file:?}, 'rb')\n\
         c, _ = socket.create_server(('10.77.0.2', 7000)).accept()\n\
         if os.fork() == 0:\n    \
             os.read(0, 1)\n    \
             {child}\n    \
             os._exit(0)\n\
         {parent}\n"
    );
    let mut program = up.over(&[python, "-c", &program]);
    let running = Running(program.stdin(Stdio::piped()).spawn().unwrap());
    let stream = connect(SocketAddr::from((AGENT, 7000)));
    peer(&up, running, stream);
}

/// Waits until a figure of the only connection is at least `least`.
fn awaits(up: &Up, figure: &str, least: u64) {
    within_patience(figure, || {
        let report = up.report();
        let sockets = report["sockets"].as_array().unwrap().iter();
        let mut figures = sockets.filter_map(|socket: &Value| socket[figure].as_u64());
        figures.any(|found| found >= least).then_some(())
    });
}

fn let_child_begin(program: &mut Running) {
    program.0.stdin.take().unwrap().write_all(b"\n").unwrap();
}

fn output(program: &mut Running) -> Vec<u8> {
    let mut output = Vec::new();
    program.0.stdout.take().unwrap().read_to_end(&mut output).unwrap();
    output
}

/// Random programs found this: seed 930.
#[test]
fn recv_of_all_bytes_goes_on_after_its_connection_was_demoted() {
    in_a_network(|| {
        let parent = "sys.stdout.buffer.write(c.recv(20_000, socket.MSG_WAITALL))";
        with_child("c.sendall(b'c')", parent, |up, mut program, mut stream| {
            let bytes = pattern(20_000);
            stream.write_all(&bytes[..10_000]).unwrap();
            awaits(up, "bytes_read", 10_000);
            let_child_begin(&mut program);
            stream.read_exact(&mut [0]).unwrap();
            up.awaits("demoted", 1);
            stream.write_all(&bytes[10_000..]).unwrap();
            assert!(output(&mut program) == bytes, "other bytes");
        });
    });
}

/// The parent fills its ring, and the child makes the connection a stream. All bytes arrive once.
fn sends(parent: &'static str) {
    in_a_network(move || {
        with_child("c.recv(1)", parent, |up, mut program, mut stream| {
            stream.write_all(b"p").unwrap();
            awaits(up, "bytes_written", 4 << 20);
            let_child_begin(&mut program);
            up.awaits("demoted", 1);
            let mut got = Vec::new();
            stream.read_to_end(&mut got).unwrap();
            assert!(got == pattern(BYTES), "{} of {BYTES} bytes, or other ones", got.len());
            assert_eq!(output(&mut program), format!("{BYTES}\n").into_bytes());
        });
    });
}

#[test]
fn send_that_waits_goes_on_after_its_connection_was_demoted() {
    sends("print(c.send(bytes.read()))");
}

#[test]
fn sendfile_that_waits_goes_on_after_its_connection_was_demoted() {
    sends(
        "sent = 0\n\
         while sent < 6_000_000:\n    \
             sent += os.sendfile(c.fileno(), bytes.fileno(), None, 6_000_000 - sent)\n\
         print(sent)",
    );
}

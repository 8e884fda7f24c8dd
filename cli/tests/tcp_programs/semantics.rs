//! Flags, options and signals of sockets: one C program over an agent and over Linux.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::process::{Command, Stdio};

use wave_skip::skip;

use crate::network::{AGENT, LINUX, Running, Up, connect, in_a_network};

/// Prints the results of its calls. Its lines "send N" and "end" are for its peer.
const PROGRAM: &str = include_str!("semantics/calls.c");
/// A host of the agent's network that does not answer.
const NOBODY: &str = "10.77.0.99";

/// Runs the program, and serves as its peer. Returns the lines that it prints.
fn transcript(mut command: Command, at: [u8; 4]) -> Vec<String> {
    let mut program = Running(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(program.0.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "listening");
    let mut peer = connect(SocketAddr::from((at, 7000)));
    peer.set_nodelay(true).unwrap();
    let mut said = Vec::new();
    for line in lines {
        let line = line.unwrap();
        if let Some(count) = line.strip_prefix("send ") {
            peer.write_all(&vec![b'x'; count.parse().unwrap()]).unwrap();
        } else if line == "end" {
            peer.shutdown(Shutdown::Write).unwrap();
        }
        said.push(line);
    }
    assert!(program.0.wait().unwrap().success(), "{said:?}");
    said
}

#[test]
fn flags_options_and_signals_of_sockets_are_as_over_linux() {
    in_a_network(|| {
        let up = Up::new();
        let (source, program) = (up.path("calls.c"), up.path("calls"));
        fs::write(&source, PROGRAM).unwrap();
        let built = Command::new("cc").arg("-g").arg(&source).arg("-o").arg(&program).status();
        if !built.is_ok_and(|built| built.success()) {
            return skip("there is no C compiler: apt-get install gcc libc6-dev");
        }
        let program = program.to_str().unwrap();
        let [agent, linux] = [AGENT, LINUX].map(|ip| Ipv4Addr::from(ip).to_string());
        let ours = transcript(up.over(&[program, &agent, NOBODY]), AGENT);
        up.awaits("PassiveOpens", 1);
        let mut command = Command::new(program);
        command.args([&linux, NOBODY]);
        let theirs = transcript(command, LINUX);
        assert_eq!(ours, theirs);
        assert!(theirs.len() > 20, "{theirs:?}");
    });
}

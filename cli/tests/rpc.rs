//! gRPC through an agent's front to workers, with clients of other implementations.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

/// Debian's Python, for which python3-grpcio is packaged.
const PYTHON: &str = "/usr/bin/python3";

/// A process that is ended with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(line: &str) -> Running {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wave"));
    command.args(line.split_whitespace()).stdin(Stdio::null()).stdout(Stdio::piped());
    Running(command.spawn().expect("wave can be run"))
}

/// Starts the interop service, and an agent in front of it with the arguments `more`. Returns both, and the agent's address.
fn interop(name: &str, ring: u32, more: &str) -> ([Running; 2], String) {
    let socket =
        std::env::temp_dir().join(format!("wave-interop-{}-{name}.sock", std::process::id()));
    let socket = socket.display();
    let mut server = start(&format!("serve interop --offload {socket} --ring {ring}"));
    let mut line = String::new();
    let out = server.0.stdout.take().expect("it is piped");
    BufReader::new(out).read_line(&mut line).expect("it says that it serves");
    assert!(line.starts_with("Serving"), "{line}");
    // A port that is free now. If it is taken meanwhile, the agent reports it.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let agent =
        start(&format!("agent --rpc {socket} --listen {address} --share-cpu --quiet {more}"));
    ([server, agent], address.to_string())
}

fn has_grpcio() -> bool {
    let mut command = Command::new(PYTHON);
    let found = command.args(["-c", "import grpc, grpc_tools"]).stderr(Stdio::null()).status();
    found.is_ok_and(|status| status.success())
}

fn passes(name: &str, ring: u32, more: &str) {
    if !has_grpcio() {
        wave_skip::skip(
            "no client of another implementation (apt-get install python3-grpcio python3-grpc-tools)",
        );
        return;
    }
    let (_running, address) = interop(name, ring, more);
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rpc_programs/interop.py");
    let proto = concat!(env!("CARGO_MANIFEST_DIR"), "/proto/interop.proto");
    let output = Command::new(PYTHON).args([folder, &address, proto]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "an interop test of the client failed");
    assert_eq!(text.lines().filter(|line| line.starts_with("passed")).count(), 19);
}

#[test]
fn interop_tests_of_grpcio_pass() {
    passes("default", 1024, "");
}

#[test]
fn interop_tests_pass_over_the_smallest_queues() {
    passes("smallest", 2, "");
}

#[test]
fn interop_tests_pass_with_a_connection_core() {
    let cpu = wave_links::cpus::allowed().unwrap()[0];
    passes("split", 1024, &format!("--connection-cpus {cpu}"));
}

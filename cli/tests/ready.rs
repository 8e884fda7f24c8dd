//! Lines that announce that a command serves: what they announce is true when they are printed.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use wave_udp_client::{Call, Client};
use wave_user::rpc::{Methods, Server};
use wave_user::{Enclave, Mode, Options, rpc};

/// A test that waits longer has failed.
const PATIENCE: Duration = Duration::from_secs(120);
/// Number of fresh agents per configuration; `WAVE_FIRST_CALLS` overrides it.
const AGENTS: usize = 10;
/// Number of requests at once that are the first ones of an agent.
const REQUESTS: usize = 4;

/// A process with its output and messages in one stream, ended with the test.
struct Process {
    child: Child,
    says: BufReader<std::io::PipeReader>,
}

impl Process {
    fn start(line: &str) -> Process {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_wave"));
        command.args(line.split_whitespace()).stdin(Stdio::null());
        let child = command.stdout(writer.try_clone().unwrap()).stderr(writer).spawn().unwrap();
        Process { child, says: BufReader::new(reader) }
    }

    /// Reads up to the next line with these words, and returns that line.
    fn says(&mut self, words: &str) -> String {
        let mut all = String::new();
        loop {
            let before = all.len();
            let bytes = self.says.read_line(&mut all).unwrap();
            assert!(bytes > 0, "it ended without printing `{words}`:\n{all}");
            if all[before..].contains(words) {
                return all[before..].to_owned();
            }
        }
    }

    /// The address after `at` in the next line with these words.
    fn address(&mut self, words: &str) -> String {
        let line = self.says(words);
        let (_, after) = line.split_once(" at ").unwrap();
        after.split_whitespace().next().unwrap().to_owned()
    }

    /// Everything that it prints from here on, and its exit code.
    fn rest(&mut self) -> (String, Option<i32>) {
        let mut rest = String::new();
        self.says.read_to_string(&mut rest).unwrap();
        (rest, self.child.wait().unwrap().code())
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            // SIGTERM rather than SIGKILL, so that a host removes its database.
            self.signal(Signal::TERM);
            let _ = self.child.wait();
        }
    }
}

fn agents() -> usize {
    let asked = std::env::var("WAVE_FIRST_CALLS").ok().and_then(|text| text.parse().ok());
    asked.unwrap_or(AGENTS)
}

/// A host whose queues have this many entries, and whose service's description takes many of them.
fn host(socket: &Path, ring: Option<u32>) -> Server {
    let mut options = rpc::Options::new(socket).workers(2);
    options.yields_cpu = true;
    if let Some(entries) = ring {
        let config = &mut options.config;
        (config.messages.entries, config.decisions.entries) = (entries, entries);
        config.prestage = config.prestage.min((entries / 2) as u16);
    }
    let echo = Methods::new().unary("/test.Test/Echo", |_call, request| Ok(request.to_vec()));
    let methods = (0..16).fold(echo, |methods, number| {
        methods.unary(&format!("/test.Test/Other{number}"), |_call, _request| Ok(Vec::new()))
    });
    Server::start(options, methods).unwrap()
}

/// Sends the first requests to fresh agents on the line that announces their hosts.
fn first_requests_succeed(ring: Option<u32>) {
    for number in 0..agents() {
        let folder = TempDir::new().unwrap();
        let socket = folder.path().join("host");
        let _host = host(&socket, ring);
        let line = format!("agent --rpc {} --udp 127.0.0.1:0 --share-cpu", socket.display());
        let mut agent = Process::start(&line);
        let address = agent.address("datagrams at ");
        agent.says("steers to");
        std::thread::scope(|scope| {
            for _ in 0..REQUESTS {
                scope.spawn(|| {
                    let mut client = Client::connect(&*address, PATIENCE).unwrap();
                    let request = Call { message: b"x", ..Call::default() };
                    let reply = client.call(request).unwrap_or_else(|error| {
                        panic!("agent {number}: {error}");
                    });
                    assert_eq!(reply.message, b"x");
                });
            }
        });
    }
}

#[test]
fn first_datagrams_on_the_ready_line_are_served() {
    first_requests_succeed(None);
}

#[test]
fn first_datagrams_on_the_ready_line_are_served_with_the_smallest_queues() {
    first_requests_succeed(Some(2));
}

#[test]
fn datagrams_before_the_ready_line_get_the_true_reason() {
    let folder = TempDir::new().unwrap();
    let socket = folder.path().join("host");
    let line = format!("agent --rpc {} --udp 127.0.0.1:0 --share-cpu", socket.display());
    let mut agent = Process::start(&line);
    let address = agent.address("datagrams at ");
    let refusal = || {
        let mut client = Client::connect(&*address, PATIENCE).unwrap();
        client.call(Call::default()).unwrap_err().to_string()
    };
    assert!(refusal().contains("no host is attached"));
    // Workers announce themselves once they are polled.
    let methods = Methods::new().unary("/test.Test/Echo", |_call, request| Ok(request.to_vec()));
    let _server = Server::start_polled(rpc::Options::new(&socket), methods).unwrap();
    agent.says("waiting until its workers are ready");
    assert!(refusal().contains("no host is ready yet"), "{}", refusal());
}

#[test]
fn agent_is_announced_once_it_decides() {
    let folder = TempDir::new().unwrap();
    let options = Options::new(folder.path().join("host")).cores(2);
    let enclave = Enclave::start(options).unwrap();
    let line = format!("agent --attach {} --share-cpu", enclave.socket().display());
    for number in 1..=agents() {
        let mut agent = Process::start(&line);
        agent.says("attached to");
        assert_eq!(enclave.mode(), Mode::Agent, "agent {number}");
        agent.signal(Signal::KILL);
        agent.child.wait().unwrap();
        while enclave.mode() == Mode::Agent {
            std::thread::yield_now();
        }
    }
}

#[test]
fn agent_that_cannot_start_is_not_announced() {
    let folder = TempDir::new().unwrap();
    let enclave = Enclave::start(Options::new(folder.path().join("host"))).unwrap();
    let log = folder.path().join("none").join("log");
    let socket = enclave.socket().display();
    let mut agent = Process::start(&format!("agent --attach {socket} --record {}", log.display()));
    let (said, code) = agent.rest();
    assert_eq!(code, Some(3), "{said}");
    assert!(
        said.contains("/log: cannot be written: No such file or directory (os error 2)\n")
            && !said.contains("attached to"),
        "{said}"
    );
    let nowhere = folder.path().join("nowhere");
    let line = format!(
        "agent --rpc {} --udp 127.0.0.1:0 --attach {}",
        nowhere.display(),
        nowhere.display()
    );
    let (said, code) = Process::start(&line).rest();
    assert_eq!(code, Some(3), "{said}");
    assert!(!said.contains("datagrams at"), "{said}");
}

#[test]
fn server_on_the_hosts_cores_is_announced_once_it_answers() {
    for _ in 0..3 {
        let mut server =
            Process::start("serve kv --on-host --listen 127.0.0.1:0 --keys 10 --quiet");
        let address = server.address("Serving 10 keys at ");
        let mut client = TcpStream::connect(&*address).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        // HTTP/2's preface and empty SETTINGS (RFC 9113, 3.4), which a server answers with its own.
        client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
        let mut head = [0; 9];
        client.read_exact(&mut head).unwrap();
        assert_eq!(head[3], 4, "a frame other than SETTINGS");
    }
}

#[test]
fn hosts_are_announced_once_agents_can_attach() {
    let folder = TempDir::new().unwrap();
    let socket = folder.path().join("host");
    for command in ["serve kv --keys 10 --quiet", "serve interop --ring 2"] {
        let mut host = Process::start(&format!("{command} --offload {}", socket.display()));
        host.says("Serving");
        let attached = wave_agent::attach_rpc(&socket, true).unwrap();
        assert!(!attached.connection.hung_up());
    }
}

/// Signals that follow a ready line end a command as its help says.
#[test]
fn sigterm_on_the_ready_line_ends_a_command_with_0() {
    let folder = TempDir::new().unwrap();
    let socket = folder.path().join("host");
    let socket = socket.display();
    for (command, words) in [
        (format!("agent --rpc {socket} --listen 127.0.0.1:0 --share-cpu"), "gRPC at"),
        (format!("agent --rpc {socket} --udp 127.0.0.1:0 --share-cpu"), "datagrams at"),
        (format!("serve kv --offload {socket} --keys 10 --quiet"), "Serving"),
        (format!("serve interop --offload {socket}"), "Serving"),
        ("serve kv --on-host --listen 127.0.0.1:0 --keys 10 --quiet".to_owned(), "Serving"),
    ] {
        let mut process = Process::start(&command);
        process.says(words);
        process.signal(Signal::TERM);
        let (said, code) = process.rest();
        assert_eq!(code, Some(0), "{command}: {said}");
    }
}

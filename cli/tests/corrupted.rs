//! Corrupted windows: each side reports which of them is at fault, and the invalid value.

use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use wave_core::endpoint::Sender;
use wave_core::layout::{Layout, PROTOCOL_VERSION, read_header};
use wave_core::link::{Doorbell, Home, Port, Side};
use wave_core::queue::{PAYLOAD_WORDS, Tag};
use wave_links::socket::{Connection, Listener, Offer};
use wave_links::{AnyPort, EventFd, LinkSpec, Memory};

/// The tag of no valid frame.
const NONSENSE: Tag = Tag { kind: 0x7777, flags: 0 };

/// A process with its standard error; ended with the test.
struct Process {
    child: Child,
    says: BufReader<Box<dyn Read>>,
}

impl Process {
    fn start(line: &str) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wave"));
        command.args(line.split_whitespace()).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let stderr: Box<dyn Read> = Box::new(child.stderr.take().unwrap());
        Process { child, says: BufReader::new(stderr) }
    }

    /// Reads standard error until a line has these words, and returns it.
    fn says(&mut self, words: &str) -> String {
        let mut all = String::new();
        loop {
            let mut line = String::new();
            let bytes = self.says.read_line(&mut line).unwrap();
            assert!(bytes > 0, "it ended without printing `{words}`:\n{all}");
            if line.contains(words) {
                return line;
            }
            all.push_str(&line);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SIGTERM rather than SIGKILL, so that a host removes its database.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let _ = self.child.wait();
    }
}

/// A man in the middle between a front and its host: passes the host's window on, and keeps access to it.
struct Between {
    layout: Layout,
    port: AnyPort,
    /// Doorbells of the host's workers, its control thread and the agent.
    bells: Vec<EventFd>,
    _ends: [Connection; 2],
}

fn window_between(front: &Listener, host: &std::path::Path) -> Between {
    let agent = loop {
        match front.accept().unwrap() {
            Some(agent) => break agent,
            None => std::thread::yield_now(),
        }
    };
    let connection = Connection::connect(host).unwrap();
    let offer = connection.receive_offer(PROTOCOL_VERSION, None).unwrap();
    let [nic, host_lines, extra] = offer.lines;
    let memory = Arc::new(Memory::map(offer.memory.as_fd(), nic, host_lines, extra).unwrap());
    let doorbells: Vec<_> = offer.doorbells.iter().map(AsFd::as_fd).collect();
    agent
        .send_offer(&Offer {
            version: PROTOCOL_VERSION,
            subsystem: offer.subsystem,
            lines: offer.lines,
            memory: offer.memory.as_fd(),
            doorbells: &doorbells,
            files: &[],
            link: &offer.link,
        })
        .unwrap();
    let port = LinkSpec::parse(&offer.link).unwrap().port(&memory, Side::Agent, &[]).unwrap();
    let layout = read_header(port.window(Home::Nic), nic, host_lines).unwrap();
    let cores = usize::from(layout.config.cores);
    let bells = offer.doorbells.into_iter().take(cores).map(|fd| EventFd::from_fd(fd).unwrap());
    Between { layout, port, bells: bells.collect(), _ends: [agent, connection] }
}

/// Starts a host with these options, and a front that steers to it through a [`Between`].
fn pair(folder: &TempDir, options: &str) -> (Process, Process, Between) {
    let (host_path, front_path) = (folder.path().join("host"), folder.path().join("front"));
    let line = format!("serve kv --offload {} --keys 10 {options}", host_path.display());
    let mut host = Process::start(&line);
    // Its first line says that it listens.
    let mut told = String::new();
    BufReader::new(host.child.stdout.take().unwrap()).read_line(&mut told).unwrap();
    let listener = Listener::bind(&front_path, &[]).unwrap();
    let mut front =
        Process::start(&format!("agent --rpc {} --listen 127.0.0.1:0", front_path.display()));
    let between = window_between(&listener, &host_path);
    front.says("steers to 1 worker of");
    (host, front, between)
}

#[test]
fn front_with_a_corrupted_window_reports_that_its_host_turned_it_out() {
    let folder = TempDir::new().unwrap();
    let (mut host, mut front, between) = pair(&folder, "");

    // No call was made, so the front has sent nothing yet.
    let mut requests = Sender::new(&between.layout.decisions[0], Side::Agent);
    requests.push(&between.port, NONSENSE, &[7, 7, 7]).unwrap();
    requests.publish(&between.port);
    between.bells[0].ring();

    let said = host.says("turning the agent at");
    assert!(said.contains(&folder.path().join("host").display().to_string()), "{said}");
    assert!(said.contains("makes no sense: worker 0: peer's fault"), "{said}");
    let said = front.says("the host has");
    assert!(said.contains("turned this agent out: it read nonsense"), "{said}");
    assert!(host.child.try_wait().unwrap().is_none());
}

#[test]
fn host_with_checksums_turns_out_an_agent_that_sends_a_frame_without_one() {
    let folder = TempDir::new().unwrap();
    let (mut host, mut front, between) = pair(&folder, "--checksums");
    let mut requests = Sender::new(&between.layout.decisions[0], Side::Agent);
    // The head of an empty frame.
    requests.push(&between.port, NONSENSE, &[0; PAYLOAD_WORDS]).unwrap();
    requests.publish(&between.port);
    between.bells[0].ring();
    let said = host.says("turning the agent at");
    assert!(said.contains("has no checksum"), "{said}");
    front.says("turned this agent out: it read nonsense");
}

#[test]
fn front_reports_the_invalid_word_that_it_finds_in_the_window() {
    let folder = TempDir::new().unwrap();
    let (_host, mut front, Between { layout, port, _ends, .. }) = pair(&folder, "");
    let nic = port.window(Home::Nic);
    wave_core::link::Window::store(nic, layout.incarnation, 0, 0x1234_5678);
    wave_core::link::Window::publish(nic);
    let said = front.says("disconnecting from the host");
    assert!(said.contains("peer's fault: the window's incarnation word is 0x12345678"), "{said}");
}

//! Processes of the tests, and networks for them.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use serde_json::Value;
use tempfile::TempDir;

/// Long enough for any machine; a test that waits longer has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);
pub const AGENT: [u8; 4] = [10, 77, 0, 2];
pub const MIB: usize = 1 << 20;

/// Runs a test in an empty network namespace, or skips it.
pub fn in_a_network(test: impl FnOnce() + Send + 'static) {
    if !rustix::process::geteuid().is_root() {
        return wave_skip::skip("creating TAP devices needs root");
    }
    if let Err(error) = File::options().read(true).write(true).open("/dev/net/tun") {
        return wave_skip::skip(format!("/dev/net/tun: {error}"));
    }
    // Its children are in the same network. The thread has the test's name, under which skips are reported.
    let named = thread::Builder::new().name(thread::current().name().unwrap_or("-").to_owned());
    let thread = named.spawn(|| unshare(CloneFlags::CLONE_NEWNET).map(|()| test()));
    match thread.unwrap().join() {
        Ok(Ok(())) => {}
        Ok(Err(error)) => wave_skip::skip(format!("no network namespace for the test: {error}")),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

pub fn wave(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wave"));
    command.args(line.split_whitespace()).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A process, killed on drop.
pub struct Running(pub Child);

impl Running {
    /// Starts `wave` with these arguments, and waits for its first line.
    pub fn start(line: &str) -> Running {
        let mut running = Running(wave(line).spawn().expect("wave can be run"));
        assert!(running.has_begun(), "{line}: {:?}", running.ended());
        running
    }

    /// Waits for its first line, or its end. Returns whether there was a line.
    pub fn has_begun(&mut self) -> bool {
        let mut first = String::new();
        let out = self.0.stdout.as_mut().expect("it is piped");
        BufReader::new(out).read_line(&mut first).unwrap();
        !first.is_empty()
    }

    pub fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    pub fn ended(&mut self) -> (Option<i32>, String) {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if let Some(status) = self.0.try_wait().unwrap() {
                let mut said = String::new();
                self.0.stderr.as_mut().unwrap().read_to_string(&mut said).unwrap();
                return (status.code(), said);
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("the process has not ended");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub struct Up {
    pub folder: TempDir,
    pub agent: Option<Running>,
    pub options: &'static str,
}

impl Up {
    pub fn new() -> Up {
        Up::with("")
    }

    /// Starts an agent with more options.
    pub fn with(options: &'static str) -> Up {
        let mut up = Up { folder: tempfile::tempdir().unwrap(), agent: None, options };
        up.start();
        up
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("toe.sock")
    }

    pub fn start(&mut self) {
        let socket = self.socket();
        let line = format!(
            "tcp up --tap wavetoe0 --address 10.77.0.2/24 --persistent --socket {} {}",
            socket.display(),
            self.options
        );
        self.agent = Some(Running::start(&line));
    }

    pub fn serve(&self, what: &str) -> Running {
        Running::start(&format!("serve {what} --toe {}", self.socket().display()))
    }

    pub fn ss(&self) -> Value {
        ss(&self.socket())
    }
}

/// The report of the agent at this socket.
pub fn ss(socket: &Path) -> Value {
    let output = wave(&format!("tcp ss --json --socket {}", socket.display())).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

pub fn connect(port: u16) -> TcpStream {
    connect_to(SocketAddr::from((AGENT, port)))
}

pub fn connect_to(ends: SocketAddr) -> TcpStream {
    let end = Instant::now() + PATIENCE;
    loop {
        match TcpStream::connect_timeout(&ends, PATIENCE) {
            Ok(stream) => {
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                stream.set_write_timeout(Some(PATIENCE)).unwrap();
                return stream;
            }
            // Linux's end may need a moment to come up.
            Err(_) if Instant::now() < end => thread::sleep(Duration::from_millis(50)),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Sends a request. Returns the head of the answer, and the part of the body read so far.
pub fn get(stream: &mut TcpStream, path: &str) -> (String, Vec<u8>) {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: toe\r\n\r\n").unwrap();
    let mut came = Vec::new();
    let mut bytes = [0; 4096];
    loop {
        if let Some(end) = came.windows(4).position(|four| four == b"\r\n\r\n") {
            let rest = came.split_off(end + 4);
            return (String::from_utf8(came).unwrap(), rest);
        }
        let count = stream.read(&mut bytes).unwrap();
        assert!(count > 0, "the answer ends within its head");
        came.extend_from_slice(&bytes[..count]);
    }
}

/// Runs ip(8) in the calling thread's network.
pub fn ip(line: &str) {
    let output = Command::new("ip").args(line.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "ip {line}: {output:?}");
}

/// Runs a test at one end of a veth pair. The other end has an agent, beside the kernel's own address.
pub fn at_a_cable(test: impl FnOnce(&PathBuf, Running) + Send + 'static) {
    at_a_cable_with("", test);
}

/// The same with more options of the agent.
pub fn at_a_cable_with(
    options: &'static str,
    test: impl FnOnce(&PathBuf, Running) + Send + 'static,
) {
    in_a_network(move || {
        if Command::new("ip").arg("-V").output().is_err() {
            return wave_skip::skip("ip(8) is not installed: apt-get install iproute2");
        }
        // Another thread starts the agent, in that thread's own network namespace.
        let (says, hears) = std::sync::mpsc::channel();
        let (goes_on, waits) = std::sync::mpsc::channel::<()>();
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("toe.sock");
        let place = socket.clone();
        let far = thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            says.send(Err(rustix::thread::gettid().as_raw_nonzero())).unwrap();
            waits.recv().unwrap();
            ip("address add 10.77.0.3/24 dev wavetoe1");
            ip("link set wavetoe1 up");
            let line = "tcp up --interface wavetoe1 --address 10.77.0.2/24 --socket";
            let line = format!("{line} {} {options}", place.display());
            says.send(Ok(Running::start(&line))).unwrap();
            // The network namespace lives as long as a thread is in it.
            let _ = waits.recv();
        });
        let Err(thread) = hears.recv_timeout(PATIENCE).unwrap() else { unreachable!() };
        ip(&format!("link add wavetoe0 type veth peer name wavetoe1 netns {thread}"));
        ip("address add 10.77.0.1/24 dev wavetoe0");
        ip("link set wavetoe0 up");
        goes_on.send(()).unwrap();
        let Ok(agent) = hears.recv_timeout(PATIENCE).unwrap() else { unreachable!() };
        test(&socket, agent);
        drop(goes_on);
        far.join().unwrap();
    });
}

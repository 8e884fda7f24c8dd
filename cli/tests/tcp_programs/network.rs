//! A network namespace per test, an agent in it, and programs over the agent.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use wave_skip::skip;

use crate::library::library;

/// Long enough for any machine; a test that waits longer has failed.
pub const PATIENCE: Duration = Duration::from_secs(120);
const ATTEMPT: Duration = Duration::from_secs(5);
pub const AGENT: [u8; 4] = [10, 77, 0, 2];
pub const LINUX: [u8; 4] = [10, 77, 0, 1];

thread_local! {
    /// Data path of the agents that this thread's test starts. Otherwise `WAVE_DATAPATH` names it.
    static DATAPATH: Cell<Option<String>> = const { Cell::new(None) };
}

/// Runs a test whose agents have this data path.
pub fn with_datapath(name: &str, test: impl FnOnce()) {
    DATAPATH.set(Some(name.to_owned()));
    test();
}

/// Runs a test in an empty network namespace with its loopback up, or skips it.
pub fn in_a_network(test: impl FnOnce() + Send + 'static) {
    if !rustix::process::geteuid().is_root() {
        return skip("creating TAP devices needs root");
    }
    if let Err(error) = File::options().read(true).write(true).open("/dev/net/tun") {
        return skip(format!("/dev/net/tun: {error}"));
    }
    if !is_there("ip", "-V") {
        return skip("ip(8) is not installed: apt-get install iproute2");
    }
    library();
    // Its children are in the same network. The thread has the test's name, under which skips are reported.
    let named = thread::Builder::new().name(thread::current().name().unwrap_or("-").to_owned());
    let datapath = DATAPATH.take();
    let thread = named.spawn(|| {
        DATAPATH.set(datapath);
        unshare(CloneFlags::CLONE_NEWNET).map(|()| {
            let up = Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap();
            assert!(up.success());
            test();
        })
    });
    match thread.unwrap().join() {
        Ok(Ok(())) => {}
        Ok(Err(error)) => skip(format!("no network namespace for the test: {error}")),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

pub fn is_there(program: &str, argument: &str) -> bool {
    let mut command = Command::new(program);
    command.arg(argument).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok()
}

pub fn wave() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wave"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The command of these words, over Linux.
pub fn command(words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A server with child processes. All end when the server gets this signal.
pub struct Master(pub Running, pub Signal);

impl Drop for Master {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = kill_process(Pid::from_child(&self.0.0), self.1);
        let end = Instant::now() + PATIENCE;
        while matches!(self.0.0.try_wait(), Ok(None)) && Instant::now() < end {
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A process, killed on drop.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A running agent.
pub struct Up {
    pub folder: TempDir,
    pub agent: Running,
    /// An option and its value, such as `--allow` and a user that may attach.
    other: Option<[String; 2]>,
}

impl Up {
    pub fn new() -> Up {
        let folder = tempfile::tempdir().unwrap();
        // Programs that run as another user need access.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let agent = Up::agent(folder.path(), &[]);
        Up { folder, agent, other: None }
    }

    /// An agent to which this user's programs may attach as well.
    pub fn allowing(user: &str) -> Up {
        Up::with("--allow", user)
    }

    /// An agent with this option and its value.
    pub fn with(option: &str, value: &str) -> Up {
        let mut up = Up::new();
        up.other = Some([option.to_owned(), value.to_owned()]);
        up.kill();
        up.start_again();
        up
    }

    fn agent(folder: &Path, more: &[&str]) -> Running {
        let line = "tcp up --tap wavetoe0 --address 10.77.0.2/24 --address fd77::2/64 --socket";
        let mut child = wave();
        child.args(line.split(' ')).arg(folder.join("toe.sock")).args(more);
        if let Some(datapath) = DATAPATH.take().or_else(|| std::env::var("WAVE_DATAPATH").ok()) {
            child.args(["--datapath", &datapath]);
            DATAPATH.set(Some(datapath));
        }
        let mut child = child.spawn().unwrap();
        let mut first = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut first).unwrap();
        assert!(first.contains("10.77.0.2"), "{first}: {:?}", child.wait_with_output());
        Running(child)
    }

    /// Kills the agent.
    pub fn kill(&mut self) {
        kill_process(Pid::from_child(&self.agent.0), Signal::KILL).unwrap();
        self.agent.0.wait().unwrap();
    }

    /// Starts another agent at the same socket.
    pub fn start_again(&mut self) {
        let Some([option, user]) = &self.other else {
            self.agent = Up::agent(self.folder.path(), &[]);
            return;
        };
        self.agent = Up::agent(self.folder.path(), &[option, user]);
        for socket in ["toe.sock", "toe.sock.ss"] {
            fs::set_permissions(self.path(socket), fs::Permissions::from_mode(0o666)).unwrap();
        }
    }

    /// Replaces the running agent by a new one, and waits until it exits.
    pub fn replace(&mut self) {
        self.replace_with(&[]);
    }

    /// The same, with more options for the new agent.
    pub fn replace_with(&mut self, more: &[&str]) {
        let mut child = wave();
        child.args(["tcp", "replace", "--socket"]).arg(self.path("toe.sock")).args(more);
        let mut child = child.spawn().unwrap();
        let mut first = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut first).unwrap();
        assert!(first.contains("10.77.0.2"), "{first}: {:?}", child.wait_with_output());
        assert!(self.agent.0.wait().unwrap().success(), "the replaced agent failed");
        self.agent = Running(child);
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The command `wave tcp run` for a program.
    pub fn over(&self, program: &[&str]) -> Command {
        let mut command = wave();
        command.args(["tcp", "run", "--socket"]).arg(self.path("toe.sock"));
        command.arg("--").args(program);
        command
    }

    /// Waits until an agent's counter is at least `count`. A counter in an object has the object's name and a dot before its own.
    pub fn awaits(&self, counter: &str, count: u64) {
        within_patience(counter, || {
            let counters = &self.report()["counters"];
            let found = counter.split('.').fold(counters, |object, name| &object[name]);
            (found.as_u64() >= Some(count)).then_some(())
        });
    }

    /// Checks that the library has served all connections so far, of which there were at least `count`: none became a stream of the
    /// kernel's.
    pub fn assert_none_demoted(&self, count: u64) {
        self.awaits("PassiveOpens", count);
        assert_eq!(self.report()["counters"]["demoted"], 0);
    }

    /// What `wave tcp ss` prints.
    pub fn table(&self) -> String {
        let mut ss = wave();
        ss.args(["tcp", "ss", "--socket"]).arg(self.path("toe.sock"));
        let printed = ss.output().map(|output| output.stdout).unwrap_or_default();
        String::from_utf8_lossy(&printed).into_owned()
    }

    /// The agent's report, which may be slightly old.
    pub fn report(&self) -> Value {
        let mut ss = wave();
        ss.args(["tcp", "ss", "--json", "--socket"]).arg(self.path("toe.sock"));
        serde_json::from_slice(&ss.output().unwrap().stdout).unwrap()
    }
}

/// Prints the agent's state after a failed test.
impl Drop for Up {
    fn drop(&mut self) {
        if !thread::panicking() {
            return;
        }
        for name in fs::read_dir(self.folder.path()).into_iter().flatten().flatten() {
            let words = fs::read(name.path()).unwrap_or_default();
            if (1..10_000).contains(&words.len()) {
                eprintln!("{:?}:\n{}", name.file_name(), String::from_utf8_lossy(&words));
            }
        }
        eprintln!("wave tcp ss:\n{}", self.table());
    }
}

pub fn within_patience<R>(what: &str, mut look: impl FnMut() -> Option<R>) -> R {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if let Some(found) = look() {
            return found;
        }
        thread::sleep(Duration::from_millis(20));
    }
    panic!("{what} has not happened");
}

pub fn connect(to: SocketAddr) -> TcpStream {
    let what = format!("a connection to {to}");
    // Before Linux's own address is up, a SYN may leave from another address. It gets no answer.
    let stream = within_patience(&what, || TcpStream::connect_timeout(&to, ATTEMPT).ok());
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

pub fn python() -> Option<&'static str> {
    let python = "/usr/bin/python3";
    let found = Path::new(python).exists().then_some(python);
    if found.is_none() {
        skip("Python is not installed: apt-get install python3");
    }
    found
}

/// Starts a server over the agent, with its output in the file `log`, and waits until it serves at this port.
pub fn server(up: &Up, log: &str, program: &[&str], port: u16) -> Running {
    let output = || File::options().create(true).append(true).open(up.path(log)).unwrap();
    let mut command = up.over(program);
    command.current_dir(up.folder.path()).stdout(output()).stderr(output());
    // Some servers end by a signal to their process group.
    command.process_group(0);
    let server = Running(command.spawn().unwrap());
    drop(connect(SocketAddr::from((AGENT, port))));
    server
}

/// Whether a program is installed. If not, reports a skip with the package to install.
pub fn has(program: &str, package: &str) -> bool {
    let is_there = Path::new(program).exists();
    if !is_there {
        skip(format!("{program} is not installed: apt-get install {package}"));
    }
    is_there
}

/// Answer of an HTTP server: its head, and its body.
pub fn get(to: SocketAddr, path: &str) -> std::io::Result<(String, Vec<u8>)> {
    let mut stream = connect(to);
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let end = answer.windows(4).position(|word| word == b"\r\n\r\n");
    let end = end.ok_or(std::io::ErrorKind::UnexpectedEof)?;
    let body = answer.split_off(end + 4);
    Ok((String::from_utf8_lossy(&answer).into_owned(), body))
}

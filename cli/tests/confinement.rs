//! Processes of `wave` are confined by default. /proc is checked for every thread of each.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use wave_skip::skip;
use wave_user::{Enclave, Options};

/// Long enough for any machine; a test that waits longer has failed.
const PATIENCE: Duration = Duration::from_secs(120);
/// Capabilities that no agent, front or server keeps: CAP_SETUID, CAP_SYS_MODULE, CAP_SYS_RAWIO and CAP_SYS_BOOT.
const NOBODYS: u64 = 1 << 7 | 1 << 16 | 1 << 17 | 1 << 22;

/// A process, killed on drop.
struct Running {
    child: Child,
    errors: BufReader<ChildStderr>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    /// Starts `wave` with these arguments, separated by spaces.
    fn start(line: &str) -> Running {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wave"));
        command.args(line.split_whitespace());
        Running::of(command)
    }

    fn of(mut command: Command) -> Running {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it can be run");
        let errors = BufReader::new(child.stderr.take().expect("it is piped"));
        Running { child, errors }
    }

    /// The first line of its output. It is set up by then.
    fn first_line(&mut self) -> String {
        let mut line = String::new();
        let out = self.child.stdout.as_mut().expect("it is piped");
        BufReader::new(out).read_line(&mut line).unwrap();
        line
    }

    /// Reads standard error up to the next line with these words.
    fn says(&mut self, words: &str) -> String {
        let mut all = String::new();
        loop {
            let before = all.len();
            let bytes = self.errors.read_line(&mut all).unwrap();
            assert!(bytes > 0, "it ended without printing `{words}`:\n{all}");
            if all[before..].contains(words) {
                return all;
            }
        }
    }

    /// The address on which it listens, from its own message.
    fn address(&mut self) -> String {
        let said = self.says(" at 127.0.0.1:");
        said.trim_end().rsplit(' ').next().expect("an address").to_owned()
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Fields of /proc/PID/task/TID/status for each thread of a process, by thread.
fn threads(pid: u32) -> BTreeMap<String, BTreeMap<String, String>> {
    let folder = format!("/proc/{pid}/task");
    let tasks = fs::read_dir(folder).into_iter().flatten().flatten();
    let fields = |text: String| {
        let fields = text.lines().filter_map(|line| line.split_once(":\t"));
        fields.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect()
    };
    let status = |task: fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("status")).ok()?;
        Some((task.file_name().to_string_lossy().into_owned(), fields(text)))
    };
    tasks.filter_map(status).collect()
}

/// Waits until every thread of the process has a seccomp filter, and checks the threads' other rights. They may keep `capabilities`.
fn is_confined(pid: u32, capabilities: u64) {
    let begin = Instant::now();
    let field = |fields: &BTreeMap<String, String>, name: &str| fields.get(name).cloned();
    let all = loop {
        let all = threads(pid);
        let is =
            |fields: &BTreeMap<String, String>| field(fields, "Seccomp").as_deref() == Some("2");
        if !all.is_empty() && all.values().all(is) {
            break all;
        }
        assert!(begin.elapsed() < PATIENCE, "process {pid} has no seccomp filter: {all:#?}");
        sleep(Duration::from_millis(10));
    };
    for (thread, fields) in &all {
        assert_eq!(field(fields, "NoNewPrivs").as_deref(), Some("1"), "thread {thread}");
        for set in ["CapEff", "CapPrm"] {
            let set = u64::from_str_radix(&fields[set], 16).unwrap();
            assert_eq!(set & !capabilities, 0, "thread {thread} of {pid} kept {set:x}");
            assert_eq!(set & NOBODYS, 0, "thread {thread} of {pid} kept {set:x}");
        }
    }
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < PATIENCE, "waited too long for {what}");
        sleep(Duration::from_millis(10));
    }
}

#[test]
fn attached_agent_is_confined_but_its_hosts_program_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let enclave = Enclave::start(Options::new(folder.path().join("host.sock")).cores(1)).unwrap();
    let log = folder.path().join("log");
    let agent = Running::start(&format!(
        "agent --attach {} --share-cpu --quiet --record {}",
        enclave.socket().display(),
        log.display()
    ));
    until("the agent", || enclave.stats().agents > 0);
    is_confined(agent.pid(), 0);
    let own = fs::read_to_string("/proc/self/status").unwrap();
    assert!(own.contains("NoNewPrivs:\t0") && own.contains("Seccomp:\t0"), "a host gave up rights");
    // The confined agent can still write its log.
    drop(enclave);
    until("the log", || fs::metadata(&log).is_ok_and(|log| log.len() > 0));
}

#[test]
fn agent_switches_to_the_given_user() {
    if !is_root() {
        return skip("only root can switch to another user");
    }
    let folder = tempfile::tempdir().unwrap();
    let enclave = Enclave::start(Options::new(folder.path().join("host.sock")).cores(1)).unwrap();
    let agent = Running::start(&format!(
        "agent --attach {} --share-cpu --quiet --user 65534:65533",
        enclave.socket().display()
    ));
    until("the agent", || enclave.stats().agents > 0);
    is_confined(agent.pid(), 0);
    let threads = threads(agent.pid());
    assert!(!threads.is_empty());
    for fields in threads.values() {
        assert_eq!(fields["Uid"], ["65534"; 4].join("\t"));
        assert_eq!(fields["Gid"], ["65533"; 4].join("\t"));
        assert_eq!(fields["Groups"], "");
    }
}

#[test]
fn fronts_with_connection_cores_and_notes_are_confined_and_serve() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name).display().to_string();
    let (socket, notes) = (place("kv.sock"), place("notes.sock"));
    let mut server = Running::start(&format!("serve kv --offload {socket} --keys 1000 --quiet"));
    assert!(server.first_line().starts_with("Serving"));
    is_confined(server.pid(), 0);
    let cpu = wave_process::cpus::allowed().unwrap()[0];
    let listens = format!("agent --rpc {socket} --listen 127.0.0.1:0 --connection-cpus {cpu}");
    let mut front =
        Running::start(&format!("{listens} --share-cpu --notes {notes} --notes-allow 65534"));
    let address = front.address();
    // One call at a time. Their latency does not matter.
    let call = || {
        until("a reply by gRPC", || {
            let line = "load grpc --closed --connections 1 --streams 1 --mix echo=1 --seconds 1";
            let mut command = Command::new(env!("CARGO_BIN_EXE_wave"));
            command.args(line.split(' ')).args(["--quiet", "--target", &address]);
            command.output().is_ok_and(|output| output.status.success())
        });
    };
    call();
    is_confined(front.pid(), 0);
    // A scheduler takes the front's notes. The front makes the window for them while it is confined.
    let enclave = Enclave::start(Options::new(folder.path().join("host.sock")).cores(1)).unwrap();
    let mut line = format!("agent --attach {} --notes-from {notes}", enclave.socket().display());
    if is_root() {
        for (path, mode) in [(folder.path(), 0o755), (Path::new(&notes), 0o666)] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        line += " --user 65534:65534";
    }
    let mut scheduler = Running::start(&format!("{line} --share-cpu"));
    scheduler.says("taking notes from");
    is_confined(scheduler.pid(), 0);
    // The host ends and another one starts. The front attaches to it.
    drop(server);
    let mut server = Running::start(&format!("serve kv --offload {socket} --keys 1000 --quiet"));
    assert!(server.first_line().starts_with("Serving"));
    call();
    is_confined(front.pid(), 0);
    drop(front);
    let line = format!("agent --rpc {socket} --udp 127.0.0.1:0 --share-cpu");
    let mut front = Running::start(&line);
    let address = front.address();
    until("a reply in a datagram", || {
        let mut client = wave_udp_client::Client::connect(&address, PATIENCE).unwrap();
        let call = wave_udp_client::Call { idempotent: true, ..Default::default() };
        client.call(call).is_ok()
    });
    is_confined(front.pid(), 0);
}

#[test]
fn an_agent_of_an_allowed_user_attaches_to_a_server() {
    if !is_root() {
        return skip("only root can switch to another user");
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let socket = folder.path().join("interop.sock");
    let text = socket.display();
    let mut server = Running::start(&format!("serve interop --offload {text} --allow 65534"));
    assert!(server.first_line().starts_with("Serving"));
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).unwrap();
    let line = format!("agent --rpc {text} --listen 127.0.0.1:0 --share-cpu --user 65534:65534");
    let mut agent = Running::start(&line);
    // It attaches as that user, since a front looks for its host once it is confined.
    let said = agent.says("steers to");
    assert!(!said.contains("cannot attach"), "{said}");
    is_confined(agent.pid(), 0);
    assert!(threads(agent.pid()).values().all(|fields| fields["Uid"].starts_with("65534\t")));
}

#[test]
fn memory_host_and_its_agents_are_confined() {
    if !is_root() || wave_linux::memory::AccessBits::open().is_err() {
        return skip("access bits of other processes cannot be read here");
    }
    let mut target = sleeping();
    let line = format!("memory run --pid {} --dry-run --agent-user 65534:65534", target.pid());
    let mut host = Running::start(&line);
    // It prints a status line once its agent decides.
    host.says("resident");
    // CAP_DAC_OVERRIDE, _READ_SEARCH, KILL, SETGID, SETUID, SYS_PTRACE, SYS_ADMIN, SYS_NICE, PERFMON, BPF.
    let kept = [1, 2, 5, 6, 7, 19, 21, 23, 38, 39].map(|bit: u32| 1_u64 << bit);
    let kept = kept.iter().sum::<u64>();
    let agents = || children(host.pid());
    until("an agent", || agents().iter().any(|&pid| is_switched(pid)));
    let first = agents()[0];
    is_confined(first, 0);
    let fields = threads(host.pid());
    assert!(fields.values().all(|fields| fields["Seccomp"] == "2"), "{fields:#?}");
    for fields in fields.values() {
        let set = u64::from_str_radix(&fields["CapEff"], 16).unwrap();
        assert_eq!(set & !kept, 0, "the host kept {set:x}");
    }
    // The host starts another agent, which is confined as well.
    let _ = rustix::process::kill_process(
        rustix::process::Pid::from_raw(first as i32).unwrap(),
        rustix::process::Signal::KILL,
    );
    until("another agent", || agents().iter().any(|&pid| pid != first && is_switched(pid)));
    let second = *agents().iter().find(|&&pid| pid != first).unwrap();
    is_confined(second, 0);
    assert!(target.child.try_wait().unwrap().is_none());
    // The agent ends with its host, although the switch to another user has cleared its parent-death signal.
    drop(host);
    let has_ended = |fields: &BTreeMap<String, String>| fields["State"].starts_with('Z');
    until("the agent to end", || threads(second).values().all(has_ended));
}

#[test]
fn a_confined_memory_host_writes_its_report() {
    if !is_root() || wave_linux::memory::AccessBits::open().is_err() {
        return skip("access bits of other processes cannot be read here");
    }
    let folder = tempfile::tempdir().unwrap();
    let target = sleeping();
    let (out, log) = (folder.path().join("out"), folder.path().join("x.wavelog"));
    let pid = target.pid().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_wave"));
    command.args(["memory", "run", "--dry-run", "--quiet", "--seconds", "1", "--pid", &pid]);
    let output = command.arg("--out").arg(&out).arg("--record").arg(&log).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for file in [out.join("report.html"), out.join("results.json"), log] {
        assert!(fs::metadata(&file).is_ok_and(|about| about.len() > 0), "{}", file.display());
    }
}

/// Runs a test in an empty network namespace, or skips it.
fn in_a_network(test: impl FnOnce() + Send + 'static) {
    if !is_root() || fs::metadata("/dev/net/tun").is_err() {
        return skip("making TAP devices needs root and /dev/net/tun");
    }
    let named = thread::Builder::new().name(thread::current().name().unwrap_or("-").to_owned());
    let thread = named.spawn(|| unshare(CloneFlags::CLONE_NEWNET).map(|()| test()));
    match thread.unwrap().join() {
        Ok(Ok(())) => {}
        Ok(Err(error)) => skip(format!("no network namespace for the test: {error}")),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

#[test]
fn a_tcp_agent_its_successor_and_their_server_are_confined() {
    in_a_network(|| {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("toe.sock").display().to_string();
        let line = "tcp up --tap waveconfine0 --address 10.78.0.2/24 --user 65534:65533";
        let mut agent = Running::start(&format!("{line} --socket {socket}"));
        assert!(agent.first_line().starts_with("Speaking TCP"));
        is_confined(agent.pid(), 0);
        let mut server = Running::start(&format!("serve echo --toe {socket}"));
        assert!(server.first_line().starts_with("Serving"));
        is_confined(server.pid(), 0);
        let end = Instant::now() + PATIENCE;
        let mut stream = loop {
            match TcpStream::connect(("10.78.0.2", 7)) {
                Ok(stream) => break stream,
                // Linux's end may need a moment to come up.
                Err(error) => assert!(Instant::now() < end, "{error}"),
            }
            sleep(Duration::from_millis(50));
        };
        let mut echo = |text: [u8; 4]| {
            stream.write_all(&text).unwrap();
            let mut back = [0; 4];
            stream.read_exact(&mut back).unwrap();
            assert_eq!(back, text);
        };
        echo(*b"here");
        let line = "tcp replace --user 65534:65533";
        let mut successor = Running::start(&format!("{line} --socket {socket}"));
        assert!(successor.first_line().starts_with("Speaking TCP"));
        assert!(agent.child.wait().unwrap().success());
        is_confined(successor.pid(), 0);
        assert!(
            threads(successor.pid()).values().all(|fields| fields["Uid"].starts_with("65534\t"))
        );
        echo(*b"gone");
    });
}

fn sleeping() -> Running {
    let mut command = Command::new("sleep");
    command.arg("1000");
    Running::of(command)
}

/// Whether the process has switched to user 65534.
fn is_switched(pid: u32) -> bool {
    let all = threads(pid);
    !all.is_empty() && all.values().all(|fields| fields["Uid"].starts_with("65534\t"))
}

fn children(pid: u32) -> Vec<u32> {
    let own = format!("/proc/{pid}/task/{pid}/children");
    let text = fs::read_to_string(Path::new(&own)).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

#[test]
fn doctor_reports_whether_the_kernel_has_seccomp_and_landlock() {
    let output = Command::new(env!("CARGO_BIN_EXE_wave")).args(["doctor", "--json"]).output();
    let told: serde_json::Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
    let checks = told["checks"].as_array().unwrap();
    for name in ["seccomp", "Landlock"] {
        let check = checks.iter().find(|check| check["name"] == name).expect(name);
        assert_eq!(check["for"], "confining agents and hosts");
        assert!(check["found"].is_string() || check["missing"].is_string());
    }
}

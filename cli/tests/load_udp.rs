//! `wave serve kv`, `wave agent --udp` and `wave load udp`, from the command line.

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use wave_workloads::recorder::decode;

/// Long enough for any machine; a test that waits longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);

fn wave(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wave"));
    command.args(line.split_whitespace()).stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

/// A process, killed on drop.
struct Running(Child);

impl Running {
    fn start(line: &str) -> Running {
        Running(wave(line).spawn().expect("wave can be run"))
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A host and its agent; each can be restarted.
struct Served {
    folder: TempDir,
    address: String,
    host: Option<Running>,
    agent: Option<Running>,
}

impl Served {
    fn start() -> Served {
        let mut served = Served::without_agent();
        served.start_agent();
        served
    }

    fn without_agent() -> Served {
        let folder = tempfile::tempdir().unwrap();
        let address = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let mut served = Served { folder, address, host: None, agent: None };
        served.start_host();
        served
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn start_host(&mut self) {
        self.host = None;
        let [socket, puts] = ["kv", "puts"].map(|name| self.file(name));
        let [socket, puts] = [socket.display(), puts.display()];
        let line = format!("serve kv --offload {socket} --keys 1000 --log-writes {puts} --json");
        let mut host = Running::start(&line);
        let mut told = String::new();
        BufReader::new(host.0.stdout.take().unwrap()).read_line(&mut told).unwrap();
        assert!(told.starts_with('{'), "{told}");
        self.host = Some(host);
    }

    fn start_agent(&mut self) {
        self.agent = None;
        let (socket, address) = (self.file("kv"), &self.address);
        let socket = socket.display();
        let line = format!("agent --rpc {socket} --udp {address} --share-cpu --quiet");
        self.agent = Some(Running::start(&line));
    }
}

fn load(address: &str, line: &str) -> Command {
    wave(&format!("load udp --target {address} --keys 1000 --json {line}"))
}

fn object(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}", String::from_utf8_lossy(&output.stderr));
    })
}

/// Relays the datagrams of one client and counts its requests, until `is_over`.
fn relay<'a>(
    front: &str,
    asked: &'a AtomicUsize,
    is_over: &'a AtomicBool,
) -> (String, impl FnOnce() + Send + 'a) {
    let [inner, outer] = [(); 2].map(|()| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
        socket
    });
    inner.connect(front).unwrap();
    let address = outer.local_addr().unwrap().to_string();
    let run = move || {
        let client = std::sync::Mutex::new(None);
        let mut buffer = [0; 2048];
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut buffer = [0; 2048];
                while !is_over.load(SeqCst) {
                    let Ok(bytes) = inner.recv(&mut buffer) else { continue };
                    let to: Option<std::net::SocketAddr> = *client.lock().unwrap();
                    let _ = to.map(|to| outer.send_to(&buffer[..bytes], to));
                }
            });
            while !is_over.load(SeqCst) {
                let Ok((bytes, from)) = outer.recv_from(&mut buffer) else { continue };
                *client.lock().unwrap() = Some(from);
                let _ = inner.send(&buffer[..bytes]);
                asked.fetch_add(1, SeqCst);
            }
        });
    };
    (address, run)
}

/// A closed loop, or latency counted from the time of sending, would show only one slow request.
#[test]
fn stopped_agent_delays_every_request_due_meanwhile() {
    const RATE: f64 = 500.0;
    const SLOW: Duration = Duration::from_millis(50);
    let served = Served::start();
    let (asked, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (address, run) = relay(&served.address, &asked, &is_over);
    let told = thread::scope(|scope| {
        scope.spawn(run);
        let _ends = SetAtEnd(&is_over);
        let line = "--rate 500 --seconds 4 --warm-up 0 --sockets 1 --mix get=1";
        let load = load(&address, line).spawn().unwrap();
        let start = Instant::now();
        while asked.load(SeqCst) < 200 {
            assert!(start.elapsed() < PATIENCE, "the load did not start");
            thread::sleep(Duration::from_millis(1));
        }
        let agent = served.agent.as_ref().unwrap();
        agent.signal(Signal::STOP);
        let stopped = Instant::now();
        thread::sleep(Duration::from_millis(500));
        // The agent may be stopped for longer, if this thread waits for a CPU, but not for less.
        let stopped = stopped.elapsed();
        agent.signal(Signal::CONT);
        (stopped, object(&load.wait_with_output().unwrap()))
    });
    let (stopped, told) = told;
    let result = &told["result"];
    let class = &result["point"]["classes"][0];
    let latencies = decode(class["histogram"].as_str().unwrap()).unwrap();
    let sent = result["point"]["sent"].as_u64().unwrap();
    assert_eq!(result["ends"]["executed"], serde_json::json!({ "OK": sent }), "{result}");
    let slow = latencies.count_between(SLOW.as_nanos() as u64, u64::MAX / 2) as f64;
    // Requests due until SLOW before the agent continues: about 225, less five standard deviations of a Poisson process.
    let expected = RATE * (stopped - SLOW).as_secs_f64();
    assert!(slow > expected - 5.0 * expected.sqrt(), "{slow} of {sent}, expected {expected}");
    assert!(latencies.max() as u128 > stopped.as_nanos() * 9 / 10, "{}", latencies.max());
    // The agent hands over several of the requests that waited for it at once.
    assert!(result["open_at_host"].as_f64().unwrap() > 0.0, "{result}");
}

/// Host and agent are killed ten times each while clients retry unanswered requests.
#[test]
fn puts_execute_at_most_once_when_host_and_agent_are_killed() {
    const KILLS: u32 = 10;
    let mut served = Served::start();
    let (puts, address) = (served.file("puts"), served.address.clone());
    let is_over = AtomicBool::new(false);
    let (mut executed_ok, mut unknown, mut retries) = (0, 0, 0);
    thread::scope(|scope| {
        let ends = SetAtEnd(&is_over);
        let is_over = &is_over;
        let loads = scope.spawn(move || {
            let mut all = Vec::new();
            for seed in 1.. {
                if is_over.load(SeqCst) {
                    break;
                }
                let line = format!(
                    "--rate 400 --seconds 2 --warm-up 0 --mix get=1,put=3 --retry-ms 20 --seed {seed}"
                );
                all.push(load(&address, &line).output().unwrap());
            }
            all
        });
        for kill in 0..2 * KILLS {
            more_are_executed(&puts);
            match kill % 2 {
                0 => served.start_agent(),
                _ => served.start_host(),
            }
        }
        more_are_executed(&puts);
        drop(ends);
        for output in loads.join().unwrap() {
            let told = object(&output);
            let ends = &told["result"]["ends"];
            assert_eq!(ends["wrong"], 0, "{ends}");
            executed_ok += ends["executed"]["OK"].as_u64().unwrap_or(0);
            unknown += ends["outcome_unknown"].as_u64().unwrap();
            retries += ends["retries"].as_u64().unwrap();
        }
    });
    let text = fs::read_to_string(&puts).unwrap();
    let mut executed = HashSet::new();
    let twice = text.lines().filter(|key| !executed.insert(*key)).count();
    println!(
        "{executed_ok} executed, {unknown} of unknown outcome, {retries} sent again, {twice} PUTs twice"
    );
    assert_eq!(twice, 0);
    assert!(retries > 0, "a kill was not noticed");
}

/// Waits until fifty more PUTs were executed.
fn more_are_executed(puts: &Path) {
    let bytes = || fs::metadata(puts).map_or(0, |file| file.len());
    let (before, start) = (bytes(), Instant::now());
    // A line has a key of ten digits or more.
    while bytes() < before + 50 * 11 {
        assert!(start.elapsed() < PATIENCE, "clients make no progress");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn unreachable_front_and_bad_arguments_are_reported() {
    let nobody = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let output = load(&nobody, "--rate 10 --seconds 1").output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.stdout.is_empty() && text.contains("does `wave agent"), "{text}");
    for (line, named) in [
        ("--rate 0", "--rate"),
        ("--rate -5", "expected a number per second"),
        ("--rate 1 --mix get", "KIND=NUMBER"),
        ("--rate 1 --queue-target 16 --retry-ms 0", "needs --retry-ms above 0"),
    ] {
        let output = load(&nobody, line).stderr(Stdio::piped()).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains(named), "{text}");
    }
}

/// Ctrl-C ends an hour's load, which prints its result so far.
#[test]
fn interrupted_load_prints_its_result() {
    let served = Served::start();
    let (asked, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (address, run) = relay(&served.address, &asked, &is_over);
    let output = thread::scope(|scope| {
        scope.spawn(run);
        let _ends = SetAtEnd(&is_over);
        let load =
            load(&address, "--rate 500 --seconds 3600 --warm-up 0 --sockets 1").spawn().unwrap();
        let start = Instant::now();
        while asked.load(SeqCst) < 200 {
            assert!(start.elapsed() < PATIENCE, "the load did not start");
            thread::sleep(Duration::from_millis(1));
        }
        kill_process(Pid::from_child(&load), Signal::INT).unwrap();
        load.wait_with_output().unwrap()
    });
    let result = &object(&output)["result"];
    let sent = result["point"]["sent"].as_u64().unwrap();
    assert_eq!(result["ends"]["executed"], serde_json::json!({ "OK": sent }), "{result}");
    assert!(sent > 100 && result["point"]["duration_s"].as_f64().unwrap() < 3_600.0, "{result}");
    // Every other request was timed.
    let at_front = result["at_front"][0]["latency"]["count"].as_u64().unwrap();
    assert!((sent / 3..sent).contains(&at_front), "{at_front} of {sent}");
}

/// The server has 1,000 keys.
#[test]
fn keys_that_the_server_lacks_fail_the_load() {
    let served = Served::start();
    let line = format!("load udp --target {} --keys 100000 --rate 200 --seconds 1", served.address);
    let output = wave(&line).stderr(Stdio::piped()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("GETs found no key") && text.contains("100000 (--keys)"), "{text}");
}

/// `wave serve kv` and `wave agent --udp-memcached`, from the command line.
#[test]
fn store_is_served_to_memcacheds_clients() {
    let mut served = Served::without_agent();
    let (socket, address) = (served.file("kv"), served.address.clone());
    let line = format!(
        "agent --rpc {} --udp {address} --udp-memcached 127.0.0.0/8,::1 --share-cpu --quiet",
        socket.display()
    );
    served.agent = Some(Running::start(&line));
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(&address).unwrap();
    client.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let start = Instant::now();
    let mut request = 0u16;
    let mut ask = |text: &[u8]| {
        request += 1;
        let id = request.to_be_bytes();
        let datagram = [&id[..], &[0, 0, 0, 1, 0, 0], text].concat();
        loop {
            assert!(start.elapsed() < PATIENCE, "no answer to {}", text.escape_ascii());
            // The front may not listen yet, and then it has no host for a while.
            let _ = client.send(&datagram);
            let mut buffer = [0; 1500];
            let Ok(bytes) = client.recv(&mut buffer) else { continue };
            // Other datagrams answer earlier tries.
            if buffer[..8] == datagram[..8] && !buffer[8..].starts_with(b"SERVER_ERROR no host") {
                return buffer[8..bytes].to_vec();
            }
        }
    };
    assert_eq!(ask(b"get 123456789\r\n"), b"END\r\n");
    assert_eq!(ask(b"set 123456789 0 0 5\r\nhello\r\n"), b"STORED\r\n");
    assert_eq!(ask(b"get 123456789\r\n"), b"VALUE 123456789 0 5\r\nhello\r\nEND\r\n");
    // One of the store's initial values.
    let filled = ask(b"get 7\r\n");
    assert!(filled.starts_with(b"VALUE 7 0 64\r\n\x07\0\0\0"), "{}", filled.escape_ascii());
    assert_eq!(ask(b"delete 123456789\r\n"), b"DELETED\r\n");
    assert_eq!(ask(b"delete 123456789\r\n"), b"NOT_FOUND\r\n");
    let decimal = b"CLIENT_ERROR a key of this store is a decimal number\r\n";
    for key in ["key", "07", "+7", "99999999999999999999"] {
        assert_eq!(ask(format!("get {key}\r\n").as_bytes()), decimal, "{key}");
    }
    let flags = b"CLIENT_ERROR this store keeps no flags and no expiry times\r\n";
    assert_eq!(ask(b"set 7 1 0 1\r\nx\r\n"), flags);
    assert_eq!(ask(b"set 7 0 60 1\r\nx\r\n"), flags);
}

#[test]
fn lists_for_memcached_are_checked() {
    for (list, code, named) in [
        ("10.0.0.0/40", 2, "10.1.0.0/16"),
        ("0.0.0.0/0", 2, "--udp-public"),
        ("", 2, "--udp-memcached"),
    ] {
        let line =
            ["agent", "--rpc", "/nonexistent", "--udp", "127.0.0.1:0", "--udp-memcached", list];
        let mut command = wave("");
        let output = command.args(line).stderr(Stdio::piped()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{list}: {text}");
        assert!(text.contains(named), "{list}: {text}");
    }
}

/// A short run of `wave fuzz udp`.
#[test]
fn flood_of_datagrams_causes_no_crash_and_no_failed_request() {
    if wave_process::cpus::allowed().unwrap().len() < 2 {
        return wave_skip::skip("wave fuzz udp: it needs two CPUs");
    }
    let mut command = wave("fuzz udp --datagrams 20000 --rate 10000 --json");
    let output = command.stderr(Stdio::piped()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let found = object(&output);
    for nothing in ["crashes", "good_failed"] {
        assert_eq!(found[nothing], 0, "{found}");
    }
    assert!(found["sent"]["mutated"].as_u64().unwrap() > 9_000, "{found}");
    assert!(found["good_p99_ratio"].as_f64().unwrap() > 0.0, "{found}");
}

/// Sets the flag on drop, also after a failed assertion, so that the threads of a scope end.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

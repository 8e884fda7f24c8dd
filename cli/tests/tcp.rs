//! `wave tcp up`, `wave serve http` and `wave serve echo`, with Linux's TCP at the other end, in a network namespace per test.

use std::fs::{File, Permissions};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use pcap_file::pcapng::blocks::interface_statistics::InterfaceStatisticsOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use rand::{Rng, RngCore, SeedableRng};
use rand_pcg::Pcg32;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketType, sockopt};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{Uid, set_thread_res_uid};
use serde_json::Value;
use tempfile::TempDir;
use wave_front_tcp::{captures_path, traces_path};
use wave_posix::Toe;

/// Long enough for any machine; a test that waits longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);
const AGENT: [u8; 4] = [10, 77, 0, 2];
const MIB: usize = 1 << 20;

/// Runs a test in an empty network namespace, or skips it.
fn in_a_network(test: impl FnOnce() + Send + 'static) {
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

fn wave(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wave"));
    command.args(line.split_whitespace()).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A process, killed on drop.
struct Running(Child);

impl Running {
    /// Starts `wave` with these arguments, and waits for its first line.
    fn start(line: &str) -> Running {
        let mut child = wave(line).spawn().expect("wave can be run");
        let mut first = String::new();
        let out = child.stdout.as_mut().expect("it is piped");
        BufReader::new(out).read_line(&mut first).unwrap();
        if first.is_empty() {
            panic!("{line}: {:?}", child.wait_with_output());
        }
        Running(child)
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    fn ended(&mut self) -> (Option<i32>, String) {
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

struct Up {
    folder: TempDir,
    agent: Option<Running>,
    options: &'static str,
}

impl Up {
    fn new() -> Up {
        Up::with("")
    }

    /// Starts an agent with more options.
    fn with(options: &'static str) -> Up {
        let mut up = Up { folder: tempfile::tempdir().unwrap(), agent: None, options };
        up.start();
        up
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("toe.sock")
    }

    fn start(&mut self) {
        let socket = self.socket();
        let line = format!(
            "tcp up --tap wavetoe0 --address 10.77.0.2/24 --persistent --socket {} {}",
            socket.display(),
            self.options
        );
        self.agent = Some(Running::start(&line));
    }

    fn serve(&self, what: &str) -> Running {
        Running::start(&format!("serve {what} --toe {}", self.socket().display()))
    }

    fn ss(&self) -> Value {
        ss(&self.socket())
    }
}

/// The report of the agent at this socket.
fn ss(socket: &Path) -> Value {
    let output = wave(&format!("tcp ss --json --socket {}", socket.display())).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn connect(port: u16) -> TcpStream {
    connect_to(SocketAddr::from((AGENT, port)))
}

fn connect_to(ends: SocketAddr) -> TcpStream {
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
fn get(stream: &mut TcpStream, path: &str) -> (String, Vec<u8>) {
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

#[test]
fn linux_fetches_from_a_program_without_kernel_sockets() {
    in_a_network(|| {
        let up = Up::new();
        let http = up.serve("http");
        let mut stream = connect(80);
        for path in ["/64m", "/1", "/3m"] {
            let (head, mut body) = get(&mut stream, path);
            let length: usize = head
                .lines()
                .find_map(|line| line.strip_prefix("Content-Length: "))
                .unwrap()
                .parse()
                .unwrap();
            let from = body.len();
            body.resize(length, 0);
            stream.read_exact(&mut body[from..]).unwrap();
            // A body repeats one MiB that has no shorter period.
            let first = &body[..length.min(MIB)];
            assert!(body.chunks(MIB).all(|chunk| chunk == &first[..chunk.len()]), "{path}");
            assert!(length < MIB || first[..MIB / 2] != first[MIB / 2..]);
        }
        let report = up.ss();
        let sockets = report["sockets"].as_array().unwrap();
        let open = sockets.iter().find(|socket| socket["state"] == "ESTAB").unwrap();
        assert_eq!(open["pid"], http.0.id());
        assert!(open["bytes_acked"].as_u64().unwrap() > 67 * MIB as u64 - MIB as u64);
        match curl("http://10.77.0.2/1g") {
            Some(output) => assert_eq!(String::from_utf8_lossy(&output.stdout), "1073741824"),
            None => wave_skip::skip("curl is not installed"),
        }
    });
}

/// Sends an ICMPv6 echo request from Linux, and waits for the reply.
fn ping(whom: SocketAddr) {
    const REQUEST: u8 = 128;
    const REPLY: u8 = 129;
    let echo = |kind| [kind, 0, 0, 0, 0, 7, 0, 1, b'w', b'a', b'v', b'e'];
    let family = AddressFamily::INET6;
    let raw = net::socket(family, SocketType::RAW, Some(net::ipproto::ICMPV6)).unwrap();
    sockopt::set_socket_timeout(&raw, sockopt::Timeout::Recv, Some(PATIENCE)).unwrap();
    // Linux computes the checksum.
    net::sendto(&raw, &echo(REQUEST), SendFlags::empty(), &SocketAddr::new(whom.ip(), 0)).unwrap();
    let mut bytes = [0; 64];
    // The raw socket also receives neighbour discovery.
    loop {
        let (count, _) = net::recv(&raw, &mut bytes, RecvFlags::empty()).unwrap();
        if bytes[0] == REPLY {
            assert_eq!(bytes[4..count], echo(REPLY)[4..]);
            return;
        }
    }
}

/// With IPv6 beside IPv4: Linux fetches, pings, and accepts connections.
#[test]
fn linux_reaches_the_ipv6_address_and_is_reached_from_it() {
    in_a_network(|| {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("toe.sock");
        let path = socket.display();
        let homes = "--address 10.77.0.2/24 --address fd77::2/64";
        let _agent = Running::start(&format!("tcp up --tap wavetoe6 {homes} --socket {path}"));
        let _http = Running::start(&format!("serve http --toe {path}"));
        let ours: SocketAddr = "[fd77::2]:80".parse().unwrap();
        let mut stream = connect_to(ours);
        let (head, body) = get(&mut stream, "/1");
        assert!(head.starts_with("HTTP/1.1 200") && body.len() <= 1, "{head}");
        // The same listener accepts over IPv4.
        let mut other = connect_to(SocketAddr::from((AGENT, 80)));
        assert!(get(&mut other, "/1").0.starts_with("HTTP/1.1 200"));
        match curl("http://[fd77::2]/64m") {
            Some(output) => assert_eq!(String::from_utf8_lossy(&output.stdout), "67108864"),
            None => wave_skip::skip("curl is not installed"),
        }
        ping(ours);
        let line = wave(&format!("tcp ss --json --socket {path}")).output().unwrap();
        let report: Value = serde_json::from_slice(&line.stdout).unwrap();
        let sockets = report["sockets"].as_array().unwrap();
        let local = |socket: &Value| socket["local"].as_str().unwrap().to_owned();
        assert!(sockets.iter().any(|socket| local(socket) == "[fd77::2]:80"), "{report}");

        // Linux does not bind an address during duplicate address detection.
        let start = Instant::now();
        let listener = loop {
            match TcpListener::bind("[fd77::1]:9") {
                Ok(listener) => break listener,
                Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
            }
            thread::sleep(Duration::from_millis(10));
        };
        let toe = Toe::connect(&socket).unwrap();
        let remote = listener.local_addr().unwrap();
        let mut called = toe.connect_stream(remote, Some(PATIENCE)).unwrap();
        let (mut answering, peer) = listener.accept().unwrap();
        assert_eq!(peer.ip(), ours.ip());
        called.write_all(b"out over IPv6").unwrap();
        called.flush().unwrap();
        let mut bytes = [0; 13];
        answering.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"out over IPv6");
    });
}

/// Fetches `url` with curl; None if curl is not installed.
fn curl(url: &str) -> Option<Output> {
    let arguments = ["-sS", "-o", "/dev/null", "-w", "%{size_download}", url];
    let output = Command::new("curl").args(arguments).output().ok()?;
    assert!(output.status.success(), "{output:?}");
    Some(output)
}

/// Runs ip(8) in the calling thread's network.
fn ip(line: &str) {
    let output = Command::new("ip").args(line.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "ip {line}: {output:?}");
}

/// Runs a test at one end of a veth pair. The other end has an agent, beside the kernel's own address.
fn at_a_cable(test: impl FnOnce(&PathBuf, Running) + Send + 'static) {
    at_a_cable_with("", test);
}

/// The same with more options of the agent.
fn at_a_cable_with(options: &'static str, test: impl FnOnce(&PathBuf, Running) + Send + 'static) {
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

#[test]
fn linux_fetches_over_veth_from_an_address_beside_the_kernels_own() {
    at_a_cable(|socket, _agent| {
        let _http = Running::start(&format!("serve http --toe {}", socket.display()));
        let mut stream = connect(80);
        let (head, body) = get(&mut stream, "/3m");
        assert!(head.contains("Content-Length: 3145728"), "{head}");
        let mut rest = vec![0; 3 * MIB - body.len()];
        stream.read_exact(&mut rest).unwrap();
        let all = [body, rest].concat();
        assert!(all.chunks(MIB).all(|chunk| chunk == &all[..MIB]));
        // The kernel answers at its own address at that end.
        let refused = TcpStream::connect_timeout(&SocketAddr::from(([10, 77, 0, 3], 80)), PATIENCE);
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionRefused);
        match curl("http://10.77.0.2/1g") {
            Some(output) => assert_eq!(String::from_utf8_lossy(&output.stdout), "1073741824"),
            None => wave_skip::skip("curl is not installed"),
        }
    });
}

#[test]
fn kernel_spreads_connections_over_the_flow_groups_of_an_interface() {
    at_a_cable_with("--groups 3", |socket, _agent| {
        let _echo = Running::start(&format!("serve echo --toe {}", socket.display()));
        drop(connect(7));
        let clients: Vec<_> = (0..6).map(|seed| thread::spawn(move || exchange(seed))).collect();
        clients.into_iter().for_each(|client| client.join().unwrap());
        let counters = ss(socket)["counters"].clone();
        assert_eq!((&counters["PassiveOpens"], &counters["EstabResets"]), (&7.into(), &0.into()));
        // The kernel's program and the agent agree on the group of each segment.
        assert_eq!(counters["packets_astray"], 0, "{counters}");
    });
}

#[test]
fn agent_whose_interface_is_deleted_exits_with_an_error() {
    at_a_cable(|_, mut agent| {
        ip("link delete wavetoe0");
        let (code, said) = agent.ended();
        assert!(code == Some(3) && said.contains("wavetoe1 was deleted"), "{said}");
    });
}

#[test]
fn address_of_another_host_is_refused() {
    at_a_cable(|_, _agent| {
        // The agent at the other end has .2, and its kernel has .3.
        for taken in ["10.77.0.2", "10.77.0.3"] {
            let line = format!("tcp up --interface wavetoe0 --address {taken}/24 --quiet");
            let output = wave(&line).output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(3), "{said}");
            assert!(said.contains(&format!("{taken} is taken: on wavetoe0, the host ")), "{said}");
        }
        ip("tuntap add dev wavetoe2 mode tap");
        let output = wave("tcp up --tap wavetoe2 --address 10.78.0.2/24").output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.code() == Some(3) && said.contains("sudo ip link set dev wavetoe2 up"),
            "{said}"
        );
    });
}

#[test]
fn network_of_another_interface_is_refused() {
    in_a_network(|| {
        if Command::new("ip").arg("-V").output().is_err() {
            return wave_skip::skip("ip(8) is not installed: apt-get install iproute2");
        }
        let _up = Up::new();
        let is_refused = |more: &str| {
            let line = format!("tcp up --tap wavetoe1 --address 10.77.0.3/24 {more}");
            let output = wave(&line).output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(
                output.status.code() == Some(3) && said.contains("in a network of wavetoe0"),
                "{said}"
            );
        };
        // The first refusal leaves no device behind.
        is_refused("--persistent");
        is_refused("--persistent");
        ip("tuntap add dev wavetoe1 mode tap");
        ip("link set dev wavetoe1 up");
        ip("address add 10.77.0.9/24 dev wavetoe1");
        is_refused("");
    });
}

#[test]
fn unusable_interfaces_are_refused_with_a_remedy() {
    in_a_network(|| {
        if Command::new("ip").arg("-V").output().is_err() {
            return wave_skip::skip("ip(8) is not installed: apt-get install iproute2");
        }
        ip("link add wavetoe0 type veth peer name wavetoe1");
        let refusal = |more: &str| {
            let output = wave(&format!("tcp up --address 10.77.0.2/24 {more}")).output().unwrap();
            (output.status.code(), String::from_utf8(output.stderr).unwrap())
        };
        let (code, said) = refusal("--interface wavetoe9");
        assert!(code == Some(3) && said.contains("ip link"), "{said}");
        let (code, said) = refusal("--interface wavetoe0");
        assert!(code == Some(3) && said.contains("ip link set dev wavetoe0 up"), "{said}");
        ip("link set wavetoe0 up mtu 68");
        let (code, said) = refusal("--interface wavetoe0");
        assert!(code == Some(3) && said.contains("mtu 1500"), "{said}");
        ip("link set wavetoe0 mtu 1500");
        std::fs::write("/proc/sys/net/ipv4/conf/wavetoe0/proxy_arp", "1").unwrap();
        let (code, said) = refusal("--interface wavetoe0");
        assert!(code == Some(3) && said.contains("sudo sysctl -w"), "{said}");
        ip("address add 10.77.0.2/24 dev wavetoe0");
        let (code, said) = refusal("--interface wavetoe0");
        assert!(code == Some(3) && said.contains("of a Linux interface"), "{said}");
        let (code, said) = refusal("--interface wavetoe0 --tap wavetoe5");
        assert!(code == Some(2) && said.contains("--tap"), "{said}");
    });
}

#[test]
fn bytes_go_both_ways_on_many_connections_at_once() {
    in_a_network(|| go_both_ways(&Up::new()));
}

#[test]
fn bytes_go_both_ways_on_connections_of_several_flow_groups() {
    in_a_network(|| {
        let up = Up::with("--groups 3");
        go_both_ways(&up);
        let report = up.ss();
        assert_eq!(report["groups"], 3);
        // Linux learns from the SYN-ACK to which queue the next frame of a connection goes.
        let count = |name: &str| report["counters"][name].as_u64().unwrap();
        assert!(count("packets_astray") < count("InSegs") / 20, "{report}");
    });
}

fn go_both_ways(up: &Up) {
    let _echo = up.serve("echo");
    drop(connect(7));
    // Threads inherit the network namespace of the thread that starts them.
    let clients: Vec<_> = (0..10).map(|seed| thread::spawn(move || exchange(seed))).collect();
    for client in clients {
        client.join().unwrap();
    }
    let counters = up.ss()["counters"].clone();
    assert_eq!(counters["PassiveOpens"], 11);
    assert_eq!(counters["EstabResets"], 0, "{counters}");
}

/// Sends a random stream in random pieces, and expects the same bytes back.
fn exchange(seed: u64) {
    let mut rng = Pcg32::seed_from_u64(seed);
    let mut sent = vec![0; rng.random_range(1..3 * MIB)];
    rng.fill_bytes(&mut sent);
    let stream = connect(7);
    let mut reader = stream.try_clone().unwrap();
    let back = thread::spawn(move || {
        let mut back = Vec::new();
        let mut bytes = vec![0; 100_000];
        loop {
            let most = rng.random_range(1..bytes.len());
            match reader.read(&mut bytes[..most]).unwrap() {
                0 => return back,
                count => back.extend_from_slice(&bytes[..count]),
            }
        }
    });
    let mut left = &sent[..];
    let mut sizes = Pcg32::seed_from_u64(seed + 1000);
    while !left.is_empty() {
        let (now, later) = left.split_at(sizes.random_range(1..=50_000).min(left.len()));
        (&stream).write_all(now).unwrap();
        left = later;
    }
    stream.shutdown(Shutdown::Write).unwrap();
    assert!(back.join().unwrap() == sent, "seed {seed}: wrong bytes came back");
}

#[test]
fn killed_program_loses_its_connections_and_others_keep_theirs() {
    for options in ["", "--groups 2"] {
        in_a_network(move || lose_a_program(&Up::with(options)));
    }
}

fn lose_a_program(up: &Up) {
    let (http, _echo) = (up.serve("http"), up.serve("echo"));
    let (mut doomed, mut other) = (connect(80), connect(7));
    let (_, body) = get(&mut doomed, "/1g");
    http.kill();
    let mut bytes = vec![0; MIB];
    let mut came = body.len();
    let end = loop {
        match doomed.read(&mut bytes) {
            Ok(0) => break None,
            Ok(count) => came += count,
            Err(error) => break Some(error.kind()),
        }
    };
    assert!(matches!(end, None | Some(ErrorKind::ConnectionReset)), "{end:?}");
    assert!(came < 1 << 30);
    other.write_all(b"still here").unwrap();
    other.read_exact(&mut bytes[..10]).unwrap();
    assert_eq!(&bytes[..10], b"still here");
    // Its port is free again.
    let _http = up.serve("http");
    assert!(get(&mut connect(80), "/").0.starts_with("HTTP/1.1 200"));
}

#[test]
fn programs_of_a_killed_agent_end_and_the_next_agent_resets_unknown_connections() {
    in_a_network(|| {
        let mut up = Up::new();
        let mut http = up.serve("http");
        let mut stream = connect(80);
        assert!(get(&mut stream, "/").0.starts_with("HTTP/1.1 200"));
        up.agent.take().unwrap().kill();
        let (code, said) = http.ended();
        assert_eq!(code, Some(3), "{said}");
        assert!(said.contains("the agent has gone"), "{said}");
        up.start();
        let _http = up.serve("http");
        // The reset may come only after the first write.
        let end = Instant::now() + PATIENCE;
        let kind = loop {
            assert!(Instant::now() < end, "an unknown connection is not reset");
            let mut byte = [0];
            let tried = stream.write_all(b"GET").and_then(|()| {
                stream.set_read_timeout(Some(Duration::from_millis(200)))?;
                stream.read_exact(&mut byte)
            });
            match tried {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => break error.kind(),
                Ok(()) => panic!("no process can have answered"),
            }
        };
        assert!(matches!(kind, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{kind:?}");
        assert!(get(&mut connect(80), "/").0.starts_with("HTTP/1.1 200"));
    });
}

#[test]
fn agent_that_exits_resets_its_connections() {
    for options in ["", "--groups 2"] {
        in_a_network(move || reset_at_exit(Up::with(options)));
    }
}

fn reset_at_exit(mut up: Up) {
    let _echo = up.serve("echo");
    let mut stream = connect(7);
    stream.write_all(b"hello").unwrap();
    stream.read_exact(&mut [0; 5]).unwrap();
    let mut agent = up.agent.take().unwrap();
    kill_process(Pid::from_child(&agent.0), Signal::TERM).unwrap();
    assert_eq!(agent.ended().0, Some(0));
    assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn capture_has_the_frames_of_a_port_and_is_refused_to_other_users() {
    in_a_network(|| {
        let up = Up::new();
        let (_http, _echo) = (up.serve("http"), up.serve("echo"));
        drop(connect(7));
        let file = up.folder.path().join("toe.pcapng");
        let socket = up.socket().display().to_string();
        let line = format!("tcp capture --port 80 --socket {socket} --write {}", file.display());
        let mut capture = wave(&line).spawn().unwrap();
        let mut said = BufReader::new(capture.stderr.take().unwrap()).lines();
        assert!(said.next().unwrap().unwrap().starts_with("Capturing to"));
        let (_, body) = get(&mut connect(80), "/1");
        assert!(body.len() <= 1);
        drop(connect(7));
        // A request, its answer, and the segments that open and close the connection.
        let end = Instant::now() + PATIENCE;
        while up.ss()["captured"]["frames"].as_u64().unwrap() < 6 {
            assert!(Instant::now() < end, "{}", up.ss());
        }
        kill_process(Pid::from_child(&capture), Signal::INT).unwrap();
        assert!(capture.wait().unwrap().success());
        let last = said.next().unwrap().unwrap();
        assert!(last.ends_with("frames captured, none dropped"), "{last}");
        let bytes = std::fs::read(&file).unwrap();
        let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
        let (mut frames, mut dropped) = (0, None);
        while let Some(block) = reader.next_block() {
            match block.unwrap() {
                Block::EnhancedPacket(packet) => {
                    let port = |at| u16::from_be_bytes([packet.data[at], packet.data[at + 1]]);
                    assert!(port(34) == 80 || port(36) == 80, "{:?}", packet.data);
                    frames += 1;
                }
                Block::InterfaceStatistics(statistics) => {
                    let [InterfaceStatisticsOption::IsbIfDrop(count)] = statistics.options[..]
                    else {
                        panic!("{:?}", statistics.options);
                    };
                    dropped = Some(count);
                }
                _ => {}
            }
        }
        assert!(last.starts_with(&format!("{frames} ")) && frames >= 6, "{last}");
        assert_eq!(dropped, Some(0));

        is_closed_to_strangers(&up, captures_path(&up.socket()));
    });
}

/// Asserts that another user gets nothing from this socket, even with permission to open it.
fn is_closed_to_strangers(up: &Up, socket: PathBuf) {
    for (path, mode) in [(up.folder.path(), 0o755), (&*socket, 0o666)] {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    let stranger = thread::spawn(move || {
        let nobody = Uid::from_raw(65_534);
        set_thread_res_uid(nobody, nobody, nobody).unwrap();
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let _ = stream.write_all(b"{}\n");
        let mut came = Vec::new();
        let _ = stream.read_to_end(&mut came);
        came
    });
    assert!(stranger.join().unwrap().is_empty());
}

#[test]
fn trace_has_the_events_of_connections_and_is_refused_to_other_users() {
    in_a_network(|| {
        let up = Up::new();
        let _http = up.serve("http");
        let path = up.socket();
        let line = format!("tcp trace --json --socket {}", path.display());
        let mut trace = wave(&line).spawn().unwrap();
        let mut lines = BufReader::new(trace.stdout.take().unwrap()).lines();
        let (sender, receiver) = std::sync::mpsc::channel();
        let reader = thread::spawn(move || {
            let mut points = Vec::new();
            while let Some(Ok(line)) = lines.next() {
                let record: Value = serde_json::from_str(&line).unwrap();
                points.push(record["point"].as_str().unwrap().to_owned());
                let _ = sender.send(());
            }
            points
        });
        // Nothing is traced until the points are on.
        let end = Instant::now() + PATIENCE;
        let mut is_on = false;
        while !is_on {
            assert!(Instant::now() < end, "{}", up.ss());
            get(&mut connect(80), "/1");
            is_on = receiver.recv_timeout(Duration::from_millis(100)).is_ok();
        }
        let mut stream = connect(80);
        let (_, body) = get(&mut stream, "/3m");
        stream.read_exact(&mut vec![0; 3 * MIB - body.len()]).unwrap();
        drop(stream);
        let flow = up.ss()["sockets"].to_string();
        kill_process(Pid::from_child(&trace), Signal::INT).unwrap();
        assert!(trace.wait().unwrap().success(), "{flow}");
        let points = reader.join().unwrap();
        let mut said = String::new();
        trace.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        let last = said.lines().last().unwrap();
        assert!(last.starts_with(&format!("{} records, ", points.len())), "{last}");
        for point in [
            "packet",
            "syn_received",
            "syn_sent",
            "established",
            "segment",
            "in_order",
            "request",
            "data_sent",
            "acknowledged",
            "acknowledgement_said",
            "sent",
            "copy_begins",
            "copied",
            "notified",
            "window",
        ] {
            assert!(points.iter().any(|one| one == point), "{point} is not among {points:?}");
        }
        let only =
            format!("tcp trace --json --point syn_received --count 1 --socket {}", path.display());
        let only = wave(&only).spawn().unwrap();
        while Instant::now() < end && !kill_is_over(&only) {
            get(&mut connect(80), "/1");
        }
        let only = only.wait_with_output().unwrap();
        let text = String::from_utf8(only.stdout).unwrap();
        let record: Value = serde_json::from_str(text.trim()).unwrap();
        assert_eq!(record["point"], "syn_received");
        is_closed_to_strangers(&up, traces_path(&path));
    });
}

/// Whether a process has ended and waits to be reaped.
fn kill_is_over(child: &Child) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
    stat.rsplit(')').next().is_none_or(|rest| rest.trim_start().starts_with('Z'))
}

/// A counter of this network namespace in /proc/net/netstat.
fn linux_counts(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/netstat").unwrap();
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
    let found = lines.chunks(2).find_map(|pair| {
        let at = pair[0].iter().position(|one| *one == name)?;
        pair[1][at].parse().ok()
    });
    found.unwrap_or_else(|| panic!("this kernel does not count {name}"))
}

/// Waits until an agent has `count` established connections, and returns whether each has ECN.
fn have_ecn(up: &Up, count: usize) -> Vec<bool> {
    let end = Instant::now() + PATIENCE;
    loop {
        // A report may be slightly old.
        let report = up.ss();
        let sockets = report["sockets"].as_array().unwrap().iter();
        let open = sockets.filter(|socket| socket["state"] == "ESTAB");
        let found: Vec<_> = open.map(|socket| socket["ecn"].as_bool().unwrap()).collect();
        if found.len() == count {
            return found;
        }
        assert!(Instant::now() < end, "{report}");
    }
}

/// RFC 3168 and RFC 8257 with Linux: either side asks, and data may be marked.
#[test]
fn dctcp_negotiates_ecn_with_linux_in_both_directions() {
    in_a_network(|| {
        std::fs::write("/proc/sys/net/ipv4/tcp_ecn", "1").unwrap();
        let up = Up::with("--congestion dctcp");
        assert_eq!(up.ss()["congestion"], "dctcp");
        let _echo = up.serve("echo");
        let mut stream = connect(7);
        stream.write_all(b"four").unwrap();
        stream.read_exact(&mut [0; 4]).unwrap();
        assert_eq!(have_ecn(&up, 1), [true], "Linux requests ECN");
        assert!(linux_counts("InECT0Pkts") > 0, "our data is ECN-capable");

        let listener = TcpListener::bind("10.77.0.1:9").unwrap();
        let toe = Toe::connect(up.socket()).unwrap();
        let remote = listener.local_addr().unwrap();
        let mut called = toe.connect_stream(remote, Some(PATIENCE)).unwrap();
        let (mut answering, _) = listener.accept().unwrap();
        called.write_all(b"four").unwrap();
        toe.flush();
        answering.read_exact(&mut [0; 4]).unwrap();
        assert_eq!(have_ecn(&up, 2), [true, true], "the agent requests ECN");
    });
}

#[test]
fn congestion_marks_on_packets_from_linux_are_echoed() {
    in_a_network(|| {
        std::fs::write("/proc/sys/net/ipv4/tcp_ecn", "1").unwrap();
        let up = Up::with("--congestion dctcp");
        let _echo = up.serve("echo");
        let mut stream = connect(7);
        // Linux's end marks a tenth of the packets that it sends.
        let netem = "qdisc add dev wavetoe0 root netem loss 10% ecn".split(' ');
        match Command::new("tc").args(netem).output() {
            Ok(output) if output.status.success() => {}
            other => return wave_skip::skip(format!("tc with netem marks packets: {other:?}")),
        }
        let mut writing = stream.try_clone().unwrap();
        let bytes = 4 * MIB;
        let writer = thread::spawn(move || writing.write_all(&vec![7; bytes]).unwrap());
        stream.read_exact(&mut vec![0; bytes]).unwrap();
        writer.join().unwrap();
        assert!(linux_counts("TCPDeliveredCE") > 0, "Linux gets the echoed marks");
    });
}

/// A reader of the code found that requests in the queue of an exiting program were dropped: its peers read an end without bytes.
#[test]
fn bytes_written_before_a_program_exits_arrive() {
    in_a_network(|| {
        let up = Up::new();
        let agent = Pid::from_child(&up.agent.as_ref().unwrap().0);
        let toe = Toe::connect(up.socket()).unwrap();
        let listener = toe.listen("0.0.0.0:9".parse().unwrap(), 100).unwrap();
        let peers: Vec<_> = (0..60).map(|_| connect(9)).collect();
        let streams: Vec<_> = peers.iter().map(|_| listener.accept().unwrap().0).collect();
        kill_process(agent, Signal::STOP).unwrap();
        for stream in &streams {
            (&*stream).write_all(&[7; 1000]).unwrap();
        }
        drop((streams, listener, toe));
        kill_process(agent, Signal::CONT).unwrap();
        for mut peer in peers {
            let mut all = Vec::new();
            peer.read_to_end(&mut all).unwrap();
            assert_eq!(all, [7; 1000]);
        }
    });
}

#[test]
fn refusals_name_the_unavailable_resource_and_a_remedy() {
    in_a_network(|| {
        let up = Up::new();
        let refusal = |line: &str| {
            let output = wave(line).output().unwrap();
            (output.status.code(), String::from_utf8(output.stderr).unwrap())
        };
        let socket = up.socket();
        let (code, said) = refusal("tcp up --tap wavetoe0 --address 10.77.0.3/24");
        assert!(code == Some(3) && said.contains("wavetoe0"), "{said}");
        let (code, said) = refusal("tcp up --tap wavetoe1 --address 10.77.0.1/24");
        assert!(code == Some(3) && said.contains("of a Linux interface"), "{said}");
        let (code, said) = refusal("tcp up --address 10.77.0.0/24");
        assert!(code == Some(2) && said.contains("10.77.0.0"), "{said}");
        let (code, said) = refusal("tcp up --tap wavetoe1 --address 10.78.0.2/24 --mtu 68");
        assert!(code == Some(3) && said.contains("68"), "{said}");
        let (code, said) = refusal("tcp ss --socket /nowhere/toe.sock");
        assert!(code == Some(3) && said.contains("wave tcp up"), "{said}");
        let _http = up.serve("http");
        let (code, said) = refusal(&format!("serve http --toe {}", socket.display()));
        assert!(code == Some(3) && said.contains("port 80"), "{said}");
    });
}

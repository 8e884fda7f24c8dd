//! `wave tcp up`, `wave serve http` and `wave serve echo`, with Linux's TCP at the other end, in a network namespace per test.

mod network;
mod recordings;
mod refusals;

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use rand::{Rng, RngCore, SeedableRng};
use rand_pcg::Pcg32;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketType, sockopt};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use wave_posix::Toe;

use crate::network::*;

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
        // A report may be slightly old.
        let end = Instant::now() + PATIENCE;
        loop {
            let report = up.ss();
            let sockets = report["sockets"].as_array().unwrap();
            let open = sockets.iter().find(|socket| socket["state"] == "ESTAB").unwrap();
            assert_eq!(open["pid"], http.0.id());
            if open["bytes_acked"].as_u64().unwrap() > 67 * MIB as u64 - MIB as u64 {
                break;
            }
            assert!(Instant::now() < end, "{report}");
        }
        match curl("http://10.77.0.2/1g") {
            Some(output) => assert_eq!(String::from_utf8_lossy(&output.stdout), "1073741824"),
            None => wave_skip::skip("curl is not installed"),
        }
    });
}

#[test]
fn first_connections_on_the_ready_lines_are_served() {
    for options in ["", "--groups 2"] {
        in_a_network(move || {
            let up = Up::with(options);
            let _echo = up.serve("echo");
            let mut stream = TcpStream::connect((Ipv4Addr::from(AGENT), 7)).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut back = [0];
            stream.write_all(b"x").unwrap();
            stream.read_exact(&mut back).unwrap();
            assert_eq!(back, *b"x", "{options}");
        });
    }
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

/// As traceroute and resolvers expect it; the checksums of these datagrams are left to the device.
#[test]
fn datagrams_of_linux_programs_to_closed_ports_are_refused() {
    in_a_network(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("toe.sock");
        let homes = "--address 10.77.0.2/24 --address fd77::2/64";
        let up = format!("tcp up --tap wavetoe7 {homes} --socket {}", path.display());
        let _agent = Running::start(&up);
        for (own, agents) in [("0.0.0.0:0", "10.77.0.2:33434"), ("[::]:0", "[fd77::2]:33434")] {
            let program = UdpSocket::bind(own).unwrap();
            program.set_read_timeout(Some(PATIENCE)).unwrap();
            // Linux has no source address during duplicate address detection.
            let start = Instant::now();
            while let Err(error) = program.connect(agents) {
                assert!(start.elapsed() < PATIENCE, "{error}");
                thread::sleep(Duration::from_millis(10));
            }
            program.send(b"probe").unwrap();
            let answer = program.recv(&mut [0]).map_err(|error| error.kind());
            assert_eq!(answer, Err(ErrorKind::ConnectionRefused), "{agents}");
        }
    });
}

/// Fetches `url` with curl; None if curl is not installed.
fn curl(url: &str) -> Option<Output> {
    let arguments = ["-sS", "-o", "/dev/null", "-w", "%{size_download}", url];
    let output = Command::new("curl").args(arguments).output().ok()?;
    assert!(output.status.success(), "{output:?}");
    Some(output)
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
            Ok(output) => {
                let why = String::from_utf8_lossy(&output.stderr);
                return wave_skip::skip(format!("tc(8) adds no netem: {}", why.trim()));
            }
            Err(error) => return wave_skip::skip(format!("tc(8) cannot be started: {error}")),
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

//! `wave tcp run`: unmodified programs over an agent's TCP, with Linux's TCP at the other end, in a network namespace per test.

mod bursts;
mod cases;
mod changeovers;
mod deaths;
mod descriptors;
mod ends;
mod forks;
mod interruptions;
mod library;
mod limits;
mod matrix;
mod network;
mod passing;
mod prefork;
mod replacements;
mod replica;
mod sandboxes;
mod semantics;
mod sequences;
mod servers;
mod sets;
mod several;
mod sharing;
mod traced;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use wave_skip::skip;

use network::{
    AGENT, LINUX, Running, Up, connect, in_a_network, is_there, python, wave, within_patience,
};

/// Starts a redis-server over the agent or over Linux, at this address.
fn redis(up: &Up, is_over: bool, address: [u8; 4], port: u16) -> Running {
    redis_with(up, is_over, address, port, &["--loglevel", "warning"])
}

fn redis_with(up: &Up, is_over: bool, address: [u8; 4], port: u16, more: &[&str]) -> Running {
    let ip = std::net::Ipv4Addr::from(address).to_string();
    let (port, folder) = (port.to_string(), up.folder.path().to_str().unwrap());
    let (server, rdb) = (up.path("redis-server"), format!("{port}.rdb"));
    if !server.exists() {
        let found = REDIS.iter().find(|program| Path::new(program).exists()).unwrap();
        std::os::unix::fs::symlink(found, &server).unwrap();
    }
    let mut program = vec![
        server.to_str().unwrap(),
        "--bind",
        &ip,
        "--port",
        &port,
        "--protected-mode",
        "no",
        "--save",
        "",
        "--dir",
        folder,
        "--dbfilename",
        &rdb,
    ];
    program.extend(more);
    let mut command = match is_over {
        true => up.over(&program),
        false => {
            let mut command = Command::new(program[0]);
            command.args(&program[1..]);
            command
        }
    };
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    Running(child)
}

/// Runs redis-cli with these lines as input.
fn transcript(address: [u8; 4], port: u16, lines: &str) -> Output {
    let ip = std::net::Ipv4Addr::from(address).to_string();
    let mut child = Command::new("redis-cli")
        .args(["-h", &ip, "-p", &port.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// Paths of redis-server: the second is its name in Debian's redis-tools.
const REDIS: [&str; 2] = ["/usr/bin/redis-server", "/usr/bin/redis-check-rdb"];

fn has_redis() -> bool {
    let has_server = REDIS.iter().any(|program| Path::new(program).exists());
    let is_there = has_server && is_there("redis-cli", "--version");
    if !is_there {
        skip("redis is not installed: apt-get install redis-tools");
    }
    is_there
}

#[test]
fn redis_answers_over_an_agent_as_over_linux() {
    in_a_network(|| {
        if !has_redis() {
            return;
        }
        let up = Up::new();
        let (over, linux) = (redis(&up, true, AGENT, 6379), redis(&up, false, LINUX, 6380));
        connect(SocketAddr::from((AGENT, 6379)));
        connect(SocketAddr::from((LINUX, 6380)));
        let mut lines =
            String::from("PING\nSET a 1\nINCR a\nAPPEND a x\nINCR a\nGET a\nNONSENSE\n");
        for at in 0..200 {
            lines += &format!("SET key{at} {}\nRPUSH list {at} {at}\n", "v".repeat(at * 37 % 5000));
        }
        lines += "LRANGE list 0 -1\nMGET key7 key8 key199 none\nSTRLEN key133\nDBSIZE\n";
        let ours = transcript(AGENT, 6379, &lines);
        let theirs = transcript(LINUX, 6380, &lines);
        let bytes = ours.stdout.len();
        assert!(ours.status.success() && bytes > 5_000, "{bytes} bytes");
        assert!(ours.stdout == theirs.stdout, "{bytes} bytes, over Linux {}", theirs.stdout.len());
        // The bytes went over the agent.
        up.awaits("PassiveOpens", 2);

        let ip = "10.77.0.2";
        if is_there("redis-benchmark", "--version") {
            for pipeline in ["1", "16"] {
                let bench = Command::new("redis-benchmark")
                    .args([
                        "-h", ip, "-q", "-n", "5000", "-c", "50", "-P", pipeline, "-t", "get,set",
                    ])
                    .output()
                    .unwrap();
                let said = String::from_utf8_lossy(&bench.stdout);
                assert!(bench.status.success(), "{bench:?}");
                assert_eq!(said.matches("requests per second").count(), 2, "{said}");
            }
        } else {
            skip("redis-benchmark is not installed: apt-get install redis-tools");
        }

        // A child that saves the data does not touch the connections, which continue meanwhile.
        let mut busy = connect(SocketAddr::from((AGENT, 6379)));
        assert_eq!(transcript(AGENT, 6379, "BGSAVE\n").stdout, b"Background saving started\n");
        let saved = within_patience("the save", || {
            busy.write_all(b"*1\r\n$4\r\nPING\r\n").unwrap();
            let mut pong = [0; 7];
            busy.read_exact(&mut pong).unwrap();
            assert_eq!(&pong, b"+PONG\r\n");
            let about = transcript(AGENT, 6379, "INFO persistence\n").stdout;
            let about = String::from_utf8(about).unwrap();
            about.contains("rdb_bgsave_in_progress:0").then_some(about)
        });
        assert!(saved.contains("rdb_last_bgsave_status:ok"), "{saved}");
        assert!(fs::metadata(up.path("6379.rdb")).unwrap().len() > 1_000);
        up.assert_none_demoted(4);

        let saved = transcript(AGENT, 6379, "DBSIZE\n").stdout;
        // After a kill its connections end, and its port is free.
        drop(over);
        let mut rest = Vec::new();
        let _ = busy.read_to_end(&mut rest);
        let again = redis(&up, true, AGENT, 6379);
        connect(SocketAddr::from((AGENT, 6379)));
        let ours = within_patience("the data to be loaded", || {
            let size = transcript(AGENT, 6379, "DBSIZE\n").stdout;
            (!size.starts_with(b"LOADING")).then_some(size)
        });
        assert_eq!(ours, saved);
        drop((again, linux));
    });
}

#[test]
fn a_killed_agent_resets_the_connections_of_a_program() {
    in_a_network(|| {
        let Some(python) = python() else { return };
        let mut up = Up::new();
        let script = up.path("waits.py");
        let program = "import socket\n\
             s = socket.create_server(('10.77.0.2', 7000))\n\
             c, _ = s.accept()\n\
             c.sendall(b'there')\n\
             try:\n    print(c.recv(10), c.recv(10))\n\
             except ConnectionResetError as error:\n    print(error.errno)\n\
             k = socket.create_connection(('127.0.0.1', 7001))\n\
             print(k.recv(10))\n";
        fs::write(&script, program).unwrap();
        let child = up.over(&[python, script.to_str().unwrap()]).spawn().unwrap();
        let mut stream = connect(SocketAddr::from((AGENT, 7000)));
        stream.write_all(b"before").unwrap();
        let mut there = [0; 5];
        stream.read_exact(&mut there).unwrap();
        // The program has read the bytes, or will: received bytes stay readable after the agent's death.
        let local = TcpListener::bind("127.0.0.1:7001").unwrap();
        kill_process(Pid::from_child(&up.agent.0), Signal::KILL).unwrap();
        up.agent.0.wait().unwrap();
        // The kernel's sockets continue.
        local.accept().unwrap().0.write_all(b"local").unwrap();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(said, "104\nb'local'\n", "{}", String::from_utf8_lossy(&output.stderr));
    });
}

#[test]
fn tcp_info_reports_the_agents_view_of_a_connection() {
    in_a_network(|| {
        let Some(python) = python() else { return };
        let up = Up::new();
        let script = up.path("info.py");
        let program = "import socket, struct\n\
             s = socket.create_server(('10.77.0.2', 7000))\n\
             c, _ = s.accept()\n\
             c.sendall(bytes(100000))\n\
             c.recv(10)\n\
             info = c.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)\n\
             rto, _, mss = struct.unpack_from('3I', info, 8)\n\
             rtt, var, _, cwnd = struct.unpack_from('4I', info, 68)\n\
             print(info[0], rto >= 200000, 500 < mss < 1500, rtt > 0, cwnd >= 10)\n";
        fs::write(&script, program).unwrap();
        let child = up.over(&[python, script.to_str().unwrap()]).spawn().unwrap();
        let mut stream = connect(SocketAddr::from((AGENT, 7000)));
        stream.read_exact(&mut [0; 100_000]).unwrap();
        stream.write_all(b"done").unwrap();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said, "1 True True True True\n", "{errors}");
    });
}

/// Serves bytes to every client that connects, until the test ends.
fn serve_bytes(at: SocketAddr, bytes: Vec<u8>) {
    let listener = TcpListener::bind(at).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut request = [0; 4096];
            let _ = stream.read(&mut request);
            let head = format!("HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n", bytes.len());
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&bytes));
            let _ = stream.shutdown(Shutdown::Write);
            let _ = stream.read(&mut request);
        }
    });
}

#[test]
fn curl_fetches_from_linux_over_an_agent() {
    in_a_network(|| {
        if !is_there("curl", "--version") {
            return skip("curl is not installed: apt-get install curl");
        }
        let up = Up::new();
        let bytes: Vec<u8> =
            (0..5_000_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        serve_bytes(SocketAddr::from((LINUX, 8000)), bytes.clone());
        let fetched = up.over(&["curl", "-sS", "http://10.77.0.1:8000/"]).output().unwrap();
        assert!(fetched.status.success(), "{}", String::from_utf8_lossy(&fetched.stderr));
        assert!(fetched.stdout == bytes, "{} bytes", fetched.stdout.len());
        up.awaits("ActiveOpens", 1);

        // Error numbers equal Linux's, and 127.0.0.1 stays with the kernel.
        let refused = up.over(&["curl", "-sS", "http://10.77.0.1:9/"]).output().unwrap();
        assert_eq!(refused.status.code(), Some(7), "{refused:?}");
        serve_bytes(SocketAddr::from(([127, 0, 0, 1], 8001)), bytes.clone());
        let local = up.over(&["curl", "-sS", "http://127.0.0.1:8001/"]).output().unwrap();
        assert!(local.stdout == bytes);
        // The agent's own address is reached over Linux's TCP.
        let mut serve = wave();
        serve.args(["serve", "http", "--toe"]).arg(up.path("toe.sock"));
        let mut serve = Running(serve.spawn().unwrap());
        let mut first = String::new();
        BufReader::new(serve.0.stdout.as_mut().unwrap()).read_line(&mut first).unwrap();
        let own = up.over(&["curl", "-sS", "http://10.77.0.2/3m"]).output().unwrap();
        let direct = Command::new("curl").args(["-sS", "http://10.77.0.2/3m"]).output().unwrap();
        assert!(own.stdout.len() == 3 << 20 && own.stdout == direct.stdout);
    });
}

#[test]
fn server_at_an_unspecified_address_is_reached_over_agent_and_kernel() {
    in_a_network(|| {
        let Some(python) = python() else { return };
        let up = Up::new();
        let script = up.path("server.py");
        // Uses threads, a listener for both families, sendfile, and io_uring, which is refused.
        let program = "import ctypes, http.server, socket, socketserver, sys\n\
             class Server(http.server.ThreadingHTTPServer):\n    address_family = socket.AF_INET6\n\
             libc = ctypes.CDLL(None, use_errno=True)\n\
             ring = libc.syscall(425, 1, ctypes.create_string_buffer(200))\n\
             print(ring, ctypes.get_errno(), flush=True)\n\
             s = Server(('::', 8080), http.server.SimpleHTTPRequestHandler)\n\
             s.serve_forever()\n";
        fs::write(&script, program).unwrap();
        fs::write(up.path("file"), b"the same bytes").unwrap();
        let mut server = up.over(&[python, script.to_str().unwrap()]);
        server.current_dir(up.folder.path());
        let mut server = Running(server.spawn().unwrap());
        let mut first = String::new();
        BufReader::new(server.0.stdout.as_mut().unwrap()).read_line(&mut first).unwrap();
        assert_eq!(first, "-1 38\n");
        for address in ["10.77.0.2", "127.0.0.1", "10.77.0.1", "fd77::2"] {
            let mut stream = connect(SocketAddr::new(address.parse().unwrap(), 8080));
            stream.write_all(b"GET /file HTTP/1.0\r\n\r\n").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.ends_with("the same bytes"), "{address}: {answer}");
        }
        up.awaits("PassiveOpens", 2);
    });
}

#[test]
fn unsupported_programs_are_refused_with_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let refusal = |program: &Path| {
        let output =
            wave().args(["tcp", "run", "--socket", "/nowhere", "--"]).arg(program).output();
        let output = output.unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), said.lines().count()), (Some(3), 1), "{said}");
        said
    };
    assert!(refusal(Path::new("no-such-program")).contains("no program no-such-program in PATH"));
    assert!(refusal(Path::new("/etc/passwd")).contains("neither a 64-bit ELF program"));
    // A missing agent is reported only for a program that could be run.
    assert!(refusal(Path::new("true")).contains("/nowhere.ss"));
    let script = folder.path().join("script");
    fs::write(&script, "#!/usr/bin/env sh\n").unwrap();
    assert!(refusal(&script).contains("/nowhere.ss"));
    let setuid = folder.path().join("setuid");
    fs::copy("/bin/true", &setuid).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o4755);
    fs::set_permissions(&setuid, mode).unwrap();
    assert!(refusal(&setuid).contains("setuid"));

    let source = folder.path().join("main.c");
    fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let program = folder.path().join("static");
    let built = Command::new("cc").arg("-static").arg(&source).arg("-o").arg(&program).output();
    match built {
        Ok(built) if built.status.success() => {
            assert!(refusal(&program).contains("statically linked"));
        }
        _ => skip("there is no C compiler that links statically: apt-get install gcc libc6-dev"),
    }
    let source = folder.path().join("main.go");
    fs::write(&source, "package main\nfunc main() {}\n").unwrap();
    let program = folder.path().join("go");
    let mut go = Command::new("go");
    go.arg("build").arg("-o").arg(&program).arg(&source).current_dir(folder.path());
    go.env("GOCACHE", folder.path().join("cache")).env("GOFLAGS", "");
    match go.output() {
        Ok(built) if built.status.success() => assert!(refusal(&program).contains("Go program")),
        _ => skip("Go is not installed: apt-get install golang-go"),
    }
}

//! Servers whose children accept from one listener, and are replaced or killed.

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};

use crate::network::{
    AGENT, Master, PATIENCE, Running, Up, has, in_a_network, python, server, within_patience,
};

const APACHE: &str = "/usr/sbin/apache2";
const CLIENTS: usize = 8;
/// Default number of requests under load; `WAVE_REQUESTS` overrides it.
const REQUESTS: usize = 400;
/// Requests between two restarts of the server's children.
const REQUESTS_PER_RESTART: usize = 80;

/// Sends a request over a connection of its own, and returns the answer. Every error is the server's.
fn ask(port: u16, request: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(SocketAddr::from((AGENT, port))).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    answer
}

/// Asks from several clients, each of which checks its answers, and restarts the server's children meanwhile.
fn under_load(ask: impl Fn() + Sync, mut restart: impl FnMut()) {
    let requests = std::env::var("WAVE_REQUESTS").ok().and_then(|text| text.parse().ok());
    let restarts = requests.unwrap_or(REQUESTS).div_ceil(REQUESTS_PER_RESTART);
    let (stops, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let clients = [(); CLIENTS].map(|()| {
            scope.spawn(|| {
                while !stops.load(Ordering::Relaxed) {
                    ask();
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        for _ in 0..restarts {
            restart();
            let enough = answered.load(Ordering::Relaxed) + REQUESTS_PER_RESTART;
            let is_one_over = || clients.iter().any(|client| client.is_finished());
            while answered.load(Ordering::Relaxed) < enough && !is_one_over() {
                thread::yield_now();
            }
        }
        stops.store(true, Ordering::Relaxed);
        clients.into_iter().for_each(|client| client.join().unwrap());
    });
    println!("{restarts} restarts, {} requests", answered.into_inner());
}

/// Children that serve one connection after the other, replaced as the parent reads a line: the old ones finish what they have
/// accepted.
const PREFORK: &str = "import os, signal, socket, sys\n\
    s = socket.create_server(('10.77.0.2', 7000), backlog=511)\n\
    def serve():\n    \
        stop = []\n    \
        signal.signal(signal.SIGTERM, lambda *_: stop.append(1))\n    \
        signal.alarm(600)\n    \
        s.settimeout(0.2)\n    \
        while not stop:\n        \
            try:\n            c, _ = s.accept()\n        \
            except socket.timeout:\n            continue\n        \
            c.settimeout(60)\n        \
            c.sendall(c.recv(100) + b' ' + str(os.getpid()).encode())\n        \
            c.close()\n    \
        os._exit(0)\n\
    def spawn():\n    \
        child = os.fork()\n    \
        if child == 0:\n        serve()\n    \
        return child\n\
    old = []\n\
    for line in sys.stdin:\n    \
        new = [spawn() for _ in range(int(line))]\n    \
        for child in old:\n        os.kill(child, signal.SIGTERM)\n    \
        for child in old:\n        os.waitpid(child, 0)\n    \
        old = new\n    \
        print(*new, flush=True)\n\
    for child in old:\n    os.kill(child, signal.SIGKILL)\n";

/// The server, with a function that replaces its children by so many, and returns their process ids.
fn prefork(up: &Up, python: &str) -> (Running, impl FnMut(usize) -> Vec<i32>) {
    let script = up.path("prefork.py");
    fs::write(&script, PREFORK).unwrap();
    let mut command = up.over(&[python, script.to_str().unwrap()]);
    let log = fs::File::create(up.path("prefork.log")).unwrap();
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
    let mut server = Running(command.spawn().unwrap());
    let mut stdin = server.0.stdin.take().unwrap();
    let mut stdout = BufReader::new(server.0.stdout.take().unwrap());
    let replace = move |count: usize| {
        writeln!(stdin, "{count}").unwrap();
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        line.split_whitespace().map(|id| id.parse().unwrap()).collect()
    };
    (server, replace)
}

/// The child that answers.
fn answers(port: u16) -> i32 {
    let answer = String::from_utf8(ask(port, b"hi")).unwrap();
    answer.strip_prefix("hi ").unwrap().parse().unwrap()
}

#[test]
fn children_of_a_pre_forking_server_are_replaced_under_load_without_a_failed_request() {
    in_a_network(|| {
        let Some(python) = python() else { return };
        let up = Up::new();
        let (_server, mut replace) = prefork(&up, python);
        let mut all: HashSet<i32> = replace(4).into_iter().collect();
        let ask = || {
            answers(7000);
        };
        under_load(ask, || all.extend(replace(4)));
        let last: HashSet<i32> = replace(1).into_iter().collect();
        assert!(all.is_disjoint(&last) && last.contains(&answers(7000)));
    });
}

#[test]
fn connections_are_accepted_in_the_order_of_their_arrival_across_a_fork() {
    in_a_network(|| {
        let Some(python) = python() else { return };
        let up = Up::new();
        let program = "import os, signal, socket, sys\n\
             s = socket.create_server(('10.77.0.2', 7000), backlog=64)\n\
             accepted = []\n\
             def accept(count):\n    \
                 for _ in range(count):\n        accepted.append(s.accept())\n    \
                 print(*(name[1] for _, name in accepted[-count:]), flush=True)\n\
             print('up', flush=True)\n\
             children = []\n\
             for line in sys.stdin:\n    \
                 child = os.fork()\n    \
                 if child == 0:\n        signal.alarm(60)\n        signal.pause()\n    \
                 children.append(child)\n    \
                 accept(int(line))\n\
             for child in children:\n    os.kill(child, signal.SIGKILL)\n";
        let mut command = up.over(&[python, "-c", program]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut server = Running(command.spawn().unwrap());
        let mut stdin = server.0.stdin.take().unwrap();
        let mut lines = BufReader::new(server.0.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "up");
        let mut clients = Vec::new();
        let mut accepted = Vec::<u16>::new();
        for (arrive, accept) in [(7, 3), (0, 1), (6, 5), (3, 3), (0, 4)] {
            let new =
                (0..arrive).map(|_| TcpStream::connect(SocketAddr::from((AGENT, 7000))).unwrap());
            clients.extend(new);
            writeln!(stdin, "{accept}").unwrap();
            let line = lines.next().unwrap().unwrap();
            accepted.extend(line.split(' ').map(|port| port.parse::<u16>().unwrap()));
        }
        let arrived: Vec<u16> =
            clients.iter().map(|client| client.local_addr().unwrap().port()).collect();
        assert_eq!(accepted, arrived);
        // The agent's report may be of a moment ago.
        let table = within_patience("one line for the listener", || {
            let table = up.table();
            let listeners = table.lines().filter(|line| line.contains("LISTEN")).count();
            (listeners == 1).then_some(table)
        });
        assert!(table.lines().all(|line| !line.ends_with(' ')), "{table}");
        drop(stdin);
        assert!(server.0.wait().unwrap().success());
    });
}

#[test]
fn connections_wait_while_no_child_has_asked_for_one() {
    in_a_network(|| {
        let Some(python) = python() else { return };
        let up = Up::new();
        let script = up.path("late.py");
        let program = "import os, socket, sys\n\
             s = socket.create_server(('10.77.0.2', 7000), backlog=3)\n\
             children = []\n\
             for _ in range(2):\n    \
                 child = os.fork()\n    \
                 if child == 0:\n        \
                     os.read(0, 1)\n        \
                     for _ in range(2):\n            \
                         c, _ = s.accept()\n            \
                         c.sendall(c.recv(100))\n            \
                         c.close()\n        \
                     os._exit(0)\n    \
                 children.append(child)\n\
             print('forked', flush=True)\n\
             for child in children:\n    os.waitpid(child, 0)\n";
        fs::write(&script, program).unwrap();
        let mut command = up.over(&[python, script.to_str().unwrap()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut server = Running(command.spawn().unwrap());
        let mut line = String::new();
        BufReader::new(server.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "forked\n");
        // One more than the backlog, as over Linux.
        let mut waiting: Vec<_> = (0..4_u8)
            .map(|at| {
                let mut stream = TcpStream::connect(SocketAddr::from((AGENT, 7000))).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                stream.write_all(&[at; 10]).unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
                stream
            })
            .collect();
        server.0.stdin.as_mut().unwrap().write_all(b"ab").unwrap();
        for (at, stream) in (0..).zip(&mut waiting) {
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).unwrap();
            assert_eq!(answer, [at; 10]);
        }
        assert!(server.0.wait().unwrap().success());
    });
}

#[test]
fn connections_wait_for_a_child_after_its_parent_has_ended() {
    in_a_network(|| {
        let Some(python) = python() else { return };
        let up = Up::new();
        let script = up.path("daemon.py");
        let program = "import os, signal, socket\n\
             s = socket.create_server(('10.77.0.2', 7000))\n\
             if os.fork():\n    \
                 os._exit(0)\n\
             signal.alarm(600)\n\
             os.read(0, 1)\n\
             c, _ = s.accept()\n\
             c.sendall(c.recv(100))\n\
             c.close()\n\
             os.read(0, 1)\n";
        fs::write(&script, program).unwrap();
        let mut command = up.over(&[python, script.to_str().unwrap()]);
        let mut parent = command.stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = parent.stdin.take().unwrap();
        assert!(parent.wait().unwrap().success());
        let address = SocketAddr::from((AGENT, 7000));
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"hi").unwrap();
        stdin.write_all(b"a").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "hi");
        // The listener ends with its last process.
        drop(stdin);
        within_patience("a refusal", || {
            let refused = TcpStream::connect(address).err()?;
            (refused.kind() == std::io::ErrorKind::ConnectionRefused).then_some(())
        });
    });
}

#[test]
fn connections_of_a_killed_child_that_it_has_not_accepted_are_served_by_another() {
    in_a_network(|| {
        let Some(python) = python() else { return };
        let up = Up::new();
        let (_server, mut replace) = prefork(&up, python);
        let children = replace(2);
        let mut seen = HashSet::new();
        within_patience("answers of both children", || {
            seen.insert(answers(7000));
            (seen.len() == 2).then_some(())
        });
        let id = Pid::from_raw(children[0]).unwrap();
        kill_process(id, Signal::STOP).unwrap();
        within_patience("its stop", || {
            let about = fs::read_to_string(format!("/proc/{}/stat", children[0])).unwrap();
            about.contains(") T ").then_some(())
        });
        // One of them is the stopped child's, if it has asked for a connection.
        let mut streams: Vec<_> = (0..6)
            .map(|_| {
                let mut stream = TcpStream::connect(SocketAddr::from((AGENT, 7000))).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                stream.write_all(b"hi").unwrap();
                stream
            })
            .collect();
        kill_process(id, Signal::KILL).unwrap();
        for stream in &mut streams {
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert_eq!(answer, format!("hi {}", children[1]));
        }
    });
}

#[test]
fn a_busy_child_keeps_no_connection_from_an_idle_one() {
    in_a_network(|| {
        let Some(python) = python() else { return };
        let up = Up::new();
        let (_server, mut replace) = prefork(&up, python);
        let children = replace(2);
        // It has been accepted by one of them, which waits for its request.
        let mut first = TcpStream::connect(SocketAddr::from((AGENT, 7000))).unwrap();
        let busy = within_patience("a child that answers alone", || {
            let by: HashSet<i32> = (0..4).map(|_| answers(7000)).collect();
            (by.len() == 1).then(|| by.into_iter().next().unwrap())
        });
        for _ in 0..10 {
            assert_eq!(answers(7000), busy);
        }
        first.write_all(b"hi").unwrap();
        let mut answer = String::new();
        first.read_to_string(&mut answer).unwrap();
        let other = children.iter().find(|child| **child != busy).unwrap();
        assert_eq!(answer, format!("hi {other}"));
    });
}

fn apache_restarts_under_load(mpm: &'static str) {
    in_a_network(move || {
        if !has(APACHE, "apache2-bin") {
            return;
        }
        // Its workers attach as the user nobody.
        let up = Up::allowing("65534");
        let config = format!(
            "ServerRoot {0}\nDefaultRuntimeDir {0}\nPidFile {0}/apache.pid\nErrorLog {0}/errors\nServerName test\n\
             LoadModule mpm_{mpm}_module /usr/lib/apache2/modules/mod_mpm_{mpm}.so\n\
             LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so\n\
             User nobody\nGroup nogroup\nListen 10.77.0.2:8080\nDocumentRoot {0}/www\nKeepAlive Off\n\
             StartServers 3\nMaxRequestWorkers 75\n",
            up.folder.path().display()
        );
        let file = up.path("apache.conf");
        fs::write(&file, config).unwrap();
        fs::create_dir(up.path("www")).unwrap();
        fs::write(up.path("www").join("file"), vec![b'x'; 20_000]).unwrap();
        let words = [APACHE, "-D", "FOREGROUND", "-f", file.to_str().unwrap()];
        let master = Master(server(&up, "apache.log", &words, 8080), Signal::TERM);
        let id = Pid::from_child(&master.0.0);
        let fetch = || {
            let answer = ask(8080, b"GET /file HTTP/1.0\r\n\r\n");
            let head = String::from_utf8_lossy(&answer[..answer.len().min(200)]);
            assert!(head.starts_with("HTTP/1.1 200") && answer.len() > 20_000, "{head}");
        };
        // It listens before it has a handler for the signal.
        fetch();
        under_load(fetch, || kill_process(id, Signal::USR1).unwrap());
        let errors = fs::read_to_string(up.path("errors")).unwrap();
        assert!(!errors.contains("AH00052") && !errors.contains("(emerg)"), "{errors}");
    });
}

#[test]
fn apache_with_processes_restarts_gracefully_under_load_without_a_failed_request() {
    apache_restarts_under_load("prefork");
}

#[test]
fn apache_with_threads_restarts_gracefully_under_load_without_a_failed_request() {
    apache_restarts_under_load("event");
}

//! Servers that fork.

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::net::sockopt;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::network::{
    AGENT, Master, PATIENCE, Running, Up, connect, get, has, in_a_network, python, server,
    within_patience,
};
use crate::servers::echo;

const NGINX: &str = "/usr/sbin/nginx";
/// Default number of reloads under load; `WAVE_RELOADS` overrides it.
const RELOADS: usize = 5;

fn nginx(up: &Up, listen: &str) -> Master {
    let config = format!(
        "daemon off; worker_processes 2; user nobody nogroup; pid {0}/nginx.pid; error_log {0}/errors;\n\
         events {{}}\n\
         http {{ access_log off; client_body_temp_path {0}/b; proxy_temp_path {0}/p;\n\
         fastcgi_temp_path {0}/f; uwsgi_temp_path {0}/u; scgi_temp_path {0}/s;\n\
         server {{ {listen} root {0}; add_header X-Worker $pid; }} }}\n",
        up.folder.path().display()
    );
    let file = up.path("nginx.conf");
    fs::write(&file, config).unwrap();
    fs::write(up.path("file"), vec![b'x'; 100_000]).unwrap();
    let words = [NGINX, "-c", file.to_str().unwrap()];
    Master(server(up, "nginx.log", &words, 8080), Signal::TERM)
}

/// Fetches the file, and returns the process id of the worker that sent it.
fn fetch(port: u16) -> std::io::Result<u32> {
    let (head, body) = get(SocketAddr::from((AGENT, port)), "/file")?;
    assert!(head.starts_with("HTTP/1.1 200") && body == vec![b'x'; 100_000], "{head}");
    let worker = head.lines().find_map(|line| line.strip_prefix("X-Worker: "));
    Ok(worker.unwrap().parse().unwrap())
}

/// Fetches until two workers that are not in `before` have served. `before` names all earlier workers, since those from before
/// the last reload may still serve.
fn workers(port: u16, before: &HashSet<u32>) -> HashSet<u32> {
    let mut found = HashSet::new();
    within_patience("requests to both workers", || {
        let worker = fetch(port).ok()?;
        if !before.contains(&worker) {
            found.insert(worker);
        }
        (found.len() == 2).then_some(())
    });
    found
}

#[test]
fn nginx_serves_in_forked_workers_through_reloads_and_the_death_of_its_agent() {
    in_a_network(|| {
        if !has(NGINX, "nginx-light") {
            return;
        }
        // Its workers attach to the next agent as the user nobody.
        let mut up = Up::allowing("65534");
        let running = nginx(&up, "listen 10.77.0.2:8080;");
        let master = Pid::from_child(&running.0.0);
        let mut now = workers(8080, &HashSet::new());
        let mut all = now.clone();
        let stops = AtomicBool::new(false);
        let reloads = std::env::var("WAVE_RELOADS").ok().and_then(|text| text.parse().ok());
        let (reloads, requests) = (reloads.unwrap_or(RELOADS), AtomicU64::new(0));
        thread::scope(|scope| {
            let clients = [(); 3].map(|()| {
                scope.spawn(|| {
                    while !stops.load(Ordering::Relaxed) {
                        // Old workers serve the connections that they have accepted, and leave the rest to new workers.
                        fetch(8080).unwrap();
                        requests.fetch_add(1, Ordering::Relaxed);
                    }
                })
            });
            for _ in 0..reloads {
                kill_process(master, Signal::HUP).unwrap();
                now = workers(8080, &all);
                all.extend(&now);
            }
            stops.store(true, Ordering::Relaxed);
            clients.into_iter().for_each(|client| client.join().unwrap());
        });
        println!("{reloads} reloads, {} requests", requests.load(Ordering::Relaxed));
        up.assert_none_demoted(requests.load(Ordering::Relaxed));
        let id = running.0.0.id();
        within_patience("the end of old workers", || {
            let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
            let children = children.split_whitespace().map(|id| id.parse().unwrap());
            (children.collect::<HashSet<u32>>() == now).then_some(())
        });
        up.kill();
        up.start_again();
        assert_eq!(workers(8080, &HashSet::new()), now);
        let errors = fs::read_to_string(up.path("errors")).unwrap();
        assert!(!errors.contains("accept") && !errors.contains("alert"), "{errors}");
    });
}

#[test]
fn nginx_workers_have_separate_listeners_with_so_reuseport() {
    in_a_network(|| {
        if !has(NGINX, "nginx-light") {
            return;
        }
        let up = Up::new();
        let _running = nginx(&up, "listen 10.77.0.2:8080 reuseport; listen 0.0.0.0:8081;");
        workers(8080, &HashSet::new());
        workers(8081, &HashSet::new());
        assert!(get(SocketAddr::from(([127, 0, 0, 1], 8081)), "/file").unwrap().1.len() == 100_000);
        let errors = fs::read_to_string(up.path("errors")).unwrap();
        assert!(!errors.contains("accept") && !errors.contains("alert"), "{errors}");
    });
}

#[test]
fn children_serve_connections_accepted_by_their_parent() {
    in_a_network(|| {
        let Some(python) = python() else { return };
        let up = Up::new();
        let script = up.path("forks.py");
        let program = "import os, signal, socket\n\
             signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n\
             s = socket.create_server(('10.77.0.2', 7000))\n\
             while True:\n    \
                 c, _ = s.accept()\n    \
                 first = c.recv(1)\n    \
                 if os.fork() == 0:\n        \
                     s.close()\n        \
                     c.sendall(first)\n        \
                     while data := c.recv(5000):\n            c.sendall(data)\n        \
                     os._exit(0)\n    \
                 c.close()\n";
        fs::write(&script, program).unwrap();
        let mut command = up.over(&[python, script.to_str().unwrap()]);
        let complaints = up.path("complaints");
        let stderr = fs::File::create(&complaints).unwrap();
        let _running = Running(command.stderr(stderr).spawn().unwrap());
        let served = std::panic::catch_unwind(|| echo(7000));
        // Children would complain here about a refused connection.
        assert_eq!(fs::read_to_string(complaints).unwrap(), "");
        served.unwrap();
    });
}

#[test]
fn child_accepts_connections_that_arrived_before_the_fork() {
    in_a_network(|| {
        let Some(python) = python() else { return };
        let up = Up::new();
        let script = up.path("early.py");
        let program = "import os, signal, socket, sys\n\
             s = socket.create_server(('10.77.0.2', 7000))\n\
             sys.stdin.readline()\n\
             child = os.fork()\n\
             if child == 0:\n    \
                 signal.alarm(600)\n    \
                 while True:\n        \
                     c, _ = s.accept()\n        \
                     c.sendall(b'child')\n        \
                     c.close()\n\
             sys.stdin.readline()\n\
             os.kill(child, signal.SIGKILL)\n";
        fs::write(&script, program).unwrap();
        let mut command = up.over(&[python, script.to_str().unwrap()]);
        let mut server = Running(command.stdin(Stdio::piped()).spawn().unwrap());
        let mut early: Vec<_> = (0..3).map(|_| connect(SocketAddr::from((AGENT, 7000)))).collect();
        let stdin = server.0.stdin.as_mut().unwrap();
        stdin.write_all(b"\n").unwrap();
        early.push(connect(SocketAddr::from((AGENT, 7000))));
        for mut stream in early {
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert_eq!(answer, "child");
        }
        stdin.write_all(b"\n").unwrap();
        assert!(server.0.wait().unwrap().success());
    });
}

#[test]
fn unaccepted_connections_wait_for_a_child_after_its_parent_closes_the_listener() {
    in_a_network(|| {
        let Some(python) = python() else { return };
        let up = Up::new();
        let script = up.path("closed.py");
        let program = "import os, socket\n\
             s = socket.create_server(('10.77.0.2', 7000))\n\
             os.read(0, 1)\n\
             if os.fork() == 0:\n    \
                 os.read(0, 1)\n    \
                 accepted = [s.accept()[0] for _ in range(3)]\n    \
                 s.close()\n    \
                 for c in accepted:\n        \
                     c.sendall(c.recv(10000, socket.MSG_WAITALL))\n        \
                     c.close()\n    \
                 os._exit(0)\n\
             s.close()\n\
             os.write(1, b'closed\\n')\n\
             os.wait()\n\
             while s.fileno() < 0:\n    \
                 try:\n        s = socket.create_server(('10.77.0.2', 7000))\n    \
                 except OSError:\n        pass\n\
             s.accept()[0].sendall(b'parent')\n";
        fs::write(&script, program).unwrap();
        let mut command = up.over(&[python, script.to_str().unwrap()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut server = Running(command.spawn().unwrap());
        let early: Vec<_> = (0..3).map(|_| connect(SocketAddr::from((AGENT, 7000)))).collect();
        // Enough to make an accepted connection's ring grow.
        let sent = [7; 10_000];
        for mut stream in &early {
            stream.write_all(&sent).unwrap();
        }
        within_patience("acknowledgements", || {
            let sockets = fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
            let mut queues = sockets.lines().skip(1).map(|line| line.split_whitespace().nth(4));
            queues.all(|queue| queue.unwrap().starts_with("00000000:")).then_some(())
        });
        let stdin = server.0.stdin.as_mut().unwrap();
        stdin.write_all(b"f").unwrap();
        let mut closed = [0; 7];
        server.0.stdout.as_mut().unwrap().read_exact(&mut closed).unwrap();
        stdin.write_all(b"a").unwrap();
        for mut stream in early {
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).unwrap();
            assert!(answer == sent, "{} bytes", answer.len());
        }
        // The port is free again.
        let mut answer = String::new();
        connect(SocketAddr::from((AGENT, 7000))).read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "parent");
    });
}

#[test]
fn connection_ends_when_its_last_process_closes_it() {
    in_a_network(|| {
        let Some(python) = python() else { return };
        let up = Up::new();
        let script = up.path("last.py");
        // The child has the connection for a while, without using it.
        let program = "import os, socket, sys\n\
             s = socket.create_server(('10.77.0.2', 7000))\n\
             c, _ = s.accept()\n\
             c.sendall(b'parent')\n\
             if os.fork() == 0:\n    \
                 s.close()\n    \
                 sys.stdin.readline()\n    \
                 os._exit(0)\n\
             c.close()\n\
             s.accept()\n";
        fs::write(&script, program).unwrap();
        let mut command = up.over(&[python, script.to_str().unwrap()]);
        let mut server = Running(command.stdin(Stdio::piped()).spawn().unwrap());
        let mut stream = connect(SocketAddr::from((AGENT, 7000)));
        let mut got = [0; 6];
        stream.read_exact(&mut got).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let early = stream.read(&mut got).unwrap_err();
        assert_eq!(early.kind(), std::io::ErrorKind::WouldBlock);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        server.0.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert_eq!(stream.read(&mut got).unwrap(), 0);
    });
}

#[test]
fn child_reads_from_a_connection_that_its_parent_has_used_much() {
    in_a_network(|| {
        let Some(python) = python() else { return };
        let up = Up::new();
        let script = up.path("much.py");
        let program = "import os, socket\n\
             s = socket.create_server(('10.77.0.2', 7000))\n\
             c, _ = s.accept()\n\
             c.sendall(bytes(1000000))\n\
             child = os.fork()\n\
             if child == 0:\n    \
                 print(len(c.recv(10)), flush=True)\n    \
                 os._exit(0)\n\
             os.waitpid(child, 0)\n\
             c.sendall(b'parent')\n";
        fs::write(&script, program).unwrap();
        let child = up.over(&[python, script.to_str().unwrap()]).spawn().unwrap();
        let mut got = Vec::new();
        let mut stream = within_patience("the server", || {
            TcpStream::connect(SocketAddr::from((AGENT, 7000))).ok()
        });
        stream.write_all(&[b'x'; 10]).unwrap();
        stream.read_to_end(&mut got).unwrap();
        assert!(got.len() == 1_000_006 && got.ends_with(b"parent"), "{} bytes", got.len());
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
        assert_eq!(output.stdout, b"10\n");
    });
}

/// Two connections of a child are used by its parent as well; a third one is the parent's alone.
const DEMOTED: &str = "import os, socket, sys\n\
     s = socket.create_server(('10.77.0.2', 7000))\n\
     both = [s.accept()[0] for _ in range(2)]\n\
     own, _ = s.accept()\n\
     here, there = os.pipe()\n\
     child = os.fork()\n\
     if child == 0:\n    \
         for one in both: one.sendall(b'c')\n    \
         os.write(there, b'f')\n    \
         sys.stdin.readline()\n    \
         os._exit(0)\n\
     os.read(here, 1)\n\
     for one in both: one.sendall(b'p')\n\
     own.sendall(b'p')\n\
     print(child, flush=True)\n\
     os.waitpid(child, 0)\n";

#[test]
fn demoted_connections_are_marked_and_the_agent_says_once_why_a_process_is_slower() {
    in_a_network(|| {
        let Some(python) = python() else { return };
        let mut up = Up::new();
        let script = up.path("demoted.py");
        fs::write(&script, DEMOTED).unwrap();
        let mut command = up.over(&[python, script.to_str().unwrap()]);
        let mut running = Running(command.stdin(Stdio::piped()).spawn().unwrap());
        let mut streams: Vec<_> =
            (0..3).map(|_| connect(SocketAddr::from((AGENT, 7000)))).collect();
        let mut got = [0; 2];
        streams[..2].iter_mut().for_each(|stream| stream.read_exact(&mut got).unwrap());
        assert_eq!(&got, b"cp");
        streams[2].read_exact(&mut got[..1]).unwrap();
        let mut child = String::new();
        BufReader::new(running.0.stdout.take().unwrap()).read_line(&mut child).unwrap();
        let child = child.trim().parse::<u64>().unwrap();
        // Only a report younger than that counts.
        up.awaits("demoted_by.second_process", 2);
        let report = up.report();
        let connections = report["sockets"].as_array().unwrap().iter();
        let served: Vec<(&str, u64)> = connections
            .filter_map(|row| Some((row["served_by"].as_str()?, row["pid"].as_u64()?)))
            .collect();
        let own = ("process", u64::from(running.0.id()));
        assert!(served.iter().filter(|one| **one == ("stream", child)).count() == 2, "{served:?}");
        assert!(served.len() == 3 && served.contains(&own), "{served:?}");
        let table = up.table();
        assert_eq!(table.matches("served_by:stream").count(), 2, "{table}");
        assert_eq!(table.matches("served_by").count(), 2, "{table}");
        running.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        assert!(running.0.wait().unwrap().success());

        let mut output = up.agent.0.stderr.take().unwrap();
        up.kill();
        let mut said = String::new();
        output.read_to_string(&mut said).unwrap();
        let lines: Vec<&str> = said.lines().filter(|line| line.contains("slower")).collect();
        assert_eq!(lines.len(), 1, "{said}");
        let names = format!("process {child} (python");
        assert!(
            lines[0].contains(&names) && lines[0].ends_with("a second process uses it"),
            "{said}"
        );
    });
}

/// A program whose child uses a connection that it cannot take over, since its parent has written after the fork. The child runs the line
/// `before` first.
fn late_child(up: &Up, before: &str) -> Command {
    let script = up.path("late.py");
    let program = format!(
        "import ctypes, os, socket\n\
         s = socket.create_server(('10.77.0.2', 7000))\n\
         c, _ = s.accept()\n\
         here, there = os.pipe()\n\
         if os.fork() == 0:\n    \
             os.read(here, 1)\n    \
             {before}\n    \
             try:\n        \
                 c.sendall(b'child')\n        \
                 print(c.recv(10))\n    \
             except OSError as error:\n        print(error.errno)\n    \
             os._exit(0)\n\
         c.sendall(b'parent')\n\
         os.write(there, b'f')\n\
         os.wait()\n"
    );
    fs::write(&script, program).unwrap();
    up.over(&["/usr/bin/python3", "-u", script.to_str().unwrap()])
}

#[test]
fn connection_that_a_child_cannot_take_over_and_that_is_demoted_is_no_refusal() {
    in_a_network(|| {
        if python().is_none() {
            return;
        }
        let up = Up::new();
        let child = late_child(&up, "pass").spawn().unwrap();
        let mut stream = connect(SocketAddr::from((AGENT, 7000)));
        let mut got = [0; 11];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"parentchild");
        stream.write_all(b"here").unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
        assert_eq!(output.stdout, b"b'here'\n");
        up.awaits("demoted_by.second_process", 1);
        let refusals = &up.report()["refusals"];
        assert!(refusals.as_array().unwrap().is_empty(), "{refusals}");
    });
}

#[test]
fn connection_that_nothing_helps_is_refused_and_the_report_says_so() {
    in_a_network(|| {
        if python().is_none() {
            return;
        }
        let up = Up::new();
        // In another network namespace, CLONE_NEWNET, the child does not reach the agent's door.
        let leaves = "ctypes.CDLL(None).unshare(0x40000000)";
        let child = late_child(&up, leaves).spawn().unwrap();
        let mut stream = connect(SocketAddr::from((AGENT, 7000)));
        let mut got = [0; 6];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"parent");
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.stdout, b"104\n");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("cannot take over a connection"), "{said}");
        within_patience("the refusal", || {
            let report = up.report();
            let mut refusals = report["refusals"].as_array().unwrap().iter();
            let is_it =
                |row: &Value| row["outcome"].as_str().unwrap().starts_with("cannot take over");
            refusals.any(is_it).then_some(())
        });
    });
}

pub const POSTGRES: &str = "/usr/lib/postgresql/15/bin/postgres";

#[test]
fn postgresql_serves_each_connection_in_a_child_of_its_postmaster() {
    in_a_network(|| {
        if !has(POSTGRES, "postgresql-15") {
            return;
        }
        // PostgreSQL refuses to run as root.
        let user = Command::new("id").args(["-u", "postgres"]).output().unwrap();
        let user = String::from_utf8(user.stdout).unwrap();
        let up = Up::allowing(user.trim());
        let data = up.path("data");
        fs::create_dir(&data).unwrap();
        let as_postgres = |words: &[&str]| {
            let mut command = Command::new("setpriv");
            command.args(["--reuid=postgres", "--regid=postgres", "--init-groups"]);
            command.args(words).current_dir(&data);
            command.stdin(Stdio::null());
            command
        };
        let at = data.to_str().unwrap();
        assert!(Command::new("chown").args(["postgres", at]).status().unwrap().success());
        let initdb = POSTGRES.replace("bin/postgres", "bin/initdb");
        let made = as_postgres(&[&initdb, "-D", at, "-A", "trust", "-N"]).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let rules = data.join("pg_hba.conf");
        fs::write(&rules, "host all all 10.77.0.0/24 trust\n").unwrap();
        // A killed server's segments would stay in /dev/shm.
        let own = ["-c", "dynamic_shared_memory_type=mmap", "-c", "fsync=off"];
        let program = [POSTGRES, "-D", at, "-h", "10.77.0.2", "-k", ""];
        let over = up.over(&[&program[..], &own].concat());
        let words: Vec<&str> = [over.get_program()]
            .into_iter()
            .chain(over.get_args())
            .map(|word| word.to_str().unwrap())
            .collect();
        let log = fs::File::create(up.path("log")).unwrap();
        let mut server = as_postgres(&words);
        let server = Running(server.stdout(Stdio::null()).stderr(log).spawn().unwrap());
        let _server = Master(server, Signal::QUIT);
        let client = |words: &[&str]| {
            let mut client = Command::new(words[0]);
            client.args(["-h", "10.77.0.2", "-U", "postgres"]).args(&words[1..]);
            client.output().unwrap()
        };
        let psql = |query: &str| client(&["psql", "-At", "-c", query, "postgres"]);
        within_patience("the server", || psql("select 1").status.success().then_some(()));
        assert_eq!(psql("select sum(x) from generate_series(1, 100000) x").stdout, b"5000050000\n");
        // More data than a child takes over with a connection.
        assert_eq!(psql("select repeat('x', 3000000)").stdout.len(), 3_000_001);
        let made = client(&["pgbench", "-i", "-q", "-s", "1", "postgres"]);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        // With a connection per transaction, and with one connection for all.
        for (more, count) in [(&["-C"][..], 200), (&[], 2_000)] {
            let each = (count / 8).to_string();
            let words =
                [&["pgbench", "-n", "-c", "8", "-t", &each][..], more, &["postgres"]].concat();
            let run = client(&words);
            let said = String::from_utf8_lossy(&run.stdout);
            assert!(run.status.success() && said.contains(&format!("{count}/{count}")), "{run:?}");
        }
        let sums = "select (select sum(abalance) from pgbench_accounts) = \
             (select sum(delta) from pgbench_history), count(*) from pgbench_history";
        assert_eq!(psql(sums).stdout, b"t|2200\n");
        let complaints = fs::read_to_string(up.path("log")).unwrap();
        assert!(!complaints.contains("libwave_toe"), "{complaints}");
        up.assert_none_demoted(200);
    });
}

#[test]
fn two_processes_share_a_port_with_so_reuseport() {
    in_a_network(|| {
        let Some(python) = python() else { return };
        let up = Up::new();
        let script = up.path("reuse.py");
        let program = "import os, socket, sys\n\
             s = socket.socket()\n\
             s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)\n\
             s.bind(('10.77.0.2', 7000))\n\
             s.listen()\n\
             while True:\n    c, _ = s.accept()\n    c.sendall(b'%d' % os.getpid())\n    c.close()\n";
        fs::write(&script, program).unwrap();
        let program = [python, script.to_str().unwrap()];
        let both = [(); 2].map(|()| server(&up, "log", &program, 7000));
        let pids: HashSet<u32> = both.iter().map(|one| one.0.id()).collect();
        let mut found = HashSet::new();
        within_patience("answers from both processes", || {
            let mut answer = String::new();
            connect(SocketAddr::from((AGENT, 7000))).read_to_string(&mut answer).ok()?;
            found.insert(answer.parse::<u32>().ok()?);
            (found == pids).then_some(())
        });
    });
}

/// The parent, which has read since the fork, gets the news that its connection has become a stream of the kernel's together with the news
/// of the reset. Random programs found this: seed 1423.
#[test]
fn what_a_child_has_read_is_not_read_again_after_a_reset() {
    in_a_network(|| {
        let Some(python) = python() else { return };
        let up = Up::new();
        let script = "import os, socket\n\
            c, _ = socket.create_server(('10.77.0.2', 7000)).accept()\n\
            waits, goes = os.pipe()\n\
            if (child := os.fork()) == 0:\n    \
                os.read(waits, 1)\n    \
                c.recv(299, socket.MSG_WAITALL)\n    \
                os._exit(0)\n\
            c.recv(1)\n\
            os.write(goes, b'x')\n\
            os.waitpid(child, 0)\n\
            print('read', flush=True)\n\
            os.read(0, 1)\n\
            try: print(c.recv(1)[0])\n\
            except ConnectionResetError: print('reset')";
        let mut program = up.over(&[python, "-c", script]);
        let mut program = Running(program.stdin(Stdio::piped()).spawn().unwrap());
        let mut stream = connect(SocketAddr::from((AGENT, 7000)));
        let bytes: Vec<u8> = (0..20_000_u32).map(|at| (at / 300) as u8).collect();
        stream.write_all(&bytes).unwrap();
        let mut said = BufReader::new(program.0.stdout.take().unwrap()).lines();
        assert_eq!(said.next().unwrap().unwrap(), "read");
        up.awaits("demoted", 1);
        sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
        drop(stream);
        up.awaits("EstabResets", 1);
        program.0.stdin.take().unwrap().write_all(b"\n").unwrap();
        let next = said.next().unwrap().unwrap();
        assert!(["1", "reset"].contains(&next.as_str()), "{next}");
    });
}

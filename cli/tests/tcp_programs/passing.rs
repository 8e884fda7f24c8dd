//! Sockets passed to another program: by exec(2), posix_spawn(3) or SCM_RIGHTS.

use std::collections::HashSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::time::Duration;

use rustix::net::sockopt;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::network::{
    AGENT, Running, Up, connect, has, in_a_network, python, server, within_patience,
};
use crate::servers::echo;

/// Python program that echoes over the connection with this descriptor: by read and write, and as a socket.
const ECHO: &str = "import os, socket, sys\n\
     fd = int(sys.argv[1])\n\
     c = socket.socket(fileno=os.dup(fd))\n\
     c.getpeername()\n\
     while data := os.read(fd, 5000):\n    c.sendall(data)\n";

/// A server with a process group of its own, which ends with it.
struct Group(Running);

impl Drop for Group {
    fn drop(&mut self) {
        let group =
            Pid::from_raw(self.0.0.id() as i32).expect("the server has not been waited for");
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// Runs a Python server that has other programs echo, over many connections at once.
fn serves(program: &str) {
    let program = program.to_owned();
    in_a_network(move || {
        let Some(python) = python() else { return };
        let up = Up::new();
        fs::write(up.path("echo.py"), ECHO).unwrap();
        let script = up.path("serve.py");
        let head = "import array, os, signal, socket, subprocess, sys, threading\n\
             signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n\
             python = sys.executable\n\
             s = socket.create_server(('10.77.0.2', 7000), backlog=100)\n";
        fs::write(&script, format!("{head}{program}")).unwrap();
        let mut command = up.over(&[python, script.to_str().unwrap()]);
        let complaints = up.path("complaints");
        let stderr = fs::File::create(&complaints).unwrap();
        command.current_dir(up.folder.path()).stderr(stderr).process_group(0);
        let _running = Group(Running(command.spawn().unwrap()));
        let served = std::panic::catch_unwind(|| echo(7000));
        assert_eq!(fs::read_to_string(complaints).unwrap(), "");
        served.unwrap();
    });
}

#[test]
fn program_started_by_vfork_serves_the_connection_that_is_its_stdin() {
    serves(
        "while True:\n    \
             c, _ = s.accept()\n    \
             subprocess.Popen([python, 'echo.py', '0'], stdin=c)\n    \
             c.close()\n",
    );
}

/// The child duplicates descriptors before its parent has used a socket, and shares the parent's memory.
#[test]
fn program_that_first_started_another_by_vfork_closes_its_connections() {
    in_a_network(|| {
        let Some(python) = python() else { return };
        let up = Up::new();
        let script = up.path("serve.py");
        let program = "import socket, subprocess, sys\n\
             subprocess.run([sys.executable, '-c', ''], stdout=subprocess.PIPE)\n\
             s = socket.create_server(('10.77.0.2', 7000))\n\
             while True:\n    \
                 c, _ = s.accept()\n    \
                 c.sendall(c.recv(100))\n    \
                 c.close()\n    \
                 with open('after', 'w') as f:\n        f.write('in the file')\n";
        fs::write(&script, program).unwrap();
        let _server = server(&up, "log", &[python, script.to_str().unwrap()], 7000);
        let mut client = connect(SocketAddr::from((AGENT, 7000)));
        client.write_all(b"an echo").unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        assert_eq!(answer, b"an echo");
        within_patience("the file", || {
            (fs::read(up.path("after")).ok()? == b"in the file").then_some(())
        });
    });
}

#[test]
fn program_started_by_posix_spawn_serves_the_connection_that_is_its_stdin() {
    serves(
        "while True:\n    \
             c, _ = s.accept()\n    \
             actions = [(os.POSIX_SPAWN_DUP2, c.fileno(), 0)]\n    \
             os.posix_spawn(python, [python, 'echo.py', '0'], os.environ, file_actions=actions)\n    \
             c.close()\n",
    );
}

#[test]
fn program_executed_by_a_forked_child_serves_its_parents_connection() {
    serves(
        "while True:\n    \
             c, _ = s.accept()\n    \
             if os.fork() == 0:\n        \
                 os.set_inheritable(c.fileno(), True)\n        \
                 os.execv(python, [python, 'echo.py', str(c.fileno())])\n    \
             c.close()\n",
    );
}

#[test]
fn program_executed_after_a_partial_read_continues_the_connection() {
    serves(
        "while True:\n    \
             c, _ = s.accept()\n    \
             if os.fork() == 0:\n        \
                 c.sendall(c.recv(1))\n        \
                 os.set_inheritable(c.fileno(), True)\n        \
                 os.execv(python, [python, 'echo.py', str(c.fileno())])\n    \
             c.close()\n",
    );
}

#[test]
fn program_executed_by_the_accepting_process_serves_the_connection() {
    serves(
        "for _ in range(25):\n    \
             if os.fork() == 0:\n        \
                 c, _ = s.accept()\n        \
                 os.set_inheritable(c.fileno(), True)\n        \
                 os.execv(python, [python, 'echo.py', str(c.fileno())])\n\
         s.close()\n\
         signal.pause()\n",
    );
}

#[test]
fn process_that_receives_descriptors_serves_their_connections() {
    serves(
        "if len(sys.argv) > 1:\n    pass\n\
         helper = '''\n\
import os, socket, subprocess, sys, threading\n\
here = socket.socket(fileno=0)\n\
def serve(fd):\n    \
    c = socket.socket(fileno=fd)\n    \
    while data := c.recv(5000):\n        c.sendall(data)\n    \
    c.close()\n\
while True:\n    \
    data, fds, _, _ = socket.recv_fds(here, 10, 5)\n    \
    if not data: break\n    \
    for fd in fds: threading.Thread(target=serve, args=(fd,)).start()\n\
'''\n\
         here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
         subprocess.Popen([python, '-c', helper], stdin=there)\n\
         there.close()\n\
         while True:\n    \
             c, _ = s.accept()\n    \
             socket.send_fds(here, [b'take'], [c.fileno()])\n    \
             c.close()\n",
    );
}

#[test]
fn inherited_listener_accepts_connections() {
    serves(
        "child = '''\n\
import socket, threading\n\
s = socket.socket(fileno=3)\n\
def serve(c):\n    \
    while data := c.recv(5000):\n        c.sendall(data)\n    \
    c.close()\n\
while True:\n    threading.Thread(target=serve, args=(s.accept()[0],)).start()\n\
'''\n\
         if s.fileno() != 3: os.dup2(s.fileno(), 3)\n\
         os.set_inheritable(3, True)\n\
         os.execv(python, [python, '-c', child])\n",
    );
}

#[test]
fn parent_keeps_a_connection_that_a_child_inherits_and_never_uses() {
    in_a_network(|| {
        let Some(python) = python() else { return };
        let up = Up::new();
        let script = up.path("serve.py");
        let program = "import os, socket, subprocess, sys\n\
             s = socket.create_server(('10.77.0.2', 7000))\n\
             c, _ = s.accept()\n\
             os.set_inheritable(c.fileno(), True)\n\
             children = [subprocess.Popen(['sleep', '600'], close_fds=False)]\n\
             children.append(subprocess.Popen(['cat'], stdin=subprocess.PIPE, close_fds=False))\n\
             c.sendall(c.recv(100) + b' and more')\n\
             c.close()\n\
             sys.stdin.readline()\n\
             for child in children:\n    child.kill()\n    child.wait()\n\
             s.accept()\n";
        fs::write(&script, program).unwrap();
        let mut command = up.over(&[python, script.to_str().unwrap()]);
        let mut running = Running(command.stdin(std::process::Stdio::piped()).spawn().unwrap());
        let mut stream = connect(SocketAddr::from((AGENT, 7000)));
        stream.write_all(b"this").unwrap();
        let mut got = [0; 13];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"this and more");
        // The connection ends with its last descriptor, as over Linux.
        stream.set_nonblocking(true).unwrap();
        assert_eq!(stream.read(&mut got).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        stream.set_nonblocking(false).unwrap();
        running.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        assert_eq!(stream.read(&mut got).unwrap(), 0);
    });
}

#[test]
fn node_cluster_workers_serve_connections_accepted_by_the_primary() {
    in_a_network(|| {
        let program = "/usr/bin/node";
        if !has(program, "nodejs") {
            return;
        }
        let up = Up::new();
        let script = up.path("cluster.js");
        let text = "const cluster = require('cluster'), net = require('net');\n\
             if (cluster.isPrimary) { cluster.fork(); cluster.fork(); }\n\
             else net.createServer({ allowHalfOpen: true }, s => {\n\
                 s.on('error', () => 0);\n\
                 s.once('data', d => d.toString() == 'who' ? s.end(`${process.pid}`) : s.write(d) && s.pipe(s));\n\
             }).listen(7000, '10.77.0.2');\n";
        fs::write(&script, text).unwrap();
        let log = up.path("log");
        let _server = server(&up, "log", &[program, script.to_str().unwrap()], 7000);
        let who = || {
            let mut stream: TcpStream = connect(SocketAddr::from((AGENT, 7000)));
            stream.write_all(b"who").unwrap();
            let mut pid = String::new();
            stream.read_to_string(&mut pid).unwrap();
            pid.parse::<u32>().unwrap()
        };
        let mut workers = HashSet::new();
        within_patience("both workers", || {
            workers.insert(who());
            (workers.len() == 2).then_some(())
        });
        echo(7000);
        assert_eq!(fs::read_to_string(log).unwrap(), "");
    });
}

/// The next program takes the connection over, which gives it a new name and a family of its own. Random programs found this: seed 2032.
#[test]
fn connection_of_a_program_after_exec_is_passed_on_by_its_child() {
    in_a_network(|| {
        let Some(python) = python() else { return };
        let up = Up::new();
        let next = "import os, sys\n\
             os._exit(os.system('echo child >&' + sys.argv[1]) if os.fork() == 0 else os.wait()[1])";
        let program = format!(
            "import os, socket\n\
             c, _ = socket.create_server(('10.77.0.2', 7000)).accept()\n\
             c.set_inheritable(True)\n\
             os.execl('{python}', '{python}', '-c', {next:?}, str(c.fileno()))"
        );
        let running = up.over(&[python, "-c", &program]).spawn().unwrap();
        let mut got = String::new();
        connect(SocketAddr::from((AGENT, 7000))).read_to_string(&mut got).unwrap();
        let output = running.wait_with_output().unwrap();
        assert_eq!((got.as_str(), output.stderr.as_slice()), ("child\n", &b""[..]));
    });
}

/// The child has not followed the news that the connection is a stream of the kernel's, whose reset its parent has seen. Random programs
/// found this: seed 8086.
#[test]
fn program_after_exec_has_the_stream_that_the_parent_of_its_process_made() {
    in_a_network(|| {
        let Some(python) = python() else { return };
        let up = Up::new();
        let next = "import os, sys; print(os.read(int(sys.argv[1]), 1))";
        let program = format!(
            "import os, socket\n\
             c, _ = socket.create_server(('10.77.0.2', 7000)).accept()\n\
             c.set_inheritable(True)\n\
             waits, goes = os.pipe()\n\
             if os.fork() == 0:\n    \
                 os.read(waits, 1)\n    \
                 os.execl('{python}', '{python}', '-c', {next:?}, str(c.fileno()))\n\
             os.dup2(c.fileno(), 0)\n\
             try: c.recv(1)\n\
             except ConnectionResetError: os.write(goes, b'x')\n\
             os.wait()"
        );
        let running = up.over(&[python, "-c", &program]).spawn().unwrap();
        let stream = connect(SocketAddr::from((AGENT, 7000)));
        up.awaits("demoted", 1);
        sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
        drop(stream);
        let output = running.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "b''\n", "{output:?}");
    });
}

/// A process that does not know yet that a program which it has started made the stream. Random programs found this: seed 8376.
#[test]
fn child_has_a_stream_that_its_parent_has_passed_on_by_exec_without_the_library() {
    in_a_network(|| {
        let Some(python) = python() else { return };
        let up = Up::new();
        let next = "import os, sys\n\
             fd, goes = map(int, sys.argv[1:])\n\
             os.write(fd, b'next')\n\
             try: os.read(fd, 1)\n\
             except ConnectionResetError: os.write(goes, b'x')\n\
             os.wait()";
        let program = format!(
            "import os, socket\n\
             c, _ = socket.create_server(('10.77.0.2', 7000)).accept()\n\
             waits, goes = os.pipe()\n\
             for fd in (c.fileno(), goes): os.set_inheritable(fd, True)\n\
             os.system('echo >&%d' % c.fileno())\n\
             if os.fork() == 0:\n    \
                 os.read(waits, 1)\n    \
                 print(os.read(c.fileno(), 1))\n    \
                 raise SystemExit\n\
             os.execle('{python}', '{python}', '-c', {next:?}, str(c.fileno()), str(goes), {{}})"
        );
        let running = up.over(&[python, "-c", &program]).spawn().unwrap();
        let mut stream = connect(SocketAddr::from((AGENT, 7000)));
        let mut got = [0; 5];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"\nnext");
        sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
        drop(stream);
        let output = running.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "b''\n", "{output:?}");
    });
}

//! Sequences of calls by which servers, runtimes and their clients use sockets, as over Linux.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};

use crate::network::{AGENT, LINUX, Running, Up, connect, in_a_network, python, within_patience};

const PORT: u16 = 7000;
const AGENT_V6: [u16; 8] = [0xfd77, 0, 0, 0, 0, 0, 0, 2];

/// Runs a Python program over an agent, and `peer` beside it.
fn with_program(program: &str, peer: impl FnOnce(Running) + Send + 'static) {
    let program = program.to_owned();
    in_a_network(move || {
        let Some(python) = python() else { return };
        let up = Up::new();
        let script = up.path("program.py");
        fs::write(&script, &program).unwrap();
        let log = || fs::File::create(up.path("log")).unwrap();
        let mut command = up.over(&[python, script.to_str().unwrap()]);
        let running = Running(command.stdout(log()).stderr(log()).spawn().unwrap());
        peer(running);
    });
}

/// Everything that a server sends on a new connection.
fn served(address: impl Into<SocketAddr>) -> String {
    let mut answer = String::new();
    connect(address.into()).read_to_string(&mut answer).unwrap();
    answer
}

/// As tokio's and Asio's runtimes do: a thread waits, another one adds the first socket.
#[test]
fn set_for_which_a_thread_waits_reports_the_first_socket_that_another_thread_adds() {
    let program = "import os, select, socket, threading, time\n\
        inner, outer = select.epoll(), select.epoll()\n\
        outer.register(inner.fileno(), select.EPOLLIN)\n\
        inner.register(os.pipe()[0], select.EPOLLIN)\n\
        def wait(waits):\n    \
            while True:\n        \
                waits.poll()\n        \
                try: c, _ = s.accept()\n        \
                except BlockingIOError: continue\n        \
                c.sendall(b'served')\n        \
                c.close()\n\
        threads = [threading.Thread(target=wait, args=(one,), daemon=True) for one in (inner, outer)]\n\
        for thread in threads: thread.start()\n\
        time.sleep(0.3)\n\
        s = socket.create_server(('10.77.0.2', 7000))\n\
        s.setblocking(False)\n\
        inner.register(s.fileno(), select.EPOLLIN)\n\
        threads[0].join()\n";
    with_program(program, |_running| {
        for _ in 0..20 {
            assert_eq!(served((AGENT, PORT)), "served");
        }
    });
}

/// As uvicorn's workers do.
fn workers_listen(address: &str) {
    let program = "import ctypes, os, socket\n\
        s = socket.socket()\n\
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n\
        s.bind(('ADDRESS', 7000))\n\
        def work():\n    \
            if os.fork(): return\n    \
            ctypes.CDLL(None).prctl(1, 9)\n    \
            s.listen()\n    \
            while True:\n        \
                c, _ = s.accept()\n        \
                c.sendall(str(os.getpid()).encode())\n        \
                c.close()\n\
        work()\n\
        work()\n\
        while True:\n    \
            os.wait()\n    \
            work()\n";
    with_program(&program.replace("ADDRESS", address), |_running| {
        let mut seen = BTreeSet::new();
        let mut serve = |count: usize| {
            within_patience("a connection to each worker", || {
                let mut answer = String::new();
                // A connection that a killed worker had not accepted is reset.
                connect(SocketAddr::from((AGENT, PORT))).read_to_string(&mut answer).ok()?;
                seen.insert(answer.parse::<i32>().ok()?);
                (seen.len() == count).then(|| seen.clone())
            })
        };
        let first = serve(2);
        // Each worker is replaced in turn.
        for (at, worker) in first.iter().enumerate() {
            kill_process(Pid::from_raw(*worker).unwrap(), Signal::KILL).unwrap();
            serve(3 + at);
        }
    });
}

#[test]
fn workers_listen_on_a_socket_that_their_parent_has_bound() {
    workers_listen("10.77.0.2");
}

#[test]
fn workers_listen_on_a_socket_that_their_parent_has_bound_to_all_addresses() {
    workers_listen("0.0.0.0");
}

/// As Asio's acceptors are opened.
#[test]
fn listener_that_was_in_a_set_before_it_listened_reports_connections_of_agent_and_kernel() {
    let program = "import select, socket\n\
        s, waits = socket.socket(), select.epoll()\n\
        s.setblocking(False)\n\
        waits.register(s.fileno(), select.EPOLLIN | select.EPOLLET)\n\
        s.bind(('0.0.0.0', 7000))\n\
        s.listen()\n\
        waits.modify(s.fileno(), select.EPOLLIN | select.EPOLLET)\n\
        while waits.poll():\n    \
            while True:\n        \
                try: c, _ = s.accept()\n        \
                except BlockingIOError: break\n        \
                c.sendall(b'served')\n        \
                c.close()\n";
    with_program(program, |_running| {
        for _ in 0..3 {
            assert_eq!(served((AGENT, PORT)), "served");
            assert_eq!(served((LINUX, PORT)), "served");
        }
    });
}

/// As proxies do that name their source address.
#[test]
fn port_that_bind_chooses_is_free_towards_a_peer_to_which_an_earlier_one_was_closed() {
    let program = "import socket, time\n\
        for _ in range(5):\n    \
            s = socket.socket()\n    \
            s.bind(('10.77.0.2', 0))\n    \
            assert s.getsockname()[1] != 0\n    \
            while True:\n        \
                try: s.connect(('10.77.0.1', 7000))\n        \
                except ConnectionRefusedError: time.sleep(0.05)\n        \
                else: break\n    \
            s.sendall(str(s.getsockname()[1]).encode())\n    \
            s.shutdown(socket.SHUT_WR)\n    \
            assert s.recv(1) == b''\n    \
            s.close()\n";
    with_program(program, |mut running| {
        let address = SocketAddr::from((LINUX, PORT));
        let listener = within_patience("Linux's address", || TcpListener::bind(address).ok());
        for _ in 0..5 {
            let (mut stream, peer) = listener.accept().unwrap();
            let mut port = String::new();
            stream.read_to_string(&mut port).unwrap();
            assert_eq!(port, peer.port().to_string());
        }
        assert!(running.0.wait().unwrap().success());
    });
}

/// As programs do that a service manager starts with a listening socket.
#[test]
fn blocking_listener_at_all_addresses_blocks_in_the_next_program() {
    let program = "import os, socket, sys\n\
        s = socket.create_server(('0.0.0.0', 7000))\n\
        s.set_inheritable(True)\n\
        child = 'import socket, sys; s = socket.socket(fileno=int(sys.argv[1]))\\n' \\\n    \
            'while True: c, _ = s.accept(); c.sendall(b\"served\"); c.close()'\n\
        os.execv(sys.executable, [sys.executable, '-c', child, str(s.fileno())])\n";
    with_program(program, |_running| {
        for _ in 0..3 {
            assert_eq!(served((AGENT, PORT)), "served");
            assert_eq!(served((LINUX, PORT)), "served");
        }
    });
}

#[test]
fn connection_accepted_at_all_addresses_has_the_agents_address_of_its_family() {
    let program = "import socket\n\
        s = socket.create_server(('::', 7000), family=socket.AF_INET6, dualstack_ipv6=True)\n\
        while True:\n    \
            c, _ = s.accept()\n    \
            c.sendall(c.getsockname()[0].encode())\n    \
            c.close()\n";
    with_program(program, |_running| {
        assert_eq!(served((AGENT, PORT)), "::ffff:10.77.0.2");
        assert_eq!(served((AGENT_V6, PORT)), "fd77::2");
    });
}

#[test]
fn program_that_exits_without_close_after_it_has_read_everything_loses_no_answer() {
    let program = "import socket, sys\n\
        s = socket.create_server(('10.77.0.2', 7000))\n\
        c, _ = s.accept()\n\
        c.sendall(b'x' * 300000)\n\
        assert c.recv(3) == b'end'\n\
        c.detach()\n\
        sys.exit()\n";
    with_program(program, |mut running| {
        let mut stream = connect(SocketAddr::from((AGENT, PORT)));
        // The answer does not fit into Linux's window, so a part of it is still in the agent when the program ends.
        rustix::net::sockopt::set_socket_recv_buffer_size(&stream, 4096).unwrap();
        stream.write_all(b"end").unwrap();
        assert!(running.0.wait().unwrap().success());
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert_eq!(answer.len(), 300_000);
    });
}

/// As forking servers do that run a handler on descriptors 0 and 1.
#[test]
fn child_that_closes_all_descriptors_keeps_the_files_that_it_opens_next() {
    let program = "import os, select, socket, stat\n\
        s = socket.create_server(('10.77.0.2', 7000))\n\
        c, _ = s.accept()\n\
        waits = select.poll()\n\
        waits.register(c.fileno(), select.POLLIN)\n\
        waits.poll(100)\n\
        c.sendall(b'1')\n\
        if os.fork():\n    \
            os.wait()\n\
        else:\n    \
            os.dup2(c.fileno(), 0)\n    \
            os.closerange(3, 1000)\n    \
            files = [os.open('/dev/null', os.O_RDONLY) for _ in range(60)]\n    \
            waits = select.poll()\n    \
            waits.register(0, select.POLLIN)\n    \
            waits.poll()\n    \
            read = os.read(0, 10)\n    \
            for file in files: assert stat.S_ISCHR(os.fstat(file).st_mode)\n    \
            os.write(0, read)\n    \
            os._exit(0)\n";
    with_program(program, |_running| {
        let mut stream = connect(SocketAddr::from((AGENT, PORT)));
        let mut answer = [0; 1];
        stream.read_exact(&mut answer).unwrap();
        thread::sleep(std::time::Duration::from_millis(300));
        stream.write_all(b"2").unwrap();
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"2");
    });
}

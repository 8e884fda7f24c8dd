//! Sets of descriptors (epoll(7)) that a program uses through several descriptors.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::network::{AGENT, LINUX, Running, Up, connect, in_a_network, python, wave};

/// Uses a set through two descriptors, of which the second is made in four ways. Prints what each wait finds. Arguments: the address to
/// listen at, and a second one.
const DUPLICATES: &str = r"
import ctypes, os, select, socket, sys, threading
own, peer = sys.argv[1], sys.argv[2]
libc = ctypes.CDLL(None, use_errno=True)
IN, OUT, ET, ONESHOT = select.EPOLLIN, select.EPOLLOUT, select.EPOLLET, select.EPOLLONESHOT
names = {}

def say(what, found):
    print(what, sorted((names.get(fd, '?'), bits) for fd, bits in found), flush=True)

def named(name, file):
    names[file.fileno()] = name
    return file

def by_name(fd):
    return select.epoll.fromfd(fd)

def through_a_message(fd):
    here, there = socket.socketpair(socket.AF_UNIX)
    socket.send_fds(here, [b'x'], [fd])
    got = socket.recv_fds(there, 1, 1)[1][0]
    here.close(), there.close()
    return got

def by_system_call(fd):
    process = os.pidfd_open(os.getpid())
    got = libc.syscall(438, process, fd, 0)
    os.close(process)
    return got if got >= 0 else os.dup(fd)

def onto_a_number(fd):
    return os.dup2(fd, 77)

ways = [os.dup, onto_a_number, through_a_message, by_system_call]
for way in ways:
    print('#', way.__name__)
    listener = named('listener', socket.create_server((own, 0)))
    at = listener.getsockname()
    one = select.epoll()
    other = by_name(way(one.fileno()))
    # Before the set has anything: registered by one descriptor, awaited by the other.
    other.register(listener, IN)
    client = socket.create_connection(at)
    say('a connection', one.poll(60))
    taken = named('taken', listener.accept()[0])
    one.register(taken, IN | ET)
    client.sendall(b'first')
    say('bytes', other.poll(60))
    say('an edge, once', one.poll(0))
    print(taken.recv(10))
    try:
        other.register(taken, IN)
    except OSError as error:
        print('twice', error.errno)
    other.modify(taken, IN | OUT | ONESHOT)
    say('changed', one.poll(60))
    say('disarmed', other.poll(0))
    # Nested and polled by either.
    poll = select.poll()
    poll.register(other.fileno(), IN)
    one.modify(taken, IN)
    client.sendall(b'second')
    print('polled', [bits for _, bits in poll.poll(60_000)])
    outer = select.epoll()
    outer.register(other.fileno(), IN)
    print('nested', [bits for _, bits in outer.poll(60)])
    outer.close()
    print(taken.recv(10))
    # From a thread that sleeps already.
    found = []
    thread = threading.Thread(target=lambda: found.extend(other.poll(60)))
    thread.start()
    client.sendall(b'third')
    thread.join()
    say('woken', found)
    print(taken.recv(10))
    # One descriptor is closed: the set stays.
    one.close()
    client.sendall(b'fourth')
    say('after a close', other.poll(60))
    print(taken.recv(10))
    other.unregister(taken)
    client.sendall(b'fifth')
    say('unregistered', other.poll(0))
    # The last one is closed: a new set with its number is empty.
    number = other.fileno()
    other.register(taken, IN)
    other.close()
    again = select.epoll()
    os.dup2(again.fileno(), number)
    say('a new set', by_name(number).poll(0))
    again.close()
    client.close(), taken.close(), listener.close()

print('# before connect')
server = socket.create_server((peer, 0))
one = select.epoll()
other = by_name(os.dup(one.fileno()))
client = named('client', socket.socket())
client.setblocking(False)
other.register(client, IN)
one.modify(client, OUT)
other.close()
client.connect_ex(server.getsockname())
say('connected', one.poll(60))
server.accept()[0].sendall(b'hello')
one.modify(client, IN)
say('bytes', one.poll(60))
";

#[test]
fn sets_report_the_same_through_every_duplicate_of_their_descriptor() {
    in_a_network(|| {
        let Some(python) = python() else { return };
        let up = Up::new();
        let script = up.path("duplicates.py");
        fs::write(&script, DUPLICATES).unwrap();
        let script = script.to_str().unwrap();
        let linux = Command::new(python).args([script, "127.0.0.1", "127.0.0.1"]).output().unwrap();
        assert!(linux.status.success(), "{linux:?}");
        let over = up.over(&[python, script, "10.77.0.2", "10.77.0.1"]).output().unwrap();
        assert!(over.status.success(), "{over:?}");
        let [over, linux] = [over, linux].map(|one| String::from_utf8(one.stdout).unwrap());
        assert_eq!(over, linux);
        up.awaits("PassiveOpens", 4);
        up.awaits("ActiveOpens", 1);
    });
}

/// Makes its sets, then leaves its parent twice, as daemons do, and echoes. Arguments: address, port, and a server to connect to.
const DAEMON: &str = r"
import os, select, socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
client = socket.socket()
client.setblocking(False)
sets = select.epoll()
again = select.epoll.fromfd(os.dup(sets.fileno()))
here, there = os.pipe()
sets.register(listener, select.EPOLLIN)
again.register(here, select.EPOLLIN)
if len(sys.argv) > 3:
    again.register(client, select.EPOLLIN)
sets.poll(0)
for _ in range(2):
    if os.fork():
        os._exit(0)
os.write(there, b'x')
if len(sys.argv) > 3:
    client.connect_ex((sys.argv[3], int(sys.argv[4])))
open_ = {}
while True:
    for fd, _ in again.poll(60):
        if fd == listener.fileno():
            taken = listener.accept()[0]
            open_[taken.fileno()] = taken
            sets.register(taken, select.EPOLLIN)
        elif fd == here:
            print(os.read(here, 1), flush=True)
        elif fd == client.fileno():
            got = client.recv(100)
            print(got, flush=True)
            sets.unregister(client)
        else:
            data = open_[fd].recv(1 << 16)
            open_[fd].sendall(data)
            if not data:
                again.unregister(fd)
                open_.pop(fd).close()
                sys.exit(0)
";

#[test]
fn daemons_go_on_with_the_sets_that_they_have_made_before() {
    in_a_network(|| {
        let Some(python) = python() else { return };
        let up = Up::new();
        let script = up.path("daemon.py");
        fs::write(&script, DAEMON).unwrap();
        let listener = TcpListener::bind(SocketAddr::from((LINUX, 0))).unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        let script = script.to_str().unwrap();
        let words = [python, script, "10.77.0.2", "7000", "10.77.0.1", &port];
        let mut daemon = up.over(&words).spawn().unwrap();
        listener.accept().unwrap().0.write_all(b"hello").unwrap();
        let mut stream = connect(SocketAddr::from((AGENT, 7000)));
        let mut got = vec![0; 4];
        for _ in 0..10 {
            stream.write_all(b"echo").unwrap();
            stream.read_exact(&mut got).unwrap();
            assert_eq!(got, b"echo");
        }
        drop(stream);
        assert!(daemon.wait().unwrap().success());
        // The daemon has its output until it ends.
        let mut said = String::new();
        daemon.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        // Either may be ready first.
        let mut lines: Vec<&str> = said.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["b'hello'", "b'x'"]);
    });
}

/// tokio registers sockets through a duplicate of the descriptor at which it waits.
#[test]
fn tokio_serves_and_connects() {
    in_a_network(|| {
        let up = Up::new();
        let is_over = |is_over: bool, line: String| match is_over {
            true => {
                let program = env!("CARGO_BIN_EXE_wave");
                up.over(&[&[program], &line.split(' ').collect::<Vec<_>>()[..]].concat())
            }
            false => {
                let mut command = wave();
                command.args(line.split(' '));
                command
            }
        };
        for (server, client, counter) in
            [(true, false, "PassiveOpens"), (false, true, "ActiveOpens")]
        {
            let at = if server { "10.77.0.2:50051" } else { "10.77.0.1:50051" };
            let line = format!("serve kv --on-host --listen {at} --keys 100 --json");
            let mut served = Running(is_over(server, line).stderr(Stdio::null()).spawn().unwrap());
            let mut ready = String::new();
            BufReader::new(served.0.stdout.as_mut().unwrap()).read_line(&mut ready).unwrap();
            let line = format!(
                "load grpc --target {at} --closed --seconds 1 --warm-up 0 --streams 4 --keys 100 --mix get=1,echo=1 --json"
            );
            let output = is_over(client, line).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            let told: Value = serde_json::from_slice(&output.stdout).unwrap();
            let answers = &told["result"]["answers"];
            assert_eq!(
                (&answers["wrong"], &answers["unanswered"]),
                (&0.into(), &0.into()),
                "{told}"
            );
            up.awaits(counter, 4);
        }
    });
}

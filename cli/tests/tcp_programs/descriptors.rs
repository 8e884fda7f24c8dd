//! Numbers of descriptors, which the library must leave to its program.

use std::fs;
use std::net::SocketAddr;
use std::process::Command;

use crate::network::{AGENT, Up, connect, in_a_network, python};

/// Opens files beside its sockets, closes everything as daemons do, and chooses numbers. Prints the numbers that it gets, and what arrives.
/// Arguments: its address, RLIMIT_NOFILE.
const NUMBERS: &str = r"
import os, resource, select, socket, sys, threading
own = sys.argv[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

def free(what):
    fds = [os.open('/dev/null', os.O_RDONLY) for _ in range(5)]
    print(what, fds, flush=True)
    for fd in fds:
        os.close(fd)

def use(listener, what):
    client = socket.create_connection(listener.getsockname())
    taken = listener.accept()[0]
    with select.epoll() as poll:
        poll.register(taken, select.EPOLLIN)
        timer = threading.Timer(0.05, lambda: client.sendall(b'bytes'))
        timer.start()
        poll.poll(60)
    both = select.poll()
    both.register(taken, select.POLLIN)
    timer.join()
    both.poll(60_000)
    timer = threading.Timer(0.05, lambda: client.sendall(b' and more'))
    got = taken.recv(5)
    timer.start()
    got += taken.recv(9)
    timer.join()
    print(what, got, client.fileno(), taken.fileno(), flush=True)
    client.close(), taken.close()

# The listener gets the lowest number.
os.close(0)
listener = socket.create_server((own, 0))
free('numbers after the first socket')
use(listener, 'a connection')
free('numbers after a connection')

# A daemon closes everything that it does not know.
for fd in range(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0]):
    try:
        os.close(fd)
    except OSError:
        pass
files = [open('file%d' % at, 'w+b') for at in range(20)]
print([file.fileno() for file in files], listener.fileno())
use(listener, 'a connection of a daemon')
os.closerange(3, 1 << 16)
free('numbers after all were closed')
use(listener, 'a connection after all were closed')

# Numbers of the program's own choice.
here, there = os.pipe()
for number in range(3, 200):
    if number not in (here, there):
        os.dup2(there, number)
use(listener, 'a connection beside numbers of choice')
print([len(open('file%d' % at, 'rb').read()) for at in range(20)])
";

#[test]
fn programs_get_the_numbers_that_they_get_over_linux() {
    in_a_network(|| {
        let Some(python) = python() else { return };
        let up = Up::new();
        let script = up.path("numbers.py");
        fs::write(&script, NUMBERS).unwrap();
        let script = script.to_str().unwrap();
        for limit in ["1024", "600"] {
            let mut linux = Command::new(python);
            linux.args([script, "127.0.0.1", limit]);
            let mut over = up.over(&[python, script, "10.77.0.2", limit]);
            let [linux, over] = [&mut linux, &mut over].map(|command| {
                let output = command.current_dir(up.folder.path()).output().unwrap();
                assert!(output.status.success(), "{output:?}");
                String::from_utf8(output.stdout).unwrap()
            });
            assert_eq!(over, linux, "at most {limit} descriptors");
        }
        up.awaits("PassiveOpens", 8);
    });
}

/// Random programs found this: seeds 5257, 7302 and 8745.
#[test]
fn child_has_a_nonblocking_connection_once_its_parent_makes_it_so() {
    in_a_network(|| {
        let Some(python) = python() else { return };
        let up = Up::new();
        let program = "import os, socket\n\
            c, _ = socket.create_server(('10.77.0.2', 7000)).accept()\n\
            waits, goes = os.pipe()\n\
            if os.fork() == 0:\n    \
                os.read(waits, 1)\n    \
                print(os.get_blocking(c.fileno()))\n    \
                try: os.read(c.fileno(), 1)\n    \
                except BlockingIOError: print('EAGAIN')\n    \
                raise SystemExit\n\
            c.setblocking(False)\n\
            os.write(goes, b'x')\n\
            os.wait()";
        let running = up.over(&[python, "-c", program]).spawn().unwrap();
        let _stream = connect(SocketAddr::from((AGENT, 7000)));
        let output = running.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "False\nEAGAIN\n", "{output:?}");
    });
}

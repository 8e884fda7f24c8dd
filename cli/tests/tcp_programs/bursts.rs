//! Bursts of connections from Linux to an unmodified server that speaks first.

use std::process::Command;

use crate::network::{AGENT, Up, in_a_network, python, server};

/// Accepts, says hello and closes. Arguments: its address, its port, its backlog.
const SERVER: &str = r"
import socket, sys
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind((sys.argv[1], int(sys.argv[2])))
listener.listen(int(sys.argv[3]))
while True:
    connection, _ = listener.accept()
    connection.send(b'hello')
    connection.close()
";

/// Opens connections all at once, and prints how many got a hello, and the errors. Gives up after two minutes without an event.
/// Arguments: address, port, number.
const CLIENT: &str = r"
import select, socket, sys, time
events, sockets, heard, errors = select.epoll(), {}, 0, []
for _ in range(int(sys.argv[3])):
    one = socket.socket()
    one.setblocking(False)
    one.connect_ex((sys.argv[1], int(sys.argv[2])))
    sockets[one.fileno()] = one
    events.register(one.fileno(), select.EPOLLIN)
end = time.monotonic() + 120
while sockets and time.monotonic() < end:
    for number, _ in events.poll(1):
        end = time.monotonic() + 120
        one = sockets.pop(number)
        try:
            heard += one.recv(100) == b'hello'
        except OSError as error:
            errors.append(error.errno)
        events.unregister(number)
        one.close()
print(heard, errors)
";

#[test]
fn a_burst_of_connections_is_served_whatever_the_backlog() {
    in_a_network(|| {
        let Some(python) = python() else { return };
        let up = Up::new();
        let address = std::net::Ipv4Addr::from(AGENT).to_string();
        for (port, backlog) in [(7777, 16), (7778, 128), (7779, 1024)] {
            let program = [SERVER, &address, &port.to_string(), &backlog.to_string()];
            let program = [&[python, "-c"], &program[..]].concat();
            let _server = server(&up, "server.log", &program, port);
            for count in [200, 900] {
                let arguments = [CLIENT, &address, &port.to_string(), &count.to_string()];
                let output = Command::new(python).arg("-c").args(arguments).output().unwrap();
                let said = String::from_utf8_lossy(&output.stdout).into_owned();
                assert_eq!(said.trim(), format!("{count} []"), "backlog {backlog}: {output:?}");
            }
        }
    });
}

//! Programs that a debugger or tracer stops at every system call, by ptrace(2).

use std::fs;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::network::{Running, Up, has, in_a_network, python, server, within_patience};
use crate::servers::echo;

const STRACE: &str = "/usr/bin/strace";
/// Echoes in a thread for each connection, or in a child.
const SERVER: &str = "import socketserver, sys\n\
    class Echo(socketserver.BaseRequestHandler):\n    \
        def handle(self):\n        \
            while data := self.request.recv(5000): self.request.sendall(data)\n\
    class Threads(socketserver.ThreadingTCPServer):\n    \
        allow_reuse_address = daemon_threads = True\n\
    class Children(socketserver.ForkingTCPServer):\n    \
        allow_reuse_address = True\n\
    server = {'threads': Threads, 'children': Children}[sys.argv[1]]\n\
    server(('10.77.0.2', 7000), Echo).serve_forever()\n";

#[test]
fn server_serves_while_a_tracer_is_attached_and_after_it_has_left() {
    in_a_network(|| {
        let Some(python) = python() else { return };
        if !has(STRACE, "strace") {
            return;
        }
        let up = Up::new();
        let script = up.path("server.py");
        fs::write(&script, SERVER).unwrap();
        for kind in ["threads", "children"] {
            let served = server(&up, "log", &[python, script.to_str().unwrap(), kind], 7000);
            echo(7000);
            let (trace, id) = (up.path("trace"), served.0.id().to_string());
            let mut tracer = Command::new(STRACE);
            tracer.args(["-f", "-o", trace.to_str().unwrap(), "-p", &id]);
            let mut tracer = Running(tracer.stderr(Stdio::null()).spawn().unwrap());
            let status = format!("/proc/{id}/status");
            let tracer_of = || {
                let about = fs::read_to_string(&status).unwrap();
                let line = about.lines().find_map(|line| line.strip_prefix("TracerPid:"));
                line.unwrap().trim().to_owned()
            };
            within_patience("a tracer", || (tracer_of() != "0").then_some(()));
            echo(7000);
            kill_process(Pid::from_child(&tracer.0), Signal::INT).unwrap();
            tracer.0.wait().unwrap();
            assert_eq!(tracer_of(), "0");
            assert!(fs::read_to_string(&trace).unwrap().contains("write("), "{kind}");
            echo(7000);
        }
    });
}

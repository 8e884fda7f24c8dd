//! Servers whose processes give a connection to each other: small programs over an agent and over Linux. Answers and output are equal.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use wave_skip::skip;

use crate::network::{AGENT, LINUX, Running, Up, command, connect, in_a_network, python};

const PRELUDE: &str = include_str!("cases/prelude.py");
const PORT: u16 = 7000;
const BYTES: usize = 3_000_000;

/// What the peer receives, what the program prints, and its status.
type Outcome = (Vec<u8>, [String; 2], Option<i32>);

/// Sends bytes to a program that listens at this address, and to its standard input a byte once it must read.
fn outcome(mut command: Command, ip: [u8; 4], log: &Path) -> Outcome {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(log).unwrap());
    let mut program = Running(command.spawn().unwrap());
    let mut stream = connect(SocketAddr::from((ip, PORT)));
    let bytes: Vec<u8> =
        (0..BYTES as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    stream.set_nonblocking(true).unwrap();
    let mut sent = 0;
    while sent < bytes.len() {
        match stream.write(&bytes[sent..]) {
            Ok(count) => sent += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
    stream.set_nonblocking(false).unwrap();
    program.0.stdin.take().unwrap().write_all(b"\n").unwrap();
    let mut answer = Vec::new();
    let mut writer = stream.try_clone().unwrap();
    thread::scope(|scope| {
        let rest = &bytes[sent..];
        scope.spawn(move || writer.write_all(rest).and_then(|()| writer.shutdown(Shutdown::Write)));
        // The answer says how it ends.
        if let Err(error) = stream.read_to_end(&mut answer) {
            answer.extend(format!("{:?}", error.kind()).bytes());
        }
    });
    let mut said = String::new();
    program.0.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    let status = program.0.wait().unwrap().code();
    assert!(answer == bytes || ip == AGENT, "{} bytes over Linux: {said}", answer.len());
    (answer, [said, fs::read_to_string(log).unwrap()], status)
}

/// Runs a case over Linux and over the agent. `words` are its other arguments.
fn compare(up: &Up, case: &str, words: &[&str]) {
    let Some(python) = python() else { return };
    let script = up.path("case.py");
    fs::write(&script, format!("{PRELUDE}\n{case}")).unwrap();
    let port = PORT.to_string();
    let [theirs, ours] = [LINUX, AGENT].map(|ip| {
        let address = Ipv4Addr::from(ip).to_string();
        let all = [&[python, script.to_str().unwrap(), &address, &port], words].concat();
        let mut command = match ip {
            AGENT => up.over(&all),
            _ => command(&all),
        };
        command.current_dir(up.folder.path());
        outcome(command, ip, &up.path(&address))
    });
    assert_eq!(ours.1, theirs.1);
    assert!(ours.0 == theirs.0, "{} and {} bytes", ours.0.len(), theirs.0.len());
    assert_eq!(ours.2, theirs.2);
}

#[test]
fn child_that_reads_late_gets_all_that_its_peer_has_sent() {
    in_a_network(|| compare(&Up::new(), include_str!("cases/late_child.py"), &[]));
}

#[test]
fn child_goes_on_where_its_parent_has_stopped_reading() {
    in_a_network(|| compare(&Up::new(), include_str!("cases/reading_parent.py"), &[]));
}

#[test]
fn connection_that_was_demoted_is_passed_on_with_its_names() {
    in_a_network(|| {
        compare(&Up::new(), include_str!("cases/demoted_and_passed.py"), &["accepts"]);
    });
}

#[test]
fn child_of_a_process_in_another_root_serves() {
    in_a_network(|| compare(&Up::new(), include_str!("cases/chroot.py"), &[]));
}

#[test]
fn children_by_clone_in_other_namespaces_serve() {
    in_a_network(|| compare(&Up::new(), include_str!("cases/clone.py"), &[]));
}

/// Passes sockets on as this user.
fn pass_on(user: &'static str) {
    in_a_network(move || {
        compare(&Up::allowing(user), include_str!("cases/passing.py"), &["listens", user]);
    });
}

#[test]
fn programs_get_sockets_from_each_other() {
    pass_on("0");
}

/// Without CAP_NET_ADMIN, newer kernels allow no socket filters.
#[test]
fn programs_get_sockets_from_each_other_without_privileges() {
    pass_on("65534");
}

/// Echoes from the descriptor that is its argument, or from 0 to 1.
const CAT: &str = "#include <stdlib.h>\n#include <unistd.h>\nchar b[5000];\n\
    int main(int c, char **v) { int in = c > 1 ? atoi(v[1]) : 0, out = c > 1 ? in : 1;\n\
    ssize_t n, k, w; while ((n = read(in, b, sizeof b)) > 0)\n\
    for (k = 0; k < n; k += w) if ((w = write(out, b + k, n - k)) < 0) return 1;\n\
    return n != 0; }\n";

/// The connection becomes a stream of the kernel's before such a program begins.
#[test]
fn programs_without_the_library_serve_connections() {
    in_a_network(|| {
        let up = Up::new();
        let (source, program) = (up.path("cat.c"), up.path("cat"));
        let dynamic = up.path("cat.dynamic");
        fs::write(&source, CAT).unwrap();
        for (file, options) in [(&program, &["-static"][..]), (&dynamic, &[])] {
            let built = Command::new("cc").args(options).arg(&source).arg("-o").arg(file).output();
            if !built.is_ok_and(|built| built.status.success()) {
                return skip(
                    "there is no C compiler that links statically: apt-get install gcc libc6-dev",
                );
            }
        }
        let ways = [
            "standard",
            "subprocess",
            "environment",
            "spawn",
            "spawn_dup",
            "system",
            "script",
            "fork",
            "execl",
            "execlp",
        ];
        for way in ways {
            println!("{way}");
            let words = [program.to_str().unwrap(), way];
            compare(&up, include_str!("cases/static_child.py"), &words);
        }
    });
}

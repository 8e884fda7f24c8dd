//! How connections end, and what shutdown(2) does, where several processes have them or one is killed: small programs over an agent and
//! over Linux.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::process::{Command, Stdio};

use crate::network::{AGENT, LINUX, Running, Up, command, connect, in_a_network, python};

/// Accepts a connection `c`. Then a case follows.
const PRELUDE: &str = "import os, signal, socket, sys\n\
     c, _ = socket.create_server((sys.argv[1], 7000)).accept()\n";

/// How many bytes the peer reads, the kind of its error, if it has one, and what the program prints. The peer sends so many bytes first, and
/// "hello" at the end of the program's stream.
fn outcome(mut program: Command, ip: [u8; 4], bytes: usize) -> (usize, String, String) {
    let mut program = Running(program.stdout(Stdio::piped()).spawn().unwrap());
    let mut stream = connect(SocketAddr::from((ip, 7000)));
    stream.write_all(&vec![b'x'; bytes]).unwrap();
    let mut got = Vec::new();
    let error = stream.read_to_end(&mut got).err();
    if error.is_none() {
        // The program may have gone.
        let _ = stream.write_all(b"hello").and_then(|()| stream.shutdown(Shutdown::Write));
    }
    let mut said = String::new();
    program.0.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    (got.len(), format!("{:?}", error.map(|error| error.kind())), said)
}

/// Runs a case over Linux and over the agent. What the two have in common.
fn compare(up: &Up, case: &str, bytes: usize) -> Option<(usize, String, String)> {
    let python = python()?;
    let script = format!("{PRELUDE}{case}");
    let [agent, linux] = [AGENT, LINUX].map(|ip| Ipv4Addr::from(ip).to_string());
    let theirs = outcome(command(&[python, "-c", &script, &linux]), LINUX, bytes);
    let ours = outcome(up.over(&[python, "-c", &script, &agent]), AGENT, bytes);
    assert_eq!(ours, theirs, "{case}");
    Some(ours)
}

#[test]
fn bytes_that_a_process_has_read_before_it_ends_are_no_reason_for_a_reset() {
    in_a_network(|| {
        let up = Up::new();
        for end in
            ["os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)", "sys.exit()", "c.close()"]
        {
            for (bytes, kind) in [(5_000, "None"), (5_001, "Some(ConnectionReset)")] {
                let case = format!("c.recv(5000, socket.MSG_WAITALL)\n{end}\n");
                let Some((_, error, _)) = compare(&up, &case, bytes) else { return };
                assert_eq!(error, kind, "{case}");
            }
        }
        // A child that is forked later uses it no more.
        let forks =
            "c.recv(5000, socket.MSG_WAITALL)\nif os.fork() == 0: os._exit(0)\nos._exit(0)\n";
        compare(&up, forks, 5_000);
    });
}

#[test]
fn answer_of_a_process_that_is_killed_reaches_a_peer_all_of_whose_bytes_were_read() {
    in_a_network(|| {
        let up = Up::new();
        let case = "c.recv(5000, socket.MSG_WAITALL)\n\
             c.sendall(b'y' * 200000)\n\
             c.recv(5000, socket.MSG_WAITALL)\n\
             os.kill(os.getpid(), signal.SIGKILL)\n";
        let Some((got, ..)) = compare(&up, case, 10_000) else { return };
        assert_eq!(got, 200_000);
    });
}

#[test]
fn shutdown_of_one_process_holds_for_all_that_have_the_connection() {
    in_a_network(|| {
        let up = Up::new();
        // A child uses it once its parent has shut it down. The peer's next bytes may meet it before or after.
        let child = |how: &str, uses: &str| {
            format!(
                "here, there = os.pipe()\n\
                 if (child := os.fork()) == 0:\n    \
                     os.read(here, 1)\n    \
                     try:\n        \
                         {uses}\n    \
                     except (BrokenPipeError, ConnectionResetError): print('refused')\n    \
                     sys.stdout.flush()\n    \
                     os._exit(0)\n\
                 c.shutdown(socket.{how})\n\
                 os.write(there, b'x')\n\
                 os.waitpid(child, 0)\n\
                 c.close()\n"
            )
        };
        let cases = [
            child("SHUT_WR", "c.sendall(b'x')"),
            child("SHUT_WR", "print(c.recv(5, socket.MSG_WAITALL))"),
            child("SHUT_RD", "print(c.recv(5))"),
            child("SHUT_RD", "c.sendall(b'x')"),
            child("SHUT_RDWR", "c.sendall(b'x')"),
        ];
        for case in cases {
            let Some((_, error, _)) = compare(&up, &case, 0) else { return };
            assert_eq!(error, "None", "{case}");
        }
    });
}

/// The parent and its child use it in turn.
#[test]
fn connection_with_so_linger_is_shared_and_ends_as_the_option_says() {
    in_a_network(|| {
        let up = Up::new();
        // A reset may overtake what was sent.
        for (seconds, kind, sent) in [(5, "None", "more"), (0, "Some(ConnectionReset)", "")] {
            let case = format!(
                "import struct\n\
                 option = struct.pack('ii', 1, {seconds})\n\
                 c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, option)\n\
                 here, there = os.pipe()\n\
                 if (child := os.fork()) == 0:\n    \
                     c.recv(1)\n    \
                     c.sendall(b'{sent}')\n    \
                     os.write(there, b'x')\n    \
                     os._exit(0)\n\
                 os.read(here, 1)\n\
                 os.waitpid(child, 0)\n\
                 c.recv(1)\n\
                 c.sendall(b'{sent}')\n\
                 print(c.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8) == option)\n\
                 c.close()\n"
            );
            let Some((_, error, said)) = compare(&up, &case, 2) else { return };
            assert!(error == kind && said == "True\n", "{case}: {error}, {said}");
        }
        up.awaits("demoted", 2);
    });
}

#[test]
fn connection_whose_sender_is_shut_down_is_passed_on() {
    in_a_network(|| {
        let up = Up::new();
        let read = "c.shutdown(socket.SHUT_WR)\nos.set_inheritable(c.fileno(), True)\n";
        let fd = "{c.fileno()}";
        let cases = [
            format!("{read}os.system(f'head -c 5 <&{fd}')\n"),
            format!(
                "{read}import subprocess\nprint(subprocess.run(['head', '-c', '5'], stdin=c, capture_output=True).stdout)\n"
            ),
            format!(
                "{read}os.execvp('sh', ['sh', '-c', f'head -c 5 <&{fd}; echo x >&{fd}; echo $?'])\n"
            ),
            // Both streams have ended. A shell passes the connection on.
            format!(
                "{read}import select\np = select.poll()\np.register(c, select.POLLRDHUP)\np.poll()\n\
                 os.system(\"%s -c 'import os; print(os.read(%d, 5))'\" % (sys.executable, c.fileno()))\n\
                 try: c.send(b'x')\nexcept BrokenPipeError: print('refused')\n"
            ),
            format!("{read}os.dup2(c.fileno(), 0)\nprint(os.read(0, 5))\n"),
        ];
        for case in cases {
            let Some((_, error, said)) = compare(&up, &case, 0) else { return };
            assert!(error == "None" && said.contains("hello"), "{case}: {error}, {said}");
        }
    });
}

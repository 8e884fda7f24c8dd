//! Programs that make a connection the standard input and output of another one: socat, and the shell's redirections.

use std::fs::File;
use std::net::SocketAddr;
use std::process::Child;

use crate::matrix::arrangements::{Arrangement, compare};
use crate::matrix::http;
use crate::matrix::transcript::Transcript;
use crate::network::{LINUX, Up, command, in_a_network};
use crate::several::echo_at;

const SOCAT: &str = "/usr/bin/socat";
const PORT: u16 = 7000;

/// Sends the file `sent` to a server, and writes its answer to a file.
fn send(site: &Arrangement, port: u16, answer: &str) -> Child {
    let to = format!("TCP:{}:{port}", site.ip());
    let mut command = site.client(&[SOCAT, "-t", "100", "-", &to]);
    command.stdin(File::open(site.file("sent")).unwrap());
    command.stdout(File::create(site.file(answer)).unwrap()).spawn().unwrap()
}

fn socat(site: &Arrangement, transcript: &mut Transcript) {
    site.write("sent", http::body(1_000_003).repeat(50));
    let programs = [
        "EXEC:cat",
        "SYSTEM:cat; echo end >&2",
        "EXEC:cat,nofork",
        "SYSTEM:wc -c,nofork",
        "OPEN:put,creat,trunc",
    ];
    let _servers: Vec<_> = (PORT..)
        .zip(programs)
        .map(|(port, program)| {
            let listen = format!("TCP-LISTEN:{port},bind={},reuseaddr,fork", site.ip());
            site.serve(port, &[SOCAT, &listen, program])
        })
        .collect();
    for (at, program) in (0..).zip(programs).take(3) {
        assert!(send(site, PORT + at, "echo").wait().unwrap().success(), "{program}");
        site.same("sent", "echo");
    }
    send(site, PORT + 3, "count").wait().unwrap();
    transcript.add("count", &std::fs::read(site.file("count")).unwrap());

    // Several at once.
    let names = ["one", "two", "three"];
    let running = names.map(|name| send(site, PORT, name));
    running.into_iter().for_each(|mut child| assert!(child.wait().unwrap().success()));
    names.iter().for_each(|name| site.same("sent", name));

    // The client runs programs, too.
    let to = format!("TCP:{}:{PORT}", site.ip());
    for way in ["EXEC:sh ask", "SYSTEM:sh ask", "EXEC:sh ask,nofork", "EXEC:sh ask,pty,raw,echo=0"]
    {
        site.write("ask", "echo question; read -r answer; echo \"answer: $answer\" >>answers\n");
        site.record(transcript, &mut site.client(&[SOCAT, &to, way]));
    }
    transcript.add("answers", &std::fs::read(site.file("answers")).unwrap());
    let text: String = (0..200).map(|line| format!("line {line}\n")).collect();
    let mut lines = site.client(&[SOCAT, "-t", "100", "-", &to]);
    lines.stdin(File::open(site.write("lines", text)).unwrap());
    site.record(transcript, &mut lines);
}

#[test]
fn socat_behaves_over_an_agent_as_over_linux() {
    compare(&[(SOCAT, "socat")], socat);
}

/// Arguments: address, port of an echo server, port of an HTTP server.
const REDIRECTIONS: &str = r#"
exec 3<>/dev/tcp/$1/$2
echo hello >&3; read -r line <&3; echo "got: $line"
seq 100000 >&3 & head -n 100000 <&3 | cksum; wait
exec 4>&3 3>&-
(echo by a subshell >&4; read -r line <&4; echo "subshell: $line")
printf 'a\nb\nc\n' >&4; for at in 1 2 3; do read -r line <&4; echo "$line"; done
bash -c 'echo by a child >&4; read -r line <&4; echo "child: $line"'
echo after >&4; read -r line <&4; echo "$line"
exec 6<&4-
while read -r line; do echo "loop: $line"; [ "$line" = end ] && break; done <&6 & printf 'x\ny\nend\n' >&6; wait
cat >&6 <<<'by cat'; head -c 7 <&6
{ echo question; read -r line; echo "answer: $line" >&2; } <&6 >&6 2>&1
read -r line <&6; echo "$line"
exec 6>&-
exec 5<>/dev/tcp/$1/$3
printf 'GET /5000000 HTTP/1.0\r\n\r\n' >&5
cksum <&5
exec 5>&-
(echo nobody >/dev/tcp/$1/9) 2>/dev/null || echo refused
exec 0<>/dev/tcp/$1/$2 1>&0
echo standard; read -r line; echo "$line" >&2
"#;

#[test]
fn redirections_of_a_shell_behave_over_an_agent_as_over_linux() {
    in_a_network(|| {
        let up = Up::new();
        let script = up.path("redirections");
        std::fs::write(&script, REDIRECTIONS).unwrap();
        http::serve(SocketAddr::from((LINUX, 8000)), 0);
        let (echo, ip) = (echo_at(LINUX).to_string(), "10.77.0.1");
        let words = ["bash", script.to_str().unwrap(), ip, &echo, "8000"];
        let [theirs, ours] = [false, true].map(|is_over| {
            let mut command = if is_over { up.over(&words) } else { command(&words) };
            let output = command.output().unwrap();
            let said = [output.stdout, output.stderr].map(|said| String::from_utf8(said).unwrap());
            (said, output.status)
        });
        assert_eq!(ours, theirs);
        assert!(theirs.0[0].contains("loop: end") && theirs.0[1] == "standard\n", "{theirs:?}");
        up.awaits("demoted", 1);
    });
}

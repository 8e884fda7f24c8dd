//! OpenSSH: a server whose process before authentication is in a sandbox, and whose sessions are processes that share a connection.

use std::fs;
use std::process::Command;

use crate::matrix::arrangements::{Arrangement, compare};
use crate::matrix::transcript::Transcript;
use crate::matrix::{Tree, http};

const SSHD: &str = "/usr/sbin/sshd";
/// Where the server's processes without privileges have their root.
const EMPTY: &str = "/run/sshd";
const PORT: u16 = 2222;

fn sshd(site: &Arrangement) -> Tree {
    fs::create_dir_all(EMPTY).unwrap();
    for key in ["host", "user"] {
        let made = Command::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-f", &site.file(key)])
            .status();
        assert!(made.unwrap().success());
    }
    let config = format!(
        "ListenAddress {}:{PORT}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nStrictModes no\nUsePAM no\n\
         PermitRootLogin yes\nSubsystem sftp internal-sftp\n",
        site.ip(),
        site.file("host"),
        site.file("user.pub")
    );
    site.serve(PORT, &[SSHD, "-D", "-e", "-f", &site.write("sshd.conf", config)])
}

fn session(site: &Arrangement, transcript: &mut Transcript) {
    let _server = sshd(site);
    let config = format!(
        "Port {PORT}\nUser root\nIdentityFile {}\nIdentitiesOnly yes\nBatchMode yes\nLogLevel ERROR\n\
         StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\n",
        site.file("user")
    );
    let (config, ip) = (site.write("ssh.conf", config), site.ip());
    let ssh = |command: &str| site.client(&["ssh", "-F", &config, &ip, command]);
    site.record(transcript, &mut ssh("echo to output; echo to errors >&2; exit 3"));
    site.record(transcript, &mut ssh("seq 20000"));
    let tty = ["ssh", "-F", &config, "-tt", &ip, "tty >/dev/null && echo a terminal"];
    site.record(transcript, &mut site.client(&tty));
    site.write("sent", http::body(5_000_000));
    let echo = ssh("cat").stdin(fs::File::open(site.file("sent")).unwrap()).output().unwrap();
    site.write("echo", echo.stdout);

    let there = |name: &str| format!("{ip}:{}", site.file(name));
    for more in [&[][..], &["-O"]] {
        let scp = |from: &str, to: &str| {
            site.client(&[&["scp", "-F", &config], more, &[from, to]].concat())
        };
        site.record(transcript, &mut scp(&site.file("sent"), &there("put")));
        site.record(transcript, &mut scp(&there("put"), &site.file("got")));
        site.same("sent", "put");
        site.same("sent", "got");
    }
    site.same("sent", "echo");

    fs::create_dir(site.file("tree")).unwrap();
    site.write("tree/small", "small\n");
    site.write("tree/large", http::body(5_000_000));
    let shell = format!("ssh -F {config}");
    let rsync = |from: &str, to: &str| {
        site.client(&["rsync", "-rl", "--out-format=%n %l", "-e", &shell, from, to])
    };
    site.record(transcript, &mut rsync(&site.file("tree/"), &there("there/")));
    site.record(transcript, &mut rsync(&there("there/"), &site.file("back/")));
    for name in ["small", "large"] {
        site.same(&format!("tree/{name}"), &format!("there/{name}"));
        site.same(&format!("tree/{name}"), &format!("back/{name}"));
    }
}

#[test]
fn ssh_scp_and_rsync_behave_over_an_agent_as_over_linux() {
    compare(
        &[
            (SSHD, "openssh-server"),
            ("/usr/bin/ssh", "openssh-client"),
            ("/usr/bin/rsync", "rsync"),
        ],
        session,
    );
}

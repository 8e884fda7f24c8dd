//! Output without a reader: commands end as other programs do, and servers keep serving.

use std::fs::File;
use std::io::{PipeReader, PipeWriter, Read, pipe};
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

fn wave(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wave"));
    command.args(line.split_whitespace()).stdin(Stdio::null());
    command
}

/// A pipe whose reading end is closed.
fn closed() -> PipeWriter {
    pipe().unwrap().1
}

/// A full pipe that is not read.
fn full() -> (PipeReader, PipeWriter) {
    use std::io::Write;
    let (reader, mut writer) = pipe().unwrap();
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    loop {
        let mut wanted = [PollFd::new(&writer, PollFlags::OUT)];
        poll(&mut wanted, Some(&at_once)).unwrap();
        if wanted[0].revents().is_empty() {
            return (reader, writer);
        }
        writer.write_all(&[b'x'; 4096]).unwrap();
    }
}

fn ends_by_sigpipe(mut command: Command) {
    let Output { status, stderr, .. } =
        command.stdout(closed()).stderr(Stdio::piped()).output().unwrap();
    let stderr = String::from_utf8_lossy(&stderr);
    assert_eq!(status.signal(), Some(Signal::PIPE.as_raw()), "{status}: {stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
}

#[test]
fn doctor_piped_into_head_ends_quietly() {
    ends_by_sigpipe(wave("doctor"));
    ends_by_sigpipe(wave("doctor --json"));
}

#[test]
fn reproduce_piped_into_head_ends_quietly() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().display();
    ends_by_sigpipe(wave(&format!("reproduce table2 -q --out {out}")));
}

#[test]
fn output_to_a_full_disk_is_reported() {
    let full = || File::options().write(true).open("/dev/full").unwrap();
    for command in ["doctor", "agent --policies"] {
        let Output { status, stderr, .. } =
            wave(command).stdout(full()).stderr(Stdio::piped()).output().unwrap();
        let stderr = String::from_utf8_lossy(&stderr);
        assert_eq!(status.code(), Some(3), "{stderr}");
        assert!(stderr.contains("standard output cannot be written"), "{stderr}");
        assert!(!stderr.contains("panicked"), "{stderr}");
    }
    // Neither output can be written, so there is no message.
    let status = wave("doctor").stdout(full()).stderr(full()).status().unwrap();
    assert_eq!(status.code(), Some(3));
    let status = wave("run none.toml").stdout(full()).stderr(full()).status().unwrap();
    assert_eq!(status.code(), Some(2));
}

/// A serving process, ended by SIGTERM with the test.
struct Serving(Child);

impl Serving {
    fn end(&mut self, signal: Signal) -> Option<i32> {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
        self.0.wait().unwrap().code()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            // SIGTERM rather than SIGKILL, so that a host removes its database.
            let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
            let _ = self.0.wait();
        }
    }
}

fn host(socket: &Path, unread: &dyn Fn() -> Stdio) -> Serving {
    let line = format!("serve kv --offload {} --keys 10", socket.display());
    Serving(wave(&line).stdout(unread()).stderr(unread()).spawn().unwrap())
}

/// Checks that the front and its host serve, also after the host has ended and restarted, and that both end on request.
fn they_serve(unread: &dyn Fn() -> Stdio) {
    let folder = TempDir::new().unwrap();
    let socket = folder.path().join("kv.sock");
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut first = host(&socket, unread);
    let line = format!("agent --rpc {} --listen {address} --share-cpu", socket.display());
    let mut front = Serving(wave(&line).stdout(unread()).stderr(unread()).spawn().unwrap());
    calls_are_served(&mut front, &address.to_string());
    assert_eq!(first.end(Signal::TERM), Some(0));
    assert!(!socket.exists());
    let mut second = host(&socket, unread);
    calls_are_served(&mut front, &address.to_string());
    assert_eq!(front.end(Signal::TERM), Some(0));
    assert_eq!(second.end(Signal::INT), Some(0));
    assert!(!socket.exists());
}

/// Waits until calls succeed: the front then has both a port and a host.
fn calls_are_served(front: &mut Serving, address: &str) {
    let line = format!(
        "load grpc --target {address} --closed --mix echo=1 --seconds 0.2 --warm-up 0 --json"
    );
    loop {
        assert_eq!(front.0.try_wait().unwrap(), None, "the front has ended");
        let output = wave(&line).stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(0) => return,
            // The front does not listen yet, or has no host yet: every call was refused.
            Some(3) if stderr.contains("is a server listening there?") => {}
            Some(1) if stderr.contains("no call ended with OK") => {}
            code => panic!("{code:?}: {stderr}"),
        }
    }
}

#[test]
fn agent_keeps_serving_when_its_output_pipe_is_closed() {
    they_serve(&|| closed().into());
}

#[test]
fn agent_keeps_serving_when_its_output_pipe_is_full() {
    let (reader, writer) = full();
    they_serve(&|| writer.try_clone().unwrap().into());
    drop(writer);
    // Output without room in the pipe was dropped, without waiting.
    let mut text = String::new();
    { reader }.read_to_string(&mut text).unwrap();
    assert!(text.bytes().all(|byte| byte == b'x'), "{}", text.trim_start_matches('x'));
}

#[test]
fn serve_creates_no_folders() {
    let folder = TempDir::new().unwrap();
    let socket = folder.path().join("typo/kv.sock");
    let line = format!("serve kv --offload {} --keys 10 --quiet", socket.display());
    let output = wave(&line).stderr(Stdio::piped()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    assert!(stderr.contains("the folder of") && stderr.contains("does not exist"), "{stderr}");
    assert!(!folder.path().join("typo").exists());
}

#[test]
fn serve_without_memory_exits_with_an_error() {
    let folder = TempDir::new().unwrap();
    let socket = folder.path().join("kv.sock");
    // With a limit on total memory alone, it is chance whether RocksDB's threads fit. Of stacks this large, two never do.
    let command =
        "ulimit -s 100000; ulimit -v 200000; exec \"$0\" serve kv --quiet --offload \"$1\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", command, env!("CARGO_BIN_EXE_wave")]).arg(&socket);
    let output = shell.stdin(Stdio::null()).stderr(Stdio::piped()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{}: {stderr}", output.status);
    assert!(stderr.starts_with("wave") && stderr.lines().count() == 1, "{stderr}");
    assert!(!socket.exists());
}

//! Programs in C, compiled against both libraries: the guide's example behind an agent's front, called by a gRPC client; and a
//! program that misuses every function. Both run under valgrind, if it is installed.

#[allow(dead_code, reason = "the front's own tests use all of it")]
#[path = "../../../fronts/grpc/tests/front/client.rs"]
mod client;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use client::Client;
use wave_agent::{Seat, serve};
use wave_grpc::{Ender, Limits, RpcFront, RpcOptions};
use wave_skip::skip;

/// Exit code of valgrind if it finds an error.
const FOUND: i32 = 99;
/// Seconds after which a program counts as hung.
const PATIENCE_S: u32 = 300;
const LIBRARIES: [&str; 2] = ["libwave_rpc.a", "libwave_rpc.so"];

fn exists(tool: &str) -> bool {
    let mut tool = Command::new(tool);
    tool.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    tool.status().is_ok_and(|status| status.success())
}

/// Builds the two libraries, and returns their folder. Cargo does not build them for a test, which it expects to link only Rust code.
fn libraries() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        // target/PROFILE/deps/programs-HASH
        let own = std::env::current_exe().unwrap();
        let profile = own.parent().unwrap().parent().unwrap();
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--lib", "--quiet", "--locked", "--manifest-path"]).arg(manifest);
        cargo.arg("--target-dir").arg(profile.parent().unwrap());
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success(), "the libraries do not build");
        profile.to_owned()
    })
}

/// Compiles a program. Without a compiler, reports the skip and returns `None`.
fn compile(source: &str, library: &str, folder: &Path) -> Option<PathBuf> {
    if !exists("cc") {
        skip("there is no C compiler; on Debian, `apt-get install gcc libc6-dev`");
        return None;
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = folder.join(Path::new(source).file_stem().unwrap());
    let compiled = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g", "-O1", "-I"])
        .arg(here.join("include"))
        .arg(here.join(source))
        .arg(libraries().join(library))
        .args(["-lpthread", "-lm", "-ldl", "-o"])
        .arg(&program)
        .status();
    assert!(compiled.unwrap().success(), "cc does not compile {source}");
    Some(program)
}

/// The command for a program with a socket in its folder, under valgrind if it is installed.
fn command(program: &Path) -> Command {
    let mut command = Command::new("timeout");
    command.arg(PATIENCE_S.to_string());
    if exists("valgrind") {
        command.arg("valgrind");
        let strict = ["--leak-check=full", "--errors-for-leak-kinds=definite", "--fair-sched=yes"];
        command.arg("--quiet").args(strict).arg(format!("--error-exitcode={FOUND}"));
    } else {
        skip("valgrind's checks: it is not installed (apt-get install valgrind)");
    }
    command.arg(program).arg(program.with_file_name("socket"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A running program, which is killed if the test ends first.
struct Running(Option<Child>);

impl Running {
    /// Sends SIGTERM and waits for the program to exit.
    fn end(mut self) -> Output {
        let child = self.0.take().unwrap();
        let killed = Command::new("kill").arg(child.id().to_string()).status();
        assert!(killed.unwrap().success());
        child.wait_with_output().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

struct Front {
    address: SocketAddr,
    ender: Ender,
    thread: Option<JoinHandle<()>>,
}

impl Front {
    fn new(host: PathBuf) -> Front {
        let options = RpcOptions {
            host,
            listen: vec![([127, 0, 0, 1], 0).into()],
            steer: "jbsq:k=4".into(),
            tls: None,
            limits: Limits { drain: Duration::ZERO, ..Limits::default() },
            connection_cpus: Vec::new(),
            load_reports: false,
            seat: Seat::Shared,
            quiet: true,
        };
        let (sender, receiver) = channel();
        let thread = std::thread::spawn(move || {
            let mut front = RpcFront::new(options, Instant::now()).unwrap();
            sender.send((front.addresses()[0], front.ender())).unwrap();
            serve(&mut front);
        });
        let (address, ender) = receiver.recv().unwrap();
        Front { address, ender, thread: Some(thread) }
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.ender.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2];
    let mut length = bytes.len();
    while length > 0x7f {
        field.push(length as u8 | 0x80);
        length >>= 7;
    }
    field.push(length as u8);
    field.extend_from_slice(bytes);
    field
}

fn pair(key: &[u8], value: &[u8]) -> Vec<u8> {
    [field(1, key), field(2, value)].concat()
}

const PUT: &str = "/kv.Kv/Put";
const GET: &str = "/kv.Kv/Get";
const LIST: &str = "/kv.Kv/List";
const NEW: i32 = 5;
/// Number of pairs in the list: more than fit into a client's window.
const LISTED: u8 = 40;
const VALUE_BYTES: usize = 60_000;

/// Waits until the program serves, and returns a client.
async fn connect(front: &Front) -> Client {
    let mut client = Client::connect(front.address).await;
    while client.call(GET, &[], &[&pair(b"none", b"")]).await.code() != NEW {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    client
}

fn is_called(library: &str) {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compile("examples/kv.c", library, folder.path()) else { return };
    let mut command = command(&program);
    command.env("LD_LIBRARY_PATH", libraries());
    let running = Running(Some(command.spawn().unwrap()));
    let socket = program.with_file_name("socket");
    let front = Front::new(socket.clone());
    client::run(async {
        let mut client = connect(&front).await;
        let one = pair(b"one", b"1");
        assert_eq!(client.call(PUT, &[], &[&one]).await.code(), NEW);
        let got = client.call(GET, &[], &[&pair(b"one", b"")]).await.ok();
        assert_eq!(got.concat(), one);
        assert_eq!(client.call(PUT, &[], &[&pair(b"one", b"2")]).await.ok(), [one]);
        let answer = client.call(GET, &[], &[&pair(b"two", b"")]).await;
        assert_eq!((answer.code(), answer.text()), (5, "there is no such key"));
        assert_eq!(client.call(GET, &[], &[b"\xff\xff"]).await.code(), 3);
        assert_eq!(client.call(GET, &[], &[]).await.code(), 12);
        assert_eq!(client.call("/kv.Kv/None", &[], &[b""]).await.code(), 12);
        for number in 0..LISTED {
            let listed = pair(&[b'l', number], &vec![number; VALUE_BYTES]);
            assert_eq!(client.call(PUT, &[], &[&listed]).await.code(), NEW);
        }
        let all = client.call(LIST, &[], &[&pair(b"l", b"")]).await.ok();
        assert_eq!(all.len(), usize::from(LISTED));
        for (number, listed) in all.iter().enumerate() {
            let number = number as u8;
            assert_eq!(*listed, pair(&[b'l', number], &vec![number; VALUE_BYTES]));
        }
        assert!(client.call(LIST, &[], &[&pair(b"m", b"")]).await.ok().is_empty());
        // One List that is reset, one past its deadline, one that is never read: all wait for room.
        let mut reset = client.open(LIST, &[], false).await;
        reset.send(&pair(b"l", b""), true).await;
        assert!(reset.next().await.unwrap().is_some());
        drop(reset);
        // Long enough for the program to begin its reply under valgrind.
        let mut late = client.open(LIST, &[("grpc-timeout", "10S")], false).await;
        late.send(&pair(b"l", b""), true).await;
        assert!(late.next().await.unwrap().is_some());
        tokio::time::sleep(Duration::from_secs(10)).await;
        let mut unread = client.open(LIST, &[], false).await;
        unread.send(&pair(b"l", b""), true).await;
        assert!(unread.next().await.unwrap().is_some());
        // Their worker serves other calls meanwhile.
        assert_eq!(client.call(GET, &[], &[&pair(b"two", b"")]).await.code(), NEW);
    });
    // The agent ends, and its open calls with it; the program continues.
    drop(front);
    let front = Front::new(socket);
    let looks = client::run(async {
        let mut client = connect(&front).await;
        client.call(GET, &[], &[&pair(b"one", b"")]).await.ok()
    });
    assert_eq!(looks, [pair(b"one", b"2")]);
    let output = running.end();
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{library}: {err}");
    assert!(out.ends_with("calls ended, 3 of them cancelled\n"), "{out}{err}");
}

#[test]
fn example_program_serves_calls_through_an_agent() {
    is_called(LIBRARIES[0]);
}

#[test]
fn example_program_serves_calls_with_the_shared_library() {
    is_called(LIBRARIES[1]);
}

#[test]
fn misuse_of_the_library_returns_errors() {
    for library in LIBRARIES {
        let folder = tempfile::tempdir().unwrap();
        let Some(program) = compile("tests/misuse.c", library, folder.path()) else { return };
        let output = command(&program).env("LD_LIBRARY_PATH", libraries()).output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{library}: {err}");
    }
}

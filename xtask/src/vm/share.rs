//! Shares this machine's files with the guest, read-only: a virtiofsd that serves the root folder.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::output_of;

/// Where distributions install it; the first is QEMU's own from before version 8, written in C, the others are the one in Rust.
const PLACES: &[&str] = &[
    "/usr/lib/qemu/virtiofsd",
    "/usr/libexec/virtiofsd",
    "/usr/lib/virtiofsd",
    "/usr/bin/virtiofsd",
];

/// The program, if it is installed.
pub fn program() -> Option<PathBuf> {
    PLACES.iter().map(PathBuf::from).find(|path| path.is_file())
}

/// Whether the installed one works only for root: the one in C writes below `/var/run`.
pub fn needs_root() -> bool {
    program().is_some_and(|program| !is_in_rust(&options_of(&program).unwrap_or_default()))
}

fn options_of(program: &Path) -> Result<String, String> {
    let help = output_of(Command::new(program).arg("--help"))?;
    Ok(String::from_utf8_lossy(&help.stdout).into_owned())
}

fn is_in_rust(options: &str) -> bool {
    options.contains("--shared-dir")
}

/// Starts to serve on a socket. It ends by itself when QEMU does.
pub fn serve(socket: &Path, log: std::fs::File) -> Result<Child, String> {
    let program = program().ok_or("there is no virtiofsd")?;
    let options = options_of(&program)?;
    // It dies with this process if that is killed before QEMU connects.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(&program);
    command.arg(format!("--socket-path={}", socket.display()));
    // Files are cached for ever, as none changes during a run. Otherwise each open would drop the file's pages, from under
    // processes that have them locked: an agent would wait for a page that one of its own threads is reading.
    if is_in_rust(&options) {
        command.args(["--shared-dir", "/", "--sandbox", "none", "--cache", "always"]);
        // If announced, a mount point would be a mount in the guest too, and the overlay would show the empty folder beneath
        // it.
        let newer = ["--no-announce-submounts", "--readonly"];
        command.args(newer.iter().filter(|option| options.contains(**option)));
    } else {
        command.args(["-f", "-o", "source=/", "-o", "sandbox=chroot", "-o", "log_level=warn"]);
        command.args(["-o", "cache=always"]);
    }
    let errors = log.try_clone().map_err(|error| error.to_string())?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .spawn()
        .map_err(|error| format!("virtiofsd: {error}"))?;
    let result = wait_until_listening(&mut child, socket);
    if result.is_err() {
        let _ = child.kill();
        let _ = child.wait();
    }
    result.map(|()| child)
}

/// The socket's file exists before one can connect to it, and the first connection must be QEMU's. So this asks the kernel:
/// flag 0x10000 in `/proc/net/unix` marks a listening socket.
fn wait_until_listening(child: &mut Child, socket: &Path) -> Result<(), String> {
    let socket = socket.display().to_string();
    let limit = Instant::now() + Duration::from_secs(20);
    while Instant::now() < limit {
        let table = std::fs::read_to_string("/proc/net/unix").map_err(|error| error.to_string())?;
        let listens = |line: &str| {
            line.ends_with(&format!(" {socket}")) && line.split(' ').nth(3) == Some("00010000")
        };
        if table.lines().any(listens) {
            return Ok(());
        }
        if let Ok(Some(status)) = child.try_wait() {
            return Err(format!("virtiofsd ended before it listened ({status})"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err("virtiofsd did not start to listen in time".into())
}

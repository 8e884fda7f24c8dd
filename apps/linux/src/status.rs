//! Status of a run's enclaves for other processes: a client connects, and receives it once.
//!
//! Each run has a socket, named after its process. A thread of its own serves it, and waits no longer than [`PATIENCE`] for a
//! client, so that one that does not read delays the others only briefly.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use wave_process::places::own_dir;

use super::report::Report;

/// Folder of the sockets; root's.
pub use wave_process::places::ROOTS_RUNTIME_DIR as FOLDER;
const PREFIX: &str = "linux-";
const SUFFIX: &str = ".sock";
/// Longest time that either side waits for the other.
const PATIENCE: Duration = Duration::from_secs(1);
/// Polling interval for new clients.
const LOOK: Duration = Duration::from_millis(20);
/// Maximum length of an answer: some 100 bytes per thread.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
const STACK_BYTES: usize = 256 << 10;

/// Status of one `wave run --host linux`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// Process id of the command.
    pub pid: u32,
    pub enclaves: Vec<Enclave>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Enclave {
    #[serde(flatten)]
    pub report: Report,
    pub threads: Vec<Thread>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Thread {
    /// Process of the thread; None once it has ended.
    #[serde(default)]
    pub pid: Option<i32>,
    pub tid: i32,
    #[serde(default)]
    pub name: Option<String>,
    /// `new`, `waits`, `runs` or `blocked`.
    pub state: String,
    /// The CPU that the thread runs on.
    pub cpu: Option<usize>,
}

/// Serves the status. Stops on drop.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Sends the result of `tell` to each client that connects.
    pub fn start(tell: impl Fn() -> Run + Send + 'static) -> io::Result<Server> {
        let path = Path::new(FOLDER).join(format!("{PREFIX}{}{SUFFIX}", std::process::id()));
        Server::at(path, tell)
    }

    fn at(path: PathBuf, tell: impl Fn() -> Run + Send + 'static) -> io::Result<Server> {
        own_dir(path.parent().unwrap_or(Path::new("."))).map_err(io::Error::other)?;
        // A client takes a socket without a listener for one of a killed run, and removes it.
        let unseen = path.with_extension("new");
        // Left by an earlier process with our id.
        let _ = std::fs::remove_file(&unseen);
        let listener = UnixListener::bind(&unseen)?;
        std::fs::rename(&unseen, &path)?;
        listener.set_nonblocking(true)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let body = move || {
            while !stopped.load(Ordering::SeqCst) {
                match listener.accept() {
                    // A client that has gone or does not read misses the answer.
                    Ok((stream, _)) => drop(answer(stream, &tell())),
                    Err(_) => std::thread::sleep(LOOK),
                }
            }
        };
        let builder = std::thread::Builder::new().name("wave-status".into());
        let thread = Some(builder.stack_size(STACK_BYTES).spawn(body)?);
        Ok(Server { path, stop, thread })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Writes the answer within [`PATIENCE`] in total, however slowly the client reads.
fn answer(mut stream: UnixStream, run: &Run) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    let bytes = serde_json::to_vec(run)?;
    let until = std::time::Instant::now() + PATIENCE;
    let mut left = &bytes[..];
    while !left.is_empty() {
        let patience = until.saturating_duration_since(std::time::Instant::now());
        if patience.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_write_timeout(Some(patience))?;
        let written = stream.write(left)?;
        left = &left[written..];
    }
    Ok(())
}

/// Asks every run on this machine. Removes the sockets of killed runs.
pub fn runs() -> io::Result<Vec<Run>> {
    runs_in(Path::new(FOLDER))
}

fn runs_in(folder: &Path) -> io::Result<Vec<Run>> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut runs = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !(name.starts_with(PREFIX) && name.ends_with(SUFFIX)) {
            continue;
        }
        match ask(&path) {
            Ok(run) => runs.push(run),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(&path)?;
            }
            // The run has just ended.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(io::Error::new(error.kind(), format!("{name}: {error}"))),
        }
    }
    runs.sort_by_key(|run| run.pid);
    Ok(runs)
}

fn ask(path: &Path) -> io::Result<Run> {
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE * 5))?;
    let mut bytes = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut bytes)?;
    serde_json::from_slice(&bytes).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(threads: i32) -> Run {
        let thread = |tid| Thread { pid: None, tid, name: None, state: "waits".into(), cpu: None };
        let report: Report = serde_json::from_value(serde_json::json!({
            "name": null, "what": "true", "policy": "fifo", "seconds": 1.0, "agent_cpu": 3,
            "agent_decides": true, "agent_pid": 7, "cores": [], "outcomes": { "COMPLETE": 5 }, "agents": 1, "agents_lost": 0,
            "watchdog": 0, "faults": 0, "unwatched": 0, "snapshots": 1, "starved": 0, "threads_without_slot": 0,
            "turned_out": null,
        }))
        .unwrap();
        let threads = (0..threads).map(thread).collect();
        Run { pid: std::process::id(), enclaves: vec![Enclave { report, threads }] }
    }

    fn own_folder() -> tempfile::TempDir {
        let owners = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        tempfile::Builder::new().permissions(owners).tempdir().unwrap()
    }

    #[test]
    fn status_lists_live_runs_and_skips_sockets_of_killed_ones() {
        let folder = own_folder();
        let path = |name: &str| folder.path().join(name);
        assert!(runs_in(&path("none")).unwrap().is_empty());
        // As after SIGKILL: a socket file without a listener.
        drop(UnixListener::bind(path("linux-1.sock")).unwrap());
        std::fs::write(path("busybox"), "").unwrap();
        let server = Server::at(path("linux-2.sock"), || run(3)).unwrap();
        let runs = runs_in(folder.path()).unwrap();
        assert_eq!((runs.len(), runs[0].enclaves[0].threads.len()), (1, 3));
        assert_eq!(runs[0].enclaves[0].report.outcomes["COMPLETE"], 5);
        assert!(!path("linux-1.sock").exists() && path("busybox").exists());
        drop(server);
        assert!(!path("linux-2.sock").exists());
    }

    #[test]
    fn client_that_never_reads_delays_others_only_briefly() {
        let folder = own_folder();
        let path = folder.path().join("linux-3.sock");
        // More than the kernel buffers for a client.
        let server = Server::at(path.clone(), || run(50_000)).unwrap();
        let silent: Vec<_> = (0..2).map(|_| UnixStream::connect(&path).unwrap()).collect();
        assert_eq!(ask(&path).unwrap().enclaves[0].threads.len(), 50_000);
        drop(server);
        drop(silent);
    }
}

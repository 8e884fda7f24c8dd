//! Host and front as processes that are killed under load at any moment: every call ends for its client, and none begins
//! twice.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use wave_agent::{Seat, serve};
use wave_grpc::{Limits, RpcFront, RpcOptions};
use wave_rpc::status::{Code, Status};
use wave_user::rpc::{Call, Methods, Options, Server};

use crate::client::Client;
use crate::fixture::{connection_cores, cpus};

const SOCKET: &str = "WAVE_TEST_SOCKET";
const LEDGER: &str = "WAVE_TEST_LEDGER";
const ADDRESS: &str = "WAVE_TEST_ADDRESS";
const PATH: &str = "/test.Ledger/Add";
/// Number of kills of each of the two processes.
const KILLS: u32 = 20;
const CLIENTS: u64 = 8;

/// The host process's `main`: logs each call that begins. Does nothing when run as a test.
#[test]
fn host_process() {
    let (Some(socket), Some(ledger)) = (std::env::var_os(SOCKET), std::env::var_os(LEDGER)) else {
        return;
    };
    let ledger = OpenOptions::new().append(true).open(ledger).unwrap();
    let add = move |_: &mut Call<'_>, request: &[u8]| {
        // One write, so that a line is complete or absent; after it the call counts as begun.
        (&ledger)
            .write_all(request)
            .map_err(|error| Status::new(Code::Internal, error.to_string()))?;
        Ok(request.to_vec())
    };
    let mut options = Options::new(Path::new(&socket)).workers(2);
    options.yields_cpu = true;
    Server::start(options, Methods::new().unary(PATH, add)).unwrap().wait();
}

/// The agent process's `main`. Does nothing when run as a test.
#[test]
fn front_process() {
    let (Some(socket), Ok(address)) = (std::env::var_os(SOCKET), std::env::var(ADDRESS)) else {
        return;
    };
    let options = front_options(socket, &address, "jbsq:k=2");
    serve(&mut RpcFront::new(options, Instant::now()).unwrap());
}

/// Options of a front in a process of its own.
pub fn front_options(socket: OsString, address: &str, steer: &str) -> RpcOptions {
    RpcOptions {
        host: socket.into(),
        listen: vec![address.parse().unwrap()],
        steer: steer.to_owned(),
        tls: None,
        limits: Limits::default(),
        connection_cpus: cpus(connection_cores()),
        load_reports: false,
        seat: Seat::Shared,
        quiet: true,
    }
}

/// A process of this test binary, killed on drop.
pub struct Process(pub Child);

impl Process {
    pub fn start(role: &str, variables: &[(&str, PathBuf)]) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", role, "--quiet"]).stdout(Stdio::null());
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        Process(command.spawn().unwrap())
    }

    /// Stops the process by SIGSTOP, at any instruction.
    pub fn freeze(&self) {
        kill_process(Pid::from_child(&self.0), Signal::STOP).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[derive(Default)]
struct Books {
    answered: BTreeSet<u64>,
    /// Number of refusals, by gRPC's code.
    refused: BTreeMap<i32, u64>,
    /// Calls whose connection broke.
    broken: u64,
    sent: BTreeSet<u64>,
}

/// Makes calls by one client after the other until `is_over` is set.
async fn call(address: SocketAddr, next: Arc<AtomicU64>, is_over: Arc<AtomicBool>) -> Books {
    let mut books = Books::default();
    while let Some(mut client) = Client::connect_until(address, &is_over).await {
        while !is_over.load(SeqCst) && client.is_open().await {
            let id = next.fetch_add(1, SeqCst);
            books.sent.insert(id);
            match client.try_call(PATH, &id.to_le_bytes()).await {
                Ok(answer) if answer.code() == 0 => {
                    assert_eq!(answer.ok(), [id.to_le_bytes()]);
                    books.answered.insert(id);
                }
                Ok(answer) => {
                    *books.refused.entry(answer.code()).or_default() += 1;
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                Err(_) => {
                    books.broken += 1;
                    break;
                }
            }
        }
    }
    books
}

#[test]
fn no_call_begins_twice_or_is_lost_when_host_or_front_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, ledger) = (folder.path().join("host.sock"), folder.path().join("ledger"));
    std::fs::write(&ledger, []).unwrap();
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let host = || {
        Process::start(
            "killed::host_process",
            &[(SOCKET, socket.clone()), (LEDGER, ledger.clone())],
        )
    };
    let front = || {
        let address = address.to_string().into();
        Process::start("killed::front_process", &[(SOCKET, socket.clone()), (ADDRESS, address)])
    };
    let (mut hosts, mut fronts) = (Some(host()), Some(front()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (next, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let all = runtime.block_on(async {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| tokio::spawn(call(address, Arc::clone(&next), Arc::clone(&is_over))))
            .collect();
        for kill in 0..2 * KILLS {
            // Waits until both processes run again, and some calls were sent.
            let seen = next.load(SeqCst);
            while next.load(SeqCst) < seen + 100 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            tokio::time::sleep(Duration::from_millis(u64::from(kill * 7 % 40))).await;
            if kill % 2 == 0 {
                drop(hosts.take());
                hosts = Some(host());
            } else {
                drop(fronts.take());
                fronts = Some(front());
            }
        }
        is_over.store(true, SeqCst);
        let mut all = Books::default();
        for client in clients {
            let books = client.await.unwrap();
            all.answered.extend(books.answered);
            all.sent.extend(books.sent);
            all.broken += books.broken;
            for (code, count) in books.refused {
                *all.refused.entry(code).or_default() += count;
            }
        }
        all
    });
    drop((hosts, fronts));
    let bytes = std::fs::read(&ledger).unwrap();
    let (begun, rest) = bytes.as_chunks::<8>();
    assert!(rest.is_empty(), "a host was killed in the middle of a write");
    let ids: BTreeSet<u64> = begun.iter().map(|id| u64::from_le_bytes(*id)).collect();
    assert_eq!(ids.len(), begun.len(), "a call began twice");
    assert!(ids.is_subset(&all.sent), "a call began that no client sent");
    assert!(all.answered.is_subset(&ids), "a call was answered that no handler began");
    let refused: u64 = all.refused.values().sum();
    let ended = all.answered.len() as u64 + refused + all.broken;
    assert_eq!(all.sent.len() as u64, ended, "each call ends once");
    println!(
        "{} calls: {} answered, {refused} refused ({:?}), {} broken with their front; {} begun",
        all.sent.len(),
        all.answered.len(),
        all.refused,
        all.broken,
        begun.len(),
    );
    let unavailable = Code::Unavailable as i32;
    assert!(all.refused.keys().all(|code| *code == unavailable), "{:?}", all.refused);
    assert!(!all.answered.is_empty() && refused > 0 && all.broken > 0, "the kills met no calls");
}

//! Host and front as processes, killed under load: clients continue, and no request executes twice.

use std::collections::HashSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use wave_agent::serve;
use wave_rpc::status::{Code, Status};
use wave_udp::UdpFront;
use wave_udp_client::wire::Status as Ended;
use wave_udp_client::{Call, CallError, Client};
use wave_user::rpc::{self, Methods, Options, Server};

use crate::fixture::{PATIENCE, SetAtEnd, options};

const SOCKET: &str = "WAVE_TEST_SOCKET";
const LEDGER: &str = "WAVE_TEST_LEDGER";
const ADDRESS: &str = "WAVE_TEST_ADDRESS";
/// Number of kills of each of the two processes.
const KILLS: u32 = 10;
const CLIENTS: u64 = 4;

/// The host process's `main`: logs each executed request. Does nothing when run as a test.
#[test]
fn host_process() {
    let (Some(socket), Some(ledger)) = (std::env::var_os(SOCKET), std::env::var_os(LEDGER)) else {
        return;
    };
    let ledger = OpenOptions::new().append(true).open(ledger).unwrap();
    let add = move |_: &mut rpc::Call<'_>, request: &[u8]| {
        // One write, so that a line is complete or absent.
        (&ledger)
            .write_all(request)
            .map_err(|error| Status::new(Code::Internal, error.to_string()))?;
        Ok(request.to_vec())
    };
    let mut options = Options::new(Path::new(&socket)).workers(2);
    options.yields_cpu = true;
    Server::start(options, Methods::new().unary("/test.Ledger/Add", add)).unwrap().wait();
}

/// The agent process's `main`. Does nothing when run as a test.
#[test]
fn front_process() {
    let (Some(socket), Ok(address)) = (std::env::var_os(SOCKET), std::env::var(ADDRESS)) else {
        return;
    };
    let options = options(Path::new(&socket), address.parse().unwrap());
    serve(&mut UdpFront::new(options, Instant::now()).unwrap());
}

/// A process of this test binary, killed on drop.
struct Process(Child);

impl Process {
    fn start(role: &str, variables: &[(&str, PathBuf)]) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", role, "--quiet"]).stdin(Stdio::null()).stdout(Stdio::null());
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        Process(command.spawn().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Number of requests by outcome.
#[derive(Default)]
struct Results {
    done: AtomicU64,
    refused: AtomicU64,
    unknown: AtomicU64,
}

fn client(number: u64, address: SocketAddr, is_over: &AtomicBool, results: &Results) -> u64 {
    let mut client = Client::connect(address, PATIENCE).unwrap();
    let mut asked = 0;
    while !is_over.load(SeqCst) {
        asked += 1;
        let line = format!("{number} {asked}\n");
        match client.call(Call { message: line.as_bytes(), ..Call::default() }) {
            Ok(reply) => {
                assert_eq!((reply.status, reply.message), (Ended::OK, line.into_bytes()));
                results.done.fetch_add(1, SeqCst);
            }
            // A refused request was not executed, so the same line may be sent as a new request.
            Err(CallError::Refused { .. }) => {
                results.refused.fetch_add(1, SeqCst);
                asked -= 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(CallError::OutcomeUnknown) => {
                results.unknown.fetch_add(1, SeqCst);
            }
            Err(error) => panic!("{error}"),
        }
    }
    asked
}

#[test]
fn requests_execute_at_most_once_when_host_and_front_are_killed() {
    let folder = tempfile::tempdir().unwrap();
    let [socket, ledger] = ["host", "ledger"].map(|name| folder.path().join(name));
    std::fs::write(&ledger, "").unwrap();
    let address = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let host = [(SOCKET, socket.clone()), (LEDGER, ledger.clone())];
    let front = [(SOCKET, socket), (ADDRESS, address.to_string().into())];
    let start_host = || Process::start("killed::host_process", &host);
    let start_front = || Process::start("killed::front_process", &front);
    let (mut host, mut front) = (start_host(), start_front());
    let (is_over, results) = (AtomicBool::new(false), Results::default());
    // Between two kills, waits for more finished requests.
    let more_are_done = || {
        let (before, since) = (results.done.load(SeqCst), Instant::now());
        while results.done.load(SeqCst) < before + 20 {
            assert!(since.elapsed() < PATIENCE, "clients make no progress");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let asked: u64 = std::thread::scope(|scope| {
        let (is_over, results) = (&is_over, &results);
        let ends = SetAtEnd(is_over);
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| scope.spawn(move || client(number, address, is_over, results)))
            .collect();
        for kill in 0..2 * KILLS {
            more_are_done();
            if kill % 2 == 0 {
                drop(front);
                front = start_front();
            } else {
                drop(host);
                host = start_host();
            }
        }
        more_are_done();
        drop(ends);
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    let text = std::fs::read_to_string(&ledger).unwrap();
    let mut executed = HashSet::new();
    for line in text.lines() {
        assert!(executed.insert(line), "executed twice: {line}");
    }
    let [done, unknown] = [&results.done, &results.unknown].map(|count| count.load(SeqCst));
    let executed = executed.len() as u64;
    assert_eq!(done + unknown, asked);
    assert!((done..=asked).contains(&executed), "{done} done, {executed} executed, {asked} asked");
    let refused = results.refused.load(SeqCst);
    println!(
        "{asked} asked: {done} done, {unknown} of unknown outcome; {refused} refusals; {executed} executed"
    );
}

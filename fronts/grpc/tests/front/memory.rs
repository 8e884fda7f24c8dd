//! Memory of agent and host after floods of small messages.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use tokio::net::TcpStream;
use wave_rpc::service::Method;
use wave_user::rpc::{Call, Methods, Options, Server};

use crate::client::{Client, Open, run};
use crate::first_calls::Agent;
use crate::killed::Process;

const SOCKET: &str = "WAVE_TEST_MEMORY_SOCKET";
const CHAT: &str = "/test.Test/Chat";
/// Connections and streams of a flood. Together they stay below the number of calls that may wait for their clients.
const CONNECTIONS: usize = 28;
const STREAMS: usize = 16;
/// Small messages of each stream: a window of them is answered and unread, and another window waits at the host.
const MESSAGES: usize = 2_100;
/// A flood takes more memory of each process than this, and less than half of this stays.
const FLOOD_KIB: u64 = 16 << 10;

/// The host process's `main`: echoes. Does nothing when run as a test.
#[test]
fn host_process() {
    let Some(socket) = std::env::var_os(SOCKET) else { return };
    let mut options = Options::new(Path::new(&socket)).workers(2);
    options.yields_cpu = true;
    let method = Method {
        path: CHAT.into(),
        client_streams: true,
        server_streams: true,
        ..Method::default()
    };
    let methods = Methods::new().method(method, |call: &mut Call<'_>| {
        while let Some(message) = call.receive()? {
            call.send(&message)?;
        }
        Ok(())
    });
    Server::start(options, methods).unwrap().wait();
}

fn resident_kib(process: &Child) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

async fn until(what: impl Fn() -> bool) {
    while !what() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Sends small messages whose answers it does not read. Returns once all are sent.
async fn flood(agent: SocketAddr) -> Vec<(Client, Vec<Open>)> {
    let mut flood = Vec::new();
    let message = [0, 0, 0, 0, 1, b'x'];
    for _ in 0..CONNECTIONS {
        let socket = TcpStream::connect(agent).await.unwrap();
        let mut client = Client::with_window(socket, 0).await.unwrap();
        let mut streams = Vec::new();
        for _ in 0..STREAMS {
            let mut stream = client.open(CHAT, &[], false).await;
            stream.write(message.repeat(MESSAGES).into(), false).await;
            streams.push(stream);
        }
        flood.push((client, streams));
    }
    flood
}

#[test]
fn memory_of_agent_and_host_goes_back_after_a_flood_of_small_messages() {
    for connection_cores in [0, 2] {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("host");
        let host = Process::start("memory::host_process", &[(SOCKET, socket.clone())]);
        let mut agent = Agent::start(&socket, connection_cores);
        let address = agent.address();
        agent.says("steers to");
        run(async {
            let mut client = Client::connect(address).await;
            assert_eq!(client.call(CHAT, &[], &[b"x"]).await.ok(), [b"x"]);
            let processes = [&agent.process, &host.0];
            let before = processes.map(resident_kib);
            let flood = flood(address).await;
            for (process, before) in processes.iter().zip(before) {
                until(|| resident_kib(process) > before + FLOOD_KIB).await;
            }
            drop(flood);
            for (process, before) in processes.iter().zip(before) {
                until(|| resident_kib(process) < before + FLOOD_KIB / 2).await;
            }
            assert_eq!(client.call(CHAT, &[], &[b"x"]).await.ok(), [b"x"]);
        });
    }
}

//! Conformance to HTTP/2, by h2spec: the front passes every case that a plain server by the same crate passes.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use wave_grpc::Limits;

use crate::fixture::Fixture;

/// Variable with the path of h2spec, if it is not in PATH.
const PROGRAM: &str = "WAVE_H2SPEC";
/// h2spec's names of its parts.
const PARTS: [&str; 3] = ["generic", "http2", "hpack"];
/// How long h2spec waits for a reaction of the server, in seconds. Only a case that fails takes this long.
const TIMEOUT_S: &str = "60";

/// Cases, by the names that h2spec accepts, such as `http2/5.1.1/2`.
type Cases = BTreeSet<String>;

#[test]
fn front_passes_every_h2spec_case_that_a_plain_server_passes() {
    if let Err(error) = h2spec().arg("--version").output() {
        // A machine that sets the variable, as in CI, must not skip this test silently.
        assert!(std::env::var_os(PROGRAM).is_none(), "{PROGRAM} names no program: {error}");
        wave_skip::skip(format!(
            "there is no h2spec ({error}); with Go, in fronts/grpc/tests/front/h2spec: \
             go install github.com/summerwind/h2spec/cmd/h2spec"
        ));
        return;
    }
    let plain = Plain::start();
    let alone = Fixture::without_host(Limits::default());
    let with_host = Fixture::new();
    let servers = [
        ("a plain server", plain.address),
        ("the front without a host", alone.address),
        ("the front with a host", with_host.address),
    ];
    let [peers, fronts @ ..] = std::thread::scope(|scope| {
        let failed = servers.map(|(_, address)| scope.spawn(move || failed(address)));
        failed.map(|failed| failed.join().unwrap())
    });
    println!("{} fails {peers:?}", servers[0].0);
    for ((name, address), failed) in servers[1..].iter().zip(fronts) {
        println!("{name} fails {failed:?}");
        let worse: Vec<_> = failed.difference(&peers).collect();
        assert!(worse.is_empty(), "{name} ({address}) fails what a plain server passes: {worse:?}");
    }
}

fn h2spec() -> Command {
    Command::new(std::env::var_os(PROGRAM).unwrap_or_else(|| "h2spec".into()))
}

/// Runs h2spec. Returns the cases that this server fails.
fn failed(address: SocketAddr) -> Cases {
    let mut failed = Cases::new();
    std::thread::scope(|scope| {
        let parts = PARTS.map(|part| scope.spawn(move || failed_of(address, part)));
        failed.extend(parts.into_iter().flat_map(|part| part.join().unwrap()));
    });
    failed
}

fn failed_of(address: SocketAddr, part: &str) -> Cases {
    let mut h2spec = h2spec();
    h2spec.args([part, "--strict", "--path=/test.Test/Echo", "--timeout", TIMEOUT_S]);
    h2spec.arg(format!("--port={}", address.port()));
    let said = h2spec.output().unwrap().stdout;
    let said = String::from_utf8(said).unwrap();
    let (mut section, mut failed, mut total) = ("", Cases::new(), 0);
    for line in said.lines() {
        // h2spec announces a case, and overwrites the line with the result.
        let line = line.rsplit('\r').next().unwrap().trim();
        let Some((first, rest)) = line.split_once(' ') else { continue };
        let number = first.trim_end_matches('.');
        if first == "×" {
            let (number, _) = rest.split_once(':').unwrap();
            failed.insert(format!("{part}/{section}/{number}"));
        } else if first.ends_with('.') && number.split('.').all(|n| n.parse::<u32>().is_ok()) {
            section = number;
        } else if rest.starts_with("tests, ") {
            total = first.parse().unwrap();
        }
    }
    let counted = format!(", {} failed", failed.len());
    assert!(total > 0 && said.trim_end().ends_with(&counted), "{part} at {address}: {said}");
    failed
}

/// A server that answers every request with a few bytes, and allows as many concurrent streams as the front.
struct Plain {
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
    end: Option<oneshot::Sender<()>>,
}

impl Plain {
    fn start() -> Plain {
        let (sender, receiver) = channel();
        let (end, ended) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
                sender.send(listener.local_addr().unwrap()).unwrap();
                tokio::spawn(async move {
                    loop {
                        tokio::spawn(connection(listener.accept().await.unwrap().0));
                    }
                });
                // An error means that the sender was dropped, which also ends the server.
                let _ = ended.await;
            });
        });
        Plain { address: receiver.recv().unwrap(), thread: Some(thread), end: Some(end) }
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        self.end = None;
        self.thread.take().unwrap().join().unwrap();
    }
}

async fn connection(socket: TcpStream) {
    let mut builder = h2::server::Builder::new();
    builder.max_concurrent_streams(Limits::default().streams);
    let Ok(mut connection) = builder.handshake(socket).await else { return };
    while let Some(Ok((request, respond))) = connection.accept().await {
        tokio::spawn(answer(request.into_body(), respond));
    }
}

async fn answer(mut body: RecvStream, mut respond: SendResponse<Bytes>) -> Result<(), h2::Error> {
    while let Some(piece) = body.data().await {
        body.flow_control().release_capacity(piece?.len())?;
    }
    let mut send = respond.send_response(http::Response::new(()), false)?;
    send.send_data(Bytes::from_static(b"a few bytes"), true)
}

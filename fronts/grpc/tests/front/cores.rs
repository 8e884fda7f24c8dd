//! Fronts with connection cores.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use wave_agent::Seat;
use wave_core::agent::Front;
use wave_core::clock::Nanos;
use wave_grpc::{FrontError, Limits, RpcFront, RpcOptions};
use wave_rpc::status::Code;
use wave_user::rpc::{Methods, Options, Server};

use crate::calls::client;
use crate::client::{Client, run, until};
use crate::fixture::{CONNECTION_CORES, Fixture, cpus};

/// Clients see the same behaviour whichever core serves their connection.
#[test]
fn all_other_tests_hold_with_two_connection_cores() {
    if std::env::var_os(CONNECTION_CORES).is_some() {
        return;
    }
    let mut others = Command::new(std::env::current_exe().unwrap());
    // Notes never leave the first core. First calls and memory are tested with two cores as well.
    for module in ["cores::", "notes::", "first_calls::", "memory::"] {
        others.args(["--skip", module]);
    }
    others.env(CONNECTION_CORES, "2");
    assert!(others.status().unwrap().success());
}

#[test]
fn connections_are_spread_over_cores_and_their_calls_over_all_workers() {
    let mut fixture = Fixture::on_cores(2, Limits::default(), None);
    fixture.start_host(|options| options.workers(2));
    run(async {
        let mut clients = Vec::new();
        for _ in 0..8 {
            clients.push(client(&fixture).await);
        }
        let begun = fixture.seen.begun.load(SeqCst);
        // A worker runs one call at a time: two calls of a single connection occupy both workers.
        let mut open = Vec::new();
        for _ in 0..2 {
            let mut call = clients[0].open("/test.Test/Sleep", &[], false).await;
            call.send(b"", true).await;
            open.push(call);
        }
        until(|| fixture.seen.begun.load(SeqCst) == begun + 2).await;
        drop(open);
        until(|| fixture.seen.cancelled.load(SeqCst) == 2).await;
        for client in &mut clients {
            assert_eq!(client.call("/test.Test/Echo", &[], &[b"x"]).await.ok(), [b"x"]);
        }
    });
    let left = fixture.leave();
    assert_eq!((left.calls, left.held, left.at_host), (0, 0, Some(0)));
    assert_eq!(left.connections, [4, 4]);
}

/// With a steering policy per connection core, every other call would wait behind the one that does not end.
#[test]
fn worker_busy_for_one_cores_client_gets_no_calls_of_other_cores() {
    let mut fixture = Fixture::on_cores(2, Limits::default(), None);
    fixture.start_host(|options| options.workers(2));
    run(async {
        let (mut one, mut other) = (client(&fixture).await, client(&fixture).await);
        let mut busy = one.open("/test.Test/Sleep", &[], false).await;
        busy.send(b"x", true).await;
        assert!(busy.next().await.unwrap().is_some());
        for _ in 0..20 {
            assert_eq!(other.call("/test.Test/Echo", &[], &[b"x"]).await.ok(), [b"x"]);
        }
        assert_eq!(fixture.seen.cancelled.load(SeqCst), 0);
    });
    assert_eq!(fixture.leave().connections, [1, 1]);
}

#[test]
fn memory_of_calls_is_bounded_over_all_cores() {
    let limits = Limits { held_bytes: 12 << 20, ..Limits::default() };
    let mut fixture = Fixture::on_cores(2, limits, None);
    fixture.start_host(|options| options);
    run(async {
        let mut clients = [client(&fixture).await, client(&fixture).await];
        // Each client sends half a message, which the front has to keep.
        let mut halves = Vec::new();
        for client in &mut clients {
            let mut open = client.open("/test.Test/Echo", &[], false).await;
            let half = [&[0, 0, 0x0f, 0, 0][..], &[1; 450_000]].concat();
            open.write(half.into(), false).await;
            halves.push(open);
        }
        for client in &mut clients {
            let answer = client.call("/test.Test/Echo", &[], &[&[1; 300_000]]).await;
            assert_eq!(answer.code(), Code::ResourceExhausted as i32);
        }
        drop(halves);
        for client in &mut clients {
            while client.call("/test.Test/Echo", &[], &[&[1; 300_000]]).await.code() != 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    });
    assert_eq!(fixture.leave().held, 0);
}

#[test]
fn unavailable_connection_cpu_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(&folder, vec![cpus(1)[0], 100_000]);
    let error = RpcFront::new(options, Instant::now()).err().unwrap();
    assert!(matches!(error, FrontError::Cpu(_)), "{error}");
    assert!(error.to_string().contains("100000"), "{error}");
}

fn options(folder: &tempfile::TempDir, connection_cpus: Vec<usize>) -> RpcOptions {
    RpcOptions {
        host: folder.path().join("host"),
        listen: vec![([127, 0, 0, 1], 0).into()],
        steer: "jbsq:k=4".into(),
        tls: None,
        // Longer than any test waits.
        limits: Limits { drain: Duration::from_secs(3600), ..Limits::default() },
        connection_cpus,
        load_reports: false,
        seat: Seat::Shared,
        quiet: true,
    }
}

/// A front whose first core does nothing while `is_held` is set.
struct Held {
    address: std::net::SocketAddr,
    is_held: Arc<AtomicBool>,
    /// The first core has seen `is_held`, and does nothing.
    rests: Arc<AtomicBool>,
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
    _server: Server,
    _folder: tempfile::TempDir,
}

impl Held {
    fn new() -> Held {
        let folder = tempfile::tempdir().unwrap();
        let mut host = Options::new(folder.path().join("host")).workers(2);
        host.config.subjects = 4096;
        let echo = Methods::new().unary("/test.Test/Echo", |_, request| Ok(request.to_vec()));
        let server = Server::start(host, echo).unwrap();
        let [is_held, rests, is_over] = std::array::from_fn(|_| Arc::new(AtomicBool::new(false)));
        let options = options(&folder, cpus(2));
        let [held, resting, over] = [&is_held, &rests, &is_over].map(Arc::clone);
        let (sender, receiver) = channel();
        let thread = std::thread::spawn(move || {
            let mut front = RpcFront::new(options, Instant::now()).unwrap();
            sender.send(front.addresses()[0]).unwrap();
            while !over.load(SeqCst) {
                resting.store(held.load(SeqCst), SeqCst);
                if !resting.load(SeqCst) {
                    front.poll(Nanos(0), &mut Vec::new());
                }
                std::thread::yield_now();
            }
        });
        let address = receiver.recv().unwrap();
        Held { address, is_held, rests, is_over, thread, _server: server, _folder: folder }
    }

    async fn client(&self) -> Client {
        let mut client = Client::connect(self.address).await;
        while client.call("/test.Test/Echo", &[], &[b"there?"]).await.code() != 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        client
    }
}

/// More calls and bytes than the queues between cores hold: connections wait, nothing is lost, and memory stays bounded.
#[test]
fn stalled_first_core_finds_all_calls_later() {
    let held = Held::new();
    run(async {
        let mut calls = Vec::new();
        for _ in 0..24 {
            let client = held.client().await;
            calls.extend((0..100u32).map(|at| (client.clone(), at)));
        }
        held.is_held.store(true, SeqCst);
        until(|| held.rests.load(SeqCst)).await;
        let sent = Arc::new(AtomicUsize::new(0));
        let calls: Vec<_> = calls
            .into_iter()
            .map(|(mut client, at)| {
                let sent = Arc::clone(&sent);
                tokio::spawn(async move {
                    let message = vec![at as u8; 8_000];
                    let mut open = client.open("/test.Test/Echo", &[], false).await;
                    open.send(&message, true).await;
                    sent.fetch_add(1, SeqCst);
                    assert!(open.finish().await.ok() == [message]);
                })
            })
            .collect();
        until(|| sent.load(SeqCst) == calls.len()).await;
        assert!(calls.iter().all(|call| !call.is_finished()));
        held.is_held.store(false, SeqCst);
        for call in calls {
            call.await.unwrap();
        }
    });
    held.is_over.store(true, SeqCst);
    held.thread.join().unwrap();
}

/// This happens when the host of the scheduler beside the front goes: then the front does not wait for clients.
#[test]
fn dropped_front_closes_its_connections() {
    let held = Held::new();
    run(async {
        let mut clients = [held.client().await, held.client().await];
        let mut open = Vec::new();
        for client in &mut clients {
            open.push(client.open("/test.Test/Echo", &[], false).await);
        }
        held.is_over.store(true, SeqCst);
        for (client, open) in clients.iter().zip(open) {
            assert!(open.try_finish().await.is_err());
            assert!(!client.is_open().await);
        }
    });
    held.thread.join().unwrap();
}

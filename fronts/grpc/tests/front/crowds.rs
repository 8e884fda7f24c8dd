//! Clients that take all of a front's connections, or all of its memory for messages: others are still admitted and served.

use std::net::TcpListener;
use std::time::Instant;

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use wave_agent::serve;
use wave_core::agent::Front;
use wave_core::clock::Nanos;
use wave_grpc::{Limits, RpcFront};
use wave_rpc::status::Code;
use wave_user::rpc::{Methods, Options, Server};

use crate::client::{Client, Open, run};
use crate::dial::{Dial, Good};
use crate::fixture::Fixture;
use crate::killed::{Process, front_options};

const CALLS: usize = 20;

/// Runs `what` against a front with a host, plain and then over TLS.
fn each(limits: Limits, what: impl AsyncFn(&Dial)) {
    for is_tls in [false, true] {
        let mut fixture = Fixture::made_of(limits, Dial::identity(is_tls));
        fixture.start_host(|options| options.workers(2));
        run(what(&Dial::new(fixture.address, is_tls)));
        let left = fixture.leave();
        assert_eq!((left.calls, left.held, left.at_host), (0, 0, Some(0)));
    }
}

/// Makes calls by new clients of the crowd's address, and of another address.
async fn newcomers_are_served(dial: &Dial) {
    for from in [1, 9] {
        for _ in 0..4 {
            Good::newcomer(dial, from).await.calls(CALLS, b"x").await;
        }
    }
}

#[test]
fn idle_connections_that_answer_pings_do_not_keep_new_clients_out() {
    each(Limits::default(), async |dial| {
        let mut good = Good::new(dial, 1).await;
        let mut crowd = Vec::new();
        for _ in 0..1_100 {
            // Any HTTP/2 library answers pings for its client.
            crowd.push(dial.client(1).await);
            if crowd.len() % 100 == 0 {
                good.calls(1, b"x").await;
            }
        }
        newcomers_are_served(dial).await;
        good.calls(CALLS, b"x").await;
    });
}

#[test]
fn idle_clients_that_reconnect_after_goaway_do_not_keep_new_clients_out() {
    let limits = Limits { connections: 32, ..Limits::default() };
    each(limits, async |dial| {
        let mut good = Good::new(dial, 1).await;
        let mut crowd = Vec::new();
        for _ in 0..20 {
            for from in [1, 2, 1, 2, 1] {
                crowd.push(dial.client(from).await);
            }
            newcomers_are_served(dial).await;
            good.calls(CALLS, b"x").await;
        }
    });
}

#[test]
fn unfinished_handshakes_do_not_keep_new_clients_out() {
    let limits = Limits { connections: 64, ..Limits::default() };
    each(limits, async |dial| {
        let mut good = Good::new(dial, 1).await;
        let mut crowd = Vec::new();
        for _ in 0..10 {
            for from in [1; 20] {
                crowd.push(dial.socket(from).await.unwrap());
            }
            newcomers_are_served(dial).await;
            good.calls(CALLS, b"x").await;
        }
    });
}

#[test]
fn connections_with_calls_stay_open_and_other_addresses_are_admitted() {
    let limits = Limits { connections: 8, ..Limits::default() };
    each(limits, async |dial| {
        // Waits until the host is attached.
        drop(Good::new(dial, 1).await);
        let mut crowd = Vec::new();
        for _ in 0..4 {
            let mut client = dial.client(2).await;
            let mut watch = client.open("/grpc.health.v1.Health/Watch", &[], false).await;
            watch.send(b"", true).await;
            assert!(watch.next().await.unwrap().is_some());
            crowd.push((client, watch));
        }
        // This address gets no more connections: it has as many as are left for others.
        let turned_away = async {
            let io = dial.io(2).await.ok()?;
            let (send, connection) = h2::client::handshake(io).await.ok()?;
            tokio::spawn(connection);
            let mut send: h2::client::SendRequest<bytes::Bytes> = send;
            std::future::poll_fn(|cx| send.poll_ready(cx)).await.ok()?;
            let request = http::Request::post("http://test/").body(()).unwrap();
            send.send_request(request, true).ok()?.0.await.ok()
        };
        assert!(turned_away.await.is_none());
        newcomers_are_served(dial).await;
        for (client, _) in &mut crowd {
            client.call("/test.Test/Echo", &[], &[b"x"]).await.ok();
        }
    });
}

/// Variables for [`front_process`].
const SOCKET: &str = "WAVE_TEST_CROWD_SOCKET";
const ADDRESS: &str = "WAVE_TEST_CROWD_ADDRESS";

/// The front process's `main`. Does nothing when run as a test.
#[test]
fn front_process() {
    let (Some(socket), Ok(address)) = (std::env::var_os(SOCKET), std::env::var(ADDRESS)) else {
        return;
    };
    let options = front_options(socket, &address, "jbsq:k=4");
    let mut front = RpcFront::new(options, Instant::now()).unwrap();
    serve(&mut front);
}

/// A front in a process of its own, and its host.
struct Alone {
    front: Process,
    dial: Dial,
    _server: Server,
    _folder: tempfile::TempDir,
}

impl Alone {
    fn new() -> Alone {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("host");
        let echo = Methods::new().unary("/test.Test/Echo", |_, request| Ok(request.to_vec()));
        let server = Server::start(Options::new(&socket).workers(2), echo).unwrap();
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let variables = [(SOCKET, socket), (ADDRESS, address.to_string().into())];
        let front = Process::start("crowds::front_process", &variables);
        let dial = Dial::new(address, false);
        Alone { front, dial, _server: server, _folder: folder }
    }

    async fn good(&self) -> Good {
        while self.dial.socket(1).await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        Good::new(&self.dial, 1).await
    }

    fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.front.0.id()));
        let status = status.unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

#[test]
fn front_without_descriptors_closes_idle_connections_for_new_ones() {
    let alone = Alone::new();
    run(async {
        let mut good = alone.good().await;
        // The front chose its limit of connections when it still had more descriptors.
        let few = Rlimit { current: Some(64), maximum: Some(64) };
        prlimit(Some(Pid::from_child(&alone.front.0)), Resource::Nofile, few).unwrap();
        let mut crowd = Vec::new();
        for _ in 0..100 {
            crowd.push(alone.dial.client(1).await);
        }
        newcomers_are_served(&alone.dial).await;
        good.calls(CALLS, b"x").await;
    });
}

/// Begins a call with a message that lacks its last byte.
async fn incomplete(client: &mut Client, bytes: usize) -> Open {
    let mut open = client.open("/test.Test/Echo", &[], false).await;
    let length = (bytes as u32 + 1).to_be_bytes();
    let message = [&[0][..], &length, &vec![1; bytes]].concat();
    open.write(message.into(), false).await;
    open
}

#[test]
fn one_connection_with_many_incomplete_messages_leaves_memory_for_others() {
    let limits = Limits { held_bytes: 64 << 20, message_bytes: 4 << 20, ..Limits::default() };
    each(limits, async |dial| {
        let mut good = Good::new(dial, 1).await;
        let mut attacker = dial.client(1).await;
        let mut messages = Vec::new();
        for _ in 0..16 {
            messages.push(incomplete(&mut attacker, (4 << 20) - 1).await);
            good.calls(1, &[1; 1 << 20]).await;
        }
        newcomers_are_served(dial).await;
        good.calls(CALLS, &[1; 1 << 20]).await;
        // The attacker's calls beyond its share are refused.
        let last = messages.pop().unwrap().finish().await;
        assert_eq!(last.code(), Code::ResourceExhausted as i32);
    });
}

#[test]
fn several_connections_with_incomplete_messages_leave_memory_for_others() {
    let limits = Limits { held_bytes: 64 << 20, message_bytes: 4 << 20, ..Limits::default() };
    each(limits, async |dial| {
        let mut good = Good::new(dial, 1).await;
        let mut attackers = Vec::new();
        for at in 0..8 {
            let mut attacker = dial.client(1 + at % 2).await;
            let mut messages = Vec::new();
            for _ in 0..64 {
                messages.push(incomplete(&mut attacker, 200_000).await);
            }
            good.calls(1, &[1; 500_000]).await;
            attackers.push((attacker, messages));
        }
        newcomers_are_served(dial).await;
        good.calls(CALLS, &[1; 500_000]).await;
    });
}

/// A call without messages takes memory as well.
#[test]
fn silent_streams_count_against_the_memory_of_calls() {
    let limits = Limits { held_bytes: 1 << 20, streams: 1_000, ..Limits::default() };
    each(limits, async |dial| {
        let mut good = Good::new(dial, 1).await;
        let mut attacker = dial.client(1).await;
        let metadata = "x".repeat(8 << 10);
        let mut silent = Vec::new();
        for _ in 0..100 {
            silent.push(attacker.open("/test.Test/Echo", &[("k", &metadata)], false).await);
        }
        good.calls(CALLS, b"x").await;
        let last = silent.pop().unwrap().finish().await;
        assert_eq!(last.code(), Code::ResourceExhausted as i32);
    });
}

/// More connections than tokio lets a task accept in a row, and a front that never sleeps, like a busy one.
#[test]
fn full_listen_backlog_is_accepted_completely() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = front_options(folder.path().join("host").into(), "127.0.0.1:0", "jbsq:k=4");
    options.connection_cpus.clear();
    let mut front = RpcFront::new(options, Instant::now()).unwrap();
    let mut crowd = Vec::new();
    for _ in 0..3 {
        for _ in 0..129 {
            crowd.push(std::net::TcpStream::connect(front.addresses()[0]).unwrap());
        }
        for _ in 0..100_000 {
            front.poll(Nanos(0), &mut Vec::new());
        }
        assert_eq!(front.front_counts().connections, crowd.len() as u64);
    }
}

#[test]
fn memory_is_returned_after_a_slow_flood() {
    let alone = Alone::new();
    run(async {
        let mut good = alone.good().await;
        // The memory that good clients need is counted in `before`.
        good.calls(CALLS, &[1; 100_000]).await;
        let before = alone.resident_kib();
        let mut crowd = Vec::new();
        for at in 0..400u32 {
            let mut attacker = alone.dial.client(2 + (at % 5) as u8).await;
            let mut slow = Vec::new();
            for _ in 0..60 {
                let mut open = attacker.open("/test.Test/Echo", &[], false).await;
                open.write(vec![0, 0, 1, 0, 0, 1, 1, 1, 1].into(), false).await;
                slow.push(open);
            }
            crowd.push((attacker, slow));
        }
        good.calls(1, b"x").await;
        let height = alone.resident_kib();
        assert!(
            height > before + (50 << 10),
            "the flood took no memory: {before} KiB before, then {height}"
        );
        drop(crowd);
        let most = before + (height - before) / 4;
        while alone.resident_kib() > most {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        good.calls(CALLS, b"x").await;
    });
}

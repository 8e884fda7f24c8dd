//! The load against the on-host server, and against missing or faulty servers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use wave_workloads::grpc::load::{ByKind, CallSettings, Generator, Kind, Target};
use wave_workloads::grpc::onhost::OnHost;
use wave_workloads::grpc::store::Store;
use wave_workloads::rocksdb::Database;

const KEYS: u64 = 1_000;
const DRAIN: Duration = Duration::from_secs(20);

fn store() -> Store {
    let mut database = Database::open_in_order(None).unwrap();
    database.fill(KEYS, 64, |_, _| {}).unwrap();
    Store::new(database)
}

fn serve(listen: SocketAddr) -> OnHost {
    OnHost::start(listen, &[], &store()).unwrap()
}

fn anywhere() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

fn target(address: SocketAddr) -> Target {
    Target { address: address.to_string(), connections: 2, streams: 8 }
}

fn generator(address: SocketAddr, settings: &CallSettings) -> Generator {
    Generator::connect(&target(address), settings, 7).unwrap()
}

fn calls(mix: &str) -> CallSettings {
    CallSettings::new(mix.parse().unwrap(), KEYS)
}

#[test]
fn every_call_of_every_kind_gets_the_right_reply() {
    let server = serve(anywhere());
    let settings = CallSettings {
        slo_us: "get=100,range=10000".parse().unwrap(),
        timeout_ms: Some(60_000),
        ..calls("get=3,put=1,range=1,echo=3")
    };
    let mut generator = generator(server.address(), &settings);
    let second = Duration::from_millis(500);
    let open = generator.open(1_000.0, second / 4, second, DRAIN).unwrap();
    assert!(open.point.sent > 300, "{open:?}");
    assert_eq!(open.answers.statuses, [("OK".to_owned(), open.point.sent)], "{open:?}");
    assert_eq!((open.answers.wrong, open.answers.unanswered), (0, 0));
    assert_eq!(open.point.done, open.point.sent);
    for class in &open.point.classes {
        assert!(class.latency.count > 0, "{}", class.name);
    }
    let closed = generator.closed(Duration::from_millis(200), DRAIN).unwrap();
    assert!(closed.done >= 16 && closed.done == closed.sent, "{closed:?}");
    assert_eq!(closed.answers.statuses, [("OK".to_owned(), closed.done)]);
    assert_eq!(closed.answers.wrong, 0);
}

#[test]
fn a_burst_beyond_all_streams_waits_and_is_served() {
    let server = serve(anywhere());
    let target = Target { connections: 1, streams: 1, ..target(server.address()) };
    let mut generator = Generator::connect(&target, &calls("echo=1"), 1).unwrap();
    // All are due at once.
    let open = generator.open(1e6, Duration::ZERO, Duration::from_millis(2), DRAIN).unwrap();
    assert!(open.point.sent > 1_000);
    assert_eq!(open.answers.statuses, [("OK".to_owned(), open.point.sent)], "{open:?}");
}

#[test]
fn statuses_and_wrong_replies_are_counted() {
    let server = serve(anywhere());
    let second = Duration::from_millis(500);
    // The store lacks half of these keys.
    let settings = CallSettings { keys: 2 * KEYS, ..calls("get=1") };
    let mut load = generator(server.address(), &settings);
    let open = load.open(1_000.0, Duration::ZERO, second, DRAIN).unwrap();
    let (ok, not_found) = (open.answers.status("OK"), open.answers.status("NOT_FOUND"));
    assert_eq!(ok + not_found, open.point.sent, "{open:?}");
    assert!(ok > 50 && not_found > 50 && open.point.done == ok, "{open:?}");
    // A RANGE that begins at a missing key returns fewer pairs than expected.
    let settings = CallSettings { keys: 2 * KEYS, ..calls("range=1") };
    let mut load = generator(server.address(), &settings);
    let open = load.open(200.0, Duration::ZERO, second, DRAIN).unwrap();
    assert!(open.answers.wrong > 10 && open.answers.wrong < open.point.sent, "{open:?}");
}

#[test]
fn calls_fail_while_the_server_is_down_and_succeed_after_its_restart() {
    let server = serve(anywhere());
    let address = server.address();
    let mut generator = generator(address, &calls("echo=1"));
    let second = Duration::from_millis(500);
    server.stop().unwrap();
    let away = generator.open(200.0, Duration::ZERO, second, DRAIN).unwrap();
    let failed: u64 = away.answers.failures.iter().map(|(_, count)| count).sum();
    assert_eq!((failed, away.point.done), (away.point.sent, 0), "{away:?}");
    let _again = serve(address);
    let back = generator.open(200.0, Duration::from_secs(1), second, DRAIN).unwrap();
    assert!(back.point.sent > 50);
    assert_eq!(back.answers.statuses, [("OK".to_owned(), back.point.sent)], "{back:?}");
}

#[test]
fn a_silent_server_is_distinguished_from_a_missing_one() {
    let silent = TcpListener::bind(anywhere()).unwrap();
    let address = silent.local_addr().unwrap();
    let ends = std::thread::spawn(move || {
        // Speaks the minimum of HTTP/2: an empty SETTINGS frame on each connection.
        let connections: Vec<_> = (0..2)
            .map(|_| {
                let (mut connection, _) = silent.accept().unwrap();
                connection.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).unwrap();
                connection
            })
            .collect();
        for mut connection in connections {
            let _ = connection.read_to_end(&mut Vec::new());
        }
    });
    let settings = CallSettings::new(ByKind::only(Kind::Echo), KEYS);
    let mut load = generator(address, &settings);
    let (quarter, second) = (Duration::from_millis(250), Duration::from_secs(1));
    let open = load.open(100.0, Duration::ZERO, second, quarter).unwrap();
    assert_eq!(open.answers.unanswered, open.point.sent, "{open:?}");
    drop(load);
    ends.join().unwrap();
    let error = Generator::connect(&target(address), &settings, 7).err().unwrap().to_string();
    assert!(error.contains("is a server listening there?"), "{error}");
}

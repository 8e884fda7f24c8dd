//! Hosts that go and come back, and fronts that end.

use std::sync::atomic::Ordering::SeqCst;

use wave_agent::{AttachError, attach, attach_rpc};
use wave_grpc::Limits;
use wave_rpc::status::Code;
use wave_user::Enclave;

use crate::calls::client;
use crate::client::{Client, run, until};
use crate::fixture::Fixture;

const SERVING: [u8; 2] = [8, 1];
const NOT_SERVING: [u8; 2] = [8, 2];
const UNKNOWN: [u8; 2] = [8, 3];

#[test]
fn calls_without_a_host_are_unavailable_and_health_is_not_serving() {
    let mut fixture = Fixture::without_host(Limits::default());
    run(async {
        let mut client = Client::connect(fixture.address).await;
        let answer = client.call("/test.Test/Echo", &[], &[b"x"]).await;
        assert_eq!(answer.code(), Code::Unavailable as i32);
        let health = client.call("/grpc.health.v1.Health/Check", &[], &[b""]).await;
        assert_eq!(health.ok(), [NOT_SERVING]);
        let name = b"\x0a\x09test.Test";
        let health = client.call("/grpc.health.v1.Health/Check", &[], &[name]).await;
        assert_eq!(health.code(), Code::NotFound as i32);
        let mut watch = client.open("/grpc.health.v1.Health/Watch", &[], false).await;
        watch.send(name, true).await;
        assert_eq!(watch.next().await.unwrap(), Some((false, UNKNOWN.into())));
        fixture.start_host(|options| options);
        assert_eq!(watch.next().await.unwrap(), Some((false, SERVING.into())));
        assert_eq!(client.call("/test.Test/Echo", &[], &[b"x"]).await.ok(), [b"x"]);
        fixture.stop_host();
        assert_eq!(watch.next().await.unwrap(), Some((false, NOT_SERVING.into())));
    });
}

#[test]
fn lost_host_ends_its_calls_and_the_next_host_is_found() {
    let mut fixture = Fixture::new();
    run(async {
        let mut client = client(&fixture).await;
        for round in 1..=3 {
            let mut open = client.open("/test.Test/Chat", &[], false).await;
            open.send(b"x", false).await;
            assert!(open.next().await.unwrap().is_some());
            let mut unfinished = client.open("/test.Test/Echo", &[], false).await;
            unfinished.write(bytes::Bytes::from_static(&[0, 0]), false).await;
            fixture.stop_host();
            for open in [open, unfinished] {
                let answer = open.finish().await;
                assert_eq!(answer.code(), Code::Unavailable as i32, "round {round}");
            }
            let answer = client.call("/test.Test/Echo", &[], &[b"x"]).await;
            assert_eq!(answer.code(), Code::Unavailable as i32);
            fixture.start_host(|options| options);
            while client.call("/test.Test/Echo", &[], &[b"x"]).await.code() != 0 {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        }
    });
    let left = fixture.leave();
    assert_eq!((left.calls, left.held, left.at_host), (0, 0, Some(0)));
}

/// Regression: two agents at one host took it from each other without end.
#[test]
fn replaced_front_leaves_and_does_not_attach_again() {
    let fixture = Fixture::new();
    run(async {
        let mut client = client(&fixture).await;
        assert_eq!(client.call("/test.Test/Echo", &[], &[b"x"]).await.ok(), [b"x"]);
        let other = attach_rpc(&fixture.folder.path().join("host"), true).unwrap();
        let steering = wave_rpc::steer::by_name("jbsq", &other.layout.config).unwrap();
        let mut dispatch =
            wave_rpc::dispatch::Dispatch::new(other.layout, other.port, other.host_bells, steering);
        dispatch.announce();
        while client.is_open().await {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    });
    // The front has ended on its own.
    let left = fixture.joined();
    assert_eq!((left.calls, left.held, left.at_host), (0, 0, None));
}

#[test]
fn ending_front_lets_open_calls_finish() {
    let fixture = Fixture::new();
    run(async {
        let mut client = client(&fixture).await;
        let mut chat = client.open("/test.Test/Chat", &[], false).await;
        chat.send(b"1", false).await;
        assert!(chat.next().await.unwrap().is_some());
        let mut watch = client.open("/grpc.health.v1.Health/Watch", &[], false).await;
        watch.send(b"", true).await;
        assert_eq!(watch.next().await.unwrap(), Some((false, SERVING.into())));
        fixture.end();
        // The front no longer listens: another process can bind the address, and no client connects only to be sent away.
        until(|| std::net::TcpStream::connect(fixture.address).is_err()).await;
        assert_eq!(watch.next().await.unwrap(), Some((false, NOT_SERVING.into())));
        assert_eq!(watch.finish().await.code(), Code::Unavailable as i32);
        // After its GOAWAY the connection refuses new calls; open calls continue.
        let seen = &fixture.seen;
        let before = seen.begun.load(SeqCst);
        while client.is_open().await {
            tokio::task::yield_now().await;
        }
        chat.send(b"2", true).await;
        assert_eq!(chat.finish().await.ok(), [b"2"]);
        assert_eq!(seen.begun.load(SeqCst), before);
    });
    let left = fixture.leave();
    assert_eq!((left.calls, left.held), (0, 0));
}

/// A scheduler that gets an RPC server's socket by mistake must not take the window from the working front.
#[test]
fn scheduler_at_an_rpc_socket_does_not_disturb_the_front() {
    let fixture = Fixture::new();
    run(async {
        let mut client = client(&fixture).await;
        let error = attach(&fixture.folder.path().join("host")).unwrap_err();
        assert!(matches!(error, AttachError::Other { option: "--rpc", .. }), "{error}");
        assert_eq!(client.call("/test.Test/Echo", &[], &[b"x"]).await.ok(), [b"x"]);
    });
    let threads = fixture.folder.path().join("threads.sock");
    let _enclave = Enclave::start(wave_user::Options::new(&threads).cores(1)).unwrap();
    let error = attach_rpc(&threads, true).unwrap_err();
    assert!(matches!(error, AttachError::Other { option: "--attach", .. }), "{error}");
}

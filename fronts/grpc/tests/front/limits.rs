//! Limits on what clients may use of the front.

use std::time::Duration;

use h2::Reason;
use http::StatusCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use wave_grpc::Limits;
use wave_rpc::status::Code;

use crate::calls::client;
use crate::client::{Client, run};
use crate::fixture::Fixture;

#[test]
fn headers_above_the_limit_are_refused() {
    let limits = Limits { header_bytes: 1 << 10, ..Limits::default() };
    let fixture = Fixture::with(limits, |options| options);
    run(async {
        let mut client = client(&fixture).await;
        let long = "x".repeat(2 << 10);
        let mut open = client.open("/test.Test/Echo", &[("k", &long)], false).await;
        open.send(b"x", true).await;
        let answer = open.try_finish().await.unwrap();
        assert_eq!(answer.status, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
        assert_eq!(client.call("/test.Test/Echo", &[], &[b"x"]).await.ok(), [b"x"]);
    });
}

#[test]
fn calls_beyond_the_hosts_limit_are_refused() {
    let fixture = Fixture::with(Limits::default(), |mut options| {
        options.config.subjects = 2;
        options.workers(2)
    });
    run(async {
        let mut client = client(&fixture).await;
        let mut open = Vec::new();
        for _ in 0..2 {
            let mut call = client.open("/test.Test/Sleep", &[], false).await;
            call.send(b"x", true).await;
            assert!(call.next().await.unwrap().is_some());
            open.push(call);
        }
        let answer = client.call("/test.Test/Echo", &[], &[b"x"]).await;
        assert_eq!(answer.code(), Code::ResourceExhausted as i32);
        assert!(answer.text().contains("calls"), "{}", answer.text());
        drop(open);
        while client.call("/test.Test/Echo", &[], &[b"x"]).await.code() != 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
}

#[test]
fn memory_of_all_calls_is_bounded() {
    let limits = Limits { held_bytes: 18 << 20, ..Limits::default() };
    let fixture = Fixture::with(limits, |options| options);
    run(async {
        let mut client = client(&fixture).await;
        // Each call sends half a message, which the front has to keep.
        let mut halves = Vec::new();
        for _ in 0..2 {
            let mut open = client.open("/test.Test/Echo", &[], false).await;
            let half = [&[0, 0, 0x0f, 0, 0][..], &[1; 450_000]].concat();
            open.write(half.into(), false).await;
            halves.push(open);
        }
        let answer = client.call("/test.Test/Echo", &[], &[&[1; 400_000]]).await;
        assert_eq!(answer.code(), Code::ResourceExhausted as i32);
        drop(halves);
        while client.call("/test.Test/Echo", &[], &[&[1; 400_000]]).await.code() != 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
}

#[test]
fn client_that_does_not_read_holds_bounded_memory() {
    let fixture = Fixture::new();
    run(async {
        let mut client = client(&fixture).await;
        // The client reads nothing of 25 MB: the handler waits, and others are served.
        let mut open = client.open("/test.Test/Repeat", &[], false).await;
        open.send(b"250 100000", true).await;
        for _ in 0..100 {
            assert_eq!(client.call("/test.Test/Collect", &[], &[b"x"]).await.ok(), [b"1"]);
        }
        assert_eq!(open.finish().await.ok().len(), 250);
    });
}

/// The client is due for a ping only a minute later.
#[test]
fn idle_connection_ends_in_its_time() {
    let limits = Limits { idle: Duration::from_secs(1), ..Limits::default() };
    let fixture = Fixture::with(limits, |options| options);
    run(async {
        let mut client = client(&fixture).await;
        assert_eq!(client.call("/test.Test/Echo", &[], &[b"x"]).await.ok(), [b"x"]);
        while client.is_open().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
}

#[test]
fn flood_of_resets_ends_its_connection() {
    let fixture = Fixture::new();
    run(async {
        let io = tokio::net::TcpStream::connect(fixture.address).await.unwrap();
        let (mut send, connection) = h2::client::handshake(io).await.unwrap();
        let ended = tokio::spawn(connection);
        loop {
            let request = http::Request::post("http://test/test.Test/Chat")
                .header("content-type", "application/grpc");
            send = match send.ready().await {
                Ok(send) => send,
                Err(_) => break,
            };
            let Ok((_, mut stream)) = send.send_request(request.body(()).unwrap(), false) else {
                break;
            };
            // The request must be sent before its reset.
            tokio::task::yield_now().await;
            stream.send_reset(Reason::CANCEL);
        }
        let error = ended.await.unwrap().unwrap_err();
        // The client may still write after the connection's end, which can keep it from reading the reason.
        assert!(error.reason() == Some(Reason::ENHANCE_YOUR_CALM) || error.is_io(), "{error:?}");
        assert_eq!(client(&fixture).await.call("/test.Test/Echo", &[], &[b"x"]).await.ok(), [b"x"]);
    });
    let left = fixture.leave();
    assert_eq!((left.calls, left.held, left.at_host), (0, 0, Some(0)));
}

#[test]
fn client_that_does_not_answer_a_ping_is_dropped() {
    let limits = Limits { keepalive: Duration::from_secs(2), ..Limits::default() };
    let fixture = Fixture::with(limits, |options| options);
    run(async {
        let mut alive = client(&fixture).await;
        let mut dead = tokio::net::TcpStream::connect(fixture.address).await.unwrap();
        // A client's preface and settings, then nothing.
        dead.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        dead.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
        let mut rest = Vec::new();
        dead.read_to_end(&mut rest).await.unwrap();
        let ping = [0, 0, 8, 6, 0, 0, 0, 0, 0];
        assert!(rest.windows(9).any(|frame| frame == ping), "{rest:?}");
        assert_eq!(alive.call("/test.Test/Echo", &[], &[b"x"]).await.ok(), [b"x"]);
    });
}

#[test]
fn idle_connection_gets_goaway() {
    let (keepalive, idle) = (Duration::from_millis(200), Duration::from_millis(400));
    let fixture = Fixture::with(Limits { keepalive, idle, ..Limits::default() }, |options| options);
    run(async {
        // Without a call: the limit may be over before the client begins one.
        let client = Client::connect(fixture.address).await;
        while client.is_open().await {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
}

/// A chat or a watch may have no news for long.
#[test]
fn silent_stream_outlives_the_limits_of_idle_connections() {
    let limits = Limits { idle: Duration::from_secs(1), ..Limits::default() };
    let fixture = Fixture::with(limits, |options| options);
    run(async {
        let mut client = client(&fixture).await;
        let mut chat = client.open("/test.Test/Chat", &[], false).await;
        chat.send(b"first", false).await;
        assert_eq!(chat.next().await.unwrap(), Some((false, b"first".to_vec())));
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(client.is_open().await, "a GOAWAY came");
        chat.send(b"second", true).await;
        assert_eq!(chat.next().await.unwrap(), Some((false, b"second".to_vec())));
        assert_eq!(chat.finish().await.ok(), Vec::<Vec<u8>>::new());
    });
}

/// A client that does not acknowledge the GOAWAY may still open streams.
#[test]
fn flood_of_resets_after_a_goaway_ends_its_connection() {
    /// Half of what h2 itself allows (`UNSEEN_RESETS_MAX`).
    const BATCH: u32 = 32;
    let limits = Limits { idle: Duration::from_millis(200), ..Limits::default() };
    let fixture = Fixture::with(limits, |options| options);
    let frame = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        let length = &(payload.len() as u32).to_be_bytes()[1..];
        [length, &[kind, flags], &stream.to_be_bytes(), payload].concat()
    };
    // POST, http and two literals (RFC 7541, 6.1 and 6.2.2).
    let [path, content] = ["/grpc.health.v1.Health/Check", "application/grpc"];
    let literal = |name: &[u8], text: &str| [name, &[text.len() as u8], text.as_bytes()].concat();
    let block = [&[0x83, 0x86][..], &literal(&[0x04], path), &literal(&[0x0f, 0x10], content)];
    let block = block.concat();
    run(async {
        let mut io = tokio::net::TcpStream::connect(fixture.address).await.unwrap();
        let (mut first, mut goaways) = (1, Vec::new());
        io.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        io.write_all(&frame(4, 0, 0, &[])).await.unwrap();
        let error = loop {
            // Reads up to the answer to the last PING, or to the first GOAWAY, and at last up to the connection's end.
            let mut head = [0; 9];
            if io.read_exact(&mut head).await.is_err() {
                break goaways.last().copied();
            }
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; length as usize];
            io.read_exact(&mut payload).await.unwrap();
            let [_, _, _, kind, flags, ..] = head;
            if kind == 7 {
                goaways.push(payload[7]);
            }
            if kind == 7 && goaways.len() == 1 || kind == 6 && flags & 1 == 1 {
                let streams = || (0..BATCH).map(|at| first + 2 * at);
                let opens = streams().flat_map(|stream| frame(1, 4, stream, &block));
                let resets = streams().flat_map(|stream| frame(3, 0, stream, &[0, 0, 0, 8]));
                let flood: Vec<u8> = opens.chain(resets).chain(frame(6, 0, 0, &[0; 8])).collect();
                // It fails once the connection has ended.
                let _ = io.write_all(&flood).await;
                first += 2 * BATCH;
            }
        };
        assert_eq!(error, Some(u32::from(Reason::ENHANCE_YOUR_CALM) as u8));
    });
}

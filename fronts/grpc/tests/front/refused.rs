//! Requests that the front answers without a handler, and bytes that are not requests.

use http::StatusCode;
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use wave_rpc::status::Code;

use crate::calls::client;
use crate::client::{frame, run};
use crate::fixture::Fixture;

#[test]
fn each_invalid_request_is_answered_and_the_connection_continues() {
    let fixture = Fixture::new();
    run(async {
        let mut client = client(&fixture).await;
        let echo = "/test.Test/Echo";
        let json = client.open(echo, &[("content-type", "application/json")], true).await;
        let (status, text) = json.plain().await;
        assert_eq!(status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
        assert!(text.contains("application/grpc"), "{text}");
        for (path, code) in [
            ("/test.Test/No", Code::Unimplemented),
            ("/no.Such/Echo", Code::Unimplemented),
            ("/", Code::Unimplemented),
        ] {
            assert_eq!(client.call(path, &[], &[b"x"]).await.code(), code as i32, "{path}");
        }
        for (header, value, code) in [
            ("grpc-timeout", "1", Code::Internal),
            ("grpc-timeout", "999999999S", Code::Internal),
            ("x-bin", "***", Code::Internal),
        ] {
            let answer = client.call(echo, &[(header, value)], &[b"x"]).await;
            assert_eq!((answer.status, answer.code()), (StatusCode::OK, code as i32), "{value}");
        }
        for (bytes, code) in [
            (frame(false, b""), Code::Ok),
            ([frame(false, b"1"), frame(false, b"2")].concat().into(), Code::Unimplemented),
            (bytes::Bytes::new(), Code::Unimplemented),
            (bytes::Bytes::from_static(&[0, 0, 0]), Code::Internal),
            (bytes::Bytes::from_static(&[0, 0, 0, 0, 2, 1]), Code::Internal),
            (bytes::Bytes::from_static(&[7, 0, 0, 0, 0]), Code::Internal),
        ] {
            let shown = format!("{bytes:?}");
            assert_eq!(client.call_with(echo, &[], bytes).await.code(), code as i32, "{shown}");
        }
        assert_eq!(client.call(echo, &[("k", "a\tb")], &[b"x"]).await.ok(), [b"x"]);
    });
}

/// After an early answer, h2 would not check the rest of the request: violations of HTTP/2 would pass.
#[test]
fn non_grpc_request_is_answered_after_its_end() {
    let fixture = Fixture::new();
    run(async {
        let mut client = client(&fixture).await;
        let echo = "/test.Test/Echo";
        let mut json = client.open(echo, &[("content-type", "application/json")], false).await;
        // Longer than the stream's window.
        json.write(vec![b' '; 200_000].into(), false).await;
        // When the front answers this call, it has seen the earlier request on the same connection.
        assert_eq!(client.call(echo, &[], &[b"x"]).await.ok(), [b"x"]);
        assert!(!json.is_answered().await);
        json.half_close();
        assert_eq!(json.plain().await.0, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    });
}

#[test]
fn message_above_the_limit_is_refused_by_its_prefix() {
    let fixture = Fixture::new();
    run(async {
        let mut client = client(&fixture).await;
        let at_limit = vec![1; 4 << 20];
        assert!(client.call("/test.Test/Echo", &[], &[&at_limit]).await.ok() == [&at_limit[..]]);
        let mut open = client.open("/test.Test/Echo", &[], false).await;
        open.write(bytes::Bytes::from_static(&[0, 0, 0x40, 0, 1]), false).await;
        let answer = open.finish().await;
        assert_eq!(answer.code(), Code::ResourceExhausted as i32);
        assert!(answer.text().contains("4194305"), "{}", answer.text());
    });
}

#[test]
fn connection_without_http2_is_dropped() {
    let fixture = Fixture::new();
    run(async {
        let mut socket = TcpStream::connect(fixture.address).await.unwrap();
        socket.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut rest = Vec::new();
        // The connection ends, with or without an answer.
        let _ = socket.read_to_end(&mut rest).await;
        assert_eq!(client(&fixture).await.call("/test.Test/Echo", &[], &[b"x"]).await.ok(), [b"x"]);
    });
}

#[test]
fn too_much_metadata_of_a_handler_is_called_the_handlers() {
    let fixture = Fixture::new();
    run(async {
        let mut client = client(&fixture).await;
        for place in [&b"headers"[..], b"trailers"] {
            let answer = client.call("/test.Test/Heavy", &[], &[place]).await;
            let shown = format!("{} {}", answer.code(), answer.text());
            assert_eq!(answer.code(), Code::Internal as i32, "{shown}");
            assert!(shown.contains("the handler") && !shown.contains("peer"), "{shown}");
        }
    });
}

#[derive(Clone, PartialEq, Message)]
struct Named {
    #[prost(string, tag = "7")]
    list: String,
}

#[test]
fn reflection_lists_what_host_and_front_serve() {
    let fixture = Fixture::new();
    run(async {
        let mut client = client(&fixture).await;
        for version in ["v1", "v1alpha"] {
            let path = format!("/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo");
            let ask = Named { list: "*".into() }.encode_to_vec();
            let replies = client.call(&path, &[], &[&ask, &ask]).await.ok();
            assert_eq!(replies.len(), 2);
            for name in
                ["test.Test", "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"]
            {
                let is_listed = |window: &[u8]| window == name.as_bytes();
                assert!(replies[0].windows(name.len()).any(is_listed), "{name}");
            }
        }
    });
}

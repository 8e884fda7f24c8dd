//! gzip in both directions.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use wave_rpc::status::Code;

use crate::calls::client;
use crate::client::{frame, run};
use crate::fixture::Fixture;

fn packed(message: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(message).unwrap();
    encoder.finish().unwrap()
}

fn unpacked(message: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    GzDecoder::new(message).read_to_end(&mut bytes).unwrap();
    bytes
}

const GZIP: [(&str, &str); 2] = [("grpc-encoding", "gzip"), ("grpc-accept-encoding", "gzip")];

#[test]
fn handler_sees_and_chooses_compression_per_message() {
    let fixture = Fixture::new();
    run(async {
        let mut client = client(&fixture).await;
        let message = [3; 10_000];
        let both = [frame(true, &packed(&message)), frame(false, &message)].concat();
        let answer = client.call_with("/test.Test/Chat", &GZIP, both.clone().into()).await;
        assert_eq!(answer.headers["grpc-encoding"], "gzip");
        let [(true, reply), (false, plain)] = &answer.messages[..] else { panic!("{answer:?}") };
        assert!(reply.len() < 1000 && unpacked(reply) == message && *plain == message);

        // A client that does not announce that it accepts compressed messages gets none.
        let answer = client.call_with("/test.Test/Chat", &GZIP[..1], both.into()).await;
        assert!(!answer.headers.contains_key("grpc-encoding"));
        assert!(answer.messages.iter().all(|(compressed, _)| !compressed));
        assert_eq!(answer.ok(), [message, message]);
    });
}

#[test]
fn incompressible_replies_are_sent_uncompressed() {
    let fixture = Fixture::new();
    run(async {
        let mut client = client(&fixture).await;
        let message = [3; 10_000];
        let answer = client.call("/test.Test/Packed", &GZIP[1..], &[&message]).await;
        assert!(answer.messages[0].0 && unpacked(&answer.messages[0].1) == message);
        assert_eq!(answer.messages[1], (false, vec![]));
        assert_eq!(answer.messages[2], (false, message.to_vec()));
    });
}

#[test]
fn message_that_cannot_be_decompressed_is_refused() {
    let fixture = Fixture::new();
    run(async {
        let mut client = client(&fixture).await;
        let bytes = frame(true, &packed(b"x"));
        let answer = client.call_with("/test.Test/Echo", &[], bytes).await;
        assert_eq!(answer.code(), Code::Internal as i32);
        let answer = client.call_with("/test.Test/Echo", &GZIP, frame(true, b"no gzip")).await;
        assert_eq!(answer.code(), Code::Internal as i32);
        let bomb = frame(true, &packed(&vec![0; (4 << 20) + 1]));
        let answer = client.call_with("/test.Test/Echo", &GZIP, bomb).await;
        assert_eq!(answer.code(), Code::ResourceExhausted as i32);
        let unknown = [("grpc-encoding", "snappy")];
        let answer = client.call("/test.Test/Echo", &unknown, &[b"x"]).await;
        assert_eq!(answer.code(), Code::Unimplemented as i32);
        assert_eq!(answer.headers["grpc-accept-encoding"], "identity,gzip");
    });
}

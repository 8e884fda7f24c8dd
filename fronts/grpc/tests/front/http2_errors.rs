//! Errors of HTTP/2 clients, with the codes that RFC 9113 has for them, and requests that are valid.

use wave_grpc::Limits;

use crate::bare_frames::Reaction::{self, Connection, Stream};
use crate::bare_frames::{
    ACK, BareClient, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PADDED, PING,
    PRIORITY, RST_STREAM, SETTINGS, WINDOW_UPDATE, WITH_PRIORITY, field, request,
};
use crate::fixture::Fixture;

const PROTOCOL_ERROR: u32 = 1;
const FLOW_CONTROL_ERROR: u32 = 3;
const FRAME_SIZE_ERROR: u32 = 6;

const CHECK: &str = "/grpc.health.v1.Health/Check";
/// An empty message with its prefix.
const EMPTY: [u8; 5] = [0; 5];

/// Names of servers that clients of Unix sockets and proxies send, plain and with Huffman coding (RFC 7541, appendix B).
const NAMES: [(&str, &[u8]); 7] = [
    ("localhost", b"\xa0\xe4\x1d\x13\x9d\x09"),
    ("my_service", b"\xa7\xd4\x48\x2d\x9d\xcc\x42\xff"),
    ("extension/ns/payments", b"\x2f\x94\x96\xa4\x18\xf5\x31\x52\x18\xac\x7e\xa9\x2d\x49\x47"),
    ("/var/run/app.sock", b"\x63\xb8\xec\x62\xcb\x6a\x60\x75\xd6\xba\x0e\x4e\xbf"),
    (
        "%2Fvar%2Frun%2Fapp.sock",
        b"\x54\x58\x7b\x8e\xc5\x45\x86\xcb\x6a\x54\x58\x47\x5d\x6b\xa0\xe4\xeb",
    ),
    (
        "[fe80::1%25eth0]:50051",
        b"\xff\xdc\xa5\x78\x17\x2e\x05\x51\x36\x54\xce\x0f\xfe\x5c\x6c\x00\x6c\x3f",
    ),
    ("[::]", b"\xff\xdd\xcb\x9f\xfc"),
];

#[test]
fn any_name_of_the_server_is_accepted() {
    let fixture = Fixture::without_host(Limits::default());
    for (name, coded) in NAMES {
        let plain = [&[name.len() as u8], name.as_bytes()].concat();
        let coded = [&[0x80 | coded.len() as u8], coded].concat();
        for value in [plain, coded] {
            let mut client = BareClient::connect(fixture.address);
            // Into the dynamic table with the name's index in the static table (6.2.1), then by the entry's index (6.1), then
            // with the name as text.
            let forms: [Vec<u8>; 3] = [
                [&[0x41], &value[..]].concat(),
                vec![0x80 | 62],
                [&b"\x10\x0a:authority"[..], &value[..]].concat(),
            ];
            for (at, form) in forms.into_iter().enumerate() {
                let stream = 2 * at as u32 + 1;
                let block = [form, request(CHECK)].concat();
                client.send(HEADERS, END_HEADERS, stream, &block);
                client.send(DATA, END_STREAM, stream, &EMPTY);
                assert_eq!(client.answer(stream), Ok(()), "{name} {value:x?} {at}");
            }
        }
    }
}

#[test]
fn name_of_the_server_may_be_split_between_frames() {
    let fixture = Fixture::without_host(Limits::default());
    let name = [&b"\x41\x11"[..], b"/var/run/app.sock"].concat();
    let block = [name, request(CHECK)].concat();
    for split in 0..20 {
        let mut client = BareClient::connect(fixture.address);
        client.send(HEADERS, 0, 1, &block[..split]);
        client.send(CONTINUATION, END_HEADERS, 1, &block[split..]);
        client.send(DATA, END_STREAM, 1, &EMPTY);
        assert_eq!(client.answer(1), Ok(()), "{split}");
    }
}

/// Sends one frame, as kind, flags, stream and payload, to a new connection.
fn reaction(fixture: &Fixture, frame: (u8, u8, u32, &[u8])) -> Option<Reaction> {
    let mut client = BareClient::connect(fixture.address);
    let (kind, flags, stream, payload) = frame;
    client.send(kind, flags, stream, payload);
    client.reaction()
}

/// RFC 9113, 4.2 and 6.
#[test]
fn frames_of_a_wrong_size_are_frame_size_errors() {
    let fixture = Fixture::without_host(Limits::default());
    let size = Some(Connection(FRAME_SIZE_ERROR));
    for frame in [
        (SETTINGS, 0, 0, &[0; 5][..]),
        (SETTINGS, ACK, 0, &[0; 6]),
        (PING, 0, 0, &[0; 7]),
        (WINDOW_UPDATE, 0, 0, &[0; 3]),
        (RST_STREAM, 0, 1, &[0; 5]),
        (PRIORITY, 0, 1, &[0; 4]),
        (GOAWAY, 0, 0, &[0; 7]),
        (HEADERS, END_HEADERS | WITH_PRIORITY, 1, &[0; 4]),
        (HEADERS, END_HEADERS | PADDED, 1, &[]),
        (DATA, 0, 1, &[0; 16_385]),
        (HEADERS, END_HEADERS, 1, &[0; 16_385]),
        (0x42, 0, 0, &[0; 16_385]),
    ] {
        assert_eq!(reaction(&fixture, frame), size, "{frame:?}");
    }
    assert_eq!(reaction(&fixture, (0x42, 0, 0, &[0; 5])), None);
}

/// RFC 9113, 6.9.1 and 6.9.2.
#[test]
fn windows_that_overflow_are_flow_control_errors() {
    let fixture = Fixture::without_host(Limits::default());
    let most = 0x7fff_ffff_u32.to_be_bytes();
    let whole = Some(Connection(FLOW_CONTROL_ERROR));
    assert_eq!(reaction(&fixture, (WINDOW_UPDATE, 0, 0, &most)), whole);
    // A stream that is open, as its message is incomplete.
    let open = |client: &mut BareClient| {
        client.send(HEADERS, END_HEADERS, 1, &request(CHECK));
        client.send(DATA, 0, 1, &EMPTY[..1]);
    };
    let mut client = BareClient::connect(fixture.address);
    open(&mut client);
    client.send(WINDOW_UPDATE, 0, 1, &most);
    assert_eq!(client.answer(1), Err(Stream(FLOW_CONTROL_ERROR)));
    let mut client = BareClient::connect(fixture.address);
    open(&mut client);
    client.send(WINDOW_UPDATE, 0, 1, &0x7fff_0000_u32.to_be_bytes());
    client.send(SETTINGS, 0, 0, &[&[0, 4][..], &most].concat());
    assert_eq!(client.reaction(), whole);
}

/// RFC 9113, 8.1.1 and 8.3.1.
#[test]
fn request_without_a_pseudo_field_is_malformed() {
    let fixture = Fixture::without_host(Limits::default());
    let fields =
        [(":method", "POST"), (":scheme", "http"), (":path", CHECK), (":authority", "localhost")];
    let others = [field("content-type", "application/grpc"), field("te", "trailers")].concat();
    for has_authority in [true, false] {
        let fields = &fields[..3 + usize::from(has_authority)];
        for missing in [":method", ":scheme", ":path"] {
            let fields = fields.iter().filter(|(name, _)| *name != missing);
            let mut block: Vec<u8> = fields.flat_map(|(name, value)| field(name, value)).collect();
            block.extend_from_slice(&others);
            let mut client = BareClient::connect(fixture.address);
            client.send(HEADERS, END_HEADERS, 1, &block);
            client.send(DATA, END_STREAM, 1, &EMPTY);
            let malformed = Err(Stream(PROTOCOL_ERROR));
            assert_eq!(client.answer(1), malformed, "{missing} {has_authority}");
            // Only that stream is at fault.
            client.send(HEADERS, END_HEADERS, 3, &request(CHECK));
            client.send(DATA, END_STREAM, 3, &EMPTY);
            assert_eq!(client.answer(3), Ok(()), "{missing} {has_authority}");
        }
    }
}

/// RFC 9113, 6.5.2, has FLOW_CONTROL_ERROR for this: h2 has one code for all values that a setting may not have
/// (docs/deviations.md).
#[test]
fn initial_window_beyond_the_maximum_ends_the_connection() {
    let fixture = Fixture::without_host(Limits::default());
    let window = [&[0, 4][..], &0x8000_0000_u32.to_be_bytes()].concat();
    let protocol = Some(Connection(PROTOCOL_ERROR));
    assert_eq!(reaction(&fixture, (SETTINGS, 0, 0, &window)), protocol);
}

/// RFC 9113, 4.3, has COMPRESSION_ERROR for these: h2 does not tell them apart from other errors (docs/deviations.md).
#[test]
fn field_blocks_that_cannot_be_decoded_end_the_connection() {
    let fixture = Fixture::without_host(Limits::default());
    let blocks: [&[u8]; 5] = [
        // No entry has this index.
        &[0x80],
        &[0x80 | 70],
        // Huffman coding with EOS.
        &[0, 1, b'n', 0x84, 0xff, 0xff, 0xff, 0xff],
        // The table may not be that large.
        &[0x3f, 0xe2, 0x1f],
        // The block ends in a string.
        &[0, 1, b'n', 5, b'v'],
    ];
    for block in blocks {
        let frame = (HEADERS, END_HEADERS | END_STREAM, 1, block);
        assert_eq!(reaction(&fixture, frame), Some(Connection(PROTOCOL_ERROR)), "{block:x?}");
    }
}

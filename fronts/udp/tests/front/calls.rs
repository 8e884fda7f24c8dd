//! Requests that are executed, retried or refused.

use std::process::Command;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use wave_udp::Fate;
use wave_udp_client::wire::{Header, IDEMPOTENT, MESSAGE_MAX, REFUSED, Status, TIMED};
use wave_udp_client::{Call, CallError};

use crate::fixture::{CHAT, CLASS, ECHO, FAIL, Fixture, REPEAT, WAIT, echo};

#[test]
fn requests_are_executed_and_answered() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    for idempotent in [false, true] {
        for message in [&b""[..], b"x", &[7; 1_000], &[8; 30_000]] {
            let reply = client.call(echo(message, idempotent)).unwrap();
            assert_eq!((reply.status, &reply.message[..]), (Status::OK, message));
        }
    }
    assert_eq!(fixture.begun(), 8);
    let counts = fixture.leave();
    assert_eq!(counts.of(Fate::Begun), counts.of(Fate::Replied));
}

#[test]
fn largest_message_passes_and_oversized_reply_is_reported() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    let large = vec![3; MESSAGE_MAX];
    assert!(client.call(echo(&large, false)).unwrap().message == large);
    let too_long = client.call(echo(&vec![3; MESSAGE_MAX + 1], false));
    assert!(matches!(too_long, Err(CallError::TooLong(_))));
    let bytes = (MESSAGE_MAX + 1).to_string();
    let repeat = Call { method: REPEAT, message: bytes.as_bytes(), ..Call::default() };
    let reply = client.call(repeat).unwrap();
    let text = String::from_utf8(reply.message).unwrap();
    assert_eq!(reply.status, Status::RESOURCE_EXHAUSTED);
    assert!(text.contains("executed") && text.contains(&bytes), "{text}");
}

#[test]
fn error_text_is_returned_and_class_is_capped() {
    let fixture = Fixture::new();
    let mut client = fixture.client();
    let fail = Call { method: FAIL, message: "\u{5}no ☺".as_bytes(), ..Call::default() };
    let reply = client.call(fail).unwrap();
    assert_eq!((reply.status.name(), &reply.message[..]), ("NOT_FOUND", "no ☺".as_bytes()));
    for (class, seen) in [(0, 1), (2, 2), (9, 3)] {
        let call = Call { method: CLASS, class, ..Call::default() };
        assert_eq!(client.call(call).unwrap().message, [seen]);
    }
}

#[test]
fn retry_is_answered_from_the_kept_reply() {
    let fixture = Fixture::new();
    let raw = fixture.raw();
    let header = raw.header(ECHO, 100);
    raw.send(header, b"once");
    let first = raw.reply();
    for _ in 0..3 {
        raw.send(header, b"once");
        let (reply, message) = raw.reply();
        assert_eq!((reply.status, message), (first.0.status, first.1.clone()));
    }
    assert_eq!(fixture.begun(), 1);
    assert_eq!(fixture.leave().of(Fate::Again), 3);
}

#[test]
fn retries_of_an_open_request_are_dropped_and_answered_once() {
    let fixture = Fixture::new();
    let raw = fixture.raw();
    let header = raw.header(WAIT, 7);
    for _ in 0..5 {
        raw.send(header, b"wait");
    }
    // The reply to this request shows that the front has judged all five tries.
    let behind = raw.header(ECHO, 8);
    raw.send(behind, b"");
    assert_eq!(raw.reply().0.id, 8);
    fixture.seen.may_end.store(true, SeqCst);
    assert_eq!(raw.reply().0.id, 7);
    assert_eq!(fixture.begun(), 2);
    let counts = fixture.leave();
    assert_eq!((counts.of(Fate::Duplicate), counts.of(Fate::Replied)), (4, 2 + 1));
}

#[test]
fn timed_request_gets_its_time_at_the_front() {
    let fixture = Fixture::new();
    let raw = fixture.raw();
    let timed = Header { flags: TIMED, ..raw.header(WAIT, 7) };
    let sent = Instant::now();
    raw.send(timed, b"");
    while fixture.begun() < 1 {
        std::thread::yield_now();
    }
    // The front received the request before this span, and replies after it.
    let held = Instant::now();
    while held.elapsed() < Duration::from_millis(2) {
        std::thread::yield_now();
    }
    let held = held.elapsed();
    fixture.seen.may_end.store(true, SeqCst);
    let (reply, _) = raw.reply();
    let told = Duration::from_nanos(reply.work.into());
    assert!(reply.has(TIMED), "{reply:?}");
    assert!(held <= told && told <= sent.elapsed(), "{held:?} {told:?}");
    // A kept reply is the reply to an earlier try, so it has no time. Nor has the reply to an untimed request.
    for header in [timed, raw.header(ECHO, 8)] {
        raw.send(header, b"");
        let (reply, _) = raw.reply();
        assert_eq!((reply.id, reply.has(TIMED), reply.work), (header.id, false, 0));
    }
}

#[test]
fn refusal_is_final_unless_the_request_is_idempotent() {
    let mut fixture = Fixture::without_host();
    let raw = fixture.raw();
    let refused = |flags, id| {
        let header = Header { flags, ..raw.header(ECHO, id) };
        raw.send(header, b"x");
        let (reply, _) = raw.reply();
        (Status(reply.status), reply.has(REFUSED))
    };
    assert_eq!(refused(0, 1), (Status::UNAVAILABLE, true));
    assert_eq!(refused(IDEMPOTENT, 2), (Status::UNAVAILABLE, true));
    fixture.start_host(|options| options.workers(1));
    fixture.until_served();
    // A delayed earlier try must not execute after the client received a refusal.
    assert_eq!(refused(0, 1), (Status::UNAVAILABLE, true));
    assert_eq!(refused(IDEMPOTENT, 2), (Status::OK, false));
    assert_eq!(refused(0, 3), (Status::OK, false));
    for (method, flags) in [(CHAT, 0), (99, IDEMPOTENT)] {
        let call = Call { method, idempotent: flags != 0, ..Call::default() };
        let error = fixture.client().call(call).unwrap_err();
        assert!(error.to_string().contains("not executed: UNIMPLEMENTED"), "{error}");
    }
    assert_eq!(fixture.begun(), 2);
}

#[test]
fn open_requests_of_a_lost_host_have_an_unknown_outcome() {
    let mut fixture = Fixture::new();
    let raw = fixture.raw();
    raw.send(raw.header(WAIT, 1), b"");
    let idempotent = Header { flags: IDEMPOTENT, ..raw.header(WAIT, 2) };
    raw.send(idempotent, b"");
    while fixture.begun() < 2 {
        std::thread::sleep(Duration::from_millis(1));
    }
    fixture.seen.may_end.store(true, SeqCst);
    // Both handlers may still finish, with replies before the host is lost.
    fixture.stop_host();
    let mut ended: Vec<_> = (0..2).map(|_| raw.reply().0).map(|it| (it.id, it.status)).collect();
    ended.sort_unstable();
    let may_be = |id, status: Status| ended[id as usize - 1] == (id, status.0);
    assert!(may_be(1, Status::OUTCOME_UNKNOWN) || may_be(1, Status::OK), "{ended:?}");
    assert!(may_be(2, Status::UNAVAILABLE) || may_be(2, Status::OK), "{ended:?}");
    fixture.start_host(|options| options.workers(1));
    fixture.until_served();
    raw.send(raw.header(WAIT, 1), b"");
    assert_eq!(raw.reply().0.status, ended[0].1, "not executed again");
}

/// The Python client: a call with each kind of outcome.
#[test]
fn python_client_calls_and_reports_refusals() {
    let fixture = Fixture::new();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../clients/udp");
    let program = r#"
import sys, wave_udp
client = wave_udp.Client("127.0.0.1", int(sys.argv[1]), patience_s=60.0)
for idempotent in (False, True):
    assert client.call(0, b"hello", idempotent=idempotent) == (0, b"hello")
assert client.call(3, b"\x05gone") == (5, b"gone")
try:
    client.call(99)
    raise SystemExit("a method that does not exist was executed")
except wave_udp.Refused as refused:
    assert refused.args[0] == 12, refused.args
print("passed")
"#;
    let mut command = Command::new("python3");
    command.args(["-B", "-c", program, &fixture.address.port().to_string()]);
    let Ok(output) = command.env("PYTHONPATH", folder).output() else {
        return wave_skip::skip("no python3, for the UDP client in Python");
    };
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output.stdout == b"passed\n", "{text}");
    assert_eq!(fixture.begun(), 2);
}

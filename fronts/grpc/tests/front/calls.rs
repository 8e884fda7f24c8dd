//! Calls of every kind that succeed, or end as their clients or handlers want.

use std::sync::atomic::Ordering::SeqCst;

use wave_grpc::Limits;
use wave_rpc::extents::PayloadConfig;
use wave_rpc::status::Code;
use wave_user::rpc::Options;

use crate::client::{Client, run, until};
use crate::fixture::Fixture;

/// A client of a fixture with an attached host.
pub async fn client(fixture: &Fixture) -> Client {
    let mut client = Client::connect(fixture.address).await;
    while client.call("/test.Test/Echo", &[], &[b"there?"]).await.code() != 0 {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    client
}

#[test]
fn all_four_kinds_of_calls() {
    all_kinds(Fixture::new());
}

#[test]
fn all_four_kinds_of_calls_with_checksums() {
    all_kinds(Fixture::with(Limits::default(), |mut options| {
        options.checksums = true;
        options.workers(2)
    }));
}

fn all_kinds(fixture: Fixture) {
    run(async {
        let mut client = client(&fixture).await;
        for message in [&b""[..], b"x", &[7; 1_000], &[7; 100_000]] {
            assert_eq!(client.call("/test.Test/Echo", &[], &[message]).await.ok(), [message]);
        }
        let all = client.call("/test.Test/Chat", &[], &[b"a", b"", b"c"]).await;
        assert_eq!(all.ok(), [&b"a"[..], b"", b"c"]);
        assert_eq!(client.call("/test.Test/Chat", &[], &[]).await.ok(), Vec::<Vec<u8>>::new());
        assert_eq!(client.call("/test.Test/Collect", &[], &[b"12", b"345"]).await.ok(), [b"5"]);
        assert_eq!(client.call("/test.Test/Collect", &[], &[]).await.ok(), [b"0"]);
        let repeated = client.call("/test.Test/Repeat", &[], &[b"3 2"]).await.ok();
        assert_eq!(repeated, [[0, 0], [1, 1], [2, 2]]);
    });
    let left = fixture.leave();
    assert_eq!((left.calls, left.held, left.at_host), (0, 0, Some(0)));
}

#[test]
fn client_and_handler_take_turns() {
    let fixture = Fixture::new();
    run(async {
        let mut client = client(&fixture).await;
        let mut chat = client.open("/test.Test/Chat", &[], false).await;
        for turn in 0..100u8 {
            let message = vec![turn; 40 * usize::from(turn)];
            chat.send(&message, false).await;
            assert_eq!(chat.next().await.unwrap(), Some((false, message)));
        }
        chat.half_close();
        assert_eq!(chat.finish().await.ok(), Vec::<Vec<u8>>::new());
    });
}

#[test]
fn large_messages_pass_every_window_even_through_small_rings() {
    let extents = |extents, lines| PayloadConfig { extents, lines, inline_max: 1_000 };
    for (entries, payloads) in
        [(4, extents(0, 0)), (4, extents(2, 16)), (1024, extents(0, 0)), (1024, extents(8, 256))]
    {
        let fixture = Fixture::with(Limits::default(), |options| {
            let mut options: Options = options;
            options.config.pools = payloads.pools();
            options.config.messages.entries = entries;
            options.config.decisions.entries = entries;
            options.config.prestage = 1;
            options
        });
        run(async {
            let mut client = client(&fixture).await;
            let bytes: u32 = if entries == 4 { 100_000 } else { 1 << 20 };
            let large: Vec<u8> = (0..bytes).map(|at| (at.wrapping_mul(at) >> 7) as u8).collect();
            assert!(client.call("/test.Test/Echo", &[], &[&large]).await.ok() == [&large[..]]);
            let all = client.call("/test.Test/Chat", &[], &[&large, b"", &large]).await.ok();
            assert!(all == [&large[..], b"", &large]);
            let repeated = client.call("/test.Test/Repeat", &[], &[b"20 10000"]).await.ok();
            assert!(repeated.len() == 20 && repeated[19] == vec![19; 10_000]);
        });
        let left = fixture.leave();
        assert_eq!((left.calls, left.held, left.at_host), (0, 0, Some(0)));
    }
}

#[test]
fn metadata_goes_both_ways_and_a_class_is_capped() {
    let fixture = Fixture::new();
    run(async {
        let mut client = client(&fixture).await;
        let headers = [
            ("k", "1"),
            ("k", "2"),
            ("b-bin", "AAEC,AwQ="),
            ("b-bin", "BQ"),
            ("user-agent", "me"),
            ("x-wave-class", "9"),
        ];
        let answer = client.call("/test.Test/Metadata", &headers, &[b""]).await;
        for map in [&answer.headers, &answer.trailers] {
            let all = |name| map.get_all(name).iter().collect::<Vec<_>>();
            assert_eq!(all("k"), ["1", "2"]);
            assert_eq!(all("b-bin"), ["AAEC", "AwQ", "BQ"]);
            assert!(!map.contains_key("user-agent") && !map.contains_key("x-wave-class"));
        }
        assert_eq!(answer.ok(), [[2]]);
    });
}

#[test]
fn status_carries_text_and_details() {
    let fixture = Fixture::new();
    run(async {
        let mut client = client(&fixture).await;
        let request = ["\u{5}no ☺, 100%".as_bytes()];
        let answer = client.call("/test.Test/Fail", &[], &request).await;
        assert_eq!(answer.code(), Code::NotFound as i32);
        assert_eq!(answer.text(), "no %E2%98%BA, 100%25");
        assert_eq!(answer.headers["grpc-status-details-bin"], "CAU");
        assert!(answer.messages.is_empty());
        // Trailers-Only: a single block of headers.
        assert_eq!(answer.headers["content-type"], "application/grpc");
        assert!(answer.trailers.is_empty());
    });
}

#[test]
fn deadline_ends_a_call_and_cancels_its_handler() {
    let fixture = Fixture::new();
    run(async {
        let mut client = client(&fixture).await;
        let answer = client.call("/test.Test/Sleep", &[("grpc-timeout", "2S")], &[b"x"]).await;
        assert_eq!(answer.code(), Code::DeadlineExceeded as i32);
        assert_eq!(answer.messages.len(), 1);
        until(|| fixture.seen.cancelled.load(SeqCst) == 1).await;
        // A deadline that passes before the call begins: no handler sees it.
        let begun = fixture.seen.begun.load(SeqCst);
        let answer = client.call("/test.Test/Echo", &[("grpc-timeout", "0n")], &[b"x"]).await;
        assert_eq!(answer.code(), Code::DeadlineExceeded as i32);
        // A deadline that passes while the message is still incomplete.
        let mut open = client.open("/test.Test/Echo", &[("grpc-timeout", "20m")], false).await;
        open.write(bytes::Bytes::from_static(&[0, 0, 0]), false).await;
        assert_eq!(open.finish().await.code(), Code::DeadlineExceeded as i32);
        assert_eq!(fixture.seen.begun.load(SeqCst), begun);
    });
    let left = fixture.leave();
    assert_eq!((left.calls, left.held, left.at_host), (0, 0, Some(0)));
}

#[test]
fn reset_or_lost_connection_cancels_calls() {
    let fixture = Fixture::new();
    run(async {
        let mut client = client(&fixture).await;
        let mut first = client.open("/test.Test/Sleep", &[], false).await;
        first.send(b"x", true).await;
        assert!(first.next().await.unwrap().is_some());
        first.send.send_reset(h2::Reason::CANCEL);
        until(|| fixture.seen.cancelled.load(SeqCst) == 1).await;

        let mut other = Client::connect(fixture.address).await;
        let mut second = other.open("/test.Test/Sleep", &[], false).await;
        second.send(b"", true).await;
        until(|| fixture.seen.begun.load(SeqCst) >= 3).await;
        drop((second, other));
        until(|| fixture.seen.cancelled.load(SeqCst) == 2).await;
    });
    let left = fixture.leave();
    assert_eq!((left.calls, left.held, left.at_host), (0, 0, Some(0)));
}

/// Resident memory of this process in bytes.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Variable that tells a process that it runs one test alone, for its memory.
const ALONE: &str = "WAVE_TEST_ALONE";

/// `WAVE_CALLS=n` makes `n` calls.
#[test]
fn calls_that_end_early_leave_nothing_behind() {
    if std::env::var_os(ALONE).is_none() {
        // Other tests' memory would count in this process.
        let name = "calls::calls_that_end_early_leave_nothing_behind";
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        let done = alone.args([name, "--exact", "--nocapture"]).env(ALONE, "").status();
        assert!(done.unwrap().success());
        return;
    }
    let calls = std::env::var("WAVE_CALLS").map_or(100_000, |calls| calls.parse().unwrap());
    let fixture = Fixture::new();
    let mut before = 0;
    for round in 0..calls / ROUND {
        end_half_early(&fixture);
        // The allocator keeps some memory after the first rounds.
        if round == 1 {
            before = resident();
        }
    }
    let after = resident();
    println!("{calls} calls; resident {} KiB early, {} at the end", before >> 10, after >> 10);
    assert!(after < before + (16 << 20), "{before} bytes before, {after} after");
    let left = fixture.leave();
    assert_eq!((left.calls, left.held, left.at_host), (0, 0, Some(0)));
}

const ROUND: u32 = 2000;

fn end_half_early(fixture: &Fixture) {
    run(async {
        let client = client(fixture).await;
        let calls = (0..ROUND).map(|at| {
            let mut client = client.clone();
            tokio::spawn(async move {
                match at % 4 {
                    0 => {
                        let mut open = client.open("/test.Test/Chat", &[], false).await;
                        open.send(&[1; 500], false).await;
                        // The progress at the reset differs from call to call.
                        for _ in 0..at % 7 {
                            tokio::task::yield_now().await;
                        }
                        open.send.send_reset(h2::Reason::CANCEL);
                        None
                    }
                    1 => {
                        let timeout = format!("{}u", at % 300);
                        let timeout = [("grpc-timeout", &timeout[..])];
                        let answer = client.call("/test.Test/Chat", &timeout, &[&[1; 500]]).await;
                        Some(answer.code())
                    }
                    _ => Some(client.call("/test.Test/Echo", &[], &[&[1; 100]]).await.code()),
                }
            })
        });
        let calls: Vec<_> = calls.collect();
        for (at, call) in calls.into_iter().enumerate() {
            let code = call.await.unwrap();
            match at % 4 {
                0 => assert_eq!(code, None),
                1 => assert!([0, 4].contains(&code.unwrap()), "{code:?}"),
                _ => assert_eq!(code, Some(0)),
            }
        }
    });
}

//! Clients that open streams and neither read nor finish them, beside good clients, whose calls must all succeed.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

use wave_grpc::Limits;
use wave_rpc::status::Code;

use crate::client::{Client, Open, run, until};
use crate::dial::{Dial, Good};
use crate::fixture::Fixture;

const WORKERS: u16 = 2;
/// Calls that the fixture's steering policy hands to a worker at once.
const AHEAD: usize = 4;
/// More streams than the workers have places for calls.
const STREAMS: usize = (WORKERS as usize + 1) * AHEAD;
/// Request for replies far larger than any window.
const UNREAD: &[u8] = b"250 100000";
/// Request for more replies than a test can read.
const ENDLESS: &[u8] = b"4000000000 64";
const CALLS: usize = 100;
/// Fewer calls, because each waits for its turn among streams that keep every worker busy.
const CALLS_AMONG_READERS: usize = 20;

#[derive(Clone, Copy)]
enum Host {
    Pthreads,
    Threads,
}

/// Runs `what` against a front and its host, plain and then over TLS.
fn each(host: Host, workers: u16, what: impl AsyncFn(&Fixture, &Dial)) {
    for is_tls in [false, true] {
        let mut fixture = Fixture::made_of(Limits::default(), Dial::identity(is_tls));
        match host {
            Host::Pthreads => fixture.start_host(|options| options.workers(workers)),
            Host::Threads => fixture.start_threads(|options| options.workers(workers)),
        }
        let dial = Dial::new(fixture.address, is_tls);
        run(what(&fixture, &dial));
        // Handlers of streams whose clients have just gone may still run, so `at_host` is not checked.
        let left = fixture.leave();
        assert_eq!((left.calls, left.held), (0, 0));
    }
}

/// Makes calls by good clients, from attackers' addresses and from another one.
async fn is_served(dial: &Dial) {
    calls_end_well(dial, CALLS).await;
}

async fn calls_end_well(dial: &Dial, count: usize) {
    let clients = [1, 2, 9].map(|from| {
        let dial = dial.clone();
        tokio::spawn(async move {
            Good::newcomer(&dial, from).await.calls(count, b"x").await;
        })
    });
    for client in clients {
        client.await.unwrap();
    }
}

/// Opens streams whose replies are not read beyond the first.
async fn unread(client: &mut Client, count: usize) -> Vec<Open> {
    let mut streams = Vec::new();
    for _ in 0..count {
        let mut open = client.open("/test.Test/Repeat", &[], false).await;
        open.send(UNREAD, true).await;
        streams.push(open);
    }
    streams
}

/// Opens calls whose clients send one message, and do not half-close.
async fn unfinished(client: &mut Client, count: usize) -> Vec<Open> {
    let mut streams = Vec::new();
    for _ in 0..count {
        let mut open = client.open("/test.Test/Chat", &[], false).await;
        open.send(b"x", false).await;
        streams.push(open);
    }
    streams
}

/// Waits until workers have begun the first of these streams.
async fn begun(streams: &mut [Open]) {
    for stream in &mut streams[..usize::from(WORKERS)] {
        assert!(stream.next().await.unwrap().is_some());
    }
}

async fn unread_streams_of_one_connection(_: &Fixture, dial: &Dial) {
    Good::new(dial, 1).await.calls(1, b"x").await;
    let mut attacker = dial.client(1).await;
    let mut streams = unread(&mut attacker, STREAMS).await;
    begun(&mut streams).await;
    is_served(dial).await;
    streams.extend(unread(&mut attacker, STREAMS).await);
    is_served(dial).await;
}

#[test]
fn unread_streams_do_not_block_other_calls_on_pthreads() {
    each(Host::Pthreads, WORKERS, unread_streams_of_one_connection);
}

#[test]
fn unread_streams_do_not_block_other_calls_on_threads() {
    each(Host::Threads, WORKERS, unread_streams_of_one_connection);
}

async fn unfinished_calls_of_one_connection(_: &Fixture, dial: &Dial) {
    Good::new(dial, 1).await.calls(1, b"x").await;
    let mut attacker = dial.client(1).await;
    let mut streams = unfinished(&mut attacker, STREAMS).await;
    begun(&mut streams).await;
    is_served(dial).await;
    streams.extend(unfinished(&mut attacker, STREAMS).await);
    is_served(dial).await;
}

#[test]
fn unfinished_bidirectional_calls_do_not_block_others_on_pthreads() {
    each(Host::Pthreads, WORKERS, unfinished_calls_of_one_connection);
}

#[test]
fn unfinished_bidirectional_calls_do_not_block_others_on_threads() {
    each(Host::Threads, WORKERS, unfinished_calls_of_one_connection);
}

async fn streams_of_several_addresses(_: &Fixture, dial: &Dial) {
    Good::new(dial, 1).await.calls(1, b"x").await;
    let mut attackers = Vec::new();
    let mut streams = Vec::new();
    for from in 2..6 {
        let mut attacker = dial.client(from).await;
        streams.extend(unread(&mut attacker, STREAMS / 2).await);
        streams.extend(unfinished(&mut attacker, STREAMS / 2).await);
        attackers.push(attacker);
    }
    begun(&mut streams).await;
    is_served(dial).await;
}

#[test]
fn streams_of_several_addresses_do_not_block_other_calls_on_pthreads() {
    each(Host::Pthreads, WORKERS, streams_of_several_addresses);
}

#[test]
fn streams_of_several_addresses_do_not_block_other_calls_on_threads() {
    each(Host::Threads, WORKERS, streams_of_several_addresses);
}

/// Streams that never wait for their client: it reads replies as fast as they come.
async fn streams_that_are_read(_: &Fixture, dial: &Dial) {
    Good::new(dial, 1).await.calls(1, b"x").await;
    let mut reader = dial.client(1).await;
    let mut readers = Vec::new();
    let long = Arc::new(AtomicUsize::new(0));
    for _ in 0..STREAMS {
        let mut open = reader.open("/test.Test/Repeat", &[], false).await;
        open.send(ENDLESS, true).await;
        let long = Arc::clone(&long);
        readers.push(tokio::spawn(async move {
            for at in 0.. {
                let Ok(Some(_)) = open.next().await else { break };
                long.fetch_add(usize::from(at == 100), SeqCst);
            }
        }));
    }
    // Every stream has sent some replies, so the workers yield between their messages.
    until(|| long.load(SeqCst) == STREAMS).await;
    calls_end_well(dial, CALLS_AMONG_READERS).await;
    assert!(readers.iter().all(|reader| !reader.is_finished()));
    readers.iter().for_each(|reader| reader.abort());
}

#[test]
fn endless_streams_do_not_block_other_calls_on_pthreads() {
    each(Host::Pthreads, WORKERS, streams_that_are_read);
}

#[test]
fn endless_streams_do_not_block_other_calls_on_threads() {
    each(Host::Threads, WORKERS, streams_that_are_read);
}

/// The only worker has a call that spins, then a stream that waits for its client, then calls of others. Then the first call
/// ends.
async fn calls_behind_a_stream(fixture: &Fixture, dial: &Dial) {
    Good::new(dial, 1).await.calls(1, b"x").await;
    let (mut attacker, mut good) = (dial.client(2).await, dial.client(1).await);
    for messages in [UNREAD, b"never finished"] {
        let cancelled = fixture.seen.cancelled.load(SeqCst);
        let mut spins = attacker.open("/test.Test/Sleep", &[], false).await;
        spins.send(b"x", true).await;
        assert!(spins.next().await.unwrap().is_some());
        let stream = match messages {
            UNREAD => unread(&mut attacker, 1).await,
            _ => unfinished(&mut attacker, 1).await,
        };
        // A call on the same connection that the front answers itself shows that the stream has reached the front (with
        // connection cores, its first core) before later calls.
        let health = attacker.call("/grpc.health.v1.Health/Check", &[], &[b""]).await;
        assert_eq!(health.code(), Code::Ok as i32);
        let mut behind = Vec::new();
        for _ in 2..AHEAD {
            let mut open = good.open("/test.Test/Echo", &[], false).await;
            open.send(b"behind", true).await;
            behind.push(open);
        }
        let health = good.call("/grpc.health.v1.Health/Check", &[], &[b""]).await;
        assert_eq!(health.code(), Code::Ok as i32);
        drop(spins);
        until(|| fixture.seen.cancelled.load(SeqCst) > cancelled).await;
        for open in behind {
            assert_eq!(open.finish().await.ok(), [b"behind"]);
        }
        is_served(dial).await;
        drop(stream);
    }
}

#[test]
fn calls_behind_a_waiting_stream_continue_on_pthreads() {
    each(Host::Pthreads, 1, calls_behind_a_stream);
}

#[test]
fn calls_behind_a_waiting_stream_continue_on_threads() {
    each(Host::Threads, 1, calls_behind_a_stream);
}

//! Shared connections without a stack: the door, and what a successor gets.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, getsockname, socket_with};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use wave_tcp::context::Filled;
use wave_tcp::context::demotion::Greeting;
use wave_tcp::datapath::Ring;

use wave_tcp::context::demotion::Shut;

use super::*;

const NOW: Nanos = Nanos::from_millis(5_000);
const SECRET: u128 = 7 << 90 | 1;
const OWNER: ContextId = ContextId { process: 3, context: 0 };
/// Looks after which a test gives up.
const POLLS_MAX: usize = 10_000;

fn flow(number: u32) -> FlowId {
    FlowId::from_word(u64::from(number) << 32 | 1)
}

fn held(number: u32) -> HeldFlow {
    let ring = |at| Ring { offset: at, bytes: 1 << 16 };
    HeldFlow {
        flow: flow(number),
        context: OWNER,
        socket: number,
        rings: [ring(0), ring(1 << 16)],
        filled: Filled { receive: 1 << 16, send: 1 << 16 },
        received: 0,
        read: 0,
        written: 0,
        acknowledged: 0,
        has_peer_ended: false,
        has_ended: false,
        is_read_shut: false,
    }
}

fn placeholder() -> OwnedFd {
    socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
}

/// A shared connection of this number. Returns its placeholder.
fn share(streams: &mut Streams, number: u32) -> OwnedFd {
    let own = placeholder();
    streams.share(flow(number), (OWNER, number), SECRET, own.try_clone().unwrap());
    own
}

/// A process that asks for a connection at the door.
fn ask(streams: &Streams, number: u32) -> TcpStream {
    let call = TcpStream::connect(door(streams)).unwrap();
    let cause = Cause::SecondProcess;
    let greeting = Greeting { secret: SECRET, flow: flow(number).to_word(), cause };
    (&call).write_all(&greeting.to_bytes()).unwrap();
    call.set_nonblocking(true).unwrap();
    call
}

fn door(streams: &Streams) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], streams.port()))
}

/// A turn of the front, at whose beginning the owner is outside.
fn poll_streams(streams: &mut Streams, now: Nanos, turn: u64) {
    let (_, is_ready) = streams.poll_ready();
    for need in streams.serve_door(now, turn, is_ready, |_| Owner::Outside(turn), |_| false) {
        if let Need::Hold { id, socket, .. } = need {
            streams.hold(id, held(socket));
        }
    }
}

/// The next answer at the door.
fn answer(streams: &mut Streams, mut call: &TcpStream) -> Option<Answer> {
    let mut byte = [0];
    for turn in 0..POLLS_MAX as u64 {
        match call.read(&mut byte) {
            Ok(count) => return (count == 1).then(|| Answer::from_byte(byte[0]).unwrap()),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        poll_streams(streams, NOW, turn);
    }
    panic!("no answer");
}

/// Makes a connection a stream of the kernel's. Returns the program's end.
fn demote(streams: &mut Streams, number: u32) -> OwnedFd {
    let own = share(streams, number);
    let call = ask(streams, number);
    assert_eq!(answer(streams, &call), Some(Answer::Go(Shut::default())));
    lead(streams, &own, &call);
    own
}

/// What a process does that was told to go.
fn lead(streams: &mut Streams, own: &OwnedFd, mut call: &TcpStream) {
    connect(own, &door(streams)).unwrap();
    let local: SocketAddr = getsockname(own).unwrap().try_into().unwrap();
    call.write_all(&local.port().to_le_bytes()).unwrap();
    assert_eq!(answer(streams, call), Some(Answer::Done));
}

/// Another agent's shared connections, after these. Its descriptors have other numbers.
fn replaced(streams: &Streams) -> Streams {
    let (kept, fds) = streams.hand_over();
    let kept = serde_json::from_slice(&serde_json::to_vec(&kept).unwrap()).unwrap();
    let fds = fds.iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
    let mut next = Streams::to_restore().unwrap();
    next.restore(kept, fds).unwrap();
    next
}

/// Looks as long as the door's sockets keep the agent awake. Returns the number of looks.
fn polls_until_idle(streams: &mut Streams, now: Nanos) -> usize {
    let is_awake = |streams: &Streams| {
        let polled = &mut [PollFd::from_borrowed_fd(streams.fd(), PollFlags::IN)];
        poll(polled, Some(&AT_ONCE)).unwrap() > 0
    };
    let polls = (0..POLLS_MAX).take_while(|turn| {
        let is_awake = is_awake(streams);
        poll_streams(streams, now, *turn as u64);
        is_awake
    });
    polls.count()
}

/// What the front must do at first for a process that asks for a connection of a process inside a call.
fn asks_to_stop(streams: &mut Streams) {
    let call = ask(streams, 1);
    let asks = (0..POLLS_MAX as u64).any(|turn| {
        let (_, is_ready) = streams.poll_ready();
        let needs = streams.serve_door(NOW, turn, is_ready, |_| Owner::Inside, |_| false);
        needs.iter().any(|need| matches!(need, Need::Stop(process) if *process == OWNER.process))
    });
    assert!(asks);
    // It is killed.
    drop(call);
}

/// What the front must do once the process is outside, up to the moment at which it is told to go on.
fn goes_on(streams: &mut Streams) -> Vec<Need> {
    let mut all = Vec::new();
    for turn in 0..10 {
        let (_, is_ready) = streams.poll_ready();
        let needs = streams.serve_door(NOW, turn, is_ready, |_| Owner::Outside(turn), |_| false);
        all.extend(needs);
        if matches!(all.last(), Some(Need::Hold { .. })) {
            return all;
        }
    }
    panic!("the process waits for ever");
}

#[test]
fn process_that_was_asked_to_stop_goes_on_though_nobody_waits_for_it_any_more() {
    let mut streams = Streams::new().unwrap();
    // Enough to have those removed that are over.
    let own: Vec<OwnedFd> = (1..=100).map(|number| share(&mut streams, number)).collect();
    asks_to_stop(&mut streams);
    streams.sweep(|_| true);
    assert_eq!((streams.shared.len(), own.len()), (1, 100));
    goes_on(&mut streams);
}

#[test]
fn process_that_was_asked_to_stop_by_a_replaced_agent_is_not_asked_again() {
    let mut streams = Streams::new().unwrap();
    let _own = share(&mut streams, 1);
    asks_to_stop(&mut streams);
    let mut next = replaced(&streams);
    drop(streams);
    let needs = goes_on(&mut next);
    assert!(!needs.iter().any(|need| matches!(need, Need::Stop(_))));
}

/// What the front must do in the next turns, while its owner is in these states.
fn turns(streams: &mut Streams, owner: &[Owner], is_changing_owner: bool) -> Vec<Need> {
    let all = owner.iter().flat_map(|owner| {
        let (_, is_ready) = streams.poll_ready();
        streams.serve_door(NOW, 1, is_ready, |_| *owner, |_| is_changing_owner)
    });
    all.collect()
}

#[test]
fn connection_is_taken_over_once_its_process_is_outside_and_its_requests_are_taken() {
    let mut streams = Streams::new().unwrap();
    let _own = share(&mut streams, 1);
    let child = ContextId { process: 4, context: 0 };
    let request = Request::QueryTcpInfo { flow: flow(1) };
    assert!(streams.await_stop(flow(1), child, request));
    let [stop] = &turns(&mut streams, &[Owner::Inside; 5], false)[..] else { panic!() };
    assert!(matches!(stop, Need::Stop(process) if *process == OWNER.process));
    // It may have read before the turn in which it was seen outside.
    let [need] = &turns(&mut streams, &[Owner::Outside(0), Owner::Outside(1)], false)[..] else {
        panic!()
    };
    assert!(matches!(need, Need::Poll));
    let [take] = &turns(&mut streams, &[Owner::Outside(2)], false)[..] else { panic!() };
    assert!(
        matches!(take, Need::Take { from, request: taken } if *from == child && *taken == request)
    );
    // It stays where it is until that is done.
    assert!(turns(&mut streams, &[Owner::Outside(3); 5], true).is_empty());
    let waits = streams.renamed(flow(1), (flow(2), child, 7));
    assert_eq!(waits, Some((OWNER, 1)));
    assert!(streams.next_poll().is_none());
    // The child has it, and needs to wait for nobody.
    assert!(!streams.await_stop(flow(2), child, request));
}

#[test]
fn process_goes_on_without_a_connection_that_nobody_takes_over_after_all() {
    let mut streams = Streams::new().unwrap();
    let _own = share(&mut streams, 1);
    let child = ContextId { process: 4, context: 0 };
    assert!(streams.await_stop(flow(1), child, Request::QueryTcpInfo { flow: flow(1) }));
    turns(&mut streams, &[Owner::Inside], false);
    streams.forget_takeovers(child.process);
    goes_on(&mut streams);
}

/// As many descriptors as allowed are needed for a full door.
fn with_descriptors() -> Streams {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    Streams::new().unwrap()
}

#[test]
fn sockets_that_a_full_door_does_not_take_do_not_keep_the_agent_awake() {
    let mut streams = with_descriptors();
    let mut silent = Vec::new();
    // Fewer at a time than the backlog has room for.
    for _ in 0..5 {
        silent.extend((0..64).map(|_| TcpStream::connect(door(&streams)).unwrap()));
        assert!(polls_until_idle(&mut streams, NOW) < POLLS_MAX);
    }
    assert_eq!(polls_until_idle(&mut streams, NOW), 0);
    // Those at the door leave, and the others take their places: only the second look finds the listener armed.
    let later = NOW + Nanos::from_millis(2_000);
    poll_streams(&mut streams, later, 0);
    assert!((1..POLLS_MAX).contains(&polls_until_idle(&mut streams, later)));
    // They leave as well, and the door is free for a process that asks.
    poll_streams(&mut streams, later + Nanos::from_millis(2_000), 0);
    let _own = demote(&mut streams, 1);
}

/// In a process of its own: other tests need descriptors.
#[test]
fn door_without_descriptors_does_not_keep_the_agent_awake() {
    const ALONE: &str = "WAVE_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let name = "streams::tests::door_without_descriptors_does_not_keep_the_agent_awake";
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        let output = alone.args(["--exact", name]).env(ALONE, "1").output().unwrap();
        return assert!(output.status.success(), "{output:?}");
    }
    let mut streams = Streams::new().unwrap();
    let _own = share(&mut streams, 1);
    let caller = ask(&streams, 1);
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(3), ..limit }).unwrap();
    assert!(polls_until_idle(&mut streams, NOW) < 10);
    assert!(streams.next_poll().is_some(), "it must look again");
    setrlimit(Resource::Nofile, limit).unwrap();
    assert_eq!(polls_until_idle(&mut streams, NOW), 0);
    poll_streams(&mut streams, NOW + Nanos::from_millis(100), 0);
    assert!(answer(&mut streams, &caller).is_some());
}

#[test]
fn processes_that_fill_the_door_leave_room_for_their_placeholders() {
    let mut streams = with_descriptors();
    let (own, mut waiting) = (share(&mut streams, 1), Vec::new());
    for _ in 0..6 {
        waiting.extend((0..50).map(|_| ask(&streams, 1)));
        assert!(polls_until_idle(&mut streams, NOW) < POLLS_MAX);
    }
    assert_eq!(answer(&mut streams, &waiting[0]), Some(Answer::Go(Shut::default())));
    lead(&mut streams, &own, &waiting[0]);
    assert_eq!(answer(&mut streams, &waiting[1]), Some(Answer::Done));
    // The last one was not taken in, and asks again.
    assert_eq!(answer(&mut streams, &waiting[299]), None);
}

#[test]
fn counters_of_each_cause_survive_a_replacement() {
    let mut streams = Streams::new().unwrap();
    let _own = demote(&mut streams, 1);
    streams.counts.demoted[Cause::Splice as usize] = 3;
    streams.counts.torn = 2;
    let counts = replaced(&replaced(&streams)).counts;
    assert_eq!(counts.demoted[Cause::SecondProcess as usize], 1);
    assert_eq!(counts.demoted[Cause::Splice as usize], 3);
    assert_eq!((counts.demoted.iter().sum::<u64>(), counts.torn), (4, 2));
}

#[test]
fn a_stream_waits_for_other_events_after_a_replacement() {
    let mut streams = Streams::new().unwrap();
    let own = demote(&mut streams, 1);
    let id = streams.held_as(OWNER.process, 1).unwrap();
    streams.rearm(id);
    let mut next = replaced(&streams);
    drop(streams);
    // What waits for the stream to have room again is sent then.
    next.rearm(id);
    assert_eq!(next.poll_ready(), (vec![], false));
    next.relay(id).unwrap().held.received = 10;
    next.rearm(id);
    assert_eq!(next.poll_ready(), (vec![id], false));
    next.relay(id).unwrap().held.read = 10;
    next.rearm(id);
    assert_eq!(next.poll_ready(), (vec![], false));
    rustix::io::write(&own, b"bytes").unwrap();
    assert_eq!(next.poll_ready(), (vec![id], false));
    // The door is open.
    let _call = ask(&next, 2);
    assert!(next.poll_ready().1);
}

/// Its streams of the kernel's got no more bytes. Random programs found this: seeds 614, 1514 and 2899.
#[test]
fn connections_of_an_earlier_process_with_the_same_number_leave_no_later_one_without_its_stream() {
    let mut streams = Streams::new().unwrap();
    let placeholders = [1, 2].map(|number| {
        let own = placeholder();
        streams.share(flow(number), (OWNER, 1), SECRET, own.try_clone().unwrap());
        own
    });
    let [earlier, later] = [1, 2].map(|number| streams.by_name[&flow(number).to_word()]);
    streams.hold(later, HeldFlow { socket: 1, ..held(2) });
    streams.forget(earlier);
    drop(placeholders);
    assert_eq!(streams.held_as(OWNER.process, 1), Some(later));
}

/// The later process waited for ever for a stop that it was told of and nobody had asked for. Random programs with kills found this: seed 280.
#[test]
fn later_process_with_the_same_number_hears_nothing_of_a_connection_that_was_being_stopped() {
    let mut streams = Streams::new().unwrap();
    let [kept, closed] = [1, 2].map(|number| share(&mut streams, number));
    let calls = [1, 2].map(|number| ask(&streams, number));
    for turn in 0.. {
        let (_, is_ready) = streams.poll_ready();
        streams.serve_door(NOW, turn, is_ready, |_| Owner::Inside, |_| false);
        if streams.stopping.len() == 2 {
            break;
        }
    }
    drop(closed);
    let left: Vec<FlowId> = streams.left_by(OWNER.process).into_iter().map(|one| one.1).collect();
    assert_eq!(left, [flow(1)]);
    assert_eq!(streams.stopping, [streams.by_name[&flow(1).to_word()]]);
    assert_eq!(answer(&mut streams, &calls[1]), Some(Answer::Never));
    drop(kept);
}

//! Connections that a process takes over from another one of its family, or that were lent to it.

use std::net::SocketAddrV4;

use wave_core::clock::Nanos;
use wave_tcp::context::demotion::Shut;
use wave_tcp::context::{ContextId, Event, FILL_MAX, Filled, Progress, Reason, Request, Update};
use wave_tcp::control::Owner;
use wave_tcp::datapath::{FlowId, Ring};
use wave_tcp::packet::Flags;
use wave_tcp::seq::Seq;

use crate::peer::{ISN, OURS, PEER, Peer, Sends};
use wave_tcp_testbed::{CONTEXT, Setup, update};

const CHILD: ContextId = ContextId { process: CONTEXT.process + 1, context: 0 };
const SECRET: u128 = 7 << 70 | 1;
const SOCKET: u32 = 99;

const fn ring(at: u64) -> Ring {
    Ring { offset: at * FILL_MAX as u64, bytes: FILL_MAX }
}
const RECEIVE: Ring = ring(100);
const SEND: Ring = ring(101);

/// A connection opened by the peer, to a process with large rings.
fn accepted() -> Peer {
    let mut peer = Peer::with(Setup::with_rings(2, FILL_MAX), 1500);
    peer.machine.listen(Nanos(0), 80, 4);
    peer.open(&[]);
    peer
}

/// Opens another connection from the peer, from a port that is `port` above its own. Returns the socket, and the peer's
/// acknowledgement number.
fn open_another(peer: &mut Peer, port: u16) -> (u32, Seq) {
    peer.machine.slot(peer.now, 80);
    let source = SocketAddrV4::new(*PEER.ip(), PEER.port() + port);
    let plain = peer.plain();
    peer.send(Sends { source, seq: ISN, ack: None, flags: Flags::SYN, ..plain.clone() });
    let answer = peer.after(5).pop().unwrap();
    let ack = answer.segment.seq.plus(1);
    peer.send(Sends { source, ack: Some(ack), ..plain });
    peer.after(5);
    (peer.machine.accepted.pop_front().unwrap(), ack)
}

fn ask(peer: &mut Peer, from: ContextId, request: Request) {
    peer.machine.stack.request(peer.now, from, request, 1_u64 << 30);
}

fn take(peer: &mut Peer, read: u64, written: u64) {
    let flow = peer.machine.sockets[&peer.socket].flow.unwrap();
    let request =
        Request::Take { flow, socket: SOCKET, receive: RECEIVE, send: SEND, read, written };
    ask(peer, CHILD, request);
}

fn join(peer: &mut Peer) {
    ask(peer, CONTEXT, Request::Join { secret: SECRET });
    ask(peer, CHILD, Request::Join { secret: SECRET });
}

/// Takes the child's events.
fn take_events(peer: &mut Peer) -> Vec<Event> {
    peer.machine
        .others
        .drain(..)
        .filter(|(context, _)| *context != OTHER)
        .map(|(context, event)| {
            assert_eq!(context, CHILD);
            event
        })
        .collect()
}

#[test]
fn a_child_takes_a_connection_with_its_received_and_unacknowledged_bytes() {
    let mut peer = accepted();
    join(&mut peer);
    peer.sends(b"question");
    peer.write(b"answer");
    // The peer has received it, but does not acknowledge yet.
    let sent = peer.after(5);
    assert!(sent.iter().any(|sent| sent.payload() == b"answer"));
    take(&mut peer, 2, 6);
    peer.after(5);
    let old = &peer.machine.sockets[&peer.socket];
    assert!(old.is_over && old.failed.is_none());
    let events = take_events(&mut peer);
    let Event::Connected { socket: SOCKET, flow, local, .. } = events[0] else {
        panic!("{events:?}")
    };
    assert_eq!(local, OURS.into());
    let progress = |received, acknowledged, is_finished| {
        Event::Progress(Progress { socket: SOCKET, received, acknowledged, is_finished })
    };
    assert_eq!(events[1], progress(8, 0, false));
    assert_eq!(peer.machine.memory.parts(RECEIVE, 0, 8)[0], b"question");
    // The timeout retransmits from the child's ring.
    peer.machine.memory.put(SEND, 0, b"ANSWER");
    let again = peer.after(2_000);
    assert_eq!(again[0].payload(), b"ANSWER");
    peer.acknowledge(6);
    peer.sends(b" and more");
    peer.after(50);
    assert_eq!(take_events(&mut peer).last(), Some(&progress(17, 6, false)));
    assert_eq!(peer.machine.memory.parts(RECEIVE, 2, 15)[0], b"estion and more");
    // The connection is now the child's, and its parent can no longer move it.
    let filled = Filled { receive: FILL_MAX, send: FILL_MAX };
    let update = |flow, written, is_finished| {
        let moved = Update { written, read: 17, filled, ..update(flow) };
        Request::Update(Update { is_finished, is_eager: true, ..moved })
    };
    ask(&mut peer, CONTEXT, update(flow, 6, true));
    peer.machine.memory.put(SEND, 6, b"!");
    ask(&mut peer, CHILD, update(flow, 7, false));
    let sent = peer.after(50);
    assert_eq!(sent.last().unwrap().payload(), b"!");
    peer.acknowledge(1);
    peer.send(Sends { flags: Flags::FIN | Flags::ACK, ..peer.plain() });
    peer.after(50);
    assert_eq!(take_events(&mut peer).last(), Some(&progress(17, 7, true)));
    ask(&mut peer, CHILD, Request::Abort { flow });
    peer.after(50);
    let over = Event::Failed { socket: SOCKET, reason: Reason::Reset };
    assert_eq!(take_events(&mut peer), [over]);
    assert!(peer.machine.is_empty());
}

#[test]
fn a_connection_is_taken_once_its_owner_has_reported_all_written_bytes() {
    let mut peer = accepted();
    join(&mut peer);
    take(&mut peer, 0, 6);
    peer.after(50);
    assert!(take_events(&mut peer).is_empty());
    peer.write(b"answer");
    peer.after(5);
    assert!(matches!(take_events(&mut peer)[0], Event::Connected { .. }));
}

#[test]
fn a_connection_is_not_taken_if_its_owner_has_written_more() {
    let mut peer = accepted();
    join(&mut peer);
    peer.write(b"answer");
    peer.after(5);
    take(&mut peer, 0, 0);
    peer.after(5);
    let refused = Event::Failed { socket: SOCKET, reason: Reason::NoRoom };
    assert_eq!(take_events(&mut peer), [refused]);
    peer.sends(b"thanks");
    peer.after(50);
    assert_eq!(peer.received(), 6);
}

#[test]
fn a_connection_is_not_taken_if_its_owner_has_read_more() {
    let mut peer = accepted();
    join(&mut peer);
    peer.sends(b"question");
    peer.after(5);
    let flow = peer.machine.sockets[&peer.socket].flow.unwrap();
    let update = Update { read: 3, is_eager: true, ..update(flow) };
    // Its request is not handled yet.
    ask(&mut peer, CONTEXT, Request::Update(update));
    take(&mut peer, 2, 0);
    peer.after(5);
    let refused = Event::Failed { socket: SOCKET, reason: Reason::NoRoom };
    assert_eq!(take_events(&mut peer), [refused]);
    take(&mut peer, 3, 0);
    peer.after(5);
    assert!(matches!(take_events(&mut peer)[0], Event::Connected { .. }));
}

/// The child would read or write where Linux lets no process do so any more.
#[test]
fn a_connection_is_not_taken_if_its_owner_has_shut_a_direction_down() {
    for reads in [true, false] {
        let mut peer = accepted();
        join(&mut peer);
        let flow = peer.machine.sockets[&peer.socket].flow.unwrap();
        let end = Update { is_finished: true, is_eager: true, ..update(flow) };
        ask(&mut peer, CHILD, Request::ShutdownRead { flow });
        ask(
            &mut peer,
            CONTEXT,
            if reads { Request::ShutdownRead { flow } } else { Request::Update(end) },
        );
        take(&mut peer, 0, 0);
        peer.after(5);
        let refused = Event::Failed { socket: SOCKET, reason: Reason::NoRoom };
        assert_eq!(take_events(&mut peer), [refused]);
        let shut = peer.machine.stack.hold(flow).unwrap().shut();
        assert_eq!(shut, Shut { read: reads, write: !reads });
    }
}

#[test]
fn only_a_process_of_the_family_can_take_a_connection() {
    let mut peer = accepted();
    let refused = [Event::Failed { socket: SOCKET, reason: Reason::Invalid }];
    take(&mut peer, 0, 0);
    peer.after(1);
    assert_eq!(take_events(&mut peer), refused);
    ask(&mut peer, CONTEXT, Request::Join { secret: SECRET });
    ask(&mut peer, CHILD, Request::Join { secret: SECRET + 1 });
    take(&mut peer, 0, 0);
    peer.after(1);
    assert_eq!(take_events(&mut peer), refused);
    // A connection that was reset cannot be taken, either.
    ask(&mut peer, CHILD, Request::Join { secret: SECRET });
    peer.send(Sends { flags: Flags::RST, ..peer.plain() });
    peer.after(5);
    take(&mut peer, 0, 0);
    peer.after(1);
    assert_eq!(take_events(&mut peer), refused);
}

#[test]
fn a_waiting_take_ends_with_the_connection_or_with_its_process() {
    let mut peer = accepted();
    join(&mut peer);
    take(&mut peer, 0, 6);
    peer.after(5);
    peer.send(Sends { flags: Flags::RST, ..peer.plain() });
    peer.after(5);
    let over = Event::Failed { socket: SOCKET, reason: Reason::Reset };
    assert_eq!(take_events(&mut peer), [over]);

    let mut peer = accepted();
    join(&mut peer);
    take(&mut peer, 0, 6);
    peer.after(5);
    peer.machine.stack.remove_process(CHILD.process);
    peer.write(b"answer");
    let sent = peer.after(50);
    assert_eq!(sent.last().unwrap().payload(), b"answer");
    assert!(take_events(&mut peer).is_empty());
}

#[test]
fn a_connection_is_taken_while_the_data_path_is_busy_with_another() {
    let mut peer = accepted();
    join(&mut peer);
    let first = peer.socket;
    // Another connection, with more segments waiting than the data path takes in one poll.
    let (second, ack) = open_another(&mut peer, 1);
    let source = SocketAddrV4::new(*PEER.ip(), PEER.port() + 1);
    let plain = peer.plain();
    for at in 0..200 {
        let seq = ISN.plus(1 + 10 * at);
        peer.send(Sends { source, seq, ack: Some(ack), data: &[7; 10], ..plain.clone() });
    }
    for (socket, name, at) in [(first, SOCKET, 100), (second, SOCKET + 1, 102)] {
        let flow = peer.machine.sockets[&socket].flow.unwrap();
        let (receive, send) = (ring(at), ring(at + 1));
        let (read, written) = (0, 0);
        ask(&mut peer, CHILD, Request::Take { flow, socket: name, receive, send, read, written });
    }
    peer.after(50);
    let connected = |event: &Event| matches!(event, Event::Connected { .. });
    let events = take_events(&mut peer);
    assert_eq!(events.iter().filter(|event| connected(event)).count(), 2, "{events:?}");
    peer.sends(b"goes on");
    peer.after(50);
    let (received, acknowledged, is_finished) = (7, 0, false);
    let progress = Progress { socket: SOCKET, received, acknowledged, is_finished };
    assert_eq!(take_events(&mut peer).last(), Some(&Event::Progress(progress)));
}

#[test]
fn a_take_waits_until_the_parent_has_joined_the_family() {
    let mut peer = accepted();
    ask(&mut peer, CHILD, Request::Join { secret: SECRET });
    take(&mut peer, 0, 0);
    peer.after(50);
    assert!(take_events(&mut peer).is_empty());
    ask(&mut peer, CONTEXT, Request::Join { secret: SECRET });
    peer.after(50);
    assert!(matches!(take_events(&mut peer)[0], Event::Connected { socket: SOCKET, .. }));
}

#[test]
fn an_owner_of_another_family_or_of_none_keeps_its_connection() {
    let refused = |reason| [Event::Failed { socket: SOCKET, reason }];
    let mut peer = accepted();
    ask(&mut peer, CHILD, Request::Join { secret: SECRET });
    take(&mut peer, 0, 0);
    ask(&mut peer, CONTEXT, Request::Join { secret: SECRET + 1 });
    peer.after(50);
    assert_eq!(take_events(&mut peer), refused(Reason::Invalid));
    let mut peer = accepted();
    ask(&mut peer, CHILD, Request::Join { secret: SECRET });
    take(&mut peer, 0, 0);
    peer.after(5_000);
    assert_eq!(take_events(&mut peer), refused(Reason::TimedOut));
    assert!(!peer.machine.sockets[&peer.socket].is_over);
}

#[test]
fn a_new_process_with_a_relatives_number_is_not_in_the_family() {
    let mut peer = accepted();
    join(&mut peer);
    let owner = Owner { program: 9, user: 9, has_system_ports: false };
    peer.machine.stack.add_process(CHILD.process, owner);
    take(&mut peer, 0, 0);
    peer.after(50);
    assert_eq!(take_events(&mut peer), [Event::Failed { socket: SOCKET, reason: Reason::Invalid }]);
}

#[test]
fn connections_that_a_process_waits_to_take_count_towards_its_share() {
    let mut peer = accepted();
    let owner = Owner { program: 9, user: 9, has_system_ports: false };
    peer.machine.stack.add_process(CHILD.process, owner);
    ask(&mut peer, CHILD, Request::Join { secret: SECRET });
    // Four of 64 places are free; a program may have three quarters of them.
    let others: Vec<u32> = (1..60).map(|port| open_another(&mut peer, port).0).collect();
    for (at, other) in (0..4).zip(&others) {
        let flow = peer.machine.sockets[other].flow.unwrap();
        let (receive, send) = (ring(102), ring(103));
        let socket = SOCKET + at;
        ask(&mut peer, CHILD, Request::Take { flow, socket, receive, send, read: 0, written: 0 });
    }
    peer.after(50);
    let refused = Event::Failed { socket: SOCKET + 3, reason: Reason::TooMany };
    assert_eq!(take_events(&mut peer), [refused]);
}

/// A process without a connection.
const OTHER: ContextId = ContextId { process: CONTEXT.process + 2, context: 0 };

fn flow_of(peer: &Peer, socket: u32) -> FlowId {
    peer.machine.sockets[&socket].flow.unwrap()
}

#[test]
fn a_process_with_the_secret_takes_the_lent_connection_and_no_other() {
    let mut peer = accepted();
    let lent = flow_of(&peer, peer.socket);
    let (second, _) = open_another(&mut peer, 1);
    ask(&mut peer, CONTEXT, Request::Join { secret: SECRET + 1 });
    ask(&mut peer, CONTEXT, Request::Lend { flow: lent, secret: SECRET });
    ask(&mut peer, CHILD, Request::Join { secret: SECRET });
    let flow = flow_of(&peer, second);
    let (receive, send, socket) = (ring(102), ring(103), SOCKET + 1);
    ask(&mut peer, CHILD, Request::Take { flow, socket, receive, send, read: 0, written: 0 });
    peer.after(50);
    let refused = Event::Failed { socket: SOCKET + 1, reason: Reason::Invalid };
    assert_eq!(take_events(&mut peer), [refused]);
    take(&mut peer, 0, 0);
    peer.after(50);
    let Event::Connected { socket: SOCKET, flow, .. } = take_events(&mut peer)[0] else { panic!() };
    // The loan is used up.
    ask(&mut peer, CHILD, Request::Join { secret: 0 });
    ask(&mut peer, OTHER, Request::Join { secret: SECRET });
    let (receive, send, socket) = (ring(104), ring(105), SOCKET + 2);
    ask(&mut peer, OTHER, Request::Take { flow, socket, receive, send, read: 0, written: 0 });
    peer.after(5_000);
    let refused = Event::Failed { socket: SOCKET + 2, reason: Reason::TimedOut };
    assert_eq!(peer.machine.others.last(), Some(&(OTHER, refused)));
}

#[test]
fn a_relative_may_lend_a_connection_of_its_family_and_be_gone_before_it_is_taken() {
    let mut peer = accepted();
    let flow = flow_of(&peer, peer.socket);
    ask(&mut peer, OTHER, Request::Join { secret: SECRET });
    ask(&mut peer, OTHER, Request::Lend { flow, secret: SECRET + 1 });
    peer.machine.stack.remove_process(OTHER.process);
    ask(&mut peer, CHILD, Request::Join { secret: SECRET + 1 });
    take(&mut peer, 0, 0);
    peer.after(50);
    // The owner's queue is read later.
    assert!(take_events(&mut peer).is_empty());
    ask(&mut peer, CONTEXT, Request::Join { secret: SECRET });
    peer.after(50);
    assert!(matches!(take_events(&mut peer)[0], Event::Connected { socket: SOCKET, .. }));
}

#[test]
fn a_stranger_cannot_lend_a_connection_of_another_family() {
    for family in [0, SECRET] {
        let mut peer = accepted();
        let flow = flow_of(&peer, peer.socket);
        ask(&mut peer, CONTEXT, Request::Join { secret: SECRET + 2 });
        ask(&mut peer, OTHER, Request::Join { secret: family });
        ask(&mut peer, OTHER, Request::Lend { flow, secret: SECRET + 1 });
        ask(&mut peer, CHILD, Request::Join { secret: SECRET + 1 });
        take(&mut peer, 0, 0);
        peer.after(50);
        assert_eq!(
            take_events(&mut peer),
            [Event::Failed { socket: SOCKET, reason: Reason::Invalid }]
        );
    }
}

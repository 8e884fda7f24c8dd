//! Listeners that share a port: by a common secret, or by SO_REUSEPORT of the same user.

use std::net::{SocketAddr, SocketAddrV4};

use wave_tcp::context::{ContextId, Event, Filled, Reason, Request, Sharing, Update};
use wave_tcp::control::{Action, Bounds, Owner, State};
use wave_tcp::datapath::{FlowId, Output, Ring};
use wave_tcp::packet::Flags;

use crate::peer::{ISN, PEER, Peer, Sends};
use wave_tcp_testbed::{CONTEXT, RING, Setup, update};

const SECRET: Sharing = Sharing { secret: 1 << 100 | 7, reuses_port: false };
const REUSES: Sharing = Sharing { secret: 0, reuses_port: true };

fn listen(listener: u32, port: u16, sharing: Sharing) -> Request {
    let local = SocketAddr::from(([0, 0, 0, 0], port));
    Request::Listen { listener, local, backlog: 8, sharing }
}

/// Listeners 1, 2, ... at port 80 that share a secret, with these numbers of slots: as many as the program waits for connections.
fn group(slots: &[u32]) -> Peer {
    let mut peer = Peer::new();
    peer.machine.accepts = false;
    for (listener, slots) in (1..).zip(slots) {
        peer.machine.ask(peer.now, listen(listener, 80, SECRET));
        share(&mut peer, listener);
        (0..*slots).for_each(|_| peer.machine.slot(peer.now, listener as u16));
    }
    peer
}

fn share(peer: &mut Peer, listener: u32) {
    peer.machine.ask(peer.now, Request::Share { listener });
}

/// Sends a peer's SYN from this port. Returns whether it was answered.
fn begin(peer: &mut Peer, port: u16) -> bool {
    let source = SocketAddrV4::new(*PEER.ip(), port);
    peer.send(Sends { source, seq: ISN, ack: None, flags: Flags::SYN, ..peer.plain() });
    let seen = peer.after(5);
    let answer = seen.iter().find(|seen| seen.has(Flags::SYN) && seen.has(Flags::ACK));
    peer.ack = answer.map_or(peer.ack, |answer| answer.segment.seq.plus(1));
    answer.is_some()
}

/// Completes the handshake. Returns the listener that accepted.
fn complete(peer: &mut Peer, port: u16) -> Option<u32> {
    let source = SocketAddrV4::new(*PEER.ip(), port);
    peer.machine.events.clear();
    peer.send(Sends { source, seq: ISN.plus(1), ..peer.plain() });
    peer.after(5);
    peer.machine.events.iter().find_map(|event| match event {
        Event::Accepted { listener, .. } => Some(*listener),
        _ => None,
    })
}

fn connect(peer: &mut Peer, port: u16) -> Option<u32> {
    begin(peer, port).then(|| complete(peer, port)).flatten()
}

/// Sends the first bytes of a connection from this port.
fn send_greeting(peer: &mut Peer, port: u16, data: &[u8]) {
    let source = SocketAddrV4::new(*PEER.ip(), port);
    peer.send(Sends { source, seq: ISN.plus(1), data, ..peer.plain() });
}

/// The listeners that have accepted connections, and the peers' ports.
fn accepted(peer: &Peer) -> Vec<(u32, u16)> {
    let events = peer.machine.events.iter().filter_map(|event| match event {
        Event::Accepted { listener, remote, .. } => Some((*listener, remote.port())),
        _ => None,
    });
    events.collect()
}

#[test]
fn connections_go_in_turn_to_listeners_whose_programs_wait() {
    let mut peer = group(&[0, 2, 2]);
    let mut by: Vec<_> = (0..4).map(|at| connect(&mut peer, 5000 + at)).collect();
    by.sort();
    assert_eq!(by, [Some(2), Some(2), Some(3), Some(3)]);
    (0..2).for_each(|_| peer.machine.slot(peer.now, 1));
    (0..2).for_each(|_| peer.machine.slot(peer.now, 3));
    let mut by: Vec<_> = (4..8).map(|at| connect(&mut peer, 5000 + at)).collect();
    by.sort();
    assert_eq!(by, [Some(1), Some(1), Some(3), Some(3)]);
}

#[test]
fn a_connection_goes_to_a_listener_that_has_slots() {
    let mut peer = group(&[0, 2]);
    let by: Vec<_> = (0..3).map(|at| connect(&mut peer, 5000 + at)).collect();
    assert_eq!(by, [Some(2), Some(2), None]);
    assert_eq!(peer.machine.stack.counters().overflows, 1);
}

#[test]
fn connections_wait_up_to_the_backlog_while_no_program_waits() {
    let mut peer = Peer::new();
    let local = SocketAddr::from(([0, 0, 0, 0], 80));
    let request = Request::Listen { listener: 1, local, backlog: 3, sharing: SECRET };
    peer.machine.ask(peer.now, request);
    (0..2).for_each(|_| peer.machine.slot(peer.now, 1));
    // A fork: the parent leaves its connections to children, none of which is there yet.
    share(&mut peer, 1);
    for port in 1..=4 {
        assert!(begin(&mut peer, port), "one more than listen(2) says, as in Linux");
        send_greeting(&mut peer, port, b"early");
        peer.after(5);
    }
    assert!(!begin(&mut peer, 5));
    let counters = peer.machine.stack.counters();
    assert_eq!((counters.stranger_resets, counters.cookies_sent), (0, 0));
    assert!(accepted(&peer).is_empty());
    // The children's backlog is the same one.
    for listener in [2, 3] {
        peer.machine.ask(peer.now, listen(listener, 80, SECRET));
        share(&mut peer, listener);
    }
    assert!(!begin(&mut peer, 5));
    for listener in [2, 3, 2, 3] {
        peer.machine.slot(peer.now, listener);
        peer.after(5);
    }
    // The oldest ones first, with what came before they were accepted.
    assert_eq!(accepted(&peer), [(2, 1), (3, 2), (2, 3), (3, 4)]);
    for socket in peer.machine.accepted.clone() {
        assert_eq!(peer.machine.sockets[&socket].received, 5);
    }
    assert!(begin(&mut peer, 5));
}

/// The timestamp option, with the answer's timestamp as its echo.
fn stamped(value: u32, answer: u32) -> Vec<u8> {
    [&[1, 1, 8, 10][..], &value.to_be_bytes(), &answer.to_be_bytes()].concat()
}

#[test]
fn timestamps_go_on_after_a_connection_has_waited_and_moved() {
    const FIRST: u32 = 0x9000_0000;
    for (slots, moves) in [(0, false), (1, false), (1, true)] {
        let mut peer = group(&[0, slots]);
        peer.machine.slot(peer.now, 1);
        if slots == 0 {
            share(&mut peer, 1);
        }
        let source = SocketAddrV4::new(*PEER.ip(), 5000);
        let options = &stamped(FIRST, 0)[..];
        peer.send(Sends {
            source,
            seq: ISN,
            ack: None,
            flags: Flags::SYN,
            options,
            ..peer.plain()
        });
        let seen = peer.after(5);
        let (theirs, _) = seen[0].segment.options.timestamps.unwrap();
        peer.ack = seen[0].segment.seq.plus(1);
        let options = &stamped(FIRST + 5, theirs)[..];
        peer.send(Sends { source, seq: ISN.plus(1), options, ..peer.plain() });
        peer.send(Sends { source, seq: ISN.plus(1), data: b"early", options, ..peer.plain() });
        peer.after(5);
        // The peer sends it again, as it is not acknowledged.
        let options = &stamped(FIRST + 15, theirs)[..];
        peer.send(Sends { source, seq: ISN.plus(1), data: b"early", options, ..peer.plain() });
        peer.after(5);
        if moves {
            let by = accepted(&peer)[0].0;
            share(&mut peer, by);
            peer.after(5);
        }
        peer.machine.slot(peer.now, 1);
        peer.after(5);
        let options = &stamped(FIRST + 20, theirs)[..];
        peer.send(Sends { source, seq: ISN.plus(6), data: b" bird", options, ..peer.plain() });
        peer.after(50);
        let last = peer.machine.accepted.pop_back().unwrap();
        assert_eq!(peer.machine.sockets[&last].received, 10, "{slots} {moves}");
    }
}

#[test]
fn a_waiting_connection_lasts_as_long_as_its_peer_answers() {
    let mut peer = group(&[1]);
    share(&mut peer, 1);
    for port in [1, 2] {
        assert!(begin(&mut peer, port));
        assert_eq!(complete(&mut peer, port), None);
    }
    let mut repeated = 0;
    for _ in 0..200 {
        let seen = peer.after(1_000);
        for answer in seen.iter().filter(|seen| seen.segment.destination_port == 1) {
            repeated += 1;
            let source = SocketAddrV4::new(*PEER.ip(), 1);
            let ack = Some(answer.segment.seq.plus(1));
            peer.send(Sends { source, seq: ISN.plus(1), ack, ..peer.plain() });
        }
    }
    assert!(repeated > 6, "{repeated}");
    let waiting = peer.states().iter().filter(|state| **state == State::SynReceived).count();
    assert_eq!(waiting, 1);
    peer.machine.slot(peer.now, 1);
    peer.after(5);
    assert_eq!(accepted(&peer), [(1, 1)]);
}

#[test]
fn waiting_connections_are_reset_with_their_last_listener() {
    let mut peer = group(&[1, 0]);
    share(&mut peer, 1);
    assert!(begin(&mut peer, 1));
    assert_eq!(complete(&mut peer, 1), None);
    assert!(begin(&mut peer, 2));
    peer.machine.ask(peer.now, Request::Unlisten { listener: 1 });
    assert!(!peer.after(5).iter().any(|seen| seen.has(Flags::RST)));
    peer.machine.ask(peer.now, Request::Unlisten { listener: 2 });
    let seen = peer.after(5);
    let resets = seen.iter().filter(|seen| seen.has(Flags::RST));
    let ports: Vec<u16> = resets.map(|seen| seen.segment.destination_port).collect();
    assert_eq!(ports, [1], "the other one is not established");
}

#[test]
fn a_listener_that_is_shared_gets_its_slots_back() {
    let mut peer = group(&[0, 2]);
    peer.machine.accepts = true;
    (0..3).for_each(|_| peer.machine.slot(peer.now, 1));
    share(&mut peer, 1);
    peer.after(1);
    let is_unused = |event: &&Event| matches!(event, Event::Unused { .. });
    let events = &peer.machine.events;
    assert_eq!(events.iter().filter(is_unused).count(), 3, "{events:?}");
    assert_eq!(connect(&mut peer, 5002), Some(2));
    // It may wait again, with new slots.
    share(&mut peer, 2);
    peer.machine.slot(peer.now, 1);
    assert_eq!(connect(&mut peer, 5003), Some(1));
}

#[test]
fn a_handshake_outlives_its_listener_if_another_listener_shares_the_port() {
    let mut peer = group(&[1, 0]);
    assert!(begin(&mut peer, 5000));
    peer.machine.slot(peer.now, 2);
    peer.machine.ask(peer.now, Request::Unlisten { listener: 1 });
    assert_eq!(complete(&mut peer, 5000), Some(2));
    peer.machine.slot(peer.now, 2);
    assert!(begin(&mut peer, 5001));
    peer.machine.ask(peer.now, Request::Unlisten { listener: 2 });
    assert_eq!(complete(&mut peer, 5001), None);
    // A new listener with the same name does not inherit it.
    peer.machine.ask(peer.now, listen(2, 80, SECRET));
    peer.machine.slot(peer.now, 2);
    assert_eq!(connect(&mut peer, 5002), Some(2));
}

#[test]
fn a_waiting_connection_outlives_its_listener() {
    let mut peer = group(&[1, 0]);
    share(&mut peer, 1);
    assert!(begin(&mut peer, 5000));
    send_greeting(&mut peer, 5000, b"early");
    peer.after(5);
    // The other listener's program waits already when the first one is closed.
    peer.machine.ask(peer.now, Request::Unlisten { listener: 1 });
    peer.after(5);
    assert!(accepted(&peer).is_empty());
    peer.machine.slot(peer.now, 2);
    let seen = peer.after(5);
    assert!(!seen.iter().any(|seen| seen.has(Flags::RST)));
    assert_eq!(accepted(&peer), [(2, 5000)]);
    let socket = peer.machine.accepted.pop_front().unwrap();
    assert_eq!(peer.machine.sockets[&socket].received, 5);
}

#[test]
fn a_port_is_shared_only_by_a_common_secret_or_by_so_reuseport_of_the_same_user() {
    let mut peer = Peer::new();
    let now = peer.now;
    let other = ContextId { process: CONTEXT.process + 1, context: 0 };
    let root = Owner { program: 1, user: 0, has_system_ports: true };
    peer.machine.stack.add_process(CONTEXT.process, root);
    let nobody = Owner { program: 2, user: 65_534, has_system_ports: false };
    peer.machine.stack.add_process(other.process, nobody);
    peer.machine.ask(now, listen(1, 80, SECRET));
    peer.machine.ask(now, listen(2, 81, REUSES));
    peer.after(1);
    let mut refusal = |request, owner| {
        peer.machine.stack.add_process(other.process, owner);
        peer.machine.stack.request(now, other, request, 0_u64);
        let mut out = std::collections::VecDeque::new();
        peer.machine.stack.poll(now, 64, &mut out);
        out.iter().find_map(|output| match output {
            Output::Notify(_, Event::NotListening { reason, .. }) => Some(*reason),
            Output::Notify(_, Event::Listening { .. }) | Output::Control(Action::Refused(..)) => {
                None
            }
            other => panic!("{other:?}"),
        })
    };
    let guess = Sharing { secret: 1 << 100 | 8, reuses_port: true };
    assert_eq!(refusal(listen(1, 80, guess), root), Some(Reason::AddressInUse));
    assert_eq!(refusal(listen(1, 80, Sharing::default()), root), Some(Reason::AddressInUse));
    // A worker that has dropped its privileges: the process that gave it the secret may have the port.
    assert_eq!(refusal(listen(1, 80, SECRET), nobody), None);
    assert_eq!(refusal(listen(2, 79, SECRET), nobody), Some(Reason::NotPermitted));
    // SO_REUSEPORT shares a port only among programs of the same user.
    let beside = Owner { has_system_ports: true, ..nobody };
    assert_eq!(refusal(listen(3, 81, REUSES), beside), Some(Reason::AddressInUse));
    assert_eq!(refusal(listen(4, 81, SECRET), root), Some(Reason::AddressInUse));
    // Overlapping addresses do not suffice: they must be equal.
    let local = SocketAddr::from(([10, 0, 0, 2], 81));
    let named = Request::Listen { listener: 6, local, backlog: 8, sharing: REUSES };
    assert_eq!(refusal(named, root), Some(Reason::AddressInUse));
    let another = Owner { program: 3, ..root };
    assert_eq!(refusal(listen(5, 81, REUSES), another), None);
}

#[test]
fn a_connection_that_was_not_accepted_goes_to_the_next_program_that_waits() {
    let mut peer = group(&[1]);
    assert_eq!(connect(&mut peer, 5000), Some(1));
    let source = SocketAddrV4::new(*PEER.ip(), 5000);
    let seq = ISN.plus(1);
    peer.send(Sends { source, seq, flags: Flags::ACK, data: b"early", ..peer.plain() });
    peer.after(50);
    let first = peer.machine.accepted.pop_front().unwrap();
    share(&mut peer, 1);
    peer.after(50);
    // No program waits yet, and segments are still accepted.
    assert!(peer.machine.accepted.is_empty());
    peer.send(Sends {
        source,
        seq: seq.plus(5),
        flags: Flags::ACK,
        data: b" bird",
        ..peer.plain()
    });
    peer.after(50);
    peer.machine.ask(peer.now, listen(2, 80, SECRET));
    peer.machine.slot(peer.now, 2);
    peer.after(5);
    assert!(peer.machine.sockets[&first].is_over);
    let second = peer.machine.accepted.pop_front().unwrap();
    peer.machine.read(second, 100);
    assert_eq!(peer.machine.sockets[&second].read, b"early bird");
    // The last listener ends while a connection is on offer.
    peer.machine.ask(peer.now, Request::Unlisten { listener: 2 });
    peer.machine.ask(peer.now, Request::Unlisten { listener: 1 });
    let seen = peer.after(5);
    assert!(seen.iter().any(|seen| seen.has(Flags::RST)));
}

/// Offers a slot of this listener. The ports of the connections that come.
fn offer(peer: &mut Peer, listener: u16) -> Vec<u16> {
    peer.machine.events.clear();
    peer.machine.slot(peer.now, listener);
    peer.after(5);
    accepted(peer).into_iter().map(|(_, port)| port).collect()
}

/// The program accepts the connections that have come last.
fn accept_all(peer: &mut Peer) {
    for event in std::mem::take(&mut peer.machine.events) {
        if let Event::Accepted { flow, .. } = event {
            peer.machine.ask(peer.now, Request::Accept { flow });
        }
    }
}

fn accept(peer: &mut Peer, listener: u16) -> Vec<u16> {
    let ports = offer(peer, listener);
    accept_all(peer);
    ports
}

#[test]
fn connections_are_accepted_in_the_order_of_their_arrival() {
    // On offer, then waiting.
    let mut peer = offered(4);
    for port in [6000, 6001] {
        assert!(begin(&mut peer, port));
        assert_eq!(complete(&mut peer, port), None);
    }
    assert_eq!(offer(&mut peer, 1), [5000]);
    assert_eq!(offer(&mut peer, 1), [5001]);
    // Neither was accepted: both come again before those that are on offer.
    share(&mut peer, 1);
    peer.machine.replace(peer.now);
    for port in [5000, 5001, 5002] {
        assert_eq!(offer(&mut peer, 1), [port]);
    }
    // A new connection does not overtake those that are there, even if it arrives with a slot.
    assert!(begin(&mut peer, 7000));
    peer.machine.events.clear();
    peer.machine.slot(peer.now, 1);
    complete(&mut peer, 7000);
    assert_eq!(accepted(&peer), [(1, 5003)]);
    assert_eq!(offer(&mut peer, 1), [6000]);
    assert_eq!(offer(&mut peer, 1), [6001]);
    assert_eq!(offer(&mut peer, 1), [7000]);
}

#[test]
fn connections_that_wait_at_several_places_of_a_listener_are_one_queue() {
    let mut peer = group(&[1, 1, 1]);
    let places = [5000, 5001, 5002].map(|port| {
        let place = connect(&mut peer, port).unwrap();
        accept_all(&mut peer);
        place
    });
    assert_eq!(places.iter().sum::<u32>(), 6, "each place has had a slot");
    for port in 6000..6008 {
        assert!(begin(&mut peer, port));
        assert_eq!(complete(&mut peer, port), None);
    }
    let mut ports = Vec::new();
    for place in [2, 3, 1, 2] {
        ports.extend(accept(&mut peer, place));
    }
    // What waits at a place that goes is put where it belongs.
    for place in [1, 3] {
        peer.machine.ask(peer.now, Request::Unlisten { listener: place });
    }
    for _ in 0..4 {
        ports.extend(accept(&mut peer, 2));
    }
    assert_eq!(ports, [6000, 6001, 6002, 6003, 6004, 6005, 6006, 6007]);
}

#[test]
fn connections_that_wait_or_are_on_offer_survive_a_replacement_of_the_agent() {
    let mut peer = offered(1);
    assert!(begin(&mut peer, 6000));
    assert_eq!(complete(&mut peer, 6000), None);
    peer.machine.replace(peer.now);
    for _ in 0..2 {
        peer.machine.slot(peer.now, 1);
        peer.after(5);
    }
    assert_eq!(accepted(&peer), [(1, 5000), (1, 6000)]);
    let first = peer.machine.accepted.pop_front().unwrap();
    assert_eq!(peer.machine.sockets[&first].received, 5);
}

#[test]
fn an_accepted_connection_ends_with_its_process() {
    let mut peer = shared_with_gone(2);
    let memory = 1_u64 << 30;
    let flow = flows(&peer)[0];
    peer.machine.stack.request(peer.now, GONE, Request::Accept { flow }, memory);
    // Only its owner can say so.
    peer.machine.ask(peer.now, Request::Accept { flow: flows(&peer)[1] });
    peer.machine.stack.remove_process(GONE.process);
    (0..2).for_each(|_| peer.machine.slot(peer.now, 1));
    let seen = peer.after(50);
    let resets = seen.iter().filter(|seen| seen.has(Flags::RST));
    let ports: Vec<u16> = resets.map(|seen| seen.segment.destination_port).collect();
    assert_eq!(ports, [5000], "it has unread bytes");
    assert_eq!(accepted(&peer), [(1, 5001)]);
}

#[test]
fn a_program_that_uses_a_connection_before_it_accepts_it_ends_it() {
    let mut peer = shared_with_gone(1);
    let flow = flows(&peer)[0];
    let filled = Filled { receive: RING, send: 0 };
    let update = Update { read: 3, filled, ..update(flow) };
    peer.machine.stack.request(peer.now, GONE, Request::Update(update), 1_u64 << 30);
    peer.machine.stack.remove_process(GONE.process);
    peer.machine.slot(peer.now, 1);
    let seen = peer.after(50);
    assert!(seen.iter().any(|seen| seen.has(Flags::RST)));
    assert!(accepted(&peer).is_empty());
}

/// A process that will go.
const GONE: ContextId = ContextId { process: CONTEXT.process + 1, context: 0 };

/// A peer with connections that another process has not accepted. Listener 1 shares their port, but no program waits there yet.
fn shared_with_gone(connections: u16) -> Peer {
    let mut peer = group(&[0]);
    let memory = 1_u64 << 30;
    peer.machine.stack.request(peer.now, GONE, listen(1, 80, SECRET), memory);
    for at in 0..connections {
        let ring = |number: u32| Ring { offset: u64::from(number) * u64::from(RING), bytes: RING };
        let number = 64 + 2 * u32::from(at);
        let (receive, send, filled) = (ring(number), ring(number + 1), RING);
        let slot = Request::Slot { listener: 1, socket: at.into(), receive, send, filled };
        peer.machine.stack.request(peer.now, GONE, slot, memory);
        assert_eq!(connect(&mut peer, 5000 + at), None);
        send_greeting(&mut peer, 5000 + at, b"early");
        peer.after(50);
    }
    assert_eq!(flows(&peer).len(), usize::from(connections));
    peer
}

/// The connections that other processes have got.
fn flows(peer: &Peer) -> Vec<FlowId> {
    let accepted = peer.machine.others.iter().filter_map(|(_, event)| match event {
        Event::Accepted { flow, .. } => Some(*flow),
        _ => None,
    });
    accepted.collect()
}

/// The same, when that process has gone.
fn offered(connections: u16) -> Peer {
    let mut peer = shared_with_gone(connections);
    peer.machine.stack.remove_process(GONE.process);
    peer
}

#[test]
fn connections_that_a_process_has_not_accepted_outlive_it() {
    let mut peer = offered(3);
    let seen = peer.after(2_000);
    assert!(!seen.iter().any(|seen| seen.has(Flags::RST)));
    assert!(peer.machine.released.is_empty(), "its memory is still used");
    (0..3).for_each(|_| peer.machine.slot(peer.now, 1));
    peer.after(50);
    assert_eq!(peer.machine.accepted.len(), 3);
    assert_eq!(peer.machine.released, [GONE.process]);
    for socket in peer.machine.accepted.clone() {
        peer.machine.read(socket, 100);
        assert_eq!(peer.machine.sockets[&socket].read, b"early");
    }
}

#[test]
fn connections_on_offer_end_with_the_last_listener() {
    let mut peer = offered(3);
    peer.after(50);
    peer.machine.ask(peer.now, Request::Unlisten { listener: 1 });
    let seen = peer.after(50);
    assert_eq!(seen.iter().filter(|seen| seen.has(Flags::RST)).count(), 3);
    assert_eq!(peer.machine.released, [GONE.process]);
}

#[test]
fn connections_on_offer_go_in_turn_to_listeners_whose_programs_wait() {
    let mut peer = offered(4);
    peer.machine.ask(peer.now, listen(2, 80, SECRET));
    for listener in [1, 2] {
        (0..4).for_each(|_| peer.machine.slot(peer.now, listener));
    }
    peer.machine.events.clear();
    peer.after(50);
    let mut by: Vec<u32> = accepted(&peer).into_iter().map(|(listener, _)| listener).collect();
    by.sort();
    assert_eq!(by, [1, 1, 2, 2]);
}

#[test]
fn a_program_that_leaves_connections_without_end_leaves_room_for_another_program() {
    const MANY: u16 = 260;
    let setup = Setup { bounds: Bounds::default(), ..Setup::new(2) };
    let mut peer = Peer::with(setup, 1500);
    let greedy = GONE;
    let other = ContextId { process: GONE.process + 1, context: 0 };
    let memory = 1_u64 << 30;
    let (receive, send) =
        (Ring { offset: 0, bytes: RING }, Ring { offset: RING.into(), bytes: RING });
    let leave = |peer: &mut Peer, from, port: u16, count| {
        let listener = port.into();
        // Nobody takes what is left.
        peer.machine.ask(peer.now, listen(listener, port, SECRET));
        peer.machine.stack.request(peer.now, from, listen(listener, port, SECRET), memory);
        peer.ours.set_port(port);
        for at in 0..count {
            let socket = u32::from(at);
            let slot = Request::Slot { listener, socket, receive, send, filled: RING };
            peer.machine.stack.request(peer.now, from, slot, memory);
            connect(peer, 5000 + at);
        }
        peer.machine.stack.request(peer.now, from, Request::Unlisten { listener }, memory);
        let seen = peer.after(50);
        seen.iter().filter(|seen| seen.has(Flags::RST)).count()
    };
    assert_eq!(leave(&mut peer, greedy, 80, MANY), usize::from(MANY) - 128);
    assert_eq!(leave(&mut peer, other, 81, 1), 0);
}

#[test]
fn a_connection_on_offer_outlives_the_process_or_the_listener_chosen_to_get_it() {
    let chosen = ContextId { process: GONE.process + 1, context: 0 };
    let memory = 1_u64 << 30;
    let (receive, send) =
        (Ring { offset: 0, bytes: RING }, Ring { offset: RING.into(), bytes: RING });
    for ends in
        [None, Some(Request::Unlisten { listener: 1 }), Some(Request::Share { listener: 1 })]
    {
        let mut peer = offered(1);
        for request in [
            listen(1, 80, SECRET),
            Request::Slot { listener: 1, socket: 0, receive, send, filled: RING },
        ] {
            peer.machine.stack.request(peer.now, chosen, request, memory);
        }
        peer.machine.step(peer.now);
        match ends {
            None => peer.machine.stack.remove_process(chosen.process),
            Some(request) => peer.machine.stack.request(peer.now, chosen, request, memory),
        }
        peer.machine.slot(peer.now, 1);
        let seen = peer.after(50);
        assert!(!seen.iter().any(|seen| seen.has(Flags::RST)), "{ends:?}");
        assert_eq!(peer.machine.accepted.len(), 1, "{ends:?}");
    }
}

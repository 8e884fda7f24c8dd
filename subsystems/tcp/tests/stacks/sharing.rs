//! Listeners that share a port: by a common secret, or by SO_REUSEPORT of the same user.

use std::net::{SocketAddr, SocketAddrV4};

use wave_tcp::context::{ContextId, Event, Interest, Reason, Request, Sharing};
use wave_tcp::control::{Bounds, Output, Owner, Secrets, Stack};
use wave_tcp::datapath::{FlowId, Ring};
use wave_tcp::flextoe::{FlexToe, Settings};
use wave_tcp::packet::Flags;

use crate::machine::{CONTEXT, RING};
use crate::peer::{ISN, PEER, Peer, Sends};

const SECRET: Sharing = Sharing { secret: 1 << 100 | 7, reuses_port: false };
const REUSES: Sharing = Sharing { secret: 0, reuses_port: true };

fn listen(listener: u32, port: u16, sharing: Sharing) -> Request {
    let local = SocketAddr::from(([0, 0, 0, 0], port));
    Request::Listen { listener, local, backlog: 8, sharing }
}

/// Listeners 1, 2, ... at port 80 that share a secret, with these numbers of slots.
fn group(slots: &[u32]) -> Peer {
    let mut peer = Peer::new();
    for (listener, slots) in (1..).zip(slots) {
        peer.machine.ask(peer.now, listen(listener, 80, SECRET));
        (0..*slots).for_each(|_| peer.machine.slot(peer.now, listener as u16));
    }
    peer
}

fn waits(peer: &mut Peer, listener: u32, waits: bool) {
    let interest = if waits { Interest::Yes } else { Interest::No };
    peer.machine.ask(peer.now, Request::Await { listener, interest });
}

/// Sends a peer's SYN from this port. Returns whether it was answered.
fn begin(peer: &mut Peer, port: u16) -> bool {
    let source = SocketAddrV4::new(*PEER.ip(), port);
    peer.send(Sends { source, seq: ISN, ack: None, flags: Flags::SYN, ..peer.plain() });
    let heard = peer.after(5);
    let answer = heard.iter().find(|heard| heard.has(Flags::SYN) && heard.has(Flags::ACK));
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

#[test]
fn connections_go_in_turn_to_listeners_whose_programs_wait() {
    let mut peer = group(&[8, 8, 8]);
    // No program has reported to wait: all listeners get connections except the one that leaves them to others.
    waits(&mut peer, 1, false);
    let mut by: Vec<_> = (0..4).map(|at| connect(&mut peer, 5000 + at)).collect();
    by.sort();
    assert_eq!(by, [Some(2), Some(2), Some(3), Some(3)]);
    waits(&mut peer, 1, true);
    (0..2).for_each(|_| peer.machine.slot(peer.now, 1));
    waits(&mut peer, 3, true);
    let mut by: Vec<_> = (4..8).map(|at| connect(&mut peer, 5000 + at)).collect();
    by.sort();
    assert_eq!(by, [Some(1), Some(1), Some(3), Some(3)]);
}

#[test]
fn a_connection_goes_to_a_listener_that_has_slots() {
    let mut peer = group(&[0, 2]);
    waits(&mut peer, 1, true);
    waits(&mut peer, 2, true);
    let by: Vec<_> = (0..3).map(|at| connect(&mut peer, 5000 + at)).collect();
    assert_eq!(by, [Some(2), Some(2), None]);
    assert_eq!(peer.machine.stack.counters().overflows, 1);
}

#[test]
fn a_syn_is_dropped_while_no_listener_wants_connections() {
    let mut peer = group(&[1, 1]);
    waits(&mut peer, 1, false);
    waits(&mut peer, 2, false);
    // No reset is sent: the peer tries again, when a listener waits.
    assert!(!begin(&mut peer, 5000));
    assert_eq!(peer.machine.stack.counters().stranger_resets, 0);
    waits(&mut peer, 2, true);
    peer.machine.slot(peer.now, 2);
    assert_eq!(connect(&mut peer, 5000), Some(2));
}

#[test]
fn a_listener_that_leaves_connections_to_others_gets_its_slots_back() {
    let mut peer = group(&[3, 2]);
    waits(&mut peer, 1, true);
    assert_eq!(connect(&mut peer, 5000), Some(1));
    assert!(begin(&mut peer, 5001));
    waits(&mut peer, 1, false);
    peer.after(1);
    let is_unused = |event: &&Event| matches!(event, Event::Unused { .. });
    let events = &peer.machine.events;
    assert_eq!(events.iter().filter(is_unused).count(), 2, "{events:?}");
    // Another listener completes its handshake.
    assert_eq!(complete(&mut peer, 5001), Some(2));
    assert_eq!(connect(&mut peer, 5002), Some(2));
    // It may wait again, with new slots.
    waits(&mut peer, 1, true);
    peer.machine.slot(peer.now, 1);
    assert_eq!(connect(&mut peer, 5003), Some(1));
}

#[test]
fn a_handshake_outlives_its_listener_if_another_listener_shares_the_port() {
    let mut peer = group(&[4, 4]);
    waits(&mut peer, 1, true);
    assert!(begin(&mut peer, 5000));
    waits(&mut peer, 2, true);
    peer.machine.ask(peer.now, Request::Unlisten { listener: 1 });
    assert_eq!(complete(&mut peer, 5000), Some(2));
    assert!(begin(&mut peer, 5001));
    peer.machine.ask(peer.now, Request::Unlisten { listener: 2 });
    assert_eq!(complete(&mut peer, 5001), None);
    // A new listener with the same name does not inherit it.
    peer.machine.ask(peer.now, listen(2, 80, SECRET));
    peer.machine.slot(peer.now, 2);
    assert_eq!(connect(&mut peer, 5002), Some(2));
}

#[test]
fn a_handshake_outlives_its_listener_even_if_no_program_waits_at_the_other_one_yet() {
    let mut peer = group(&[4, 0]);
    waits(&mut peer, 1, true);
    waits(&mut peer, 2, false);
    assert!(begin(&mut peer, 5000));
    peer.machine.ask(peer.now, Request::Unlisten { listener: 1 });
    assert_eq!(complete(&mut peer, 5000), None);
    let source = SocketAddrV4::new(*PEER.ip(), 5000);
    let early = Sends { source, seq: ISN.plus(1), data: b"early", ..peer.plain() };
    peer.send(early.clone());
    let heard = peer.after(5);
    assert!(!heard.iter().any(|heard| heard.has(Flags::RST)));
    waits(&mut peer, 2, true);
    peer.machine.slot(peer.now, 2);
    peer.send(Sends { ack: Some(peer.ack), ..early });
    peer.after(50);
    let socket = peer.machine.accepted.pop_front().unwrap();
    assert_eq!(peer.machine.sockets[&socket].received, 5);
}

#[test]
fn a_port_is_shared_only_by_a_common_secret_or_by_so_reuseport_of_the_same_user() {
    let mut peer = Peer::new();
    let now = peer.now;
    let other = ContextId { process: CONTEXT.process + 1, context: 0 };
    let root = Owner { program: 1, user: 0, has_system_ports: true };
    peer.machine.stack.enter(CONTEXT.process, root);
    let nobody = Owner { program: 2, user: 65_534, has_system_ports: false };
    peer.machine.stack.enter(other.process, nobody);
    peer.machine.ask(now, listen(1, 80, SECRET));
    peer.machine.ask(now, listen(2, 81, REUSES));
    peer.after(1);
    let mut refusal = |request, owner| {
        peer.machine.stack.enter(other.process, owner);
        peer.machine.stack.request(now, other, request, 0_u64);
        let mut out = std::collections::VecDeque::new();
        peer.machine.stack.poll(now, 64, &mut out);
        out.iter().find_map(|output| match output {
            Output::Event(_, Event::NotListening { reason, .. }) => Some(*reason),
            Output::Event(_, Event::Listening { .. }) | Output::Refused(..) => None,
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
fn an_offered_connection_goes_to_a_listener_whose_program_waits() {
    let mut peer = group(&[4]);
    assert_eq!(connect(&mut peer, 5000), Some(1));
    let source = SocketAddrV4::new(*PEER.ip(), 5000);
    let seq = ISN.plus(1);
    peer.send(Sends { source, seq, flags: Flags::ACK, data: b"early", ..peer.plain() });
    peer.after(50);
    let first = peer.machine.accepted.pop_front().unwrap();
    let flow = peer.machine.sockets[&first].flow.unwrap();
    waits(&mut peer, 1, false);
    peer.machine.ask(peer.now, Request::Offer { flow });
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
    waits(&mut peer, 2, true);
    peer.machine.slot(peer.now, 2);
    peer.after(5);
    assert!(peer.machine.sockets[&first].is_over);
    let second = peer.machine.accepted.pop_front().unwrap();
    peer.machine.read(second, 100);
    assert_eq!(peer.machine.sockets[&second].read, b"early bird");
    // The last listener ends while a connection is on offer.
    let flow = peer.machine.sockets[&second].flow.unwrap();
    peer.machine.ask(peer.now, Request::Offer { flow });
    peer.machine.ask(peer.now, Request::Unlisten { listener: 1 });
    peer.machine.ask(peer.now, Request::Unlisten { listener: 2 });
    let heard = peer.after(5);
    assert!(heard.iter().any(|heard| heard.has(Flags::RST)));
}

/// A process that has gone.
const GONE: ContextId = ContextId { process: CONTEXT.process + 1, context: 0 };

/// A peer with connections on offer whose process has gone. Another listener shares their port, but no program waits there yet.
fn offered(connections: u16) -> Peer {
    let mut peer = group(&[0]);
    let memory = 1_u64 << 30;
    peer.machine.stack.request(peer.now, GONE, listen(1, 80, SECRET), memory);
    let interest = Interest::Yes;
    peer.machine.stack.request(peer.now, GONE, Request::Await { listener: 1, interest }, memory);
    for at in 0..connections {
        let ring = |number: u32| Ring { offset: u64::from(number) * u64::from(RING), bytes: RING };
        let number = 64 + 2 * u32::from(at);
        let (receive, send, filled) = (ring(number), ring(number + 1), RING);
        let slot = Request::Slot { listener: 1, socket: at.into(), receive, send, filled };
        peer.machine.stack.request(peer.now, GONE, slot, memory);
        assert_eq!(connect(&mut peer, 5000 + at), None);
        let source = SocketAddrV4::new(*PEER.ip(), 5000 + at);
        peer.send(Sends { source, seq: ISN.plus(1), data: b"early", ..peer.plain() });
        peer.after(50);
    }
    let accepted = peer.machine.others.iter().filter_map(|(_, event)| match event {
        Event::Accepted { flow, .. } => Some(*flow),
        _ => None,
    });
    let flows: Vec<FlowId> = accepted.collect();
    assert_eq!(flows.len(), usize::from(connections));
    for flow in flows {
        peer.machine.stack.request(peer.now, GONE, Request::Offer { flow }, memory);
    }
    peer.machine.stack.leave(GONE.process);
    peer
}

#[test]
fn connections_on_offer_outlive_the_process_that_offered_them() {
    let mut peer = offered(3);
    let heard = peer.after(2_000);
    assert!(!heard.iter().any(|heard| heard.has(Flags::RST)));
    assert!(peer.machine.released.is_empty(), "its memory is still used");
    waits(&mut peer, 1, true);
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
    let heard = peer.after(50);
    assert_eq!(heard.iter().filter(|heard| heard.has(Flags::RST)).count(), 3);
    assert_eq!(peer.machine.released, [GONE.process]);
}

#[test]
fn connections_on_offer_go_in_turn_to_listeners_whose_programs_wait() {
    let mut peer = offered(4);
    peer.machine.ask(peer.now, listen(2, 80, SECRET));
    for listener in [1, 2] {
        (0..4).for_each(|_| peer.machine.slot(peer.now, listener as u16));
        waits(&mut peer, listener, true);
    }
    peer.machine.events.clear();
    peer.after(50);
    let accepted = peer.machine.events.iter().filter_map(|event| match event {
        Event::Accepted { listener, .. } => Some(*listener),
        _ => None,
    });
    let mut by: Vec<u32> = accepted.collect();
    by.sort();
    assert_eq!(by, [1, 1, 2, 2]);
}

#[test]
fn a_program_that_offers_without_end_leaves_room_for_another_program() {
    const MANY: u16 = 260;
    let mut peer = Peer::new();
    let address = *peer.machine.stack.address();
    let bounds = Bounds::default();
    let key = (1, 2);
    let settings = Settings { mac: address.mac, super_bytes: 0, flows: bounds.flows, key };
    let secrets = Secrets { sequence: key, timestamp: key, port: key, table: key };
    peer.machine.stack = Stack::new(FlexToe::new(settings), address, bounds, secrets);
    let greedy = GONE;
    let other = ContextId { process: GONE.process + 1, context: 0 };
    let memory = 1_u64 << 30;
    let (receive, send) =
        (Ring { offset: 0, bytes: RING }, Ring { offset: RING.into(), bytes: RING });
    let offer = |peer: &mut Peer, from, port: u16, count| {
        let listener = port.into();
        // Nobody takes what is offered.
        peer.machine.ask(peer.now, listen(listener, port, SECRET));
        peer.machine.stack.request(peer.now, from, listen(listener, port, SECRET), memory);
        peer.ours.set_port(port);
        peer.machine.others.clear();
        for at in 0..count {
            let socket = u32::from(at);
            let slot = Request::Slot { listener, socket, receive, send, filled: RING };
            peer.machine.stack.request(peer.now, from, slot, memory);
            connect(peer, 5000 + at);
        }
        let events = std::mem::take(&mut peer.machine.others);
        for (context, event) in events {
            if let Event::Accepted { flow, .. } = event {
                assert_eq!(context, from);
                peer.machine.stack.request(peer.now, from, Request::Offer { flow }, memory);
            }
        }
        let heard = peer.after(50);
        heard.iter().filter(|heard| heard.has(Flags::RST)).count()
    };
    assert_eq!(offer(&mut peer, greedy, 80, MANY), usize::from(MANY) - 128);
    assert_eq!(offer(&mut peer, other, 81, 1), 0);
}

#[test]
fn a_connection_on_offer_outlives_the_process_chosen_to_get_it() {
    let mut peer = offered(1);
    let chosen = ContextId { process: GONE.process + 1, context: 0 };
    let memory = 1_u64 << 30;
    let (receive, send) =
        (Ring { offset: 0, bytes: RING }, Ring { offset: RING.into(), bytes: RING });
    for request in [
        listen(1, 80, SECRET),
        Request::Await { listener: 1, interest: Interest::Yes },
        Request::Slot { listener: 1, socket: 0, receive, send, filled: RING },
    ] {
        peer.machine.stack.request(peer.now, chosen, request, memory);
    }
    peer.machine.step(peer.now);
    peer.machine.stack.leave(chosen.process);
    waits(&mut peer, 1, true);
    peer.machine.slot(peer.now, 1);
    let heard = peer.after(50);
    assert!(!heard.iter().any(|heard| heard.has(Flags::RST)));
    assert_eq!(peer.machine.accepted.len(), 1);
}

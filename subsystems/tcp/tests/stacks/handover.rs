//! Handover to a successor agent: every state of a connection, listeners, and names that hosts know.

use std::net::SocketAddr;

use wave_core::clock::Nanos;
use wave_tcp::context::{Event, Reason, Request, SocketOptions};
use wave_tcp::control::State;
use wave_tcp::packet::Flags;
use wave_wires::{Adversity, Memory};

use crate::connections::SERVER;
use crate::failures::keep_alive;
use crate::peer::{MINUTE, MS, Peer, SECOND, Sends};
use wave_tcp_testbed::{Machine, Setup, calm, join, machines, run};

/// Cuts the wire between both machines.
fn cut(both: &mut [Machine; 2]) {
    let (one, other) = Memory::pair(&Adversity { loss: 1.0, ..calm() });
    (both[0].wire, both[1].wire) = (one, other);
}

#[test]
fn successors_complete_a_handshake_that_is_under_way_on_both_sides() {
    let mut both = machines(&calm(), Setup::new);
    let mut now = Nanos(0);
    both[1].listen(now, 80, 2);
    let socket = both[0].connect(now, SocketAddr::from(SERVER));
    run(&mut both, &mut now, MINUTE, |both, _| both[1].states().contains(&State::SynReceived));
    assert_eq!(both[0].states(), [State::SynSent]);
    both.iter_mut().for_each(|machine| machine.replace(now));
    let asked = now;
    run(&mut both, &mut now, MINUTE, |both, _| {
        both[0].sockets[&socket].flow.is_some() && both[1].accepted.len() == 1
    });
    assert!(now.since(asked) < Nanos::from_millis(1), "nothing was retransmitted");
    // The successor's listener has a slot left, and its host may still name it.
    let another = both[0].connect(now, SocketAddr::from(SERVER));
    run(&mut both, &mut now, MINUTE, |both, _| both[1].accepted.len() == 2);
    both[1].ask(now, Request::Unlisten { listener: 80 });
    let refused = both[0].connect(now, SocketAddr::from(SERVER));
    run(&mut both, &mut now, MINUTE, |both, _| both[0].sockets[&refused].is_over);
    assert_eq!(both[0].sockets[&refused].failed, Some(Reason::Refused));
    assert!(both[0].sockets[&another].failed.is_none());
}

#[test]
fn an_unanswered_handshake_times_out_on_time_however_often_agents_are_replaced() {
    let start = |replaces: bool| {
        let mut both = machines(&calm(), Setup::new);
        let mut now = Nanos(0);
        // This makes the neighbour's address known.
        let refused = both[0].connect(now, SocketAddr::from(SERVER));
        run(&mut both, &mut now, MINUTE, |both, _| both[0].sockets[&refused].is_over);
        cut(&mut both);
        let socket = both[0].connect(now, SocketAddr::from(SERVER));
        let mut next = Nanos::from_millis(500);
        run(&mut both, &mut now, Nanos(10 * MINUTE.0), |both, at| {
            if replaces && at > next {
                both[0].replace(at);
                next = at + Nanos::from_millis(10_000);
            }
            both[0].sockets[&socket].is_over
        });
        assert_eq!(both[0].sockets[&socket].failed, Some(Reason::TimedOut));
        now
    };
    let (alone, replaced) = (start(false), start(true));
    assert!(alone.0.abs_diff(replaced.0) < 50_000_000, "{alone:?}, {replaced:?}");
}

#[test]
fn closing_states_and_time_wait_survive_a_handover() {
    let (mut both, mut now, socket, peer) = join(machines(&calm(), Setup::new));
    let replace = |both: &mut [Machine; 2], now: Nanos, expected: [&[State]; 2]| {
        for (machine, expected) in both.iter_mut().zip(expected) {
            assert_eq!(machine.states(), expected);
            machine.replace(now);
            assert_eq!(machine.states(), expected);
        }
    };
    both[0].close(now, socket);
    run(&mut both, &mut now, MINUTE, |both, _| both[0].states() == [State::FinWait2]);
    replace(&mut both, now, [&[State::FinWait2], &[State::Listen, State::CloseWait]]);
    cut(&mut both);
    both[1].close(now, peer);
    run(&mut both, &mut now, MINUTE, |both, _| both[1].states().contains(&State::LastAck));
    replace(&mut both, now, [&[State::FinWait2], &[State::Listen, State::LastAck]]);
    let (one, other) = Memory::pair(&calm());
    (both[0].wire, both[1].wire) = (one, other);
    run(&mut both, &mut now, MINUTE, |both, _| both.iter().all(Machine::is_empty));
    replace(&mut both, now, [&[State::TimeWait], &[State::Listen]]);
    let before = now;
    run(&mut both, &mut now, Nanos(3 * MINUTE.0), |both, _| both[0].states().is_empty());
    assert!(now.since(before) > Nanos::from_millis(50_000), "TIME_WAIT was kept");
}

/// Names that hosts know stay valid in the successor. A state with a flow that exists already is refused.
#[test]
fn names_of_connections_stay_valid_and_a_duplicate_state_is_refused() {
    let mut peer = Peer::accepted();
    let first = peer.machine.sockets[&peer.socket].flow.unwrap();
    peer.machine.replace(peer.now);
    peer.sends(b"question");
    peer.after(50);
    assert_eq!(peer.machine.sockets[&peer.socket].received, 8);
    peer.write(b"answer");
    assert_eq!(peer.after(5).last().unwrap().payload(), b"answer");
    peer.acknowledge(6);
    peer.after(5);
    assert_eq!(peer.machine.sockets[&peer.socket].acknowledged, 6);
    // A state with a flow that exists already does not fit.
    let text = serde_json::to_string(&peer.machine.stack.state()).unwrap();
    let state = serde_json::from_str(&text).unwrap();
    assert!(peer.machine.stack.restore(peer.now, state).is_err());
    let now = peer.now;
    peer.machine.ask(now, Request::Abort { flow: first });
    let reset = peer.after(5).pop().unwrap();
    assert!(reset.segment.flags.contains(Flags::RST));
    let failed = |event: &Event| matches!(event, Event::Failed { reason: Reason::Reset, .. });
    assert!(peer.machine.events.iter().any(failed));
}

/// SACK permitted.
const SELECTIVE: [u8; 4] = [1, 1, 4, 2];

/// How long a connection lasts after its peer falls silent. With `is_replaced`, the agent is replaced more often than any timer
/// fires.
/// A process may still know the names of connections that ended before.
#[test]
fn successors_give_new_names_to_new_connections() {
    let mut peer = Peer::accepted();
    let mut names = Vec::new();
    for _ in 0..3 {
        let name = peer.machine.sockets[&peer.socket].flow.unwrap();
        assert!(!names.contains(&name), "{name} again");
        names.push(name);
        let now = peer.now;
        peer.machine.ask(now, Request::Abort { flow: name });
        peer.after(5);
        peer.machine.replace(peer.now);
        peer.open(&[]);
    }
}

fn lasts(mut peer: Peer, is_replaced: bool) -> Nanos {
    let from = peer.now;
    while !peer.machine.sockets[&peer.socket].is_over {
        if is_replaced {
            peer.machine.replace(peer.now);
        }
        peer.until(Nanos::from_millis(100), Nanos(10 * MS.0));
        assert!(peer.now.since(from) < Nanos(20 * MINUTE.0));
    }
    let socket = &peer.machine.sockets[&peer.socket];
    // A program that has closed the connection learns only that it is over.
    assert_eq!(socket.failed, (!socket.is_closed).then_some(Reason::TimedOut));
    peer.now.since(from)
}

#[test]
fn a_vanished_peer_times_out_on_time_however_often_agents_are_replaced() {
    let wrote = |bytes: usize| {
        let mut peer = Peer::accepted_with(&SELECTIVE, 1500);
        peer.write(&vec![7; bytes]);
        peer
    };
    let limited = || {
        let mut peer = Peer::accepted_with(&SELECTIVE, 1500);
        let user_timeout = Some(Nanos(20 * SECOND.0));
        peer.configure(SocketOptions { user_timeout, ..SocketOptions::default() });
        peer.write(b"hello?");
        peer
    };
    // The peer reports that it lacks the second of three segments, and then falls silent.
    let overtaken = || {
        let mut peer = wrote(3 * 1460);
        peer.after(5);
        let [start, end] = [2 * 1460, 3 * 1460].map(|at| peer.ack.plus(at).0.to_be_bytes());
        let block = [&[1, 1, 5, 10], &start[..], &end[..]].concat();
        peer.ack = peer.ack.plus(1460);
        peer.send(Sends { flags: Flags::ACK, options: &block, ..peer.plain() });
        peer
    };
    let window_closed = || {
        let mut peer = Peer::accepted_with(&SELECTIVE, 1500);
        peer.write(b"first");
        peer.after(5);
        peer.ack = peer.ack.plus(5);
        peer.send(Sends { flags: Flags::ACK, window: 0, ..peer.plain() });
        peer.after(5);
        peer.write(b"second");
        peer
    };
    let idle = || {
        let mut peer = Peer::accepted_with(&SELECTIVE, 1500);
        peer.configure(keep_alive(20, 5, 4));
        peer
    };
    let closed = || {
        let mut peer = wrote(6);
        let (now, socket) = (peer.now, peer.socket);
        peer.machine.close(now, socket);
        peer
    };
    let cases: [(&str, &dyn Fn() -> Peer); 7] = [
        ("one segment", &|| wrote(6)),
        ("several segments", &|| wrote(5_000)),
        ("the host's own limit", &limited),
        ("an overtaken segment", &overtaken),
        ("a closed window", &window_closed),
        ("keep-alives", &idle),
        ("a closed connection", &closed),
    ];
    for (name, start) in cases {
        assert_eq!(lasts(start(), true), lasts(start(), false), "{name}");
    }
}

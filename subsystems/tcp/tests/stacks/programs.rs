//! Programs that exceed their share or claim missing memory, and programs that have gone.

use std::net::SocketAddr;

use wave_core::clock::Nanos;
use wave_tcp::context::{ContextId, Event, Filled, Reason, Request, Sharing, Update};
use wave_tcp::control::{Action, Bounds, Call, Owner, PayloadMemory, State};
use wave_tcp::datapath::{Output, Ring};
use wave_tcp::packet::Flags;
use wave_wires::Adversity;

use crate::connections::SERVER;
use crate::peer::Peer;
use wave_tcp_testbed::{
    BOUNDS, CONTEXT, MINUTE, MS, SECOND, Setup, connect, machines, run, update,
};

/// Rings of a program that needs no others.
const RINGS: [Ring; 2] = [Ring { offset: 0, bytes: 4_096 }, Ring { offset: 4_096, bytes: 4_096 }];

/// A payload memory that has only its first bytes.
struct Part(u64);

impl PayloadMemory for &mut Part {
    fn bytes(&self) -> u64 {
        1 << 30
    }

    fn is_backed(&mut self, at: u64, bytes: u32) -> bool {
        at + u64::from(bytes) <= self.0
    }
}

#[test]
fn a_program_with_many_connections_leaves_room_for_others() {
    let mut both = machines(&Adversity::default(), Setup::new);
    let mut now = Nanos(0);
    for process in [CONTEXT.process, CONTEXT.process + 1] {
        let owner = Owner { program: process.into(), user: 1, has_system_ports: false };
        both[0].stack.add_process(process, owner);
    }
    // A program gets 12 of 16 handshakes.
    let nowhere = SocketAddr::from(([10, 0, 0, 99], 1));
    let sockets: Vec<u32> = (0..16).map(|_| both[0].connect(now, nowhere)).collect();
    let until = now + Nanos::from_millis(100);
    run(&mut both, &mut now, SECOND, |_, at| at >= until);
    let failed = |both: &[wave_tcp_testbed::Machine; 2]| {
        sockets.iter().filter(|socket| both[0].sockets[*socket].failed.is_some()).count()
    };
    assert_eq!(failed(&both), 4);
    assert_eq!(both[0].sockets[&sockets[15]].failed, Some(Reason::TooMany));
    assert_eq!(both[0].stack.counters().beyond_share, 4);
    // People are told which call met which limit.
    assert_eq!(both[0].refused, [(CONTEXT.process, Call::Connect, Reason::TooMany); 4]);
    let connect = connect(7, RINGS, 4_096, 0, nowhere);
    let other = ContextId { process: CONTEXT.process + 1, context: 0 };
    both[0].stack.request(now, other, connect, 8_192_u64);
    assert_eq!(both[0].stack.counters().beyond_share, 4);
}

#[test]
fn ports_of_other_listeners_and_system_ports_are_refused() {
    let mut peer = Peer::accepted();
    let now = peer.now;
    let other = ContextId { process: CONTEXT.process + 1, context: 0 };
    let owner = Owner { program: 2, user: 2, has_system_ports: false };
    peer.machine.stack.add_process(other.process, owner);
    let mut expect_event = |request, expected| {
        peer.machine.stack.request(now, other, request, 8_192_u64);
        let mut out = std::collections::VecDeque::new();
        peer.machine.stack.poll(now, 64, &mut out);
        let event = out.iter().find_map(|output| match output {
            Output::Notify(context, event) if *context == other => Some(*event),
            _ => None,
        });
        assert_eq!(event, Some(expected));
    };
    let remote = SocketAddr::from(([10, 0, 0, 1], 9));
    let connect = |local_port| connect(7, RINGS, 4_096, local_port, remote);
    let listen = |port| Request::Listen {
        listener: 3,
        local: SocketAddr::from(([0, 0, 0, 0], port)),
        backlog: 1,
        sharing: Sharing::default(),
    };
    let failed = |reason| Event::Failed { socket: 7, reason };
    expect_event(connect(1_023), failed(Reason::NotPermitted));
    let reason = Reason::NotPermitted;
    expect_event(listen(1_023), Event::NotListening { listener: 3, reason });
    let reason = Reason::AddressInUse;
    expect_event(listen(80), Event::NotListening { listener: 3, reason });
    let local = SocketAddr::from(([10, 0, 0, 2], 1_024));
    expect_event(listen(1_024), Event::Listening { listener: 3, local });
    // With the right to system ports, port 80 is still refused: another program listens there.
    let owner = Owner { has_system_ports: true, ..owner };
    peer.machine.stack.add_process(other.process, owner);
    peer.machine.stack.request(now, other, connect(80), 8_192_u64);
    let mut out = std::collections::VecDeque::new();
    peer.machine.stack.poll(now, 64, &mut out);
    let in_use = Output::<wave_wires::Frame, Action>::Notify(other, failed(Reason::AddressInUse));
    assert_eq!(format!("{:?}", out.back()), format!("{:?}", Some(in_use)));
}

#[test]
fn only_its_own_process_learns_the_address_of_a_connecting_socket() {
    let mut peer = Peer::accepted();
    let (now, stack) = (peer.now, &mut peer.machine.stack);
    let other = ContextId { process: CONTEXT.process + 1, context: 0 };
    stack.add_process(other.process, Owner { program: 2, user: 2, has_system_ports: false });
    let remote = SocketAddr::from(([10, 0, 0, 99], 9));
    let connect = connect(7, RINGS, 4_096, 5_000, remote);
    stack.request(now, CONTEXT, connect, 8_192_u64);
    for (from, socket) in [(other, 7), (CONTEXT, 8), (CONTEXT, 7)] {
        stack.request(now, from, Request::QueryLocalAddress { socket }, 8_192_u64);
    }
    let mut out = std::collections::VecDeque::new();
    stack.poll(now, 64, &mut out);
    let notified = out.iter().filter_map(|output| match output {
        Output::Notify(context, event @ Event::LocalAddress { .. }) => Some((*context, *event)),
        _ => None,
    });
    let local = SocketAddr::from(([10, 0, 0, 2], 5_000));
    assert_eq!(notified.collect::<Vec<_>>(), [(CONTEXT, Event::LocalAddress { socket: 7, local })]);
}

#[test]
fn claiming_missing_memory_resets_the_connection() {
    let mut peer = Peer::accepted();
    let flow = peer.machine.sockets[&peer.socket].flow.unwrap();
    let now = peer.now;
    let update = |filled| Request::Update(Update { filled, ..update(flow) });
    // This memory was verified before, so it is not checked again.
    let known = Filled { receive: 1, send: 0 };
    peer.machine.stack.request(now, CONTEXT, update(known), &mut Part(0));
    assert_eq!(peer.machine.stack.counters().without_memory, 0);
    let more = Filled { receive: 0, send: 8_192 };
    peer.machine.stack.request(now, CONTEXT, update(more), &mut Part(4_096));
    assert_eq!(peer.machine.stack.counters().without_memory, 1);
    let seen = peer.after(10);
    assert!(seen.iter().any(|seen| seen.has(Flags::RST)));
    let failed = peer
        .machine
        .events
        .iter()
        .any(|event| matches!(event, Event::Failed { reason: Reason::Invalid, .. }));
    assert!(failed);
}

#[test]
fn connections_of_gone_programs_are_at_most_a_quarter_of_the_table() {
    let mut both = machines(&Adversity::default(), Setup::new);
    let mut now = Nanos(0);
    both[1].listen(now, 80, 8);
    let mut sockets = Vec::new();
    for round in 1..=5 {
        for _ in 0..4 {
            sockets.push(both[0].connect(now, SocketAddr::from(SERVER)));
        }
        for _ in 0..4 {
            both[1].slot(now, 80);
        }
        run(&mut both, &mut now, MINUTE, |both, _| both[1].accepted.len() == 4 * round);
    }
    // 20 of 64 places. The peers never close.
    both[0].stack.remove_process(CONTEXT.process);
    let until = now + SECOND;
    run(&mut both, &mut now, MINUTE, |_, at| at >= until);
    assert_eq!(both[0].stack.counters().orphans_reset, 4);
    let waiting = both[0].states().iter().filter(|state| **state == State::FinWait2).count();
    assert_eq!(waiting, 16);
    run(&mut both, &mut now, MINUTE + MINUTE, |both, _| both[0].released == [CONTEXT.process]);
}

#[test]
fn a_connection_of_a_gone_program_ends_even_if_its_peer_acknowledges_now_and_then() {
    let mut peer = Peer::accepted();
    peer.write(&[7; 16_000]);
    peer.machine.stack.remove_process(CONTEXT.process);
    let start = peer.now;
    let step = Nanos(50 * MS.0);
    loop {
        let seen = peer.until(SECOND, step);
        if seen.iter().any(|seen| seen.has(Flags::RST)) {
            break;
        }
        peer.acknowledge(1);
        assert!(peer.now.since(start) < Nanos(20 * MINUTE.0), "the connection never ends");
    }
    assert!(peer.now.since(start) >= Nanos(9 * MINUTE.0), "the connection ended too early");
    assert_eq!(peer.machine.stack.counters().orphans_reset, 1);
}

/// It stayed for ever, and its peer waited for the end. Random programs with kills found this: seed 11,139.
#[test]
fn a_held_connection_that_nobody_wants_ends_while_the_connections_of_its_process_are_being_closed()
{
    let bounds = Bounds { flows: 80, ..BOUNDS };
    let mut peer = Peer::with(Setup { bounds, ..Setup::new(2) }, 1500);
    peer.machine.listen(Nanos(0), 80, 4);
    peer.open(&[]);
    let flow = peer.machine.sockets[&peer.socket].flow.unwrap();
    let stack = &mut peer.machine.stack;
    assert!(stack.hold(flow).is_some());
    stack.remove_process(CONTEXT.process);
    // The first poll looks at some of the connections.
    stack.poll(peer.now, 0, &mut std::collections::VecDeque::new());
    stack.release_hold(flow);
    let sent = peer.after(50);
    assert!(sent.iter().any(|seen| seen.has(Flags::FIN)), "{sent:?}");
}

/// Otherwise the request would be attributed to the next process with the same number.
#[test]
fn a_process_number_is_released_only_after_the_last_request_of_the_process() {
    let mut peer = Peer::accepted();
    let flow = peer.machine.sockets[&peer.socket].flow.unwrap();
    let gone = ContextId { process: CONTEXT.process + 1, context: 0 };
    let update = Update { written: 1, ..update(flow) };
    let stack = &mut peer.machine.stack;
    stack.request(peer.now, gone, Request::Update(update), 0_u64);
    stack.remove_process(gone.process);
    let mut out = std::collections::VecDeque::new();
    for _ in 0..8 {
        stack.poll(peer.now, 0, &mut out);
    }
    let is_released = |out: &std::collections::VecDeque<_>| {
        out.iter().any(|output| matches!(output, Output::Control(Action::Released(_))))
    };
    assert!(!is_released(&out), "its request is still in the data path");
    for _ in 0..8 {
        stack.poll(peer.now, 64, &mut out);
    }
    assert!(is_released(&out));
}

/// Otherwise programs that come and go beside a busy one take all numbers.
#[test]
fn a_process_number_is_released_while_requests_of_others_keep_waiting() {
    let mut peer = Peer::accepted();
    let flow = peer.machine.sockets[&peer.socket].flow.unwrap();
    let stack = &mut peer.machine.stack;
    let mut out = std::collections::VecDeque::new();
    for turn in 0..64 {
        // More than a poll takes.
        while stack.room_for_requests() > 0 {
            stack.request(peer.now, CONTEXT, Request::Update(update(flow)), 0_u64);
        }
        if turn == 8 {
            stack.remove_process(CONTEXT.process + 1);
        }
        stack.poll(peer.now, 64, &mut out);
    }
    let released = out.iter().filter_map(|output| match output {
        Output::Control(Action::Released(process)) => Some(*process),
        _ => None,
    });
    assert_eq!(released.collect::<Vec<_>>(), [CONTEXT.process + 1]);
}

/// A new agent calls [`remove_process`](wave_tcp::control::Stack::remove_process) for each process that it could not restore.
#[test]
fn a_process_that_leaves_again_after_a_replacement_is_released_once() {
    let mut peer = Peer::accepted();
    peer.machine.stack.remove_process(CONTEXT.process);
    peer.after(50);
    let now = peer.now;
    peer.machine.replace(now);
    peer.machine.stack.reset_all_of(now, CONTEXT.process);
    peer.machine.stack.remove_process(CONTEXT.process);
    peer.after(50);
    assert_eq!(peer.machine.released, [CONTEXT.process]);
}

//! A stack, and a peer that sends segments no honest peer sends: forged resets and SYNs, segments of old connections, spoofed
//! addresses (RFC 5961, RFC 1337, RFC 9293).

use std::net::SocketAddrV4;

use wave_core::clock::Nanos;
use wave_tcp::context::{ContextId, Event, Reason, Request, Update};
use wave_tcp::control::State;
use wave_tcp::datapath::Datapath;
use wave_tcp::packet::{Flags, TcpSegment};
use wave_tcp::seq::Seq;
use wave_tcp_testbed::{CONTEXT, update};

use crate::peer::{ISN, MS, OURS, PEER, Peer, Sends};

impl Peer {
    /// A stack that listens, and a peer that can send anything.
    fn stranger() -> Peer {
        let mut peer = Peer::new();
        peer.machine.listen(Nanos(0), 80, 4);
        peer
    }

    fn forge(
        &mut self,
        source: SocketAddrV4,
        seq: Seq,
        ack: Option<Seq>,
        flags: Flags,
        data: &[u8],
    ) {
        self.send(Sends { source, seq, ack, flags, data, ..self.plain() });
    }

    /// Runs the stack for `time`, and returns the segments that it sent.
    fn answers_after(&mut self, time: Nanos) -> Vec<TcpSegment> {
        self.until(time, MS).into_iter().map(|seen| seen.segment).collect()
    }

    fn answers(&mut self) -> Vec<TcpSegment> {
        self.answers_after(Nanos(5 * MS.0))
    }

    /// Connects the honest peer, and returns the socket.
    fn meet(&mut self) -> u32 {
        let seq = self.seq;
        let [syn] = &self.open(&[])[..] else { panic!("no answer to a SYN") };
        assert_eq!(syn.segment.ack, Some(seq.plus(1)));
        let sack_permitted = syn.segment.options.sack_permitted;
        assert!(!sack_permitted, "the peer has not offered it (RFC 2018, section 2)");
        self.socket
    }

    /// Whether the stack answers with exactly one challenge ACK.
    fn is_challenge(&mut self) -> bool {
        // Long enough that the rate limit allows the next answer, too.
        let answers = self.answers_after(Nanos::from_millis(501));
        matches!(&answers[..], [one] if one.flags == Flags::ACK && one.ack == Some(self.seq) && one.seq == self.ack)
    }
}

#[test]
fn a_peer_that_does_not_offer_selective_acknowledgements_gets_none() {
    let mut peer = Peer::stranger();
    peer.meet();
    let behind_a_gap = peer.seq.plus(100);
    peer.forge(PEER, behind_a_gap, Some(peer.ack), Flags::ACK, b"late");
    let [answer] = &peer.answers()[..] else { panic!("a gap must get exactly one answer") };
    assert_eq!((answer.ack, answer.options.sack_blocks()), (Some(peer.seq), &[][..]));
}

/// Found by `wave fuzz tcp`, seed 83 of its first version: a caller that waits until the time returned by the poll would wait
/// forever.
#[test]
fn a_poll_whose_control_plane_has_given_a_command_asks_to_be_polled_at_once() {
    let mut peer = Peer::stranger();
    peer.meet();
    peer.forge(PEER, peer.seq, None, Flags::SYN, &[]);
    peer.wire.advance(peer.now.0);
    let next = peer.machine.step(peer.now);
    assert_eq!(next, Some(peer.now), "a challenge ACK must be sent");
}

#[test]
fn only_a_reset_with_exactly_the_next_sequence_number_is_accepted() {
    let mut peer = Peer::stranger();
    let socket = peer.meet();
    let (seq, ack) = (peer.seq, peer.ack);
    peer.forge(PEER, seq.plus(1), None, Flags::RST, &[]);
    assert!(peer.is_challenge(), "RFC 5961, 3.2: within the window");
    peer.forge(PEER, seq.minus(1), None, Flags::RST, &[]);
    peer.forge(PEER, seq.plus(1 << 30), None, Flags::RST, &[]);
    assert_eq!(peer.answers(), [], "outside the window");
    assert_eq!(peer.states(), [State::Listen, State::Established]);
    peer.forge(PEER, seq, Some(ack), Flags::RST | Flags::ACK, &[]);
    assert_eq!(peer.answers(), []);
    assert_eq!(peer.states(), [State::Listen]);
    assert_eq!(peer.machine.sockets[&socket].failed, Some(Reason::Reset));
}

#[test]
fn a_syn_on_an_established_connection_is_challenged() {
    let mut peer = Peer::stranger();
    peer.meet();
    for seq in [peer.seq, peer.seq.plus(1 << 20), peer.seq.minus(1)] {
        peer.forge(PEER, seq, None, Flags::SYN, &[]);
        assert!(peer.is_challenge(), "RFC 5961, 4.2");
    }
    assert_eq!(peer.states(), [State::Listen, State::Established]);
}

#[test]
fn data_outside_the_window_and_forged_acknowledgements_change_nothing() {
    let mut peer = Peer::stranger();
    let socket = peer.meet();
    let (seq, ack) = (peer.seq, peer.ack);
    peer.forge(PEER, seq.plus(1 << 20), Some(ack), Flags::ACK, b"far");
    assert!(peer.is_challenge());
    peer.forge(PEER, seq, Some(ack.plus(1_000)), Flags::ACK, b"never sent");
    assert!(peer.is_challenge(), "RFC 5961, 5.2");
    peer.forge(PEER, seq, None, Flags::NONE, b"no ACK");
    assert_eq!(peer.answers(), []);
    assert_eq!(peer.machine.sockets[&socket].received, 0);
}

#[test]
fn forged_segments_are_answered_at_most_twice_per_half_second() {
    let mut peer = Peer::stranger();
    peer.meet();
    let (seq, ack) = (peer.seq, peer.ack);
    for _ in 0..100 {
        peer.forge(PEER, seq.plus(1), None, Flags::RST, &[]);
        peer.forge(PEER, seq, None, Flags::SYN, &[]);
        peer.forge(PEER, seq, Some(ack.plus(1)), Flags::ACK, &[]);
    }
    // One answer by the control plane, and one by the data path.
    assert!((1..=2).contains(&peer.answers().len()));
}

#[test]
fn segments_of_no_connection_get_a_reset_but_resets_do_not() {
    let mut peer = Peer::stranger();
    peer.forge(PEER, Seq(7), Some(Seq(99)), Flags::ACK, b"who?");
    let [reset] = &peer.answers()[..] else { panic!("no reset") };
    assert_eq!((reset.flags, reset.seq), (Flags::RST, Seq(99)));
    // RFC 9293, 3.10.7.2, fourth: a listener drops segments with neither ACK nor SYN.
    peer.forge(PEER, Seq(7), None, Flags::FIN, b"four");
    assert_eq!(peer.answers(), []);
    peer.forge(PEER, Seq(7), Some(Seq(99)), Flags::RST | Flags::ACK, &[]);
    assert_eq!(peer.answers(), []);
}

#[test]
fn a_syn_from_our_own_address_or_a_group_address_is_not_answered() {
    let mut peer = Peer::stranger();
    for source in [*OURS.ip(), "224.0.0.1".parse().unwrap(), "255.255.255.255".parse().unwrap()] {
        peer.forge(SocketAddrV4::new(source, 5000), ISN, None, Flags::SYN, &[]);
    }
    assert_eq!(peer.answers(), []);
    assert_eq!(peer.states(), [State::Listen]);
}

#[test]
fn an_incomplete_passive_handshake_times_out() {
    let mut peer = Peer::stranger();
    peer.forge(PEER, ISN, None, Flags::SYN, &[]);
    let answers = peer.answers_after(Nanos::from_millis(120_000));
    assert!((4..=8).contains(&answers.len()), "{} SYNs", answers.len());
    assert!(answers.iter().all(|answer| answer.flags == Flags::SYN | Flags::ACK));
    assert_eq!(peer.states(), [State::Listen]);
}

#[test]
fn a_flood_of_syns_is_bounded_by_the_backlog() {
    let mut peer = Peer::stranger();
    for port in 1..=1_000 {
        peer.forge(SocketAddrV4::new(*PEER.ip(), port), ISN, None, Flags::SYN, &[]);
        peer.answers_after(Nanos::from_millis(1));
    }
    let waiting = peer.states().iter().filter(|state| **state == State::SynReceived).count();
    assert!((1..=8).contains(&waiting), "{waiting}");
    // The handshakes time out, and the honest peer is served.
    peer.answers_after(Nanos::from_millis(120_000));
    peer.meet();
}

/// Ends a connection, the stack first.
fn close_first(peer: &mut Peer) {
    let socket = peer.meet();
    end_first(peer, socket);
}

fn end_first(peer: &mut Peer, socket: u32) {
    let now = peer.now;
    peer.machine.close(now, socket);
    let [fin] = &peer.answers()[..] else { panic!("no FIN") };
    assert!(fin.flags.contains(Flags::FIN));
    peer.ack = peer.ack.plus(1);
    let (seq, ack) = (peer.seq, peer.ack);
    peer.forge(PEER, seq, Some(ack), Flags::FIN | Flags::ACK, &[]);
    peer.seq = peer.seq.plus(1);
    assert!(peer.is_challenge(), "the FIN is acknowledged");
    assert!(peer.states().contains(&State::TimeWait));
}

#[test]
fn time_wait_withstands_old_segments_and_resets() {
    let mut peer = Peer::stranger();
    close_first(&mut peer);
    let (seq, ack) = (peer.seq, peer.ack);
    // RFC 1337.
    peer.forge(PEER, seq, Some(ack), Flags::RST | Flags::ACK, &[]);
    assert_eq!(peer.answers(), []);
    peer.forge(PEER, seq.minus(1), Some(ack), Flags::FIN | Flags::ACK, &[]);
    assert!(peer.is_challenge(), "a repeated FIN is acknowledged again");
    // An old SYN: its sequence number is not newer.
    peer.forge(PEER, seq.minus(100), None, Flags::SYN, &[]);
    assert!(peer.is_challenge());
    assert_eq!(peer.states(), [State::Listen, State::TimeWait]);
    // RFC 9293, MAY-2: a newer SYN opens a new connection.
    peer.seq = seq.plus(1_000);
    peer.meet();
    assert_eq!(peer.states(), [State::Listen, State::Established]);
}

#[test]
fn a_syn_does_not_end_time_wait_if_nobody_listens() {
    let mut peer = Peer::stranger();
    close_first(&mut peer);
    peer.machine.ask(peer.now, Request::Unlisten { listener: 80 });
    let seq = peer.seq.plus(1_000);
    peer.forge(PEER, seq, None, Flags::SYN, &[]);
    assert!(peer.is_challenge(), "it is answered like any segment of the old connection");
    assert_eq!(peer.states(), [State::TimeWait]);
}

#[test]
fn a_syn_that_is_dropped_does_not_end_time_wait() {
    let mut peer = Peer::stranger();
    // The last of its slots is used by a connection to another port of the peer.
    for port in 1..4 {
        let source = SocketAddrV4::new(*PEER.ip(), PEER.port() + port);
        peer.forge(source, ISN, None, Flags::SYN, &[]);
        let ack = peer.answers()[0].seq.plus(1);
        peer.forge(source, ISN.plus(1), Some(ack), Flags::ACK, &[]);
        peer.answers();
    }
    peer.machine.accepted.clear();
    close_first(&mut peer);
    // As many connections wait for a slot as the backlog allows.
    for port in 4..8 {
        let source = SocketAddrV4::new(*PEER.ip(), PEER.port() + port);
        peer.forge(source, ISN, None, Flags::SYN, &[]);
        let ack = peer.answers()[0].seq.plus(1);
        peer.forge(source, ISN.plus(1), Some(ack), Flags::ACK, &[]);
        assert_eq!(peer.answers(), []);
    }
    let seq = peer.seq.plus(1_000);
    peer.forge(PEER, seq, None, Flags::SYN, &[]);
    assert_eq!(peer.answers(), []);
    assert_eq!(peer.machine.stack.counters().overflows, 4 + 1);
    assert!(peer.states().contains(&State::TimeWait));
}

/// RFC 9293, MAY-2, condition 1. A connection whose bytes are numbered faster than the clock of initial sequence numbers ticks.
#[test]
fn a_reopened_connection_begins_after_the_last_sequence_number_of_the_old_one() {
    let mut peer = Peer::stranger();
    let socket = peer.meet();
    let bytes = vec![7; 8 * 536];
    for _ in 0..120 {
        assert_eq!(peer.machine.send(peer.now, socket, &bytes), bytes.len());
        peer.answers();
        peer.ack = peer.ack.plus(bytes.len() as u32);
        let (seq, ack) = (peer.seq, peer.ack);
        peer.forge(PEER, seq, Some(ack), Flags::ACK, &[]);
        peer.answers();
    }
    end_first(&mut peer, socket);
    let end = peer.ack;
    peer.seq = peer.seq.plus(1_000);
    peer.meet();
    assert!(peer.ack.since(end) > 0, "{:?}, {end:?}", peer.ack);
}

#[test]
fn time_wait_lasts_a_minute() {
    let mut peer = Peer::stranger();
    close_first(&mut peer);
    peer.answers_after(Nanos::from_millis(59_000));
    assert_eq!(peer.states(), [State::Listen, State::TimeWait]);
    peer.answers_after(Nanos::from_millis(2_000));
    assert_eq!(peer.states(), [State::Listen]);
}

#[test]
fn a_process_cannot_move_close_or_reset_a_connection_of_another_process() {
    let mut peer = Peer::stranger();
    let socket = peer.meet();
    let flow = peer.machine.sockets[&socket].flow.unwrap();
    let other = ContextId { process: CONTEXT.process + 1, context: 0 };
    let before = peer.machine.stack.data.inspect(flow);
    let update = Update { written: 5, is_finished: true, ..update(flow) };
    for request in [Request::Update(update), Request::Close { flow }, Request::Abort { flow }] {
        peer.machine.stack.request(peer.now, other, request, 1_u64 << 20);
    }
    assert_eq!(peer.answers(), []);
    assert_eq!(peer.machine.stack.data.inspect(flow), before);
    assert_eq!(peer.machine.counter("requests.of_other_processes"), 1);
}

#[test]
fn an_impossible_request_resets_the_connection() {
    let mut peer = Peer::stranger();
    let socket = peer.meet();
    let flow = peer.machine.sockets[&socket].flow.unwrap();
    peer.machine.ask(peer.now, Request::Update(Update { read: 1, ..update(flow) }));
    let [reset] = &peer.answers()[..] else { panic!("no reset") };
    assert!(reset.flags.contains(Flags::RST));
    let failed = Event::Failed { socket, reason: Reason::Invalid };
    assert_eq!(peer.machine.events.last(), Some(&failed));
    assert_eq!(peer.states(), [State::Listen]);
}

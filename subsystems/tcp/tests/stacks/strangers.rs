//! A stack, and a peer that sends segments no honest peer sends: forged resets and SYNs, segments of old connections, spoofed
//! addresses (RFC 5961, RFC 1337, RFC 9293).

use std::net::SocketAddrV4;

use crate::machine::{CONTEXT, Machine};
use wave_core::clock::Nanos;
use wave_tcp::context::{ContextId, Event, Filled, Reason, Request, Tail, Update};
use wave_tcp::control::State;
use wave_tcp::datapath::Datapath;
use wave_tcp::packet::{
    Ecn, Flags, Options, Parsed, TcpHeader, TcpSegment, build_tcp, parse, partial_checksum,
};
use wave_tcp::seq::Seq;
use wave_wires::{Adversity, CsumPlace, Memory, Offload, RawPart, Wire};

const PEER: SocketAddrV4 = SocketAddrV4::new(std::net::Ipv4Addr::new(10, 0, 0, 1), 5000);
const OURS: SocketAddrV4 = SocketAddrV4::new(std::net::Ipv4Addr::new(10, 0, 0, 2), 80);
const PEER_ISN: Seq = Seq(u32::MAX - 3);

/// A stack that listens, and a peer that can send anything.
struct Meeting {
    machine: Machine,
    wire: Memory,
    now: Nanos,
    /// The peer's next sequence number.
    seq: Seq,
    ack: Seq,
}

impl Meeting {
    fn new() -> Meeting {
        let (wire, other) = Memory::pair(&Adversity::default());
        let mut machine = Machine::new(2, other);
        machine.listen(Nanos(0), 80, 4);
        let now = Nanos::from_millis(1_000);
        Meeting { machine, wire, now, seq: PEER_ISN, ack: Seq(0) }
    }

    fn send(
        &mut self,
        source: SocketAddrV4,
        seq: Seq,
        ack: Option<Seq>,
        flags: Flags,
        data: &[u8],
    ) {
        let header = TcpHeader {
            source_mac: self.wire.limits().mac,
            destination_mac: self.machine.wire.limits().mac,
            source: source.into(),
            destination: OURS.into(),
            ecn: Ecn::default(),
            ttl: 64,
            seq,
            ack,
            flags,
            window: 60_000,
            options: Options::default(),
        };
        let mut head = [0; 120];
        let len = build_tcp(&mut head, &header, data.len() as u32);
        let place = partial_checksum(&header.source);
        let place = CsumPlace { start: place.start, offset: place.offset };
        let offload = Offload { segment_bytes: 0, checksum: Some(place) };
        let _ = self.wire.send(&head[..len], [RawPart::of(data), RawPart::EMPTY], offload).unwrap();
    }

    /// Runs the stack for `time`, and returns the segments that it sent.
    fn answers_after(&mut self, time: Nanos) -> Vec<TcpSegment> {
        let end = self.now + time;
        let mut answers = Vec::new();
        while self.now < end {
            self.wire.advance(self.now.0);
            self.machine.step(self.now);
            while let Some(frame) = self.wire.receive().unwrap() {
                if let Parsed::Tcp { segment, .. } = parse(&frame, false).unwrap() {
                    answers.push(segment);
                }
            }
            self.now = self.now + Nanos::from_millis(1);
        }
        answers
    }

    fn answers(&mut self) -> Vec<TcpSegment> {
        self.answers_after(Nanos::from_millis(5))
    }

    /// Connects the honest peer, and returns the socket.
    fn connect(&mut self) -> u32 {
        self.send(PEER, self.seq, None, Flags::SYN, &[]);
        let [syn] = &self.answers()[..] else { panic!("no answer to a SYN") };
        assert_eq!((syn.flags, syn.ack), (Flags::SYN | Flags::ACK, Some(self.seq.plus(1))));
        assert!(!syn.options.sack_permitted, "the peer has not offered it (RFC 2018, section 2)");
        (self.seq, self.ack) = (self.seq.plus(1), syn.seq.plus(1));
        self.send(PEER, self.seq, Some(self.ack), Flags::ACK, &[]);
        assert_eq!(self.answers(), []);
        self.machine.accepted.pop_front().expect("the connection is accepted")
    }

    fn states(&self) -> Vec<State> {
        let mut states = Vec::new();
        self.machine.stack.show(&mut |shown| states.push(shown.state));
        states
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
    let mut meeting = Meeting::new();
    meeting.connect();
    let behind_a_gap = meeting.seq.plus(100);
    meeting.send(PEER, behind_a_gap, Some(meeting.ack), Flags::ACK, b"late");
    let [answer] = &meeting.answers()[..] else { panic!("a gap must get exactly one answer") };
    assert_eq!((answer.ack, answer.options.sack_blocks()), (Some(meeting.seq), &[][..]));
}

/// Found by `wave fuzz tcp`, seed 83 of its first version: a caller that waits until the time returned by the poll would wait
/// forever.
#[test]
fn a_poll_whose_control_plane_has_given_a_command_asks_to_be_polled_at_once() {
    let mut meeting = Meeting::new();
    meeting.connect();
    meeting.send(PEER, meeting.seq, None, Flags::SYN, &[]);
    meeting.wire.advance(meeting.now.0);
    let next = meeting.machine.step(meeting.now);
    assert_eq!(next, Some(meeting.now), "a challenge ACK must be sent");
}

#[test]
fn only_a_reset_with_exactly_the_next_sequence_number_is_accepted() {
    let mut meeting = Meeting::new();
    let socket = meeting.connect();
    let (seq, ack) = (meeting.seq, meeting.ack);
    meeting.send(PEER, seq.plus(1), None, Flags::RST, &[]);
    assert!(meeting.is_challenge(), "RFC 5961, 3.2: within the window");
    meeting.send(PEER, seq.minus(1), None, Flags::RST, &[]);
    meeting.send(PEER, seq.plus(1 << 30), None, Flags::RST, &[]);
    assert_eq!(meeting.answers(), [], "outside the window");
    assert_eq!(meeting.states(), [State::Listen, State::Established]);
    meeting.send(PEER, seq, Some(ack), Flags::RST | Flags::ACK, &[]);
    assert_eq!(meeting.answers(), []);
    assert_eq!(meeting.states(), [State::Listen]);
    assert_eq!(meeting.machine.sockets[&socket].failed, Some(Reason::Reset));
}

#[test]
fn a_syn_on_an_established_connection_is_challenged() {
    let mut meeting = Meeting::new();
    meeting.connect();
    for seq in [meeting.seq, meeting.seq.plus(1 << 20), meeting.seq.minus(1)] {
        meeting.send(PEER, seq, None, Flags::SYN, &[]);
        assert!(meeting.is_challenge(), "RFC 5961, 4.2");
    }
    assert_eq!(meeting.states(), [State::Listen, State::Established]);
}

#[test]
fn data_outside_the_window_and_forged_acknowledgements_change_nothing() {
    let mut meeting = Meeting::new();
    let socket = meeting.connect();
    let (seq, ack) = (meeting.seq, meeting.ack);
    meeting.send(PEER, seq.plus(1 << 20), Some(ack), Flags::ACK, b"far");
    assert!(meeting.is_challenge());
    meeting.send(PEER, seq, Some(ack.plus(1_000)), Flags::ACK, b"never sent");
    assert!(meeting.is_challenge(), "RFC 5961, 5.2");
    meeting.send(PEER, seq, None, Flags::NONE, b"no ACK");
    assert_eq!(meeting.answers(), []);
    assert_eq!(meeting.machine.sockets[&socket].received, 0);
}

#[test]
fn forged_segments_are_answered_at_most_twice_per_half_second() {
    let mut meeting = Meeting::new();
    meeting.connect();
    let (seq, ack) = (meeting.seq, meeting.ack);
    for _ in 0..100 {
        meeting.send(PEER, seq.plus(1), None, Flags::RST, &[]);
        meeting.send(PEER, seq, None, Flags::SYN, &[]);
        meeting.send(PEER, seq, Some(ack.plus(1)), Flags::ACK, &[]);
    }
    // One answer by the control plane, and one by the data path.
    assert!((1..=2).contains(&meeting.answers().len()));
}

#[test]
fn segments_of_no_connection_get_a_reset_but_resets_do_not() {
    let mut meeting = Meeting::new();
    meeting.send(PEER, Seq(7), Some(Seq(99)), Flags::ACK, b"who?");
    let [reset] = &meeting.answers()[..] else { panic!("no reset") };
    assert_eq!((reset.flags, reset.seq), (Flags::RST, Seq(99)));
    // RFC 9293, 3.10.7.2, fourth: a listener drops segments with neither ACK nor SYN.
    meeting.send(PEER, Seq(7), None, Flags::FIN, b"four");
    assert_eq!(meeting.answers(), []);
    meeting.send(PEER, Seq(7), Some(Seq(99)), Flags::RST | Flags::ACK, &[]);
    assert_eq!(meeting.answers(), []);
}

#[test]
fn a_syn_from_our_own_address_or_a_group_address_is_not_answered() {
    let mut meeting = Meeting::new();
    for source in [*OURS.ip(), "224.0.0.1".parse().unwrap(), "255.255.255.255".parse().unwrap()] {
        meeting.send(SocketAddrV4::new(source, 5000), PEER_ISN, None, Flags::SYN, &[]);
    }
    assert_eq!(meeting.answers(), []);
    assert_eq!(meeting.states(), [State::Listen]);
}

#[test]
fn an_incomplete_passive_handshake_times_out() {
    let mut meeting = Meeting::new();
    meeting.send(PEER, PEER_ISN, None, Flags::SYN, &[]);
    let answers = meeting.answers_after(Nanos::from_millis(120_000));
    assert!((4..=8).contains(&answers.len()), "{} SYNs", answers.len());
    assert!(answers.iter().all(|answer| answer.flags == Flags::SYN | Flags::ACK));
    assert_eq!(meeting.states(), [State::Listen]);
}

#[test]
fn a_flood_of_syns_is_bounded_by_the_backlog() {
    let mut meeting = Meeting::new();
    for port in 1..=1_000 {
        meeting.send(SocketAddrV4::new(*PEER.ip(), port), PEER_ISN, None, Flags::SYN, &[]);
        meeting.answers_after(Nanos::from_millis(1));
    }
    let waiting = meeting.states().iter().filter(|state| **state == State::SynReceived).count();
    assert!((1..=8).contains(&waiting), "{waiting}");
    // The handshakes time out, and the honest peer is served.
    meeting.answers_after(Nanos::from_millis(120_000));
    meeting.connect();
}

/// Ends a connection, the stack first.
fn close_first(meeting: &mut Meeting) {
    let socket = meeting.connect();
    end_first(meeting, socket);
}

fn end_first(meeting: &mut Meeting, socket: u32) {
    let now = meeting.now;
    meeting.machine.close(now, socket);
    let [fin] = &meeting.answers()[..] else { panic!("no FIN") };
    assert!(fin.flags.contains(Flags::FIN));
    meeting.ack = meeting.ack.plus(1);
    let (seq, ack) = (meeting.seq, meeting.ack);
    meeting.send(PEER, seq, Some(ack), Flags::FIN | Flags::ACK, &[]);
    meeting.seq = meeting.seq.plus(1);
    assert!(meeting.is_challenge(), "the FIN is acknowledged");
    assert!(meeting.states().contains(&State::TimeWait));
}

#[test]
fn time_wait_withstands_old_segments_and_resets() {
    let mut meeting = Meeting::new();
    close_first(&mut meeting);
    let (seq, ack) = (meeting.seq, meeting.ack);
    // RFC 1337.
    meeting.send(PEER, seq, Some(ack), Flags::RST | Flags::ACK, &[]);
    assert_eq!(meeting.answers(), []);
    meeting.send(PEER, seq.minus(1), Some(ack), Flags::FIN | Flags::ACK, &[]);
    assert!(meeting.is_challenge(), "a repeated FIN is acknowledged again");
    // An old SYN: its sequence number is not newer.
    meeting.send(PEER, seq.minus(100), None, Flags::SYN, &[]);
    assert!(meeting.is_challenge());
    assert_eq!(meeting.states(), [State::Listen, State::TimeWait]);
    // RFC 9293, MAY-2: a newer SYN opens a new connection.
    meeting.seq = seq.plus(1_000);
    meeting.connect();
    assert_eq!(meeting.states(), [State::Listen, State::Established]);
}

#[test]
fn a_syn_does_not_end_time_wait_if_nobody_listens() {
    let mut meeting = Meeting::new();
    close_first(&mut meeting);
    meeting.machine.ask(meeting.now, Request::Unlisten { listener: 80 });
    let seq = meeting.seq.plus(1_000);
    meeting.send(PEER, seq, None, Flags::SYN, &[]);
    assert!(meeting.is_challenge(), "it is answered like any segment of the old connection");
    assert_eq!(meeting.states(), [State::TimeWait]);
}

#[test]
fn a_syn_that_is_dropped_does_not_end_time_wait() {
    let mut meeting = Meeting::new();
    // The last of its slots is used by a connection to another port of the peer.
    for port in 1..4 {
        let source = SocketAddrV4::new(*PEER.ip(), PEER.port() + port);
        meeting.send(source, PEER_ISN, None, Flags::SYN, &[]);
        let ack = meeting.answers()[0].seq.plus(1);
        meeting.send(source, PEER_ISN.plus(1), Some(ack), Flags::ACK, &[]);
        meeting.answers();
    }
    meeting.machine.accepted.clear();
    close_first(&mut meeting);
    // As many connections wait for a slot as the backlog allows.
    for port in 4..8 {
        let source = SocketAddrV4::new(*PEER.ip(), PEER.port() + port);
        meeting.send(source, PEER_ISN, None, Flags::SYN, &[]);
        let ack = meeting.answers()[0].seq.plus(1);
        meeting.send(source, PEER_ISN.plus(1), Some(ack), Flags::ACK, &[]);
        assert_eq!(meeting.answers(), []);
    }
    let seq = meeting.seq.plus(1_000);
    meeting.send(PEER, seq, None, Flags::SYN, &[]);
    assert_eq!(meeting.answers(), []);
    assert_eq!(meeting.machine.stack.counters().overflows, 4 + 1);
    assert!(meeting.states().contains(&State::TimeWait));
}

/// RFC 9293, MAY-2, condition 1. A connection whose bytes are numbered faster than the clock of initial sequence numbers ticks.
#[test]
fn a_reopened_connection_begins_after_the_last_sequence_number_of_the_old_one() {
    let mut meeting = Meeting::new();
    let socket = meeting.connect();
    let bytes = vec![7; 8 * 536];
    for _ in 0..120 {
        assert_eq!(meeting.machine.write(socket, &bytes), bytes.len());
        meeting.machine.report_progress(meeting.now, socket);
        meeting.answers();
        meeting.ack = meeting.ack.plus(bytes.len() as u32);
        let (seq, ack) = (meeting.seq, meeting.ack);
        meeting.send(PEER, seq, Some(ack), Flags::ACK, &[]);
        meeting.answers();
    }
    end_first(&mut meeting, socket);
    let end = meeting.ack;
    meeting.seq = meeting.seq.plus(1_000);
    meeting.connect();
    assert!(meeting.ack.since(end) > 0, "{:?}, {end:?}", meeting.ack);
}

#[test]
fn time_wait_lasts_a_minute() {
    let mut meeting = Meeting::new();
    close_first(&mut meeting);
    meeting.answers_after(Nanos::from_millis(59_000));
    assert_eq!(meeting.states(), [State::Listen, State::TimeWait]);
    meeting.answers_after(Nanos::from_millis(2_000));
    assert_eq!(meeting.states(), [State::Listen]);
}

#[test]
fn a_process_cannot_move_close_or_reset_a_connection_of_another_process() {
    let mut meeting = Meeting::new();
    let socket = meeting.connect();
    let flow = meeting.machine.sockets[&socket].flow.unwrap();
    let other = ContextId { process: CONTEXT.process + 1, context: 0 };
    let before = meeting.machine.stack.data.inspect(flow);
    let update = Update {
        flow,
        written: 5,
        read: 0,
        is_finished: true,
        is_eager: false,
        tail: Tail::Whole,
        filled: Filled::default(),
    };
    for request in [Request::Update(update), Request::Close { flow }, Request::Abort { flow }] {
        meeting.machine.stack.request(meeting.now, other, request, 1_u64 << 20);
    }
    assert_eq!(meeting.answers(), []);
    assert_eq!(meeting.machine.stack.data.inspect(flow), before);
    assert_eq!(meeting.machine.stack.data.counters().foreign_requests, 1);
}

#[test]
fn an_impossible_request_resets_the_connection() {
    let mut meeting = Meeting::new();
    let socket = meeting.connect();
    let flow = meeting.machine.sockets[&socket].flow.unwrap();
    let update = Update {
        flow,
        written: 0,
        read: 1,
        is_finished: false,
        is_eager: false,
        tail: Tail::Whole,
        filled: Filled::default(),
    };
    let now = meeting.now;
    meeting.machine.ask(now, Request::Update(update));
    let [reset] = &meeting.answers()[..] else { panic!("no reset") };
    assert!(reset.flags.contains(Flags::RST));
    let failed = Event::Failed { socket, reason: Reason::Invalid };
    assert_eq!(meeting.machine.events.last(), Some(&failed));
    assert_eq!(meeting.states(), [State::Listen]);
}

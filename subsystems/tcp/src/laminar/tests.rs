use std::vec::Vec;

use etherparse::{PacketBuilder, TcpHeader};
use wave_rmt::check::place;
use wave_rmt::devices::TOFINO1;
use wave_rmt::parser::parse;
use wave_rmt::table::Entry;
use wave_rmt::{Gress, Phv, Specialised, Verdict};

use super::explore::receive::{Settings, explore};
use super::explore::transmit as transmit_side;
use super::planted::PLANTED;
use super::trace::{Packet, Script, Step, TABLE_5_1_REGISTERS, table_5_1};
use super::*;

#[test]
fn pipelines_fit_tofino_2_and_not_tofino_1() {
    for (pipeline, stages, alus) in [(&THESIS, 7, 13), (&LAMINAR, 11, 12)] {
        let placement = place(pipeline, &TOFINO2);
        assert_eq!(placement.violations, []);
        assert_eq!((placement.stages.len(), placement.total().stateful_alus), (stages, alus));
    }
    let violations = THESIS.check(&TOFINO1);
    let rules: Vec<_> = violations.iter().map(|violation| violation.rule.name()).collect();
    assert!(rules.contains(&"comparators") && rules.contains(&"outputs"), "{rules:?}");
}

#[test]
fn registers_are_those_of_table_5_1() {
    let ours = table_5_1().run(&LAMINAR).unwrap();
    let steps = table_5_1().run(&THESIS).unwrap();
    // Bytes that are in the host's memory already are not placed again.
    let again = |step: &Step| step.name == "#4" || step.name == "#6";
    let placed = |step: &Step| Step { is_placed: step.is_placed && !again(step), ..step.clone() };
    assert!(ours.iter().eq(steps.iter().map(placed).collect::<Vec<_>>().iter()));
    let registers: Vec<_> = steps.iter().map(|step| step.registers).collect();
    assert_eq!(registers, TABLE_5_1_REGISTERS);
    // The pseudo segments, as the table prints them.
    let pseudo = steps.iter().filter(|step| step.name.starts_with('P'));
    let pseudo: Vec<_> = pseudo.map(|step| (step.name.as_str(), step.seq, step.length)).collect();
    let printed = [
        ("P#2", 1500, 500),
        ("P#3", 1500, 1000),
        ("P#4", 1600, 900),
        ("P#5", 2000, 600),
        ("P#6", 2100, 500),
    ];
    assert_eq!(pseudo, printed);
    assert!(!steps[8].is_placed, "segment 7 cannot start a second interval");
}

#[test]
fn scripts_are_read_and_refused_by_line() {
    let read = Script::read("start 1000 10000 # registers\n1500 500\n\nP#1\n").unwrap();
    assert_eq!((read.next, read.avail), (1000, 10_000));
    assert_eq!(read.packets, [Packet::Segment(1500, 500), Packet::Pseudo(1)]);
    let error = |text: &str| Script::read(text).unwrap_err().to_string();
    let forms = "expected `SEQ LENGTH`, `P#N`, `lost P#N`, or first `start NEXT AVAIL`";
    assert_eq!(error("1 2\n1 x\n"), "line 2: `x` is not a number from 0 to 4294967295");
    assert_eq!(
        error("1 2\nstart 1 2\n"),
        "line 2: `start NEXT AVAIL` must come before the packets"
    );
    assert_eq!(error("start 1"), "line 1: `start` takes two numbers: `start NEXT AVAIL`");
    assert_eq!(error("P2"), format!("line 1: `P2`: {forms}"));
    assert_eq!(error("1500"), format!("line 1: `1500`: {forms}"));
    assert_eq!(error("1 2 3"), format!("line 1: {forms}"));
    assert_eq!(error("# nothing"), format!("there is no packet; {forms}"));
    assert!(Script::read("1 2\nP#2\n").unwrap().run(&LAMINAR).is_err());
    assert!(Script::read("1 2\nP#1\nP#1\n").unwrap().run(&LAMINAR).is_err());
}

#[test]
fn no_order_of_packets_breaks_reassembly() {
    // Across the wrap of sequence numbers, and across the wrap of their sign.
    for (first, pseudo, copies) in [(0, 2, 1), (28, 1, 2), (13, 1, 1)] {
        let small = Settings { bytes: 6, window: 5, ..Settings::default() };
        let explored = explore(&LAMINAR, Settings { first, pseudo, copies, ..small });
        assert_eq!(explored.counterexample, None);
        assert_eq!(explored.uncovered, [""; 0]);
        assert!(explored.states > 2_000, "{}", explored.states);
    }
}

#[test]
fn planted_faults_are_found() {
    for planted in PLANTED {
        let settings =
            Settings { first: planted.first, window: 6, copies: 2, ..Settings::default() };
        let found = explore(&planted.pipeline, settings).counterexample;
        let found = found.unwrap_or_else(|| panic!("{} was not found", planted.name));
        assert!(!found.steps.is_empty() && found.steps.len() <= 6, "{}: {found:?}", planted.name);
    }
}

#[test]
fn thesis_rule_serves_peers_that_keep_to_their_window() {
    let settings = Settings { is_hostile: false, window: 6, ..Settings::default() };
    assert_eq!(explore(&THESIS, settings).counterexample, None);
}

/// A machine with connection 5 of context 3: 10.0.0.1:7000 to our 10.0.0.2:80, which receives from 1000 and sends from 9000.
fn machine() -> Specialised<Laminar> {
    let mut machine: Specialised<Laminar> = Specialised::default();
    let (from, to) = (u32::from_be_bytes([10, 0, 0, 1]), u32::from_be_bytes([10, 0, 0, 2]));
    let mut key = [0; 10];
    key[..3].copy_from_slice(&[from, to, 7000 << 16 | 80]);
    let entry = |action, word| Entry { action, data: [word, 1500, 1500, 0, 0, 0, 0, 0] };
    let state = &mut machine.state;
    state.insert(Gress::Ingress, ingress::LOOKUP_TABLE, key, entry(0, 5)).unwrap();
    state.set(Gress::Ingress, ingress::OWNER_TABLE, 5, Some(entry(0, 3))).unwrap();
    state.set(Gress::Ingress, ingress::PEER_TABLE, 5, Some(entry(7, 3))).unwrap();
    state.set(Gress::Ingress, ingress::STREAM_TABLE, 5, Some(entry(0, 9000))).unwrap();
    set_reassembly(&LAMINAR, state, 5, [1000, 10_000, 0, 0]).unwrap();
    set_transmission(&LAMINAR, state, 5, [9000, 0, 0, 3000, 4000]).unwrap();
    machine
}

/// A segment of 10.0.0.1:7000 to port 80.
fn frame(seq: u32, ack: u32, bytes: usize, adjust: impl FnOnce(&mut TcpHeader)) -> Vec<u8> {
    let mut tcp = TcpHeader::new(7000, 80, seq, 100);
    (tcp.ack, tcp.acknowledgment_number) = (true, ack);
    adjust(&mut tcp);
    let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
    let payload = std::vec![7; bytes];
    let mut frame = Vec::new();
    builder.tcp_header(tcp).write(&mut frame, &payload).unwrap();
    frame
}

/// A frame of a host.
fn host(kind: u32, target: u32, context: u16, connection: u16, words: [u32; 2]) -> Vec<u8> {
    let mut frame = std::vec![0; 12];
    frame.extend((ingress::HOST_ETHER_TYPE as u16).to_be_bytes());
    frame.extend([kind as u8, target as u8]);
    frame.extend(context.to_be_bytes());
    frame.extend(connection.to_be_bytes());
    frame.extend([0, 0]);
    words.iter().for_each(|word| frame.extend(word.to_be_bytes()));
    frame
}

/// Passes a frame of the wire through both gresses, as far as it goes.
fn pass(machine: &mut Specialised<Laminar>, frame: &[u8]) -> (Phv, Verdict) {
    pass_from(machine, frame, 0)
}

/// Passes a frame of the wire (0) or of a host (1).
fn pass_from(machine: &mut Specialised<Laminar>, frame: &[u8], from_host: u32) -> (Phv, Verdict) {
    let mut phv = Phv::default().with(FROM_HOST, from_host);
    parse(LAMINAR.parser, frame, &mut phv).unwrap();
    let verdict = machine.pass(Gress::Ingress, &mut phv);
    if verdict.is_dropped {
        return (phv, verdict);
    }
    let verdict = machine.pass(Gress::Egress, &mut phv);
    (phv, verdict)
}

#[test]
fn frames_reach_their_connection() {
    let mut machine = machine();
    let (phv, verdict) = pass(&mut machine, &frame(1000, 9000, 500, |_| ()));
    assert_eq!((verdict.is_dropped, verdict.mirror), (false, PSEUDO_SESSION));
    assert_eq!((phv.get(CONNECTION), phv.get(CONTEXT), phv.get(LENGTH)), (5, 3, 500));
    assert_eq!((phv.get(NEXT), phv.get(IS_PLACED)), (1500, 1));
    assert_eq!(phv.get(WINDOW), 100 << 7);
    assert_eq!(reassembly(&LAMINAR, &machine.state, 5), [1500, 9500, 0, 0]);
    // With timestamps, as Linux sends them.
    let stamped = |tcp: &mut TcpHeader| {
        use etherparse::TcpOptionElement::{Noop, Timestamp};
        tcp.set_options(&[Noop, Noop, Timestamp(11, 22)]).unwrap();
    };
    let (phv, _) = pass(&mut machine, &frame(1500, 9000, 100, stamped));
    assert_eq!((phv.get(LENGTH), phv.get(TIMESTAMP), phv.get(ECHO)), (100, 11, 22));
    assert_eq!(phv.get(NEXT), 1600);
}

#[test]
fn bytes_are_acknowledged_once_their_copy_is_done() {
    let mut machine = machine();
    let send = host(kind::TRANSMIT, 0, 3, 5, [0, 100]);
    let (phv, verdict) = pass(&mut machine, &frame(1000, 9000, 500, |_| ()));
    let mut pseudo = LAMINAR.mirrored(verdict.mirror, &phv).unwrap();
    // While the copy is under way, a segment to send acknowledges nothing new.
    let (phv, _) = pass_from(&mut machine, &send, 1);
    assert_eq!((phv.get(LANDED), phv.get(AVAIL)), (1000, 10_000));
    machine.pass(Gress::Egress, &mut pseudo);
    assert_eq!((pseudo.get(LANDED), pseudo.get(AVAIL)), (1500, 9_500));
    let (phv, _) = pass_from(&mut machine, &host(kind::TRANSMIT, 0, 3, 5, [100, 100]), 1);
    assert_eq!((phv.get(LANDED), phv.get(AVAIL)), (1500, 9_500));
}

#[test]
fn segments_without_effect_ask_for_an_acknowledgement() {
    let mut machine = machine();
    let before = machine.state.clone();
    for (seq, ack, bytes) in [
        (1000, 9001, 10),              // never sent
        (1000, 9000 - 1501, 10),       // too old
        (999, 9000, 0),                // a keep-alive probe
        (11_001, 9000, 0),             // beyond the window
        (1000, 9000 + (1 << 31), 100), // as far away as can be
    ] {
        let (_, verdict) = pass(&mut machine, &frame(seq, ack, bytes, |_| ()));
        let found = (verdict.is_dropped, verdict.mirror, verdict.digest);
        assert_eq!(found, (true, 0, DIGEST_CHALLENGE), "{seq} {ack} {bytes}");
        assert_eq!(machine.state, before);
    }
    // After a lost segment of the peer, its acknowledgements are ahead of rx_next.
    let (_, verdict) = pass(&mut machine, &frame(1500, 9000, 0, |_| ()));
    assert_eq!((verdict.digest, machine.state.read(RX_OOO_TAIL, 5)), (0, Some([0, 0])));
}

#[test]
fn segments_that_the_stages_cannot_process_take_the_slow_path() {
    let adjusts: [fn(&mut TcpHeader); 7] = [
        |tcp| tcp.fin = true,
        |tcp| tcp.rst = true,
        |tcp| tcp.syn = true,
        |tcp| tcp.urg = true,
        |tcp| tcp.ack = false,
        |tcp| tcp.source_port = 7001,
        |tcp| tcp.set_options(&[etherparse::TcpOptionElement::MaximumSegmentSize(1460)]).unwrap(),
    ];
    for adjust in adjusts {
        let mut machine = machine();
        let (_, verdict) = pass(&mut machine, &frame(1000, 9000, 10, adjust));
        assert_eq!((verdict.is_dropped, verdict.digest), (true, DIGEST_SLOW_PATH));
        assert_eq!(reassembly(&LAMINAR, &machine.state, 5), [1000, 10_000, 0, 0]);
    }
    // A packet that says that it is shorter than its headers has no payload.
    let mut short = frame(1000, 9000, 10, |_| ());
    short[17] = 30;
    let mut machine = machine();
    assert_eq!(pass(&mut machine, &short).0.get(IS_PLACED), 0);
}

#[test]
fn hosts_send_within_credits_and_window_and_on_their_own_connections() {
    let mut machine = machine();
    let send = |position, length| host(kind::TRANSMIT, 0, 3, 5, [position, length]);
    let (phv, verdict) = pass_from(&mut machine, &send(0, 1000), 1);
    assert_eq!((verdict.is_dropped, phv.get(SEQ), phv.get(LANDED)), (false, 9000, 1000));
    // 2,000 credits are left.
    assert!(!pass_from(&mut machine, &send(1000, 1500), 1).1.is_dropped);
    assert!(pass_from(&mut machine, &send(2500, 1000), 1).1.is_dropped, "more than the credits");
    assert!(!pass_from(&mut machine, &send(2500, 500), 1).1.is_dropped);
    assert!(pass_from(&mut machine, &send(3000, 100), 1).1.is_dropped, "no credits");
    let credits = |phv: Phv| {
        phv.with(KIND, kind::SYNC).with(TARGET, transmit::sync::CREDITS).with(CONNECTION, 5)
    };
    machine.pass(Gress::Egress, &mut credits(Phv::default()).with(LENGTH, 5000));
    assert!(pass_from(&mut machine, &send(3500, 1000), 1).1.is_dropped, "beyond the peer's window");
    // An acknowledgement makes room, and counts.
    let (phv, _) = pass(&mut machine, &frame(1000, 10_000, 0, |_| ()));
    assert_eq!(phv.get(ACKED), 1000);
    assert!(!pass_from(&mut machine, &send(3500, 1000), 1).1.is_dropped);
    assert!(pass_from(&mut machine, &send(0, 500), 1).1.is_dropped, "acknowledged already");
    for foreign in [
        host(kind::TRANSMIT, 0, 4, 5, [3500, 100]),
        host(kind::TRANSMIT, 0, 3, 6, [3500, 100]),
        host(kind::RECEIVE, 0, 3, 5, [3500, 100]),
        host(kind::PSEUDO, 0, 3, 5, [3500, 100]),
        host(0, 0, 3, 5, [3500, 100]),
        host(kind::SYNC, transmit::sync::CREDITS, 3, 5, [0, 100]),
        host(kind::SYNC, transmit::sync::STATISTICS, 3, 5, [0, 100]),
    ] {
        let before = machine.state.clone();
        assert!(pass_from(&mut machine, &foreign, 1).1.is_dropped);
        assert_eq!(machine.state, before);
    }
    // What a host may send, from the wire; and a segment, from a host.
    let before = machine.state.clone();
    assert!(pass_from(&mut machine, &send(3500, 100), 0).1.is_dropped);
    assert!(pass_from(&mut machine, &frame(1000, 10_000, 10, |_| ()), 1).1.is_dropped);
    assert_eq!(machine.state, before);
    let room = host(kind::SYNC, transmit::sync::ROOM, 3, 5, [0, 100]);
    pass_from(&mut machine, &room, 1);
    assert_eq!(reassembly(&LAMINAR, &machine.state, 5), [1000, 10_100, 0, 0]);
}

#[test]
fn third_duplicate_acknowledgement_asks_for_a_retransmission_once() {
    let mut machine = machine();
    pass_from(&mut machine, &host(kind::TRANSMIT, 0, 3, 5, [0, 1000]), 1);
    let with_window = |window| frame(1000, 9000, 0, |tcp| tcp.window_size = window);
    // Updates of the window, and answers to probes of a closed one, are no duplicates.
    for window in [40, 50, 60, 0, 0, 0, 0, 50] {
        assert_eq!(pass(&mut machine, &with_window(window)).1.digest, 0);
    }
    let digests: Vec<_> = (0..5).map(|_| pass(&mut machine, &with_window(50)).1.digest).collect();
    assert_eq!(digests, [0, 0, DIGEST_FAST_RETRANSMIT, 0, 0]);
    assert_eq!(machine.state.read(FAST_RETRANSMITS, 5), Some([1, 0]));
    assert_eq!(machine.state.read(TX_CREDITS, 5), Some([0, 0]), "until the control plane knows");
    // Nor are acknowledgements while nothing is outstanding.
    pass(&mut machine, &frame(1000, 10_000, 0, |tcp| tcp.window_size = 50));
    let idle = frame(1000, 10_000, 0, |tcp| tcp.window_size = 50);
    assert!((0..5).all(|_| pass(&mut machine, &idle).1.digest == 0));
}

#[test]
fn no_order_of_packets_breaks_transmission() {
    for first in [0, 28, 13] {
        let explored = transmit_side::explore(
            &LAMINAR,
            transmit_side::Settings { first, bytes: 4, ..transmit_side::Settings::default() },
        );
        assert_eq!(explored.counterexample, None);
        assert_eq!(explored.uncovered, [""; 0]);
    }
}

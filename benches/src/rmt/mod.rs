//! `wave bench rmt`: Laminar's egress on the match-action machine, against the same logic written by hand.
//!
//! Three rows pass the same packets: the interpreter, the pipeline that the compiler has specialised, and [`hand`]. A row gets a
//! packet as the ingress hands it over, and returns what leaves it; parsing, lookup of the connection and input/output
//! are outside. Pseudo segments enter the egress again and count as packets. Each chunk starts from the same registers.
//!
//! First all rows pass random packets, with fields of any bits, and must agree on outcomes and registers. Two more rows are whole data paths:
//! [`engines`].

mod engines;
mod hand;
mod load;

use std::hint::black_box;
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde_json::{Map, Value, json};
use wave_compare::{PerRound, balanced_order};
use wave_experiments::measure::pin;
use wave_process::cpus;
use wave_rmt::{Gress, Interpreter, Phv, Specialised, State, Verdict};
use wave_tcp::laminar::fields as field;
use wave_tcp::laminar::{LAMINAR, Laminar};
use wave_terminal::Progress;

use crate::SEED;
use crate::bench::Better::Lower;
use crate::bench::{Bench, Figure, without_arguments};
use hand::{Connection, Hand, Outcome, Packet};

pub static BENCH: Bench = Bench {
    name: "rmt",
    about: "Laminar's pipeline on the match-action machine, against the same logic written by hand",
    help: "The egress of Laminar for one connection, 1,024 (1k) and 32,768 (32k) in random order: received segments in order, out of
order and repeated, acknowledgements, pseudo segments, segments to send, and what SYNC grants. Packets are in memory:
no parsing, no lookup, no input or output.

  specialised_vs_hand_*            time of the pipeline that the compiler has specialised, divided by that of
                                   hand-written Rust (lower is better; goal: at most 1.2)
  specialised_vs_flextoe_*         time of Laminar's data path for a received segment of one MSS, divided by that of FlexTOE's
                                   inline engine (goal: at most 1.2)
  interpreter_vs_specialised_*     time of the interpreter, divided by that of the specialised pipeline
                                   (goal for 1k: at most 20)
  ns_per_packet                    nanoseconds per packet, of each row and number of connections
  ns_per_segment                   nanoseconds per received segment, of each data path and number of connections
  packets_compared                 random packets that all rows have passed alike, before the measurement

Examples:
  wave bench rmt
  wave bench rmt --json | jq '.specialised_vs_hand_1k, .ns_per_packet'

Exit codes: 0 measured; 3 this machine cannot run the bench, or the rows disagree (the message says why).",
    figures: &[
        Figure::of("specialised_vs_hand_1").measured("Laminar's egress, specialised by the compiler / written by hand, one connection"),
        Figure::of("specialised_vs_hand_1k").measured("the same, 1,024 connections"),
        Figure::of("specialised_vs_hand_32k").measured("the same, 32,768 connections"),
        Figure::of("specialised_vs_flextoe_1").measured("Laminar's data path / FlexTOE's inline engine, a received segment of one MSS, one connection"),
        Figure::of("specialised_vs_flextoe_1k").measured("the same, 1,024 connections"),
        Figure::of("specialised_vs_flextoe_32k").measured("the same, 32,768 connections"),
        Figure::of("interpreter_vs_specialised_1k").measured("the same, 1,024 connections: interpreted / specialised"),
        Figure::of("ns_per_packet.specialised_1.p50").compared(Lower),
        Figure::of("ns_per_packet.specialised_1k.p50").compared(Lower).measured("a packet through Laminar's egress, specialised, 1,024 connections, ns"),
        Figure::of("ns_per_packet.specialised_32k.p50").compared(Lower),
        Figure::of("ns_per_packet.interpreter_1k.p50").compared(Lower),
        Figure::peer("ns_per_packet.hand_1k.p50").compared(Lower),
    ],
    short: &[],
    has_two_cpus: false,
    arguments: without_arguments,
    run: |_, quiet| rmt(quiet),
};

/// Numbers of connections, with their names in figures.
const LOADS: [(u32, &str); 3] = [(1, "1"), (1024, "1k"), (32_768, "32k")];
/// Packets of a load, without pseudo segments: four for each of the most connections.
const PACKETS: usize = 131_072;
/// The rows' names in figures.
const ROWS: [&str; 3] = ["interpreter", "specialised", "hand"];
/// Times that a chunk passes the load, of each row: the interpreter takes long enough with one.
const REPEATS: [usize; 3] = [1, 6, 6];
const ROUNDS: u64 = 25;
const WARM_UP: u64 = 1;
/// Random packets that all rows pass before the measurement.
const COMPARED: usize = 2_000_000;

/// A row: a machine with Laminar's registers.
trait Machine: Clone {
    /// Passes a packet through the egress.
    fn process(&mut self, packet: &Packet) -> Outcome;
    /// Writes the registers of a connection.
    fn write(&mut self, connection: u16, registers: &Connection);
    /// Reads the registers of a connection.
    fn read(&self, connection: u16) -> Connection;
}

// Without inlining, the rows' code does not depend on the code around it.

impl Machine for Interpreter<'_> {
    #[inline(never)]
    fn process(&mut self, packet: &Packet) -> Outcome {
        let mut phv = parsed(packet);
        let verdict = self.pass(Gress::Egress, &mut phv);
        outcome(verdict, &phv)
    }

    fn write(&mut self, connection: u16, registers: &Connection) {
        write(&mut self.state, connection, registers);
    }

    fn read(&self, connection: u16) -> Connection {
        read(&self.state, connection)
    }
}

impl Machine for Specialised<Laminar> {
    #[inline(never)]
    fn process(&mut self, packet: &Packet) -> Outcome {
        let mut phv = parsed(packet);
        let verdict = self.pass(Gress::Egress, &mut phv);
        outcome(verdict, &phv)
    }

    fn write(&mut self, connection: u16, registers: &Connection) {
        write(&mut self.state, connection, registers);
    }

    fn read(&self, connection: u16) -> Connection {
        read(&self.state, connection)
    }
}

impl Machine for Hand {
    #[inline(never)]
    fn process(&mut self, packet: &Packet) -> Outcome {
        self.egress(packet)
    }

    fn write(&mut self, connection: u16, registers: &Connection) {
        self.connections[usize::from(connection)] = *registers;
    }

    fn read(&self, connection: u16) -> Connection {
        self.connections[usize::from(connection)]
    }
}

/// The fields of a packet.
#[inline(always)]
fn parsed(packet: &Packet) -> Phv {
    let mut phv = Phv::default();
    phv.set(field::KIND, packet.kind.into());
    phv.set(field::CONNECTION, packet.connection.into());
    phv.set(field::CONTEXT, packet.context.into());
    phv.set(field::SEQ, packet.seq);
    phv.set(field::LENGTH, packet.length);
    phv.set(field::END, packet.end);
    phv.set(field::HAS_PAYLOAD, packet.has_payload.into());
    phv.set(field::ACK, packet.ack);
    phv.set(field::BOUND, packet.bound);
    phv.set(field::NEWEST, packet.newest);
    phv.set(field::WINDOW, packet.window);
    phv.set(field::FLAGS, if packet.is_marked == 1 { 0x40 } else { 0 });
    phv.set(field::TARGET, packet.target.into());
    phv
}

/// What leaves the egress, of the fields.
#[inline(always)]
fn outcome(verdict: Verdict, phv: &Phv) -> Outcome {
    Outcome {
        class: phv.get(field::CLASS) as u8,
        is_placed: phv.get(field::IS_PLACED) == 1,
        is_dropped: verdict.is_dropped,
        mirror: verdict.mirror as u8,
        digest: verdict.digest as u8,
        dupacks: phv.get(field::DUPACKS) as u8,
        old: phv.get(field::OLD),
        start: phv.get(field::START),
        copy: phv.get(field::COPY),
        next: phv.get(field::NEXT),
        landed: phv.get(field::LANDED),
        avail: phv.get(field::AVAIL),
        tail: phv.get(field::TAIL),
        head: phv.get(field::HEAD),
        merged: phv.get(field::MERGED),
        merge_end: phv.get(field::MERGE_END),
        psn: phv.get(field::PSN),
        distance: phv.get(field::DISTANCE),
        remote: phv.get(field::REMOTE),
        length: phv.get(field::LENGTH),
    }
}

fn write(state: &mut State, connection: u16, of: &Connection) {
    for (register, value) in [
        (field::RX_LANDED, [of.landed, of.landed_edge]),
        (field::RX_WINDOW, [of.next, of.edge]),
        (field::RX_OOO_TAIL, [of.tail, 0]),
        (field::RX_OOO_HEAD, [of.head, 0]),
        (field::TX_WINDOW, [of.una, of.sent]),
        (field::TX_CREDITS, [of.credits, 0]),
        (field::TX_REMOTE_AVAIL, [of.remote_avail, 0]),
        (field::ACKED_BYTES, [of.acked_bytes, 0]),
        (field::MARKED_BYTES, [of.marked_bytes, 0]),
        (field::TX_DUPACKS, [of.dupacks.into(), 0]),
        (field::FAST_RETRANSMITS, [of.fast_retransmits.into(), 0]),
    ] {
        state.write(register, connection.into(), value).expect("the connection exists");
    }
}

fn read(state: &State, connection: u16) -> Connection {
    let pair = |register| state.read(register, connection.into()).expect("the connection exists");
    let word = |register| pair(register)[0];
    let [next, edge] = pair(field::RX_WINDOW);
    let [landed, landed_edge] = pair(field::RX_LANDED);
    let [una, sent] = pair(field::TX_WINDOW);
    Connection {
        landed,
        landed_edge,
        next,
        edge,
        tail: word(field::RX_OOO_TAIL),
        head: word(field::RX_OOO_HEAD),
        una,
        sent,
        credits: word(field::TX_CREDITS),
        remote_avail: word(field::TX_REMOTE_AVAIL),
        acked_bytes: word(field::ACKED_BYTES),
        marked_bytes: word(field::MARKED_BYTES),
        dupacks: word(field::TX_DUPACKS) as u8,
        fast_retransmits: word(field::FAST_RETRANSMITS) as u8,
    }
}

/// Passes random packets through all rows. Outcomes and registers must be the same.
fn compare(packets: usize) -> Result<(), String> {
    const CONNECTIONS: u16 = 5;
    let mut random = Pcg64Mcg::seed_from_u64(SEED);
    let mut interpreter = Interpreter::new(&LAMINAR);
    let mut specialised = Specialised::<Laminar>::default();
    let mut hand = Hand::default();
    let mut waiting = None;
    for number in 0..packets {
        if number % 64 == 0 {
            let connection = random.random_range(0..CONNECTIONS);
            let registers = load::registers(&mut random);
            interpreter.write(connection, &registers);
            specialised.write(connection, &registers);
            hand.write(connection, &registers);
        }
        let packet = match waiting.take() {
            Some(pseudo) => pseudo,
            None => load::random(&hand, CONNECTIONS.into(), &mut random),
        };
        let outcome = hand.process(&packet);
        let registers = hand.read(packet.connection);
        for (row, theirs, their_registers) in [
            ("interpreter", interpreter.process(&packet), interpreter.read(packet.connection)),
            ("specialised", specialised.process(&packet), specialised.read(packet.connection)),
        ] {
            if (theirs, their_registers) != (outcome, registers) {
                return Err(format!(
                    "packet {number}, {packet:?}: {row} has {theirs:?} and {their_registers:?}, hand {outcome:?} and {registers:?}"
                ));
            }
        }
        if random.random() {
            waiting = load::pseudo(&packet, &outcome);
        }
    }
    let are_equal = interpreter.state == specialised.state;
    are_equal.then_some(()).ok_or_else(|| "the registers of the pipeline differ".to_owned())
}

/// A load: a machine of each row with the same registers, and packets.
struct Load {
    interpreter: Interpreter<'static>,
    specialised: Specialised<Laminar>,
    hand: Hand,
    packets: Vec<Packet>,
}

impl Load {
    fn new(connections: u32, packets: usize) -> Load {
        let mut random = Pcg64Mcg::seed_from_u64(SEED);
        let hand = load::start(connections, &mut random);
        let packets = load::packets(&hand, connections, packets, &mut random);
        let mut interpreter = Interpreter::new(&LAMINAR);
        let mut specialised = Specialised::default();
        for (connection, registers) in (0..).zip(&hand.connections[..connections as usize]) {
            interpreter.write(connection, registers);
            specialised.write(connection, registers);
        }
        Load { interpreter, specialised, hand, packets }
    }

    /// Nanoseconds per packet of a row.
    fn chunk(&self, row: usize) -> f64 {
        match row {
            0 => chunk(&self.interpreter, &self.packets, REPEATS[0]),
            1 => chunk(&self.specialised, &self.packets, REPEATS[1]),
            _ => chunk(&self.hand, &self.packets, REPEATS[2]),
        }
    }
}

/// Passes a load `repeats` times, each time from the same registers. Returns nanoseconds per packet.
fn chunk(start: &impl Machine, packets: &[Packet], repeats: usize) -> f64 {
    let mut took = Duration::ZERO;
    let mut passes = 0;
    for _ in 0..repeats {
        let mut machine = start.clone();
        let began = Instant::now();
        for packet in packets {
            let outcome = machine.process(packet);
            passes += 1;
            if let Some(pseudo) = load::pseudo(packet, &outcome) {
                black_box(machine.process(&pseudo));
                passes += 1;
            }
            black_box(outcome);
        }
        took += began.elapsed();
    }
    took.as_nanos() as f64 / f64::from(passes)
}

fn rmt(quiet: bool) -> Result<Value, String> {
    pin(cpus::two()?[0])?;
    let progress = Progress::new(1 + 2 * (WARM_UP + ROUNDS), quiet);
    progress.begin(&format!("{COMPARED} random packets through all rows"));
    compare(COMPARED)?;
    let loads = LOADS.map(|(connections, _)| Load::new(connections, PACKETS));
    progress.end();
    let mut measured = [const { [const { Vec::new() }; ROWS.len()] }; LOADS.len()];
    for round in 0..WARM_UP + ROUNDS {
        progress.begin(&format!("round {} of {}", round + 1, WARM_UP + ROUNDS));
        for (load, rows) in loads.iter().zip(&mut measured) {
            for row in balanced_order(SEED, round, ROWS.len()) {
                let ns = load.chunk(row);
                if round >= WARM_UP {
                    rows[row].push(ns);
                }
            }
        }
        progress.end();
    }
    let frames = LOADS.map(|(connections, _)| engines::Frames::new(connections));
    let mut segments = [const { [const { Vec::new() }; engines::KINDS.len()] }; LOADS.len()];
    for round in 0..WARM_UP + ROUNDS {
        progress.begin(&format!("data paths, round {} of {}", round + 1, WARM_UP + ROUNDS));
        for (frames, rows) in frames.iter().zip(&mut segments) {
            let mut sent = [0; engines::KINDS.len()];
            for row in balanced_order(SEED, round, engines::KINDS.len()) {
                let ns;
                (ns, sent[row]) = frames.chunk(engines::KINDS[row])?;
                if round >= WARM_UP {
                    rows[row].push(ns);
                }
            }
            if sent[0] != sent[1] {
                return Err(format!("the data paths sent {sent:?} acknowledgements"));
            }
        }
        progress.end();
    }
    let mut result = json!({
        "bench": "rmt",
        "peer": "the same logic as hand-written Rust",
        "rounds": ROUNDS,
        "packets_compared": COMPARED,
    });
    let mut times = Map::new();
    for ((_, load), rows) in LOADS.iter().zip(measured) {
        let rows = rows.map(PerRound::from_iter);
        let [interpreter, specialised, hand] = &rows;
        result[format!("specialised_vs_hand_{load}")] = specialised.over(hand).estimate();
        result[format!("interpreter_vs_specialised_{load}")] =
            interpreter.over(specialised).estimate();
        let of_rows = ROWS.iter().zip(&rows);
        times.extend(of_rows.map(|(name, row)| (format!("{name}_{load}"), row.spread())));
    }
    result["ns_per_packet"] = times.into();
    let mut times = Map::new();
    for ((_, load), rows) in LOADS.iter().zip(segments) {
        let rows = rows.map(PerRound::from_iter);
        result[format!("specialised_vs_flextoe_{load}")] = rows[1].over(&rows[0]).estimate();
        let of_rows = engines::KINDS.iter().zip(&rows);
        times.extend(of_rows.map(|(kind, row)| (format!("{}_{load}", kind.name()), row.spread())));
    }
    result["ns_per_segment"] = times.into();
    Ok(result)
}

#[cfg(test)]
mod tests {
    #[test]
    fn data_paths_send_the_same_acknowledgements() {
        for connections in [1, 300] {
            let frames = super::engines::Frames::new(connections);
            let sent = super::engines::KINDS.map(|kind| frames.chunk(kind).unwrap().1);
            assert!(sent[0] > 1_000 && sent[0] == sent[1], "{connections}: {sent:?}");
        }
    }

    #[test]
    fn rows_agree_on_random_packets() {
        super::compare(200_000).unwrap();
    }
}

//! Two data paths and a hostile wire: every byte written is read, in order, whatever is lost.

mod side;

use std::net::SocketAddr;

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg32;
use side::{Engine, Frame, Side};
use wave_core::clock::Nanos;
use wave_tcp::datapath::{
    Echo, EcnState, Established, Fin, Limits, Settings, Statistics, Timestamps, Tuple,
};
use wave_tcp::seq::Seq;
use wave_tcp_testbed::{By, Runs, Socket};

const BASES: [Seq; 2] = [Seq(u32::MAX - 5_000), Seq(77)];
const MSS: u16 = 536;
/// Rate of a paced flow, in bytes per second.
const RATE: u64 = 1_000_000;
/// Length of headers with timestamps, in bytes.
const HEADERS: usize = 14 + 20 + 32;

fn engine(runs: Runs, super_bytes: u32, by: By) -> Engine {
    let settings = Settings { mac: [2; 6], super_bytes, flows: 4, key: (1, 2) };
    runs.datapath(settings, by)
}

fn established(side: usize, ring_bytes: u32, scale: u8, sack_permitted: bool) -> Established {
    let ends = [([10, 0, 0, 1], 4000), ([10, 0, 0, 2], 80)].map(SocketAddr::from);
    let tuple = Tuple { local: ends[side], remote: ends[1 - side] };
    let bases = [BASES[side], BASES[1 - side]];
    let mut state = wave_tcp_testbed::established(tuple, bases, ring_bytes);
    (state.sending.mss, state.sending.scale, state.receiving.scale) = (MSS, scale, scale);
    Established {
        timestamps: Some(Timestamps { recent: 0, offset: side as u32 * 1000 }),
        sack_permitted,
        ecn: Some(EcnState { echo: Echo::Exact, is_echoing: false, is_capable: true }),
        limits: Limits { window_bytes: 10 * u32::from(MSS), ..Limits::default() },
        ..state
    }
}

/// Frames in flight, by their arrival times.
#[derive(Default)]
struct Wire(Vec<(Nanos, Frame)>);

impl Wire {
    fn send(&mut self, now: Nanos, frames: Vec<Frame>, rng: &mut Pcg32, is_nasty: bool) {
        for frame in frames {
            let delay = |rng: &mut Pcg32| {
                Nanos::from_micros(100 + if is_nasty { rng.random_range(0..2_000) } else { 0 })
            };
            if is_nasty && rng.random_bool(0.03) {
                continue;
            }
            if is_nasty && rng.random_bool(0.02) {
                let at = now + delay(rng);
                self.0.push((at, frame.clone()));
            }
            let at = now + delay(rng);
            self.0.push((at, frame));
        }
    }

    fn arrived(&mut self, now: Nanos) -> Vec<Frame> {
        let mut there: Vec<_> = self.0.extract_if(.., |(at, _)| *at <= now).collect();
        there.sort_by_key(|(at, _)| *at);
        there.into_iter().map(|(_, frame)| frame).collect()
    }
}

struct Course {
    timeouts: u64,
    fast_retransmits: u64,
    packets: u64,
    update: u64,
}

/// Both sides send `total` bytes, read at random times, and close; everything must arrive.
#[expect(clippy::too_many_arguments, reason = "every test sets each of them")]
fn exchange(
    runs: Runs,
    seed: u64,
    ring_bytes: u32,
    scale: u8,
    super_bytes: u32,
    total: usize,
    is_nasty: bool,
    moves: f64,
    by: [By; 2],
) -> Course {
    let mut rng = Pcg32::seed_from_u64(seed);
    let mut sides = [0, 1].map(|side| {
        let sack_permitted = by == [By::Sack; 2] || moves > 0.0;
        let mut established = established(side, ring_bytes, scale, sack_permitted);
        if moves > 0.0 && seed.is_multiple_of(2) {
            established.limits.bytes_per_second = Some(RATE);
        }
        Side::new(engine(runs, super_bytes, by[side]), &established, 2 * ring_bytes as usize)
    });
    let streams: [Vec<u8>; 2] = [0, 1].map(|_| (0..total).map(|_| rng.random()).collect());
    let mut wires = [Wire::default(), Wire::default()];
    let (mut packets, mut update) = (0, 0);
    let mut now = Nanos(0);
    let is_over = |side: &Side| {
        let Socket { is_finished, peer_is_finished, read, .. } = &side.socket;
        let is_acknowledged = |last: Statistics| last.fin_sent == Fin::Acknowledged;
        let has_all = *is_finished && *peer_is_finished && read.len() == total;
        has_all && side.statistics.is_some_and(is_acknowledged)
    };
    while !sides.iter().all(is_over) {
        now = now + Nanos::from_micros(50);
        assert!(
            now < Nanos::from_millis(3_600_000),
            "seed {seed}: no more progress: {:?}",
            sides.each_ref().map(|side| (side.socket.update(), side.statistics))
        );
        for at in 0..2 {
            let side = &mut sides[at];
            if rng.random_bool(0.3) {
                let from = side.socket.wrote.len();
                let some = rng.random_range(0..=3 * usize::from(MSS)).min(total - from);
                side.write(&streams[at][from..from + some]);
                side.read(rng.random_range(0..4_000));
                side.socket.is_finished = side.socket.wrote.len() == total;
                side.report_progress(now);
            }
            let frames = wires[1 - at].arrived(now);
            side.take(now, frames);
            let out = side.step(now, &mut rng);
            packets += out.len() as u64;
            wires[at].send(now, out, &mut rng, is_nasty);
            side.fire_timer(now);
            if rng.random_bool(moves) {
                side.engine.freeze(side.flow());
            }
            if side.engine.frozen(side.flow()) {
                let state = side.engine.export(side.flow()).unwrap();
                assert_eq!(side.engine.find(&state.tuple), None);
                let next = if rng.random_bool(0.5) { by[at] } else { by[1 - at] };
                side.engine = engine(runs, super_bytes, next);
                side.socket.flow = Some(side.engine.install(now, &state).unwrap());
                assert_eq!(side.engine.inspect(side.flow()), Some(state));
                update += 1;
            }
        }
    }
    for at in 0..2 {
        assert!(
            sides[at].socket.read == streams[1 - at],
            "seed {seed}: side {at} read bytes that differ from those written"
        );
    }
    Course {
        timeouts: sides.iter().map(|side| side.timeouts).sum(),
        fast_retransmits: sides.iter().map(|side| side.fast_retransmits).sum(),
        packets,
        update,
    }
}

const BOTH: [[By; 2]; 3] = [[By::GoBackN; 2], [By::Sack; 2], [By::Sack, By::GoBackN]];

fn a_wire_that_loses_nothing(runs: Runs) {
    for by in BOTH {
        let course = exchange(runs, 1, 1 << 16, 0, 0, 200_000, false, 0.0, by);
        assert_eq!((course.timeouts, course.fast_retransmits), (0, 0));
        // Data flows both ways at once, so most acknowledgements are sent with data.
        assert!(course.packets < 3 * (2 * 200_000 / u64::from(MSS)), "{} packets", course.packets);
    }
}

/// TAS and FlexTOE keep one interval and go back to the first lost byte.
fn a_wire_that_loses_and_repeats(runs: Runs) {
    let mut timeouts = [0; 3];
    let is_free = matches!(runs, Runs::Threads);
    // Threads are slow on few cores.
    let seeds = if is_free { 4 } else { 30 };
    for (at, by) in BOTH.into_iter().enumerate() {
        let mut fast = 0;
        for seed in 0..seeds {
            let course = exchange(runs, seed, 1 << 13, (seed % 4) as u8, 0, 60_000, true, 0.0, by);
            timeouts[at] += course.timeouts;
            fast += course.fast_retransmits;
        }
        // With threads, the events depend on the machine.
        let has_met = timeouts[at] > 0 && fast > 0;
        assert!(is_free || has_met, "{by:?}: {timeouts:?} timeouts, {fast} losses");
    }
    assert!(is_free || timeouts[1] < timeouts[0], "{timeouts:?}");
}

fn super_packets(runs: Runs) {
    let seeds = if matches!(runs, Runs::Threads) { 2 } else { 10 };
    for by in BOTH {
        for seed in 0..seeds {
            exchange(runs, seed, 1 << 15, 2, 20_000, 300_000, true, 0.0, by);
        }
    }
}

fn moves_to_another_engine(runs: Runs) {
    let (seeds, least) = if matches!(runs, Runs::Threads) { (4, 0) } else { (10, 10) };
    for by in BOTH {
        let mut update = 0;
        for seed in 0..seeds {
            update += exchange(runs, seed, 1 << 13, 2, 0, 60_000, true, 0.002, by).update;
        }
        assert!(update > least, "{by:?}: {update}");
    }
}

/// Carousel (thesis 4.3.4): over any span of time, a flow sends at most its rate, a burst, and the time that it may make up
/// for.
fn a_rate_bounds_what_is_sent(runs: Runs) {
    let mut rng = Pcg32::seed_from_u64(1);
    for super_bytes in [0, 20_000] {
        let mut sides = [0, 1].map(|side| {
            let mut established = established(side, 1 << 16, 0, true);
            established.limits =
                Limits { window_bytes: 1 << 16, bytes_per_second: Some(RATE), has_reduced: false };
            Side::new(engine(runs, super_bytes, By::Sack), &established, 1 << 17)
        });
        let mut wires = [Wire::default(), Wire::default()];
        let mut sent: Vec<(Nanos, u64)> = vec![(Nanos(0), 0)];
        let bytes = vec![7; 1 << 16];
        for turn in 1..=20_000 {
            let now = Nanos::from_micros(50 * turn);
            for at in 0..2 {
                let side = &mut sides[at];
                if at == 0 {
                    side.write(&bytes);
                }
                side.read(usize::MAX);
                side.report_progress(now);
                let frames = wires[1 - at].arrived(now);
                side.take(now, frames);
                let out = side.step(now, &mut rng);
                if at == 0 {
                    let new: usize = out.iter().map(|packet| packet.frame.len() - HEADERS).sum();
                    let before = sent.last().map_or(0, |(_, bytes)| *bytes);
                    sent.push((now, before + new as u64));
                }
                wires[at].send(now, out, &mut rng, false);
                side.fire_timer(now);
            }
        }
        // A burst is a millisecond of the rate or two segments, and a second one may follow to make up for a lost millisecond.
        let slack = 2 * (RATE / 1_000).max(2 * u64::from(MSS));
        for (at, (from, before)) in sent.iter().enumerate().step_by(97) {
            for (to, after) in &sent[at..] {
                let most = RATE * to.since(*from).0 / 1_000_000_000 + slack;
                assert!(after - before <= most, "{} bytes from {from:?} to {to:?}", after - before);
            }
        }
        let all = sent.last().unwrap().1;
        let is_free = matches!(runs, Runs::Threads);
        assert!(is_free || all > RATE * 9 / 10, "{all} bytes in a second at {RATE}");
    }
}

macro_rules! over_each_executor {
    ($($name:ident: $runs:expr,)*) => { $(
        mod $name {
            use super::Runs;

            #[test]
            fn every_byte_arrives_over_a_lossless_wire() {
                super::a_wire_that_loses_nothing($runs);
            }

            #[test]
            fn every_byte_arrives_despite_loss_duplication_and_delay() {
                super::a_wire_that_loses_and_repeats($runs);
            }

            #[test]
            fn super_packets_carry_the_same_bytes() {
                super::super_packets($runs);
            }

            #[test]
            fn a_paced_flow_stays_within_its_rate() {
                super::a_rate_bounds_what_is_sent($runs);
            }

            #[test]
            fn a_connection_in_mid_transfer_moves_to_another_engine() {
                super::moves_to_another_engine($runs);
            }
        }
    )* };
}

over_each_executor! {
    inline: Runs::Inline,
    threads: Runs::Threads,
    virtual_time: Runs::VirtualTime(3),
}

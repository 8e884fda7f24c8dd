//! DCTCP and ECN between two stacks over a network that marks: negotiation, the length of the bottleneck's queue, and the share
//! of a paced connection.

use wave_core::clock::Nanos;
use wave_tcp::congestion::Algorithm;
use wave_tcp::datapath::{Datapath, Echo};
use wave_tcp_testbed::{MINUTE, Machine, Setup, join, machines, run};
use wave_wires::Adversity;

const RING: u32 = 1 << 18;
/// Size of a packet in bytes.
const PACKET: u64 = 1_514;
/// Number of queued packets beyond which the bottleneck marks.
const MARKS_FROM: u64 = 20;
/// Rate of the bottleneck.
const BITS_PER_SECOND: u64 = 100_000_000;

/// Two connected machines, and both names of the connection.
fn connected(algorithms: [Algorithm; 2], adversity: &Adversity) -> ([Machine; 2], Nanos, u32, u32) {
    let mut both = machines(adversity, |host| Setup::with_rings(host, RING));
    for (machine, algorithm) in both.iter_mut().zip(algorithms) {
        machine.stack.set_congestion(algorithm);
    }
    join(both)
}

#[test]
fn ecn_is_used_if_the_opener_asks_and_each_side_echoes_by_its_own_algorithm() {
    use Algorithm::{Dctcp, Reno};
    for algorithms in [[Reno, Reno], [Dctcp, Reno], [Reno, Dctcp], [Dctcp, Dctcp]] {
        let (both, _, socket, peer) = connected(algorithms, &Adversity::default());
        let flows = [both[0].sockets[&socket].flow, both[1].sockets[&peer].flow];
        for at in 0..2 {
            let state = both[at].stack.data.inspect(flows[at].unwrap()).unwrap();
            let echo = match algorithms {
                [Reno, _] => None,
                _ if algorithms[at] == Dctcp => Some(Echo::Exact),
                _ => Some(Echo::UntilReduced),
            };
            assert_eq!(state.ecn.map(|ecn| ecn.echo), echo, "{algorithms:?}");
        }
    }
}

/// Figures at the bottleneck of a stream of some seconds.
#[derive(Debug)]
struct Course {
    /// Packets queued, on average and at most.
    queue_mean: f64,
    queue_max: f64,
    /// Share of the bottleneck's rate.
    share: f64,
    marked: u64,
}

fn stream(algorithm: Algorithm) -> Course {
    let adversity = Adversity {
        delay_ns: 1_000_000..=1_000_000,
        rate_bits: BITS_PER_SECOND,
        ce_backlog_bytes: MARKS_FROM * PACKET,
        ..Adversity::default()
    };
    let (mut both, mut now, socket, peer) = connected([algorithm; 2], &adversity);
    let bytes = vec![7; RING as usize];
    // Slow start is over by then.
    let (begin, end) = (now + Nanos::from_millis(1_000), now + Nanos::from_millis(6_000));
    let (mut area, mut span, mut queue_max, mut last) = (0.0, 0.0, 0_f64, begin);
    let mut received_before = 0;
    run(&mut both, &mut now, MINUTE, |both, now| {
        both[0].send(now, socket, &bytes);
        both[1].receive(now, peer, usize::MAX);
        if now < begin {
            received_before = both[1].sockets[&peer].received;
            return false;
        }
        let queue = both[0].wire.backlog_bytes() as f64 / PACKET as f64;
        let took = now.since(last).0 as f64;
        (area, span, last) = (area + queue * took, span + took, now);
        queue_max = queue_max.max(queue);
        now >= end
    });
    let bits = (both[1].sockets[&peer].received - received_before) as f64 * 8.0;
    let share = bits / (span / 1e9) / BITS_PER_SECOND as f64;
    let marked = both[0].wire.fates().marked;
    Course { queue_mean: area / span, queue_max, share, marked }
}

/// RFC 8257, section 1: short queues and full links. Virtual time: the same figures on every machine.
#[test]
fn dctcp_keeps_the_queue_near_the_threshold_while_reno_fills_it() {
    let reno = stream(Algorithm::Reno);
    let dctcp = stream(Algorithm::Dctcp);
    println!("marks beyond {MARKS_FROM} packets; reno without ECN: {reno:?}; dctcp: {dctcp:?}");
    assert!(reno.marked == 0 && dctcp.marked > 0);
    assert!(dctcp.queue_mean < 1.5 * MARKS_FROM as f64 && dctcp.queue_mean > 1.0);
    assert!(reno.queue_mean > 3.0 * dctcp.queue_mean);
    assert!(dctcp.queue_max < 3.0 * MARKS_FROM as f64 && reno.queue_max > dctcp.queue_max);
    assert!(dctcp.share > 0.9 && reno.share > 0.9);
}

/// Even if every packet is marked, bytes arrive at two segments per round trip, so a peer that echoes marks forever only slows
/// down its own connection.
#[test]
fn a_network_that_marks_every_packet_does_not_stop_a_connection() {
    for algorithm in Algorithm::ALL {
        let adversity =
            Adversity { ce_mark: 1.0, delay_ns: 1_000_000..=1_000_000, ..Adversity::default() };
        let (mut both, mut now, socket, peer) =
            connected([Algorithm::Dctcp, algorithm], &adversity);
        let total = 500_000;
        run(&mut both, &mut now, MINUTE, |both, now| {
            let left = total - both[0].sockets[&socket].wrote.len();
            both[0].send(now, socket, &vec![7; left]);
            both[1].receive(now, peer, usize::MAX);
            both[1].sockets[&peer].received == total as u64
        });
    }
}

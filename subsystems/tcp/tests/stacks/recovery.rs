//! Both recovery methods between two stacks over a lossy wire: negotiation, the reaction of congestion control to a loss, and
//! throughput in virtual time.

use crate::peer::{Peer, Sends};
use wave_core::clock::Nanos;
use wave_tcp::control::SocketInfo;
use wave_tcp::datapath::Datapath;
use wave_tcp_testbed::{By, MINUTE, Machine, Setup, join, machines, run};
use wave_wires::Adversity;

const RING: u32 = 1 << 18;

/// Two connected machines, and both names of the connection.
fn connected(by: By, adversity: &Adversity) -> ([Machine; 2], Nanos, u32, u32) {
    join(machines(adversity, |host| Setup { by, ..Setup::with_rings(host, RING) }))
}

/// Writes and reads for `time`. Returns the number of bytes that arrived.
fn transfer(by: By, adversity: &Adversity, time: Nanos) -> u64 {
    let (mut both, mut now, socket, peer) = connected(by, adversity);
    let end = now + time;
    let bytes = vec![7; RING as usize];
    run(&mut both, &mut now, time + MINUTE, |both, now| {
        both[0].send(now, socket, &bytes);
        both[1].receive(now, peer, usize::MAX);
        now >= end
    });
    both[1].sockets[&peer].received
}

#[test]
fn selective_acknowledgements_are_negotiated_if_the_data_path_supports_them() {
    fn agreed(by: By) -> [Option<bool>; 2] {
        let (both, ..) = connected(by, &Adversity::default());
        both.map(|machine| {
            let mut found = None;
            machine.stack.visit_sockets(&mut |shown: &SocketInfo| {
                found = found.or(shown.established.map(|(_, state)| state.sack_permitted));
            });
            found
        })
    }
    assert_eq!(agreed(By::Sack), [Some(true); 2]);
    assert_eq!(agreed(By::GoBackN), [Some(false); 2]);
}

/// RFC 6675, section 5: the window is halved once for each loss, and does not grow until all data sent by then is acknowledged.
#[test]
fn a_loss_halves_the_window_once_until_recovery_ends() {
    let adversity = Adversity { seed: 3, loss: 0.005, ..network() };
    let (mut both, mut now, socket, peer) = connected(By::Sack, &adversity);
    let bytes = vec![7; RING as usize];
    let flow = both[0].sockets[&socket].flow.unwrap();
    let end = now + Nanos::from_millis(20_000);
    let (mut before, mut recovering, mut losses) = ((0, 0, 0, 0), None, 0);
    run(&mut both, &mut now, MINUTE, |both, now| {
        both[0].send(now, socket, &bytes);
        both[1].receive(now, peer, usize::MAX);
        let mut window = 0;
        both[0]
            .stack
            .visit_sockets(&mut |shown| window = shown.congestion.map_or(window, |it| it.0));
        let sending = both[0].stack.data.inspect(flow).unwrap().sending;
        let recoveries = both[0].counter("TCPSackRecovery");
        let timeouts = both[0].counter("TCPTimeouts");
        let (old_window, old_outstanding, old_recoveries, old_timeouts) = before;
        if timeouts > old_timeouts {
            recovering = None;
        } else if recoveries > old_recoveries {
            losses += 1;
            let most = (old_outstanding.max(old_window) / 2).max(2 * u32::from(sending.mss));
            assert!(window <= most, "{window} after {before:?}");
            recovering = Some(sending.sent);
        } else if recovering.is_some_and(|recover| sending.acknowledged < recover) {
            assert_eq!(window, old_window);
        }
        before = (window, (sending.sent - sending.acknowledged) as u32, recoveries, timeouts);
        now >= end
    });
    assert!(losses > 20, "{losses}");
}

/// 100 Mb/s, and a round trip of 4 ms.
fn network() -> Adversity {
    Adversity { delay_ns: 2_000_000..=2_000_000, rate_bits: 100_000_000, ..Adversity::default() }
}

/// The thesis' recovery falls behind Linux's under loss (Figure 4.16b). Virtual time: the same figures on every machine.
#[test]
fn gap_of_tas_and_flextoe_more_arrives_under_loss_than_by_go_back_n() {
    let time = Nanos::from_millis(5_000);
    for loss in [0.0, 0.01, 0.02] {
        let arrived = |by: &dyn Fn(&Adversity) -> u64| {
            let all = (0..5).map(|seed| by(&Adversity { seed, loss, ..network() }));
            all.sum::<u64>() / 25
        };
        let go_back_n = arrived(&|adversity| transfer(By::GoBackN, adversity, time));
        let sack = arrived(&|adversity| transfer(By::Sack, adversity, time));
        println!("{loss}: {go_back_n} bytes per second by go-back-N, {sack} by SACK");
        assert!(if loss > 0.0 { sack > go_back_n } else { sack == go_back_n });
    }
}

/// The peer reports bytes, and then expects one of them.
#[test]
fn a_peer_that_reneges_neither_keeps_the_agent_busy_nor_stops_the_retransmission_timer() {
    // MSS 1,000, selective acknowledgements.
    let mut peer = Peer::accepted_with(&[2, 4, 3, 232, 1, 1, 4, 2], 1500);
    peer.write(&[7; 1_000]);
    peer.after(5);
    peer.acknowledge(1_000);
    peer.after(5);
    peer.write(&[7; 9_000]);
    peer.after(5);
    // A byte out of order keeps the state of disorder.
    peer.send(Sends { seq: peer.seq.plus(1), data: b"x", ..peer.plain() });
    for start in [4_000, 3_000] {
        let [start, end] = [start, 5_000].map(|at| peer.ack.plus(at).0.to_be_bytes());
        let block = [&[1, 1, 5, 10], &start[..], &end[..]].concat();
        peer.send(Sends { options: &block, ..peer.plain() });
    }
    peer.acknowledge(3_500);
    peer.after(50);
    let now = peer.now;
    let next = (0..8).map(|_| peer.machine.step(now)).last().flatten();
    assert!(next.is_some_and(|at| at > now), "{next:?}");
    let seen = peer.after(3_000);
    assert!(seen.iter().any(|seen| seen.segment.seq == peer.ack), "it is retransmitted");
}

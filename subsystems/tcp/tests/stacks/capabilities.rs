//! Data paths that can do less: handshakes neither offer nor accept what one of them lacks, and the connections work without it.

use std::net::SocketAddr;

use wave_core::clock::Nanos;
use wave_tcp::capabilities::Capabilities;
use wave_tcp::congestion::Algorithm;
use wave_tcp::context::Reason;
use wave_tcp::control::{Bounds, RestoreError, State};
use wave_tcp::datapath::{Datapath, Echo, Established};
use wave_tcp_testbed::{BOUNDS, By, Data, Limited, MINUTE, Machine, Runs, Setup, calm, join, run};
use wave_wires::{Adversity, Frame, Memory};

/// So large that its window needs a scale.
const RING: u32 = 1 << 18;
const BYTES: usize = 400_000;

/// Everything, and what remains without each capability in turn.
fn all_and_each_lacking() -> Vec<Capabilities> {
    let all = Capabilities::ALL;
    vec![
        all,
        Capabilities { timestamps: false, ..all },
        Capabilities { sack: false, ..all },
        Capabilities { window_scale: false, ..all },
        Capabilities { echoes: &[], ..all },
        Capabilities { echoes: &[Echo::UntilReduced], ..all },
        Capabilities {
            timestamps: false,
            sack: false,
            window_scale: false,
            echoes: &[],
            ipv6: false,
        },
    ]
}

fn limited(setup: Setup, wire: Memory, capabilities: Capabilities) -> Machine {
    let make = move |settings, by| -> Data<Frame> {
        Box::new(Limited { data: Runs::Inline.datapath(settings, by), capabilities })
    };
    let mut machine = Machine::over(setup, wire, &make);
    machine.stack.set_congestion(Algorithm::Dctcp);
    machine
}

/// Two machines over a network that loses and marks some packets; the second one has these bounds.
fn machines(both: [Capabilities; 2], bounds: Bounds) -> [Machine; 2] {
    let adversity = Adversity { seed: 5, loss: 0.005, ce_mark: 0.01, ..calm() };
    let (one, other) = Memory::pair(&adversity);
    let setup = |host| Setup::with_rings(host, RING);
    let second = Setup { bounds, ..setup(2) };
    [limited(setup(1), one, both[0]), limited(second, other, both[1])]
}

fn state(machine: &Machine, socket: u32) -> Established {
    let flow = machine.sockets[&socket].flow.unwrap();
    machine.stack.data.inspect(flow).unwrap()
}

/// Both sides write, and read all of the other's bytes.
fn exchange(both: &mut [Machine; 2], now: &mut Nanos, sockets: [u32; 2]) {
    let bytes: Vec<u8> = (0..BYTES).map(|at| (at * 7 / 5) as u8).collect();
    let mut wrote = [0; 2];
    run(both, now, Nanos(10 * MINUTE.0), |both, now| {
        for at in 0..2 {
            wrote[at] += both[at].send(now, sockets[at], &bytes[wrote[at]..]);
            both[at].receive(now, sockets[at], usize::MAX);
        }
        (0..2).all(|at| both[at].sockets[&sockets[at]].read.len() >= BYTES)
    });
    assert!((0..2).all(|at| both[at].sockets[&sockets[at]].read == bytes));
}

fn check(both: [Capabilities; 2], bounds: Bounds) {
    let (mut machines, mut now, socket, peer) = join(machines(both, bounds));
    let has = |of: fn(&Capabilities) -> bool| both.iter().all(of);
    let is_cookie = machines[1].stack.counters().cookies_received > 0;
    assert_eq!(is_cookie, bounds.handshakes != BOUNDS.handshakes);
    let has_ecn = has(|side| side.echoes.contains(&Echo::Exact));
    for (machine, socket) in machines.iter().zip([socket, peer]) {
        let state = state(machine, socket);
        // A cookie without timestamps has no place for other options.
        let has_place = has(|side| side.timestamps) || !is_cookie;
        assert_eq!(state.timestamps.is_some(), has(|side| side.timestamps), "{both:?}");
        assert_eq!(state.sack_permitted, has(|side| side.sack) && has_place, "{both:?}");
        let scales = (state.sending.scale, state.receiving.scale);
        let is_scaled = has(|side| side.window_scale) && has_place;
        assert_eq!(scales, if is_scaled { (3, 3) } else { (0, 0) }, "{both:?}");
        assert_eq!(state.ecn.is_some(), has_ecn && has_place, "{both:?}");
    }
    exchange(&mut machines, &mut now, [socket, peer]);
}

#[test]
fn connections_work_without_what_a_data_path_of_either_side_lacks() {
    for lacking in all_and_each_lacking() {
        for both in [[lacking, Capabilities::ALL], [Capabilities::ALL, lacking], [lacking; 2]] {
            check(both, BOUNDS);
        }
    }
}

#[test]
fn cookies_offer_only_what_the_data_path_has() {
    for lacking in all_and_each_lacking() {
        // Each handshake of the second machine is a cookie.
        let bounds = Bounds { handshakes: 0, ..BOUNDS };
        for both in [[Capabilities::ALL, lacking], [lacking; 2]] {
            check(both, bounds);
        }
    }
}

#[test]
fn a_data_path_without_ipv6_refuses_it_in_both_roles_and_serves_ipv4() {
    let lacking = Capabilities { ipv6: false, ..Capabilities::ALL };
    let mut both = machines([Capabilities::ALL, lacking], BOUNDS);
    let mut now = Nanos(0);
    for machine in &mut both {
        machine.listen_at(now, "[::]:80".parse().unwrap(), 2);
    }
    let failure = |both: &mut [Machine; 2], now: &mut Nanos, at: usize, remote: &str| {
        let remote: SocketAddr = remote.parse().unwrap();
        let socket = both[at].connect(*now, remote);
        run(both, now, MINUTE, |both, _| both[at].sockets[&socket].is_over);
        both[at].sockets[&socket].failed
    };
    assert_eq!(failure(&mut both, &mut now, 0, "[fd77::2]:80"), Some(Reason::Refused));
    assert_eq!(failure(&mut both, &mut now, 1, "[fd77::1]:80"), Some(Reason::Unreachable));
    for at in 0..2 {
        let remote: SocketAddr = ["10.0.0.2:80", "10.0.0.1:80"][at].parse().unwrap();
        let socket = both[at].connect(now, remote);
        run(&mut both, &mut now, MINUTE, |both, _| both[at].sockets[&socket].flow.is_some());
    }
}

#[test]
fn a_successor_takes_no_connection_that_its_data_path_cannot_serve() {
    let all = Capabilities::ALL;
    let missing = |what| Err(RestoreError::Missing(what));
    let successors = [
        (all, Ok(())),
        // A side that has agreed on them may send none.
        (Capabilities { sack: false, ..all }, Ok(())),
        (Capabilities { timestamps: false, ..all }, missing("timestamps")),
        (Capabilities { window_scale: false, ..all }, missing("window scales")),
        (
            Capabilities { echoes: &[Echo::UntilReduced], ..all },
            missing("echoes of congestion marks"),
        ),
    ];
    for (capabilities, expected) in successors {
        for is_established in [true, false] {
            let mut both = machines([all; 2], BOUNDS);
            let mut now = Nanos(0);
            both[1].listen(now, 80, 1);
            let socket = both[0].connect(now, SocketAddr::from(([10, 0, 0, 2], 80)));
            run(&mut both, &mut now, MINUTE, |both, _| match is_established {
                true => !both[1].accepted.is_empty() && both[0].sockets[&socket].flow.is_some(),
                false => both[1].states().contains(&State::SynReceived),
            });
            let make = |settings, _: By| -> Data<Frame> {
                let by = if capabilities.sack { By::Sack } else { By::GoBackN };
                let data = Runs::Inline.datapath(settings, by);
                Box::new(Limited {
                    data,
                    capabilities: Capabilities { sack: true, ..capabilities },
                })
            };
            for machine in &mut both {
                assert_eq!(machine.try_replace(now, &make), expected, "{capabilities:?}");
            }
            if expected.is_ok() {
                run(&mut both, &mut now, MINUTE, |both, _| {
                    !both[1].accepted.is_empty() && both[0].sockets[&socket].flow.is_some()
                });
                let peer = both[1].accepted.pop_front().unwrap();
                exchange(&mut both, &mut now, [socket, peer]);
            }
        }
    }
}

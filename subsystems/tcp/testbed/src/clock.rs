//! Two machines, the network between them, and their virtual clock.

use std::net::SocketAddr;

use wave_core::clock::Nanos;
use wave_tcp::datapath::Datapath;
use wave_wires::{Adversity, Memory};

use crate::machine::{Machine, Setup};

pub const MS: Nanos = Nanos::from_millis(1);
pub const SECOND: Nanos = Nanos::from_millis(1_000);
pub const MINUTE: Nanos = Nanos::from_millis(60_000);
/// Minimum time between two stops of the clock.
pub const TICK: Nanos = Nanos::from_micros(20);
/// Maximum time between two stops: the programs act now and then, too.
const STOP_WITHIN: Nanos = Nanos(5 * MS.0);

/// A network with a delay and no faults.
pub fn calm() -> Adversity {
    Adversity { delay_ns: 50_000..=50_000, ..Adversity::default() }
}

/// Hosts 1 and 2 of a network.
pub fn machines(adversity: &Adversity, setup: impl Fn(u8) -> Setup) -> [Machine; 2] {
    let (one, other) = Memory::pair(adversity);
    [(1, one), (2, other)].map(|(host, wire)| Machine::new(setup(host), wire))
}

/// Runs both machines until `turn` returns true; panics if it does not within `most`. Time jumps to the next event.
pub fn run(
    machines: &mut [Machine; 2],
    now: &mut Nanos,
    most: Nanos,
    mut turn: impl FnMut(&mut [Machine; 2], Nanos) -> bool,
) {
    let end = *now + most;
    while *now < end {
        machines[0].wire.advance(now.0);
        let next = machines.each_mut().into_iter().filter_map(|machine| machine.step(*now)).min();
        if turn(machines, *now) {
            return;
        }
        let due = machines[0].wire.due().map_or(end, Nanos);
        *now = next.unwrap_or(end).min(end).min(due).min(*now + STOP_WITHIN).max(*now + TICK);
    }
    for machine in machines.iter() {
        machine.stack.visit_sockets(&mut |shown| eprintln!("{shown:?}"));
        machine
            .stack
            .data
            .visit_counters(&mut |counter, count| eprint!("{} {count} ", counter.name));
        eprintln!("\n{:?}", machine.stack.counters());
    }
    panic!("the condition was not met within {most:?}");
}

/// Connects the first machine to port 80 of the second. Returns both, the time, and both names of the connection.
pub fn join(mut both: [Machine; 2]) -> ([Machine; 2], Nanos, u32, u32) {
    let mut now = Nanos(0);
    both[1].listen(now, 80, 1);
    let socket = both[0].connect(now, SocketAddr::from(([10, 0, 0, 2], 80)));
    run(&mut both, &mut now, MINUTE, |both, _| {
        !both[1].accepted.is_empty() && both[0].sockets[&socket].flow.is_some()
    });
    let peer = both[1].accepted.pop_front().expect("the peer has accepted the connection");
    (both, now, socket, peer)
}

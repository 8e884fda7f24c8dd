//! An agent that decides at random: threads that are not there, or elsewhere, or of another version.

use std::time::Duration;

use rand::{Rng, SeedableRng};
use wave_agent::{Attached, attach};
use wave_core::layout::{AGENT_READY, PROTOCOL_VERSION};
use wave_core::link::{Doorbell, Home, Port, Window};

use crate::processes::assignment;

/// By itself it does nothing.
#[test]
fn hostile_agent_process() {
    let Some((socket, what)) = assignment() else { return };
    run(attach(&socket).unwrap(), what == "nonsense");
}

/// Writes into every ring of decisions, for ever. `nonsense`: not even decisions.
fn run(attached: Attached, nonsense: bool) {
    let Attached { layout, port, host_bells, connection, .. } = attached;
    let nic = port.window(Home::Nic);
    nic.store(layout.agent, 0, AGENT_READY | u64::from(PROTOCOL_VERSION));
    nic.fence();
    host_bells[layout.control_vector()].ring();
    let mut random = rand_pcg::Pcg64::seed_from_u64(7);
    for round in 0u64.. {
        for (core, queue) in layout.decisions.iter().enumerate() {
            let entries = u64::from(queue.ring.entries);
            let line = queue.ring.first + (round % entries) as u32;
            // Something that it was told once, or nothing that ever was.
            let told = &layout.messages[random.random_range(0..layout.messages.len())].ring;
            let told = told.first + random.random_range(0..told.entries);
            let (subject, sequence) = match random.random_range(0..4) {
                0 => {
                    let id = random.random_range(0..12u64);
                    let generation = random.random_range(0..3u64);
                    (generation << 32 | id, random.random_range(0..40))
                }
                _ => (nic.load(told, 0), u64::from(nic.load(told, 1) as u32)),
            };
            let flags = [0, 0, 0, 0, 1, 7][random.random_range(0..6)];
            let kind = [1, 1, 1, 1, 9][random.random_range(0..5)];
            let words = if nonsense { random.random_range(4..256) } else { 3 };
            nic.store(line, 0, subject);
            nic.store(line, 1, (round + 1) << 32 | sequence);
            nic.store(line, 2, 0);
            nic.store(line, 7, (round / entries + 1) << 32 | kind << 16 | flags << 8 | words);
            let host = port.window(Home::Host);
            host.store(layout.preempt + core as u32, 0, 1 << 32 | random.random_range(0..50));
            host_bells[core].ring();
        }
        std::thread::sleep(Duration::from_micros(300));
        if connection.hung_up() {
            return;
        }
    }
}

//! Agents that decide at random, about threads that do not exist, run elsewhere or have another version; and agents
//! that write garbage into every word that they can reach.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use wave_agent::{Attached, attach};
use wave_core::clock::Nanos;
use wave_core::layout::{AGENT_READY, Layout, PROTOCOL_VERSION, QueuePlace};
use wave_core::link::{Doorbell, Home, Port, Window};
use wave_core::outcome::Code;

use crate::processes::{
    Agent, KernelLog, alone, assignment, count, finish, shell, start, wait_for, work,
};

/// Parts of a window to overwrite with garbage.
const PARTS: [&str; 9] = [
    "handshake",
    "parked cores",
    "parked agent and preemptions",
    "messages",
    "credits of messages",
    "decisions",
    "credits of decisions",
    "control queue",
    "everything",
];
/// How often each part is overwritten.
const ROUNDS: u64 = 150;

/// Body of the hostile agent's process; does nothing in an ordinary test run.
#[test]
fn hostile_agent_process() {
    let Some((socket, what)) = assignment() else { return };
    let attached = attach(&socket).unwrap();
    match what.as_str() {
        "decisions" => run(attached, false),
        "nonsense" => run(attached, true),
        part => litter(attached, part),
    }
}

/// Lines of a part, with their homes.
fn lines_of(layout: &Layout, part: &str) -> Vec<(Home, u32)> {
    let cores = u32::from(layout.config.cores);
    let ring = |place: &QueuePlace| {
        let (home, ring) = (place.home, place.ring);
        (ring.first..ring.first + ring.entries).map(move |line| (home, line)).collect::<Vec<_>>()
    };
    let credit = |place: &QueuePlace| (place.home, place.ring.credit);
    let nic = |lines: std::ops::Range<u32>| lines.map(|line| (Home::Nic, line)).collect::<Vec<_>>();
    let host =
        |lines: std::ops::Range<u32>| lines.map(|line| (Home::Host, line)).collect::<Vec<_>>();
    match part {
        "handshake" => nic(layout.header..layout.core_status),
        "parked cores" => nic(layout.core_status..layout.core_status + cores),
        "parked agent and preemptions" => host(layout.agent_parked..layout.preempt + cores),
        "messages" => layout.messages.iter().flat_map(ring).collect(),
        "credits of messages" => layout.messages.iter().map(credit).collect(),
        "decisions" => layout.decisions.iter().flat_map(ring).collect(),
        "credits of decisions" => layout.decisions.iter().map(credit).collect(),
        "control queue" => [ring(&layout.control), vec![credit(&layout.control)]].concat(),
        "everything" => [nic(0..layout.nic_lines), host(0..layout.host_lines)].concat(),
        _ => panic!("no part {part}"),
    }
}

/// Writes garbage into a part of its window, and rings every bell.
fn litter(attached: Attached, part: &str) {
    let Attached { layout, port, host_bells, connection, .. } = attached;
    let nic = port.window(Home::Nic);
    nic.store(layout.agent, 0, AGENT_READY | u64::from(PROTOCOL_VERSION));
    nic.fence();
    host_bells[layout.control_vector()].ring();
    let snapshot = layout.messages[layout.control_context()].ring.first;
    while nic.load(snapshot, 7) == 0 {
        std::thread::sleep(Duration::from_micros(300));
    }
    let lines = lines_of(&layout, part);
    let mut random = rand_pcg::Pcg64::seed_from_u64(part.len() as u64);
    for _ in 0..ROUNDS {
        for _ in 0..lines.len().min(64) {
            let (home, line) = lines[random.random_range(0..lines.len())];
            let word = random.random_range(0..8);
            // Some values are occasionally valid, others never.
            let value = match random.random_range(0..4) {
                0 => random.random(),
                1 => random.random_range(0..64),
                2 => 1 << 32 | random.random_range(0..64),
                _ => random.random_range(1..4) << 32 | 1 << 16 | 3,
            };
            port.window(home).store(line, word, value);
        }
        host_bells.iter().for_each(Doorbell::ring);
        std::thread::sleep(Duration::from_micros(300));
        if connection.hung_up() {
            return;
        }
    }
}

/// A program in another class on one of the enclave's CPUs.
struct Outsider {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Outsider {
    fn on(cpu: usize) -> Outsider {
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (ends, done) = (Arc::clone(&stop), Arc::clone(&rounds));
        let body = move || {
            wave_process::cpus::pin(&[cpu]).unwrap();
            while !ends.load(Ordering::SeqCst) {
                done.fetch_add(1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        Outsider { stop, rounds, thread: Some(std::thread::spawn(body)) }
    }

    /// Checks that the program still runs.
    fn is_well(&self) {
        let before = self.rounds.load(Ordering::SeqCst);
        wait_for("a program outside", || self.rounds.load(Ordering::SeqCst) > before + 2);
        let read = |name| std::fs::read_to_string(format!("/sys/kernel/sched_ext/{name}")).unwrap();
        assert_eq!(read("state").trim(), "enabled");
        assert!(read("root/ops").starts_with("wave"), "{}", read("root/ops"));
    }
}

impl Drop for Outsider {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

#[test]
fn a_hostile_agent_harms_nobody_and_every_refusal_has_its_code() {
    let Some(_alone) = alone() else { return };
    let mut kernel = KernelLog::from_now();
    let outsider = Outsider::on(0);
    let enclave = start(|options| options.config.patience = Nanos::from_millis(500));
    let child = work(6, usize::MAX);
    // Some threads end, so that their ids were announced and are free again.
    let storm =
        shell("i=0; while [ $i -lt 100 ]; do /bin/true & wait; i=$((i + 1)); done; echo $i");
    let expected = [
        Code::TargetStale,
        Code::TargetNotFound,
        Code::TargetNotRunnable,
        Code::InvalidFlags,
        Code::Unsupported,
        Code::UnsupportedVersion,
    ];
    // The watchdog turns the agent out occasionally; it attaches again each time.
    let (mut agent, began) = (None, Instant::now());
    loop {
        let stats = enclave.stats();
        let missing: Vec<_> = expected.iter().filter(|code| count(&stats, **code) == 0).collect();
        if missing.is_empty() {
            break;
        }
        assert!(
            began.elapsed() < Duration::from_secs(120),
            "refusals that did not occur within 120 s: {missing:?}"
        );
        if !stats.agent_decides {
            drop(agent.take());
            agent = Some(Agent::launch(&enclave, "hostile::hostile_agent_process", "decisions"));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    outsider.is_well();
    drop(agent);
    let faults = enclave.stats().faults;
    let nonsense = || Agent::launch(&enclave, "hostile::hostile_agent_process", "nonsense");
    let mut agent = nonsense();
    wait_for("the fault", || {
        let stats = enclave.stats();
        if stats.faults == faults && !stats.agent_decides {
            // The watchdog was faster.
            agent = nonsense();
        }
        stats.faults > faults
    });
    drop(agent);
    outsider.is_well();
    // A good agent takes over the remaining threads.
    let _agent = Agent::start(&enclave, "fifo");
    finish(child);
    assert_eq!(finish(storm), "100\n");
    wait_for("the end of all threads", || enclave.stats().threads == 0);
    assert_eq!(enclave.stats().turned_out, None);
    finish(work(4, 16));
    drop(enclave);
    assert_eq!(kernel.complaints(), Vec::<String>::new());
}

#[test]
fn garbage_in_any_word_of_the_window_harms_nobody() {
    let Some(_alone) = alone() else { return };
    let mut kernel = KernelLog::from_now();
    let outsider = Outsider::on(0);
    let enclave = start(|options| options.config.patience = Nanos::from_millis(1_000));
    let child = work(6, usize::MAX);
    for part in PARTS {
        let lost = enclave.stats().lost_agents;
        Agent::launch(&enclave, "hostile::hostile_agent_process", part).leaves();
        wait_for("the fallback", || enclave.stats().lost_agents > lost);
        outsider.is_well();
        assert_eq!(enclave.stats().turned_out, None, "{part}");
    }
    let faults = enclave.stats().faults;
    assert!(faults > 0, "no fault was counted");
    println!("parts overwritten: {}; agents turned out for it: {faults}", PARTS.len());
    let _agent = Agent::start(&enclave, "fifo");
    finish(child);
    finish(work(4, 16));
    wait_for("the end of all threads", || enclave.stats().threads == 0);
    drop(enclave);
    assert_eq!(kernel.complaints(), Vec::<String>::new());
}

/// Writes into every ring of decisions, forever. With `nonsense`, the entries are not even decisions.
fn run(attached: Attached, nonsense: bool) {
    let Attached { layout, port, host_bells, connection, .. } = attached;
    let nic = port.window(Home::Nic);
    nic.store(layout.agent, 0, AGENT_READY | u64::from(PROTOCOL_VERSION));
    nic.fence();
    host_bells[layout.control_vector()].ring();
    // A seed for each process: the watchdog may turn an agent out after few draws, and the next must not repeat them.
    let mut random = rand_pcg::Pcg64::seed_from_u64(u64::from(std::process::id()));
    for round in 0u64.. {
        let told: Vec<u32> = layout
            .messages
            .iter()
            .flat_map(|messages| messages.ring.first..messages.ring.first + messages.ring.entries)
            .filter(|line| nic.load(*line, 7) != 0)
            .collect();
        for (core, queue) in layout.decisions.iter().enumerate() {
            let entries = u64::from(queue.ring.entries);
            let line = queue.ring.first + (round % entries) as u32;
            // A thread from an earlier message, or one that never existed.
            let (subject, sequence) = match random.random_range(0..4) {
                1.. if !told.is_empty() => {
                    let line = told[random.random_range(0..told.len())];
                    (nic.load(line, 0), u64::from(nic.load(line, 1) as u32))
                }
                _ => {
                    let id = random.random_range(0..12u64);
                    let generation = random.random_range(0..3u64);
                    (generation << 32 | id, random.random_range(0..40))
                }
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

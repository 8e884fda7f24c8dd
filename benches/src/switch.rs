//! `wave bench switch`: a yield that an agent decides on, against a futex handoff.
//!
//! One host core switches between user-level threads that only yield. Each yield changes the thread
//! table, sends its message, takes a decision that the agent (on the other CPU) has staged, commits
//! it and reports the outcome. The peer is two pthreads pinned to the host core's CPU that hand a
//! turn to each other through a futex: one wake and one wait each.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use wave_agent::{Registry, Seat, attach, run};
use wave_compare::{PerRound, in_turns};
use wave_core::clock::Nanos;
use wave_process::{cpus, places};
use wave_user::{Enclave, Mode, Options};

use wave_experiments::measure::pin;

use crate::SEED;
use crate::bench::Better::Lower;
use crate::bench::{Bench, Figure, without_arguments};

pub static BENCH: Bench = Bench {
    name: "switch",
    about: "A yield that an agent decides on, against a futex handoff between two threads",
    help: "",
    figures: &[
        Figure::of("yield_vs_futex_ratio")
            .measured("futex handoff / a yield that the agent decides"),
        Figure::of("yield_ns.p50").compared(Lower).measured("a yield, ns"),
        Figure::of("instructions_per_switch").compared(Lower),
        Figure::peer("futex_handoff_ns.p50").compared(Lower),
    ],
    short: &[],
    has_two_cpus: true,
    arguments: without_arguments,
    run: |_, _| switch(),
};

const THREADS: u64 = 128;
const YIELDS: u64 = 2_000;
const HANDOFFS: u32 = 20_000;
const CHUNKS: usize = 21;
const WARM_UP: usize = 2;
const PRESTAGE: u16 = 32;

/// Nanoseconds per yield, from the first thread's first yield to the last thread's last.
fn yields(enclave: &Enclave) -> Result<f64, String> {
    let [start, end] = [u64::MAX, 0].map(|ns| Arc::new(AtomicU64::new(ns)));
    let epoch = Instant::now();
    let mut handles = Vec::new();
    for _ in 0..THREADS {
        let (start, end) = (Arc::clone(&start), Arc::clone(&end));
        let body = move || {
            start.fetch_min(epoch.elapsed().as_nanos() as u64, Ordering::Relaxed);
            (0..YIELDS).for_each(|_| wave_user::yield_now());
            end.fetch_max(epoch.elapsed().as_nanos() as u64, Ordering::Relaxed);
        };
        handles.push(enclave.spawn(0, body).map_err(|error| error.to_string())?);
    }
    for handle in handles {
        handle.join().map_err(|error| error.to_string())?;
    }
    let ns = end.load(Ordering::Relaxed) - start.load(Ordering::Relaxed);
    Ok(ns as f64 / (THREADS * YIELDS) as f64)
}

/// Nanoseconds per handoff.
fn handoffs(cpu: usize) -> Result<f64, String> {
    let turn = Arc::new(AtomicU32::new(0));
    let players = [0, 1].map(|me| {
        let turn = Arc::clone(&turn);
        std::thread::spawn(move || -> Result<Duration, String> {
            pin(cpu)?;
            let start = Instant::now();
            for _ in 0..HANDOFFS {
                while turn.load(Ordering::Acquire) != me {
                    atomic_wait::wait(&turn, 1 - me);
                }
                turn.store(1 - me, Ordering::Release);
                atomic_wait::wake_one(&*turn);
            }
            Ok(start.elapsed())
        })
    });
    let mut longest = Duration::ZERO;
    for player in players {
        let took = player.join().map_err(|_| "a futex thread panicked".to_owned())??;
        longest = longest.max(took);
    }
    Ok(longest.as_nanos() as f64 / (2.0 * f64::from(HANDOFFS)))
}

pub fn switch() -> Result<serde_json::Value, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let [host, other] = cpus::two()?;
    let socket = places::socket("switch").map_err(|error| text(&error))?;
    let mut options = Options::new(socket);
    options.cpus = vec![host];
    options.config.prestage = PRESTAGE;
    options.config.subjects = 256;
    options.config.spin = Nanos::from_micros(50);
    // While the futex peer has the host core's CPU, no decisions are taken; that must not count against the agent.
    options.config.patience = Nanos::from_millis(60_000);
    let enclave = Enclave::start(options).map_err(|error| text(&error))?;
    let attached = attach(enclave.socket()).map_err(|error| text(&error))?;
    let policy = Registry::shipped().make("fifo", &attached.layout.config)?;
    let agent = std::thread::spawn(move || {
        let _ = pin(other);
        run(attached, policy, (), Seat::Own)
    });
    while enclave.stats().mode != Mode::Agent {
        std::thread::sleep(Duration::from_millis(1));
    }
    let measured: [Vec<f64>; 2] = in_turns(SEED, WARM_UP, CHUNKS, |row| match row {
        0 => yields(&enclave),
        _ => handoffs(host),
    })?;
    let stats = enclave.stats();
    let by_fallback: u64 = stats.cores.iter().map(|core| core.fallback_switches).sum();
    if stats.lost_agents != 0 || by_fallback != 0 {
        return Err(format!("the agent was lost, and the fallback made {by_fallback} switches"));
    }
    drop(enclave);
    agent.join().map_err(|_| "the agent panicked".to_owned())?.map_err(|error| text(&error))?;
    let [yields, handoffs] = measured.map(PerRound::from_iter);
    let outcomes: serde_json::Map<_, _> = stats
        .cores
        .iter()
        .flat_map(|core| &core.outcomes)
        .map(|(code, count)| (code.name().to_owned(), (*count).into()))
        .collect();
    Ok(serde_json::json!({
        "bench": "switch",
        "peer": "a futex handoff between two pthreads pinned to one CPU",
        "prestage": PRESTAGE,
        "threads": THREADS,
        "chunks": CHUNKS,
        "yield_vs_futex_ratio": handoffs.over(&yields).estimate(),
        "yield_ns": yields.spread(),
        "futex_handoff_ns": handoffs.spread(),
        "outcomes": outcomes,
    }))
}

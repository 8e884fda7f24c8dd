//! Each policy's decisions as text: a change of behaviour shows as a change of `traces/NAME.txt`.
//! Recorded histories also replay.
//!
//! `WAVE_BLESS=1 cargo test -p wave-sched --test traces` rewrites the files.

mod fifo;
#[path = "../model/mod.rs"]
mod model;
mod others;
mod sliced;
mod trace;

use trace::{RUNS, Trace};
use wave_sched::policies::NAMES;
use wave_sched::wire::Kind;

fn histories(policy: &str) -> Vec<Trace> {
    match policy {
        "fifo" => fifo::all(),
        "shinjuku" => sliced::shinjuku(),
        "round-robin" => sliced::round_robin(),
        "multi-queue" => sliced::multi_queue(),
        "edf" => others::edf(),
        "vm" => others::vm(),
        other => panic!("no history for policy `{other}`: add one"),
    }
}

#[test]
fn decisions_match_the_committed_traces() {
    let bless = std::env::var_os("WAVE_BLESS").is_some();
    let mut different = Vec::new();
    for policy in NAMES {
        let mut texts: Vec<_> = histories(policy).into_iter().map(|trace| trace.text).collect();
        texts.push(model::history(policy));
        let text = texts.join("\n");
        let path = format!("{}/tests/traces/{policy}.txt", env!("CARGO_MANIFEST_DIR"));
        if bless {
            std::fs::write(&path, &text).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        if text != expected {
            let differs = text.lines().zip(expected.lines()).position(|(new, old)| new != old);
            let line = differs.map_or_else(|| expected.lines().count() + 1, |line| line + 1);
            let now = text.lines().nth(line - 1).unwrap_or("nothing");
            different
                .push(format!("{policy}.txt differs from line {line} on; that line is now: {now}"));
        }
    }
    assert!(different.is_empty(), "decisions changed: {different:#?}");
}

#[test]
fn recorded_histories_replay_to_the_same_decisions() {
    for policy in NAMES {
        for trace in histories(policy) {
            trace.check_replay();
        }
    }
}

/// The policies that prestage.
#[test]
fn nothing_is_prestaged_while_fewer_wait_than_there_are_cores() {
    for policy in ["fifo", "shinjuku", "multi-queue", "round-robin"] {
        for cores in 2..6u16 {
            let mut trace = Trace::new(policy, "", cores, 2);
            trace.snapshot(&vec![RUNS; usize::from(cores)], &[]);
            for thread in 0..u32::from(cores) - 1 {
                trace.outside(Kind::New, thread);
            }
            assert_eq!(trace.decided, []);
            trace.outside(Kind::New, u32::from(cores) - 1);
            assert_eq!(trace.decided.len(), 1);
        }
    }
}

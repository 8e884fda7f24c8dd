//! Random programs of processes that share sockets, over an agent and over Linux: each process sees the same bytes, error numbers and ends.
//! And such programs that are killed at a random instant.
//!
//! `WAVE_SHARING` sets the number of programs, and `WAVE_SHARING_KILLS` that of killed ones; `make soak` has 10,000 and 5,000. A failure
//! prints the program's seed, after which `WAVE_SHARING_SEED` repeats it alone, or as many as are asked for from that seed on.

mod compare;
mod kills;
mod model;
mod plan;
mod stage;

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use compare::{Played, play_all};
use kills::{Killed, kill_all};
use stage::Stage;

use crate::network::in_a_network;

/// Default number of programs; `WAVE_SHARING` overrides it.
const PROGRAMS: u64 = 300;
/// Default number of programs with a kill; `WAVE_SHARING_KILLS` overrides it.
const KILLS: u64 = 60;
const WORKERS: usize = 2;
/// Least number of programs whose shares of triggers and of demoted connections are checked.
const COUNTED_MIN: usize = 300;
/// Operations by which a connection becomes a stream of the kernel's. Each is at least one in 50 programs.
const TRIGGERS: [&str; 8] = [
    "second user",
    "exec without the library",
    "system",
    "popen",
    "fdopen",
    "dup2 onto 0 to 2",
    "splice",
    "filter",
];

fn number_in(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

/// Seeds as a variable of the environment asks for them, or `usual` many.
fn seeds(variable: &str, usual: u64) -> Vec<u64> {
    let count = number_in(variable);
    match number_in("WAVE_SHARING_SEED") {
        Some(seed) => (seed..seed + count.unwrap_or(1)).collect(),
        None => (0..count.unwrap_or(usual)).collect(),
    }
}

/// Plays shares of the programs at the same time, each in a network of its own. Nothing on machines without what they need.
fn on_stages<T: Send + 'static>(seeds: &[u64], play: fn(&mut Stage, &[u64]) -> T) -> Vec<T> {
    let (sender, played) = mpsc::channel();
    thread::scope(|scope| {
        for share in seeds.chunks(seeds.len().div_ceil(WORKERS)).map(<[u64]>::to_vec) {
            let sender = sender.clone();
            // It has the test's name, under which skips are reported.
            let named = thread::Builder::new().name(thread::current().name().unwrap_or("-").into());
            let worker = move || {
                in_a_network(move || {
                    if let Some(mut stage) = Stage::new() {
                        sender.send(play(&mut stage, &share)).unwrap();
                    }
                });
            };
            named.spawn_scoped(scope, worker).unwrap();
        }
    });
    drop(sender);
    played.iter().collect()
}

#[test]
fn random_programs_that_share_sockets_see_what_they_see_over_linux() {
    let begun = Instant::now();
    let all = on_stages(&seeds("WAVE_SHARING", PROGRAMS), play_all);
    let failures: Vec<&str> =
        all.iter().flat_map(|one| &one.failures).map(String::as_str).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let sum = |of: fn(&Played) -> usize| all.iter().map(of).sum::<usize>();
    let programs = sum(|one| one.programs);
    let mut causes = BTreeMap::<&str, u64>::new();
    let mut triggers = BTreeMap::<&str, usize>::new();
    for one in &all {
        one.demoted.iter().for_each(|(cause, count)| *causes.entry(cause).or_default() += count);
        one.triggers.iter().for_each(|(name, count)| {
            *triggers.entry(name).or_default() += count;
        });
    }
    let (connections, replaced) = (sum(|one| one.connections), sum(|one| one.replaced));
    let demoted = causes.values().sum::<u64>();
    println!(
        "{programs} programs in {:.0?}, {connections} connections, {demoted} demoted, agent replaced in {replaced}",
        begun.elapsed(),
    );
    println!("operations: {triggers:?}");
    println!("demoted by: {causes:?}");
    if programs < COUNTED_MIN {
        return;
    }
    assert!(demoted * 100 >= connections as u64 * 30, "{demoted} of {connections}");
    assert!(replaced * 10 >= programs, "{replaced} of {programs}");
    for trigger in TRIGGERS {
        let count = triggers.get(trigger).copied().unwrap_or(0);
        assert!(count * 50 >= programs, "{trigger}: {count} in {programs} programs");
    }
}

#[test]
fn programs_that_share_sockets_leave_nothing_when_they_are_killed_at_any_instant() {
    let begun = Instant::now();
    let all = on_stages(&seeds("WAVE_SHARING_KILLS", KILLS), kill_all);
    let failures: Vec<&str> =
        all.iter().flat_map(|one| &one.failures).map(String::as_str).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let sum = |of: fn(&Killed) -> usize| all.iter().map(of).sum::<usize>();
    println!(
        "{} programs killed in {:.0?}, {} of them in a call that waits, {} connections, {} demoted",
        sum(|one| one.programs),
        begun.elapsed(),
        sum(|one| one.waiting),
        sum(|one| one.connections),
        sum(|one| one.demoted),
    );
}

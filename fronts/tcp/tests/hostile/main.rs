//! Hostile programs at an agent's socket, and beside each a good program whose transfers go on.
//!
//! The agent is a process of its own: two fronts, each with a door and an address, and a wire in memory between them. Hostile programs
//! come to the first one, as processes of their own, too. The good program is the test: it sends from the second front to the first.

#[path = "../common/mod.rs"]
mod common;

mod agent;
mod attacks;
mod good;

use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::time::Duration;

use agent::{Agent, DESCRIPTORS, wait_for};
use attacks::attack;
use good::Good;
use rustix::process::{Resource, Rlimit, prlimit};
use wave_front_tcp::SPANS_MAX;
use wave_posix::{Options, Toe};

/// Does nothing in the test program itself: it is what the processes run that the tests start ([`agent::start`]).
#[test]
fn role() {
    agent::run_role();
}

/// Parts of 2 MiB of all payload memories of the attacks that do not mean to have many.
const SPANS: u64 = 512;

/// Waits for an attack's own expectations.
fn succeeds(mut attack: Child) {
    let status = attack.wait().unwrap();
    assert!(status.success(), "the attack found what it must not: {status}");
}

#[test]
fn random_entries_lines_and_credits_cost_only_their_writer() {
    let agent = Agent::start(DESCRIPTORS);
    let good = Good::start(&agent);
    for seed in 0..4 {
        succeeds(attack(&agent, &format!("garbage {seed}")));
    }
    good.finish();
}

#[test]
fn holes_that_are_punched_lent_or_named_cost_only_their_program_and_no_memory_of_the_agents() {
    if !rustix::process::geteuid().is_root() {
        return wave_skip::skip("only root can be another user, whom the agent does not trust");
    }
    let agent = Agent::start(DESCRIPTORS);
    let good = Good::start(&agent);
    succeeds(attack(&agent, "as-stranger holes"));
    good.finish();
}

#[test]
fn greedy_programs_leave_room_to_newcomers_and_the_agent_stays_within_its_bound() {
    let agent = Agent::start(DESCRIPTORS);
    let good = Good::start(&agent);
    let before = agent.memory_bytes();
    for round in 0..2 {
        let mut greedy = attack(&agent, "greed");
        // It has all that it gets.
        attacks::said(&mut greedy, "holds");
        let newcomer = attack(&agent, "newcomer");
        succeeds(newcomer);
        let grown = agent.memory_bytes().saturating_sub(before);
        assert!(
            grown <= agent.bound(SPANS),
            "round {round}: {grown} of {} bytes",
            agent.bound(SPANS)
        );
        greedy.kill().unwrap();
        greedy.wait().unwrap();
    }
    good.finish();
}

#[test]
fn rings_all_over_huge_memories_are_bounded_by_the_tables_that_map_them() {
    let agent = Agent::start(DESCRIPTORS);
    let good = Good::start(&agent);
    let before = agent.memory_bytes();
    let mut wide = attack(&agent, "spans");
    attacks::said(&mut wide, "holds");
    succeeds(attack(&agent, "newcomer"));
    let grown = agent.memory_bytes().saturating_sub(before);
    let bound = agent.bound(u64::from(SPANS_MAX) * 3 / 4);
    assert!(grown <= bound, "{grown} of {bound} bytes");
    wide.kill().unwrap();
    wide.wait().unwrap();
    good.finish();
}

#[test]
fn events_that_nobody_takes_are_bounded_and_their_program_is_turned_out() {
    let agent = Agent::start(DESCRIPTORS);
    let good = Good::start(&agent);
    let before = agent.memory_bytes();
    for _ in 0..2 {
        succeeds(attack(&agent, "events"));
    }
    let grown = agent.memory_bytes().saturating_sub(before);
    assert!(grown <= agent.bound(SPANS), "{grown} of {} bytes", agent.bound(SPANS));
    good.finish();
}

#[test]
fn programs_that_die_at_any_step_of_their_set_up_leave_nothing() {
    let agent = Agent::start(DESCRIPTORS);
    let good = Good::start(&agent);
    let count = agent.descriptors();
    for step in 0..attacks::STEPS {
        let status = attack(&agent, &format!("die {step}")).wait().unwrap();
        assert_eq!(status.signal(), Some(9), "step {step}: {status}");
    }
    for micros in (0..20_000).step_by(1_000) {
        let mut late = attack(&agent, &format!("die {}", attacks::STEPS));
        attacks::said(&mut late, "begins");
        std::thread::sleep(Duration::from_micros(micros));
        late.kill().unwrap();
        late.wait().unwrap();
    }
    wait_for("the agent gives all of it back", || agent.descriptors() <= count);
    good.finish();
}

#[test]
fn programs_that_say_nothing_keep_nobody_waiting() {
    let agent = Agent::start(DESCRIPTORS);
    let good = Good::start(&agent);
    let mut silent = attack(&agent, "silence");
    attacks::said(&mut silent, "holds");
    let options = Options { patience: agent::PATIENCE, ..Options::default() };
    drop(Toe::connect_with(agent.near(), &options).unwrap());
    silent.kill().unwrap();
    silent.wait().unwrap();
    good.finish();
}

#[test]
fn ports_and_connections_of_others_are_out_of_reach() {
    let agent = Agent::start(DESCRIPTORS);
    let good = Good::start(&agent);
    succeeds(attack(&agent, "ports"));
    match rustix::process::geteuid().is_root() {
        true => succeeds(attack(&agent, "as-stranger system-ports")),
        false => wave_skip::skip("only root can be another user"),
    }
    good.finish();
}

#[test]
fn an_agent_without_descriptors_goes_on_and_takes_programs_in_again() {
    // 320 are kept for other things: 100 are left for windows, of which a program gets three quarters.
    let agent = Agent::start(420);
    let good = Good::start(&agent);
    let mut greedy = attack(&agent, "windows");
    attacks::said(&mut greedy, "holds");
    succeeds(attack(&agent, "newcomer"));
    greedy.kill().unwrap();
    greedy.wait().unwrap();

    // Not even one for accept(2).
    let set = |current: u64| {
        let limit = Rlimit { current: Some(current), maximum: Some(420) };
        prlimit(Some(agent.pid()), Resource::Nofile, limit).unwrap();
    };
    set(3);
    let path = agent.near();
    let options = Options { patience: agent::PATIENCE, ..Options::default() };
    let late = std::thread::spawn(move || Toe::connect_with(path, &options).map(drop));
    wait_for("the agent has no descriptor", || agent.has_none_left());
    set(420);
    late.join().unwrap().unwrap();
    good.finish();
}

#[test]
fn a_crowd_of_one_user_leaves_room_to_other_users() {
    if !rustix::process::geteuid().is_root() {
        return wave_skip::skip("only root can be another user");
    }
    let agent = Agent::start(DESCRIPTORS);
    let good = Good::start(&agent);
    let before = agent.memory_bytes();
    // Each has what it gets, and that is less and less.
    let crowd = (0..4).map(|_| {
        let mut greedy = attack(&agent, "as-stranger greed");
        attacks::said(&mut greedy, "holds");
        greedy
    });
    let crowd: Vec<Child> = crowd.collect();
    let grown = agent.memory_bytes().saturating_sub(before);
    assert!(grown <= agent.bound(SPANS), "{grown} of {} bytes", agent.bound(SPANS));
    succeeds(attack(&agent, "newcomer"));
    for mut greedy in crowd {
        greedy.kill().unwrap();
        greedy.wait().unwrap();
    }
    good.finish();
}

//! Hostile programs at an agent's socket, each beside a good program whose transfers must continue.
//!
//! The agent is a process of its own with two fronts, each with a door and an address, and a wire in memory between them.
//! Hostile programs are processes, too, and attach to the near front. The good program is the test: it sends from the far front
//! to the near.

#[path = "../common/mod.rs"]
mod common;

mod agent;
mod attacks;
mod good;

use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::time::Duration;

use agent::{Agent, DESCRIPTORS, wait_for};
use attacks::attack;
use good::Good;
use rustix::process::{Resource, Rlimit, prlimit};
use serde_json::{Value, json};
use wave_front_tcp::SPANS_MAX;
use wave_posix::{Options, Toe};

/// Does nothing in the test program itself. Processes that the tests start ([`agent::start`]) run only this test.
#[test]
fn role() {
    agent::run_role();
}

/// Spans of 2 MiB in the payload memories of all attacks but `spans`, at most.
const SPANS: u64 = 512;

/// Waits for an attack, which must find all of its expectations met.
fn succeeds(mut attack: Child) {
    let status = attack.wait().unwrap();
    assert!(status.success(), "an expectation of the attack failed: {status}");
}

#[test]
fn random_entries_lines_and_credits_harm_only_their_writer() {
    let agent = Agent::start(DESCRIPTORS);
    let good = Good::start(&agent);
    for seed in 0..4 {
        succeeds(attack(&agent, &format!("garbage {seed}")));
    }
    good.finish();
}

#[test]
fn memory_holes_harm_only_their_program_and_cost_the_agent_no_memory() {
    if !rustix::process::geteuid().is_root() {
        return wave_skip::skip("only root can be another user, whom the agent does not trust");
    }
    let agent = Agent::start(DESCRIPTORS);
    let good = Good::start(&agent);
    succeeds(attack(&agent, "as-stranger holes"));
    good.finish();
}

#[test]
fn greedy_programs_leave_room_for_newcomers_and_agent_memory_is_bounded() {
    let agent = Agent::start(DESCRIPTORS);
    let good = Good::start(&agent);
    let before = agent.memory_bytes();
    for round in 0..2 {
        let mut greedy = attack(&agent, "greed");
        // The attack holds all that it can get.
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
fn rings_spread_over_huge_memories_cost_bounded_page_tables() {
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

/// As `wave tcp ss` shows it.
fn refusals(agent: &Agent) -> Vec<Value> {
    let stream = UnixStream::connect(wave_front_tcp::reports_path(&agent.near())).unwrap();
    let report: Value = serde_json::from_reader(stream).unwrap();
    report["refusals"].as_array().unwrap().clone()
}

#[test]
fn a_report_names_process_call_and_reason_and_complaints_are_bounded() {
    if !rustix::process::geteuid().is_root() {
        return wave_skip::skip("only root can be another user, who may not have system ports");
    }
    let agent = Agent::start(DESCRIPTORS);
    let good = Good::start(&agent);
    let mut loud = attack(&agent, "as-stranger complaints");
    attacks::said(&mut loud, "holds");
    // A report younger than a tenth of a second is shown again.
    let all = || {
        let refusals = refusals(&agent);
        refusals.iter().map(|row| row["count"].as_u64().unwrap()).sum::<u64>() == 20_000
    };
    wait_for("the report has all complaints", all);
    let refusals = refusals(&agent);
    assert_eq!(refusals.len(), 4, "one row for each call and reason: {refusals:?}");
    for row in &refusals {
        assert_eq!((&row["pid"], &row["uid"]), (&json!(loud.id()), &json!(agent::STRANGER)));
        assert_eq!(row["count"], 5_000);
    }
    let says = |outcome: &str, why: &str| {
        let has = |row: &&Value, key: &str, text: &str| row[key].as_str().unwrap().contains(text);
        refusals.iter().any(|row| has(&row, "outcome", outcome) && has(&row, "why", why))
    };
    assert!(says("cannot listen", "ports below 1024"), "{refusals:?}");
    assert!(says("cannot connect", "payload memory has no room"), "{refusals:?}");
    assert!(says("cannot send", "no more memory"), "{refusals:?}");
    assert!(says("cannot take over", "too many bytes"), "{refusals:?}");
    loud.kill().unwrap();
    loud.wait().unwrap();
    good.finish();
}

#[test]
fn untaken_events_are_bounded_and_their_program_is_turned_out() {
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
fn programs_killed_at_any_step_of_set_up_leave_no_descriptors() {
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
    wait_for("the agent closes all of their descriptors", || agent.descriptors() <= count);
    good.finish();
}

#[test]
fn silent_connections_do_not_block_other_programs() {
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
fn ports_and_connections_of_other_programs_are_protected() {
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
fn program_that_writes_beyond_its_ring_is_released() {
    for groups in [1, 2] {
        let agent = Agent::with_groups(groups);
        let good = Good::start(&agent);
        let count = agent.descriptors();
        for _ in 0..10 {
            succeeds(attack(&agent, "beyond"));
        }
        wait_for("the agent releases the programs", || agent.descriptors() <= count);
        good.finish();
    }
}

#[test]
fn hostile_programs_harm_nobody_in_any_flow_group() {
    let agent = Agent::with_groups(3);
    let good = Good::start(&agent);
    for what in ["garbage 0", "garbage 1", "ports", "events"] {
        succeeds(attack(&agent, what));
    }
    match rustix::process::geteuid().is_root() {
        true => succeeds(attack(&agent, "as-stranger holes")),
        false => wave_skip::skip("only root can be another user"),
    }
    good.finish();
}

#[test]
fn agent_without_descriptors_continues_and_later_accepts_programs_again() {
    // 320 descriptors are reserved: 100 are left for windows, of which a program gets three quarters.
    let agent = Agent::start(420);
    let good = Good::start(&agent);
    let mut greedy = attack(&agent, "windows");
    attacks::said(&mut greedy, "holds");
    succeeds(attack(&agent, "newcomer"));
    greedy.kill().unwrap();
    greedy.wait().unwrap();

    // Leaves no descriptor even for accept(2).
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
fn many_programs_of_one_user_leave_room_for_other_users() {
    if !rustix::process::geteuid().is_root() {
        return wave_skip::skip("only root can be another user");
    }
    let agent = Agent::start(DESCRIPTORS);
    let good = Good::start(&agent);
    let before = agent.memory_bytes();
    // Each program holds all that it can get; later ones get less.
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

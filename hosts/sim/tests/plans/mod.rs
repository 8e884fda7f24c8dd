//! Histories that once broke a rule, written out as plans, so that they stay the same however plans
//! are drawn from seeds.

#![allow(dead_code, reason = "each test uses a part")]

use wave_core::clock::Nanos;
use wave_core::layout::Config;
use wave_core::link::{Home, Mapping};
use wave_links::costs::Costs;
use wave_sim::agent::{AgentSetup, PolicyText, Skew};
use wave_sim::enclave::Setup;
use wave_sim::fuzz::plan::{EnclavePlan, Injection};
use wave_sim::fuzz::{Fault, Plan};
use wave_sim::machine::Machine;

fn plan(link: &str, cores: u16, threads: u32, change: impl FnOnce(&mut Config)) -> Plan {
    let mut config = Config::pcie(cores);
    config.contexts = 3;
    config.subjects = 64;
    config.spin = Nanos(0);
    config.patience = Nanos::from_millis(3);
    (config.messages.entries, config.decisions.entries) = (64, 64);
    change(&mut config);
    let setup = Setup {
        config,
        costs: Costs::builtin(link).expect("built in"),
        machine: Machine::builtin("user").expect("built in"),
        agent: AgentSetup { policy: PolicyText::shipped("fifo"), ghz: 2.0, parks: false },
        prefetch: false,
        seed: 1,
    };
    let enclave = EnclavePlan {
        setup,
        skew: Skew::default(),
        threads,
        subsystem: None,
        on_purpose: Nanos(0),
        injections: Vec::new(),
    };
    Plan { seed: 1, enclaves: vec![enclave], messages: 2_000, invariants: Vec::new() }
}

fn inject(plan: &mut Plan, fault: Fault, at: Nanos, lasts: Nanos, seed: u64) {
    plan.enclaves[0].injections.push(Injection { at, fault, lasts, seed });
}

/// Cores that go offline for a moment, with prestaged decisions that take long to read.
pub fn cores_that_come_back_while_they_refuse() -> Plan {
    let mut plan = plan("stingray", 2, 16, |config| {
        config.decisions.host = Mapping::Uncached;
        config.prestage = 4;
    });
    for number in 0..60 {
        let at = Nanos(500_000 + number * 100_000);
        let lasts = Nanos(2_000 + number * 1_500);
        inject(&mut plan, Fault::CoreOffline, at, lasts, number);
    }
    plan
}

/// The agent pulls messages from host memory, and writes nothing else there.
pub fn messages_in_host_memory() -> Plan {
    let mut plan = plan("mount-evans", 4, 12, |config| {
        config.messages.home = Home::Host;
        config.messages.host = Mapping::WriteBack;
    });
    // The history ends long after the agent has settled.
    plan.messages = 10_000;
    plan
}

/// Agents, some of which give every core only decisions to refuse.
pub fn agents_that_decide_what_cannot_be() -> Vec<Plan> {
    let hostile = |seed| {
        let mut plan = plan("coherent", 4, 12, |config| config.prestage = 1);
        inject(&mut plan, Fault::Hostile, Nanos::from_millis(1), Nanos::from_millis(12), seed);
        plan
    };
    // Even seeds make invalid decisions, odd ones write random words.
    (0..8).map(|number| hostile(2 * number)).collect()
}

/// Kicks of several cores get lost, each with a decision in its queue, beside many threads that run.
pub fn kicks_that_get_lost_beside_many_threads() -> Vec<Plan> {
    let lossy = |seed| {
        let mut plan = plan("mount-evans", 12, 20, |config| config.subjects = 256);
        plan.enclaves[0].setup.seed = seed;
        inject(&mut plan, Fault::LostKick, Nanos::from_millis(1), Nanos::from_millis(1), 1);
        // The history lasts until no delay can have this cause any more.
        plan.messages = 30_000;
        plan
    };
    (0..8).map(lossy).collect()
}

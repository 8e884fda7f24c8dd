//! The policies in virtual time: a sweep over loads, and the fuzzer. No host, and the same result on every machine.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use my_policy::POLICIES;
use my_policy::exclusive::EXCLUSIVE;
use wave_core::clock::Nanos;
use wave_sim::agent::PolicyText;
use wave_sim::enclave::{Enclave, HostEvent};
use wave_sim::experiment::serve;
use wave_sim::fuzz::{Overrides, Plan, run};
use wave_sim::paper::{Rung, gets_and_ranges, overhead, wave};
use wave_sim::requests::Requests;
use wave_sim::world::World;

/// One of this crate's policies.
fn own(text: &str) -> PolicyText {
    PolicyText::own(&POLICIES, text)
}

/// The p99 of GETs (10 us, class 0) among RANGE queries (10 ms, class 1), in microseconds, on four cores of the paper's machine
/// with the agent behind PCIe.
fn get_p99_us(policy: PolicyText, per_second: f64) -> f64 {
    let mut setup = wave(4, Rung::Prestaged, "fifo");
    // A request's overhead depends on the machine, not on the policy.
    let load = gets_and_ranges(per_second, overhead(&setup));
    setup.agent.policy = policy;
    let outcome = serve(&setup, &load).unwrap();
    assert_eq!(outcome.counters.lost_agents, 0);
    outcome.served.latencies[0].value_at_quantile(0.99) as f64 / 1e3
}

#[test]
fn a_sweep_over_loads_and_policies() {
    let policies =
        [PolicyText::shipped("fifo"), own("two-class"), own("lottery:tickets=20/1,slice_us=50")];
    println!("{:>9} {:>10} {:>10} {:>10}", "GET p99", "fifo", "two-class", "lottery");
    let mut last = [0.0; 3];
    for load in [10e3, 30e3, 50e3] {
        last = policies.each_ref().map(|policy| get_p99_us(policy.clone(), load));
        let [fifo, two_class, lottery] = last;
        println!("{load:>7}/s {fifo:>7.0} us {two_class:>7.0} us {lottery:>7.0} us");
    }
    // Priority cannot help a GET while every core runs a RANGE query; slices can.
    let [fifo, two_class, lottery] = last;
    assert!(two_class < fifo && lottery < two_class / 10.0);
}

#[test]
fn no_faulty_history_breaks_a_rule() {
    for policy in ["two-class", "lottery"] {
        let overrides = Overrides { policy: Some(own(policy)), ..Overrides::default() };
        for seed in 0..6 {
            let report = run(&Plan::new(seed, &[]).with(&overrides));
            assert_eq!(report.violation, None, "{policy}, seed {seed}");
        }
    }
}

/// RANGE queries, of 10 ms each, are the exclusive threads; they alone would keep two of the four cores busy.
#[test]
fn never_two_exclusive_threads_run_at_once_through_takeovers() {
    const TAKEOVERS: u64 = 20;
    let mut setup = wave(4, Rung::Prestaged, "fifo");
    setup.agent.policy = own("exclusive");
    // Exclusive threads wait beside idle cores by design.
    setup.config.patience = Nanos::from_millis(60_000);
    let mut load = gets_and_ranges(40e3, overhead(&setup));
    load.measure = Nanos::from_millis(35 * TAKEOVERS);
    let world = World::new();
    let requests = Requests::new(load, setup.seed);
    let enclave = Enclave::new(&world, setup, requests).unwrap();
    let (classes, running) = (RefCell::new(BTreeMap::new()), RefCell::new(BTreeSet::new()));
    let most = Rc::new(Cell::new((0, 0)));
    let seen = Rc::clone(&most);
    enclave.watch(Box::new(move |_, event| match event {
        HostEvent::Changed(event) => {
            classes.borrow_mut().insert(event.thread.id, event.class);
            running.borrow_mut().remove(&event.thread.id);
        }
        HostEvent::Started { thread, .. }
            if classes.borrow().get(&thread.id) == Some(&EXCLUSIVE) =>
        {
            running.borrow_mut().insert(thread.id);
            let (most, runs) = seen.get();
            seen.set((running.borrow().len().max(most), runs + 1));
        }
        _ => {}
    }));
    enclave.start_agent();
    for takeover in 1..=TAKEOVERS {
        let (_, before) = most.get();
        world.run_until(Nanos::from_millis(35 * takeover));
        let (most, runs) = most.get();
        assert!(runs >= before + 2, "{runs} exclusive threads ran by takeover {takeover}");
        assert_eq!(most, 1, "exclusive threads at once, by takeover {takeover}");
        enclave.start_agent();
    }
    world.end();
    assert_eq!(enclave.counters().attached, TAKEOVERS);
}

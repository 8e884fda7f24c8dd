//! Faults that the fuzzer found, each with its own plan.

mod plans;

use wave_sim::fuzz::{Plan, run};

fn is_clean(plan: &Plan) {
    assert_eq!(run(plan).violation, None);
}

/// Found by `wave fuzz --seed 1711`. A core that went offline refused the decisions in its queue. It
/// came back in the middle of that, committed the next decision, and did not run it: the thread was
/// lost.
#[test]
fn a_core_that_comes_back_while_it_refuses_loses_no_thread() {
    is_clean(&plans::cores_that_come_back_while_they_refuse());
}

/// Found by `wave fuzz --seed 423`. The agent's credits for queues in host memory were stores
/// without a publish: once each ring had been filled, every message was lost, and the agent learned of
/// changes only by snapshots.
#[test]
fn credits_of_queues_in_host_memory_are_published() {
    is_clean(&plans::messages_in_host_memory());
}

/// A refused decision counts as answered. The watchdog took a core that had answered decisions for one
/// that had work, so that an agent whose decisions were all refused starved its enclave for ever.
#[test]
fn an_agent_whose_decisions_are_all_refused_is_turned_out() {
    plans::agents_that_decide_what_cannot_be().iter().for_each(is_clean);
}

/// The watchdog watched one thread at a time, always the one with the lowest id, whose state kept changing.
#[test]
fn a_few_starving_threads_among_many_are_found() {
    plans::kicks_that_get_lost_beside_many_threads().iter().for_each(is_clean);
}

/// Found by `wave fuzz --seed 1578`. The read of a core that parks overtook a decision that a stalled link
/// held back for longer than the model's bound on a peer's store under way: the core slept with a decision
/// in its queue. The plan is the seed's, because the stall must occur while the core goes to sleep.
#[test]
fn a_read_pushes_what_a_stalled_link_holds_back() {
    is_clean(&Plan::new(1578, &[]));
}

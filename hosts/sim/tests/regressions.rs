//! What the fuzzer found once, each spelled out.

mod plans;

use wave_sim::fuzz::{Plan, run};

fn is_clean(plan: &Plan) {
    assert_eq!(run(plan).violation, None);
}

/// Found by `wave fuzz --seed 1711`. A core that went offline answered what was left for it with
/// refusals. It came back in the middle of that, committed the next one, and forgot what it had
/// committed: the thread was never seen again.
#[test]
fn a_core_that_comes_back_while_it_refuses_loses_no_thread() {
    is_clean(&plans::cores_that_come_back_while_they_refuse());
}

/// Found by `wave fuzz --seed 423`. The agent's credits for queues in host memory were stores
/// without a publish: once each ring had been filled, every message was lost, and the enclave lived
/// from snapshot to snapshot.
#[test]
fn credits_of_queues_in_host_memory_travel() {
    is_clean(&plans::messages_in_host_memory());
}

/// A decision that is refused counts as one that was answered. The watchdog took a core that had
/// answered some for one that had work, so that an agent that decides only what cannot be starved its
/// enclave for ever.
#[test]
fn an_agent_whose_decisions_are_all_refused_is_turned_out() {
    plans::agents_that_decide_what_cannot_be().iter().for_each(is_clean);
}

/// The watchdog watched one thread at a time, always the lowest id, and those moved on.
#[test]
fn threads_that_starve_beside_many_that_do_not_are_found() {
    plans::kicks_that_get_lost_beside_many_threads().iter().for_each(is_clean);
}

/// Found by `wave fuzz --seed 1578`. A read of a core that parks overtook a decision that a stalled link
/// held back for longer than the model believed a peer's store to be under way: the core slept on top of
/// it. The plan is the seed's, as the stall has to meet the core on its way to sleep.
#[test]
fn a_read_pushes_what_a_stalled_link_holds_back() {
    is_clean(&Plan::new(1578, &[]));
}

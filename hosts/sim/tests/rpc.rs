//! RPCs in virtual time: the three placements of the stack and the scheduler.

use std::cell::RefCell;
use std::rc::Rc;

use wave_core::clock::Nanos;
use wave_core::log::LogReader;
use wave_core::replay::Replay;
use wave_sched::policies;
use wave_sim::agent::Logs;
use wave_sim::paper::{self, Placement};
use wave_sim::requests::Load;
use wave_sim::rpc::{self, RpcOutcome, RpcSetup};

const POLICIES: [(&str, bool); 3] =
    [("fifo", false), ("shinjuku:slice_us=30", false), ("multi-queue:slice_us=30", true)];

fn load(setup: &RpcSetup, per_second: f64) -> Load {
    let mut load = paper::gets_and_ranges(per_second, paper::overhead(&setup.scheduler));
    (load.warmup, load.measure) = (Nanos::from_millis(5), Nanos::from_millis(10));
    load
}

fn serve(setup: &RpcSetup, per_second: f64) -> RpcOutcome {
    rpc::serve(setup, &load(setup, per_second)).unwrap()
}

#[test]
fn every_request_is_answered_wherever_stack_and_scheduler_are() {
    for placement in Placement::ALL {
        for (policy, slo) in POLICIES {
            let setup = paper::rpc(placement, 4, policy, slo);
            let found = serve(&setup, 20e3);
            let (served, counters) = (&found.outcome.served, &found.outcome.counters);
            assert!(served.sent > 100, "{placement:?} {policy}: {served:?}");
            assert_eq!((served.done, served.refused), (served.sent, 0), "{placement:?} {policy}");
            assert_eq!(counters.lost_agents, 0, "{placement:?} {policy}: {counters:?}");
            assert!(counters.agent_errors.is_empty(), "{:?}", counters.agent_errors);
            // One run per request, and more if slices end; at the start each worker looks once without success.
            let runs = counters.switches + counters.fallback_switches;
            let most = served.sent * 2 + counters.preempted + found.looks;
            assert!(runs <= most, "{placement:?} {policy}: {runs} runs, {}", found.looks);
            assert!(found.looks < 20 * u64::from(setup.workers), "{} looks", found.looks);
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_history() {
    let setup = paper::rpc(Placement::OffloadAll, 4, POLICIES[2].0, true);
    let [first, second] = [serve(&setup, 30e3), serve(&setup, 30e3)];
    assert_eq!(first.outcome.trace_hash, second.outcome.trace_hash);
    let mut other = setup.clone();
    other.scheduler.seed = 2;
    assert_ne!(serve(&other, 30e3).outcome.trace_hash, first.outcome.trace_hash);
}

#[test]
fn the_schedulers_log_replays_to_the_same_decisions() {
    for (policy, slo) in POLICIES {
        let setup = paper::rpc(Placement::OffloadAll, 4, policy, slo);
        let (log, load) = (Rc::new(RefCell::new(Vec::new())), load(&setup, 20e3));
        let to = Rc::clone(&log);
        let logs: Box<Logs> = Box::new(move |_| {
            let to = Rc::clone(&to);
            Box::new(move |bytes| to.borrow_mut().extend_from_slice(bytes))
        });
        let logged = rpc::serve_logged(&setup, &load, Some(("a test".to_owned(), logs))).unwrap();
        let bare = rpc::serve(&setup, &load).unwrap();
        assert_eq!(logged.outcome.trace_hash, bare.outcome.trace_hash, "it takes no virtual time");
        let log = log.borrow();
        let mut reader = LogReader::new(&log).unwrap();
        let header = reader.header().clone();
        let policy = policies::by_name(&header.policy, &header.config).unwrap();
        let mut replay = Replay::new(&header.config, policy);
        reader.by_ref().for_each(|record| replay.feed(&record.unwrap()));
        let tally = replay.finish();
        assert!(tally.is_identical() && tally.decisions > 100, "{header:?}: {tally:?}");
    }
}

#[test]
fn prefetching_a_request_during_the_switch_serves_it_sooner() {
    let mut setup = paper::rpc(Placement::OffloadAll, 4, "shinjuku:slice_us=30", false);
    let median = |setup: &RpcSetup| {
        let found = serve(setup, 10e3);
        assert_eq!(found.outcome.served.done, found.outcome.served.sent);
        found.outcome.served.latencies[0].value_at_quantile(0.5)
    };
    let without = median(&setup);
    setup.prefetch = true;
    let with = median(&setup);
    // The prefetch can hide a read of 750 ns across the link.
    assert!((400..=1_000).contains(&(without - with)), "{without} ns, prefetched {with} ns");
}

#[test]
fn the_stacks_time_covers_arrived_work_and_no_more_than_elapsed() {
    let mut setup = paper::rpc(Placement::OffloadAll, 4, "fifo", false);
    let each = setup.stack.request.value + setup.stack.reply.value;
    let (load, found) = (load(&setup, 20e3), serve(&setup, 20e3));
    let expected = 20e3 * load.end().0 as f64 / 1e9 * each;
    let ratio = found.stack_time.0 as f64 / expected;
    assert!((0.9..1.1).contains(&ratio), "{ratio} of the calls' work");
    // Under an overload, the time counted is at most the time that has passed.
    setup.stack.cores.value = 1.0;
    setup.stack.request.value = 100e3;
    let found = serve(&setup, 20e3);
    assert!(found.stack_time <= load.end(), "{:?}", found.stack_time);
    assert!(found.stack_time.0 > load.end().0 * 9 / 10, "{:?}", found.stack_time);
}

#[test]
fn a_prestaged_request_needs_no_decision() {
    let mut setup = paper::rpc(Placement::OffloadAll, 4, "fifo", false);
    (setup.workers, setup.scheduler.config.subjects) = (8, 8);
    // More load than four cores can serve, so that requests wait.
    let serve = |setup: &RpcSetup| {
        let mut load = paper::gets(300e3, paper::overhead(&setup.scheduler));
        (load.warmup, load.measure) = (Nanos::from_millis(2), Nanos::from_millis(5));
        let found = rpc::serve(setup, &load).unwrap();
        let (served, counters) = (found.outcome.served, found.outcome.counters);
        assert_eq!((served.done, served.refused), (served.sent, 0));
        (served.done, counters.switches + counters.fallback_switches)
    };
    let (calls, runs) = serve(&setup);
    assert!(runs >= calls, "{runs} runs for {calls} calls");
    (setup.steering, setup.prestaged) = ("jbsq:k=2".into(), true);
    let (calls, runs) = serve(&setup);
    assert!(2 * runs < calls, "{runs} runs for {calls} calls, prestaged");
}

#[test]
fn an_agent_that_reads_headers_across_the_link_pays_for_each_request() {
    let busy = |placement, slo| {
        let policy = if slo { "multi-queue" } else { "shinjuku" };
        let setup = paper::rpc(placement, 4, policy, slo);
        serve(&setup, 20e3).outcome.agent_busy()
    };
    let beside = busy(Placement::OnHostAll, false);
    let across = busy(Placement::OnHostScheduler, false);
    assert!(across > 2.0 * beside, "{across} against {beside} of the agent's time");
    assert!(busy(Placement::OnHostScheduler, true) > across, "the SLO is another word");
}

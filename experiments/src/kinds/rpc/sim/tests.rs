use serde_json::Value;
use wave_core::log::LogReader;
use wave_core::replay::Replay;
use wave_sched::policies;

use super::*;
use crate::same_keys::keys;

/// The paper's parameters, as in `wave reproduce`: 16 cores, of which a scheduler on the host takes one.
const TEXT: &str = r#"name = "small"
kind = "rpc"
[workload]
get_us = 10
range_us = 10_000
range_percent = 0.5
get_slo_us = 50
range_slo_us = 10_000
[run]
seconds = 0.26
warmup_seconds = 0.06
seed = 1
loads_per_second = [60_000]
[host]
cores = 16
threads = 240
"#;

fn scenario(variants: &[(&str, &str, &str, &str)]) -> Rpc {
    let variant = |(name, placement, policy, link): &(&str, &str, &str, &str)| {
        format!(
            "[[variant]]\nname = \"{name}\"\nplacement = \"{placement}\"\n{}link = \"{link}\"\n",
            if policy.is_empty() { String::new() } else { format!("policy = \"{policy}\"\n") }
        )
    };
    let text = TEXT.to_owned() + &variants.iter().map(variant).collect::<String>();
    crate::kinds::rpc::scenario::read(&wave_scenario::Source::new(Path::new("x.toml"), &text))
        .unwrap()
}

fn result(scenario: &Rpc) -> RunResult {
    let Finished { result, failed } = run(scenario, true, None, &Journal::none()).unwrap();
    assert_eq!(failed, Vec::<String>::new());
    result
}

/// Time and work after the last arrival do not count.
#[test]
fn cpu_time_of_agents_does_not_depend_on_the_span() {
    let mut scenario = scenario(&[("all", "offload-all", "fifo", "model:mount-evans")]);
    let mut figures = |seconds: f64, warmup: f64| {
        (scenario.run.seconds, scenario.run.warmup_seconds) = (seconds, Some(warmup));
        let compared = result(&scenario).extra["placements"][0]["compared"].clone();
        ["agent_us_per_rpc", "agent_cpus"].map(|name| compared[name].as_f64().unwrap())
    };
    let [short, long] = [figures(0.12, 0.02), figures(0.6, 0.1)];
    for (short, long) in short.into_iter().zip(long) {
        assert!((short / long - 1.0).abs() < 0.04, "{short} and {long}");
    }
}

/// At half the clock rate the stack works twice as long on each call; on one core it answers fewer calls.
#[test]
fn stack_cores_and_agent_ghz_of_the_scenario_are_used() {
    let mut scenario = scenario(&[("all", "offload-all", "fifo", "model:mount-evans")]);
    let mut figures = |stack_cores: Option<u32>, agent_ghz: Option<f64>, load: f64| {
        scenario.variants[0].stack_cores = stack_cores;
        scenario.variants[0].agent_ghz = agent_ghz;
        (scenario.run.loads_per_second, scenario.run.compare_at) = (vec![load], Some(load));
        let found = result(&scenario);
        let placed = &found.extra["placements"][0];
        let value = |path: &str| placed.pointer(path).and_then(Value::as_f64).unwrap();
        let facts: Vec<String> = found.facts.iter().map(|(what, _)| what.clone()).collect();
        let values = ["/compared/agent_us_per_rpc", "/compared/served", "/agent_cores"].map(value);
        (values, facts)
    };
    let rate = paper::rpc(Placement::OffloadAll, 16, "fifo", false).scheduler.agent.ghz;
    let ([of_paper, _, cores], _) = figures(None, None, 60_000.0);
    let ([at_half, ..], facts) = figures(None, Some(rate / 2.0), 60_000.0);
    assert!((1.8..=2.0).contains(&(at_half / of_paper)), "{at_half}, {of_paper}");
    assert!(facts.contains(&format!("variant.agent_ghz = {}", rate / 2.0)), "{facts:?}");
    let ([_, served_by_all, _], _) = figures(None, None, 300_000.0);
    let ([_, served_by_one, with_one], facts) = figures(Some(1), None, 300_000.0);
    assert_eq!((with_one, cores > 2.0), (2.0, true), "the stack's core, and the scheduler's");
    assert!(served_by_one < served_by_all * 0.8, "{served_by_one}, {served_by_all}");
    assert!(facts.contains(&"variant.stack_cores = 1".to_owned()), "{facts:?}");
}

/// Time outside service is switches and work for each call: it is positive even if few calls end in the run.
#[test]
fn time_beside_service_is_positive_in_a_short_run() {
    let mut scenario = scenario(&[("all", "offload-all", "fifo", "model:mount-evans")]);
    (scenario.run.seconds, scenario.run.warmup_seconds) = (0.1, Some(0.05));
    for seed in 1..=8 {
        scenario.run.seed = seed;
        let figures = result(&scenario).extra["placements"][0]["compared"].clone();
        let value = |name: &str| figures[name].as_f64().unwrap();
        let (beside, host) = (value("host_beside_service_us_per_rpc"), value("host_us_per_rpc"));
        assert!(beside > 0.0 && beside < host, "seed {seed}: {beside} of {host}");
    }
}

#[test]
fn variant_without_a_model_is_left_out_with_a_reason() {
    let scenario = scenario(&[
        ("all", "offload-all", "fifo", "model:mount-evans"),
        ("tonic", "tonic", "", "shm"),
        ("sidecar", "sidecar", "", "shm"),
        ("split", "onhost-scheduler", "fifo", "shm"),
    ]);
    let found = result(&scenario);
    assert_eq!((found.variants.len(), found.host.as_str()), (1, "sim"));
    for (name, reason) in
        [("tonic", "tonic"), ("sidecar", "without a scheduler"), ("split", "two agents")]
    {
        let told = |(what, why): &(String, String)| what == name && why.contains(reason);
        assert!(found.facts.iter().any(told), "{name}: {:?}", found.facts);
    }
    let mut none = scenario;
    none.variants.remove(0);
    let refused = run(&none, true, None, &Journal::none()).unwrap_err();
    assert_eq!(refused.exit_code(), 2);
    assert!(refused.to_string().contains("no variant is left"), "{refused}");
}

#[test]
fn steering_for_more_threads_than_the_host_has_is_refused() {
    let mut scenario = scenario(&[("all", "offload-all", "fifo", "model:mount-evans")]);
    scenario.host.threads = 4;
    scenario.variants[0].steer = "darc:reserve=4".to_owned();
    let system =
        |scenario: &Rpc| Simulated::new(scenario, &scenario.variants[0], Equal::Cores).map(|_| ());
    system(&scenario).unwrap();
    scenario.variants[0].steer = "darc:reserve=10".to_owned();
    let refused = run(&scenario, true, None, &Journal::none()).unwrap_err();
    assert_eq!(refused.exit_code(), 2);
    assert!(
        refused.to_string().contains("small, all: policy `darc`: `reserve` is 10"),
        "{refused}"
    );
}

/// A native result is built from the same types by `found`; only the fields of a point may differ.
#[test]
fn json_keys_equal_those_of_a_native_run() {
    let mut scenario = scenario(&[("all", "offload-all", "fifo", "model:mount-evans")]);
    scenario.run.loads_per_second = vec![20_000.0];
    scenario.run.compare_at = Some(20_000.0);
    let simulated = result(&scenario);
    let equal = Equal::Cores;
    let system = Simulated::new(&scenario, &scenario.variants[0], equal).unwrap();
    let mut measured = system.run(20_000.0, None).unwrap();
    let (total_ns, stalled_ns, generator_ns) = (Some(1), Some(1), Some(1));
    measured.used = Used { total_ns, stalled_ns, generator_ns, ..measured.used };
    let limits = limits(&scenario);
    let row = Row::simulated(system.stack, &system.seats, vec![measured], &limits);
    let native = RunResult {
        host: "user".to_owned(),
        variants: vec![row.variant(&scenario, result::AGENT_WITH_LOOKS)],
        extra: result::extra(&scenario, &[row], equal, &[], &limits, &|_, _, _| None),
        ..simulated.clone()
    };
    let keys = |result: &RunResult| keys(&serde_json::to_value(result).unwrap());
    assert_eq!(keys(&simulated), keys(&native));
    let label = |result: &RunResult| result.variants[0].account[2].0.clone();
    assert_eq!([label(&simulated), label(&native)], ["agent", "agent, with looks"]);
    let figures = &simulated.extra["placements"][0]["compared"];
    for name in ["host_stalled", "generator_us_per_rpc", "generator_cpus"] {
        assert_eq!(figures[name], Value::Null, "{name}");
        assert!(!native.extra["placements"][0]["compared"][name].is_null(), "{name}");
    }
}

#[test]
fn scheduler_log_replays_to_identical_decisions() {
    let folder = tempfile::tempdir().unwrap();
    let scenario = scenario(&[("All, one", "offload-all", "fifo", "model:mount-evans")]);
    let bare = result(&scenario);
    let logged = run(&scenario, true, Some(folder.path()), &Journal::none()).unwrap().result;
    assert_eq!(logged.variants, bare.variants, "a log takes no virtual time");
    let log = std::fs::read(folder.path().join("all-one-60000.wavelog")).unwrap();
    let mut reader = LogReader::new(&log).unwrap();
    let header = reader.header().clone();
    assert!(header.about.starts_with("scenario small, seed 1, All, one"), "{}", header.about);
    let policy = policies::by_name(&header.policy, &header.config).unwrap();
    let mut replay = Replay::new(&header.config, policy);
    reader.by_ref().for_each(|record| replay.feed(&record.unwrap()));
    let tally = replay.finish();
    assert!(tally.is_identical() && tally.decisions > 1_000, "{tally:?}");
}

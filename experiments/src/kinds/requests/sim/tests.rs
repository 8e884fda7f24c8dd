use std::path::Path;

use wave_core::log::LogReader;
use wave_core::replay::Replay;
use wave_sched::policies;

use super::*;
use wave_report::model::Cpu;

const TEXT: &str = r#"name = "small"
kind = "KIND"
[run]
seconds = 0.012
warmup_seconds = 0.002
LOADS
[host]
cores = 2
[[variant]]
name = "shared memory"
placement = "onhost"
policy = "fifo"
[[variant]]
name = "over PCIe"
placement = "offload"
policy = "fifo"
link = "model:mount-evans"
"#;

fn scenario(kind: &str, loads: &str, more: &str) -> Scenario {
    let text = TEXT.replace("KIND", kind).replace("LOADS", loads) + more;
    crate::kinds::requests::scenario::read(
        &wave_scenario::Source::new(Path::new("small.toml"), &text),
        policies::NAMES,
    )
    .unwrap()
}

fn result(scenario: &Scenario) -> RunResult {
    let Finished { mut result, failed } = run(scenario, true, None, &Journal::none()).unwrap();
    assert_eq!(failed, Vec::<String>::new());
    result.started.clear();
    result
}

#[test]
fn run_is_determined_by_scenario_and_seed() {
    let mut loads = scenario("load", "loads_per_second = [50_000, 150_000]", "");
    let first = result(&loads);
    assert_eq!(first.host, "sim");
    assert_eq!(first, result(&loads));
    for point in first.variants.iter().flat_map(|variant| &variant.points) {
        assert!(point.generator.valid && point.served() > 0.9, "{point:?}");
        let Cpu { host_useful_percent, agent_percent, .. } = point.cpu;
        assert!(host_useful_percent > 20.0 && agent_percent > 0.0, "{point:?}");
        assert!(point.outcomes.iter().any(|(code, count)| code == "complete" && *count > 100));
    }
    loads.run.seed += 1;
    assert_ne!(first.variants, result(&loads).variants);
}

#[test]
fn variants_without_a_model_are_left_out_with_a_reason() {
    let others = "[[variant]]\nname = \"threads\"\nplacement = \"linux\"\n\
                  [[variant]]\nname = \"pthreads\"\nplacement = \"offload\"\npolicy = \"fifo\"\nthreads = \"kernel\"\n";
    let mut loads = scenario("load", "loads_per_second = [50_000]", others);
    let result = result(&loads);
    // Equal cores are simulated as well.
    let names: Vec<&str> = result.variants.iter().map(|variant| &variant.name[..]).collect();
    assert_eq!(names, ["shared memory", "over PCIe", "over PCIe, equal cores"]);
    for (name, reason) in
        [("threads", "the kernel's scheduler"), ("pthreads", "kernel-level threads")]
    {
        let told = |(what, why): &(String, String)| what == name && why.contains(reason);
        assert!(result.facts.iter().any(told), "{name}: {:?}", result.facts);
    }
    loads.variants.drain(..2);
    let refused = run(&loads, true, None, &Journal::none()).unwrap_err();
    assert_eq!(refused.exit_code(), 2);
    assert!(refused.to_string().contains("no variant is left"), "{refused}");
}

#[test]
fn facts_have_the_machine_and_the_link_of_every_variant() {
    let mut loads = scenario("load", "loads_per_second = [50_000]", "");
    loads.machine = crate::kinds::requests::scenario::Machine::Builtin("ghost".to_owned());
    let facts = result(&loads).facts;
    for what in [
        "machine ghost",
        "machine ghost-on-host",
        "ghost: agent ghz 3",
        "ghost-on-host: agent ghz 3.5",
        "link on-host: host read ",
        "link mount-evans: host read ",
        "link mount-evans: dma ns per kib ",
    ] {
        let told = facts.iter().filter(|(fact, _)| fact.starts_with(what)).count();
        assert!(told > 0, "{what}: {facts:?}");
    }
    let distinct: std::collections::HashSet<_> = facts.iter().collect();
    assert_eq!(distinct.len(), facts.len(), "told twice");
}

#[test]
fn ladder_runs_with_more_cores_than_this_machine_has() {
    let mut ladder = scenario("ladder", "loads_per_second = [3_200_000]\nrounds = 6", "");
    ladder.variants.iter_mut().for_each(|variant| variant.host.cores = 16);
    let result = result(&ladder);
    let [shared, across] = &result.variants[..] else { panic!("two variants") };
    assert_eq!((shared.saturation_per_second, across.saturation_per_second), (None, None));
    let rungs = &result.ladder.as_ref().unwrap().rungs;
    assert!(rungs[1].per_second.value > 400e3, "{rungs:?}");
    assert!(rungs[1].of_first.is_some_and(|share| share.value <= 1.0));
    assert!(rungs.iter().all(|rung| rung.is_confirmed), "{rungs:?}");
    ladder.variants[0].host.cores = 241;
    let refused = run(&ladder, true, None, &Journal::none()).unwrap_err();
    assert!(refused.to_string().contains("cores is 241, allowed is 1 to 240"), "{refused}");
}

#[test]
fn killed_and_stopped_agents_lose_no_request() {
    let times = "[crash]\nkills = 4\nevery_ms = 100\nload_per_second = 40_000\n";
    let text = TEXT.replace("KIND", "crash").replace("LOADS", "").replace("seconds = 0.012\n", "");
    let crash = crate::kinds::requests::scenario::read(
        &wave_scenario::Source::new(Path::new("small.toml"), &(text + times)),
        policies::NAMES,
    )
    .unwrap();
    let extra = result(&crash).extra;
    assert_eq!((&extra["crashes"], &extra["requests_lost"]), (&8.into(), &0.into()));
    assert_eq!(extra["requests_done"], extra["requests_sent"]);
    // The watchdog's period is 20 ms; the end of a process is noticed at once.
    assert!(extra["fallback_after_stop_ms_max"].as_f64().is_some_and(|ms| ms > 20.0));
    assert!(extra["fallback_after_kill_ms_max"].as_f64().is_some_and(|ms| ms < 1.0));
}

#[test]
fn an_agent_with_a_slower_core_decides_later() {
    let p50_ns = |ghz| {
        let mut loads = scenario("load", "loads_per_second = [40_000]", "");
        loads.agents_mut().for_each(|agent| agent.ghz = ghz);
        result(&loads).variants.last().unwrap().points[0].classes[0].latency.p50_ns
    };
    assert!(p50_ns(Some(0.3)) > p50_ns(None));
}

#[test]
fn killing_an_enclaves_agent_does_not_disturb_others() {
    let enclaves = scenario("enclaves", "loads_per_second = [40_000]", "[enclaves]\ncount = 3\n");
    let result = result(&enclaves);
    assert_eq!(result.extra["undisturbed"], true);
    assert_eq!(result.extra["enclaves"].as_array().map(Vec::len), Some(6));
    assert_eq!(result.variants[0].workers, 6);
    assert_eq!(result.variants[0].points[0].classes.len(), 3);
}

#[test]
fn simulated_agent_log_replays_to_identical_decisions() {
    let directory = tempfile::tempdir().unwrap();
    let loads = scenario("load", "loads_per_second = [100_000]", "");
    run(&loads, true, Some(directory.path()), &Journal::none()).unwrap();
    let log = std::fs::read(directory.path().join("over-pcie-100000.wavelog")).unwrap();
    let mut reader = LogReader::new(&log).unwrap();
    let header = reader.header().clone();
    assert!(header.about.starts_with("scenario small, seed 1, over PCIe 100000"));
    let policy = policies::by_name(&header.policy, &header.config).unwrap();
    let mut replay = Replay::new(&header.config, policy);
    reader.by_ref().for_each(|record| replay.feed(&record.unwrap()));
    let tally = replay.finish();
    assert!(tally.is_identical() && tally.decisions > 500, "{tally:?}");
}

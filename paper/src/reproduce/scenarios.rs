//! Tests: scenarios with the paper's parameters have the results of `wave reproduce`.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;
use wave_core::link::Transport;
use wave_experiments::ground::Journal;
use wave_experiments::kinds::{Host, Kinds, Wanted};

use super::{placements, sol};

/// The object that `wave run --host sim --json` prints for this scenario.
fn simulated(text: &str) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let file: PathBuf = folder.path().join("small.toml");
    std::fs::write(&file, text).unwrap();
    let experiment = Kinds::default().load(&file, None).unwrap();
    let wanted = Wanted { host: Host::Sim, quiet: true, live: false, record: None };
    let report = experiment.run(&wanted, &Arc::new(Journal::none())).unwrap();
    assert!(report.failed().is_empty(), "{:?}", report.failed());
    serde_json::from_str(&report.json().unwrap()).unwrap()
}

/// A GiB, of which the paper's share is hot, each hot page touched every two seconds, for two epochs.
#[test]
fn memory_under_sol_costs_what_the_reproduction_says() {
    const STRIPS: u32 = 64;
    let hot = (f64::from(STRIPS) * 4096.0 * sol::HOT_SHARE) as u64;
    let result = simulated(&format!(
        "name = \"small\"\nkind = \"memory\"\n[workload]\nkeys = 4194304\nvalue_bytes = 248\ncache = \"1GiB\"\n\
         hot_keys = {}\nhot_gets = 1.0\ngets_per_second = {:?}\n[run]\nseconds = 76.8\nwarmup_seconds = 38\n\
         seed = 1\n[memory]\nrefaults_percent = 0.2\n[[variant]]\nname = \"without\"\n[[variant]]\nname = \"SOL\"\n\
         policy = \"sol:shortest_ms=600\"\n",
        sol::HOT_SHARE,
        hot as f64 * sol::HOT_PER_SECOND,
    ));
    let theirs = sol::manage_across(STRIPS, Transport::DmaAsync);
    let last = &result["variants"][1]["seconds"].as_array().unwrap().last().unwrap()["memory"];
    for (name, theirs) in &theirs.values {
        let nanos = |seconds: f64| (seconds * 1e9).round() as u64;
        let ours = nanos(last[&format!("{name}_cpu_seconds")].as_f64().unwrap());
        assert_eq!(ours, nanos(theirs / 100.0 * 76.8), "{name}");
        assert!(ours > 0, "{name}");
    }
    assert_eq!(theirs.values.len(), 2);
    assert_eq!((&result["host"], &result["get_p50_ratio"]), (&"sim".into(), &Value::Null));
    // The hot part stays, and nothing else does.
    let reduction = result["resident_reduction"].as_f64().unwrap();
    assert!((reduction - (1.0 - sol::HOT_SHARE)).abs() < 1e-3, "{reduction}");
}

/// 16 cores, of which a scheduler on the host takes one.
#[test]
fn rpc_placements_are_curves_of_the_reproduction() {
    let pcie = "model:mount-evans";
    let curves = [
        ("fig6a", "on-host-all", "onhost-all", placements::SHINJUKU, "shm"),
        ("fig6a", "offload-all-16", "offload-all", placements::SHINJUKU, pcie),
        ("fig6a", "on-host-scheduler", "onhost-scheduler", placements::SHINJUKU, pcie),
        ("fig6b", "offload-all-16", "offload-all", placements::MULTI_QUEUE, pcie),
        ("fig6b", "on-host-scheduler", "onhost-scheduler", placements::MULTI_QUEUE, pcie),
    ];
    for (group, id, placement, policy, link) in curves {
        const PER_SECOND: u32 = 60_000;
        let result = simulated(&format!(
            "name = \"small\"\nkind = \"rpc\"\n[workload]\nget_us = 10\nrange_us = 10_000\nrange_percent = 0.5\n\
             get_slo_us = 50\nrange_slo_us = 10_000\n[run]\nseconds = 0.26\nwarmup_seconds = 0.06\nseed = 1\n\
             loads_per_second = [{PER_SECOND}]\n[host]\ncores = 16\nthreads = 240\n[[variant]]\nname = \"{id}\"\n\
             placement = \"{placement}\"\npolicy = \"{policy}\"\nlink = \"{link}\"\n"
        ));
        let (theirs, agents) = placements::probe_of(group, id, PER_SECOND.into());
        let point = &result["variants"][0]["points"][0];
        let ours = ["sent", "done"].map(|key| point[key].as_u64());
        assert_eq!(ours, [Some(theirs.sent), Some(theirs.done)], "{group}-{id}");
        let achieved = point["achieved_per_second"].as_f64().unwrap();
        assert!((achieved - theirs.achieved_per_second).abs() < 1e-9, "{group}-{id}: {achieved}");
        let classes = point["classes"].as_array().unwrap();
        assert_eq!(classes.len(), theirs.classes.len(), "{group}-{id}");
        for (class, theirs) in classes.iter().zip(&theirs.classes) {
            assert_eq!(class["name"], theirs.name, "{group}-{id}");
            let of = &theirs.latency;
            let expected = [of.count, of.p50_ns, of.p90_ns, of.p99_ns, of.p999_ns, of.max_ns];
            let keys = ["count", "p50_ns", "p90_ns", "p99_ns", "p999_ns", "max_ns"];
            let ours = keys.map(|key| class["latency"][key].as_u64());
            assert_eq!(ours, expected.map(Some), "{group}-{id}: {class}");
        }
        let cpus = result["placements"][0]["compared"]["agent_cpus"].as_f64().unwrap();
        assert!((cpus - agents).abs() < 1e-8, "{group}-{id}: {cpus}, {agents}");
    }
}

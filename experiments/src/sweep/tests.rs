use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;
use wave_workloads::point::{ClassLatency, GeneratorLag, Point};
use wave_workloads::recorder::{Latency, encode, histogram};

use super::*;
use crate::kinds::Kinds;
use wave_terminal::Failure;

const TEXT: &str = r#"name = "cores"
description = "More & more cores"
kind = "load"
[run]
seconds = 0.25
warmup_seconds = 0.05
loads_per_second = [10_000, 33_333.3]
[[variant]]
name = "Linux"
placement = "linux"
[[variant]]
name = "offload"
placement = "offload"
policy = "fifo"
link = "model:mount-evans"
[sweep]
"host.cores" = [16, 32, 64]
"variant[offload].prestage" = [0, 2]
"run.seed" = [1, 2]
"#;

/// Rows and points of [`TEXT`]: without an agent there is nothing to prestage.
const ROWS: usize = 3 * 2 * 2 * 2 * 2;
const POINTS: usize = 3 * 2 * 2 + 3 * 2 * 2 * 2;

/// A machine computed by a formula: the same for the same arguments, with numbers that are not round.
#[derive(Default)]
struct Formula {
    run: AtomicUsize,
    /// Hangs after this many points.
    hangs_after: Option<usize>,
}

impl Runner for Formula {
    fn run_experiment(&self, _: &str, run: &ExperimentRun) -> Result<Value, RunError> {
        let text: toml::Table = toml::from_str(&run.text)?;
        let load = text["crash"]["load_per_second"].as_integer().unwrap() as f64;
        let of_agent = json!({ "name": "agent", "p99_ns": load * 3.0, "points": [1, 2] });
        Ok(
            json!({ "scenario": run.name, "crashes": 8, "lost": load / 7.0, "variants": [of_agent] }),
        )
    }

    fn point(
        &self,
        scenario: &Scenario,
        variant: usize,
        load_per_second: f64,
        seed: u64,
    ) -> Result<Point, RunError> {
        let number = self.run.fetch_add(1, Ordering::Relaxed);
        if self.hangs_after.is_some_and(|most| number >= most) {
            println!("\nhangs");
            // Until the process that waits to kill this one is gone itself.
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            std::process::exit(1);
        }
        let variant = &scenario.variants[variant];
        let cores = f64::from(variant.host.cores);
        let capacity = cores * 50_000.0;
        let prestage = variant.agent().map_or(0, |agent| agent.prestage);
        let mut latencies = histogram();
        for request in 0..1000u64 {
            let wait = (seed * 7919 + request * 104_729) % 50_000 / u64::from(prestage + 1);
            latencies.record(10_000 + wait)?;
        }
        let served = (capacity / load_per_second).min(1.0 - 1.0 / (3.0 + cores) / 1e3);
        Ok(Point {
            offered_per_second: load_per_second,
            achieved_per_second: load_per_second * served,
            sent: 1000,
            done: (1000.0 * served).ceil() as u64,
            refused: 0,
            duration_s: 1000.0 / load_per_second,
            classes: vec![ClassLatency {
                name: "GET".into(),
                latency: Latency::of(&latencies),
                histogram: encode(&latencies),
            }],
            generator: GeneratorLag {
                lag_p50_ns: 0,
                lag_p99_ns: 0,
                lag_max_ns: 0,
                valid: true,
                why_invalid: None,
            },
        })
    }
}

/// Fails at 32 cores, and panics at 64.
struct Picky;

impl Runner for Picky {
    fn run_experiment(&self, _: &str, _: &ExperimentRun) -> Result<Value, RunError> {
        Err("a check failed".into())
    }

    fn point(
        &self,
        scenario: &Scenario,
        variant: usize,
        load: f64,
        seed: u64,
    ) -> Result<Point, RunError> {
        match scenario.variants[variant].host.cores {
            32 => Err("32 requests were lost".into()),
            64 => panic!("the table is full"),
            _ => Formula::default().point(scenario, variant, load, seed),
        }
    }
}

fn plan_of(text: &str) -> Result<Plan, Failure> {
    Plan::new(&Kinds::default(), Path::new("scenarios/cores.toml"), text, None, "1.2.3")
}

fn plan() -> Plan {
    plan_of(TEXT).unwrap_or_else(|failure| panic!("{failure}"))
}

fn directory() -> TempDir {
    tempfile::tempdir().expect("a directory for this test")
}

/// Runs `shard` of `plan` into `out`.
fn run(plan: &Plan, out: &Path, shard: Shard, runner: &dyn Runner) -> Ran {
    let store = Store::open(out, &plan.manifest).unwrap_or_else(|failure| panic!("{failure}"));
    store.mark(shard, Path::new("my scenarios/cores.toml"), None).unwrap();
    run_shard(&plan.jobs, shard, &store, runner, 2, true).unwrap()
}

fn results(out: &Path) -> Vec<Vec<u8>> {
    RESULT_FILES.iter().map(|file| fs::read(out.join(file)).expect("a result")).collect()
}

fn points_in(out: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(out.join("points")).expect("the directory of points");
    entries.map(|entry| entry.expect("an entry").path()).collect()
}

#[test]
fn points_cover_variants_loads_and_values_and_run_once() {
    let plan = plan();
    assert_eq!((plan.manifest.rows.len(), plan.jobs.len()), (ROWS, POINTS));
    let ids: HashSet<&String> = plan.manifest.points.iter().collect();
    assert_eq!(ids.len(), POINTS);
    for job in &plan.jobs {
        let Work::Point(scenario) = &job.work else { panic!("{} is an experiment", job.label) };
        assert_eq!(scenario.variants.len(), 1, "{}", job.label);
    }
    let first = plan.manifest.rows[1].one.as_ref().unwrap();
    assert_eq!((first.variant.as_str(), first.load_per_second), ("Linux", Some(33_333.3)));
    assert_eq!(
        plan.jobs[2].label,
        "host.cores = 16, variant[offload].prestage = 0, run.seed = 1, offload: 10.0 k/s"
    );
}

#[test]
fn id_depends_on_configuration_seed_and_version_only() {
    let of = |path: &str, text: &str, version| {
        Plan::new(&Kinds::default(), Path::new(path), text, None, version).unwrap().manifest.points
    };
    let ids = of("scenarios/cores.toml", TEXT, "1.2.3");
    // This form is permanent: a later version must understand a store of today.
    assert!(!ids.is_empty());
    assert!(ids.iter().all(|id| id.len() == 16 && u64::from_str_radix(id, 16).is_ok()));
    assert_eq!(ids, of("/elsewhere/x.toml", &TEXT.replace("More & more", "Other"), "1.2.3"));
    let all_others = [
        of("scenarios/cores.toml", TEXT, "1.2.4"),
        of("scenarios/cores.toml", &TEXT.replace("0.25", "0.26"), "1.2.3"),
        of("scenarios/cores.toml", &TEXT.replace("[1, 2]", "[3, 4]"), "1.2.3"),
    ];
    for others in all_others {
        assert!(!others.is_empty());
        assert!(others.iter().all(|id| !ids.contains(id)));
    }
}

#[test]
fn cost_file_is_identified_by_its_content() {
    let (here, there) = (directory(), directory());
    let text = TEXT.replace("model:mount-evans", "model:mine.toml");
    let of = |directory: &Path, costs: &str| {
        fs::write(directory.join("mine.toml"), costs).unwrap();
        Plan::new(&Kinds::default(), &directory.join("x.toml"), &text, None, "1").unwrap().manifest
    };
    let manifest = of(here.path(), "a");
    assert_eq!(manifest, of(there.path(), "a"));
    assert_ne!(manifest.points, of(there.path(), "b").points);
    fs::remove_file(there.path().join("mine.toml")).unwrap();
    let refused =
        Plan::new(&Kinds::default(), &there.path().join("x.toml"), &text, None, "1").unwrap_err();
    assert!(refused.to_string().contains("named by the scenario"), "{refused}");
}

#[test]
fn axes_without_effect_are_refused() {
    let refused = |text: &str| {
        let failure = plan_of(text).expect_err("the plan is refused");
        assert_eq!(failure.exit_code(), 2);
        failure.to_string()
    };
    let own_cores = TEXT.replace("placement = ", "cores = 8\nplacement = ");
    assert_eq!(
        refused(&own_cores),
        "scenarios/cores.toml:19: [sweep] \"host.cores\" makes no difference to any variant, \
         expected a field that no variant overrides"
    );
    // Every class has a service time of its own.
    let own_times = TEXT
        .replace(
            "[run]",
            "[workload]\nclasses = [{ name = \"A\", weight = 1, service_us = 7 }]\n[run]",
        )
        .replace("\"run.seed\" = [1, 2]", "\"workload.service_us\" = [5, 6]");
    assert!(refused(&own_times).contains("\"workload.service_us\" makes no difference"));
}

/// A scenario whose points are whole experiments.
const CRASH: &str = r#"name = "c"
kind = "crash"
[crash]
load_per_second = 500
[[variant]]
name = "a"
placement = "onhost"
policy = "fifo"
[sweep]
"crash.load_per_second" = [700, 1400]
"run.seed" = [1, 2]
"#;

#[test]
fn each_combination_of_an_experiment_is_a_point_with_the_figures_that_differ() {
    let plan = plan_of(CRASH).unwrap();
    assert_eq!((plan.manifest.rows.len(), plan.jobs.len()), (4, 4));
    assert_eq!(plan.jobs[1].label, "crash.load_per_second = 700, run.seed = 2");
    let out = directory();
    let failed = run(&plan, out.path(), Shard::WHOLE, &Picky).failed;
    assert_eq!((failed.len(), failed[0].1.as_str()), (4, "a check failed"));
    assert_eq!(run(&plan, out.path(), Shard::WHOLE, &Formula::default()).ran, 4);
    let merged = merge(out.path()).unwrap().unwrap();
    // What is equal in all rows is not shown.
    let table = &merged.table;
    assert!(table.starts_with("SIMULATED in virtual time"), "{table}");
    assert!(table.contains("lost") && !table.contains("crashes"), "{table}");
    assert!(table.contains("p99_ns") && table.contains("4200"), "{table}");
    assert!(table.ends_with("2 of 3 figures; results.csv has all."), "{table}");
    let csv = fs::read_to_string(out.path().join("results.csv")).unwrap();
    let mut lines = csv.lines();
    let head = "id,crash.load_per_second,run.seed,crashes,lost,variants[agent].p99_ns";
    assert_eq!(lines.next(), Some(head));
    assert!(lines.next().unwrap().ends_with(",700,1,8,100,2100"), "{csv}");
    let page = fs::read_to_string(out.path().join("report.html")).unwrap();
    assert!(page.contains("Against crash.load_per_second"));
    let json = fs::read(out.path().join("results.json")).unwrap();
    let json: Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(json["rows"][3]["run"]["variants"][0]["points"], json!([1, 2]));
}

#[test]
fn a_file_of_an_experiment_is_named_by_its_absolute_path() {
    let text = "name = \"x\"\nkind = \"udp\"\n[run]\noutstanding = [1]\n[host]\nlink = \"model:mine.toml\"\n\
                [sweep]\n\"run.rounds\" = [1, 2]\n";
    let folder = directory();
    fs::write(folder.path().join("mine.toml"), "").unwrap();
    let plan =
        Plan::new(&Kinds::default(), &folder.path().join("x.toml"), text, None, "1").unwrap();
    let Work::Run(run) = &plan.jobs[0].work else { panic!("not an experiment") };
    let mine = format!("model:{}", folder.path().join("mine.toml").display());
    assert!(run.text.contains(&mine), "{}", run.text);
}

proptest! {
    #[test]
    fn every_point_is_in_exactly_one_shard(points in 0usize..500, count in 1usize..70) {
        let shards: Vec<Shard> =
            (0..count).map(|index| format!("{index}/{count}").parse().unwrap()).collect();
        let mut sizes = vec![0; count];
        for number in 0..points {
            let of: Vec<usize> = (0..count).filter(|shard| shards[*shard].has(number)).collect();
            prop_assert_eq!(of.len(), 1);
            sizes[of[0]] += 1;
        }
        let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
        prop_assert!(most - least <= 1);
    }
}

#[test]
fn malformed_shard_is_refused() {
    for text in ["", "1", "4/4", "0/0", "-1/2", "a/b", "1/2/3"] {
        assert!(text.parse::<Shard>().is_err(), "{text}");
    }
}

/// Starts `shard` as a process of its own, for the scenario `file` into `out`; it hangs after some points if told to.
fn start(file: &Path, out: &Path, shard: &str, hangs_after: Option<usize>) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command
        .args(["--exact", "sweep::tests::a_shard_in_a_process_of_its_own", "--nocapture"])
        .env("WAVE_TEST_SWEEP", format!("{}\n{}\n{shard}", file.display(), out.display()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    if let Some(points) = hangs_after {
        command.env("WAVE_TEST_SWEEP_HANGS_AFTER", points.to_string());
    }
    command.spawn().expect("a process")
}

/// The body of the process that [`start`] starts; does nothing in an ordinary run of the tests.
#[test]
fn a_shard_in_a_process_of_its_own() {
    let Ok(told) = std::env::var("WAVE_TEST_SWEEP") else {
        return;
    };
    let told: Vec<&str> = told.lines().collect();
    let hangs_after = std::env::var("WAVE_TEST_SWEEP_HANGS_AFTER").ok();
    let hangs_after = hangs_after.map(|points| points.parse().expect("a number"));
    let plan = Plan::load(&Kinds::default(), Path::new(told[0]), None, "1.2.3").unwrap();
    let runner = Formula { hangs_after, ..Formula::default() };
    let ran = run(&plan, Path::new(told[1]), told[2].parse().unwrap(), &runner);
    assert_eq!(ran.failed, []);
}

#[test]
fn killed_and_restarted_shards_give_the_same_bytes_as_one_process() {
    let directory = directory();
    let file = directory.path().join("cores.toml");
    fs::write(&file, TEXT).unwrap();
    let (whole, parts) = (directory.path().join("whole"), directory.path().join("parts"));
    assert!(start(&file, &whole, "0/1", None).wait().unwrap().success());
    assert!(matches!(merge(&whole), Ok(Ok(_))));

    let hangs = [None, Some(2), None, Some(3)];
    let mut shards: Vec<Child> =
        (0..4).map(|shard| start(&file, &parts, &format!("{shard}/4"), hangs[shard])).collect();
    for (shard, hangs) in shards.iter_mut().zip(hangs) {
        if hangs.is_some() {
            let lines = BufReader::new(shard.stdout.take().unwrap()).lines();
            assert!(lines.map_while(Result::ok).any(|line| line == "hangs"));
            shard.kill().unwrap();
        }
        assert_eq!(shard.wait().unwrap().success(), hangs.is_none());
    }
    // And a machine that lost the end of a file.
    let plan = plan();
    let damaged = parts.join("points").join(format!("{}.json", plan.jobs[2].id));
    let bytes = fs::read(&damaged).unwrap();
    fs::write(&damaged, &bytes[..bytes.len() / 2]).unwrap();

    let missing = merge(&parts).unwrap().expect_err("two shards were killed");
    assert_eq!(missing.damaged, [plan.jobs[2].id.clone()]);
    let told: Vec<&str> = missing.commands.iter().map(|(shard, ..)| shard.as_str()).collect();
    assert_eq!(told, ["1/4", "2/4", "3/4"]);
    assert_eq!(
        missing.commands.iter().map(|(_, lacks, _)| lacks).sum::<usize>(),
        missing.missing.len()
    );
    assert!(missing.missing.len() < POINTS, "points written before a kill are kept");
    assert!(missing.commands[0].2.ends_with("parts --shard 1/4"), "{}", missing.commands[0].2);
    assert!(missing.commands[0].2.starts_with("wave sweep 'my scenarios/cores.toml' --out "));

    for shard in ["1/4", "2/4", "3/4"] {
        assert!(start(&file, &parts, shard, None).wait().unwrap().success());
    }
    // A kill leaves this of a file that was being written.
    fs::write(parts.join("points/.new-abc"), "{").unwrap();
    let merged = merge(&parts).unwrap().expect("every point is there");
    assert_eq!((merged.points, merged.rows), (POINTS, ROWS));
    assert_eq!(results(&parts), results(&whole));
    assert_eq!(points_in(&parts).len(), POINTS);
}

#[test]
fn finished_points_are_kept_and_damaged_ones_run_again() {
    let (plan, out) = (plan(), directory());
    let out = out.path();
    assert_eq!(run(&plan, out, Shard::WHOLE, &Formula::default()).ran, POINTS);
    merge(out).unwrap().unwrap();
    let before = results(out);
    let files = points_in(out);
    // Truncated; another point's; changed in one digit; not JSON at all.
    let whole = fs::read(&files[0]).unwrap();
    fs::write(&files[0], &whole[..whole.len() - 3]).unwrap();
    fs::copy(&files[1], &files[2]).unwrap();
    let text = fs::read_to_string(&files[3]).unwrap();
    assert!(text.contains("\"sent\":1000"));
    fs::write(&files[3], text.replace("\"sent\":1000", "\"sent\":1001")).unwrap();
    fs::write(&files[4], "").unwrap();
    let again = run(&plan, out, Shard::WHOLE, &Formula::default());
    assert_eq!(again, Ran { kept: POINTS - 4, ran: 4, failed: vec![] });
    merge(out).unwrap().unwrap();
    assert_eq!(results(out), before);
}

#[test]
fn failing_point_is_reported_and_the_others_run() {
    let (plan, out) = (plan(), directory());
    let ran = run(&plan, out.path(), Shard::WHOLE, &Picky);
    assert_eq!((ran.ran, ran.failed.len()), (POINTS / 3, POINTS / 3 * 2));
    let why = |cores: &str| {
        let of = ran
            .failed
            .iter()
            .find(|(label, _)| label.starts_with(&format!("host.cores = {cores}")));
        of.map(|(_, why)| why.as_str())
    };
    assert_eq!(why("32"), Some("32 requests were lost"));
    let panicked = why("64").unwrap();
    assert!(
        panicked.starts_with("panic at ") && panicked.ends_with(": the table is full"),
        "{panicked}"
    );
    assert!(merge(out.path()).unwrap().is_err());
    assert_eq!(run(&plan, out.path(), Shard::WHOLE, &Formula::default()).ran, POINTS / 3 * 2);
    assert!(merge(out.path()).unwrap().is_ok());
}

#[test]
fn search_is_one_point_and_its_row_shows_the_saturation() {
    let text = TEXT.replace(
        "loads_per_second = [10_000, 33_333.3]",
        "search = { low = 100_000, high = 10_000_000, probes = 30 }",
    );
    let (plan, out) = (plan_of(&text).unwrap(), directory());
    assert_eq!(plan.jobs.len(), POINTS / 2);
    run(&plan, out.path(), Shard::WHOLE, &Formula::default());
    merge(out.path()).unwrap().unwrap();
    let mut reader = csv::Reader::from_path(out.path().join("results.csv")).unwrap();
    let header = reader.headers().unwrap().clone();
    let column = |name: &str| header.iter().position(|other| other == name).unwrap();
    let mut rows = 0;
    for row in reader.records() {
        let row = row.unwrap();
        let cores: f64 = row[column("host.cores")].parse().unwrap();
        let saturation: f64 = row[column("saturation_per_second")].parse().unwrap();
        assert!(
            (0.98..1.02).contains(&(saturation / (cores * 50_000.0))),
            "{saturation} of {cores}"
        );
        assert_eq!(&row[column("search_end")], "found");
        assert!(!row[column("GET_p99_ns")].is_empty());
        rows += 1;
    }
    assert_eq!(rows, ROWS / 2);
}

#[test]
fn results_have_every_row_and_a_plot_per_metric_and_axis() {
    let (plan, out) = (plan(), directory());
    run(&plan, out.path(), Shard::WHOLE, &Formula::default());
    merge(out.path()).unwrap().unwrap();
    let [json, csv, html] =
        RESULT_FILES.map(|file| fs::read_to_string(out.path().join(file)).unwrap());
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let row = &json["rows"][3];
    assert_eq!(row["axes"]["host.cores"], 16);
    assert_eq!((&row["variant"], &row["load_per_second"]), (&"offload".into(), &33_333.3.into()));
    let point: Point = serde_json::from_value(row["point"].clone()).unwrap();
    let decoded = wave_workloads::recorder::decode(&point.classes[0].histogram).unwrap();
    assert_eq!(Latency::of(&decoded), point.classes[0].latency);

    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines.len(), 1 + ROWS);
    assert!(lines[0].starts_with("id,host.cores,variant[offload].prestage,run.seed,variant,"));
    assert!(lines[4].contains(&format!(",{},", point.achieved_per_second)));

    // Three axes and the load; throughput, share served and three percentiles; no saturation.
    assert_eq!(html.matches("<svg").count(), 4 * 5);
    assert!(html.contains("More &amp; more cores"));
    assert!(html.contains("GET p99 latency against host.cores"));
    // Curves that differ in more than their variant have distinct names.
    for name in
        ["Linux, prestage = 0, seed = 1, 10 k/s", "offload, prestage = 2, seed = 2, 33.33 k/s"]
    {
        assert!(html.contains(name), "{name}");
    }
}

#[test]
fn finished_sweep_has_a_table_and_an_unfinished_one_has_none() {
    let (plan, out) = (plan(), directory());
    run(&plan, out.path(), Shard { index: 0, count: 2 }, &Formula::default());
    assert_eq!(table(out.path()).unwrap(), None);
    run(&plan, out.path(), Shard { index: 1, count: 2 }, &Formula::default());
    let table = table(out.path()).unwrap().expect("every point is there");
    assert_eq!(merge(out.path()).unwrap().unwrap().table, table);
    // After the notice that it is simulated.
    let head = table.lines().nth(2).unwrap();
    for name in ["host.cores", "variant[offload].prestage", "run.seed", "variant", "GET p99"] {
        assert!(head.contains(name), "{head}");
    }
    // Each row is for one of two variants.
    assert_eq!(table.lines().filter(|line| line.contains("Linux")).count(), ROWS / 2);
}

#[test]
fn other_sweep_in_the_same_directory_is_refused_with_advice() {
    let out = directory();
    let open = |text: &str, version: &str| {
        let plan = Plan::new(&Kinds::default(), Path::new("x.toml"), text, None, version).unwrap();
        Store::open(out.path(), &plan.manifest)
    };
    open(TEXT, "1.2.3").unwrap();
    open(TEXT, "1.2.3").unwrap();
    let refused = |text: &str, version: &str| {
        let failure = open(text, version).expect_err("the store is refused");
        assert_eq!(failure.exit_code(), 2);
        let text = failure.to_string();
        assert!(text.ends_with("give another directory with --out, or remove this one"), "{text}");
        text
    };
    let name = TEXT.replace("\"cores\"", "\"others\"");
    assert!(refused(&name, "1.2.3").contains("a sweep of another scenario, cores"));
    assert!(refused(TEXT, "2").contains("a sweep of version 1.2.3 of this program, which is 2"));
    let seconds = TEXT.replace("0.25", "0.35");
    assert!(
        refused(&seconds, "1.2.3").contains("another text of cores, which differs from line 5 on")
    );
}

#[test]
fn directory_without_a_sweep_is_not_merged() {
    let out = directory();
    let refused = |what: &str| {
        let failure = merge(out.path()).expect_err("the merge is refused");
        assert_eq!(failure.exit_code(), 2);
        assert!(failure.to_string().contains(what), "{failure}");
    };
    refused("expected a directory made by `wave sweep --out`");
    fs::write(out.path().join("sweep.json"), "{").unwrap();
    refused("not a manifest");
    let mut manifest = plan().manifest;
    manifest.points[0] = "../../etc/passwd".into();
    fs::write(out.path().join("sweep.json"), manifest.to_text()).unwrap();
    refused("its rows do not fit its points");
}

//! A user's policies in simulated scenarios and sweeps: `wave run --host sim --agent`, `wave sweep --agent`, and `run`
//! and `sweep` of a laboratory.

use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, ExitCode, Output};

use serde_json::Value;
use wave_agent::Registry;
use wave_core::clock::Nanos;
use wave_core::policy::Policy;
use wave_core::settings::{Known, Policies, Setting};
use wave_sched::policies::fifo::Fifo;
use wave_sched::scheduler::{Run, Scheduled, Scheduler, Thread};

/// Runs the waiting thread that has used the least time, for a slice.
struct Fair {
    queue: BTreeSet<(u64, u32, u16)>,
    held: Vec<Option<Thread>>,
    time: Vec<u64>,
    slice: Nanos,
}

impl Scheduler for Fair {
    fn ready(&mut self, thread: Thread) {
        let id = thread.id() as usize;
        if thread.is_woken() {
            self.time[id] = self.queue.first().map_or(0, |first| first.0);
        }
        self.queue.insert((self.time[id], thread.id(), thread.class()));
        self.held[id] = Some(thread);
    }

    fn pick(&mut self, _core: u16) -> Option<Run> {
        let (_, id, _) = self.queue.pop_first()?;
        self.held[id as usize].take().map(|thread| Run::for_slice(thread, self.slice))
    }

    fn ran(&mut self, thread: Thread, time: Nanos) {
        self.time[thread.id() as usize] += time.0;
    }
}

/// Panics at its thousandth pick.
#[derive(Default)]
struct Bomb(VecDeque<Thread>, u32);

impl Scheduler for Bomb {
    fn ready(&mut self, thread: Thread) {
        self.0.push_back(thread);
    }

    fn pick(&mut self, _core: u16) -> Option<Run> {
        self.1 += 1;
        // A policy may print without disturbing its answers.
        println!("pick {}", self.1);
        assert!(self.1 < 1000, "boom");
        self.0.pop_front().map(Run::to_completion)
    }
}

const fn known(name: &'static str) -> Known {
    Known { name, about: "a test's", settings: &[] }
}

static OWN: Policies<dyn Policy + Send> = Policies(&[
    (
        Known {
            name: "fair",
            about: "the least time first",
            settings: &[Setting::number("slice_us", "30", 1..=1_000_000, "how long a turn lasts")],
        },
        |config, settings| {
            let subjects = config.subjects as usize;
            let fair = Fair {
                queue: BTreeSet::new(),
                held: vec![None; subjects],
                time: vec![0; subjects],
                slice: Nanos::from_micros(settings.number("slice_us")),
            };
            Ok(Box::new(Scheduled::of(config, fair)))
        },
    ),
    (known("bomb"), |config, _| Ok(Box::new(Scheduled::of(config, Bomb::default())))),
    (known("my-fifo"), |config, _| Ok(Box::new(Fifo::new(config)))),
]);

const ROLE: &str = "WAVE_TEST_LABORATORY";

/// Body of a laboratory's process, whose arguments are in an environment variable.
#[test]
fn laboratory_process() {
    let Some(arguments) = std::env::var_os(ROLE) else { return };
    let registry = Registry::shipped().with_policies(&OWN);
    let arguments = arguments.into_string().unwrap();
    let code = wave_lab::run_from(&registry, arguments.split_whitespace());
    std::process::exit(i32::from(code != ExitCode::SUCCESS));
}

/// A folder with the program `lab`, which is this test in its role, and the scenario `own.toml`.
struct Place(tempfile::TempDir);

impl Place {
    fn new(scenario: &str) -> Place {
        let folder = tempfile::tempdir().unwrap();
        let test = std::env::current_exe().unwrap();
        let script = format!(
            "#!/bin/sh\n{ROLE}=\"$*\" exec {} --exact laboratory_process --nocapture\n",
            test.display()
        );
        let lab = folder.path().join("lab");
        fs::write(&lab, script).unwrap();
        fs::set_permissions(&lab, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(folder.path().join("own.toml"), scenario).unwrap();
        Place(folder)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn wave(&self, words: &str) -> Output {
        let mut wave = Command::new(env!("CARGO_BIN_EXE_wave"));
        // Set for all programs in many shells; a panic is one sentence even so.
        wave.env("RUST_BACKTRACE", "1");
        wave.args(words.split_whitespace()).current_dir(self.path()).output().unwrap()
    }

    fn json(&self, words: &str) -> Value {
        let output = self.wave(words);
        assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

const SCENARIO: &str = r#"name = "own"
kind = "load"
[workload]
classes = [
  { name = "GET", weight = 98, service_us = 15 },
  { name = "SCAN", weight = 2, service_us = 1000 },
]
[run]
seconds = 0.02
warmup_seconds = 0.005
loads_per_second = [20_000]
[host]
cores = 2
machine = "ghost"
[[variant]]
name = "far"
placement = "offload"
link = "model:mount-evans"
policy = "POLICY"
"#;

#[test]
fn own_policy_is_simulated_as_if_wave_shipped_it() {
    let run = |policy: &str, more: &str| {
        let place = Place::new(&SCENARIO.replace("POLICY", policy));
        let mut result = place.json(&format!("run own.toml --host sim --json {more}"));
        ["started", "machine"]
            .iter()
            .for_each(|key| drop(result.as_object_mut().unwrap().remove(*key)));
        let folder = place.path().join("out/own.sim");
        assert!(folder.join("report.html").exists() && folder.join("points.csv").exists());
        result.to_string().replace("my-fifo", "fifo")
    };
    // The same decisions in another process give the same result, to the last digit.
    assert_eq!(run("my-fifo", "--agent ./lab"), run("fifo", ""));
    assert_eq!(run("shinjuku:slice_us=30", "--agent ./lab"), run("shinjuku:slice_us=30", ""));
    let p99_of_gets = |text: &str| {
        let result: Value = serde_json::from_str(text).unwrap();
        result["variants"][0]["points"][0]["classes"][0]["latency"]["p99_ns"].as_u64().unwrap()
    };
    // GETs wait for a slice, not for a whole SCAN.
    assert!(p99_of_gets(&run("fair", "--agent ./lab")) < p99_of_gets(&run("fifo", "")));
}

#[test]
fn own_policy_is_swept_with_a_plot() {
    let sweep = SCENARIO.replace("POLICY", "fair") + "[sweep]\n\"host.cores\" = [2, 4]\n";
    let place = Place::new(&sweep);
    let ran = place.json("sweep own.toml --agent ./lab --out swept --json");
    assert_eq!((&ran["ran"], &ran["failed"]), (&2.into(), &Value::Array(Vec::new())), "{ran}");
    // The command that is shown for missing points names the program.
    let points = place.path().join("swept/points");
    let point = fs::read_dir(&points).unwrap().next().unwrap().unwrap().path();
    let kept = fs::read(&point).unwrap();
    fs::remove_file(&point).unwrap();
    let missing = place.wave("merge swept");
    let says = [missing.stdout, missing.stderr].concat();
    let says = String::from_utf8_lossy(&says).into_owned();
    assert!(says.contains("wave sweep own.toml --out swept --agent "), "{says}");
    fs::write(&point, kept).unwrap();
    let again = place.json("sweep own.toml --agent ./lab --out swept --json");
    assert_eq!((&again["kept"], &again["ran"]), (&2.into(), &0.into()));
    assert!(place.wave("merge swept").status.success());
    let page = fs::read_to_string(place.path().join("swept/report.html")).unwrap();
    assert!(page.contains("<svg"), "no plot");
    // Without --agent there is no such policy, and the error names the option that the help has.
    let refused = place.wave("sweep own.toml --out other");
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{why}");
    assert!(why.contains("--agent PROGRAM runs policies of your own"), "{why}");
    let help = String::from_utf8(place.wave("sweep --help").stdout).unwrap();
    assert!(help.contains("--agent <PROGRAM>"), "{help}");
}

#[test]
fn kinds_without_points_are_swept_under_an_own_policy() {
    let crash = SCENARIO.replace("POLICY", "fair").replace("kind = \"load\"", "kind = \"crash\"");
    let crash = crash.replace("seconds = 0.02\n", "").replace("loads_per_second = [20_000]\n", "");
    let crash = crash + "[crash]\nkills = 2\nevery_ms = 100\nload_per_second = 20_000\n";
    let place = Place::new(&(crash + "[sweep]\n\"host.cores\" = [2]\n"));
    let ran = place.json("sweep own.toml --agent ./lab --out swept --json");
    assert_eq!((&ran["ran"], &ran["failed"]), (&1.into(), &Value::Array(Vec::new())), "{ran}");
}

#[test]
fn laboratory_that_finds_no_wave_says_how_to_name_it() {
    let place = Place::new(&SCENARIO.replace("POLICY", "fair"));
    let mut lab = Command::new(place.path().join("lab"));
    let output = lab.args(["run", "own.toml"]).env("WAVE", "/nowhere/wave").output().unwrap();
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(why.contains("/nowhere/wave cannot be started") && why.contains("set WAVE="), "{why}");
}

#[test]
fn panic_of_a_policy_is_one_sentence_in_every_simulating_command() {
    let enough = SCENARIO.replace("[20_000]", "[150_000]").replace("cores = 2", "cores = 8");
    let place = Place::new(&enough.replace("POLICY", "bomb"));
    let one_sentence = |output: &Output, what: &str| {
        let errors = String::from_utf8_lossy(&output.stderr);
        let about: Vec<&str> = errors.lines().filter(|line| line.contains("boom")).collect();
        assert_eq!(output.status.code(), Some(1), "{what}: {errors}");
        assert_eq!(about.len(), 1, "{what}: {errors}");
        assert!(
            about[0].contains("bomb") && about[0].contains("own_policy_simulated.rs:"),
            "{errors}"
        );
        assert!(!errors.contains("RUST_BACKTRACE") && !errors.contains("thread '"), "{errors}");
    };
    one_sentence(&place.wave("run own.toml --host sim --quiet --agent ./lab"), "run");
    one_sentence(&place.wave("sweep own.toml --quiet --agent ./lab --out swept"), "sweep");
    let lab = |words: &str| {
        let mut lab = Command::new(place.path().join("lab"));
        lab.args(words.split_whitespace()).current_dir(place.path()).output().unwrap()
    };
    one_sentence(&lab("simulate --policy bomb --load 20000"), "simulate");
}

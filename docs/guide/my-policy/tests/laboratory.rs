//! The laboratory's commands run the policies of this crate.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, ExitCode};

use wave_agent::Registry;
use wave_core::clock::Nanos;
use wave_core::policy::Policy;
use wave_core::settings::{Known, Policies};
use wave_lab::Invariant;
use wave_sched::scheduler::{Run, Scheduled, Scheduler, Thread};

/// Has cargo build and run `examples/lab.rs` in this test's profile, and returns its output.
fn lab(arguments: &str) -> String {
    lab_with(arguments, OsStr::new("wave"))
}

/// As [`lab`], with this program `wave`.
fn lab_with(arguments: &str, wave: &OsStr) -> String {
    let test = std::env::current_exe().unwrap();
    // TARGET/PROFILE/deps/laboratory-1234
    let profile = test.ancestors().nth(2).unwrap();
    let name = match profile.file_name().unwrap().to_str().unwrap() {
        "debug" => "dev",
        name => name,
    };
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["run", "--quiet", "--locked", "--offline", "--example", "lab", "--profile", name]);
    cargo.args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")]);
    cargo.arg("--target-dir").arg(profile.parent().unwrap());
    cargo.arg("--").args(arguments.split_whitespace()).env("WAVE", wave);
    let output = cargo.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_laboratory_lists_policies_with_their_settings() {
    let list = lab("policies");
    assert!(list.contains("lottery") && list.contains("the tickets of each class"), "{list}");
    assert!(list.contains("shinjuku"), "{list}");
}

#[test]
fn the_laboratory_simulates_policies() {
    let policies = ["fifo", "lottery:tickets=20/1,slice_us=50"];
    let table = lab(&format!(
        "simulate --load 50000 --measure-ms 100 --policy {} --policy {}",
        policies[0], policies[1]
    ));
    let get_p50_us = |policy: &str| {
        let line = table.lines().find(|line| line.starts_with(policy)).unwrap();
        line.split_whitespace().nth(6).unwrap().parse::<f64>().unwrap()
    };
    // GETs do not wait for a RANGE query to end.
    let [fifo, lottery] = policies.map(get_p50_us);
    assert!(lottery < fifo, "{table}");
}

/// First in, first out, but forgets every hundredth thread, which then starves.
#[derive(Default)]
struct Forgets(VecDeque<Thread>, u32);

impl Scheduler for Forgets {
    fn ready(&mut self, thread: Thread) {
        self.1 += 1;
        if !self.1.is_multiple_of(100) {
            self.0.push_back(thread);
        }
    }

    fn pick(&mut self, _core: u16) -> Option<Run> {
        self.0.pop_front().map(Run::to_completion)
    }
}

static BROKEN: Policies<dyn Policy + Send> =
    Policies(&[(Known { name: "forgets", about: "loses threads", settings: &[] }, |config, _| {
        Ok(Box::new(Scheduled::of(config, Forgets::default())))
    })]);

/// Threads of class 1 write to one file: no two of them run at once. Nothing is prestaged, so a core that asks runs
/// nothing.
#[derive(Default)]
struct Writers {
    writers: VecDeque<Thread>,
    others: VecDeque<Thread>,
    /// The core that was given a writer.
    on: Option<u16>,
    /// Whether it breaks its promise.
    lies: bool,
}

impl Scheduler for Writers {
    fn ready(&mut self, thread: Thread) {
        let line = if thread.class() == 1 { &mut self.writers } else { &mut self.others };
        line.push_back(thread);
    }

    fn pick(&mut self, core: u16) -> Option<Run> {
        if self.lies || self.on.is_none_or(|on| on == core) {
            if let Some(thread) = self.writers.pop_front() {
                self.on = Some(core);
                return Some(Run::to_completion(thread));
            }
            self.on = None;
        }
        self.others.pop_front().map(Run::to_completion)
    }

    fn may_prestage(&self, _cores: u16) -> bool {
        false
    }

    fn idles_for(&self) -> Nanos {
        Nanos::from_millis(20)
    }
}

const fn known(name: &'static str) -> Known {
    Known { name, about: "one writer at a time", settings: &[] }
}

static WRITERS: Policies<dyn Policy + Send> = Policies(&[
    (known("writers"), |config, _| Ok(Box::new(Scheduled::of(config, Writers::default())))),
    (known("lying-writers"), |config, _| {
        Ok(Box::new(Scheduled::of(config, Writers { lies: true, ..Writers::default() })))
    }),
]);

const fn one_writer(policy: &'static str) -> Invariant {
    Invariant {
        name: "one-writer",
        about: "no two threads of class 1 run at once",
        policy,
        make: |_config| {
            Box::new(|host| match host.running().filter(|thread| thread.class == 1).count() {
                0 | 1 => Ok(()),
                count => Err(format!("{count} threads of class 1 run")),
            })
        },
    }
}

static INVARIANTS: [Invariant; 2] = [one_writer("writers"), one_writer("lying-writers")];

#[test]
fn the_fuzzer_takes_a_policy_that_idles_on_purpose_and_checks_its_invariant() {
    let registry = Registry::shipped().with_policies(&WRITERS);
    let fuzz = |policy| {
        let arguments = ["fuzz", "--seeds", "8", "--quiet", "--policy", policy];
        wave_lab::run_with_invariants(&registry, &INVARIANTS, arguments)
    };
    assert_eq!(fuzz("writers"), ExitCode::SUCCESS);
    assert_eq!(fuzz("lying-writers"), ExitCode::FAILURE);
}

const SCENARIO: &str = r#"name = "worth-it"
kind = "load"
[run]
seconds = 0.02
warmup_seconds = 0.005
loads_per_second = [20_000]
[host]
machine = "ghost"
cores = 4
[[variant]]
name = "far"
placement = "offload"
policy = "lottery:slice_us=30"
link = "model:mount-evans"
[sweep]
"host.cores" = [2, 4]
"#;

/// Needs the program `wave`: WAVE=PATH, or the one that this repository's tests have built.
#[test]
fn the_laboratory_runs_and_sweeps_scenarios_under_own_policies_with_plots() {
    let built = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../target/debug/wave");
    let wave = std::env::var_os("WAVE").unwrap_or_else(|| built.into());
    if !Path::new(&wave).exists() {
        eprintln!("left out: {} does not exist", Path::new(&wave).display());
        return;
    }
    let folder = std::env::temp_dir().join(format!("my-policy-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (swept, once) = (folder.join("swept.toml"), folder.join("once.toml"));
    std::fs::write(&swept, SCENARIO).unwrap();
    std::fs::write(&once, SCENARIO.split("[sweep]").next().unwrap()).unwrap();
    let out = folder.display();
    lab_with(&format!("run {out}/once.toml --out {out}/out --quiet"), &wave);
    lab_with(&format!("sweep {out}/swept.toml --out {out}/store --quiet"), &wave);
    let merged = Command::new(&wave).arg("merge").arg(folder.join("store")).output().unwrap();
    assert!(merged.status.success(), "{}", String::from_utf8_lossy(&merged.stderr));
    for page in ["out/worth-it.sim/report.html", "store/report.html"] {
        let page = std::fs::read_to_string(folder.join(page)).unwrap();
        assert!(page.contains("<svg"), "no plot");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_fuzzer_finds_only_the_policy_that_forgets_threads() {
    let registry = Registry::shipped().with_policies(&my_policy::POLICIES).with_policies(&BROKEN);
    let fuzz = |policy| {
        wave_lab::run_from(&registry, ["fuzz", "--seeds", "4", "--quiet", "--policy", policy])
    };
    assert_eq!(fuzz("forgets"), ExitCode::FAILURE);
    for policy in ["lottery", "two-class", "fifo"] {
        assert_eq!(fuzz(policy), ExitCode::SUCCESS, "{policy}");
    }
}

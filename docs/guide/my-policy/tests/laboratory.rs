//! The laboratory's commands run the policies of this crate.

use std::collections::VecDeque;
use std::process::{Command, ExitCode};

use wave_agent::Registry;
use wave_core::policy::Policy;
use wave_core::settings::{Known, Policies};
use wave_sched::scheduler::{Run, Scheduled, Scheduler, Thread};

/// Has cargo build and run `examples/lab.rs` in this test's profile, and returns its output.
fn lab(arguments: &str) -> String {
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
    let output = cargo.arg("--").args(arguments.split_whitespace()).output().unwrap();
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

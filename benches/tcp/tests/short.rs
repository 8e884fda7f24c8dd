//! Short runs of each TCP bench: they must measure something; the values are not checked.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// The JSON object of a bench; `None` if this machine cannot run it.
fn run(line: &str) -> Option<Value> {
    if !rustix::process::geteuid().is_root() {
        wave_skip::skip("the bench's network namespaces need root");
        return None;
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_wave-bench-tcp"));
    let output = command.args(line.split_whitespace()).arg("--json").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let reasons =
        ["two CPUs", "ip(8) is not installed", "/dev/net/tun", "cannot create a network namespace"];
    if let Some(reason) = reasons.iter().find(|reason| said.contains(*reason))
        && output.status.code() == Some(3)
    {
        wave_skip::skip(format!("{reason}: {said}"));
        return None;
    }
    assert!(output.status.success(), "{line}: {said}");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

/// The number at a path of keys.
fn number(value: &Value, path: &str) -> f64 {
    let found = path.split('.').fold(value, |value, key| &value[key]);
    found.as_f64().unwrap_or_else(|| panic!("{path} is {found} in {value}"))
}

fn assert_positive(value: &Value, paths: &[&str]) {
    for path in paths {
        let number = number(value, path);
        assert!(number > 0.0 && number.is_finite(), "{path} is {number} in {value}");
    }
}

#[test]
fn streams_run_in_both_directions_over_all_stacks() {
    let Some(value) = run("stream --chunks 1 --chunk-seconds 0.1") else { return };
    let keys = ["throughput_ratio_vs_linux.in.median", "throughput_ratio_vs_linux.out.median"];
    assert_positive(&value, &keys);
    for way in ["in", "out", "in_64k", "out_64k", "in_64k_in_place", "out_64k_in_place"] {
        for stack in ["linux", "veth", "tap"] {
            assert_positive(&value[way][stack], &["gb_per_second.p50", "by_tasks_ns_per_byte.p50"]);
        }
        assert_positive(&value[way]["tap"], &["throughput_ratio_vs_linux.median"]);
    }
    for way in ["in", "out"] {
        assert!(value["total_cpu_per_byte_ratio"][way]["median"].is_number(), "{value}");
        assert!(value["app_cpu_per_byte_ratio_64k_in_place"][way]["median"].is_number(), "{value}");
    }
}

#[test]
fn requests_are_counted_with_their_packets() {
    let Some(value) = run("echo --chunks 1 --chunk-seconds 0.1") else { return };
    for shape in ["16x1", "64x1", "16x16"] {
        assert!(value["app_cpu_ratio_vs_linux"][shape]["median"].is_number(), "{value}");
        assert!(value["total_cpu_ratio_vs_linux"][shape]["median"].is_number(), "{value}");
        for stack in ["linux", "veth", "tap"] {
            let figures = &value["shapes"][shape][stack];
            assert_positive(figures, &["requests_per_second.p50", "app_ns.p50", "by_tasks_ns.p50"]);
            // With one request in flight, the request and its answer are separate packets. The packet counters are read a moment
            // before and after the client counts.
            let packets = number(figures, "packets_per_request.p50");
            let least = if shape == "16x16" { 0.01 } else { 1.0 };
            assert!(packets > least && packets < 20.0, "{packets} in {figures}");
        }
    }
    assert_eq!(value["allocations_after_start"], 0, "{value}");
}

#[test]
fn idle_connections_are_opened_and_their_memory_is_measured() {
    let Some(value) = run("idle --idle 50 --chunks 1 --chunk-seconds 0.1") else { return };
    assert_positive(&value, &["idle_connections_ratio.median", "bytes_per_connection.table"]);
    assert!(number(&value, "bytes_per_connection.table") < 1e5, "{value}");
    // It sleeps between its timers: an agent that spins uses CPU time, and is never woken.
    assert_positive(&value, &["idle_cpu_percent", "wakeups_per_s"]);
    assert_eq!(value["allocations_after_start"], 0, "{value}");
}

#[test]
fn loss_ratios_have_a_confidence_interval() {
    let Some(value) = run("loss --seeds 6 --chunk-seconds 0.1") else { return };
    for key in ["sack_ratio_small", "sack_ratio_bulk", "gbn_ratio_small", "gbn_ratio_bulk"] {
        let [low, median, high] = ["low", "median", "high"].map(|end| number(&value[key], end));
        assert!(low <= median && median <= high && median > 0.0, "{value}");
    }
}

/// Builds the preloaded library in the bench's folder. Cargo does not build it for a test of another package.
fn build_library() {
    let profile = Path::new(env!("CARGO_BIN_EXE_wave-bench-tcp")).parent().unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--locked", "--package", "wave-preload", "--target-dir"]);
    cargo.arg(profile.parent().unwrap()).current_dir(env!("CARGO_MANIFEST_DIR"));
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    assert!(cargo.status().unwrap().success(), "the library does not build");
}

/// Builds the library for `wave tcp run`. False, after reporting a skip, where `wave` is not built.
fn can_preload() -> bool {
    let wave = Path::new(env!("CARGO_BIN_EXE_wave-bench-tcp")).with_file_name("wave");
    if !wave.exists() {
        wave_skip::skip("wave is not built: cargo build --package wave");
        return false;
    }
    build_library();
    true
}

#[test]
fn unmodified_servers_answer_over_all_stacks() {
    if !can_preload() {
        return;
    }
    let Some(value) = run("apps --chunks 1 --chunk-seconds 0.1") else { return };
    for app in ["echo", "redis", "redis_pipelined", "memcached", "nginx"] {
        if let Some(why) = value["left_out"][app].as_str() {
            wave_skip::skip(format!("{app}: {why}"));
            continue;
        }
        for ratio in ["app_cpu_ratio_vs_linux", "p99_ratio_vs_linux", "rate_ratio_vs_linux"] {
            assert_positive(&value[ratio][app], &["median"]);
        }
        assert!(value["total_cpu_ratio_vs_linux"][app]["median"].is_number(), "{value}");
        for stack in ["linux", "veth", "tap"] {
            let figures = &value["apps"][app][stack];
            assert_positive(
                figures,
                &["requests_per_second.p50", "app_ns.p50", "paced.p99_ns.p50"],
            );
            // An agent without CPU time would mean that the kernel has served.
            assert_eq!(number(figures, "agent_ns.p50") > 0.0, stack != "linux", "{figures}");
            let half = number(&value["apps"][app], "paced_requests_per_second");
            let rate = number(figures, "requests_per_second.p50");
            assert!(half <= rate * 0.500_001, "{half} of {rate}");
        }
    }
    assert!(value["left_out"]["echo"].is_null(), "{value}");
}

#[test]
fn demoted_connections_are_measured_beside_the_programs_own() {
    if !can_preload() {
        return;
    }
    let Some(value) = run("demoted --chunks 1 --chunk-seconds 0.1") else { return };
    assert!(value["added_round_trip_us"]["median"].is_number(), "{value}");
    assert_positive(&value["throughput_ratio_vs_agent"], &["in.median", "out.median"]);
    for row in ["loopback", "linux", "agent", "demoted"] {
        for figure in ["round_trip_us", "in_gb_per_second", "out_gb_per_second"] {
            assert_positive(&value[figure], &[&format!("{row}.p50")]);
        }
    }
}

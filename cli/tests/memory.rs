//! `wave memory` on real processes: what is cold leaves, nothing is lost whoever is killed, and what cannot be
//! done is said. It takes root and swap; elsewhere each test says why it did nothing.

mod memory_programs;

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use wave_linux::memory::{AccessBits, Swap, SwapError};
use wave_skip::skip;

const ROLE: &str = "WAVE_TEST_MEMORY_ROLE";
/// SOL as it ships decides within a minute; with this within a second.
const QUICK: &str = "sol:shortest_ms=20,horizon_ms=160";
const MIB: usize = 1 << 20;

fn wave(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wave"));
    command.arg("memory").args(arguments);
    command
}

fn refused(arguments: &[&str], code: i32) -> String {
    let output = wave(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{text}");
    text
}

fn object(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

/// Held by the one test that has swap, or needs that there is none.
static SWAP: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    SWAP.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Swap for the time of a test; None, and said, where it or the access bits of others cannot be had.
fn swap(bytes: u64) -> Option<(Swap, MutexGuard<'static, ()>)> {
    if !rustix::process::geteuid().is_root() {
        skip("only root may look at other processes' memory");
        return None;
    }
    if let Err(error) = AccessBits::open() {
        let has_types = Path::new("/sys/kernel/btf/vmlinux").exists();
        assert!(!cfg!(target_arch = "x86_64") || !has_types, "it should work here: {error}");
        skip(error);
        return None;
    }
    let alone = alone();
    // Other programs may have some.
    let start = Instant::now();
    loop {
        match Swap::set_up(bytes) {
            Ok(swap) => return Some((swap, alone)),
            Err(SwapError::Taken) if start.elapsed() < Duration::from_secs(300) => {
                std::thread::sleep(Duration::from_millis(50));
            }
            // A container's root.
            Err(error @ SwapError::NotPermitted) => {
                skip(error);
                return None;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// One figure of `/proc/PID/status`, in bytes.
pub fn status(pid: u32, name: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// A process whose memory a test looks after. Killed when it is dropped.
struct Target(Child, BufReader<ChildStdout>);

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Target {
    /// So much memory, which is there on return. The first fifth of it is used all the time, and all of it is checked
    /// again and again, until it is asked for its answer.
    fn start(mib: usize) -> Target {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "target_process", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, mib.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let from = BufReader::new(child.stdout.take().unwrap());
        let mut target = Target(child, from);
        assert_eq!(target.next().as_deref(), Some("ready"));
        target
    }

    fn next(&mut self) -> Option<String> {
        let mut lines = self.1.by_ref().lines().map_while(Result::ok);
        lines.find_map(|line| Some(line.split_once("answer: ")?.1.to_owned()))
    }

    /// Has it check all of its memory, and end.
    fn answer(mut self) -> String {
        drop(self.0.stdin.take());
        self.next().unwrap_or_else(|| "it said nothing".to_owned())
    }
}

fn content(at: usize) -> u64 {
    if at.is_multiple_of(2) {
        at as u64 / 512
    } else {
        (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

#[test]
fn target_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words = role.parse::<usize>().unwrap() * MIB / 8;
    let mut memory: Vec<u64> = (0..words).map(content).collect();
    println!("answer: ready");
    let end = std::thread::spawn(|| std::io::stdin().read_to_end(&mut Vec::new()));
    let mut rng = Pcg64Mcg::seed_from_u64(words as u64);
    let mut checked = 0_u64;
    while !end.is_finished() {
        // What is hot is also written to: a page that was lost between two writes would show.
        for _ in 0..2_000 {
            let at = rng.random_range(0..words / 5);
            assert_eq!(memory[at], content(at));
            memory[at] = content(at);
        }
        let first = rng.random_range(0..words - 4 * MIB / 8);
        let is_time = rng.random_range(0..40) == 0;
        if is_time {
            for (at, word) in memory.iter().enumerate().skip(first).take(4 * MIB / 8) {
                assert_eq!(*word, content(at), "word {at}");
            }
            checked += 4;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    for (at, word) in memory.iter().enumerate() {
        assert_eq!(*word, content(at), "word {at}");
    }
    println!("answer: intact, {checked} MiB checked meanwhile");
}

#[test]
fn cold_memory_is_paged_out_and_explained() {
    let Some(_swap) = swap(1 << 30) else { return };
    let target = Target::start(160);
    let pid = target.0.id();
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (log, out) = (path("x.wavelog"), path("out"));
    let policy = "sol:shortest_ms=50,horizon_ms=400";
    let pid_text = pid.to_string();
    let mut arguments = vec!["run", "--pid", &pid_text, "--policy", policy, "--seconds", "12"];
    arguments.extend(["--refaults", "100000", "--pressure", "100", "--json"]);
    arguments.extend(["--record", &log, "--out", &out]);
    let found = object(&wave(&arguments).output().unwrap());
    let share = found["resident_reduction"].as_f64().unwrap();
    assert!(share > 0.4, "four fifths are seldom used: {found}");
    assert!(found["net_saved_bytes"].as_i64().unwrap() > 0, "{found}");
    assert_eq!(found["agents"], serde_json::json!([1, 0]));
    for file in ["report.html", "memory.svg", "samples.csv", "results.json"] {
        assert!(Path::new(&out).join(file).exists(), "{file}");
    }

    let told = object(&wave(&["explain", &log, "--json"]).output().unwrap());
    let ranges = told["ranges"].as_array().unwrap();
    let slow = ranges.iter().find(|range| range["slow"] == true).expect("something is out");
    assert_eq!(slow["pid"], pid);
    let address = format!("{:#x}", slow["start"].as_u64().unwrap());
    let svg = path("heat.svg");
    let arguments = ["explain", &log, "--address", &address, "--svg", &svg];
    let output = wave(&arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for part in ["in the slow tier", "decided to page it out: warmth", "paging it out: done"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(std::fs::read_to_string(&svg).unwrap().starts_with("<svg"));
    let mut replay = Command::new(env!("CARGO_BIN_EXE_wave"));
    assert!(replay.args(["replay", &log]).output().unwrap().status.success(), "it is identical");
    assert!(target.answer().starts_with("intact"));
}

/// The first child of a process.
fn child_of(pid: u32) -> Option<Pid> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    Pid::from_raw(text.split_whitespace().next()?.parse().ok()?)
}

/// Host and agent are killed at any moment; WAVE_SECONDS says for how long.
#[test]
fn nothing_is_lost_whoever_is_killed() {
    let Some(_swap) = swap(1 << 30) else { return };
    let seconds =
        std::env::var("WAVE_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(23);
    let target = Target::start(128);
    let pid = target.0.id();
    let mut rng = Pcg64Mcg::seed_from_u64(7);
    let (mut hosts, mut agents, mut most) = (0, 0, 0);
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        let mut command = wave(&["run", "--pid", &pid.to_string(), "--policy", QUICK, "--quiet"]);
        command.args(["--refaults", "100000", "--pressure", "100"]).stdout(Stdio::null());
        let mut host = command.spawn().unwrap();
        for _ in 0..rng.random_range(0..4) {
            std::thread::sleep(Duration::from_millis(rng.random_range(200..1_500)));
            if let Some(agent) = child_of(host.id()) {
                kill_process(agent, Signal::KILL).unwrap();
                agents += 1;
            }
            most = most.max(status(pid, "VmSwap"));
        }
        std::thread::sleep(Duration::from_millis(rng.random_range(200..1_500)));
        most = most.max(status(pid, "VmSwap"));
        host.kill().unwrap();
        host.wait().unwrap();
        hosts += 1;
    }
    let answer = target.answer();
    println!(
        "{hosts} hosts and {agents} agents killed; at most {} MiB in swap; {answer}",
        most >> 20
    );
    assert!(answer.starts_with("intact"), "{answer}");
    assert!(hosts > 2 && agents > 2, "{hosts} {agents}");
    assert!(most > 16 * MIB as u64, "nothing was paged out: {most}");
}

/// Forks, execs and exits, all the time, with memory going out and coming back.
#[test]
fn programs_that_come_and_go_compute_what_they_would() {
    let Some(_swap) = swap(1 << 29) else { return };
    let line = "for round in $(seq 10); do seq 1 60000 | sort -r | sort -n | md5sum; done";
    let mut run = wave(&["run", "--policy", QUICK, "--quiet", "--refaults", "100000"]);
    run.args(["--pressure", "100", "--", "sh", "-c", line]);
    let output = run.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    let sums: Vec<&str> = text.lines().filter(|line| line.ends_with("  -")).collect();
    assert_eq!(sums.len(), 10, "{text}");
    assert!(sums.iter().all(|sum| *sum == sums[0]), "{text}");
}

/// Where cgroups of version 2 are, if here.
fn cgroups() -> Option<&'static Path> {
    let folders = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
    folders.into_iter().find(|folder| folder.join("cgroup.procs").exists())
}

#[test]
fn processes_that_enter_a_cgroup_are_managed_and_others_are_not() {
    let Some(_swap) = swap(1 << 29) else { return };
    let Some(root) = cgroups() else {
        skip("no cgroup v2");
        return;
    };
    let folder = root.join(format!("wave-memory-test-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let mut run = wave(&["run", "--cgroup", folder.to_str().unwrap(), "--policy", QUICK]);
    run.args(["--quiet", "--refaults", "100000", "--pressure", "100"]).stdout(Stdio::null());
    let mut host = run.spawn().unwrap();
    // It starts an agent once it has taken the cgroup, which is empty.
    while child_of(host.id()).is_none() {
        assert!(host.try_wait().unwrap().is_none(), "an empty cgroup may get processes");
        std::thread::sleep(Duration::from_millis(1));
    }
    let (inside, outside) = (Target::start(64), Target::start(64));
    std::fs::write(folder.join("cgroup.procs"), inside.0.id().to_string()).unwrap();
    while status(inside.0.id(), "VmSwap") < 8 * MIB as u64 {
        assert!(host.try_wait().unwrap().is_none(), "it has ended");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(status(outside.0.id(), "VmSwap"), 0);
    assert!(inside.answer().starts_with("intact") && outside.answer().starts_with("intact"));
    std::fs::remove_dir(&folder).unwrap();
    // The cgroup has gone, and the host sees that.
    assert!(host.wait().unwrap().success());
}

#[test]
fn a_dry_run_changes_nothing() {
    let Some(swap) = swap(1 << 28) else { return };
    drop(swap);
    let target = Target::start(64);
    let pid = target.0.id();
    let arguments = ["run", "--dry-run", "--policy", QUICK, "--seconds", "4", "--json"];
    let found = object(&wave(&arguments).args(["--pid", &pid.to_string()]).output().unwrap());
    assert!(found["would_be_paged_out_bytes"].as_u64().unwrap() > 0, "it would have: {found}");
    // Nothing is saved, and host and agent take memory.
    assert_eq!(status(pid, "VmSwap"), 0);
    assert!(found["net_saved_bytes"].as_i64().unwrap() < 0, "{found}");
    assert!(target.answer().starts_with("intact"));
}

#[test]
fn impossible_orders_are_refused_and_change_nothing() {
    if !rustix::process::geteuid().is_root() {
        skip("only root gets as far");
        return;
    }
    assert!(refused(&["run", "--pid", "2147483647"], 2).contains("there is no process"));
    assert!(refused(&["run", "--cgroup", "/tmp"], 2).contains("not a cgroup"));
    assert!(refused(&["run", "--dry-run", "--", "no-such-command"], 2).contains("no such command"));
    let text = refused(&["run", "--dry-run", "--policy", "lru", "--", "sleep", "9"], 2);
    assert!(text.contains("lru"), "{text}");
    let text = refused(&["run", "--dry-run", "--policy", "fifo", "--", "sleep", "9"], 2);
    assert!(text.contains("fifo"), "{text}");
    let text = refused(&["explain", "/dev/null"], 2);
    assert!(text.contains("/dev/null"), "{text}");
    let _alone = alone();
    if !std::fs::read_to_string("/proc/swaps").unwrap().contains('/') {
        let text = refused(&["run", "--", "sleep", "9"], 3);
        assert!(text.contains("there is no swap") && text.contains("--zram"), "{text}");
    }
}

#[test]
fn a_command_ends_and_its_exit_code_is_ours() {
    let Some(swap) = swap(1 << 28) else { return };
    drop(swap);
    for line in ["exit 7", "sleep 3; exit 7"] {
        let output = wave(&["run", "--dry-run", "--quiet", "--", "sh", "-c", line]).output();
        let output = output.unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(7), "{line}: {errors}");
    }
}

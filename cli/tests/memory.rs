//! `wave memory` on real processes: cold memory is paged out, kills lose no memory, and impossible requests are
//! reported. The tests need root and swap; without them each test is skipped with the reason.

mod memory_accounts;
mod memory_programs;

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use serde_json::Value;
use tempfile::TempDir;
use wave_linux::memory::{AccessBits, Swap, SwapError, swap_state};
use wave_skip::{Turn, skip, turn};

const ROLE: &str = "WAVE_TEST_MEMORY_ROLE";
/// Arguments with which this binary is a target.
const TARGET: [&str; 4] = ["--exact", "target_process", "--nocapture", "--test-threads=1"];
/// Settings with which SOL decides within a second. With its defaults it takes up to a minute.
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

/// Swap for the duration of a test. None, after reporting a skip, where swap or the access bits of other processes
/// are not available.
fn swap(bytes: u64) -> Option<(Swap, Turn)> {
    if !rustix::process::geteuid().is_root() {
        skip("only root may read other processes' access bits");
        return None;
    }
    if let Err(error) = AccessBits::open() {
        let has_types = Path::new("/sys/kernel/btf/vmlinux").exists();
        assert!(!cfg!(target_arch = "x86_64") || !has_types, "it should work here: {error}");
        skip(error);
        return None;
    }
    let turn = turn("swap");
    // Another program's swap may be in the way.
    let start = Instant::now();
    loop {
        match Swap::set_up(bytes) {
            Ok(swap) => return Some((swap, turn)),
            Err(SwapError::Taken) if start.elapsed() < Duration::from_secs(300) => {
                std::thread::sleep(Duration::from_millis(50));
            }
            // Root in a container.
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

/// A process whose memory is managed. Killed on drop.
struct Target(Child, BufReader<ChildStdout>);

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Target {
    /// Starts a process with `mib` MiB of memory, resident on return. It uses the first fifth all the time, and checks all
    /// of it again and again, until it is asked for its answer.
    fn start(mib: usize) -> Target {
        Target::of(&mib.to_string())
    }

    /// `role` is the number of MiB and an optional word: `noise` for incompressible memory, `idle` for untouched memory.
    fn of(role: &str) -> Target {
        Target::by(Command::new(std::env::current_exe().unwrap()), role)
    }

    /// As [`Target::of`], in a cgroup from its beginning.
    fn inside(cgroup: &Path, role: &str) -> Target {
        let mut command = Command::new("sh");
        command.args(["-c", r#"echo $$ >"$0/cgroup.procs" && exec "$@""#]).arg(cgroup);
        command.arg(std::env::current_exe().unwrap());
        Target::by(command, role)
    }

    fn by(mut command: Command, role: &str) -> Target {
        command.args(TARGET).env(ROLE, role).stdin(Stdio::piped()).stdout(Stdio::piped());
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

    /// Makes it check all of its memory and exit. Returns its answer.
    fn answer(mut self) -> String {
        drop(self.0.stdin.take());
        self.next().unwrap_or_else(|| "no answer".to_owned())
    }
}

fn content(at: usize) -> u64 {
    if at.is_multiple_of(2) {
        at as u64 / 512
    } else {
        (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

fn noise(at: usize) -> u64 {
    let mixed = (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ mixed >> 27
}

#[test]
fn target_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (mib, kind) = role.split_once(' ').unwrap_or((&role, ""));
    let words = mib.parse::<usize>().unwrap() * MIB / 8;
    let content = if kind == "noise" { noise } else { content };
    let mut memory: Vec<u64> = (0..words).map(content).collect();
    println!("answer: ready");
    let end = std::thread::spawn(|| std::io::stdin().read_to_end(&mut Vec::new()));
    let mut rng = Pcg64Mcg::seed_from_u64(words as u64);
    let mut checked = 0_u64;
    while !end.is_finished() {
        if kind == "idle" {
            std::thread::sleep(Duration::from_millis(2));
            continue;
        }
        // Hot memory is also written to, so that a page lost between two writes shows.
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
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let swapped = status(std::process::id(), "VmSwap");
    println!("answer: {} {swapped}", fields.split(' ').nth(9).unwrap());
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
    arguments.extend(["--slowdown", "100000", "--pressure", "100", "--json"]);
    arguments.extend(["--record", &log, "--out", &out]);
    let found = object(&wave(&arguments).output().unwrap());
    let share = found["resident_reduction"].as_f64().unwrap();
    assert!(share > 0.4, "four fifths are rarely used: {found}");
    assert!(found["net_saved_bytes"].as_i64().unwrap() > 0, "{found}");
    assert_eq!(found["agents"], serde_json::json!({ "attached": 1, "lost": 0 }));
    for file in ["report.html", "memory.svg", "heat.svg", "samples.csv", "results.json"] {
        assert!(Path::new(&out).join(file).exists(), "{file}");
    }
    assert!(found["course"]["net_saved_bytes_max"].as_i64() >= found["net_saved_bytes"].as_i64());
    let page = std::fs::read_to_string(Path::new(&out).join("report.html")).unwrap();
    let name = format!("({pid})");
    for part in
        [&name, policy, "Started", "Linux ", "Limits", "slowdown", env!("CARGO_PKG_VERSION")]
    {
        assert!(page.contains(part), "{part}");
    }
    assert_eq!(page.matches("<svg").count(), 2, "memory over time, and its heat map");

    let told = object(&wave(&["explain", &log, "--json"]).output().unwrap());
    let ranges = told["ranges"].as_array().unwrap();
    let slow = ranges.iter().find(|range| range["slow"] == true).expect("a range is paged out");
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
    assert!(
        replay.args(["replay", &log]).output().unwrap().status.success(),
        "the replay is identical"
    );
    assert!(target.answer().starts_with("intact"));
}

/// The first child of a process.
fn child_of(pid: u32) -> Option<Pid> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    Pid::from_raw(text.split_whitespace().next()?.parse().ok()?)
}

/// Host and agent are killed at random moments, for WAVE_SECONDS seconds.
#[test]
fn killing_host_or_agent_loses_no_memory() {
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
        command.args(["--slowdown", "100000", "--pressure", "100"]).stdout(Stdio::null());
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

/// The programs fork, exec and exit all the time, while their memory is paged out and comes back.
#[test]
fn programs_that_fork_and_exit_compute_correct_results() {
    let Some(_swap) = swap(1 << 29) else { return };
    let line = "for round in $(seq 10); do seq 1 60000 | sort -r | sort -n | md5sum; done";
    let mut run = wave(&["run", "--policy", QUICK, "--quiet", "--slowdown", "100000"]);
    run.args(["--pressure", "100", "--", "sh", "-c", line]);
    let output = run.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    let sums: Vec<&str> = text.lines().filter(|line| line.ends_with("  -")).collect();
    assert_eq!(sums.len(), 10, "{text}");
    assert!(sums.iter().all(|sum| *sum == sums[0]), "{text}");
}

/// The mount point of cgroup v2, if there is one.
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
    run.args(["--quiet", "--slowdown", "100000", "--pressure", "100"]).stdout(Stdio::null());
    let mut host = run.spawn().unwrap();
    // It starts an agent once it manages the cgroup, which is still empty.
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
    // The host notices that the cgroup has been removed.
    assert!(host.wait().unwrap().success());
}

/// The id of a process that was waited for may belong to another process: the host neither signals it nor waits for it again.
#[test]
fn command_that_has_ended_is_waited_for_once() {
    let Some(swap) = swap(1 << 28) else { return };
    drop(swap);
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 128 + 9)] {
        let mut run = wave(&["run", "--dry-run", "--policy", QUICK, "--", "sh", "-c", script]);
        let output = run.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(!text.contains("has not ended"), "{script}: {text}");
    }
}

#[test]
fn a_dry_run_changes_nothing() {
    let Some(swap) = swap(1 << 28) else { return };
    drop(swap);
    let target = Target::start(64);
    let pid = target.0.id();
    let arguments = ["run", "--dry-run", "--policy", QUICK, "--seconds", "4", "--json"];
    let found = object(&wave(&arguments).args(["--pid", &pid.to_string()]).output().unwrap());
    let bytes = |name: &str| found[name].as_u64().unwrap();
    let (would, compressed) =
        (bytes("would_be_paged_out_bytes"), bytes("would_be_compressed_bytes"));
    assert!(would > 0 && (1..would).contains(&compressed), "it would have: {found}");
    // It needs no swap, so its lack is no reason.
    let held = found["course"]["held_seconds"].as_object().unwrap();
    assert!(held.keys().all(|why| !why.contains("swap")), "{found}");
    // Nothing is paged out, while host and agent use memory.
    assert_eq!(status(pid, "VmSwap"), 0);
    assert!(found["net_saved_bytes"].as_i64().unwrap() < 0, "{found}");
    assert!(target.answer().starts_with("intact"));
}

/// The host reads a program's figures twice a second. The last ones are as of the run's end.
#[test]
fn result_of_an_interrupted_run_is_its_state_at_the_end() {
    let Some(swap) = swap(1 << 28) else { return };
    drop(swap);
    let script = r#"$| = 1; $SIG{USR1} = sub { $more = "x" x ($ARGV[0] << 20); print "more\n" };
        print "ready\n"; sleep 1 while 1"#;
    let mut program =
        Command::new("perl").args(["-e", script, "64"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    let of_program = program.id().to_string();
    let folder = TempDir::new().unwrap();
    let mut run = wave(&["run", "--dry-run", "--policy", QUICK, "--pid", &of_program, "--out"]);
    run.arg(folder.path());
    let (host, _, errors) = dry_run(run);
    kill_process(Pid::from_child(&program), Signal::USR1).unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "more");
    kill_process(Pid::from_child(&host), Signal::TERM).unwrap();
    errors.for_each(drop);
    assert!(host.wait_with_output().unwrap().status.success());
    program.kill().unwrap();
    program.wait().unwrap();
    let found = std::fs::read(folder.path().join("results.json")).unwrap();
    let found = serde_json::from_slice(&found).unwrap();
    let resident: Vec<_> = samples(&found, "resident_bytes").collect();
    assert!(resident.last().unwrap().1 >= 64 << 20, "{resident:?}");
}

#[test]
fn the_table_has_means_and_says_that_savings_end_with_the_runs_swap() {
    let Some((swap, _turn)) = swap(1 << 28) else { return };
    drop(swap);
    let target = Target::of("64 idle");
    let mut brief = Command::new("sleep").arg("4").spawn().unwrap();
    let pids = [target.0.id(), brief.id()].map(|pid| pid.to_string());
    let mut run = wave(&["run", "--policy", QUICK, "--seconds", "8", "--zram", "256MiB"]);
    run.args(["--slowdown", "100000", "--pressure", "100", "--pid", &pids[0], "--pid", &pids[1]]);
    let output = run.output().unwrap();
    brief.wait().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let ended = format!("Process {} ended after", pids[1]);
    for part in ["mean", "Swap: ", "set up for the run", "its pages then return to memory", &ended]
    {
        assert!(text.contains(part), "{part}: {text}{errors}");
    }
    assert_eq!(status(target.0.id(), "VmSwap"), 0, "the swap is gone");
    assert!(target.answer().starts_with("intact"));
}

#[test]
fn impossible_requests_are_refused_and_change_nothing() {
    if !rustix::process::geteuid().is_root() {
        skip("without root, other errors come first");
        return;
    }
    assert!(refused(&["run", "--pid", "2147483647"], 2).contains("there is no process"));
    assert!(refused(&["run", "--cgroup", "/tmp"], 2).contains("not a cgroup"));
    assert!(refused(&["run", "--dry-run", "--", "no-such-command"], 2).contains("no such command"));
    let text = refused(&["run", "--dry-run", "--policy", "lru", "--", "sleep", "9"], 2);
    assert!(text.contains("lru"), "{text}");
    let text = refused(&["run", "--dry-run", "--policy", "fifo", "--", "sleep", "9"], 2);
    assert!(text.contains("fifo"), "{text}");
    let text = refused(&["run", "--zram", "1000TiB", "--", "sleep", "9"], 2);
    assert!(text.contains("times this machine's memory"), "{text}");
    let text = refused(&["explain", "/dev/null"], 2);
    assert!(text.contains("/dev/null"), "{text}");
    let _turn = turn("swap");
    if !std::fs::read_to_string("/proc/swaps").unwrap().contains('/') {
        let text = refused(&["run", "--", "sleep", "9"], 3);
        assert!(text.contains("has no swap") && text.contains("--zram"), "{text}");
    }
}

#[test]
fn exit_code_of_a_managed_command_is_returned() {
    let Some(swap) = swap(1 << 28) else { return };
    drop(swap);
    for line in ["exit 7", "sleep 3; exit 7"] {
        let output = wave(&["run", "--dry-run", "--quiet", "--", "sh", "-c", line]).output();
        let output = output.unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(7), "{line}: {errors}");
    }
}

#[test]
fn command_that_ignores_sigterm_is_killed_and_does_not_give_the_exit_code() {
    let Some(swap) = swap(1 << 28) else { return };
    drop(swap);
    let line = "trap '' TERM; echo ready >&2; while :; do sleep 1; done";
    let mut run = wave(&["run", "--dry-run", "--quiet", "--", "sh", "-c", line]);
    let mut host = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut errors = BufReader::new(host.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(errors.any(|line| line == "ready"));
    // The first signal ends the run, and another one the command.
    let end = std::thread::spawn(move || errors.any(|line| line.contains("killing it")));
    while !end.is_finished() {
        kill_process(Pid::from_child(&host), Signal::TERM).unwrap();
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(end.join().unwrap(), "it says so");
    let output = host.wait_with_output().unwrap();
    assert!(output.status.success(), "{:?}", output.status);
    assert!(String::from_utf8_lossy(&output.stdout).contains("net saved"), "there is a result");
}

/// Starts a dry run whose agent decides. Returns it with its agent, and the rest of its standard error.
fn dry_run(mut run: Command) -> (Child, Pid, impl Iterator<Item = String>) {
    let mut host = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut errors = BufReader::new(host.stderr.take().unwrap()).lines().map(Result::unwrap);
    // The first sample, which is taken once the agent has attached.
    assert!(errors.next().is_some(), "it has failed");
    let children = format!("/proc/{0}/task/{0}/children", host.id());
    let children = std::fs::read_to_string(children).unwrap();
    // A command was started before the agent.
    let agent = children.split_whitespace().last().unwrap().parse().unwrap();
    (host, Pid::from_raw(agent).unwrap(), errors)
}

/// Checks that a run has replaced its agent and ended well.
fn assert_agent_replaced(host: Child) {
    let output = host.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("2 agents, 1 lost"), "{output:?}");
}

#[test]
fn agent_is_replaced_after_an_upgrade_has_replaced_the_binary() {
    let Some(swap) = swap(1 << 28) else { return };
    drop(swap);
    let binary = Path::new(env!("CARGO_BIN_EXE_wave"));
    let folder = TempDir::new_in(binary.parent().unwrap()).unwrap();
    let linked = folder.path().join("wave");
    std::fs::hard_link(binary, &linked).unwrap();
    let mut run = Command::new(&linked);
    run.args(["memory", "run", "--dry-run", "--policy", QUICK, "--seconds", "12"]);
    run.args(["--", "sleep", "60"]);
    let (host, agent, errors) = dry_run(run);
    std::fs::remove_file(&linked).unwrap();
    kill_process(agent, Signal::KILL).unwrap();
    errors.for_each(drop);
    assert_agent_replaced(host);
}

#[test]
fn run_goes_on_while_no_agent_can_be_started() {
    let Some(swap) = swap(1 << 28) else { return };
    drop(swap);
    let mut run = wave(&["run", "--dry-run", "--policy", QUICK, "--seconds", "12"]);
    run.args(["--", "sleep", "60"]);
    let (host, agent, errors) = dry_run(run);
    let none = Rlimit { current: Some(0), ..getrlimit(Resource::Nofile) };
    let pid = Pid::from_child(&host);
    let before = prlimit(Some(pid), Resource::Nofile, none).unwrap();
    kill_process(agent, Signal::KILL).unwrap();
    // Without a descriptor it cannot say so.
    std::thread::sleep(Duration::from_secs(2));
    prlimit(Some(pid), Resource::Nofile, before).unwrap();
    errors.for_each(drop);
    assert_agent_replaced(host);
}

/// A Perl program with `mib` MiB of memory. It runs the code `forks` for `seconds`, and then checks its memory.
fn perl(forks: &str, mib: usize, seconds: u32) -> Vec<String> {
    let script = r#"
        srand 1; my $noise = join "", map { chr rand 256 } 1 .. 8192;
        sub page { substr($noise, $_[0] % 6000, 2048) . pack("N", $_[0]) x 512 }
        my $pages = $ARGV[0] * 256; my $memory = "\0" x ($pages * 4096);
        substr($memory, $_ * 4096, 4096) = page($_) for 0 .. $pages - 1;
        sub rest { select undef, undef, undef, $_[0] }
        sub child { my $pid = fork; return $pid if $pid; rest $_[0]; kill 9, $$ }
        my $end = time + $ARGV[1];
        FORKS
        for (0 .. $pages - 1) { exit 7 if substr($memory, $_ * 4096, 4096) ne page($_) }
    "#;
    let words = ["perl", "-e", &script.replace("FORKS", forks)].map(str::to_owned);
    words.into_iter().chain([mib.to_string(), seconds.to_string()]).collect()
}

/// Runs a command under `wave memory run`, recording its agent's log into `log`. Returns the result.
fn managed(command: &[String], log: &str) -> Value {
    let mut run = wave(&["run", "--policy", "sol:shortest_ms=50,horizon_ms=400", "--record", log]);
    run.args(["--slowdown", "100000", "--pressure", "100", "--json", "--"]).args(command);
    object(&run.output().unwrap())
}

fn slow_bytes(log: &str, at: f64) -> u64 {
    let told =
        object(&wave(&["explain", log, "--json", "--at", &at.to_string()]).output().unwrap());
    let ranges = told["ranges"].as_array().unwrap().iter().filter(|range| range["slow"] == true);
    ranges.map(|range| range["end"].as_u64().unwrap() - range["start"].as_u64().unwrap()).sum()
}

fn samples<'a>(found: &'a Value, name: &'a str) -> impl Iterator<Item = (f64, u64)> + 'a {
    let samples = found["samples"].as_array().unwrap().iter();
    samples.map(move |sample| (sample["seconds"].as_f64().unwrap(), sample[name].as_u64().unwrap()))
}

/// The kernel silently skips pages that a child shares.
#[test]
fn a_program_that_forks_ten_times_a_second_is_paged_out_between_its_children() {
    let Some(_swap) = swap(1 << 29) else { return };
    let folder = TempDir::new().unwrap();
    let log = folder.path().join("x.wavelog").to_str().unwrap().to_owned();
    // Ends a few seconds after most of it is in swap, which takes 10 s on a quiet machine.
    let forks = r#"while (time < $end) {
        my $pid = child 0.05; rest 0.1; waitpid $pid, 0;
        open(my $status, '<', '/proc/self/status');
        my ($swapped) = map { /^VmSwap:\s+(\d+)/ ? $1 : () } <$status>;
        $end = time + 3 if $swapped > 56 << 10 and $end > time + 3;
    }"#;
    let found = managed(&perl(forks, 96, 120), &log);
    let all = samples(&found, "swapped_bytes");
    let (seconds, swapped) = all.max_by_key(|(_, bytes)| *bytes).expect("a sample each second");
    let slow = slow_bytes(&log, seconds);
    println!(
        "at {seconds} s {} MiB in swap, {} MiB reported slow; {found}",
        swapped >> 20,
        slow >> 20
    );
    assert!(swapped > 48 * MIB as u64, "it is paged out while there is no child: {swapped}");
    assert!(
        slow < swapped + swapped / 4 + 8 * MIB as u64,
        "{slow} bytes are reported slow, {swapped} are"
    );
}

#[test]
fn memory_shared_with_a_child_is_neither_reported_slow_nor_counted_twice() {
    let Some(_swap) = swap(1 << 29) else { return };
    let folder = TempDir::new().unwrap();
    let log = folder.path().join("x.wavelog").to_str().unwrap().to_owned();
    let forks = "my $pid = child 8; while (time < $end) { rest 0.1 } waitpid $pid, 0;";
    let found = managed(&perl(forks, 96, 12), &log);
    let most = samples(&found, "resident_bytes").map(|(_, bytes)| bytes).max().unwrap();
    assert!(most < 140 * MIB as u64, "{} MiB of one program and its child", most >> 20);
    // Two seconds before the child ends.
    let swapped = samples(&found, "swapped_bytes").filter(|(seconds, _)| *seconds < 7.0);
    let swapped = swapped.map(|(_, bytes)| bytes).max().unwrap();
    let slow = slow_bytes(&log, 6.0);
    println!("{} MiB in swap, {} MiB reported slow; {found}", swapped >> 20, slow >> 20);
    assert!(slow < swapped + 16 * MIB as u64, "{slow} bytes are reported slow, {swapped} are");
    let told = found["stayed_bytes"].as_u64().unwrap() >> 18;
    let left_out = found["unclearable_batches"].as_u64().unwrap();
    assert!(
        told + left_out > 96,
        "the result says that most of it could not be paged out: {found}"
    );
}

#[test]
fn incompressible_memory_is_not_paged_out_to_zram_and_is_reported() {
    let Some((swap, _turn)) = swap(1 << 29) else { return };
    if !is_zram(&swap) {
        skip("no zram");
        return;
    }
    let target = Target::of("96 noise");
    let pid = target.0.id().to_string();
    let mut run = wave(&["run", "--pid", &pid, "--policy", QUICK, "--seconds", "8", "--json"]);
    let found = object(&run.args(["--slowdown", "100000", "--pressure", "100"]).output().unwrap());
    let told = found["incompressible_bytes"].as_u64().unwrap();
    assert!(told > 48 * MIB as u64, "{found}");
    // The rest of the process, this test's binary, is small.
    let swapped = samples(&found, "swapped_bytes").last().unwrap().1;
    assert!(swapped < 8 * MIB as u64, "{found}");
    assert!(target.answer().starts_with("intact"));
}

#[test]
fn small_swap_is_filled_before_it_is_reported_full() {
    let Some((swap, _turn)) = swap(64 << 20) else { return };
    let target = Target::of("160 idle");
    let pid = target.0.id().to_string();
    let mut run = wave(&["run", "--pid", &pid, "--policy", QUICK, "--seconds", "8", "--json"]);
    let found = object(&run.args(["--slowdown", "100000", "--pressure", "100"]).output().unwrap());
    // Another reclaimer of this machine, such as a DAMON scheme, may have filled a part of it.
    let devices = swap_state().unwrap().devices;
    let used = devices.iter().find(|device| device.path == swap.path()).unwrap().used_bytes;
    assert!(used > 58 * MIB as u64, "{} of 64 MiB; {found}", used >> 20);
    assert_eq!(found["samples"].as_array().unwrap().last().unwrap()["held"], "swap is full");
    assert!(target.answer().starts_with("intact"));
}

/// A path's `starts_with` would compare whole names.
fn is_zram(swap: &Swap) -> bool {
    swap.path().to_str().unwrap().starts_with("/dev/zram")
}

/// Memory used by all zram devices, in bytes.
fn zram_takes() -> u64 {
    let devices = wave_linux::memory::swap_state().unwrap().devices;
    let zram = devices.iter().filter_map(|device| wave_linux::memory::Zram::of(&device.path));
    zram.map(|zram| zram.memory_used_bytes).sum()
}

/// The run that sets swap up ends first. Pages that the other run has paged out stay in swap.
#[test]
fn two_runs_share_one_swap_and_account_for_it_separately() {
    let Some((own, _turn)) = swap(1 << 29) else { return };
    let is_zram = is_zram(&own);
    drop(own);
    let targets = [96, 64].map(|mib| Target::of(&format!("{mib} idle")));
    let run = |target: &Target, seconds: &str| {
        let pid = target.0.id().to_string();
        let mut run = wave(&["run", "--pid", &pid, "--policy", QUICK, "--seconds", seconds]);
        run.args(["--slowdown", "100000", "--pressure", "100", "--json", "--zram", "512MiB"]);
        run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let runs = [(&targets[0], "10"), (&targets[1], "16")].map(|(target, time)| run(target, time));
    std::thread::sleep(Duration::from_secs(9));
    let takes = zram_takes();
    let [first, second] = runs.map(|run| object(&run.wait_with_output().unwrap()));
    let sum_at = |name: &str, at: f64| {
        let near = |found| {
            let near =
                samples(found, name).min_by_key(|(seconds, _)| ((seconds - at).abs() * 1e3) as u64);
            near.unwrap().1
        };
        near(&first) + near(&second)
    };
    let sum = sum_at("compressed_bytes", 8.0);
    // Pages that moved between the samples and the count.
    let moved = sum_at("swapped_bytes", 9.5).abs_diff(sum_at("swapped_bytes", 7.0));
    println!("zram uses {takes} bytes, the runs report {sum}, and {moved} bytes moved meanwhile");
    assert!(first["swap"] != second["swap"], "one of them has joined the other: {first} {second}");
    if is_zram {
        assert!(sum.abs_diff(takes) < takes / 10 + moved, "{sum} of {takes}: {first} {second}");
    }
    // The last sample is after the end of the first run.
    let swapped = samples(&second, "swapped_bytes").last().unwrap().1;
    assert!(swapped > 48 * MIB as u64, "{} of 64 MiB are in swap: {second}", swapped >> 20);
    let refaults = samples(&second, "refaults").last().unwrap().1;
    assert!(refaults < 1_000, "{refaults} refaults of a program that touches nothing");
    // The first run's process that waits to take the swap down may get the lock before the second run's.
    let start = Instant::now();
    loop {
        let devices = wave_linux::memory::swap_state().unwrap().devices;
        if devices.is_empty() || first["swap"].to_string().contains("machine") {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{devices:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    targets.into_iter().for_each(|target| assert!(target.answer().starts_with("intact")));
}

#[test]
fn cpu_time_of_killed_agents_is_counted() {
    let Some(_swap) = swap(1 << 28) else { return };
    let target = Target::start(128);
    let pid = target.0.id().to_string();
    let mut run = wave(&["run", "--pid", &pid, "--policy", "threshold:period_ms=5", "--json"]);
    run.arg("--dry-run").stdout(Stdio::piped()).stderr(Stdio::piped());
    let host = run.spawn().unwrap();
    let mut killed = Vec::new();
    let start = Instant::now();
    // An agent that shares its CPU with others takes long for these 50 ms.
    while start.elapsed() < Duration::from_secs(300) {
        std::thread::sleep(Duration::from_millis(50));
        let Some(agent) = child_of(host.id()).filter(|agent| !killed.contains(agent)) else {
            continue;
        };
        if killed.len() == 2 {
            // The host has taken note of the end of both.
            break;
        }
        // User and system time, in ticks of 10 ms.
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", agent.as_raw_pid()));
        let stat = stat.unwrap_or_default();
        let ticks = stat.split(' ').skip(13).take(2).filter_map(|ticks| ticks.parse::<u64>().ok());
        if ticks.sum::<u64>() >= 5 {
            kill_process(agent, Signal::KILL).unwrap();
            killed.push(agent);
        }
    }
    // Where tests run in the background, SIGINT may be ignored.
    kill_process(Pid::from_child(&host), Signal::TERM).unwrap();
    let found = object(&host.wait_with_output().unwrap());
    let spent: Vec<f64> = found["samples"]
        .as_array()
        .unwrap()
        .iter()
        .map(|sample| sample["agent_cpu_seconds"].as_f64().unwrap())
        .collect();
    assert_eq!(killed.len(), 2, "an agent that scans every 5 ms uses no CPU time: {found}");
    assert!(spent.is_sorted(), "{spent:?}");
    // Sums of user and of system time are rounded down to ticks.
    assert!(*spent.last().unwrap() >= 0.08, "two agents were killed after 50 ms each: {spent:?}");
    assert!(target.answer().starts_with("intact"));
}

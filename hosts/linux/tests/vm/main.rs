//! Real threads under sched_ext, scheduled by real agents. The tests need a kernel with sched_ext, root, and four CPUs:
//! `cargo xtask vm test` runs them in a virtual machine. Elsewhere each test reports why it did nothing.
//!
//! Times mean nothing there, so no test asserts them: work is bounded by its amount.

mod crash;
mod enclaves;
mod hand;
mod hostile;
mod members;
mod on_eight_cpus;
mod outcomes;
mod processes;
mod records;
mod sliced;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use processes::{
    Agent, SuccessiveAgents, alone, count, finish, installed, is_well, online, shell, spinner,
    start, wait_for, work,
};
use wave_core::layout::Config;
use wave_core::outcome::Code;
use wave_core::snapshot::State;
use wave_linux::sched::{self, Enclave, Options, Stats};

/// Decisions that were carried out between two looks at an enclave.
fn completed(before: &Stats, after: &Stats) -> u64 {
    count(after, Code::Complete) - count(before, Code::Complete)
}

/// Policies under which all kinds of programs must finish.
const POLICIES: [&str; 3] = ["fifo", "shinjuku:slice_us=5000", "vm"];

#[test]
fn threads_that_take_turns_finish_under_every_policy() {
    let Some(_alone) = alone() else { return };
    let enclave = start(|_| {});
    let mut agents = SuccessiveAgents::of(&enclave);
    for policy in ["fifo", "shinjuku:slice_us=5000", "vm", "round-robin"] {
        let before = agents.next(policy);
        finish(work(8, 64));
        let stats = is_well(&enclave);
        assert!(completed(&before, &stats) > 8 * 64, "{policy}: {stats:?}");
        assert_eq!((stats.lost_agents, stats.barks), (0, 0), "{policy}: {stats:?}");
    }
}

/// The thread would run forever if neither the agent nor a decision's slice ended its run.
#[test]
fn a_thread_that_does_not_stop_is_preempted() {
    let Some(_alone) = alone() else { return };
    let enclave = start(|options| options.cpus = vec![0]);
    let mut agents = SuccessiveAgents::of(&enclave);
    for policy in ["shinjuku:slice_us=5000", "round-robin", "sliced"] {
        agents.next(policy);
        finish(spinner());
        let stats = is_well(&enclave);
        assert_eq!(stats.lost_agents, 0, "{policy}: {stats:?}");
    }
}

/// There are more endless threads than cores, under a policy without slices. The kernel turns out a scheduler that lets
/// a thread wait for 30 s: it would have done so before the host has helped four times.
#[test]
fn threads_that_never_stop_starve_nobody() {
    let Some(_alone) = alone() else { return };
    let enclave = start(|options| options.cpus = vec![0, 1]);
    let _agent = Agent::start(&enclave, "fifo");
    let endless: Vec<_> = (0..3).map(|_| enclave.spawn(endless()).unwrap()).collect();
    wait_for("starved threads", || {
        assert_eq!(enclave.stats().turned_out, None);
        enclave.stats().starved >= 4
    });
    endless.into_iter().for_each(kill);
    let stats = is_well(&enclave);
    assert_eq!((stats.lost_agents, stats.barks), (0, 0), "{stats:?}");
}

/// The pinned thread stays with the host, as it may not run on every core, and must not wait for endless runs.
#[test]
fn pinned_thread_runs_beside_endless_threads() {
    let Some(_alone) = alone() else { return };
    let enclave = start(|options| options.cpus = vec![0, 1]);
    let _agent = Agent::start(&enclave, "fifo");
    let mut pinned = Command::new("taskset");
    pinned.args(["1", "sh", "-c", "while read -r line; do echo $line; done"]);
    pinned.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut pinned = enclave.spawn(pinned).unwrap();
    let mut echo = {
        let mut to = pinned.stdin.take().unwrap();
        let mut from = BufReader::new(pinned.stdout.take().unwrap());
        move |text: &str| {
            writeln!(to, "{text}").unwrap();
            let mut line = String::new();
            from.read_line(&mut line).unwrap();
            assert_eq!(line.trim(), text);
        }
    };
    echo("alone");
    let endless: Vec<_> = (0..2).map(|_| enclave.spawn(endless()).unwrap()).collect();
    wait_for("both cores", || {
        let threads = enclave.threads();
        threads.iter().filter(|thread| thread.state == State::Running).count() == 2
    });
    ["beside", "those", "that run"].iter().for_each(|text| echo(text));
    endless.into_iter().for_each(kill);
    kill(pinned);
    let stats = is_well(&enclave);
    assert_eq!((stats.lost_agents, stats.barks, stats.starved), (0, 0, 0), "{stats:?}");
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

fn endless() -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "while :; do :; done"]);
    command
}

#[test]
fn without_an_agent_the_host_decides() {
    let Some(_alone) = alone() else { return };
    // With the default number of slots, unlike the other tests.
    let enclave = start(|options| options.config.subjects = Config::coherent(1).subjects);
    finish(work(6, 64));
    let stats = is_well(&enclave);
    assert_eq!(count(&stats, Code::Complete), 0);
    assert!(stats.cores.iter().any(|core| core.fallback_switches > 0), "{stats:?}");
}

#[test]
fn a_storm_of_processes_leaves_nothing_behind() {
    let Some(_alone) = alone() else { return };
    let enclave = start(|_| {});
    let mut agents = SuccessiveAgents::of(&enclave);
    for policy in POLICIES {
        let before = agents.next(policy);
        let line = "i=0; while [ $i -lt 40 ]; do (true | cat) & \
                    i=$((i + 1)); [ $((i % 8)) -eq 0 ] && wait; done; wait; echo done";
        assert_eq!(finish(shell(line)), "done\n");
        let stats = is_well(&enclave);
        assert!(completed(&before, &stats) > 100, "{policy}: {stats:?}");
        assert_eq!(stats.barks, 0, "{stats:?}");
    }
}

#[test]
fn stressors_finish() {
    let Some(_alone) = alone() else { return };
    let Some(program) = installed("/usr/bin/stress-ng") else { return };
    let enclave = start(|_| {});
    let mut agents = SuccessiveAgents::of(&enclave);
    for policy in POLICIES {
        let before = agents.next(policy);
        let stressors = "--switch 2 --switch-ops 400 --futex 2 --futex-ops 200 \
                         --pthread 1 --pthread-ops 20 --fork 1 --fork-ops 20";
        finish(shell(&format!("{program} --quiet --timeout 0 {stressors}")));
        let stats = is_well(&enclave);
        assert!(completed(&before, &stats) > 1_000, "{policy}: {stats:?}");
    }
}

#[test]
fn redis_serves() {
    let Some(_alone) = alone() else { return };
    // Debian's redis-server is this program under another name.
    let Some(server) = installed("/usr/bin/redis-check-rdb") else { return };
    let enclave = start(|_| {});
    let mut agents = SuccessiveAgents::of(&enclave);
    for policy in POLICIES {
        let before = agents.next(policy);
        let mut command = Command::new(server);
        command.arg0("redis-server").args(["--port", "6390", "--save", "", "--daemonize", "no"]);
        command.stdout(Stdio::null());
        let mut redis = sched::spawn(command).unwrap();
        let reachable = || std::net::TcpStream::connect(("127.0.0.1", 6390)).is_ok();
        wait_for("redis", reachable);
        let load = "redis-benchmark -p 6390 -n 400 -c 4 -t ping_mbulk,set,get -q | tr '\\r' '\\n' | grep -c 'per second'";
        let lines = finish(shell(load));
        assert_eq!(lines.trim(), "3");
        finish(shell("redis-cli -p 6390 shutdown nosave || true"));
        redis.wait().unwrap();
        let stats = is_well(&enclave);
        assert!(completed(&before, &stats) > 400, "{policy}: {stats:?}");
    }
}

#[test]
fn affinity_is_respected_while_it_changes() {
    let Some(_alone) = alone() else { return };
    let enclave = start(|_| {});
    let mut agents = SuccessiveAgents::of(&enclave);
    for policy in POLICIES {
        agents.next(policy);
        let child = work(6, usize::MAX);
        let pid = child.id().to_string();
        // Restrict each of its threads to one core, to two, and to all.
        for round in 0..24 {
            let mask = ["1", "2", "4", "3", "f"][round % 5];
            let mut command = Command::new("taskset");
            command.args(["-ap", mask, &pid]).stdout(Stdio::null()).stderr(Stdio::null());
            command.status().unwrap();
            std::thread::sleep(Duration::from_millis(10));
        }
        finish(child);
        is_well(&enclave);
    }
}

#[test]
fn threads_finish_while_cpus_go_offline_and_online() {
    let Some(_alone) = alone() else { return };
    let enclave = start(|_| {});
    let mut agents = SuccessiveAgents::of(&enclave);
    for policy in POLICIES {
        agents.next(policy);
        let child = work(6, usize::MAX);
        for cpu in [1, 2, 1] {
            online(cpu, false);
            std::thread::sleep(Duration::from_millis(300));
            online(cpu, true);
            std::thread::sleep(Duration::from_millis(100));
        }
        finish(child);
        is_well(&enclave);
    }
}

#[test]
fn error_names_the_scheduler_that_is_already_loaded() {
    let Some(_alone) = alone() else { return };
    let enclave = start(|_| {});
    let socket = std::env::temp_dir().join(format!("wave-vm-other-{}.sock", std::process::id()));
    let error = Enclave::start(Options::new(socket, vec![0])).unwrap_err().to_string();
    assert!(error.contains("another sched_ext scheduler is loaded: `wave"), "{error}");
    drop(enclave);
}

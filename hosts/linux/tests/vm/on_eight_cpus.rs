//! The same programs on a larger machine, with counts of threads that change their CPU. `cargo xtask vm test` has a
//! separate machine for these.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use wave_core::outcome::Code;
use wave_linux::sched;

use crate::processes::{
    SuccessiveAgents, alone, count, cpus, finish, installed, is_well, shell, start, wait_for, work,
};

const CPUS: usize = 8;
const TRACE: &str = "/sys/kernel/tracing";

/// Counts threads that the kernel moves to another CPU, by its own tracepoint.
struct Migrations;

impl Migrations {
    fn watch() -> Migrations {
        write("trace", "");
        write("buffer_size_kb", "8192");
        write("events/sched/sched_migrate_task/enable", "1");
        Migrations
    }

    /// Number of migrations of threads with this name.
    fn of(&self, name: &str) -> usize {
        let trace = std::fs::read_to_string(format!("{TRACE}/trace")).unwrap();
        let name = format!(" comm={name}");
        trace.lines().filter(|line| line.contains(&name)).count()
    }
}

impl Drop for Migrations {
    fn drop(&mut self) {
        write("events/sched/sched_migrate_task/enable", "0");
    }
}

fn write(file: &str, text: &str) {
    let path = format!("{TRACE}/{file}");
    std::fs::write(&path, text).unwrap_or_else(|error| panic!("{path}: {error}"));
}

/// Runs programs under `policy`, and prints how often threads named `name` changed their CPU.
fn migrations(
    agents: &mut SuccessiveAgents<'_>,
    policy: &str,
    name: &str,
    programs: impl FnOnce(),
) {
    let before = agents.next(policy);
    let migrations = Migrations::watch();
    programs();
    let moved = migrations.of(name);
    let stats = is_well(agents.enclave());
    let switches = count(&stats, Code::Complete) - count(&before, Code::Complete);
    let cores = before.cores.iter().zip(&stats.cores);
    let busy = cores.filter(|(before, core)| core.switches > before.switches).count();
    println!(
        "{policy}: `{name}` changed its CPU {moved} times, in {switches} switches on {busy} cores"
    );
    assert!(moved > 0 && busy == CPUS - 1, "{policy}, {name}: {moved}, {stats:?}");
}

#[test]
fn the_same_programs_on_eight_cpus() {
    let Some(_alone) = alone() else { return };
    if cpus().len() < CPUS {
        println!(
            "not run: this machine has fewer than {CPUS} CPUs (`cargo xtask vm test` has a larger one)"
        );
        return;
    }
    let Some(stress) = installed("/usr/bin/stress-ng") else { return };
    let Some(server) = installed("/usr/bin/redis-check-rdb") else { return };
    let enclave = start(|_| {});
    let agents = &mut SuccessiveAgents::of(&enclave);
    for policy in ["fifo", "shinjuku:slice_us=5000", "vm"] {
        // Threads are named after their test; the kernel keeps 15 letters of the name.
        migrations(agents, policy, "processes::work", || drop(finish(work(12, 32))));
    }
    migrations(agents, "fifo", "stress-ng", || {
        let stressors = "--switch 4 --switch-ops 400 --futex 4 --futex-ops 200 \
                         --pthread 2 --pthread-ops 20 --fork 2 --fork-ops 20";
        finish(shell(&format!("{stress} --quiet --timeout 0 {stressors}")));
    });
    migrations(agents, "fifo", "true", || {
        let storm = "i=0; while [ $i -lt 60 ]; do (true | /bin/true) & \
                     i=$((i + 1)); [ $((i % 12)) -eq 0 ] && wait; done; wait; echo done";
        assert_eq!(finish(shell(storm)), "done\n");
    });
    migrations(agents, "fifo", "redis", || {
        let mut command = Command::new(server);
        command.arg0("redis-server").args(["--port", "6391", "--save", "", "--daemonize", "no"]);
        command.stdout(Stdio::null());
        let mut redis = sched::spawn(command).unwrap();
        wait_for("redis", || std::net::TcpStream::connect(("127.0.0.1", 6391)).is_ok());
        let load = "redis-benchmark -p 6391 -n 400 -c 8 -t set,get -q | tr '\\r' '\\n' | grep -c 'per second'";
        assert_eq!(finish(shell(load)).trim(), "2");
        finish(shell("redis-cli -p 6391 shutdown nosave || true"));
        redis.wait().unwrap();
    });
}

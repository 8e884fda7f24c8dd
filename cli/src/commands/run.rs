//! `wave run`: an experiment, from its file to its report.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{ArgGroup, Args};
use rustix::fs::{Access, access};
use wave_core::clock::Nanos;
use wave_core::layout::CORES_MAX;
use wave_linux::sched::Group;
use wave_process::cpus::Cpus;
use wave_sched::policies;

use super::device::DeviceArgs;
use wave_app_linux::{Part, Work};
use wave_app_record::workload;
use wave_apps::agent::{check_policy, policies_of};
use wave_apps::recording;
use wave_experiments::kinds::{self, Host, Options, Wanted};
use wave_report::Report;
use wave_terminal::{Failure, note, out};

#[derive(Args, Debug)]
#[command(
    group = ArgGroup::new("what").required(true).args(["scenario", "workload", "command", "pid", "cgroup", "all"]),
    after_help = "Examples:
  wave run scenarios/rocksdb-fifo.toml
  wave run scenarios/ladder.toml --json > ladder.json
  wave run scenarios/agent-crash.toml --out /tmp/results --quiet
  wave run scenarios/rocksdb-fifo.toml --record /tmp/logs
  sudo wave run scenarios/rocksdb-sol.toml --json > memory.json
  wave run scenarios/rpc-rocksdb.toml
  wave run scenarios/ladder.toml --host sim
  wave run scenarios/ladder.toml --host sim --resume
  wave run scenarios/rocksdb-sol.toml --host sim --record /tmp/logs
  wave run scenarios/rpc-rocksdb.toml --host sim
  cargo xtask vm run --icount --module zram --timeout 3600 -- target/release/wave run scenarios/memory-bakeoff.toml
  wave run --host sim --workload make.workload --policy fifo --policy shinjuku:slice_us=100 --cores 4
  wave run --host linux --policy shinjuku:slice_us=1000 -- redis-server --port 6400
  wave run --host linux --pid 1234
  wave run --host linux --cgroup /sys/fs/cgroup/system.slice/nginx.service
  wave run --host linux --all --policy shinjuku:slice_us=1000
  wave run --host linux scenarios/kernel/two-enclaves.toml
  wave run --agent target/release/my-policy my-scenario.toml
  wave run --agent target/release/my-policy --host sim my-scenario.toml
  wave run --agent target/release/my-policy --host linux --policy two-class -- make
  wave run --host linux --device 0000:00:01.0 -- ./server

Results are in out/NAME/, those of simulated runs in out/NAME.sim/. Each finished point is kept there; an
interrupted run resumes with the same command and --resume.

A workload is a recording of `wave record`; a table compares the policies with Linux.

On the real kernel (root, Linux 6.13 or later with sched_ext) an agent in another process schedules
the threads of a command, a process or a cgroup with all their children, or of the whole machine.
A file describes several enclaves, each with its CPUs and agent. `wave linux status` shows them.
Ctrl-C and SIGTERM end the run: a command gets the signal, and its exit code is this command's.
Threads that were running before get back their class and nice value.

Exit codes: 0 success; 1 a check failed (requests lost, say); 2 a bad scenario; 3 this
machine cannot run it (the message says what to type); 4 no result: the load generator never kept up,
or no load could be served (run it again on a quiet machine, or with other loads). Crash and chaos
scenarios never exit with 4. Other processes alone do not make a run by rounds exit with 4: its last
sentence says what can be told. After Ctrl-C or SIGTERM 130 or 143; memory scenarios undo their changes
and exit with 3; --host linux exits with the command's code, or 0 without a command."
)]
pub struct RunArgs {
    /// Scenario of the experiment, as in scenarios/; for `--host linux`, enclaves as in scenarios/kernel/.
    #[arg(value_name = "SCENARIO.toml")]
    scenario: Option<PathBuf>,
    /// Replay this recording of `wave record` instead of a scenario. Needs `--host sim`.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["record", "live"])]
    workload: Option<PathBuf>,
    /// Policy, with settings after a colon. For a workload it may be repeated [default: fifo, shinjuku,
    /// vm]; with --host linux it is given once [default: fifo; with --all shinjuku:slice_us=1000].
    #[arg(long = "policy", value_name = "NAME", conflicts_with = "scenario")]
    policies: Vec<String>,
    /// Your own agent program, started for every agent instead of `wave agent`; its `main` calls
    /// wave_agent::main_with. With --host sim it decides for the simulated host, without attaching.
    #[arg(long, value_name = "PROGRAM", conflicts_with_all = ["workload", "device"], value_parser = program)]
    agent: Option<PathBuf>,
    /// Number of cores for the workload [default: as many as it was recorded on].
    #[arg(long, value_name = "N", requires = "workload", conflicts_with_all = ["scenario", "command", "pid", "cgroup", "all"], value_parser = clap::value_parser!(u16).range(1..=CORES_MAX as i64))]
    cores: Option<u16>,
    /// Command to start and schedule, with its children. Needs `--host linux`.
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "live")]
    command: Vec<String>,
    /// Schedule a running process instead of a command, with all its threads and children, until it ends,
    /// or Ctrl-C. Needs `--host linux`.
    #[arg(long, value_name = "PID", conflicts_with = "live", value_parser = clap::value_parser!(i32).range(1..))]
    pid: Option<i32>,
    /// Schedule every process of a cgroup (v2) and of the cgroups below it, later ones included, until
    /// Ctrl-C. Needs `--host linux`.
    #[arg(long, value_name = "FOLDER", conflicts_with = "live")]
    cgroup: Option<PathBuf>,
    /// Schedule every thread of the machine except kernel threads and Wave's own, until Ctrl-C. Needs
    /// `--host linux`.
    #[arg(long, conflicts_with = "live")]
    all: bool,
    /// CPUs for the command's threads, such as 0-3,8 [default: all online CPUs but the last, which is the
    /// agent's].
    #[arg(long, value_name = "LIST", conflicts_with_all = ["scenario", "workload"])]
    cpus: Option<Cpus>,
    /// Milliseconds that a thread may wait for a decision while a core is idle, before the host turns the
    /// agent out [default: 20].
    #[arg(long, value_name = "MS", conflicts_with_all = ["scenario", "workload"], value_parser = clap::value_parser!(u64).range(1..=60_000))]
    patience: Option<u64>,
    #[command(flatten)]
    device: DeviceArgs,
    /// Host that enforces decisions.
    #[arg(long, value_enum, default_value_t = HostName::User)]
    host: HostName,
    /// Directory for results. Each scenario gets a subdirectory, whose name ends in .sim for simulated runs
    /// [default: out].
    #[arg(long, value_name = "DIR", conflicts_with_all = ["command", "pid", "cgroup", "all"])]
    out: Option<PathBuf>,
    /// Resume an interrupted run without repeating finished points. The scenario and the program must be
    /// the same.
    #[arg(long, requires = "scenario", conflicts_with_all = ["record", "workload", "command", "pid", "cgroup", "all"])]
    resume: bool,
    /// Write a log of every agent into this directory, for `wave replay` and `wave trace`: one file per
    /// agent, named after its variant (and its load, for simulated RPCs). About 50 bytes per request.
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,
    /// Print one JSON object instead of tables.
    #[arg(long)]
    json: bool,
    /// Show no progress.
    #[arg(long, short)]
    quiet: bool,
    /// Watch cores, queues, outcomes and latency on the terminal while it runs.
    #[arg(long, conflicts_with = "json")]
    live: bool,
}

impl RunArgs {
    fn out(&self) -> &Path {
        self.out.as_deref().unwrap_or(Path::new("out"))
    }
}

/// The absolute path of a user's agent, so that PATH is not searched. Symbolic links are not resolved: a program may depend on the
/// name under which it is started.
pub(super) fn program(text: &str) -> Result<PathBuf, String> {
    let path = std::path::absolute(text).map_err(|error| error.to_string())?;
    let is_file = path.metadata().map_err(|error| error.to_string())?.is_file();
    match is_file && access(&path, Access::EXEC_OK).is_ok() {
        true => Ok(path),
        false => Err("it is not an executable file".to_owned()),
    }
}

/// Host that enforces decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum HostName {
    /// A runtime of user-level threads on this machine.
    User,
    /// A simulated machine, in virtual time: the same result on every machine and in every run.
    Sim,
    /// This machine's kernel, by sched_ext.
    Linux,
}

pub fn execute(args: &RunArgs) -> Result<ExitCode, Failure> {
    with_whole_logs(perform(args)?)
}

/// The exit code of a run that may have recorded logs. A log that is cut off makes a successful run fail: it was asked for.
pub(super) fn with_whole_logs(code: ExitCode) -> Result<ExitCode, Failure> {
    if code == ExitCode::SUCCESS {
        recording::check()?;
    }
    Ok(code)
}

fn perform(args: &RunArgs) -> Result<ExitCode, Failure> {
    if let Some(file) = &args.workload {
        return replay(args, file);
    }
    if let Some(work) = kernel_work(args) {
        let part = one_enclave(args, work)?;
        return run_on_kernel(args, vec![part]);
    }
    let file = args.scenario.as_ref().expect("one of the group `what` is required");
    if args.host == HostName::Linux {
        if args.live || args.out.is_some() || args.resume {
            let why = "--host linux has no --live (see `wave linux status --live`), no --out and no --resume";
            return Err(Failure::Scenario(why.to_owned()));
        }
        if args.agent.is_some() {
            let why =
                "--agent needs a command, --pid, --cgroup, --all, or a scenario on --host user";
            return Err(Failure::Scenario(why.to_owned()));
        }
        return run_on_kernel(args, wave_app_linux::load(file)?);
    }
    let host = if args.host == HostName::Sim { Host::Sim } else { Host::User };
    let record = args.record.as_deref();
    let options = Options {
        wanted: Wanted { host, quiet: args.quiet, live: args.live, record },
        out: args.out(),
        resume: args.resume,
        agent: args.agent.as_deref(),
        json: args.json,
    };
    kinds::run(&super::kinds(), file, &options)
}

/// The threads to run under the real kernel; `None` for a scenario or a workload.
fn kernel_work(args: &RunArgs) -> Option<Work> {
    let group = args.pid.map(Group::Process).or_else(|| args.cgroup.clone().map(Group::Cgroup));
    let command = || (!args.command.is_empty()).then(|| Work::Command(args.command.clone()));
    let all = || args.all.then_some(Work::Everything);
    group.map(Work::Group).or_else(command).or_else(all)
}

/// The enclave that the command line describes.
fn one_enclave(args: &RunArgs, work: Work) -> Result<Part, Failure> {
    if args.host != HostName::Linux {
        let why = "a command, --pid, --cgroup and --all need --host linux: only the real kernel runs other programs' threads";
        return Err(Failure::Scenario(why.to_owned()));
    }
    let policy = match &args.policies[..] {
        // Without slices, long computations would keep shells and servers waiting.
        [] if args.all => "shinjuku:slice_us=1000",
        [] => "fifo",
        [one] => one,
        _ => {
            return Err(Failure::Scenario(
                "give --policy once: an enclave has one policy".to_owned(),
            ));
        }
    };
    match &args.agent {
        Some(program) => {
            let (names, name) = (policies_of(program)?, policy.split(':').next().unwrap_or(policy));
            if !names.iter().any(|known| known == name) {
                let names = names.join(", ");
                let why = format!("{} has no policy `{name}`; it has {names}", program.display());
                return Err(Failure::Scenario(why));
            }
            check_policy(program, policy).map_err(Failure::Scenario)?;
        }
        None => {
            policies::check(policy).map_err(|error| Failure::Scenario(error.to_string()))?;
        }
    }
    Ok(Part {
        name: None,
        work,
        program: args.agent.clone(),
        policy: policy.to_owned(),
        device: args.device.options(),
        cpus: args.cpus.as_deref().map(<[usize]>::to_vec),
        patience: args.patience.map(Nanos::from_millis),
    })
}

/// Runs threads under the real kernel. Prints the counters to standard error, after a command's own output; with
/// `--json` the object.
fn run_on_kernel(args: &RunArgs, parts: Vec<Part>) -> Result<ExitCode, Failure> {
    let record = args.record.as_deref();
    let ran = wave_app_linux::run(wave_app_linux::Wanted { parts, record, json: args.json })?;
    if args.json {
        out!("{}", ran.to_json());
    } else if !args.quiet {
        note!("{}", ran.to_text());
    }
    let failed = ran.failed();
    for check in &failed {
        note!("wave run: check failed: {check}");
    }
    Ok(if failed.is_empty() { ExitCode::from(ran.exit_code()) } else { ExitCode::from(1) })
}

/// Schedules a recorded workload and prints the table, or with `--json` the object.
fn replay(args: &RunArgs, file: &Path) -> Result<ExitCode, Failure> {
    if args.host != HostName::Sim {
        let why = "--workload needs --host sim: only a simulated host can have other threads' work";
        return Err(Failure::Scenario(why.to_owned()));
    }
    let shown = (args.out(), args.quiet || args.json);
    let compared = workload::compare(file, &args.policies, args.cores, shown)?;
    let directory = compared.write(args.out())?;
    kinds::show(&compared, args.json, directory)
}

//! `wave memory`: finds cold pages of running programs and pages them out.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};
use wave_agent::OutputFile;
use wave_confine::User;
use wave_core::link::Home;
use wave_links::LinkSpec;
use wave_linux::memory::{Backend, DeviceOptions, Group, Limits};
use wave_memory::policies;
use wave_process::words::plain;

use super::device::Way;
use super::run::with_whole_logs;
use wave_app_memory::run::{Wanted, too_short};
use wave_app_memory::{explain, run};
use wave_bakeoff::medians::Medians;
use wave_bakeoff::report::Results;
use wave_report::Report;
use wave_scenario::size;
use wave_terminal::{Failure, note, out};

#[derive(Args, Debug)]
pub struct MemoryArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Page out memory that running programs do not use, as an agent decides.
    Run(RunArgs),
    /// Explain from a run's log why a range is hot or cold.
    Explain(ExplainArgs),
    /// Write the report of a bake-off from its JSON, or print medians of several bake-offs.
    Draw(DrawArgs),
}

#[derive(Args, Debug)]
#[command(
    group = ArgGroup::new("whose").required(true).multiple(true).args(["pid", "cgroup", "command"]),
    after_help = "Reads and clears the accessed bits of the programs' pages, sends them to an agent in another process,
and pages out what the agent finds cold, by process_madvise(2). Only private, anonymous memory is
managed. Shared, locked and file memory stays untouched; its size is shown. Programs need no change;
huge pages are not split. Pages come back when they are touched, also after this command has ended or
was killed.

Nothing is paged out while refaults cost the programs more than --slowdown of their time: the number of
refaults times the measured time of one on this machine. Nor is it while tasks wait for memory
(--pressure). A program that now and then walks all of its memory pays that time once. Memory that
does not compress is not paged out to zram.

Swap is needed. --zram SIZE adds compressed memory as swap for the run, and removes it at the end,
which brings everything back. Concurrent runs share the first run's swap, and the last one removes
it. A swap file or partition (`swapon`) works as well, as long as half of it is free: only then
can pages that were written leave memory at once.

Examples:
  sudo wave memory run --pid $(pidof my-server) --zram 4GiB
  sudo wave memory run --cgroup /sys/fs/cgroup/batch --slowdown 3 --out /tmp/memory
  sudo wave memory run --dry-run --seconds 120 --policy threshold -- my-server --port 80
  sudo wave memory run --pid 1234 --record x.wavelog; wave memory explain x.wavelog

Policies: sol, threshold; each takes settings as in `sol:shortest_ms=600`.

Exit codes: the command's, if it ended by itself; else 0 done; 2 bad arguments, no such process, or
none of its memory can be paged out; 3 this machine or user cannot (the message says what to type)."
)]
struct RunArgs {
    /// Manage these processes and their children.
    #[arg(long, value_name = "PID", num_args = 1.., value_parser = clap::value_parser!(i32).range(1..))]
    pid: Vec<i32>,
    /// Manage the processes of a cgroup and of the cgroups below it, later ones included; may be repeated.
    #[arg(long, value_name = "FOLDER")]
    cgroup: Vec<PathBuf>,
    /// Command to start and to manage, with its children.
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
    /// Policy that decides, with its settings.
    #[arg(long, value_name = "NAME", default_value = "sol")]
    policy: String,
    /// Link to the agent: shm, or a cost file as `wave link measure` writes it.
    #[arg(long, value_name = "NAME", default_value = "shm", value_parser = link)]
    link: LinkSpec,
    /// Start no agent: one attaches from the other side of this PCI device and chooses its policy there.
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["policy", "link", "record"])]
    device: Option<String>,
    /// Access to the device: by VFIO with interrupts, or by its files in sysfs, where a thread must poll.
    #[arg(long, value_enum, value_name = "WAY", default_value_t = Way::Vfio, requires = "device")]
    device_by: Way,
    /// Switch the agent to this user once it is attached: a name in /etc/passwd, or UID:GID.
    #[arg(long, value_name = "USER", conflicts_with = "device")]
    agent_user: Option<User>,
    /// Page nothing out while refaults cost the programs more than this share of the time, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0, value_parser = percent)]
    slowdown: f64,
    /// Page nothing out above this rate of refaults, in percent of the resident pages per minute [default: no limit].
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    refaults: Option<f64>,
    /// Page nothing out above this share of time in which tasks wait for memory, in percent (PSI, some).
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0, value_parser = percent)]
    pressure: f64,
    /// Scan and decide, but page nothing out.
    #[arg(long)]
    dry_run: bool,
    /// Method of reading accessed bits [default: the first that works on this machine].
    #[arg(long, value_name = "NAME", value_parser = backend)]
    backend: Option<Backend>,
    /// Add this much compressed memory as swap for the run; concurrent runs share the first one's.
    #[arg(long, value_name = "SIZE", value_parser = zram)]
    zram: Option<u64>,
    /// Duration in seconds [default: until the programs end, or Ctrl-C].
    #[arg(long, value_name = "N", value_parser = seconds)]
    seconds: Option<Duration>,
    /// Maximum memory that all programs together may map.
    #[arg(long, value_name = "SIZE", default_value = "256GiB", value_parser = size::parse)]
    most: u64,
    /// Write a log of the agent's messages and decisions, for `wave memory explain` and `wave replay`.
    #[arg(long, value_name = "FILE")]
    record: Option<OutputFile>,
    /// Write report.html, memory.svg, heat.svg, samples.csv, results.json and, without --record, memory.wavelog into this folder.
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Print one JSON object; the command's output goes to standard error.
    #[arg(long)]
    json: bool,
    /// Show no progress.
    #[arg(long, short)]
    quiet: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "Replays the log: the answer is the policy's knowledge at that moment.

Examples:
  sudo wave memory run --pid 1234 --record x.wavelog --seconds 120
  wave memory explain x.wavelog                          all managed memory, in similar ranges
  wave memory explain x.wavelog --address 0x7f12a4000000 one batch: history and probabilities
  wave memory explain x.wavelog --at 60 --svg heat.svg   as of 60 s; heat over time and address

Exit codes: 0 explained; 1 the log has nothing about that range; 2 a bad log.")]
struct ExplainArgs {
    /// Log written by `wave memory run --record`.
    #[arg(value_name = "LOG")]
    log: PathBuf,
    /// Explain only this process.
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// Explain only the batch with this address.
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    address: Option<u64>,
    /// Time in seconds from the log's start [default: its end].
    #[arg(long, value_name = "SECONDS")]
    at: Option<f64>,
    /// Draw how hot each batch was, over time and address.
    #[arg(long, value_name = "FILE")]
    svg: Option<OutputFile>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "Example:
  cargo xtask vm run --icount --module zram --timeout 3600 -- \\
      target/release/wave run scenarios/memory-bakeoff.toml --json > results.json
  wave memory draw results.json --out out
  wave memory draw first.json second.json third.json --json

For several files, which may cover different programs, it prints the median, the smallest and the largest
ratio of each program over its runs, and writes no report.")]
struct DrawArgs {
    /// Output of `wave run scenarios/memory-bakeoff.toml --json`, one file per run.
    #[arg(value_name = "FILE", required = true)]
    results: Vec<PathBuf>,
    /// Print the medians as one JSON object.
    #[arg(long)]
    json: bool,
    /// Directory for the report; it gets a subdirectory named after the scenario.
    #[arg(long, value_name = "DIR", default_value = "out")]
    out: PathBuf,
}

/// Parses percent. More than 100 is valid: a page may come back several times in a minute.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.0..=1e6).contains(number));
    number.ok_or_else(|| "expected percent, 0 or more".to_owned())
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=1e8).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "expected seconds, 0.1 or more".to_owned())
}

fn address(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let address = u64::from_str_radix(digits, 16).ok();
    address.ok_or_else(|| "expected an address such as 0x7f12a4000000".to_owned())
}

fn link(text: &str) -> Result<LinkSpec, String> {
    if let Some(link) = LinkSpec::builtin(text) {
        return Ok(link);
    }
    let file = std::fs::read_to_string(text).map_err(|error| format!("{text}: {error}"))?;
    LinkSpec::parse(&file).map_err(|error| format!("{text}: {error}"))
}

/// Parses the size of `--zram`. More than four times the machine's memory is refused: zram keeps its pages in that memory.
fn zram(text: &str) -> Result<u64, String> {
    const TIMES_MEMORY_MAX: u64 = 4;
    let bytes = size::parse(text)?;
    let info = rustix::system::sysinfo();
    let most = TIMES_MEMORY_MAX * info.totalram as u64 * u64::from(info.mem_unit.max(1));
    match bytes <= most {
        true => Ok(bytes),
        false => Err(format!(
            "expected {} at most, {TIMES_MEMORY_MAX} times this machine's memory",
            size::show(most)
        )),
    }
}

fn backend(text: &str) -> Result<Backend, String> {
    let found = Backend::ALL.iter().find(|backend| backend.name() == text);
    found.copied().ok_or_else(|| {
        let names: Vec<&str> = Backend::ALL.iter().map(|backend| backend.name()).collect();
        format!("expected one of: {}", names.join(", "))
    })
}

pub fn execute(args: &MemoryArgs) -> Result<ExitCode, Failure> {
    with_whole_logs(match &args.what {
        What::Run(args) => manage(args),
        What::Explain(args) => tell(args),
        What::Draw(args) => draw(args),
    }?)
}

fn manage(args: &RunArgs) -> Result<ExitCode, Failure> {
    let processes = args.pid.iter().map(|pid| Group::Process(*pid));
    let cgroups = args.cgroup.iter().map(|folder| Group::Cgroup(folder.clone()));
    let strips = args.most.div_ceil(wave_memory::wire::STRIP_BYTES);
    let config = wave_core::layout::Config::coherent(1);
    let policy = policies::by_name(&args.policy, &config)
        .map_err(|error| Failure::Scenario(error.to_string()))?;
    // An agent behind a device has a policy of its own.
    let ours = args.seconds.filter(|_| args.device.is_none());
    if let Some(why) = too_short(ours, policy.epoch()) {
        note!("wave memory: --seconds: {why}");
    }
    let wanted = Wanted {
        groups: processes.chain(cgroups).collect(),
        command: args.command.clone(),
        policy: args.policy.clone(),
        epoch: policy.epoch(),
        link: args.link.clone(),
        device: args.device.clone().map(|address| DeviceOptions {
            address,
            access: args.device_by.into(),
            decisions: Home::Host,
        }),
        user: args.agent_user,
        limits: Limits {
            slowdown: args.slowdown / 100.0,
            refaults_per_minute: args.refaults.map_or(f64::INFINITY, |percent| percent / 100.0),
            pressure_percent: args.pressure,
        },
        dry_run: args.dry_run,
        backend: args.backend,
        zram: args.zram,
        time: args.seconds,
        strips: u32::try_from(strips).unwrap_or(u32::MAX).clamp(1, 1 << 20),
        record: match (&args.record, &args.out) {
            (Some(file), _) => Some(file.path().to_owned()),
            (None, out) => out.as_ref().map(|out| out.join("memory.wavelog")),
        },
        heat: args.out.is_some(),
        quiet: args.quiet || args.json,
        json: args.json,
    };
    if let Some(out) = &args.out {
        // Created now, so that a bad path fails before the run and not after an hour.
        wave_report::make_folder(out)?;
    }
    let ran = run::run(&wanted)?;
    let report = &ran.report;
    if let Some(out) = &args.out {
        report.save(out)?;
    }
    if args.json {
        out!("{}", serde_json::to_string(report).map_err(Failure::cannot)?);
    } else {
        out!("{}", report.text());
        if let Some(out) = &args.out {
            out!("Report: {}", out.join("report.html").display());
        }
    }
    let exit = report.exit.unwrap_or(0) as u8;
    ran.take_down();
    Ok(ExitCode::from(exit))
}

fn tell(args: &ExplainArgs) -> Result<ExitCode, Failure> {
    let asked = explain::Asked { pid: args.pid, address: args.address, at: args.at };
    let told = explain::explain(&args.log, &asked)?;
    if let Some(file) = &args.svg {
        file.find()?.write(told.heat().map_err(Failure::cannot)?)?;
    }
    if args.json {
        out!("{}", told.json());
    } else {
        out!("{}", told.text());
    }
    Ok(if told.is_empty() { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

fn draw(args: &DrawArgs) -> Result<ExitCode, Failure> {
    let read = |file: &PathBuf| -> Result<Results, Failure> {
        let bad = |error: &dyn std::fmt::Display| {
            Failure::Scenario(format!("{}: {error}", file.display()))
        };
        let text = std::fs::read_to_string(file).map_err(|error| bad(&error))?;
        serde_json::from_str(&text).map_err(|error| {
            let why = plain(&error.to_string(), "an object");
            bad(&format!("it is not the JSON of a bake-off: {why}"))
        })
    };
    let results = args.results.iter().map(read).collect::<Result<Vec<Results>, Failure>>()?;
    let medians = Medians::of(&results);
    if args.json {
        out!("{}", serde_json::to_string(&medians).map_err(Failure::cannot)?);
    } else if let [results] = results.as_slice() {
        let directory = results.write(&args.out)?;
        out!("{}", results.text());
        out!("Report: {}", directory.join("report.html").display());
    } else {
        out!("{}", medians.text());
    }
    Ok(ExitCode::SUCCESS)
}

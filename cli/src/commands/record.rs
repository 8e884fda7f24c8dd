//! `wave record`: records threads under Linux as a workload.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{ArgGroup, Args};
use serde_json::json;
use wave_agent::OutputFile;
use wave_sim::recorded::Schedule;

use wave_app_record::record::{self, Recording, Whom};
use wave_app_record::workload::interference;
use wave_report::number::{micros, short};
use wave_terminal::{Failure, counted, out};

#[derive(Args, Debug)]
#[command(
    group = ArgGroup::new("whom").required(true).args(["pid", "all", "command"]),
    after_help = "Records when threads were woken and by which thread, how long they waited for a CPU, how long they
ran and when they blocked, by BPF at the kernel's tracepoints. Needs Linux 5.18 or later with BTF,
and root, or CAP_BPF and CAP_PERFMON. No patched kernel, no sched_ext.

Examples:
  sudo wave record --out make.workload -- make -j4        a command from start to end
  sudo wave record --pid 1234 --seconds 5 --out web.workload
  sudo wave record --all --seconds 2 --out all.workload
  wave run --host sim --workload make.workload            under FIFO, Shinjuku and VM

Ctrl-C ends the recording and writes it; a command that still runs is ended as well. The recorder's own
process is not recorded. Events lost to full buffers are counted in the file. docs/guide/record.md

Exit codes: the command's, if it ended by itself (128 and more for a signal); else 0 recorded; 2 bad
arguments, no such process or command; 3 the kernel does not allow it, or FILE cannot be written."
)]
pub struct RecordArgs {
    /// Record a process and its children.
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pid: Option<u32>,
    /// Record the whole machine.
    #[arg(long)]
    all: bool,
    /// Command to start and record, with its children.
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
    /// Duration in seconds [default: until the process or command ends, or Ctrl-C].
    #[arg(long, value_name = "N", value_parser = seconds)]
    seconds: Option<f64>,
    /// File to write the workload to.
    #[arg(long, value_name = "FILE")]
    out: OutputFile,
    /// Print one JSON object instead of text; the command's output goes to standard error.
    #[arg(long)]
    json: bool,
    /// Show no progress.
    #[arg(long, short)]
    quiet: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.001..=86_400.0).contains(seconds));
    seconds.ok_or_else(|| "expected seconds, 0.001 to 86400".to_owned())
}

pub fn execute(args: &RecordArgs) -> Result<ExitCode, Failure> {
    let whom = match (args.pid, args.all) {
        (Some(pid), _) => Whom::Process(pid),
        (None, true) => Whom::All,
        (None, false) => Whom::Command(args.command.clone()),
    };
    let quiet = args.quiet || args.json;
    let recording = record::record(&whom, args.seconds, &args.out, quiet, args.json)?;
    show(args, &recording);
    Ok(ExitCode::from(recording.exit_code.unwrap_or(0)))
}

fn show(args: &RecordArgs, Recording { workload, ended, exit_code }: &Recording) {
    let header = &workload.header;
    let wait = Schedule::recorded(workload).latency;
    let runs = workload.runs().count();
    if args.json {
        let summary = json!({
            "file": args.out.path(),
            "ended": ended,
            "exit_code": exit_code,
            "recorded": header,
            "runs": runs,
            "cpu_ns": workload.cpu_ns(),
            "wait": {
                "count": wait.count,
                "p50_ns": wait.p50_ns,
                "p99_ns": wait.p99_ns,
                "max_ns": wait.max_ns,
            },
        });
        out!("{summary}");
        return;
    }
    let file = args.out.path().display();
    out!(
        "{file}: {}, {}, {} ms of CPU time in {} ms on {} ({ended})",
        counted(header.threads, "thread"),
        counted(runs, "run"),
        short(workload.cpu_ns() as f64 / 1e6),
        short(header.duration_ns as f64 / 1e6),
        counted(header.cpus, "CPU"),
    );
    out!(
        "Delay from wake-up to running: p50 {} us, p99 {} us, longest {} us",
        micros(wait.p50_ns),
        micros(wait.p99_ns),
        micros(wait.max_ns)
    );
    out!("{}", interference(workload));
    if header.dropped_events + header.unfollowed_threads > 0 {
        out!(
            "Incomplete: {} and {} lost, {} guessed: this machine \
             is too busy to be recorded whole; record fewer processes",
            counted(header.dropped_events, "event"),
            counted(header.unfollowed_threads, "thread"),
            counted(header.repaired, "transition")
        );
    }
    match header.threads {
        0 => out!("No thread ran: there is nothing to schedule."),
        _ => out!("Next: wave run --host sim --workload {file}"),
    }
}

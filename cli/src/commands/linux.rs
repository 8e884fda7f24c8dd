//! `wave linux status`: threads that Wave schedules on the real kernel, and their agents.

use std::fmt::Write;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use ratatui::crossterm::cursor::MoveTo;
use ratatui::crossterm::execute as send;
use ratatui::crossterm::terminal::{self, Clear, ClearType};
use serde_json::json;

use wave_app_linux::status::{self, Run, Thread};
use wave_terminal::{Failure, Table, counted, note, out};

/// Interval between refreshes of the live view.
const LOOK: Duration = Duration::from_secs(1);
/// Lines of a terminal that does not report its size.
const HEIGHT: u16 = 24;

#[derive(Args, Debug)]
pub struct LinuxArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show threads, outcomes of decisions, and the attached agent.
    Status(StatusArgs),
}

#[derive(Args, Debug)]
#[command(
    after_help = "For each `wave run --host linux` of this machine: the agent's policy and process, each core's
switches by the agent and by the host, outcomes by code, and each thread with its process, its state
(runs, waits for a decision, blocked; new: not yet announced to the agent) and its CPU. Threads that may
not run on every core stay with the host, and are not shown.

Examples:
  sudo wave linux status
  sudo wave linux status --live              refreshes each second, until Ctrl-C
  sudo wave linux status --json | jq '.runs[].enclaves[].agents_lost'

Exit codes: 0 shown; 1 nothing runs under Wave; 3 root is needed."
)]
struct StatusArgs {
    /// Print one JSON object instead of tables.
    #[arg(long)]
    json: bool,
    /// Refresh the tables each second, until Ctrl-C.
    #[arg(long, conflicts_with = "json")]
    live: bool,
}

pub fn execute(args: &LinuxArgs) -> Result<ExitCode, Failure> {
    let What::Status(args) = &args.what;
    let runs = read_status()?;
    if args.json {
        out!("{}", json!({ "runs": runs, "scheduler": scheduler() }));
    } else if runs.is_empty() {
        note!("wave linux status: {}", nothing());
    } else if args.live {
        return live();
    } else {
        out!("{}", text(&runs));
    }
    Ok(if runs.is_empty() { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

/// Refreshes the tables until the last run has ended.
fn live() -> Result<ExitCode, Failure> {
    let mut out = std::io::stdout();
    if !out.is_terminal() {
        let why = "--live draws on a terminal, and standard output is none: leave --live out";
        return Err(Failure::Scenario(why.to_owned()));
    }
    loop {
        let runs = read_status()?;
        send!(out, Clear(ClearType::All), MoveTo(0, 0)).map_err(Failure::cannot)?;
        if runs.is_empty() {
            out!("The last run under Wave has ended.");
            return Ok(ExitCode::SUCCESS);
        }
        let height = terminal::size().map_or(HEIGHT, |(_, height)| height);
        out!("{}", shortened(&text(&runs), usize::from(height).saturating_sub(1)));
        std::thread::sleep(LOOK);
    }
}

/// The text, cut to `height` lines. The last line then counts the omitted ones.
fn shortened(text: &str, height: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    if lines.len() <= height {
        return text.to_owned();
    }
    let shown = height.saturating_sub(1);
    format!("{}\n... {} more lines", lines[..shown].join("\n"), lines.len() - shown)
}

fn read_status() -> Result<Vec<Run>, Failure> {
    let mut runs = status::runs().map_err(|error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            Failure::Cannot(format!("{}: {error}; type: sudo wave linux status", status::FOLDER))
        }
        _ => Failure::cannot(error),
    })?;
    let enclaves = runs.iter_mut().flat_map(|run| &mut run.enclaves);
    enclaves.flat_map(|enclave| &mut enclave.threads).for_each(name);
    Ok(runs)
}

/// Fills in a thread's name and process from /proc.
fn name(thread: &mut Thread) {
    // A name may be any bytes.
    let Ok(text) = std::fs::read(format!("/proc/{}/status", thread.tid)) else { return };
    let text = String::from_utf8_lossy(&text);
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    thread.name = field("Name:").map(|name| name.trim().to_owned());
    thread.pid = field("Tgid:").and_then(|pid| pid.trim().parse().ok());
}

/// Name of the loaded sched_ext scheduler, Wave's or another.
fn scheduler() -> Option<String> {
    let name = std::fs::read_to_string("/sys/kernel/sched_ext/root/ops").ok()?;
    Some(name.trim().to_owned())
}

fn nothing() -> String {
    match scheduler() {
        Some(name) => format!(
            "nothing runs under `wave run --host linux`; the kernel has another scheduler loaded: `{name}`"
        ),
        None => {
            "nothing runs under Wave; to start something: sudo wave run --host linux -- COMMAND"
                .to_owned()
        }
    }
}

fn text(runs: &[Run]) -> String {
    let mut text = String::new();
    for run in runs {
        for enclave in &run.enclaves {
            let agent = match (enclave.report.agent_decides, enclave.report.agent_pid) {
                (true, Some(pid)) => format!("agent {pid} decides"),
                (true, None) => "an agent behind the device decides".to_owned(),
                (false, _) => "no agent: the host decides".to_owned(),
            };
            let count =
                |state: &str| enclave.threads.iter().filter(|thread| thread.state == state).count();
            let _ = writeln!(
                text,
                "wave run {}: {agent}; {}: {} run, {} wait, {} blocked, {} new",
                run.pid,
                counted(enclave.threads.len(), "thread"),
                count("runs"),
                count("waits"),
                count("blocked"),
                count("new"),
            );
            let _ = writeln!(text, "{}", enclave.report.to_text());
            let mut threads = Table::new(5, ["process", "thread", "name", "state", "CPU"]);
            for thread in &enclave.threads {
                let or_none = |number: Option<String>| number.unwrap_or_else(|| "-".to_owned());
                threads.push([
                    or_none(thread.pid.map(|pid| pid.to_string())),
                    thread.tid.to_string(),
                    or_none(thread.name.clone()),
                    thread.state.clone(),
                    or_none(thread.cpu.map(|cpu| cpu.to_string())),
                ]);
            }
            let _ = writeln!(text, "{threads}\n");
        }
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_terminals_height_are_counted() {
        assert_eq!(shortened("a\nb", 2), "a\nb");
        assert_eq!(shortened("a\nb\nc\nd", 3), "a\nb\n... 2 more lines");
    }

    #[test]
    fn a_thread_gets_its_name_and_process_from_proc() {
        let tid = std::process::id() as i32;
        let state = "runs".to_owned();
        let mut thread = Thread { pid: None, tid, name: None, state, cpu: None };
        name(&mut thread);
        assert_eq!(thread.pid, Some(tid));
        assert!(thread.name.is_some());
    }
}

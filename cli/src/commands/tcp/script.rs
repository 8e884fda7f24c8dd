//! `wave tcp script`: runs packetdrill scripts against the agent's engine.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use wave_process::say;
use wave_tcp::datapaths::DatapathKind;
use wave_tcp_script::RunError;
use wave_tcp_script::suite::{self, Outcome};
use wave_terminal::{Table, print};

/// Exit code: a script failed, or a mutant passed.
const FAILED: u8 = 1;
/// Exit code: a file cannot be read, or is not a script.
const BAD: u8 = 2;

#[derive(Args, Debug)]
#[command(
    after_help = "A script says what a peer sends (<), what the engine must send (>), and what a program calls:

    0   socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
    +0  bind(3, ..., ...) = 0
    +0  listen(3, 1) = 0
    +0  < S 0:0(0) win 65535 <mss 1000>
    +0  > S. 0:0(0) ack 1 <...>
    +.1 < . 1:1(0) ack 1 win 65535
    +0  accept(3, ..., ...) = 4
    +0  < P. 1:1001(1000) ack 1 win 65535
    +.04 > . 1:1(0) ack 1001

Times are virtual: `0.1` since the start, `+.1` since the previous line, `+0...0.2` for a blocking call, `*` for any. The language is
a subset of packetdrill's; docs/guide/tcp-scripts.md describes all of it. No packet leaves the process, and no privileges are needed.

Examples:
  wave tcp script tests/tcp                   all scripts of a folder
  wave tcp script mine.pkt                    one script; reports the first line that fails
  wave tcp script tests/tcp --mutants         flips each expectation; a mutant that passes shows an unchecked one
  wave tcp script tests/tcp --datapath laminar   leaves out scripts with a line `// Not over laminar: REASON`
  wave tcp script tests/tcp --json            one object: scripts, failed, failures, left_out, mutants, mutants_survived

Exit codes: 0 all passed; 1 a script failed, or a mutant passed; 2 a file cannot be read, or is not a script."
)]
pub struct ScriptArgs {
    /// Script files, or folders of .pkt files.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Data path of the engine.
    #[arg(long, value_name = "NAME", default_value = "flextoe")]
    datapath: DatapathKind,
    /// Also run each script with every expectation flipped, one at a time.
    #[arg(long)]
    mutants: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

pub fn script(args: &ScriptArgs) -> ExitCode {
    let files = match suite::scripts(&args.paths) {
        Ok(files) => files,
        Err(error) => {
            say!("wave tcp script: {error}");
            return ExitCode::from(BAD);
        }
    };
    let mut outcomes = Vec::new();
    for path in files {
        match suite::text(&path) {
            Ok(text) => outcomes.push(suite::outcome(&path, &text, args.datapath, args.mutants)),
            Err(error) => {
                say!("wave tcp script: {}: {error}", path.display());
                return ExitCode::from(BAD);
            }
        }
    }
    if args.json {
        print(format_args!("{}\n", object(&outcomes)));
    } else {
        show(&outcomes, args.mutants);
    }
    let is_bad = |outcome: &Outcome| matches!(outcome.result, Err(RunError::Bad(_)));
    let has_failed = |outcome: &Outcome| outcome.result.is_err() || !outcome.survivors.is_empty();
    if outcomes.iter().any(is_bad) {
        ExitCode::from(BAD)
    } else if outcomes.iter().any(has_failed) {
        ExitCode::from(FAILED)
    } else {
        ExitCode::SUCCESS
    }
}

fn show(outcomes: &[Outcome], has_mutants: bool) {
    let mut table = Table::new(2, ["script", "verdict"]);
    for outcome in outcomes {
        let verdict = match (&outcome.result, &outcome.left_out) {
            (_, Some(why)) => format!("left out: {why}"),
            (Ok(()), _) if has_mutants => format!("passed, {} mutants", outcome.mutants),
            (Ok(()), _) => "passed".to_owned(),
            (Err(RunError::Failed(_)), _) => "FAILED".to_owned(),
            (Err(RunError::Bad(_)), _) => "not a valid script".to_owned(),
        };
        table.push([outcome.path.display().to_string(), verdict]);
    }
    print(format_args!("{}\n", table.plain()));
    for Outcome { path, result, survivors, .. } in outcomes {
        let path = path.display();
        match result {
            Ok(()) => {}
            Err(RunError::Failed(failure)) => print(format_args!(
                "\n{path}:{}\n  expected  {}\n  found     {}\n",
                failure.line, failure.expected, failure.actual
            )),
            Err(RunError::Bad(bad)) => {
                print(format_args!("\n{path}:{}:{}\n  {}\n", bad.line, bad.column, bad.what));
            }
        }
        for (line, what) in survivors {
            print(format_args!("\n{path}:{line}\n  still passes with {what} flipped\n"));
        }
    }
    let failed = outcomes.iter().filter(|outcome| outcome.result.is_err()).count();
    let left_out = outcomes.iter().filter(|outcome| outcome.left_out.is_some()).count();
    print(format_args!("\n{} scripts, {failed} failed", outcomes.len() - left_out));
    if left_out > 0 {
        print(format_args!("; {left_out} left out"));
    }
    if has_mutants {
        let (mutants, survived) = counts(outcomes);
        print(format_args!("; {mutants} mutants, {survived} passed"));
    }
    print(format_args!("\n"));
}

/// Numbers of mutants, and of mutants that passed.
fn counts(outcomes: &[Outcome]) -> (usize, usize) {
    let mutants = outcomes.iter().map(|outcome| outcome.mutants).sum();
    (mutants, outcomes.iter().map(|outcome| outcome.survivors.len()).sum())
}

fn object(outcomes: &[Outcome]) -> Value {
    let failure = |outcome: &Outcome| {
        let script = outcome.path.display().to_string();
        match outcome.result.as_ref().err()? {
            RunError::Failed(failure) => Some(json!({
                "script": script,
                "line": failure.line,
                "expected": failure.expected,
                "actual": failure.actual,
            })),
            RunError::Bad(bad) => Some(json!({
                "script": script,
                "line": bad.line,
                "expected": "a script",
                "actual": bad.what,
            })),
        }
    };
    let failures: Vec<Value> = outcomes.iter().filter_map(failure).collect();
    let (mutants, survived) = counts(outcomes);
    let survivors: Vec<Value> = outcomes
        .iter()
        .flat_map(|outcome| outcome.survivors.iter().map(move |(line, what)| (outcome, line, what)))
        .map(|(outcome, line, what)| {
            json!({ "script": outcome.path.display().to_string(), "line": line, "what": what })
        })
        .collect();
    let left_out: Vec<Value> = outcomes
        .iter()
        .filter_map(|outcome| Some((outcome, outcome.left_out.as_ref()?)))
        .map(|(outcome, why)| json!({ "script": outcome.path.display().to_string(), "why": why }))
        .collect();
    json!({
        "scripts": outcomes.len() - left_out.len(),
        "failed": failures.len(),
        "failures": failures,
        "left_out": left_out,
        "mutants": mutants,
        "mutants_survived": survived,
        "survivors": survivors,
    })
}

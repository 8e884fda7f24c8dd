//! `run` and `sweep`: scenarios under this program's policies. `wave` simulates them, and asks this program for every decision
//! (ADR 93): so a laboratory has scenarios, tables, plots and reports without the crates that they need.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use clap::Args;

use wave_terminal::{Failure, note, program};

#[derive(Args, Debug)]
#[command(
    after_help = "`variant.policy` in the scenario names a policy of this program or one that Wave ships. The program `wave` simulates
the scenario: WAVE=PATH says where it is; otherwise it is searched for in PATH. All further arguments are those of
that program for its command of the same name; its option --help lists them.

Examples:
  wave run my-scenario.toml
  wave run my-scenario.toml --out /tmp/results --json

Exit codes: those of the program `wave`; 3 if it cannot be started."
)]
pub struct RunArgs {
    #[command(flatten)]
    wave: WaveArgs,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Runs the scenario with every combination of the values in its table [sweep], see `run --help`. Further arguments
are passed to the command of the same name of the program `wave`.

Examples:
  wave sweep my-scenario.toml --out out/mine
  WAVE=/opt/wave/bin/wave wave sweep my-scenario.toml --out out/mine

The results of a sweep: the program `wave`, merge out/mine

Exit codes: those of the program `wave`; 3 if it cannot be started."
)]
pub struct SweepArgs {
    #[command(flatten)]
    wave: WaveArgs,
}

#[derive(Args, Debug)]
struct WaveArgs {
    /// The scenario, and more arguments for the program `wave`.
    #[arg(
        value_name = "SCENARIO.toml",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    arguments: Vec<OsString>,
}

/// Simulates a scenario.
pub fn run(args: &RunArgs) -> ExitCode {
    ended("run", become_wave(&["run", "--host", "sim"], &args.wave))
}

/// Runs a sweep of a scenario.
pub fn sweep(args: &SweepArgs) -> ExitCode {
    ended("sweep", become_wave(&["sweep"], &args.wave))
}

fn ended(command: &str, failure: Failure) -> ExitCode {
    note!("{} {command}: {failure}", program());
    ExitCode::from(failure.exit_code())
}

/// Executes `wave`, with this program as its agent. Returns only if that fails.
fn become_wave(command: &[&str], args: &WaveArgs) -> Failure {
    let own = match std::env::current_exe() {
        Ok(own) => own,
        Err(error) => return Failure::Cannot(format!("this program's path is not known: {error}")),
    };
    let wave = std::env::var_os("WAVE").map_or_else(|| PathBuf::from("wave"), PathBuf::from);
    let mut executed = Command::new(&wave);
    executed.args(command).arg("--agent").arg(own).args(&args.arguments);
    let error = executed.exec();
    let how = match error.kind() {
        ErrorKind::NotFound => {
            "; build it in Wave's checkout with `cargo build --release --package wave`, and set WAVE=CHECKOUT/target/release/wave"
        }
        _ => "",
    };
    Failure::Cannot(format!("{} cannot be started: {error}{how}", wave.display()))
}

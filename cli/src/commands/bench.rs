//! `wave bench`: runs `wave-bench` from the folder of this program.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::Command;

use clap::Args;
use wave_terminal::{Failure, out};

/// Arguments for `wave-bench`.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub struct BenchArgs {
    /// A bench and its options; `wave bench --help` lists them once wave-bench is built.
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// Replaces this process with `wave-bench`. Where that is not built, help is given here.
pub fn execute(args: &BenchArgs) -> Result<(), Failure> {
    let program = std::env::current_exe().map_err(Failure::cannot)?.with_file_name("wave-bench");
    let error = Command::new(&program).args(&args.words).exec();
    let shown = program.display();
    let profile = if cfg!(debug_assertions) { "" } else { "--release " };
    let how = format!("cargo build {profile}--package wave-bench");
    match error.kind() {
        ErrorKind::NotFound if asks_for_help(&args.words) => {
            out!("{}", help(&how));
            Ok(())
        }
        ErrorKind::NotFound => {
            Err(Failure::Cannot(format!("{shown} is not there: build it with `{how}`")))
        }
        _ => Err(Failure::Cannot(format!("{shown}: {error}"))),
    }
}

fn asks_for_help(words: &[OsString]) -> bool {
    words.iter().any(|word| ["-h", "--help", "help"].iter().any(|help| word == help))
}

/// How to build the benches, which have the rest of the help.
fn help(how: &str) -> String {
    format!(
        "Measures queues, agent, switches, preemption and policies against their peers\n\n\
         Usage: wave bench BENCH [OPTIONS]\n\nBenches are in a separate program, wave-bench. To build it:\n  {how}"
    )
}

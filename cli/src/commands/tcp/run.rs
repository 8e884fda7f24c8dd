//! `wave tcp run`: starts a program whose sockets at the agent's address are the agent's.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use rustix::io::Errno;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use wave_posix::{find_program, inspect_program};
use wave_terminal::Failure;

use super::ss::ask;
use super::{AgentArgs, sanitizers};

/// File name of the library to preload. It is in this program's folder or in `../lib`.
const LIBRARY: &str = "libwave_toe.so";
/// Environment variables that tell the library the agent's socket and addresses.
const SOCKET: &str = "WAVE_TOE_SOCKET";
const ADDRESSES: &str = "WAVE_TOE_ADDRESSES";
/// io_uring_setup(2), the same on every architecture.
const IO_URING_SETUP: i64 = 425;

#[derive(Args, Debug)]
#[command(
    after_help = "Sockets that the program binds to the agent's address, or connects to other hosts in the agent's network, are the
agent's; those that listen at an unspecified address (0.0.0.0, ::) serve both. All others stay the kernel's.
The program needs no change and no privileges beyond those for the agent's socket.

io_uring is off for the program, since it bypasses the library. Static programs, Go programs and setuid programs
are refused.

Examples:
  wave tcp run -- redis-server --bind 10.77.0.2 --protected-mode no
  wave tcp run -- curl http://10.77.0.1:8000/
  wave tcp run --socket ~/toe.sock -- python3 server.py

Exit codes: those of the program; 2 bad arguments; 3 no agent answers, or the program cannot be run over it."
)]
pub struct RunArgs {
    #[command(flatten)]
    agent: AgentArgs,
    /// The program and its arguments.
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    words: Vec<OsString>,
}

/// Replaces this process with the program.
pub fn run(args: &RunArgs) -> Result<(), Failure> {
    let (program, words) = args.words.split_first().expect("clap asks for one");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = find_program(program, &path).ok_or_else(|| {
        Failure::cannot(format!("there is no program {} in PATH", program.display()))
    })?;
    let about = inspect_program(&found).map_err(Failure::cannot)?;
    let library = library()?;
    let door = args.agent.socket();
    let report = ask(&door)?;
    let addresses = ["address", "address6"].map(|key| report[key].as_str());
    let addresses: Vec<&str> = addresses.into_iter().flatten().collect();
    let door = std::path::absolute(&door).map_err(Failure::cannot)?;

    let before = std::env::var_os("LD_PRELOAD");
    let preload = sanitizers::preload(library.into_os_string(), &about.needed, before);
    deny_io_uring()?;
    let error = Command::new(&found)
        .arg0(program)
        .args(words)
        .env("LD_PRELOAD", preload)
        .env("ASAN_OPTIONS", sanitizers::options(std::env::var_os("ASAN_OPTIONS")))
        .env(SOCKET, door)
        .env(ADDRESSES, addresses.join(","))
        .exec();
    Err(Failure::cannot(format!("{}: {error}", found.display())))
}

fn library() -> Result<PathBuf, Failure> {
    let wave = std::env::current_exe().map_err(Failure::cannot)?;
    let beside = wave.with_file_name(LIBRARY);
    let installed = wave.parent().and_then(Path::parent).map(|root| root.join("lib").join(LIBRARY));
    let found = [Some(beside.clone()), installed].into_iter().flatten().find(|path| path.exists());
    let Some(found) = found else {
        let profile = if cfg!(debug_assertions) { "" } else { "--release " };
        let how = format!("cargo build {profile}--package wave-preload");
        return Err(Failure::cannot(format!(
            "{} is not there: build it with `{how}`",
            beside.display()
        )));
    };
    // LD_PRELOAD is a list separated by spaces or colons, without quoting.
    if found.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':')) {
        let path = found.display();
        return Err(Failure::cannot(format!(
            "{path}: LD_PRELOAD does not support spaces or colons in a path: move the library"
        )));
    }
    Ok(found)
}

/// Makes io_uring_setup(2) fail with ENOSYS in this process and its children, so that programs fall back to socket calls.
fn deny_io_uring() -> Result<(), Failure> {
    let failed = |error: &dyn std::fmt::Display| {
        Failure::cannot(format!("cannot turn io_uring off for the program: {error}"))
    };
    let arch = std::env::consts::ARCH.try_into().map_err(|error| failed(&error))?;
    let filter = SeccompFilter::new(
        BTreeMap::from([(IO_URING_SETUP, Vec::new())]),
        SeccompAction::Allow,
        SeccompAction::Errno(Errno::NOSYS.raw_os_error() as u32),
        arch,
    );
    let filter = filter.map_err(|error| failed(&error))?;
    let program: BpfProgram = filter.try_into().map_err(|error| failed(&error))?;
    seccompiler::apply_filter(&program).map_err(|error| failed(&error))
}

//! `wave tcp`: TCP by an agent, for Linux's programs on the one side and for ours on the other.

mod capture;
mod executors;
mod network;
mod script;
mod ss;
mod up;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use wave_links::say;

/// What about it.
#[derive(Args, Debug)]
pub struct TcpArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Own an address on a TAP device or another interface, and speak TCP there for programs that come to a socket.
    Up(up::UpArgs),
    /// Write the frames that an agent receives and sends to a file, as tcpdump does.
    Capture(capture::CaptureArgs),
    /// Show the connections and counters of an agent that is up.
    Ss(ss::SsArgs),
    /// Compare the executors of the data path: one core, threads, virtual time.
    Executors(executors::ExecutorsArgs),
    /// Run scripts about TCP, in virtual time, against the engine that an agent runs.
    Script(script::ScriptArgs),
}

/// Does it.
pub fn execute(args: &TcpArgs) -> ExitCode {
    let done = match &args.what {
        What::Up(args) => up::up(args),
        What::Capture(args) => capture::capture(args),
        What::Ss(args) => ss::ss(args),
        What::Executors(args) => executors::executors(args),
        What::Script(args) => return script::script(args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            say!("wave tcp: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Where the programs of an agent come to, unless it was told.
fn default_socket(tap: &str) -> PathBuf {
    PathBuf::from(format!("/run/wave-{tap}.sock"))
}

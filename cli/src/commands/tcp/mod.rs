//! `wave tcp`: TCP by an agent, between programs that attach to it and hosts that use Linux's TCP.

mod capture;
mod executors;
mod network;
mod replace;
mod run;
mod sanitizers;
mod script;
mod ss;
mod trace;
mod up;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use wave_process::say;

#[derive(Args, Debug)]
pub struct TcpArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Own an address on a TAP device or another interface, and speak TCP there for programs that attach to a socket.
    Up(up::UpArgs),
    /// Start an agent that replaces a running one, without resetting its connections.
    Replace(replace::ReplaceArgs),
    /// Capture the frames that an agent receives and sends, like tcpdump.
    Capture(capture::CaptureArgs),
    /// Run an unmodified program over an agent's TCP.
    Run(run::RunArgs),
    /// Show the connections and counters of a running agent.
    Ss(ss::SsArgs),
    /// Trace the stages of a running agent's data path, and its control plane.
    Trace(trace::TraceArgs),
    /// Compare the executors of the data path: one core, threads, virtual time.
    Executors(executors::ExecutorsArgs),
    /// Run TCP scripts in virtual time against the agent's engine.
    Script(script::ScriptArgs),
}

pub fn execute(args: &TcpArgs) -> ExitCode {
    let done = match &args.what {
        What::Up(args) => up::up(args),
        What::Replace(args) => replace::replace(args),
        What::Capture(args) => capture::capture(args),
        What::Run(args) => run::run(args),
        What::Ss(args) => ss::ss(args),
        What::Trace(args) => trace::trace(args),
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

/// Default socket for programs that attach to the agent on device `tap`.
fn default_socket(tap: &str) -> PathBuf {
    PathBuf::from(format!("/run/wave-{tap}.sock"))
}

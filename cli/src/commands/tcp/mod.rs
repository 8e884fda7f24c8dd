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

use std::io::{self, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use wave_process::say;
use wave_terminal::Failure;

/// Time limit for the first part of an agent's answer, and for its last.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time between two checks for Ctrl-C.
const CHECK_EVERY: Duration = Duration::from_millis(100);

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

/// A running agent.
#[derive(Args, Debug)]
struct AgentArgs {
    /// The agent's device.
    #[arg(long, visible_alias = "interface", value_name = "NAME", default_value = "toe0")]
    tap: String,
    /// The agent's socket [default: /run/wave-NAME.sock].
    #[arg(long, value_name = "SOCKET")]
    socket: Option<PathBuf>,
}

impl AgentArgs {
    fn socket(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(|| default_socket(&self.tap))
    }
}

/// Sends a request, in JSON, to the socket of an agent's captures or traces. Only some users may do so, because of what they
/// `reveal`. Returns the connection for the answer, and a function that turns its errors into failures.
fn request(
    path: &Path,
    json: &str,
    reveal: &str,
) -> Result<(UnixStream, impl Fn(io::Error) -> Failure), Failure> {
    let failed = move |error: io::Error| {
        let why = match error.kind() {
            ErrorKind::PermissionDenied => {
                format!("; {reveal}: run this as the agent's user or as root")
            }
            ErrorKind::WouldBlock => "; is the agent stopped?".to_owned(),
            _ => "; start an agent with `wave tcp up`".to_owned(),
        };
        Failure::cannot(format!("no agent answers at {}: {error}{why}", path.display()))
    };
    let mut stream = UnixStream::connect(path).map_err(&failed)?;
    stream.write_all(format!("{json}\n").as_bytes()).map_err(&failed)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(&failed)?;
    Ok((stream, failed))
}

/// Default socket for programs that attach to the agent on device `tap`.
fn default_socket(tap: &str) -> PathBuf {
    PathBuf::from(format!("/run/wave-{tap}.sock"))
}

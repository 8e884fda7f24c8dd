//! The command line of an agent with a front, beside a scheduler or alone.

use std::process::ExitCode;
use std::time::Instant;

use clap::{Args, Parser};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use wave_agent::{AgentArgs, CPUS_BESIDE_FRONT, Registry, Seat, fail, serve_beside};
use wave_confine::{Profile, Role};
use wave_process::say;

use crate::args::RpcArgs;
use crate::front::{FrontError, Listening, RpcFront};
use crate::notes::NotesTo;

/// The arguments of an agent with a front.
#[derive(Args, Clone, Debug)]
pub struct FrontArgs {
    /// Arguments of the policy's side: scheduling decisions.
    #[command(flatten)]
    pub agent: AgentArgs,
    /// Arguments of the front's side: RPCs.
    #[command(flatten)]
    pub rpc: RpcArgs,
}

#[derive(Parser)]
#[command(about = "A Wave agent: makes a host's decisions, terminates gRPC for a host, or both.")]
struct Command {
    #[command(flatten)]
    args: FrontArgs,
}

/// The error for a command line without a host.
const NOWHERE: &str = "no host given: use --attach SOCKET or --device FOLDER to decide for one, --rpc SOCKET --listen \
                       ADDRESS:PORT to terminate gRPC for one, or both; see --help";

/// The `main` of an agent binary with a front. Exit codes are those of [`wave_agent::main_with`]; also 0 after SIGTERM.
pub fn main_with(registry: Registry) -> ExitCode {
    execute(&registry, &Command::parse().args)
}

/// Decides for a host, terminates gRPC for one, or both, until the hosts are gone or the agent is told to end.
pub fn execute(registry: &Registry, args: &FrontArgs) -> ExitCode {
    let has_scheduler = args.agent.has_host();
    if args.rpc.notes.is_some() && has_scheduler {
        let why = "--notes does not go with --attach or --device; a scheduler's agent takes notes with --notes-from SOCKET";
        return fail(2, why);
    }
    if args.rpc.rpc.is_none() && (has_scheduler || args.agent.policies) {
        return wave_agent::execute(registry, &args.agent);
    }
    if args.rpc.rpc.is_none() {
        return fail(2, NOWHERE);
    }
    let sockets = args.rpc.rpc.iter().chain(&args.rpc.notes);
    let profile = sockets.fold(Profile::of(Role::Front), |profile, path| profile.with_socket(path));
    let prepare = || Ok((listen(args)?, if has_scheduler { None } else { make_notes(args)? }));
    serve_beside(registry, &args.agent, profile, prepare, |(listening, notes)| {
        let mut front = make_front(listening, args.agent.quiet)?;
        notes.into_iter().for_each(|notes| front.offer_notes(notes));
        Ok(front)
    })
}

/// Opens the front's sockets. The error is an exit code and a message.
fn listen(args: &FrontArgs) -> Result<Listening, (u8, String)> {
    let (seat, quiet) = (Seat::of(&args.agent, CPUS_BESIDE_FRONT), args.agent.quiet);
    let options = args.rpc.options(seat, quiet).ok_or_else(|| (2, NOWHERE.to_owned()))?;
    let descriptors = take_descriptors();
    let connections = options.limits.connections_for(descriptors);
    if connections < options.limits.connections as usize && !quiet {
        say!(
            "wave agent: the limit of {descriptors} descriptors (`ulimit -Hn`) allows {connections} connections, not {}",
            options.limits.connections
        );
    }
    Listening::new(options).map_err(refused)
}

fn make_front(listening: Listening, quiet: bool) -> Result<RpcFront, (u8, String)> {
    let front = RpcFront::over(listening, Instant::now()).map_err(refused)?;
    if !quiet {
        for address in front.addresses() {
            say!("wave agent: gRPC at {address}");
        }
    }
    Ok(front)
}

fn refused(error: FrontError) -> (u8, String) {
    (if matches!(error, FrontError::Steer(_)) { 2 } else { 3 }, error.to_string())
}

/// Raises the limit of descriptors to the hard limit, and returns it.
fn take_descriptors() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    // On failure the limit stays as it was.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Listens for a scheduler in another agent that takes notes, if --notes asks for it.
fn make_notes(args: &FrontArgs) -> Result<Option<NotesTo>, (u8, String)> {
    let Some(socket) = &args.rpc.notes else { return Ok(None) };
    let link = &args.rpc.notes_link;
    let notes = NotesTo::new(socket, &args.rpc.notes_allow, link.clone(), args.agent.quiet);
    let notes = notes.map_err(|error| (3, error.to_string()))?;
    if !args.agent.quiet {
        say!("wave agent: notes at {}, link {}", socket.display(), link.name());
    }
    Ok(Some(notes))
}

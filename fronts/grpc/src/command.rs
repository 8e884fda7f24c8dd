//! The command line of an agent with a front: beside a scheduler, or alone.

use std::process::ExitCode;
use std::time::Instant;

use clap::{Args, Parser};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use wave_agent::{AgentArgs, Registry, Seat, ThreadFront, fail, serve};
use wave_links::say;

use crate::args::RpcArgs;
use crate::front::{FrontError, RpcFront};
use crate::notes::NotesTo;

/// What an agent with a front is told.
#[derive(Args, Clone, Debug)]
pub struct FrontArgs {
    /// Its decisions.
    #[command(flatten)]
    pub agent: AgentArgs,
    /// RPCs.
    #[command(flatten)]
    pub rpc: RpcArgs,
}

#[derive(Parser)]
#[command(about = "A Wave agent: makes a host's decisions, terminates gRPC for a host, or both.")]
struct Command {
    #[command(flatten)]
    args: FrontArgs,
}

/// The error if the command line names no host.
const NOWHERE: &str = "name a host: --attach SOCKET or --device FOLDER to decide for one, --rpc SOCKET --listen ADDRESS:PORT \
                       to terminate gRPC for one, also both at once; --help tells more";

/// The `main` of an agent binary with a front. Exit codes as those of [`wave_agent::main_with`]; 0 also after SIGTERM.
pub fn main_with(registry: Registry) -> ExitCode {
    execute(&registry, &Command::parse().args)
}

/// Decides for a host, terminates gRPC for one, or both, until there is nobody to do it for or it is told to end.
pub fn execute(registry: &Registry, args: &FrontArgs) -> ExitCode {
    let has_scheduler = args.agent.has_host();
    if args.rpc.notes.is_some() && has_scheduler {
        let why = "--notes is for a front without a scheduler in its agent; a scheduler takes notes with --notes-from SOCKET";
        return fail(2, why);
    }
    if args.rpc.rpc.is_none() && (has_scheduler || args.agent.policies) {
        return wave_agent::execute(registry, &args.agent);
    }
    // Before anything else is touched; the front's threads run on the agent's CPU, too.
    if let Some(left) = args.agent.begin(registry) {
        return left;
    }
    let mut front = match make_front(args) {
        Ok(Some(front)) => front,
        Ok(None) => return fail(2, NOWHERE),
        Err((code, why)) => return fail(code, why),
    };
    if has_scheduler {
        return wave_agent::execute_with(registry, &args.agent, &mut front);
    }
    match make_notes(args) {
        Ok(notes) => notes.into_iter().for_each(|notes| front.offer_notes(notes)),
        Err(why) => return fail(3, why),
    }
    serve(&mut front);
    match front.failure() {
        Some(why) => fail(2, why),
        None => ExitCode::SUCCESS,
    }
}

/// The front, if one is asked for; or an exit code, and why there is none.
fn make_front(args: &FrontArgs) -> Result<Option<RpcFront>, (u8, String)> {
    let (seat, quiet) = (Seat::of(&args.agent), args.agent.quiet);
    let Some(options) = args.rpc.options(seat, quiet) else { return Ok(None) };
    let descriptors = take_descriptors();
    let connections = options.limits.connections_for(descriptors);
    if connections < options.limits.connections as usize && !quiet {
        say!(
            "wave agent: this process may have {descriptors} descriptors (`ulimit -Hn`): {connections} connections at once, not {}",
            options.limits.connections
        );
    }
    let front = RpcFront::new(options, Instant::now()).map_err(|error| {
        (if matches!(error, FrontError::Steer(_)) { 2 } else { 3 }, error.to_string())
    })?;
    if !quiet {
        for address in front.addresses() {
            say!("wave agent: gRPC at {address}");
        }
    }
    Ok(Some(front))
}

/// Raises the limit of descriptors to the hard limit, and returns it.
fn take_descriptors() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    // Where it may not, it has what it had.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Where a scheduler in another agent gets notes, if one is to.
fn make_notes(args: &FrontArgs) -> Result<Option<NotesTo>, String> {
    let Some(socket) = &args.rpc.notes else { return Ok(None) };
    let link = &args.rpc.notes_link;
    let notes = NotesTo::new(socket, link.clone(), args.agent.quiet);
    let notes = notes.map_err(|error| error.to_string())?;
    if !args.agent.quiet {
        say!("wave agent: notes at {}, link {}", socket.display(), link.name());
    }
    Ok(Some(notes))
}

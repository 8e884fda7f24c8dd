//! The agent's command line, shared by `wave agent` and by every policy's own binary.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::{ArgGroup, Args, Parser};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use wave_core::control::Revoked;
use wave_core::log::Header;
use wave_links::say;

use crate::attach::{Wanted, attach_as};
use crate::device::attach_device;
use crate::notes::NotesFrom;
use crate::pin::pin;
use crate::record::record_to;
use crate::registry::Registry;
use crate::rpc::{FrontError, NotesTo, RpcArgs, RpcFront, Source, serve_with};
use crate::run::{Exit, Seat, run_with};

/// What an agent is told.
#[derive(Args, Clone, Debug)]
#[command(group = ArgGroup::new("scheduler").args(["attach", "device"]))]
pub struct AgentArgs {
    /// The host's socket. If another agent is attached there, this one replaces it without
    /// stopping the workload.
    #[arg(long, value_name = "SOCKET")]
    pub attach: Option<PathBuf>,
    /// Attach through a device instead: the folder with its other side, as `cargo xtask vm run
    /// --nic FOLDER` makes it. Waits until there is a host, and replaces another agent there.
    #[arg(long, value_name = "FOLDER", conflicts_with = "attach")]
    pub device: Option<PathBuf>,
    /// The policy to run; --steer is that of a front alone.
    #[arg(long, value_name = "NAME", default_value = "fifo", requires = "scheduler")]
    pub policy: String,
    /// Run on this CPU only.
    #[arg(long, value_name = "N")]
    pub cpu: Option<usize>,
    /// Give the CPU away between looks: for an agent that shares its CPU.
    #[arg(long)]
    pub share_cpu: bool,
    /// Write a log of what the agent hears and decides, for `wave replay` and `wave trace`. Takes
    /// some of the agent's time.
    #[arg(long, value_name = "FILE", requires = "scheduler")]
    pub record: Option<PathBuf>,
    /// What the log's header says about where it comes from.
    #[arg(long, hide = true, requires = "record", value_name = "TEXT")]
    pub record_about: Option<String>,
    /// Say nothing but errors.
    #[arg(long, short)]
    pub quiet: bool,
    /// RPCs.
    #[command(flatten)]
    pub rpc: RpcArgs,
}

/// The exit code of an agent that its host has turned out.
pub const TURNED_OUT: u8 = 5;

/// Where an agent is told of no host.
const NOWHERE: &str = "name a host: --attach SOCKET or --device FOLDER to decide for one, --rpc SOCKET --listen ADDRESS:PORT \
                       to terminate gRPC for one, also both at once; --help tells more";

#[derive(Parser)]
#[command(
    about = "A Wave agent: attaches to a host and decides which thread runs next; terminates gRPC for one."
)]
struct Command {
    #[command(flatten)]
    args: AgentArgs,
}

/// The `main` of an agent binary. Exit code 0: the host went or turned the agent out; 2: bad
/// arguments; 3: could not attach, pin or record; 4: the host wrote nonsense; [`TURNED_OUT`].
pub fn main_with(registry: Registry) -> ExitCode {
    execute(&registry, &Command::parse().args)
}

/// Attaches and runs until the host goes or turns the agent out.
pub fn execute(registry: &Registry, args: &AgentArgs) -> ExitCode {
    let fail = |code: u8, text: String| {
        say!("wave agent: {text}");
        ExitCode::from(code)
    };
    // Before anything else is touched.
    if let Err(error) = registry.check(&args.policy) {
        return fail(2, error);
    }
    if args.rpc.notes.is_some() && (args.attach.is_some() || args.device.is_some()) {
        let why = "--notes offers the notes of a front that has its agent for itself; a scheduler takes them by --notes-from SOCKET";
        return fail(2, why.into());
    }
    if let Some(cpu) = args.cpu
        && let Err(error) = pin(cpu)
    {
        return fail(3, error);
    }
    let seat = if args.share_cpu { Seat::Shared } else { Seat::Own };
    let mut front = match make_front(args, seat) {
        Ok(front) => front,
        Err((code, text)) => return fail(code, text),
    };
    let mut link = match args.rpc.notes_from.clone() {
        None => None,
        Some(socket) => match NotesFrom::new(socket, args.quiet) {
            Ok(link) => Some(link),
            Err(error) => return fail(3, format!("cannot take notes: {error}")),
        },
    };
    let (place, attached) = match (&args.attach, &args.device, &mut front) {
        (_, Some(folder), _) => (folder, attach_device(folder)),
        (Some(socket), None, _) => (socket, attach_as(socket, Wanted::Policy, args.quiet)),
        (None, None, Some(front)) => {
            let mut notes = match make_notes(args) {
                Ok(notes) => notes,
                Err(text) => return fail(3, text),
            };
            serve_with(front, notes.as_mut());
            return match front.unfit() {
                None => ExitCode::SUCCESS,
                Some(error) => fail(2, error.to_string()),
            };
        }
        (None, None, None) => return fail(2, NOWHERE.into()),
    };
    let place = place.display();
    let attached = match attached {
        Ok(attached) => attached,
        Err(error) => return fail(3, format!("cannot attach to {place}: {error}")),
    };
    let config = attached.layout.config;
    let policy = match registry.make(&args.policy, &config) {
        Ok(policy) => policy,
        Err(error) => return fail(2, error),
    };
    if !args.quiet {
        say!(
            "wave agent: `{}` attached to {} ({} cores, up to {} subjects, link {})",
            args.policy,
            place,
            config.cores,
            config.subjects,
            attached.link,
        );
    }
    let source = match (&mut front, &mut link) {
        (Some(front), _) => Source::Front(front),
        (None, Some(link)) => Source::Link(link),
        (None, None) => Source::None,
    };
    let left = match &args.record {
        None => run_with(attached, policy, (), seat, source),
        Some(file) => {
            let link = &attached.link;
            let about = match &args.record_about {
                Some(about) => format!("{about}, link {link}"),
                None => format!("link {link}"),
            };
            let header = Header { config, policy: args.policy.clone(), about };
            match record_to(file, &header) {
                Ok(log) => run_with(attached, policy, log, seat, source),
                Err(error) => {
                    return fail(3, format!("cannot write the log {}: {error}", file.display()));
                }
            }
        }
    };
    if let Some(error) = front.as_ref().and_then(RpcFront::unfit) {
        return fail(2, error.to_string());
    }
    match left {
        Ok(Exit::Revoked(Revoked::Fault)) => fail(
            5,
            format!(
                "{place} has turned this agent out: it read nonsense in this agent's part of the window; \
                 the host's output says what. The host decides by itself until another attaches"
            ),
        ),
        Ok(Exit::Revoked(Revoked::TurnedOut)) => fail(
            TURNED_OUT,
            format!(
                "{place} has turned this agent out: a thread waited too long for its decision; the host decides by itself until \
                 another attaches. An agent that other processes keep from running needs a CPU of its own (--cpu), or --share-cpu"
            ),
        ),
        Ok(exit) => {
            if !args.quiet {
                let why = match exit {
                    Exit::Revoked(Revoked::Replaced) => "another agent has taken over",
                    Exit::Revoked(_) => "the host has ended",
                    Exit::HostGone => "the host has gone",
                    Exit::FrontEnded => "asked to end",
                };
                say!("wave agent: {why}; leaving");
            }
            ExitCode::SUCCESS
        }
        Err(error) => fail(4, error.to_string()),
    }
}

/// The front for RPCs, if one is asked for; or an exit code, and why there is none.
fn make_front(args: &AgentArgs, seat: Seat) -> Result<Option<RpcFront>, (u8, String)> {
    let Some(options) = args.rpc.options(seat, args.quiet) else { return Ok(None) };
    let descriptors = take_descriptors();
    let connections = options.limits.connections_for(descriptors);
    if connections < options.limits.connections as usize && !args.quiet {
        say!(
            "wave agent: this process may have {descriptors} descriptors (`ulimit -Hn`): {connections} connections at once, not {}",
            options.limits.connections
        );
    }
    let front = RpcFront::new(options, Instant::now()).map_err(|error| {
        (if matches!(error, FrontError::Steer(_)) { 2 } else { 3 }, error.to_string())
    })?;
    if !args.quiet {
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
fn make_notes(args: &AgentArgs) -> Result<Option<NotesTo>, String> {
    let Some(socket) = &args.rpc.notes else { return Ok(None) };
    let notes = NotesTo::new(socket, args.rpc.notes_link.clone(), args.quiet)
        .map_err(|error| error.to_string())?;
    if !args.quiet {
        say!("wave agent: notes at {}, link {}", socket.display(), args.rpc.notes_link.name());
    }
    Ok(Some(notes))
}

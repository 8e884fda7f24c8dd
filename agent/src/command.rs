//! The agent's command line, shared by `wave agent` and by every policy's own binary.

use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgGroup, Args, Parser};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use wave_core::control::Revoked;
use wave_core::log::Header;
use wave_links::say;

use crate::attach::{Wanted, attach_as};
use crate::device::attach_device;
use crate::front::ThreadFront;
use crate::notes::NotesFrom;
use crate::pin::pin;
use crate::record::record_to;
use crate::registry::Registry;
use crate::run::{Exit, Seat, run_with, serve};

/// The arguments that every agent takes, whatever it decides.
#[derive(Args, Clone, Debug)]
#[command(group = ArgGroup::new("scheduler").args(["attach", "device"]))]
pub struct AgentArgs {
    /// Socket of the host. An agent that is attached there is replaced without stopping the workload.
    #[arg(long, value_name = "SOCKET")]
    pub attach: Option<PathBuf>,
    /// Attach through a device instead: the folder with its other side, as `cargo xtask vm run --nic FOLDER` makes
    /// it. Waits for a host, and replaces another agent there.
    #[arg(long, value_name = "FOLDER", conflicts_with = "attach")]
    pub device: Option<PathBuf>,
    /// Policy to run, with its settings.
    #[arg(long, value_name = "NAME", default_value = "fifo", requires = "scheduler")]
    pub policy: String,
    /// Run the agent on this CPU only.
    #[arg(long, value_name = "N")]
    pub cpu: Option<usize>,
    /// Yield the CPU between polls: for an agent that shares its CPU.
    #[arg(long)]
    pub share_cpu: bool,
    /// Write a log of the agent's inputs and decisions. The commands `replay` and `trace` read it: those of `wave` for policies
    /// that Wave ships, those of a laboratory (wave_lab::main_with) for policies of your own. Takes some of the agent's time.
    #[arg(long, value_name = "FILE", requires = "scheduler")]
    pub record: Option<PathBuf>,
    /// What the log's header says about where it comes from.
    #[arg(long, hide = true, requires = "record", value_name = "TEXT")]
    pub record_about: Option<String>,
    /// Print errors only.
    #[arg(long, short)]
    pub quiet: bool,
    /// Take notes from the front of another agent, at this socket: they tell the policy of each request that is handed to
    /// a thread.
    #[arg(long, value_name = "SOCKET", requires = "scheduler")]
    pub notes_from: Option<PathBuf>,
    /// List the policies with their settings, and exit.
    #[arg(long)]
    pub policies: bool,
    /// End with the process that started this one.
    #[arg(long, hide = true)]
    pub leave_with_parent: bool,
}

/// The error if the command line names no host.
const NOWHERE: &str = "name a host: --attach SOCKET or --device FOLDER; --help tells more";

/// The exit code of an agent that its host has turned out.
pub const TURNED_OUT: u8 = 5;

#[derive(Parser)]
#[command(about = "A Wave agent: attaches to a host and makes its decisions.")]
struct Command {
    #[command(flatten)]
    args: AgentArgs,
}

impl AgentArgs {
    /// Whether it names a host to decide for.
    pub fn has_host(&self) -> bool {
        self.attach.is_some() || self.device.is_some()
    }

    /// Handles the options that need no host. Returns an exit code if the agent is to end.
    pub fn begin(&self, registry: &Registry) -> Option<ExitCode> {
        if self.policies {
            // Where nobody reads it, nobody misses it.
            let _ = std::io::stdout().write_all(registry.describe().as_bytes());
            return Some(ExitCode::SUCCESS);
        }
        if self.leave_with_parent && !leave_with_parent() {
            return Some(ExitCode::SUCCESS);
        }
        self.prepare(registry).err().map(|(code, why)| fail(code, why))
    }

    /// Checks the policy's name and settings, and pins this thread.
    fn prepare(&self, registry: &Registry) -> Result<(), (u8, String)> {
        registry.check(&self.policy).map_err(|error| (2, error))?;
        self.cpu.map_or(Ok(()), pin).map_err(|error| (3, error))
    }
}

/// The `main` of an agent binary. Exit code 0: the host went or turned the agent out; 2: bad
/// arguments; 3: could not attach, pin or record; 4: the host wrote nonsense; [`TURNED_OUT`].
pub fn main_with(registry: Registry) -> ExitCode {
    execute(&registry, &Command::parse().args)
}

/// Has the kernel end this process with its parent; returns whether the parent is still there.
fn leave_with_parent() -> bool {
    let before = getppid();
    let asked = set_parent_process_death_signal(Some(Signal::KILL));
    // A parent that went in between sends nothing; its orphans have another one by now.
    asked.is_ok() && getppid() == before && before.is_some()
}

/// Says why on standard error, and returns the exit code.
pub fn fail(code: u8, why: impl Display) -> ExitCode {
    say!("wave agent: {why}");
    ExitCode::from(code)
}

/// Attaches and runs until the host goes or turns the agent out.
pub fn execute(registry: &Registry, args: &AgentArgs) -> ExitCode {
    if let Some(left) = args.begin(registry) {
        return left;
    }
    match &args.notes_from {
        None => decide(registry, args, ()),
        Some(socket) => match NotesFrom::new(socket.clone(), args.quiet) {
            Ok(link) => decide(registry, args, link),
            Err(error) => fail(3, format_args!("cannot take notes: {error}")),
        },
    }
}

/// [`execute`] with a front on the same thread, after [`AgentArgs::begin`]; also ends when the front has ended.
pub fn execute_with(registry: &Registry, args: &AgentArgs, front: impl ThreadFront) -> ExitCode {
    if args.notes_from.is_some() {
        return fail(2, "--notes-from is for a scheduler without a front in its agent");
    }
    decide(registry, args, front)
}

/// The whole of an agent with the front that `make` makes, once its threads run on the agent's CPU: decides for a host beside it
/// if one is named, and otherwise gives it the thread. Ends when the front has ended.
///
/// # Errors
/// `make`'s: an exit code, and why there is no front.
pub fn serve_beside<F: ThreadFront>(
    registry: &Registry,
    args: &AgentArgs,
    make: impl FnOnce() -> Result<F, (u8, String)>,
) -> Result<ExitCode, (u8, String)> {
    if let Some(left) = args.begin(registry) {
        return Ok(left);
    }
    let mut front = make()?;
    if args.has_host() {
        return Ok(execute_with(registry, args, &mut front));
    }
    serve(&mut front);
    front.failure().map_or(Ok(ExitCode::SUCCESS), |why| Err((2, why)))
}

/// Attaches, and decides with this front beside.
fn decide(registry: &Registry, args: &AgentArgs, mut front: impl ThreadFront) -> ExitCode {
    let seat = Seat::of(args);
    let (place, attached) = match (&args.attach, &args.device) {
        (_, Some(folder)) => (folder, attach_device(folder)),
        (Some(socket), None) => (socket, attach_as(socket, Wanted::Policy, args.quiet)),
        (None, None) => return fail(2, NOWHERE),
    };
    let place = place.display();
    let attached = match attached {
        Ok(attached) => attached,
        Err(error) => return fail(3, format_args!("cannot attach to {place}: {error}")),
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
    let left = match &args.record {
        None => run_with(attached, policy, (), seat, &mut front),
        Some(file) => {
            let link = &attached.link;
            let about = match &args.record_about {
                Some(about) => format!("{about}, link {link}"),
                None => format!("link {link}"),
            };
            let header = Header { config, policy: args.policy.clone(), about };
            match record_to(file, &header) {
                Ok(log) => run_with(attached, policy, log, seat, &mut front),
                Err(error) => {
                    return fail(
                        3,
                        format_args!("cannot write the log {}: {error}", file.display()),
                    );
                }
            }
        }
    };
    if let Some(why) = front.failure() {
        return fail(2, why);
    }
    match left {
        Ok(Exit::Revoked(Revoked::Fault)) => fail(
            TURNED_OUT,
            format_args!(
                "{place} has turned this agent out: it read nonsense in this agent's part of the window; \
                 the host's output says what. The host decides by itself until another attaches"
            ),
        ),
        Ok(Exit::Revoked(Revoked::TurnedOut)) => fail(
            TURNED_OUT,
            format_args!(
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
        Err(error) => fail(4, error),
    }
}

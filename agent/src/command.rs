//! The agent's command line, shared by `wave agent` and by every policy's own binary.

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgGroup, Args, Parser};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use wave_confine::{Profile, User};
use wave_core::control::Revoked;
use wave_core::log::Header;
use wave_core::policy::Policy;
use wave_process::words::counted;
use wave_process::{cpus, say};

use crate::attach::{Attached, Wanted, attach_as};
use crate::confine;
use crate::device::attach_device;
use crate::front::ThreadFront;
use crate::notes::NotesFrom;
use crate::output_file::OutputFile;
use crate::panics::caught;
use crate::piped::decide_for;
use crate::record::{FileLog, LogEnd, record_until_failure};
use crate::registry::Registry;
use crate::run::{Exit, Seat, run_announced, serve};

/// The arguments that every agent takes, of any subsystem.
#[derive(Args, Clone, Debug)]
#[command(group = ArgGroup::new("scheduler").args(["attach", "device"]))]
#[command(group = ArgGroup::new("chooses").args(["attach", "device", "policies"]).multiple(true))]
pub struct AgentArgs {
    /// Socket of the host. An agent that is attached there is replaced without stopping the workload.
    #[arg(long, value_name = "SOCKET")]
    pub attach: Option<PathBuf>,
    /// Attach through a device instead: the folder with the device's other side, which `cargo xtask vm run --nic FOLDER`
    /// makes. Waits for a host, and replaces an agent that is attached there.
    #[arg(long, value_name = "FOLDER", conflicts_with = "attach")]
    pub device: Option<PathBuf>,
    /// Policy to run, with its settings.
    #[arg(long, value_name = "NAME", default_value = DEFAULT, requires = "chooses")]
    pub policy: String,
    /// Run the agent on this CPU only.
    #[arg(long, value_name = "N")]
    pub cpu: Option<usize>,
    /// Yield the CPU between polls, for an agent that shares its CPU [default: on, unless --cpu is given or this process may
    /// use more CPUs than its host has cores (a front: more than two)].
    #[arg(long)]
    pub share_cpu: bool,
    /// Write a log of the agent's inputs and decisions to this file or pipe. An existing file is replaced. Read the log with the
    /// commands `replay` and `trace` of `wave` or, for policies of your own, of your laboratory (wave_lab::main_with). Logging takes
    /// some of the agent's time.
    #[arg(long, value_name = "FILE", requires = "scheduler")]
    pub record: Option<OutputFile>,
    /// Description of the run, for the log's header.
    #[arg(long, hide = true, requires = "record", value_name = "TEXT")]
    pub record_about: Option<String>,
    /// Switch to this user once attached or listening: a name in /etc/passwd, or UID:GID. Needs root. An agent with --rpc
    /// attaches as this user, so the host must admit this user (by its --allow and the socket's mode).
    #[arg(long, value_name = "USER")]
    pub user: Option<User>,
    /// Print errors only.
    #[arg(long, short)]
    pub quiet: bool,
    /// Take notes from another agent's front at this socket. They tell the policy about each request that the front hands to
    /// a thread.
    #[arg(long, value_name = "SOCKET", requires = "scheduler")]
    pub notes_from: Option<PathBuf>,
    /// List the policies with their settings, check the policy that --policy names, and exit.
    #[arg(long)]
    pub policies: bool,
    /// Decide for a simulated host at the other end of standard input, a socket (`wave run --host sim --agent`).
    #[arg(long, hide = true)]
    pub simulated: bool,
    /// End when the process that started this one ends.
    #[arg(long, hide = true)]
    pub leave_with_parent: bool,
}

/// The policy if none is given.
const DEFAULT: &str = "fifo";
/// The error for a command line without a host.
const NOWHERE: &str = "no host given: use --attach SOCKET or --device FOLDER; see --help";

/// Exit code of an agent that its host turned out.
pub const TURNED_OUT: u8 = 5;
/// Exit code of an agent whose policy has panicked, as of any Rust program that panics.
const PANICKED: u8 = 101;

#[derive(Parser)]
#[command(about = "A Wave agent: attaches to a host and makes its decisions.")]
struct Command {
    #[command(flatten)]
    args: AgentArgs,
}

impl AgentArgs {
    /// Whether the arguments name a host to decide for.
    pub fn has_host(&self) -> bool {
        self.attach.is_some() || self.device.is_some()
    }

    /// Handles the options that need no host. Returns an exit code if the process is to end.
    pub fn begin(&self, registry: &Registry) -> Option<ExitCode> {
        if self.policies {
            let written = std::io::stdout().write_all(registry.describe().as_bytes());
            // Nobody reads a closed pipe.
            if let Err(error) = written
                && error.kind() != ErrorKind::BrokenPipe
            {
                return Some(fail(3, format_args!("standard output cannot be written: {error}")));
            }
            // The default without settings: perhaps nobody asked for it.
            let checked = match self.policy.as_str() {
                DEFAULT => Ok(()),
                policy => making(policy, || registry.check(policy)),
            };
            return Some(
                checked.map_or_else(|(code, why)| fail(code, why), |()| ExitCode::SUCCESS),
            );
        }
        if self.simulated {
            return Some(simulated(registry));
        }
        if self.leave_with_parent && !leave_with_parent() {
            return Some(ExitCode::SUCCESS);
        }
        self.prepare(registry).err().map(|(code, why)| fail(code, why))
    }

    /// Checks the policy's name and settings, and pins this thread.
    fn prepare(&self, registry: &Registry) -> Result<(), (u8, String)> {
        making(&self.policy, || registry.check(&self.policy))?;
        let pin = |cpu| cpus::pin(&[cpu]).map_err(|error| (3, error.to_string()));
        self.cpu.map_or(Ok(()), pin)
    }
}

/// Runs `make`, which makes the policy of this name. A panic is one sentence.
fn making<T>(policy: &str, make: impl FnOnce() -> Result<T, String>) -> Result<T, (u8, String)> {
    let panicked = |panic| (PANICKED, format!("{panic}, while policy `{policy}` was being made"));
    caught(make).map_err(panicked)?.map_err(|error| (2, error))
}

/// The `main` of an agent binary. Exit code 0: the host went, or another agent took over; 2: bad
/// arguments; 3: could not attach or pin, or the log could not be written; 4: the host wrote nonsense; [`TURNED_OUT`]; 101: the policy
/// panicked.
pub fn main_with(registry: Registry) -> ExitCode {
    execute(&registry, &Command::parse().args)
}

/// Runs an agent with these arguments, without the program's name, as [`main_with`] does with the process's.
pub fn main_from(
    registry: &Registry,
    arguments: impl IntoIterator<Item = impl Into<OsString>>,
) -> ExitCode {
    let arguments = arguments.into_iter().map(Into::into);
    match Command::try_parse_from(std::iter::once(OsString::from("agent")).chain(arguments)) {
        Ok(command) => execute(registry, &command.args),
        Err(error) => {
            let _ = error.print();
            ExitCode::from(error.exit_code() as u8)
        }
    }
}

/// Asks the kernel to kill this process when its parent ends. Returns whether the parent is still there.
pub(crate) fn leave_with_parent() -> bool {
    let before = getppid();
    let asked = set_parent_process_death_signal(Some(Signal::KILL));
    // A parent that ended before the call sends no signal, but this process has another parent now.
    asked.is_ok() && getppid() == before && before.is_some()
}

/// Prints the reason on standard error, and returns the exit code.
pub fn fail(code: u8, why: impl Display) -> ExitCode {
    say!("wave agent: {why}");
    ExitCode::from(code)
}

/// Decides for a simulated host until the host ends. Standard input is a socket, and answers go there too, so that
/// whatever a policy prints is not in the way.
fn simulated(registry: &Registry) -> ExitCode {
    let socket = std::io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from);
    match socket.and_then(|socket| decide_for(registry, socket)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(4, format_args!("cannot decide for a simulated host: {error}")),
    }
}

/// Attaches, gives up the rights that the agent no longer needs, and runs until the host goes or turns the agent out.
pub fn execute(registry: &Registry, args: &AgentArgs) -> ExitCode {
    if let Some(left) = args.begin(registry) {
        return left;
    }
    let done = match &args.notes_from {
        None => decide(registry, args, ()),
        Some(socket) => match NotesFrom::new(socket.clone(), args.quiet) {
            Ok(link) => decide(registry, args, link),
            Err(error) => Err((3, format!("cannot take notes (--notes-from): {error}"))),
        },
    };
    ended(done)
}

/// Prints an error. Returns the exit code.
fn ended(done: Result<ExitCode, (u8, String)>) -> ExitCode {
    match done {
        Ok(code) => code,
        Err((0, _)) => ExitCode::SUCCESS,
        Err((code, why)) => fail(code, why),
    }
}

/// Attaches, and decides; the front is on the same thread.
fn decide(
    registry: &Registry,
    args: &AgentArgs,
    front: impl ThreadFront,
) -> Result<ExitCode, (u8, String)> {
    let deciding = Deciding::new(registry, args)?;
    confine::seal(confine::limit(registry, args, confine::profile(args))?, args.quiet)?;
    Ok(deciding.run(args, front))
}

/// Runs an agent with a front on the agent's CPU. If a host is named, the agent also decides for it; otherwise the front has
/// the thread to itself. Ends when the front has ended.
///
/// `prepare` opens everything that needs rights, and must not start threads. Then the process gives up all rights but those of
/// `profile`, and `make` makes the front; it may start threads.
pub fn serve_beside<P, F: ThreadFront>(
    registry: &Registry,
    args: &AgentArgs,
    profile: Profile,
    prepare: impl FnOnce() -> Result<P, (u8, String)>,
    make: impl FnOnce(P) -> Result<F, (u8, String)>,
) -> ExitCode {
    if let Some(left) = args.begin(registry) {
        return left;
    }
    if args.notes_from.is_some() {
        return fail(
            2,
            "--notes-from is for a scheduler's agent, and cannot be used beside a front",
        );
    }
    ended(beside(registry, args, profile, prepare, make))
}

fn beside<P, F: ThreadFront>(
    registry: &Registry,
    args: &AgentArgs,
    profile: Profile,
    prepare: impl FnOnce() -> Result<P, (u8, String)>,
    make: impl FnOnce(P) -> Result<F, (u8, String)>,
) -> Result<ExitCode, (u8, String)> {
    let prepared = prepare()?;
    let deciding = match args.has_host() {
        true => Some(Deciding::new(registry, args)?),
        false => None,
    };
    let limited = confine::limit(registry, args, profile)?;
    let mut front = make(prepared)?;
    confine::seal(limited, args.quiet)?;
    if let Some(deciding) = deciding {
        return Ok(deciding.run(args, &mut front));
    }
    serve(&mut front);
    front.failure().map_or(Ok(ExitCode::SUCCESS), |why| Err((2, why)))
}

/// An attached agent that has opened every file it needs, and so can be confined.
struct Deciding {
    place: PathBuf,
    attached: Attached,
    policy: Box<dyn Policy + Send>,
    log: Option<(FileLog, LogEnd)>,
}

impl Deciding {
    fn new(registry: &Registry, args: &AgentArgs) -> Result<Deciding, (u8, String)> {
        let (place, attached) = match (&args.attach, &args.device) {
            (_, Some(folder)) => (folder, attach_device(folder)),
            (Some(socket), None) => (socket, attach_as(socket, Wanted::Policy, args.quiet)),
            (None, None) => return Err((2, NOWHERE.to_owned())),
        };
        let cannot = |error| (3, format!("cannot attach to {}: {error}", place.display()));
        let attached = attached.map_err(cannot)?;
        let config = attached.layout.config;
        let policy = making(&args.policy, || registry.make(&args.policy, &config))?;
        if policy.idles_for() >= config.patience {
            say!(
                "wave agent: policy `{}` may let threads wait beside an idle core for {} ms, but {} turns agents out after {} ms: raise \
                 the host's patience above that time (Config::patience)",
                args.policy,
                policy.idles_for().0 / 1_000_000,
                place.display(),
                config.patience.0 / 1_000_000,
            );
        }
        let log = args.record.as_ref().map(|file| {
            let link = &attached.link;
            let about = match &args.record_about {
                Some(about) => format!("{about}, link {link}"),
                None => format!("link {link}"),
            };
            let header = Header { config, policy: args.policy.clone(), about };
            record_until_failure(file.path(), &header)
                .map_err(|error| (error.exit_code(), format!("the log {error}")))
        });
        let log = log.transpose()?;
        Ok(Deciding { place: place.clone(), attached, policy, log })
    }

    /// Decides until the host goes or turns the agent out, or the front has ended.
    fn run(self, args: &AgentArgs, mut front: impl ThreadFront) -> ExitCode {
        let Deciding { place, attached, policy, log } = self;
        let config = attached.layout.config;
        let (place, seat) = (place.display(), Seat::of(args, usize::from(config.cores)));
        let attached_to = format!(
            "{place} ({}, up to {}, link {})",
            counted(config.cores, "core"),
            counted(config.subjects, "subject"),
            attached.link,
        );
        let announce = || {
            if !args.quiet {
                say!("wave agent: `{}` attached to {attached_to}", args.policy);
            }
        };
        // Returns the pages that parsing the command line used.
        wave_process::heap::release();
        let (log, end) = log.unzip();
        let left = caught(|| match log {
            None => run_announced(attached, policy, (), seat, &mut front, announce),
            Some(log) => run_announced(attached, policy, log, seat, &mut front, announce),
        });
        let left = match left {
            Ok(left) => left,
            Err(panic) => {
                let policy = &args.policy;
                return fail(
                    PANICKED,
                    format_args!("{panic}, under policy `{policy}`; {place} decides by itself now"),
                );
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
                     the host's output has the details. The host decides by itself until another agent attaches"
                ),
            ),
            Ok(Exit::Revoked(Revoked::TurnedOut)) => fail(
                TURNED_OUT,
                format_args!(
                    "{place} has turned this agent out, either on request or because the agent decided nothing in time. The host \
                     decides by itself until another agent attaches"
                ),
            ),
            Ok(Exit::Starved(stall)) => fail(
                TURNED_OUT,
                format_args!(
                    "{place} has turned this agent out: {}. The host decides by itself until another agent attaches",
                    stall.about(&args.policy)
                ),
            ),
            Ok(exit) => {
                if !args.quiet {
                    let why = match exit {
                        Exit::Revoked(Revoked::Replaced) => "another agent has taken over",
                        Exit::Revoked(_) | Exit::Starved(_) => "the host has ended",
                        Exit::HostGone => "the host has gone",
                        Exit::FrontEnded => "the front was told to end",
                    };
                    say!("wave agent: {why}; leaving");
                }
                // Not an error until now: the host still needed this agent's decisions.
                end.as_ref().and_then(LogEnd::error).map_or(ExitCode::SUCCESS, |error| {
                    fail(error.exit_code(), format_args!("the log ended early: {error}"))
                })
            }
            Err(error) => fail(4, error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_while_a_policy_is_made_is_one_sentence() {
        let (code, why) =
            making("mine:k=3", || -> Result<(), String> { panic!("boom") }).unwrap_err();
        assert_eq!(code, PANICKED);
        assert!(
            why.starts_with("panic at ") && why.contains("boom, while policy `mine:k=3`"),
            "{why}"
        );
        assert_eq!(making("mine", || Err::<(), _>("no".into())), Err((2, "no".into())));
        assert_eq!(making("mine", || Ok(7)), Ok(7));
    }
}

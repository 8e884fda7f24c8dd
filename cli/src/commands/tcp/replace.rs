//! `wave tcp replace`: an agent that takes over from a running one.

use std::os::fd::OwnedFd;

use clap::Args;
use wave_agent::Seat;
use wave_confine::{Profile, Role, User};
use wave_front_tcp::{HandoverError, Predecessor, TcpFront, WireKind, steering_over};
use wave_process::cpus::Cpus;
use wave_process::tell;
use wave_tcp::datapaths::DatapathKind;
use wave_terminal::Failure;
use wave_wires::{Interface, InterfaceOptions, Tap, Wire};

use super::AgentArgs;
use super::up::{Wires, go_on, named, pin_to_first};

#[derive(Args, Debug)]
#[command(
    after_help = "Takes over the running agent's device, addresses, listeners, connections and programs, and serves until Ctrl-C or SIGTERM.
The running agent exits. The number of flow groups stays; --cpus must be given again. Programs and their peers notice a pause of
some milliseconds, and 0.03 more for each connection; no connection is reset and no byte is lost. Captures and traces end. If
anything fails before the new agent has everything, the running one continues.

It must run as the running agent's user. Agents of incompatible versions do not
replace each other. Programs of users that the agent allows but does not trust (wave tcp up --allow, --trust) lose
their connections as if the agent had been killed, since their memory is sealed for that agent.

Examples:
  sudo wave tcp replace                      upgrade the agent on toe0 without stopping its programs
  sudo wave tcp replace --interface veth1
  sudo wave tcp replace --datapath laminar   open connections move to the other data path

Exit codes: 0 ended by Ctrl-C or SIGTERM, or replaced; 2 bad arguments; 3 there is no agent that can be replaced, or the device was deleted."
)]
pub struct ReplaceArgs {
    #[command(flatten)]
    agent: AgentArgs,
    /// Switch to this user before anything is taken over: a name in /etc/passwd, or UID:GID. Needs root.
    #[arg(long, value_name = "USER")]
    user: Option<User>,
    /// CPUs to run on, such as 8-12: the first thread on the first, flow groups round-robin on the others, or on the first if it is the only one.
    #[arg(long, value_name = "LIST")]
    cpus: Option<Cpus>,
    /// Data path: flextoe or laminar [default: that of the running agent].
    #[arg(long, value_name = "NAME")]
    datapath: Option<DatapathKind>,
    /// Print only errors.
    #[arg(long, short)]
    quiet: bool,
}

/// Replaces an agent, and runs until Ctrl-C or SIGTERM.
pub fn replace(args: &ReplaceArgs) -> Result<(), Failure> {
    let socket = args.agent.socket();
    pin_to_first(args.cpus.as_deref().unwrap_or_default())?;
    let cannot = |error: HandoverError| {
        Failure::cannot(format!("the agent at {} was not replaced: {error}", socket.display()))
    };
    let (from, wires) = Predecessor::connect(&socket).map_err(cannot)?;
    let steering = from.steering().unwrap_or_else(|| steering_over(1));
    match from.wire() {
        WireKind::Tap => {
            let wires = adopt_all(wires, Tap::adopt)?;
            with(args, Wires::new(wires, steering, Tap::adopt)?, from, &cannot)
        }
        WireKind::Interface => {
            let options = InterfaceOptions::new(from.name(), from.address().ip);
            let adopt = |fd| Interface::adopt(fd, &options);
            let wires = adopt_all(wires, adopt)?;
            with(args, Wires::new(wires, steering, adopt)?, from, &cannot)
        }
    }
}

fn adopt_all<W, E: std::fmt::Display>(
    wires: Vec<OwnedFd>,
    adopt: impl Fn(OwnedFd) -> Result<W, E>,
) -> Result<Vec<W>, Failure> {
    wires.into_iter().map(|fd| adopt(fd).map_err(Failure::cannot)).collect()
}

fn with<W: Wire + Send + 'static>(
    args: &ReplaceArgs,
    wires: Wires<W>,
    from: Predecessor,
    cannot: &dyn Fn(HandoverError) -> Failure,
) -> Result<(), Failure> {
    let kind = match args.datapath {
        Some(kind) => kind,
        None => from.datapath().parse().map_err(|error| {
            let why = format!("it has the data path {}, but {error}", from.datapath());
            cannot(HandoverError::Other(why))
        })?,
    };
    let make = |settings, trace| kind.make(settings, trace);
    let (ip, name) = (from.address().ip, from.name().to_owned());
    let profile = Profile::of(Role::Tcp).becoming(args.user).with_socket(from.door());
    profile.confine().map_err(Failure::cannot)?;
    let announce = || {
        if !args.quiet {
            let instead = "in place of the previous agent; Ctrl-C ends it";
            tell!("Speaking TCP at {ip}, on {name}{}, {instead}", named(kind));
        }
    };
    match wires.one_or_groups(args.cpus.as_deref().unwrap_or_default()) {
        Ok(wire) => {
            let front = TcpFront::take_over(wire, make, from, Seat::Shared).map_err(cannot)?;
            announce();
            go_on(front, args.quiet)
        }
        Err(wires) => {
            let front =
                TcpFront::take_over_groups(wires, make, from, Seat::Shared).map_err(cannot)?;
            announce();
            go_on(front, args.quiet)
        }
    }
}

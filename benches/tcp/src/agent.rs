//! The agent's process: the front of `wave tcp up`, and a count of allocations.

use std::alloc::System;
use std::io::{Stdin, Stdout};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use stats_alloc::{Stats, StatsAlloc};
use wave_agent::{Seat, ThreadFront, serve};
use wave_front_tcp::{Captures, Door, DoorOptions, ReportSocket, TcpFront, TcpOptions, Traces};
use wave_process::cpus;
use wave_tcp::congestion::Algorithm;
use wave_tcp::control::Bounds;
use wave_tcp::datapath::{Datapath, Settings};
use wave_tcp::datapaths::DatapathKind;
use wave_tcp::executors::Inline;
use wave_tcp::flextoe::FlexToe;
use wave_tcp::stages::arbiter::ByStages;
use wave_tcp::stages::recover::GoBackN;
use wave_tcp::trace::Trace;
use wave_wires::{Frame, Interface, InterfaceOptions, Tap, TapOptions, Wire};

use crate::network::enter_network_of;
use crate::process::answer;

const PREFIX: u8 = 24;
const MTU: u16 = 1500;

/// Arguments of the agent's process.
#[derive(Args, Debug)]
pub struct AgentArgs {
    #[arg(long, conflicts_with = "tap", required_unless_present = "tap")]
    interface: Option<String>,
    #[arg(long, requires = "linux")]
    tap: Option<String>,
    /// Linux's address on the TAP device.
    #[arg(long)]
    linux: Option<Ipv4Addr>,
    /// Number of the process whose network namespace to enter.
    #[arg(long)]
    network_of: Option<u32>,
    #[arg(long)]
    address: Ipv4Addr,
    #[arg(long)]
    socket: PathBuf,
    #[arg(long)]
    cpu: usize,
    /// Recover from losses by go-back-N, as the thesis does.
    #[arg(long, conflicts_with = "datapath")]
    go_back_n: bool,
    #[arg(long, default_value = "flextoe")]
    datapath: DatapathKind,
}

/// Runs the agent until it is killed.
pub fn run(args: &AgentArgs, allocator: &'static StatsAlloc<System>) -> Result<(), String> {
    if let Some(pid) = args.network_of {
        enter_network_of(pid)?;
    }
    cpus::pin(&[args.cpu]).map_err(|error| error.to_string())?;
    match (&args.interface, &args.tap, args.linux) {
        (Some(name), ..) => {
            let wire = Interface::open(&InterfaceOptions::new(name, args.address));
            up(args, wire.map_err(|error| error.to_string())?, allocator)
        }
        (None, Some(name), Some(linux)) => {
            let mut tap = Tap::open(&TapOptions::new(name)).map_err(|error| error.to_string())?;
            tap.configure(IpAddr::V4(linux), PREFIX, MTU).map_err(|error| error.to_string())?;
            up(args, tap, allocator)
        }
        _ => Err("the bench's agent needs a TAP device or an interface".into()),
    }
}

fn up(
    args: &AgentArgs,
    wire: impl Wire,
    allocator: &'static StatsAlloc<System>,
) -> Result<(), String> {
    match args.go_back_n {
        true => up_with(
            args,
            wire,
            FlexToe::<Frame, Inline<Frame, ByStages<GoBackN>>>::with_trace,
            allocator,
        ),
        false => {
            let make = |settings, trace| args.datapath.make(settings, trace);
            up_with(args, wire, make, allocator)
        }
    }
}

fn up_with<D: Datapath<Frame>>(
    args: &AgentArgs,
    wire: impl Wire,
    make: impl FnOnce(Settings, Arc<Trace>) -> D,
    allocator: &'static StatsAlloc<System>,
) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| format!("the bench's agent: {error}");
    let door = Door::bind(&args.socket, DoorOptions::default()).map_err(|error| failed(&error))?;
    let reports = ReportSocket::bind(&args.socket).map_err(|error| failed(&error))?;
    let captures = Captures::bind(&args.socket, "bench").map_err(|error| failed(&error))?;
    let traces = Traces::bind(&args.socket).map_err(|error| failed(&error))?;
    let bounds = Bounds::default();
    let options = TcpOptions {
        // The same as `network::CONGESTION`.
        congestion: Algorithm::Reno,
        ip: args.address,
        prefix: PREFIX,
        gateway: None,
        v6: None,
        bounds,
        seat: Seat::Shared,
    };
    let before = allocator.stats();
    let mut front = TcpFront::new(wire, make, door, reports, captures, traces, &options)
        .map_err(|error| failed(&error))?;
    let table_bytes = live(&allocator.stats()) - live(&before);
    answer("ready")?;
    // Allocates nothing itself, so that only the agent's allocations are counted.
    let pipes = (std::io::stdin(), std::io::stdout());
    std::thread::spawn(move || count(allocator, table_bytes as u64, &pipes));
    serve(&mut front);
    front.failure().map_or(Ok(()), Err)
}

fn live(stats: &Stats) -> isize {
    stats.bytes_allocated as isize - stats.bytes_deallocated as isize
}

/// Answers each line of input with the number of allocations so far and the size of the tables in bytes, until the input ends.
fn count(allocator: &StatsAlloc<System>, table_bytes: u64, (input, output): &(Stdin, Stdout)) {
    let mut line = [0; 64];
    while rustix::io::read(input, &mut line).is_ok_and(|count| count > 0) {
        let stats = allocator.stats();
        let allocations = (stats.allocations + stats.reallocations) as u64;
        let mut text = [b' '; 42];
        digits(allocations, &mut text[..20]);
        digits(table_bytes, &mut text[21..41]);
        text[41] = b'\n';
        // An error means that no process reads the output any more: this one is about to be killed.
        let _ = rustix::io::write(output, &text);
    }
    std::process::exit(0);
}

/// Appends a number to `text`, in decimal.
fn digits(mut number: u64, text: &mut [u8]) {
    for place in text.iter_mut().rev() {
        *place = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

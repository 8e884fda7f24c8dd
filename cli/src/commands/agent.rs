//! `wave agent`: starts an agent from the command line.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use wave_agent::Registry;
use wave_grpc::FrontArgs;
use wave_udp::UdpArgs;

/// Runs an agent, or one that replaces a running agent.
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  wave agent --attach /tmp/my.sock
  wave agent --attach /tmp/my.sock --policy fifo --cpu 2
  wave agent replace --attach /tmp/my.sock     upgrade without stopping the workload
  wave agent replace --rpc /tmp/kv.sock --listen 127.0.0.1:50052   its clients reconnect to another address
  wave agent --device /dev/shm/nic             as a NIC, for cargo xtask vm run --nic /dev/shm/nic
  wave agent --rpc /tmp/kv.sock --listen 127.0.0.1:50051       gRPC for the host at that socket
  wave agent --rpc /tmp/kv.sock --listen 0.0.0.0:50051 --cpu 1 --connection-cpus 2-4      with cores for connections
  wave agent --rpc /tmp/kv.sock --udp 127.0.0.1:50052          requests in datagrams for that host
  wave agent --rpc /tmp/kv.sock --udp 127.0.0.1:11211 --udp-memcached 127.0.0.1       memcached's clients of that host

The host prints its socket's path; hosts/user/examples/hello.rs is such a host.
Exit codes: 0 the host ended, another agent took over, or SIGTERM ended an agent for RPCs; 2 bad arguments; 3 it could
not attach, pin or listen, or the TLS files are bad; 4 the host's window holds invalid data; 5 the host turned the agent
out, because it decided too late or wrote invalid data."
)]
pub struct AgentCommand {
    #[command(subcommand)]
    replace: Option<Replace>,
    #[command(flatten)]
    agent: Fronts,
}

/// Options of the gRPC front. A front for datagrams must refuse them: a user who asks for TLS must get it.
const OF_GRPC: [&str; 14] = [
    "connection_cpus",
    "notes",
    "notes_allow",
    "tls_cert",
    "tls_key",
    "load_reports",
    "message_kib",
    "header_kib",
    "connections",
    "streams",
    "held_mib",
    "keepalive_s",
    "idle_s",
    "drain_s",
];

/// An agent and its fronts.
#[derive(Args, Clone, Debug)]
#[command(mut_arg("udp", |udp| udp.conflicts_with_all(OF_GRPC)))]
#[command(mut_arg("udp_public", |public| public.conflicts_with("listen")))]
#[command(mut_arg("udp_memcached", |list| list.conflicts_with("listen")))]
struct Fronts {
    #[command(flatten)]
    grpc: FrontArgs,
    #[command(flatten)]
    udp: UdpArgs,
}

#[derive(Debug, Subcommand)]
enum Replace {
    /// Start an agent that replaces the attached one.
    ///
    /// The workload continues meanwhile: the new agent gets a window of its own and a snapshot of
    /// all threads. Only then does the old one lose its window, and leave. If no agent is attached,
    /// this is the same as `wave agent`.
    ///
    /// With --rpc the host switches to the new agent; the old one tells its clients to reconnect and
    /// exits. Until then it still listens, so --listen must name a different address.
    Replace(Fronts),
}

/// Runs the agent until it has to leave.
pub fn execute(command: AgentCommand) -> ExitCode {
    let args = match command.replace {
        Some(Replace::Replace(args)) => args,
        None => command.agent,
    };
    let (registry, FrontArgs { agent, rpc }) = (Registry::shipped(), &args.grpc);
    match args.udp.options(rpc.rpc.as_ref(), &rpc.steer, agent) {
        Some(options) => wave_udp::execute(&registry, agent, options),
        None => wave_grpc::execute(&registry, &args.grpc),
    }
}
